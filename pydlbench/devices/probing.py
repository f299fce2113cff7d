"""Which probes fill a device record; the caller runs them, in the native worker."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from pydlbench.devices.cpu.working_set import (
    cache_working_set,
    memory_working_set,
    private_working_set,
)
from pydlbench.devices.record import Bandwidth, DeviceRecord, PrecisionPeak, precision_peak
from pydlbench.devices.reliability import Advice, cpu_advice, peak_advice
from pydlbench.errors import UnsupportedError

if TYPE_CHECKING:
    from pydlbench.devices.cpu.facts import CpuFacts

__all__ = ["LEVELS", "PATTERNS", "Probe", "extend_record", "start_record"]

PATTERNS = ("read", "write", "copy", "triad")
LEVELS = ("memory", "llc", "l2")

# Every run that times layers pays for these, so they are short; the best round counts.
_FMA_SECONDS = 0.08
_BANDWIDTH_SECONDS = 0.03

Probe = Callable[..., Mapping[str, Any]]


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class _Reading:
    """A native probe's result after its way over the wire."""

    per_second: float
    median_per_second: float
    clock_hz: float
    rounds: int
    kernel: str

    @classmethod
    def of(cls, reply: Mapping[str, Any]) -> _Reading:
        return cls(**{field.name: reply[field.name] for field in dataclasses.fields(cls)})


def start_record(facts: CpuFacts, cpus: Sequence[int]) -> DeviceRecord:
    """Return the record of a device on which nothing was probed yet.

    Taken before any worker starts: later, our own threads would look like other load.

    Args:
        facts: of the CPU.
        cpus: the logical CPUs in use, one pinned thread each.
    """
    return DeviceRecord(facts=facts, cpus=tuple(cpus), warnings=cpu_advice(facts, cpus))


def extend_record(
    record: DeviceRecord,
    precisions: Sequence[str],
    library: Mapping[str, Any],
    probe: Probe,
    patterns: Sequence[str] = PATTERNS,
    levels: Sequence[str] = LEVELS,
) -> DeviceRecord:
    """Return ``record`` with the bandwidths and the peaks of ``precisions``, probing what it lacks.

    Args:
        record: what is known so far.
        precisions: which compute peaks are needed; one that the CPU lacks gets a reason instead.
        library: what the native worker says of its library: ``name``, ``version`` and more.
        probe: runs a native probe: ``probe("fma_peak", precision=..., cpus=..., seconds=...)``.
        patterns: which bandwidths are needed.
        levels: of which levels: ``memory``, ``llc`` (the last cache), ``l2`` (the one before it).

    Raises:
        ImpossiblePeakError: A probe measured more than 1.03 x the theoretical peak.
    """
    known = {peak.precision for peak in record.peaks}
    peaks = [_peak(record, name, probe) for name in dict.fromkeys(precisions) if name not in known]
    warnings = [_shortfall(peak) for peak in peaks]
    clocks = {peak.precision: peak.clock_hz for peak in (*record.peaks, *peaks) if peak.clock_hz}
    return dataclasses.replace(
        record,
        launch_s=_launch(probe) if record.launch_s is None else record.launch_s,
        libraries=record.libraries or _libraries(library),
        clock_hz=clocks.get("fp32") or next(iter(clocks.values()), None),
        peaks=(*record.peaks, *peaks),
        bandwidths=(*record.bandwidths, *_bandwidths(record, patterns, levels, probe)),
        warnings=(*record.warnings, *(advice for advice in warnings if advice is not None)),
    )


def _peak(record: DeviceRecord, precision: str, probe: Probe) -> PrecisionPeak:
    try:
        reading: _Reading | str = _Reading.of(
            probe("fma_peak", precision=precision, cpus=list(record.cpus), seconds=_FMA_SECONDS)
        )
    except UnsupportedError as error:
        reading = str(error)
    return precision_peak(record.facts, precision, record.cpus, reading)


def _launch(probe: Probe) -> float:
    try:
        return float(probe("launch")["seconds"])
    except UnsupportedError:
        return 0.0  # no thread pool that could be asked: no claim about its cost


def _shortfall(peak: PrecisionPeak) -> Advice | None:
    theory = peak.theoretical
    if peak.measured is None or theory is None or theory.assumed:
        return None
    return peak_advice(peak.precision, peak.measured, theory.flops_per_s)


def _bandwidths(
    record: DeviceRecord, patterns: Sequence[str], levels: Sequence[str], probe: Probe
) -> list[Bandwidth]:
    sizes = {
        "memory": memory_working_set(record.facts, record.cpus),
        "llc": cache_working_set(record.facts, record.cpus),
        "l2": private_working_set(record.facts, record.cpus),
    }
    found = []
    for level in levels:
        size = sizes[level]
        for pattern in patterns:
            if size is None or record.bandwidth(level, pattern) is not None:
                continue
            reply = probe(
                "bandwidth",
                kind=pattern,
                bytes=size,
                cpus=list(record.cpus),
                seconds=_BANDWIDTH_SECONDS,
                # Non-temporal stores would send to memory what is to stay in the cache.
                streaming=level == "memory",
            )
            found.append(Bandwidth.of(level, pattern, size, _Reading.of(reply)))
    return found


def _libraries(library: Mapping[str, Any]) -> dict[str, str]:
    """The library by its name, everything else that is said of it, as text."""
    said = {key: str(value) for key, value in library.items() if value is not None}
    name, version = said.pop("name", None), said.pop("version", None)
    return ({name: version} if name and version else {}) | said
