"""Formatting of times, FLOPs, bytes and rates: three or four digits, SI prefixes; and of text."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from collections.abc import Sequence

__all__ = [
    "format_bytes",
    "format_flops",
    "format_hz",
    "format_percent",
    "format_seconds",
    "number",
    "percent",
    "printable",
    "scientific",
    "si",
    "time_in",
    "time_unit",
]

# C0, DEL and C1, but what whitespace there is among them.
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


def si(value: float, unit: str, digits: int = 3) -> str:
    """Format ``value`` with an SI prefix and ``digits`` significant digits: ``28.7 GFLOP``.

    ``nan`` and infinities are printed as such, never as a number.
    """
    if not math.isfinite(value):
        return f"{value} {unit}"
    if value == 0:
        return f"0 {unit}"
    # Rounding may carry over: 999.7 with three digits is 1.00 of the next prefix.
    carry = 1 - 0.5 * 10**-digits
    factor, prefix = next(
        (item for item in _PREFIXES if abs(value) >= item[0] * carry), _PREFIXES[-1]
    )
    scaled = float(f"{value / factor:.{digits - 1}e}")  # here too: 9.996 is 10.0
    decimals = max(0, digits - 1 - math.floor(math.log10(abs(scaled)) + 1e-9))
    return f"{scaled:.{decimals}f} {prefix}{unit}"


def format_seconds(seconds: float) -> str:
    """Format a time: ``51.2 ms``."""
    return si(seconds, "s")


def format_flops(flops: float) -> str:
    """Format a number of floating-point operations (not a rate): ``28.7 GFLOP``."""
    return si(flops, "FLOP")


def format_bytes(count: float) -> str:
    """Format a size in decimal units: ``52.6 MB``."""
    return si(count, "B")


def format_hz(hertz: float) -> str:
    """Format a clock: ``4.31 GHz``."""
    return si(hertz, "Hz")


def format_percent(fraction: float) -> str:
    """Format a fraction as a percentage: ``91 %``, ``0.3 %``."""
    percent = 100 * fraction
    return f"{percent:.1f} %" if abs(percent) < 9.95 else f"{percent:.0f} %"


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


def percent(fraction: float | None) -> str:
    """Format a fraction: ``93 %``, ``0.3 %``, ``<0.1 %``."""
    if fraction is None or not math.isfinite(fraction):
        return "-"
    value = 100 * fraction
    if 0 < value < 0.05:
        return "<0.1 %"
    return f"{value:.1f} %" if abs(value) < 9.95 else f"{value:.0f} %"


def time_unit(seconds: Sequence[float]) -> tuple[float, str]:
    """Choose one unit for a whole column, so that its numbers can be compared at a glance.

    It is the one that fits most of them, or a larger one where the longest would have five digits.
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


def printable(text: str) -> str:
    """Return a text without characters that steer a terminal; tabs and line ends stay."""
    return text.translate(_CONTROLS)
