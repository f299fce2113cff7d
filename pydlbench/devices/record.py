"""What is known about a CPU, and what probes found on it: one record of each run."""

from __future__ import annotations

import dataclasses
import math
from typing import TYPE_CHECKING, Any

from pydlbench.devices.cpu.peaks import theoretical_peak
from pydlbench.devices.cpu.topology import physical_cores
from pydlbench.devices.cpu.working_set import last_level_bytes, private_level_bytes
from pydlbench.devices.findings import Bandwidth, Limits, PrecisionPeak, Reading
from pydlbench.devices.peak_check import ImpossiblePeakError, check_peak
from pydlbench.devices.probed import ProbedDevice
from pydlbench.devices.roofline import Level

if TYPE_CHECKING:
    from collections.abc import Collection

    from pydlbench.devices.cpu.facts import CpuFacts

__all__ = ["Bandwidth", "DeviceRecord", "Limits", "PrecisionPeak", "Reading", "precision_peak"]


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class DeviceRecord(ProbedDevice):
    """A CPU as one run used and found it.

    Attributes:
        facts: what the system tells.
        cpus: the logical CPUs used, one pinned thread each.
        launch_s: seconds to start and join all threads; None while not probed, 0 if unknown.
        kind: of device.
    """

    facts: CpuFacts
    cpus: tuple[int, ...]
    launch_s: float | None = None
    kind: str = "cpu"

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
