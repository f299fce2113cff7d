"""Values of options, converted from the text of a command line, a sweep or a keyword.

An invalid value is refused in one line with the nearest valid one.
"""

import math
import re
import sys
from collections.abc import Sequence
from typing import Final

from pydlbench.errors import UsageError, nearest
from pydlbench.words import FRAMEWORK_MODES, FRAMEWORKS, check_device

_EXPONENTS: Final = {"": 0, "K": 10, "M": 20, "G": 30, "T": 40}
_MAX_COUNT: Final = 10**18 - 1
# More than any memory; fits into the integers of the native modules.
_MAX_BYTES: Final = 1 << 62


def choices(option: str, text: str, allowed: Sequence[str], every: str = "") -> list[str]:
    """Return the distinct values of a list option, in the order given.

    Args:
        option: Name of the option, for messages.
        text: Values between commas.
        allowed: The valid values.
        every: Word for all of ``allowed``; empty if there is none.

    Raises:
        UsageError: A value is not among them.
    """
    values: dict[str, None] = {}
    for value in splits(option, text):
        if every and value == every:
            values |= dict.fromkeys(allowed)
        elif value in allowed:
            values[value] = None
        else:
            # Prefix matches rank first: bf16-tc for bf16.
            near = [name for name in allowed if name.startswith(value)] or [
                *nearest(value, allowed, 1),
                *(allowed if len(allowed) == 1 else ()),
            ]
            hint = f"nearest: {near[0]}; choices" if near else "choices"
            names = ", ".join([*allowed, every] if every else allowed)
            raise UsageError(f"{option} {value}: not a valid choice; {hint}: {names}")
    return list(values)


def frameworks(option: str, text: str) -> list[str]:
    """Return the names of frameworks; ``all`` is those that run the models of the catalogue."""
    words = choices(option, text, (*FRAMEWORK_MODES, "all"))
    return [name for word in words for name in (FRAMEWORKS if word == "all" else (word,))]


def interpreters(option: str, text: str) -> dict[str, str]:
    """Return the interpreter of each framework in ``torch=A/bin/python,tensorflow=B/bin/python``.

    Raises:
        UsageError: a word names no framework or no interpreter, or a framework is named twice.
    """
    found: dict[str, str] = {}
    for word in splits(option, text):
        name, _, path = word.partition("=")
        if name not in FRAMEWORK_MODES or not path:
            near = nearest(name, FRAMEWORK_MODES, 1) or [FRAMEWORKS[0]]
            raise UsageError(
                f"{option} {word}: not FRAMEWORK=PATH; nearest: {near[0]}={path or sys.executable}"
            )
        if name in found:
            raise UsageError(f"{option} {word}: {name} is given twice; nearest: leave one out")
        found[name] = path
    return found


def wholes(option: str, text: str) -> list[int]:
    """Return the distinct whole numbers above zero of a list option, in the order given."""
    values = (whole_number(option, word, 1) for word in splits(option, text))
    return list(dict.fromkeys(values))


def whole_number(option: str, text: str, least: int) -> int:
    """Return ``text`` as a number of at least ``least``.

    Raises:
        UsageError: The text is not a number, or the number is smaller.
    """
    # int() would take "1_000", " 7 " and digits of any script.
    if re.fullmatch(r"[+-]?[0-9]{19,}", text):
        near = least if text.startswith("-") else _MAX_COUNT
        raise UsageError(f"{option} {text}: out of range; nearest: {near}")
    if not re.fullmatch(r"[+-]?[0-9]{1,18}", text):
        raise UsageError(f"{option} {text}: not a whole number; nearest: {_guess(text, least)}")
    if int(text) < least:
        raise UsageError(f"{option} {text}: too small; nearest: {least}")
    return int(text)


def device(option: str, text: str) -> str:  # noqa: ARG001 - as all readers
    """Return a device's name: ``cpu`` or ``cuda:N``.

    Raises:
        UsageError: the text does not name a device.
    """
    check_device(text)
    return text


