"""Numbers of the cross-check's tables: times in one common unit, fractions with their sign."""

from __future__ import annotations

import math
import textwrap
from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterable

__all__ = ["WIDTH", "Scale", "clip", "percent", "signed_percent", "wrap"]

#: Columns that every line fits into.
WIDTH = 150


@dataclass(frozen=True, slots=True, kw_only=True)
class Scale:
    """One unit for all times of a table, so that its column can be added up by eye.

    Attributes:
        unit: ``s``, ``ms`` or ``us``.
        factor: seconds in a unit.
        decimals: behind the point.
    """

    unit: str
    factor: float
    decimals: int

    @classmethod
    def of(cls, seconds: float) -> Scale:
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
        return f"{_plus(self.bare(seconds))} {self.unit}"


def percent(fraction: float) -> str:
    """Return a share with a decimal below 99.95 %: ``71.9 %``."""
    value = 100 * fraction
    return f"{_unsigned_zero(f'{value:.{1 if abs(value) < 99.95 else 0}f}')} %"


def signed_percent(fraction: float) -> str:
    """Return an error or a difference: ``-3.8 %``, ``+0.2 %``."""
    return _plus(percent(fraction))


def clip(text: str, width: int = WIDTH) -> str:
    """Return the lines of a text, those cut that are too wide."""
    return "\n".join(
        line if len(line) <= width else f"{line[: width - 3].rstrip()}..."
        for line in text.splitlines()
    )


def wrap(lines: Iterable[str], indent: str = "  ") -> list[str]:
    """Return lines broken between words; words that belong to one line are indented."""
    return [
        part
        for line in lines
        for part in textwrap.wrap(
            line, WIDTH, subsequent_indent=indent, break_on_hyphens=False, break_long_words=False
        )
    ]


def _plus(text: str) -> str:
    return text if text.startswith("-") else f"+{text}"


def _unsigned_zero(text: str) -> str:
    """Nothing is below zero by nothing."""
    return text.removeprefix("-") if not text.strip("-0.") else text
