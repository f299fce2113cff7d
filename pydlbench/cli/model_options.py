"""Options of whole models' commands: variants (``--option lrn=off``), and words of which one."""

from __future__ import annotations

from typing import TYPE_CHECKING

from pydlbench.errors import UsageError

if TYPE_CHECKING:
    from collections.abc import Sequence

__all__ = ["one_of", "read_options"]


def one_of(option: str, text: str, allowed: Sequence[str]) -> str:
    """Return the value of an option that takes one only.

    Raises:
        UsageError: it is not among those allowed, or there are several.
    """
    from pydlbench.cli.values import choices

    first, *others = choices(option, [text], allowed)
    if others:
        raise UsageError(f"{option} {text}: one at a time; nearest: {option} {first}")
    return first


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