def device_names(option: str, text: str) -> list[str]:
    """Return the devices between commas."""
    return [device(option, split) for split in splits(option, text)]


def positive_time(option: str, text: str, unit: str = "s", most: int = 86400) -> float:
    """Return ``text`` as a positive time in seconds, or in another unit.

    Args:
        option: name of the option, for messages.
        text: value as it was given.
        unit: name of the unit, for messages.
        most: longest time.

    Raises:
        UsageError: The text is no positive number.
    """
    value = real(option, text, "2", endless=True)
    if not 0 < value <= most:
        near = "0.1" if value <= 0 else most
        raise UsageError(f"{option} {text}: must lie between 0 and {most} {unit}; nearest: {near}")
    return value


def byte_count(option: str, text: str) -> int:
    """Return a number of bytes: ``4096``, ``64M``, ``64MiB``, ``1.5g`` (powers of 1024).

    Args:
        option: Name of the option, for messages.
        text: Value as it was given.

    Raises:
        UsageError: The text is not a number of bytes.
    """
    pattern = r"([0-9]{1,18}(?:\.[0-9]{1,6})?)\s*([KMGT]?)(?:I?B)?"
    match = re.fullmatch(pattern, text.strip().upper())
    if not match:
        raise UsageError(f"{option} {text or repr(text)}: not a number of bytes; nearest: 64M")
    whole, _, part = match[1].partition(".")
    factor = 1 << _EXPONENTS[match[2]]
    count: int = int(whole) * factor + int(part or 0) * factor // 10 ** len(part)
    if count > _MAX_BYTES:
        raise UsageError(f"{option} {text}: too large; nearest: 1T")
    return count


def percentage(option: str, text: str) -> float:
    """Return ``text``, ``2%`` or ``2``, as a fraction: 0.02.

    Raises:
        UsageError: The text is not a number between 0 and 100 (both excluded).
    """
    match = re.fullmatch(r"([0-9]{0,3}(?:\.[0-9]{0,6})?) ?%?", text)
    value = real(option, match[1], "2%") if match and match[1].strip(".") else math.nan
    if not 0 < value < 100:
        raise UsageError(
            f"{option} {text or repr(text)}: expected a percentage between 0 and 100; nearest: 2%"
        )
    return value / 100


def patterns(option: str, text: str) -> list[str]:
    """Split layer patterns at commas, except inside ``n"..."`` and in ``@file``.

    Raises:
        UsageError: there is no pattern.
    """
    if text.startswith("@"):
        return [text]
    parts = re.findall(r'(?:[^,"]|"[^"]*"?)+', text)
    values = [part.strip() for part in parts if part.strip()]
    if not values:
        raise UsageError(f"{option} {text or repr(text)}: empty; nearest: conv3".lstrip())
    return values


def pairs(option: str, text: str) -> list[str]:  # noqa: ARG001 - as all readers
    """Return the texts ``NAME=VALUE`` between commas.

    A comma that no ``NAME=`` follows belongs to the value: ``size=[1,2],lrn=off`` has two.
    """
    return re.split(r",(?=[\w .-]+=)", text)


def assignments(option: str, text: str) -> list[tuple[str, str]]:
    """Return names and values of ``NAME=VALUE,...``.

    Raises:
        UsageError: it has another form.
    """
    values = []
    for pair in pairs(option, text):
        name, mark, value = (part.strip() for part in pair.partition("="))
        if not mark or not name or not value:
            raise UsageError(
                f"{option} {pair}: not NAME=VALUE; nearest: {option} {name or 'NAME'}=VALUE"
            )
        values.append((name, value))
    return values


