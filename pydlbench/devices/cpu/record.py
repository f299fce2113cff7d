"""The record of a CPU: its facts and the results of the probes, one per run."""

import dataclasses
from collections.abc import Callable, Mapping, Sequence
from typing import Any, ClassVar

from pydlbench.devices.bandwidths import (
    LEVELS,
    MIN_TRIES,
    PATTERNS,
    ROUNDS,
    Probe,
    add_windows,
    better_of,
    confirm_peak,
    extend_bandwidths,
    probe_levels,
    try_peak,
)
from pydlbench.devices.cpu.advice import assumption_advice, cpu_advice, peak_advice
from pydlbench.devices.cpu.affinity import physical_cores
from pydlbench.devices.cpu.facts import CpuFacts
from pydlbench.devices.cpu.peaks import theoretical_peak
from pydlbench.devices.cpu.working_set import (
    cache_working_set,
    last_level_bytes,
    memory_working_set,
    nearer_level_bytes,
    private_level_bytes,
    private_working_set,
)
from pydlbench.devices.findings import (
    Bandwidth,
    DeviceAdvice,
    ImpossiblePeakError,
    PrecisionPeak,
    ProbedDevice,
    Reading,
    peak_beside_theory,
)
from pydlbench.devices.probe_cache import ProbeCache
from pydlbench.errors import UnsupportedError


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class DeviceRecord(ProbedDevice):
    """A CPU with the results of a run's probes.

    Attributes:
        facts: facts of the CPU.
        cpus: logical CPUs in use, one pinned thread each.
        launch_s: time to start and join all threads, in seconds; None until probed, 0 if unknown.
    """

    kind: ClassVar[str] = "cpu"

    facts: CpuFacts
    cpus: tuple[int, ...]
    launch_s: float | None = None

    def caches(self) -> dict[str, int | None]:
        """Return the size of each cache level behind the CPUs in use, in bytes.

        All levels nearer than the last two count as ``l1``, which has no probe.
        """
        return {
            "l1": nearer_level_bytes(self.facts, self.cpus),
            "l2": private_level_bytes(self.facts, self.cpus),
            "llc": last_level_bytes(self.facts, self.cpus),
        }

    def to_dict(self) -> dict[str, Any]:
        """Return the record for JSON: FLOP/s, B/s, bytes and Hz."""
        # Without arguments, super() does not find its class in a dataclass with slots.
        return ProbedDevice.to_dict(self) | {
            "name": self.facts.name,
            "cpus": list(self.cpus),
            "threads": len(self.cpus),
            "cores": physical_cores(self.facts, self.cpus),
            "facts": self.facts.to_dict(),
            "launch_s": self.launch_s,
        }


def precision_peak(
    facts: CpuFacts, precision: str, cpus: tuple[int, ...], reading: Reading | str
) -> PrecisionPeak:
    """Combine the reading of a probe with the theoretical peak, see :func:`peak_beside_theory`.

    Args:
        facts: facts of the CPU.
        precision: ``fp32``, ``bf16``, ``fp16`` or ``int8``.
        cpus: CPUs that the probe ran on.
        reading: reading of the probe, or the reason why there is no reading.

    Raises:
        ImpossiblePeakError: the reading is more than 1.03 x the theoretical peak of a known core
            at its clock.
    """
    cores = physical_cores(facts, cpus)
    nominal = None
    if facts.nominal_hz is not None:
        nominal = theoretical_peak(facts, precision, cores, facts.nominal_hz)
    return peak_beside_theory(
        precision,
        reading,
        nominal,
        lambda clock_hz: theoretical_peak(facts, precision, cores, clock_hz),
    )


# -----------------------------------------------------------------------------
# Selection of the probes; the caller runs them in the native worker.

# Short, since every run that times layers runs them; the best round counts.
_FMA_SECONDS = 0.03


