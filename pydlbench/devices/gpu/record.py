"""What is known about a GPU and what probes found on it: one record of each run."""

from __future__ import annotations

import dataclasses
from typing import TYPE_CHECKING, Any, ClassVar, Self

from pydlbench.devices.bandwidths import (
    Probe,
    add_windows,
    extend_bandwidths,
    probe_levels,
)
from pydlbench.devices.findings import (
    ImpossiblePeakError,
    PrecisionPeak,
    ProbedDevice,
    Reading,
    peak_beside_theory,
)
from pydlbench.devices.gpu.advice import (
    assumption_advice,
    gpu_advice,
    gpu_peak_advice,
    unknown_advice,
)
from pydlbench.devices.gpu.cards import find_card
from pydlbench.devices.gpu.peaks import (
    accumulator,
    lacks,
    on_tensor_cores,
    other_accumulators,
    rated_clock,
    theoretical_peak,
    unknown_capability,
)
from pydlbench.devices.tries import try_peak
from pydlbench.errors import InsufficientMemoryError, PrimitiveError, UnsupportedError

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from pydlbench.devices.findings import Bandwidth, DeviceAdvice, Limits
    from pydlbench.devices.gpu.facts import GpuFacts


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class LaunchCost:
    """What it takes to start a kernel that does nothing, in seconds.

    Attributes:
        single_kernel_s: on the device, of one launch alone between two events: all that a sample
            with flushed caches is.
        empty_kernel_s: on the device, of launches back to back.
        host_s: of the host's thread, per launch.
        graph_node_s: on the device, of one node in a CUDA graph.
    """

    single_kernel_s: float
    empty_kernel_s: float
    host_s: float
    graph_node_s: float

    @classmethod
    def from_reply(cls, reply: Mapping[str, Any]) -> Self:
        """Read a probe's reply; what else is in it is left out."""
        return cls(**{field.name: float(reply[field.name]) for field in dataclasses.fields(cls)})


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class GpuRecord(ProbedDevice):
    """A GPU as one run used and found it.

    Attributes:
        facts: what the driver tells.
        launch: cost of starting a kernel; None while not probed.
        nvml: what NVML told before anything was measured.
    """

    kind: ClassVar[str] = "cuda"

    facts: GpuFacts
    launch: LaunchCost | None = None
    nvml: Mapping[str, Any] = dataclasses.field(default_factory=dict)

    @property
    def launch_s(self) -> float | None:
        """Seconds that an empty kernel takes on the device; None while not probed."""
        return None if self.launch is None else self.launch.empty_kernel_s

    def launch_in(self, timing: str, *, alone: bool = False) -> float:
        """Return the seconds that a kernel takes at least, whatever it does; 0 while not probed.

        Args:
            timing: ``cuda-graph``, where a node starts sooner than a launch, or ``events``.
            alone: a sample is one execution, as with caches that are flushed before each.
        """
        if self.launch is None:
            return 0.0
        if timing != "cuda-graph":
            return self.launch.single_kernel_s if alone else self.launch.empty_kernel_s
        return min(self.launch.graph_node_s, self.launch.empty_kernel_s)

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

    def caches(self) -> dict[str, int | None]:
        """Return the bytes of the second level, the only cache that all multiprocessors share."""
        return {"l2": self.facts.l2_bytes or None}

    def to_dict(self) -> dict[str, Any]:
        """Return the record for JSON: FLOP/s, B/s, bytes and Hz."""
        card = find_card(self.facts)
        # Without arguments, super() does not find its class in a dataclass with slots.
        return ProbedDevice.to_dict(self) | {
            "name": self.facts.name,
            "device": self.facts.device,
            "facts": self.facts.to_dict(),
            "product": None if card is None else card.to_dict(),
            "peaks_other_accumulator": {
                name: peak.to_dict() for name, peak in other_accumulators(self.facts).items()
            },
            "launch_s": self.launch_s,
            "launch": None if self.launch is None else dataclasses.asdict(self.launch),
            "nvml": dict(self.nvml),
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
    return peak_beside_theory(
        precision,
        reading,
        nominal,
        lambda clock_hz: theoretical_peak(facts, precision, clock_hz, accumulate),
        "this GPU's entry in the table of FLOP rates",
    )


# -----------------------------------------------------------------------------
# Which probes fill a GPU's record; the caller runs them, in the native worker.

PATTERNS = ("read", "write", "copy")
#: From the farthest to the nearest.
LEVELS = ("memory", "l2")

# Every run that times layers pays for these, so they are short; the best round counts.
_SECONDS = 0.05
_PAGE = 1 << 16
_LIBRARIES = {"cudnn": "cuDNN", "cublaslt": "cuBLASLt"}


def start_record(facts: GpuFacts, nvml: Mapping[str, Any] | None = None) -> GpuRecord:
    """Return the record of a GPU on which nothing was probed yet.

    Args:
        facts: of the GPU.
        nvml: what NVML tells before anything runs, see :func:`~.advice.gpu_advice`.
    """
    return GpuRecord(facts=facts, nvml=dict(nvml or {}), warnings=gpu_advice(facts, nvml))


def extend_record(
    record: GpuRecord,
    precisions: Sequence[str],
    library: Mapping[str, Any],
    probe: Probe,
    patterns: Sequence[str] = PATTERNS,
    levels: Sequence[str] = LEVELS,
) -> GpuRecord:
    """Return ``record`` with the bandwidths and the peaks of ``precisions``, probing what it lacks.

    Args:
        record: what is known so far.
        precisions: which compute peaks are needed; one that the GPU lacks gets a reason instead.
        library: the libraries that are loaded, name to ``version`` and ``path``, or to a version.
        probe: runs a native probe: ``fma_peak`` (``precision``, ``seconds``), ``gemm_peak``
            (``precision``), ``bandwidth`` (``kind``, ``bytes``, ``seconds``), ``launch``.
        patterns: which bandwidths are needed; what GPUs have no probe for is left out.
        levels: of which levels: ``memory``, ``l2``.
    """
    facts = record.facts
    peaks = [_peak(facts, name, probe) for name in record.lacking(precisions)]
    warnings = [_peak_warning(facts, peak) for peak in peaks]
    before = record
    record, remarks = extend_bandwidths(
        record, lambda: _bandwidths(before, patterns, levels, probe)
    )
    return record.extend(
        peaks,
        (*warnings, *remarks),
        launch=_launch(probe) if record.launch is None else record.launch,
        libraries={**record.libraries, **_libraries(library)},
    )


def memory_working_set(facts: GpuFacts) -> int:
    """Return the bytes that cannot stay in L2: 4 x L2 and at least 1 GiB.

    Never more than a quarter of the memory.
    """
    return min(max(4 * facts.l2_bytes, 1 << 30), facts.memory_bytes // 4)


def l2_working_set(facts: GpuFacts) -> int | None:
    """Return the bytes that stay in L2: a third of it, in whole pages; None if it is not told.

    An L2 in two halves keeps some lines in both, so more than half would not stay.
    """
    third = facts.l2_bytes // 3 // _PAGE * _PAGE
    return third or None


def _peak(facts: GpuFacts, precision: str, probe: Probe) -> PrecisionPeak:
    missing = lacks(facts, precision)
    if missing is not None and not unknown_capability(facts):
        return gpu_peak(facts, precision, missing)
    # A product has fifteen samples and a search behind it, which takes seconds: one try will do,
    # and more only where it exceeded the theory.
    least = 1 if on_tensor_cores(precision) else 2
    try:
        return try_peak(lambda: _peak_once(facts, precision, probe), lambda _: False, least)
    except ImpossiblePeakError as error:
        # A wrong table or probe of one mode: all others keep their roofs, and this one says why.
        return gpu_peak(facts, precision, str(error))


def _peak_once(facts: GpuFacts, precision: str, probe: Probe) -> PrecisionPeak:
    try:
        if on_tensor_cores(precision):
            reply = probe("gemm_peak", precision=precision)
        else:
            reply = probe("fma_peak", precision=precision, seconds=_SECONDS)
        reading: Reading | str = Reading.from_reply(reply)
    except (UnsupportedError, PrimitiveError, InsufficientMemoryError) as error:
        # A mode that cannot be probed must not cost the others their roofs.
        reading = str(error)
    return gpu_peak(facts, precision, reading)


def _peak_warning(facts: GpuFacts, peak: PrecisionPeak) -> DeviceAdvice | None:
    if peak.measured is None or peak.clock_hz is None:
        return None
    if peak.theoretical is not None:
        return gpu_peak_advice(facts, peak, rated_clock(facts, peak.precision))
    missing = lacks(facts, peak.precision)
    if missing is not None:
        return unknown_advice(facts, missing)
    dropped = theoretical_peak(facts, peak.precision, peak.clock_hz, accumulator(peak.precision))
    if dropped is None:
        return None
    return assumption_advice(facts, peak.precision, peak.measured, dropped.flops_per_s)


def _bandwidths(
    record: GpuRecord, patterns: Sequence[str], levels: Sequence[str], probe: Probe
) -> tuple[tuple[Bandwidth, ...], tuple[DeviceAdvice, ...]]:
    wanted = [pattern for pattern in patterns if pattern in PATTERNS]
    return probe_levels(record.bandwidths, _sizes(record.facts), wanted, levels, _ask_of(probe))


def revisit(record: GpuRecord, probe: Probe) -> GpuRecord:
    """Return ``record`` with one more window of each level's fastest bandwidth.

    Args:
        record: with what was probed so far.
        probe: runs a native probe.
    """
    bandwidths = add_windows(record, _sizes(record.facts), _ask_of(probe))
    return dataclasses.replace(record, bandwidths=bandwidths)


def _sizes(facts: GpuFacts) -> dict[str, int | None]:
    return {"memory": memory_working_set(facts), "l2": l2_working_set(facts)}


def _ask_of(probe: Probe) -> Callable[[str, str, int], Mapping[str, Any]]:
    def ask(_level: str, pattern: str, size: int) -> Mapping[str, Any]:
        return probe("bandwidth", kind=pattern, bytes=size, seconds=_SECONDS)

    return ask


def _launch(probe: Probe) -> LaunchCost | None:
    try:
        return LaunchCost.from_reply(probe("launch"))
    except (UnsupportedError, PrimitiveError, InsufficientMemoryError):
        return None  # no claim about its cost


def _libraries(library: Mapping[str, Any]) -> dict[str, str]:
    """Versions by name, and where each library was found."""
    texts: dict[str, str] = {}
    for key, value in library.items():
        name = _LIBRARIES.get(key, key)
        if isinstance(value, dict):
            texts[name] = str(value.get("version"))
            if value.get("path"):
                texts[f"{name} path"] = str(value["path"])
        elif value is not None:
            texts[name] = str(value)
    return texts
