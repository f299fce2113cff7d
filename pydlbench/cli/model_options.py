"""Variants of models on the command line: ``--option lrn=off``."""

from __future__ import annotations

from typing import TYPE_CHECKING

from pydlbench.errors import UsageError

if TYPE_CHECKING:
    from collections.abc import Sequence

__all__ = ["read_options"]


def read_options(given: Sequence[str]) -> dict[str, str]:
    """Return options by name; which there are, the model knows.

    Raises:
        UsageError: one without a name or a value, or one that is given twice.
    """
    found: dict[str, str] = {}
    for text in given:
        name, mark, value = (part.strip() for part in text.partition("="))
        if not mark or not name or not value:
            raise UsageError(f"--option {text}: not NAME=VALUE; nearest: --option classes=1001")
        key = name.replace("-", "_")
        if key in found:
            raise UsageError(f"--option {text}: {name} is given twice; nearest: leave one out")
        found[key] = value
    return found
