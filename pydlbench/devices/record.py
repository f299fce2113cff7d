"""What is known about a device, and what probes found on it: one record of each run."""

from __future__ import annotations

import dataclasses
import math
from typing import TYPE_CHECKING, Any, Protocol

from pydlbench.devices.cpu.peaks import (
    ImpossiblePeakError,
    Peak,
    check_peak,
    theoretical_peak,
)
from pydlbench.devices.cpu.topology import physical_cores
from pydlbench.devices.cpu.working_set import last_level_bytes, private_level_bytes
from pydlbench.devices.roofline import Level
from pydlbench.errors import UnsupportedError

if TYPE_CHECKING:
    from collections.abc import Collection, Mapping

    from pydlbench.devices.cpu.facts import CpuFacts
    from pydlbench.devices.reliability import Advice

__all__ = ["Bandwidth", "DeviceRecord", "Limits", "PrecisionPeak", "Reading", "precision_peak"]


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
        precision: ``fp32``, ``bf16`` or ``fp16``.
        measured: FLOP/s of the probe's best round; None if it could not run.
        measured_median: FLOP/s of its median round.
        kernel: the probe's instruction.
        clock_hz: the core clock during the probe.
        theoretical: the limit at that clock.
        nominal: the limit at the nominal clock.
        reason: why there is no measured peak.
    """

    precision: str
    measured: float | None = None
    measured_median: float | None = None
    kernel: str | None = None
    clock_hz: float | None = None
    theoretical: Peak | None = None
    nominal: Peak | None = None
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
        level: ``memory``, ``llc`` or ``l2``.
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
        theoretical: from the FMA pipes; None if the CPU is unknown.
        measured: of the FMA probe, scaled to the clock.
    """

    theoretical: float | None
    measured: float


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class DeviceRecord:
    """A CPU as one run used and found it.

    Attributes:
        facts: what the system tells.
        cpus: the logical CPUs used, one pinned thread each.
        clock_hz: the core clock under load (fp32 FMA), or None if it was not read.
        peaks: compute peaks, one per precision.
        bandwidths: of memory and last-level cache.
        bandwidth_reason: why there are no bandwidths.
        launch_s: seconds to start and join all threads; None while not probed, 0 if unknown.
        libraries: name to version, of what the kernels come from.
        warnings: what makes timings unreliable here.
        kind: of device.
    """

    facts: CpuFacts
    cpus: tuple[int, ...]
    clock_hz: float | None = None
    peaks: tuple[PrecisionPeak, ...] = ()
    bandwidths: tuple[Bandwidth, ...] = ()
    bandwidth_reason: str | None = None
    launch_s: float | None = None
    libraries: Mapping[str, str] = dataclasses.field(default_factory=dict)
    warnings: tuple[Advice, ...] = ()
    kind: str = "cpu"

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
        """Return the compute limits in ``precision``, scaled to a clock: FMA pipes follow it.

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
        """Return the highest bandwidth of ``memory`` or ``llc``, in B/s.

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

    def levels(self, names: Collection[str] | None = None) -> tuple[Level, ...]:
        """Return the probed levels of the memory hierarchy, from the nearest to the memory.

        Args:
            names: which of them; None is all. The memory is always there.

        Raises:
            UnsupportedError: The memory's bandwidth was not probed.
        """
        capacities = {
            "l2": private_level_bytes(self.facts, self.cpus),
            "llc": last_level_bytes(self.facts, self.cpus),
        }
        near = [
            Level(name=name, capacity=size, bytes_per_s=found.bytes_per_s)
            for name, size in capacities.items()
            if (names is None or name in names)
            and size is not None
            and (found := self.bandwidth(name)) is not None
        ]
        memory = Level(name="memory", capacity=math.inf, bytes_per_s=self.best_bandwidth("memory"))
        return (*near, memory)

    def to_dict(self) -> dict[str, Any]:
        """Return the record for JSON: FLOP/s, B/s, bytes and Hz."""
        return {
            "kind": self.kind,
            "name": self.facts.name,
            "cpus": list(self.cpus),
            "threads": len(self.cpus),
            "cores": physical_cores(self.facts, self.cpus),
            "clock_hz": self.clock_hz,
            "facts": self.facts.to_dict(),
            "peaks": [peak.to_dict() for peak in self.peaks],
            "bandwidths": [dataclasses.asdict(item) for item in self.bandwidths],
            "bandwidth_reason": self.bandwidth_reason,
            "launch_s": self.launch_s,
            "libraries": dict(self.libraries),
            "warnings": [dataclasses.asdict(item) for item in self.warnings],
        }


def precision_peak(
    facts: CpuFacts, precision: str, cpus: tuple[int, ...], reading: Reading | str
) -> PrecisionPeak:
    """Set a probe's reading beside the theory.

    A theory that is only assumed, because the core is unknown, is dropped where the reading
    exceeds it.

    Args:
        facts: of the CPU.
        precision: ``fp32``, ``bf16`` or ``fp16``.
        cpus: the CPUs that the probe ran on.
        reading: the probe's, or why there is none.

    Raises:
        ImpossiblePeakError: The probe measured more than 1.03 x the theoretical peak of a known
            core at the clock it ran at.
    """
    cores = physical_cores(facts, cpus)
    nominal = None
    if facts.nominal_hz is not None:
        nominal = theoretical_peak(facts, precision, cores, facts.nominal_hz)
    if isinstance(reading, str):
        return PrecisionPeak(precision=precision, nominal=nominal, reason=reading)
    theoretical = theoretical_peak(facts, precision, cores, reading.clock_hz)
    if theoretical is not None:
        try:
            check_peak(precision, reading.per_second, theoretical)
        except ImpossiblePeakError:
            if not theoretical.assumed:
                raise
            theoretical = nominal = None
    return PrecisionPeak(
        precision=precision,
        measured=reading.per_second,
        measured_median=reading.median_per_second,
        kernel=reading.kernel,
        clock_hz=reading.clock_hz,
        theoretical=theoretical,
        nominal=nominal,
    )