def start_record(facts: CpuFacts, cpus: Sequence[int], own: int = 0) -> DeviceRecord:
    """Return the record of a CPU before any probe.

    Call it before any worker starts: later, our own threads would count as other load.

    Args:
        facts: facts of the CPU.
        cpus: logical CPUs in use, one pinned thread each.
        own: number of our own processes that are starting; they do not count as other load.
    """
    return DeviceRecord(facts=facts, cpus=tuple(cpus), warnings=cpu_advice(facts, cpus, own=own))


def extend_record(
    record: DeviceRecord,
    precisions: Sequence[str],
    library: Mapping[str, Any],
    probe: Probe,
    patterns: Sequence[str] = PATTERNS,
    levels: Sequence[str] = LEVELS,
    kept: ProbeCache | None = None,
    take_over: bool = True,
    *,
    hasty: bool = False,
) -> DeviceRecord:
    """Return ``record`` with bandwidths and peaks; those it lacks are probed.

    Args:
        record: record of the CPU so far.
        precisions: precisions whose peaks are needed; one that the CPU lacks gets a reason instead.
        library: properties of the native worker's library, with its ``name`` and ``version``.
        probe: runs a native probe: ``probe("fma_peak", precision=..., cpus=..., seconds=...)``.
        patterns: patterns whose bandwidths are needed.
        levels: levels whose bandwidths are needed: ``memory``, ``llc`` (the last cache), ``l2``
            (the one before it).
        kept: results of earlier runs; replaced if a new reading disagrees.
        take_over: whether results of earlier runs are used if a reading confirms them; otherwise
            everything is probed.
        hasty: whether a single try is enough for a peak, which is neither stored nor warned of.

    Raises:
        ImpossiblePeakError: a reading is more than 1.03 x the theoretical peak of a known core.
    """
    known = kept.read_peaks() if kept is not None and take_over else {}
    peaks = [
        _peak(record, name, probe, known.get(name), kept, hasty)
        for name in record.lacking(precisions)
    ]
    warnings = [] if hasty else [_peak_warning(record, peak) for peak in peaks]
    before, earlier = record, kept.read() if kept is not None and take_over else ()
    record, remarks = extend_bandwidths(
        record,
        lambda: probe_bandwidths(before, patterns, levels, probe, earlier),
    )
    # Only new readings: another process may have written its own ones meanwhile.
    fresh = [item for item in record.bandwidths if item not in (*earlier, *before.bandwidths)]
    _keep(kept, fresh, record.bandwidths)
    return record.extend(
        peaks,
        (*warnings, *remarks),
        launch_s=_launch(probe) if record.launch_s is None else record.launch_s,
        libraries=record.libraries or _libraries(library),
    )


def _keep(kept: ProbeCache | None, fresh: Sequence[Bandwidth], every: Sequence[Bandwidth]) -> None:
    """Store the undisturbed bandwidths that are not below that of a farther level."""
    rates = {(item.level, item.pattern): item.bytes_per_s for item in every}

    def plausible(item: Bandwidth) -> bool:
        farther = LEVELS[: LEVELS.index(item.level)]
        return all(rates.get((far, item.pattern), 0.0) <= item.bytes_per_s for far in farther)

    reliable = [item for item in fresh if item.disturbance is None and plausible(item)]
    if kept is not None and reliable:
        kept.write(reliable)


def revisit(record: DeviceRecord, probe: Probe, kept: ProbeCache | None = None) -> DeviceRecord:
    """Return ``record`` with one more window of each level and one more try of each peak.

    The probes at the start of a run lie within a second or two, so that the same interference may
    have disturbed all of them. Roofs of later rows use the new ones as well.

    Args:
        record: record of the CPU so far.
        probe: runs a native probe.
        kept: stores the bandwidths.
    """

    def retried(peak: PrecisionPeak) -> PrecisionPeak:
        try:
            return better_of(peak, _peak_once(record, peak.precision, probe))
        except ImpossiblePeakError:
            return dataclasses.replace(peak, impossible=peak.impossible + 1)

    bandwidths = add_windows(record, probed_sizes(record), _ask_of(record, probe))
    _keep(kept, [item for item in bandwidths if item not in record.bandwidths], bandwidths)
    peaks = tuple(retried(peak) if peak.measured is not None else peak for peak in record.peaks)
    return dataclasses.replace(record, bandwidths=bandwidths, peaks=peaks)