def splits(option: str, text: str) -> list[str]:
    """Return the values between commas.

    Raises:
        UsageError: one is empty.
    """
    values = [value.strip() for value in text.split(",")]
    if not all(values):
        near = ",".join(filter(None, values)) or "leave the option out"
        raise UsageError(f"{option} {text!r}: empty value in the list; nearest: {near}")
    return values


def real(option: str, text: str, near: str, *, endless: bool = False) -> float:
    """Return a number; an infinite one only where it is refused for its size.

    Raises:
        UsageError: the text is not a number; the message proposes ``near``.
    """
    try:
        value = float(text)
    except ValueError:
        value = math.nan
    if math.isnan(value) or (math.isinf(value) and not endless):
        raise UsageError(f"{option} {text}: not a number; nearest: {near}")
    return value


def _guess(text: str, least: int) -> int:
    try:
        return min(max(least, round(float(text))), _MAX_COUNT)
    except (ValueError, OverflowError):
        return least


def one_of(option: str, text: str, allowed: Sequence[str]) -> str:
    """Return the value of an option with a single value.

    Raises:
        UsageError: it is not allowed, or there are several.
    """
    first, *others = choices(option, text, allowed)
    if others:
        raise UsageError(f"{option} {text}: one at a time; nearest: {option} {first}")
    return first


# -----------------------------------------------------------------------------
# ``--fail-on``.

#: Exit code of a finding.
FINDING: Final = 3
#: Exit code if the measurements do not tell whether there is a finding.
UNDECIDED: Final = 4
_MAX_PERCENT: Final = 1000.0


def fail_on(option: str, text: str, allowed: Sequence[str]) -> tuple[str, float]:
    """Read a condition: ``failed``, ``slower``, ``slower:3%``, ``saves:10%``.

    Args:
        option: name of the option, for messages.
        text: text of the condition; a bare fraction like ``0.1`` means ``saves`` with this share.
        allowed: conditions that the command knows.

    Returns:
        The condition's name, and the fraction: 0.03 for ``slower:3%``, 0 if there is no fraction.

    Raises:
        UsageError: it has another form; with the nearest valid condition.
    """
    if tuple(allowed) == ("saves",) and re.fullmatch(r"0?\.[0-9]{1,6}", text):
        return "saves", float(text)
    match = re.fullmatch(r"([a-z]+)(?::([0-9]{1,4}(?:\.[0-9]{1,6})?)%)?", text)
    known = match is not None and match[1] in allowed
    if match and known and (match[1] != "failed" or match[2] is None):
        value = float(match[2] or 0)
        if value <= _MAX_PERCENT:
            return match[1], value / 100
    forms = ", ".join(name if name == "failed" else f"{name}:P%" for name in allowed)
    reason = "too large" if match and known else f"expected {forms}"
    near = _near_condition(text, allowed)
    raise UsageError(f"{option} {text or repr(text)}: {reason}; nearest: {near}")


def _near_condition(text: str, allowed: Sequence[str]) -> str:
    word = re.sub(r"[^a-z].*", "", text.strip().lower())
    name = next(iter(nearest(word, allowed, 1)), allowed[-1])
    number = re.search(r"[0-9]*\.?[0-9]+", text)
    if name == "failed" or number is None:
        return name if name == "failed" or (word and ":" not in text) else f"{name}:3%"
    value = float(number[0])
    if value > _MAX_PERCENT:
        return f"{name}:{_MAX_PERCENT:g}%"
    # Without a percent sign, 0.03 and 1.03 mean 3 %.
    if "%" not in text and 0 < value < 1:
        value *= 100
    elif "%" not in text and 1 < value < 2 and "." in number[0]:
        value = 100 * (value - 1)
    # At most the six digits that are accepted, without an exponent.
    return f"{name}:{f'{value:.6f}'.rstrip('0').rstrip('.')}%"


def shortened(text: str, width: int = 200) -> str:
    """Return a text for a message, without the middle of a long one."""
    return text if len(text) <= width else f"{text[: width - 60]} ... {text[-50:]}"
