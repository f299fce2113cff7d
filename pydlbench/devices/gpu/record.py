"""The record of a GPU: its facts and the results of the probes, one per run."""

import dataclasses
import math
from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Any, ClassVar, Self

from pydlbench.devices.bandwidths import (
    Probe,
    add_windows,
    extend_bandwidths,
    probe_levels,
    try_peak,
)
from pydlbench.devices.findings import (
    Bandwidth,
    DeviceAdvice,
    ImpossiblePeakError,
    Limits,
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
from pydlbench.devices.gpu.facts import GpuFacts
from pydlbench.devices.gpu.peaks import (
    accumulator,
    lacks,
    on_tensor_cores,
    other_accumulators,
    rated_clock,
    theoretical_peak,
    unknown_capability,
)
from pydlbench.devices.gpu.traffic import BETWEEN, bytes_per_s
from pydlbench.devices.roofline import MemoryLevel
from pydlbench.errors import InsufficientMemoryError, PrimitiveError, UnsupportedError


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class LaunchCost:
    """The cost of launching an empty kernel, in seconds.

    Attributes:
        single_kernel_s: device time of a single launch between two events, as in a sample with
            flushed caches.
        empty_kernel_s: device time per launch, back to back.
        host_s: host time per launch.
        graph_node_s: device time of a node in a CUDA graph.
    """

    single_kernel_s: float
    empty_kernel_s: float
    host_s: float
    graph_node_s: float

    @classmethod
    def from_reply(cls, reply: Mapping[str, Any]) -> Self:
        """Return the cost in a probe's reply; further fields are ignored."""
        return cls(**{field.name: float(reply[field.name]) for field in dataclasses.fields(cls)})


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class GpuRecord(ProbedDevice):
    """A GPU with the results of a run's probes.

    Attributes:
        facts: facts of the GPU.
        launch: cost of a launch; None until probed.
        nvml: NVML's state before the run.
    """

    kind: ClassVar[str] = "cuda"

    facts: GpuFacts
    launch: LaunchCost | None = None
    nvml: Mapping[str, Any] = dataclasses.field(default_factory=dict)

    @property
    def launch_s(self) -> float | None:
        """Device time of an empty kernel in seconds; None until probed."""
        return None if self.launch is None else self.launch.empty_kernel_s

    def launch_in(self, timing: str, *, alone: bool = False) -> float:
        """Return the least time of any kernel, in seconds; 0 until probed.

        Args:
            timing: ``events``, or ``cuda-graph``, whose nodes start sooner than a launch.
            alone: whether a sample is a single execution, as with caches flushed before each.
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
            precision: a probed precision.
            clock_hz: core clock in Hz; by default the clock of the probe.
            accumulate: accumulator of the kernel; ``fp16`` with float32 accumulation on CUDA cores
                is compared with the peak of fp32.

        Raises:
            UnsupportedError: there is no measured peak in this precision, with the reason.
        """
        if precision == "fp16" and accumulate == "float32":
            precision = "fp32"
        # Without arguments, super() does not find its class in a dataclass with slots.
        return ProbedDevice.limits(self, precision, clock_hz)

    def caches(self) -> dict[str, int | None]:
        """Return the size of L2 in bytes, the only cache that all multiprocessors share."""
        return {"l2": self.facts.l2_bytes or None}

    def levels_for(
        self,
        names: Collection[str] | None,
        warm_bytes: float,
        cold_bytes: float,
        written_bytes: float,
    ) -> tuple[MemoryLevel, ...]:
        """Return the levels of the memory with the bandwidths that a kernel's operands can have.

        A working set about as large as L2 partly comes from memory. Its bandwidth is that of the
        probed working sets around it, with the kernel's share of writes. A working set that exceeds
        L2 belongs to the memory's level as a whole.

        Args:
            names: levels whose bandwidths count, as in :meth:`levels`.
            warm_bytes: bytes of operands that may be in L2.
            cold_bytes: bytes that are certainly in memory.
            written_bytes: bytes that the kernel writes; warm ones first.

        Raises:
            UnsupportedError: the bandwidth of the memory counts, and was not probed.
        """
        levels = self.levels(names)
        if names is not None and not {"l2", "memory"} <= set(names):
            return levels
        fits = warm_bytes <= (self.facts.l2_bytes or 0)
        cold_written = max(0.0, written_bytes - warm_bytes)
        warm_share = min(written_bytes, warm_bytes) / max(warm_bytes, 1)
        cold_share = cold_written / max(cold_bytes, 1)

        def limited(level: MemoryLevel) -> MemoryLevel:
            if level.name == "l2":
                rate = bytes_per_s(self.bandwidths, warm_bytes, warm_share)
                capacity = level.capacity if fits else 0.0
            else:
                rate = bytes_per_s(
                    self.bandwidths,
                    math.inf if fits else warm_bytes,
                    cold_share if fits else warm_share,
                )
                capacity = level.capacity
            assert rate is not None  # levels() has raised without a probe
            low = level.low_bytes_per_s
            return dataclasses.replace(
                level,
                capacity=capacity,
                bytes_per_s=rate,
                low_bytes_per_s=None if low is None else low * rate / level.bytes_per_s,
            )

        return tuple(level if math.isinf(level.bytes_per_s) else limited(level) for level in levels)

    def to_dict(self) -> dict[str, Any]:
        """Return the record as a JSON object in base units: FLOP/s, B/s, bytes, Hz, seconds."""
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
    """Combine the reading of a probe with the theoretical peak, see :func:`peak_beside_theory`.

    Args:
        facts: facts of the GPU.
        precision: ``fp32``, ``tf32``, ``fp16``, ``fp16-tc``, ``bf16-tc`` or ``fp8-tc``.
        reading: reading of the probe, or the reason why there is no reading.

    Raises:
        ImpossiblePeakError: the reading is more than 1.03 x the theoretical peak of a known product
            at its clock.
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
# Selection of the probes; the caller runs them in the native worker.

PATTERNS = ("read", "write", "copy")
#: Levels of the memory, from the farthest to the nearest.
LEVELS = ("memory", "l2")

# Short, since every run that times layers runs them; the best round counts.
_PROBE_SECONDS = 0.05
_PAGE = 1 << 16
_LIBRARIES = {"cudnn": "cuDNN", "cublaslt": "cuBLASLt"}


def start_record(facts: GpuFacts, nvml: Mapping[str, Any] | None = None) -> GpuRecord:
    """Return the record of a GPU before any probe.

    Args:
        facts: facts of the GPU.
        nvml: NVML's state before the run, see :func:`~.advice.gpu_advice`.
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
    """Return ``record`` with bandwidths and peaks; those it lacks are probed.

    Args:
        record: record of the GPU so far.
        precisions: precisions whose peaks are needed; one that the GPU lacks gets a reason instead.
        library: version, or ``version`` and ``path``, of each loaded library by name.
        probe: runs a native probe: ``fma_peak`` (``precision``, ``seconds``), ``gemm_peak``
            (``precision``), ``bandwidth`` (``kind``, ``bytes``, ``seconds``), ``launch``.
        patterns: patterns whose bandwidths are needed; patterns without a probe are left out.
        levels: levels whose bandwidths are needed: ``memory``, ``l2``.
    """
    facts = record.facts
    peaks = [_peak(facts, name, probe) for name in record.lacking(precisions)]
    warnings = [_peak_warning(facts, peak) for peak in peaks]
    before = record
    sizes = _sizes(before.facts)
    wanted = [pattern for pattern in patterns if pattern in PATTERNS]

    def probe_all() -> tuple[tuple[Bandwidth, ...], tuple[DeviceAdvice, ...]]:
        ask = _ask_of(probe)
        found, remarks = probe_levels(
            before.bandwidths, {name: sizes[name] for name in LEVELS}, wanted, levels, ask
        )
        for name in BETWEEN if "l2" in levels else ():
            # A single level in each call: neighbours may be equally fast.
            found, more = probe_levels(found, {name: sizes[name]}, wanted, (name,), ask, windows=1)
            remarks = (*remarks, *more)
        return found, remarks

    record, remarks = extend_bandwidths(record, probe_all)
    return record.extend(
        peaks,
        (*warnings, *remarks),
        launch=_launch(probe) if record.launch is None else record.launch,
        libraries={**record.libraries, **_libraries(library)},
    )


def memory_working_set(facts: GpuFacts) -> int:
    """Return a size that does not fit into L2: 4 x L2 and at least 1 GiB.

    At most a quarter of the memory.
    """
    return min(max(4 * facts.l2_bytes, 1 << 30), facts.memory_bytes // 4)


def l2_working_set(facts: GpuFacts) -> int | None:
    """Return a size that fits into L2: a third of it, in whole pages; None if L2 is unknown.

    An L2 in two halves keeps some lines in both, so more than half of it would not fit.
    """
    third = facts.l2_bytes // 3 // _PAGE * _PAGE
    return third or None


def _peak(facts: GpuFacts, precision: str, probe: Probe) -> PrecisionPeak:
    missing = lacks(facts, precision)
    if missing is not None and not unknown_capability(facts):
        return gpu_peak(facts, precision, missing)
    # A matrix product is the best of a search with fifteen samples, which takes seconds: one try
    # is enough unless it exceeds the theoretical peak.
    least = 1 if on_tensor_cores(precision) else 2
    try:
        return try_peak(lambda: _peak_once(facts, precision, probe), lambda _: False, least)
    except ImpossiblePeakError as error:
        # The table or the probe is wrong for this mode only: the others keep their roofs.
        return gpu_peak(facts, precision, str(error))


def _peak_once(facts: GpuFacts, precision: str, probe: Probe) -> PrecisionPeak:
    try:
        if on_tensor_cores(precision):
            reply = probe("gemm_peak", precision=precision)
        else:
            reply = probe("fma_peak", precision=precision, seconds=_PROBE_SECONDS)
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


def revisit(record: GpuRecord, probe: Probe) -> GpuRecord:
    """Return ``record`` with one more window of each level's fastest bandwidth.

    Args:
        record: record of the GPU so far.
        probe: runs a native probe.
    """
    bandwidths = add_windows(record, _sizes(record.facts), _ask_of(probe))
    return dataclasses.replace(record, bandwidths=bandwidths)


def _sizes(facts: GpuFacts) -> dict[str, int | None]:
    memory, near = memory_working_set(facts), l2_working_set(facts)
    between = {
        name: int(factor * facts.l2_bytes) // _PAGE * _PAGE for name, factor in BETWEEN.items()
    }
    # On a card with a small memory, or with a large cache, the largest ones are the memory's.
    known = {name: size if near and size < memory else None for name, size in between.items()}
    return {"memory": memory, "l2": near, **known}


def _ask_of(probe: Probe) -> Callable[[str, str, int], Mapping[str, Any]]:
    return lambda _, pattern, size: probe(
        "bandwidth", kind=pattern, bytes=size, seconds=_PROBE_SECONDS
    )


def _launch(probe: Probe) -> LaunchCost | None:
    try:
        return LaunchCost.from_reply(probe("launch"))
    except (UnsupportedError, PrimitiveError, InsufficientMemoryError):
        return None  # without a probe nothing is claimed


def _libraries(library: Mapping[str, Any]) -> dict[str, str]:
    """Return the versions and paths of the libraries by name."""
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
