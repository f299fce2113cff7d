"""What is known about a GPU, and what probes found on it: one record of each run."""

from __future__ import annotations

import dataclasses
import math
from typing import TYPE_CHECKING, Any, Self

from pydlbench.devices.findings import PrecisionPeak, Reading
from pydlbench.devices.gpu.cards import find_card
from pydlbench.devices.gpu.peaks import other_accumulators, theoretical_peak
from pydlbench.devices.gpu.rates import accumulator
from pydlbench.devices.peak_check import ImpossiblePeakError, check_peak
from pydlbench.devices.probed import ProbedDevice
from pydlbench.devices.roofline import Level

if TYPE_CHECKING:
    from collections.abc import Collection, Mapping

    from pydlbench.devices.findings import Limits
    from pydlbench.devices.gpu.facts import GpuFacts

__all__ = ["GpuRecord", "LaunchCost", "gpu_peak"]


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class LaunchCost:
    """What it takes to start a kernel that does nothing, in seconds.

    Attributes:
        empty_kernel_s: on the device, of launches back to back.
        host_s: of the host's thread, per launch.
        graph_node_s: on the device, of one node in a CUDA graph.
    """

    empty_kernel_s: float
    host_s: float
    graph_node_s: float

    @classmethod
    def of(cls, reply: Mapping[str, Any]) -> Self:
        """Read a probe's reply; what else is in it is left out."""
        return cls(**{field.name: float(reply[field.name]) for field in dataclasses.fields(cls)})


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class GpuRecord(ProbedDevice):
    """A GPU as one run used and found it.

    Attributes:
        facts: what the driver tells.
        launch: cost of starting a kernel; None while not probed.
        nvml: what NVML told before anything was measured.
        kind: of device.
    """

    facts: GpuFacts
    launch: LaunchCost | None = None
    nvml: Mapping[str, Any] = dataclasses.field(default_factory=dict)
    kind: str = "cuda"

    @property
    def launch_s(self) -> float | None:
        """Seconds that an empty kernel takes on the device; None while not probed."""
        return None if self.launch is None else self.launch.empty_kernel_s

    def launch_in(self, timing: str) -> float:
        """Return the seconds that a kernel takes at least, whatever it does; 0 while not probed.

        Args:
            timing: ``cuda-graph``, where a node starts sooner than a launch, or ``events``.
        """
        if self.launch is None:
            return 0.0
        both = self.launch.graph_node_s, self.launch.empty_kernel_s
        return min(both) if timing == "cuda-graph" else self.launch.empty_kernel_s

    def limits(
        self, precision: str, clock_hz: float | None = None, accumulate: str | None = None
    ) -> Limits:
        """Return the compute limits in ``precision``, scaled to a clock: arithmetic follows it.

        Args:
            precision: one that was probed.
            clock_hz: core clock in Hz; the probe's own by default.
            accumulate: of the kernel; one that accumulates ``fp16`` in float32 on CUDA cores is
                held against what these do in fp32.

        Raises:
            UnsupportedError: There is no measured peak in this precision; says why.
        """
        if precision == "fp16" and accumulate == "float32":
            precision = "fp32"
        # Without arguments, super() does not find its class in a dataclass with slots.
        return ProbedDevice.limits(self, precision, clock_hz)

    def levels(self, names: Collection[str] | None = None) -> tuple[Level, ...]:
        """Return the probed levels of the memory hierarchy, from the nearest to the memory.

        Args:
            names: which of them; None is all. The memory is always there.

        Raises:
            UnsupportedError: The memory's bandwidth was not probed.
        """
        memory = Level(name="memory", capacity=math.inf, bytes_per_s=self.best_bandwidth("memory"))
        near = self.bandwidth("l2")
        if near is None or not self.facts.l2_bytes or (names is not None and "l2" not in names):
            return (memory,)
        capacity = self.facts.l2_bytes
        return (Level(name="l2", capacity=capacity, bytes_per_s=near.bytes_per_s), memory)

    def to_dict(self) -> dict[str, Any]:
        """Return the record for JSON: FLOP/s, B/s, bytes and Hz."""
        card = find_card(self.facts)
        return {
            "kind": self.kind,
            "name": self.facts.name,
            "device": self.facts.device,
            "clock_hz": self.clock_hz,
            "facts": self.facts.to_dict(),
            "product": None if card is None else card.to_dict(),
            "peaks": [peak.to_dict() for peak in self.peaks],
            "peaks_other_accumulator": {
                name: peak.to_dict() for name, peak in other_accumulators(self.facts).items()
            },
            "bandwidths": [dataclasses.asdict(item) for item in self.bandwidths],
            "bandwidth_reason": self.bandwidth_reason,
            "launch_s": self.launch_s,
            "launch": None if self.launch is None else dataclasses.asdict(self.launch),
            "libraries": dict(self.libraries),
            "nvml": dict(self.nvml),
            "warnings": [dataclasses.asdict(item) for item in self.warnings],
        }


def gpu_peak(facts: GpuFacts, precision: str, reading: Reading | str) -> PrecisionPeak:
    """Set a probe's reading beside the theory.

    A theory that is only assumed, because the product is unknown, is dropped where the reading
    exceeds it.

    Args:
        facts: of the GPU.
        precision: ``fp32``, ``tf32``, ``fp16``, ``fp16-tc``, ``bf16-tc`` or ``fp8-tc``.
        reading: the probe's, or why there is none.

    Raises:
        ImpossiblePeakError: The probe measured more than 1.03 x the theoretical peak of a known
            product at the clock it ran at.
    """
    accumulate = accumulator(precision)
    nominal = theoretical_peak(facts, precision, accumulate=accumulate)
    if isinstance(reading, str):
        return PrecisionPeak(precision=precision, nominal=nominal, reason=reading)
    theoretical = theoretical_peak(facts, precision, reading.clock_hz, accumulate)
    if theoretical is not None:
        try:
            entry = "this GPU's entry in the table of FLOP rates"
            check_peak(precision, reading.per_second, theoretical, entry)
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
