"""Which probes fill a GPU's record; the caller runs them, in the native worker."""

from __future__ import annotations

import dataclasses
from typing import TYPE_CHECKING, Any

from pydlbench.devices.bandwidths import extend_bandwidths, probe_levels
from pydlbench.devices.gpu.advice import (
    assumption_advice,
    gpu_advice,
    gpu_peak_advice,
    unknown_advice,
)
from pydlbench.devices.gpu.peaks import rated_clock, theoretical_peak
from pydlbench.devices.gpu.rates import accumulator, lacks, on_tensor_cores, unknown_capability
from pydlbench.devices.gpu.record import GpuRecord, LaunchCost, gpu_peak
from pydlbench.devices.native_reading import NativeReading, Probe
from pydlbench.errors import InsufficientMemoryError, PrimitiveError, UnsupportedError

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from pydlbench.devices.findings import Bandwidth, PrecisionPeak
    from pydlbench.devices.gpu.facts import GpuFacts
    from pydlbench.devices.reliability import Advice

__all__ = [
    "LEVELS",
    "PATTERNS",
    "extend_record",
    "l2_working_set",
    "memory_working_set",
    "start_record",
]

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

    Raises:
        ImpossiblePeakError: A probe measured more than 1.03 x the theoretical peak of a product
            that is in the table.
    """
    facts = record.facts
    known = {peak.precision for peak in record.peaks}
    peaks = [_peak(facts, name, probe) for name in dict.fromkeys(precisions) if name not in known]
    warnings = [_peak_warning(facts, peak) for peak in peaks]
    before = record
    record, remarks = extend_bandwidths(
        record, lambda: _bandwidths(before, patterns, levels, probe)
    )
    clocks = {peak.precision: peak.clock_hz for peak in (*record.peaks, *peaks) if peak.clock_hz}
    fresh = (*(advice for advice in warnings if advice is not None), *remarks)
    return dataclasses.replace(
        record,
        launch=_launch(probe) if record.launch is None else record.launch,
        libraries={**record.libraries, **_libraries(library)},
        clock_hz=clocks.get("fp32") or next(iter(clocks.values()), None),
        peaks=(*record.peaks, *peaks),
        # Peaks of one kind share their remarks.
        warnings=tuple(dict.fromkeys((*record.warnings, *fresh))),
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
    try:
        if on_tensor_cores(precision):
            reply = probe("gemm_peak", precision=precision)
        else:
            reply = probe("fma_peak", precision=precision, seconds=_SECONDS)
        reading: NativeReading | str = NativeReading.of(reply)
    except (UnsupportedError, PrimitiveError, InsufficientMemoryError) as error:
        # What one mode's probe lacks must not cost the others their roofs.
        reading = str(error)
    return gpu_peak(facts, precision, reading)


def _peak_warning(facts: GpuFacts, peak: PrecisionPeak) -> Advice | None:
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
) -> tuple[tuple[Bandwidth, ...], tuple[Advice, ...]]:
    sizes = {"memory": memory_working_set(record.facts), "l2": l2_working_set(record.facts)}

    def ask(_level: str, pattern: str, size: int) -> Mapping[str, Any]:
        return probe("bandwidth", kind=pattern, bytes=size, seconds=_SECONDS)

    wanted = [pattern for pattern in patterns if pattern in PATTERNS]
    return probe_levels(record.bandwidths, sizes, wanted, levels, ask)


def _launch(probe: Probe) -> LaunchCost | None:
    try:
        return LaunchCost.of(probe("launch"))
    except UnsupportedError:
        return None  # no claim about its cost


def _libraries(library: Mapping[str, Any]) -> dict[str, str]:
    """Versions by name, and where each library was found."""
    said: dict[str, str] = {}
    for key, value in library.items():
        name = _LIBRARIES.get(key, key)
        if isinstance(value, dict):
            said[name] = str(value.get("version"))
            if value.get("path"):
                said[f"{name} path"] = str(value["path"])
        elif value is not None:
            said[name] = str(value)
    return said
