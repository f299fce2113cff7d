"""Formatting of times, FLOPs, bytes, rates and shares: three or four digits; and of text."""

import math
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Final, Self, TypeVar

from pydlbench.grouping import group_by

Value = TypeVar("Value")
# C0, DEL and C1 without the whitespace among them.
_CONTROLS: Final = dict.fromkeys({*range(32), *range(0x7F, 0xA0)} - {9, 10, 13})

_PREFIXES = (
    (1e18, "E"),
    (1e15, "P"),
    (1e12, "T"),
    (1e9, "G"),
    (1e6, "M"),
    (1e3, "k"),
    (1.0, ""),
    (1e-3, "m"),
    (1e-6, "u"),
    (1e-9, "n"),
)


def per_second(rate: float) -> str:
    """Format a rate per second, without a prefix: ``16.04``, ``34697``."""
    return f"{rate:.0f}" if rate >= 9999.5 else f"{rate:.4g}"


def si(value: float, unit: str) -> str:
    """Format ``value`` with an SI prefix and three significant digits: ``28.7 GFLOP``.

    NaN and infinities are printed as such.
    """
    if not math.isfinite(value):
        return f"{value} {unit}"
    if value == 0:
        return f"0 {unit}"
    # Rounding may carry over: 999.7 is 1.00 of the next prefix.
    factor, prefix = next(
        (item for item in _PREFIXES if abs(value) >= item[0] * 0.9995), _PREFIXES[-1]
    )
    scaled = float(f"{value / factor:.2e}")  # here too: 9.996 is 10.0
    if abs(scaled) >= 1e4:
        return f"{value:.2e} {unit}"
    decimals = max(0, 2 - math.floor(math.log10(abs(scaled)) + 1e-9))
    return f"{scaled:.{decimals}f} {prefix}{unit}"


def format_seconds(seconds: float) -> str:
    """Format a time: ``51.2 ms``; what is less than a tenth of a nanosecond as such."""
    return "<0.1 ns" if 0 < abs(seconds) < 1e-10 else si(seconds, "s")


def format_flops(flops: float) -> str:
    """Format a number of floating-point operations (not a rate): ``28.7 GFLOP``."""
    return si(flops, "FLOP")


def format_bytes(count: float) -> str:
    """Format a size in decimal units: ``52.6 MB``."""
    return si(count, "B")


def format_hz(hertz: float) -> str:
    """Format a clock: ``4.31 GHz``."""
    return si(hertz, "Hz")


def number(value: float | None, digits: int = 3) -> str:
    """Format with three significant digits and no exponent: ``0.561``, ``51.2``, ``512``."""
    if value is None or not math.isfinite(value):
        return "-"
    if value == 0:
        return "0"
    rounded = float(f"{value:.{digits - 1}e}")  # 0.9999 is 1.00, not 1.000
    decimals = max(0, digits - 1 - math.floor(math.log10(abs(rounded)) + 1e-9))
    return f"{value:.{min(decimals, 6)}f}"


def scientific(value: float) -> str:
    """Format an error with one digit: ``2e-7``."""
    mantissa, exponent = f"{value:.0e}".split("e")
    return f"{mantissa}e{int(exponent)}"


def percent(fraction: float | None, *, decimal: bool = False, signed: bool = False) -> str:
    """Format a fraction: ``93 %``, ``0.3 %``, ``<0.1 %``; a dash if it is not a number.

    Args:
        fraction: fraction to format; 1 is 100 %.
        decimal: whether to keep a decimal up to 100 %, for columns that readers add up: ``71.9 %``.
        signed: whether to print sign and decimal, for an error or a difference: ``+0.2 %``.
    """
    if fraction is None or not math.isfinite(fraction):
        return "-"
    value = 100 * fraction
    keep_decimal = decimal or signed
    if 0 < value < 0.05 and not keep_decimal:
        return "<0.1 %"
    decimals = 1 if abs(value) < (99.95 if keep_decimal else 9.95) else 0
    text = _unsigned_zero(f"{value:.{decimals}f} %")
    return _with_sign(text) if signed else text


def format_count(count: float) -> str:
    """Format a number of things, or a mean of such: ``1,465``, ``508``, ``0.167``."""
    whole = count == round(count) or count >= 99.95
    return f"{count:,.0f}" if whole else number(count)


def known_text(value: Value | None, text: Callable[[Value], str]) -> str:
    """Return the text of a value; empty if the value is None."""
    return "" if value is None else text(value)


def holding(texts: Mapping[str, object]) -> list[str]:
    """Return the texts whose condition holds, given by text."""
    return [text for text, condition in texts.items() if condition]


def quantity(count: float, noun: str) -> str:
    """Return a number of things: ``1 thread``, ``12 threads``."""
    return f"{format_count(count)} {noun}{'' if count == 1 else 's'}"


def join_names(names: Sequence[str]) -> str:
    """Return one or more names as a list in a sentence: ``a, b and c``."""
    return " and ".join(filter(None, [", ".join(names[:-1]), names[-1]]))


def some_names(names: Sequence[str], most: int = 4) -> str:
    """Name a few of several and count the others: ``conv1, conv2, conv3, conv4 and 3 more``."""
    # "and 1 more" is no shorter than a name.
    shown = names if len(names) <= most + 1 else names[:most]
    more = f" and {len(names) - len(shown)} more" if len(shown) < len(names) else ""
    return ", ".join(shown) + more