def _peak(
    record: DeviceRecord,
    precision: str,
    probe: Probe,
    known_per_cycle: float | None,
    kept: ProbeCache | None,
    hasty: bool,
) -> PrecisionPeak:
    """Return the stored peak if a try confirms it, else the best of several tries, and store it."""

    def once() -> PrecisionPeak:
        return _peak_once(record, precision, probe)

    if (peak := confirm_peak(once, known_per_cycle)) is not None:
        return peak
    peak = try_peak(once, (lambda _: False) if hasty else _falls_short, 1 if hasty else MIN_TRIES)
    sure = len(peak.tries) >= MIN_TRIES and not peak.impossible and not _falls_short(peak)
    if kept is not None and sure:
        kept.write_peak(precision, max(peak.tries))
    return peak


def _falls_short(peak: PrecisionPeak) -> bool:
    theory = peak.theoretical
    if peak.measured is None or theory is None or theory.assumed:
        return False
    return peak_advice(peak.precision, peak.measured, theory.flops_per_s) is not None


def _peak_once(record: DeviceRecord, precision: str, probe: Probe) -> PrecisionPeak:
    try:
        reading: Reading | str = Reading.from_reply(
            probe("fma_peak", precision=precision, cpus=list(record.cpus), seconds=_FMA_SECONDS)
        )
    except UnsupportedError as error:
        reading = str(error)
    return precision_peak(record.facts, precision, record.cpus, reading)


def _launch(probe: Probe) -> float:
    try:
        return float(probe("launch")["seconds"])
    except UnsupportedError:
        return 0.0  # without a probe nothing is claimed


def _peak_warning(record: DeviceRecord, peak: PrecisionPeak) -> DeviceAdvice | None:
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
    """Return the library's version by its name, and its further properties as text."""
    texts = {key: str(value) for key, value in library.items() if value is not None}
    name, version = texts.pop("name", None), texts.pop("version", None)
    return ({name: version} if name and version else {}) | texts


# -----------------------------------------------------------------------------
# Bandwidths of the levels of memory.

# Short, since every run that times layers runs them; the best round counts.
_BANDWIDTH_SECONDS = 0.02


def probe_bandwidths(
    record: DeviceRecord,
    patterns: Sequence[str],
    levels: Sequence[str],
    probe: Probe,
    kept: Sequence[Bandwidth] = (),
    windows: int = ROUNDS,
) -> tuple[tuple[Bandwidth, ...], tuple[DeviceAdvice, ...]]:
    """Return the bandwidths of a CPU; those that its record lacks are probed.

    Args:
        record: record of the CPU so far.
        patterns: patterns that are needed.
        levels: levels that are needed; levels that the machine lacks are left out.
        probe: runs a native probe.
        kept: bandwidths of an earlier run, used if one reading of the level agrees.
        windows: minimum number of windows of each reading.

    Raises:
        UnsupportedError: the probe cannot run on this machine.
    """
    ask = _ask_of(record, probe)
    sizes = probed_sizes(record)
    return probe_levels(record.bandwidths, sizes, patterns, levels, ask, kept, windows)


def probed_sizes(record: DeviceRecord) -> dict[str, int | None]:
    """Return the working set of the probes of each level, in bytes; None for a missing level."""
    facts, cpus = record.facts, record.cpus
    return {
        "memory": memory_working_set(facts, cpus),
        "llc": cache_working_set(facts, cpus),
        "l2": private_working_set(facts, cpus),
    }


def _ask_of(record: DeviceRecord, probe: Probe) -> Callable[[str, str, int], Mapping[str, Any]]:
    return lambda level, pattern, size: probe(
        "bandwidth",
        kind=pattern,
        bytes=size,
        cpus=list(record.cpus),
        seconds=_BANDWIDTH_SECONDS,
        # Non-temporal stores would bypass the cache.
        streaming=level == "memory",
    )
