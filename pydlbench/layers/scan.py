"""What both kinds of descriptor are made of: numbers, a name, and errors with a position."""

from __future__ import annotations

import re
from typing import Final

from pydlbench.errors import UsageError

__all__ = ["malformed", "read_name", "read_number"]

_NUMBER: Final = re.compile(r"[0-9]+")
_SIGNED: Final = re.compile(r"[-+]?[0-9.]+")
_DIGITS: Final = 19  # 2**63 has nineteen


def malformed(position: int, expected: str, found: str) -> UsageError:
    """Return the error for the character at ``position`` (from 0; printed from 1)."""
    if len(found) > 12:
        found = found[:12] + "..."
    got = f"got {found!r}" if found else "got the end"
    return UsageError(f"column {position + 1}: {expected}; {got}")


def read_number(text: str, position: int, field: str, least: int) -> tuple[int, int]:
    """Read the digits at ``position``.

    Returns:
        The number and the position behind it.

    Raises:
        UsageError: No number, one below ``least``, or one beyond 63 bits.
    """
    match = _NUMBER.match(text, position)
    if match is None:
        signed = _SIGNED.match(text, position)
        found = signed.group() if signed else text[position:]
        raise malformed(position, f"expected a whole number for {field}, at least {least}", found)
    digits = match.group().lstrip("0") or "0"
    if len(digits) > _DIGITS:
        raise malformed(position, f"expected {field} below 2**63", match.group())
    number = int(digits)
    if number < least:
        raise malformed(position, f"expected {field} of at least {least}", match.group())
    return number, match.end()


def read_name(text: str, position: int) -> str:
    """Read ``n"..."`` or ``n...`` (a shell removes the quotes), which ends a descriptor.

    Raises:
        UsageError: An empty name, a missing closing quote, or text behind it.
    """
    start = position + 1
    if not text.startswith('"', start):
        if start == len(text):
            raise malformed(start, "expected a name", "")
        return text[start:]
    end = text.find('"', start + 1)
    if end < 0:
        raise malformed(len(text), "expected the closing quote of the name", "")
    if end == start + 1:
        raise malformed(end, "expected a name", text[end:])
    if end + 1 < len(text):
        raise malformed(end + 1, "expected nothing behind the name", text[end + 1 :])
    return text[start + 1 : end]