# A number in a text, with the unit of a time or a size behind it; not a digit of a name.
_NUMBER: Final = re.compile(
    r"(?<![\w.:/-])(\d[\d,]*(?:\.\d+)?)( (?:[num]?s|[KMGT]?i?B))?(?![\w:/]|\.\d)"
)
_UNIT_SIZES: Final = {
    **dict(zip(("ns", "us", "ms", "s"), (1e-9, 1e-6, 1e-3, 1.0), strict=True)),
    **{f"{prefix}B": 1024.0**power for power, prefix in enumerate(("", "Ki", "Mi", "Gi", "Ti"))},
}


def without_numbers(text: str) -> str:
    """Return a text with a mark in place of each number: equal for texts that differ in those."""
    return _NUMBER.sub("#", text)


def merge_texts(texts: Sequence[str]) -> str:
    """Return one text for texts that differ in numbers only, with ranges: ``1 to 3 of 4 rounds``.

    Args:
        texts: at least one text; all have the same :func:`without_numbers`.
    """
    columns = zip(*(_NUMBER.finditer(text) for text in dict.fromkeys(texts)), strict=True)
    ranges = []
    for matches in columns:
        ordered = sorted(matches, key=_size)
        first, last = ordered[0], ordered[-1]
        start = first[1] if first[2] == last[2] else first[0]
        ranges.append(last[0] if _size(first) == _size(last) else f"{start} to {last[0]}")
    values = iter(ranges)
    return _NUMBER.sub(lambda _: next(values), texts[0])


def merge_notes(texts: Iterable[str]) -> list[str]:
    """Return texts, those that differ in numbers only as one, in the order of the first ones."""
    return [merge_texts(some) for some in group_by(texts, without_numbers).values()]


def merge_subjects(texts: Iterable[str]) -> list[str]:
    """Return texts, those that differ in numbers and in one word only as one, with all the words.

    ``the bf16 probe reached 82 %`` and ``the fp16 probe reached 89 %`` become ``the bf16, fp16
    probe reached 82 to 89 %``.
    """
    groups: list[tuple[list[str], list[str], list[int]]] = []
    for text in merge_notes(texts):
        words = without_numbers(text).split()
        for first, same, places in groups:
            differing = [i for i, word in enumerate(words) if first[i : i + 1] != [word]]
            if len(words) == len(first) and len(differing) == 1 and places in ([], differing):
                same.append(text)
                places[:] = differing
                break
        else:
            groups.append((words, [text], []))
    merged = []
    for _, same, places in groups:
        rows = [text.split(" ") for text in same]
        for place in places:
            subjects = ", ".join(row[place] for row in rows)
            for row in rows:
                row[place] = subjects
        merged.append(merge_texts([" ".join(row) for row in rows]))
    return merged


def _size(match: re.Match[str]) -> float:
    return float(match[1].replace(",", "")) * _UNIT_SIZES.get((match[2] or "").strip(), 1.0)


def time_unit(seconds: Sequence[float]) -> tuple[float, str]:
    """Choose one unit for a whole column, so that its numbers can be compared at a glance.

    It fits most of the times; it is a larger unit if the longest time had five digits otherwise.
    """
    logs = [math.log10(value) for value in seconds if value > 0 and math.isfinite(value)]
    middle = max(sum(logs) / len(logs), max(logs) - 1) if logs else 0.0
    for exponent, name in ((0, "s"), (-3, "ms"), (-6, "us")):
        if middle >= exponent:
            return 10.0**-exponent, name
    return 1e9, "ns"


def time_in(unit: tuple[float, str], seconds: float) -> str:
    """Format ``seconds`` in a unit of ``time_unit``."""
    return f"{number(seconds * unit[0])} {unit[1]}"


@dataclass(frozen=True, slots=True, kw_only=True)
class Scale:
    """One unit for all times of a table, so that readers can add up its column.

    Attributes:
        unit: unit of time: ``s``, ``ms`` or ``us``.
        factor: number of seconds per unit.
        decimals: number of digits after the point.
    """

    unit: str
    factor: float
    decimals: int

    @classmethod
    def fit(cls, seconds: float) -> Self:
        """Return the scale in which ``seconds`` has four digits."""
        size = abs(seconds) or 1e-3
        for unit, factor in (("s", 1.0), ("ms", 1e-3), ("us", 1e-6)):
            if size >= factor or unit == "us":
                break
        digits = math.floor(math.log10(size / factor))
        return cls(unit=unit, factor=factor, decimals=max(0, 3 - digits))

    def text(self, seconds: float | None) -> str:
        """Return a time: ``116.8 ms``; a dash for None."""
        return "-" if seconds is None else f"{self.bare(seconds)} {self.unit}"

    def bare(self, seconds: float) -> str:
        """Return a time without its unit."""
        return _unsigned_zero(f"{seconds / self.factor:.{self.decimals}f}")

    def signed(self, seconds: float) -> str:
        """Return a difference: ``+3.6 ms``."""
        return _with_sign(self.text(seconds))


def _with_sign(text: str) -> str:
    return text if text.startswith("-") else f"+{text}"


def _unsigned_zero(text: str) -> str:
    """Return the text without a minus sign before zero."""
    return text.removeprefix("-") if not text.strip("-0. %") else text


def printable(text: str) -> str:
    """Return a text without terminal control characters; tabs and line ends stay."""
    return text.translate(_CONTROLS)


def cut(text: str, width: int) -> str:
    """Return the beginning of a text that is longer than that many characters."""
    return text if len(text) <= width else f"{text[: width - 3].rstrip(' ,{(')}..."
