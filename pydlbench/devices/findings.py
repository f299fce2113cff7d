"""What probes find on a device: compute peaks and bandwidths, as every kind of device has them."""

from __future__ import annotations

import dataclasses
from typing import TYPE_CHECKING, Any, Protocol

if TYPE_CHECKING:
    from pydlbench.devices.peak_check import TheoreticalPeak

__all__ = ["Bandwidth", "Limits", "PrecisionPeak", "Reading"]


class Reading(Protocol):
    """What a native probe returns; rates in FLOP/s or B/s, clocks in Hz."""

    @property
    def per_second(self) -> float:
        """The best round's rate."""

    @property
    def median_per_second(self) -> float:
        """The median round's rate."""

    @property
    def clock_hz(self) -> float:
        """The core clock at the best round."""

    @property
    def rounds(self) -> int:
        """How many rounds were timed."""

    @property
    def kernel(self) -> str:
        """What ran."""


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class PrecisionPeak:
    """Compute peaks in one precision.

    Attributes:
        precision: a word of the design's table: ``fp32``, ``tf32``, ``fp16-tc``...
        measured: FLOP/s of the probe's best round; None if it could not run.
        measured_median: FLOP/s of its median round.
        kernel: the probe's instruction, or the product that a GPU's library computed.
        clock_hz: the core clock during the probe.
        theoretical: the limit at that clock.
        nominal: the limit at the nominal clock; at a GPU's rated one.
        reason: why there is no measured peak.
    """

    precision: str
    measured: float | None = None
    measured_median: float | None = None
    kernel: str | None = None
    clock_hz: float | None = None
    theoretical: TheoreticalPeak | None = None
    nominal: TheoreticalPeak | None = None
    reason: str | None = None

    def to_dict(self) -> dict[str, Any]:
        """Return the peaks for JSON: FLOP/s and Hz."""
        return {
            "precision": self.precision,
            "measured_flops_per_s": self.measured,
            "median_flops_per_s": self.measured_median,
            "kernel": self.kernel,
            "clock_hz": self.clock_hz,
            "theoretical": self.theoretical.to_dict() if self.theoretical else None,
            "nominal": self.nominal.to_dict() if self.nominal else None,
            "reason": self.reason,
        }


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Bandwidth:
    """A measured bandwidth. Bytes are those the pattern names; what stores read first is not.

    Attributes:
        level: ``memory``, ``llc`` or ``l2`` (a GPU's last one).
        pattern: ``read``, ``write``, ``copy`` or ``triad``.
        bytes_per_s: of the best round.
        median_bytes_per_s: of the median round.
        working_set_bytes: over all threads and arrays.
        kernel: vectors and kind of stores.
    """

    level: str
    pattern: str
    bytes_per_s: float
    median_bytes_per_s: float
    working_set_bytes: int
    kernel: str

    @classmethod
    def of(cls, level: str, pattern: str, working_set_bytes: int, reading: Reading) -> Bandwidth:
        """Take over a probe's reading."""
        return cls(
            level=level,
            pattern=pattern,
            bytes_per_s=reading.per_second,
            median_bytes_per_s=reading.median_per_second,
            working_set_bytes=working_set_bytes,
            kernel=reading.kernel,
        )


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Limits:
    """Compute limits at one clock, in FLOP/s.

    Attributes:
        theoretical: from the arithmetic units; None if they are not known.
        measured: of the probe, scaled to the clock.
    """

    theoretical: float | None
    measured: float
