"""Which probes fill a device record; the caller runs them, in the native worker."""

from __future__ import annotations

import dataclasses
import time
from typing import TYPE_CHECKING, Any

from pydlbench.devices.bandwidths import LEVELS, PATTERNS, extend_bandwidths, probe_bandwidths
from pydlbench.devices.cpu.peaks import ImpossiblePeakError, theoretical_peak
from pydlbench.devices.cpu.topology import physical_cores
from pydlbench.devices.native_reading import NativeReading, Probe
from pydlbench.devices.record import DeviceRecord, PrecisionPeak, precision_peak
from pydlbench.devices.reliability import Advice, assumption_advice, cpu_advice, peak_advice
from pydlbench.errors import UnsupportedError

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from pydlbench.devices.cpu.facts import CpuFacts

__all__ = ["LEVELS", "PATTERNS", "Probe", "extend_record", "start_record"]

# Every run that times layers pays for these, so they are short; the best round counts.
_FMA_SECONDS = 0.05
# A host that runs two of a virtual machine's CPUs on one core does so for some seconds: a peak that
# falls short is probed again, so often at most and after so long each time: 4 s where two threads
# share a core for good.
_TRIES = 7
_PAUSE_S = 0.5


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
        ImpossiblePeakError: A probe measured more than 1.03 x the theoretical peak of a CPU whose
            core is known.
    """
    known = {peak.precision for peak in record.peaks}
    peaks = [_peak(record, name, probe) for name in dict.fromkeys(precisions) if name not in known]
    warnings = [_peak_warning(record, peak) for peak in peaks]
    before = record
    record, remarks = extend_bandwidths(
        record, lambda: probe_bandwidths(before, patterns, levels, probe)
    )
    clocks = {peak.precision: peak.clock_hz for peak in (*record.peaks, *peaks) if peak.clock_hz}
    return dataclasses.replace(
        record,
        launch_s=_launch(probe) if record.launch_s is None else record.launch_s,
        libraries=record.libraries or _libraries(library),
        clock_hz=clocks.get("fp32") or next(iter(clocks.values()), None),
        peaks=(*record.peaks, *peaks),
        warnings=(
            *record.warnings,
            *(advice for advice in warnings if advice is not None),
            *remarks,
        ),
    )


def _peak(record: DeviceRecord, precision: str, probe: Probe) -> PrecisionPeak:
    best = _peak_once(record, precision, probe)
    for _ in range(_TRIES - 1):
        if not _falls_short(best):
            break
        time.sleep(_PAUSE_S)
        try:
            again = _peak_once(record, precision, probe)
        except ImpossiblePeakError:
            continue  # a clock that jumped; there is a reading already
        best = max(best, again, key=_share)
    return best


def _share(peak: PrecisionPeak) -> float:
    """A measured peak over the theoretical one, each at its own clock."""
    theory = peak.theoretical
    return (peak.measured or 0.0) / theory.flops_per_s if theory is not None else 0.0


def _falls_short(peak: PrecisionPeak) -> bool:
    theory = peak.theoretical
    if peak.measured is None or theory is None or theory.assumed:
        return False
    return peak_advice(peak.precision, peak.measured, theory.flops_per_s) is not None


def _peak_once(record: DeviceRecord, precision: str, probe: Probe) -> PrecisionPeak:
    try:
        reading: NativeReading | str = NativeReading.of(
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


def _peak_warning(record: DeviceRecord, peak: PrecisionPeak) -> Advice | None:
    theory = peak.theoretical
    if peak.measured is None or peak.clock_hz is None:
        return None
    if theory is None:
        cores = physical_cores(record.facts, record.cpus)
        dropped = theoretical_peak(record.facts, peak.precision, cores, peak.clock_hz)
        return (
            None
            if dropped is None
            else assumption_advice(peak.precision, peak.measured, dropped.flops_per_s)
        )
    if theory.assumed:
        return None
    return peak_advice(peak.precision, peak.measured, theory.flops_per_s)


def _libraries(library: Mapping[str, Any]) -> dict[str, str]:
    """The library by its name, everything else that is said of it, as text."""
    said = {key: str(value) for key, value in library.items() if value is not None}
    name, version = said.pop("name", None), said.pop("version", None)
    return ({name: version} if name and version else {}) | said
