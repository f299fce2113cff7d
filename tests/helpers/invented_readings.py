"""Invented readings of probes, of peaks and of bandwidths."""

from __future__ import annotations

from typing import TYPE_CHECKING

from pydlbench.devices.findings import Bandwidth, Reading

if TYPE_CHECKING:
    from pydlbench.devices.roofline import MemoryLevel


def reading(per_second: float, clock_hz: float = 3.7e9) -> Reading:
    """Return what a probe of arithmetic reached, in FLOP/s."""
    return Reading(
        per_second=per_second,
        median_per_second=0.99 * per_second,
        clock_hz=clock_hz,
        rounds=8,
        kernel="an invented loop",
    )


def bandwidth(level: MemoryLevel, pattern: str, rate: float) -> Bandwidth:
    """Return a bandwidth in B/s."""
    return Bandwidth(
        level=level,
        pattern=pattern,
        bytes_per_s=rate,
        median_bytes_per_s=rate,
        working_set_bytes=1 << 26,
        kernel="an invented copy",
    )
