"""Values of options: lists, choices and numbers, each refused in one line that helps."""

from __future__ import annotations

import math
import re
from typing import TYPE_CHECKING

from pydlbench.errors import UsageError, nearest

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

__all__ = [
    "byte_count",
    "choices",
    "fraction",
    "positive_seconds",
    "split_patterns",
    "whole_number",
    "wholes",
]

_BYTES = {"": 0, "K": 10, "M": 20, "G": 30, "T": 40}
# More than any memory holds, and what the native modules can still count.
_MOST_BYTES = 1 << 62


def choices(
    option: str, given: Sequence[str], allowed: Sequence[str], every: str = ""
) -> list[str]:
    """Return the distinct values of a list option, in the order given.

    Args:
        option: Its name, for messages.
        given: Words of the command line; each may hold several values between commas.
        allowed: What may be asked for.
        every: Word that stands for all of ``allowed``; empty where there is none.

    Raises:
        UsageError: A value is not among them.
    """
    found: dict[str, None] = {}
    for value in _split(option, given):
        if every and value == every:
            found |= dict.fromkeys(allowed)
        elif value in allowed:
            found[value] = None
        else:
            # What only lacks its end comes first: bf16 means bf16-tc.
            near = [name for name in allowed if name.startswith(value)] or nearest(
                value, allowed, 1
            )
            hint = f"nearest: {near[0]}; choices" if near else "choices"
            names = ", ".join([*allowed, every] if every else allowed)
            raise UsageError(f"{option} {value}: not a valid choice; {hint}: {names}")
    return list(found)


def wholes(option: str, given: Sequence[str], least: int = 1) -> list[int]:
    """Return the distinct whole numbers of a list option, in the order given."""
    values = (whole_number(option, word, least) for word in _split(option, given))
    return list(dict.fromkeys(values))


def whole_number(option: str, text: str, least: int) -> int:
    """Return ``text`` as a number of at least ``least``.

    Raises:
        UsageError: It is none, or smaller.
    """
    # int() would take "1_000", " 7 " and digits of any script.
    if not re.fullmatch(r"[+-]?[0-9]{1,18}", text):
        raise UsageError(f"{option} {text}: not a whole number; nearest: {_guess(text, least)}")
    if int(text) < least:
        raise UsageError(f"{option} {text}: too small; nearest: {least}")
    return int(text)


def positive_seconds(option: str, text: str) -> float:
    """Return ``text`` as a positive number of seconds.

    Raises:
        UsageError: It is none.
    """
    value = _real(option, text, "2")
    if not 0 < value <= 86400:
        near = "0.1" if value <= 0 else "86400"
        raise UsageError(f"{option} {text}: must lie between 0 and 86400 s; nearest: {near}")
    return value


def byte_count(option: str, text: str | None, default: int = 1 << 33) -> int:
    """Return a number of bytes: ``4096``, ``64M``, ``64MiB``, ``1.5g`` (powers of 1024).

    Args:
        option: Its name, for messages.
        text: What was given; ``None`` is the default.
        default: In bytes.

    Raises:
        UsageError: It is no such number.
    """
    if text is None:
        return default
    pattern = r"([0-9]{1,18}(?:\.[0-9]{1,6})?)\s*([KMGT]?)(?:I?B)?"
    found = re.fullmatch(pattern, text.strip().upper())
    if not found:
        raise UsageError(f"{option} {text or repr(text)}: not a number of bytes; nearest: 64M")
    whole, _, part = found[1].partition(".")
    factor = 1 << _BYTES[found[2]]
    count: int = int(whole) * factor + int(part or 0) * factor // 10 ** len(part)
    if count > _MOST_BYTES:
        raise UsageError(f"{option} {text}: more than there can be; nearest: 1T")
    return count


def fraction(option: str, text: str, low: float, high: float) -> float:
    """Return ``text`` as a number between ``low`` and ``high``, both excluded.

    Raises:
        UsageError: It is none.
    """
    value = _real(option, text, "0.95")
    if not low < value < high:
        percentage = low < value / 100 < high
        near = f"{value / 100:g}" if percentage else "0.95"
        raise UsageError(f"{option} {text}: must lie between {low:g} and {high:g}; nearest: {near}")
    return value


def split_patterns(given: Iterable[str]) -> list[str]:
    """Split layer patterns at commas, except inside ``n"..."`` and in ``@file``."""
    found: list[str] = []
    for word in given:
        if word.startswith("@"):
            found.append(word)
            continue
        parts = re.findall(r'(?:[^,"]|"[^"]*"?)+', word)
        found += [part.strip() for part in parts if part.strip()]
    return list(dict.fromkeys(found))


def _split(option: str, given: Sequence[str]) -> list[str]:
    values = [value.strip() for word in given for value in word.split(",")]
    if not all(values) or not values:
        text = ",".join(given)
        near = ",".join(filter(None, values)) or "leave the option out"
        raise UsageError(f"{option} {text!r}: empty value in the list; nearest: {near}")
    return values


def _real(option: str, text: str, near: str) -> float:
    try:
        value = float(text)
    except ValueError:
        value = math.nan
    if not math.isfinite(value):
        raise UsageError(f"{option} {text}: not a number; nearest: {near}")
    return value


def _guess(text: str, least: int) -> int:
    try:
        value = float(text)
        return max(least, round(value))
    except (ValueError, OverflowError):
        return least
