"""Texts as a page can hold them, and what comes of values that are no such texts."""

from __future__ import annotations

import re
from typing import Any

#: What comes of documents that hold something else than they should.
UNREADABLE = (KeyError, TypeError, ValueError, AttributeError, ArithmeticError)
# Control characters are no text in HTML and make XML ill-formed; half of a surrogate pair cannot
# be written as UTF-8.
_UNPRINTABLE = re.compile("[\x00-\x08\x0b\x0c\x0e-\x1f\x7f-\x9f\ud800-\udfff\ufffe\uffff]")


def plain(value: Any, limit: int | None = None) -> str:
    """Return a value as text on one line that XML and HTML can hold; long ones are cut.

    Args:
        value: anything; None is a dash.
        limit: characters at the most.
    """
    words = "-" if value is None else str(value)
    if not (words.isascii() and words.isprintable()):
        words = _UNPRINTABLE.sub("\ufffd", words)
    words = " ".join(words.split())
    if limit is not None and len(words) > limit:
        return f"{words[: limit - 1].rstrip()}\N{HORIZONTAL ELLIPSIS}"
    return words


def dotted(line: str) -> str:
    """Return a line of a terminal's heading, whose items two blanks part, with dots instead."""
    items = [item.strip() for item in line.split("  ") if item.strip()]
    return " \N{MIDDLE DOT} ".join(items)
