"""A device with what probes found on it: what the records of CPUs and of GPUs share."""

from __future__ import annotations

import dataclasses
from typing import TYPE_CHECKING

from pydlbench.devices.findings import Bandwidth, Limits, PrecisionPeak
from pydlbench.errors import UnsupportedError

if TYPE_CHECKING:
    from collections.abc import Mapping

    from pydlbench.devices.reliability import Advice

__all__ = ["ProbedDevice"]


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class ProbedDevice:
    """What was found on a device.

    Attributes:
        clock_hz: the core clock under load (fp32 FMA), or None if it was not read.
        peaks: compute peaks, one per precision.
        bandwidths: of the memory and of caches.
        bandwidth_reason: why there are no bandwidths.
        libraries: name to version, of what the kernels come from.
        warnings: what makes timings unreliable here.
    """

    clock_hz: float | None = None
    peaks: tuple[PrecisionPeak, ...] = ()
    bandwidths: tuple[Bandwidth, ...] = ()
    bandwidth_reason: str | None = None
    libraries: Mapping[str, str] = dataclasses.field(default_factory=dict)
    warnings: tuple[Advice, ...] = ()

    def peak(self, precision: str) -> PrecisionPeak | None:
        """Return the peaks in ``precision``, if probed."""
        return next((peak for peak in self.peaks if peak.precision == precision), None)

    def bandwidth(self, level: str, pattern: str | None = None) -> Bandwidth | None:
        """Return the bandwidth of ``level`` for ``pattern``, or the highest of all patterns."""
        found = [
            item
            for item in self.bandwidths
            if item.level == level and pattern in (None, item.pattern)
        ]
        return max(found, key=lambda item: item.bytes_per_s, default=None)

    def limits(self, precision: str, clock_hz: float | None = None) -> Limits:
        """Return the compute limits in ``precision``, scaled to a clock: arithmetic follows it.

        Args:
            precision: one that was probed.
            clock_hz: core clock in Hz; the probe's own by default.

        Raises:
            UnsupportedError: There is no measured peak in this precision; says why.
        """
        peak = self.peak(precision)
        if peak is None or peak.measured is None or not peak.clock_hz:
            reason = peak.reason if peak is not None else None
            raise UnsupportedError(reason or f"{precision}: its compute peak was not probed")
        ratio = 1.0 if clock_hz is None else clock_hz / peak.clock_hz
        theory = peak.theoretical
        return Limits(
            theoretical=None if theory is None else theory.flops_per_s * ratio,
            measured=peak.measured * ratio,
        )

    def best_bandwidth(self, level: str) -> float:
        """Return the highest bandwidth of ``memory`` or of a cache, in B/s.

        Without a cache probe the memory's stands for both.

        Raises:
            UnsupportedError: The memory's bandwidth was not probed.
        """
        found = self.bandwidth(level) or self.bandwidth("memory")
        if found is None:
            raise UnsupportedError(
                self.bandwidth_reason or f"{level}: its bandwidth was not probed"
            )
        return found.bytes_per_s
