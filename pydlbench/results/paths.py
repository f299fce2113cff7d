"""Paths as people write them."""

from __future__ import annotations

from pathlib import Path

__all__ = ["user_path"]


def user_path(text: str | Path) -> Path:
    """Return a path, its ``~`` replaced as a shell does: that of an unknown user stays as it is."""
    path = Path(text)
    try:
        return path.expanduser()
    except RuntimeError:  # no such user, or nobody's home is known
        return path
