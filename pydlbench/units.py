"""Formatting of times, FLOPs, bytes and rates: three or four digits, SI prefixes."""

from __future__ import annotations

import math

__all__ = ["format_bytes", "format_flops", "format_hz", "format_percent", "format_seconds", "si"]

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
