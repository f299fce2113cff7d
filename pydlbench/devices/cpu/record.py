"""What is known about a CPU and what probes found on it: one record of each run."""

from __future__ import annotations

import dataclasses
from typing import TYPE_CHECKING, Any, ClassVar

from pydlbench.devices.bandwidths import (
    LEVELS,
    PATTERNS,
    ROUNDS,
    Probe,
    add_windows,
    extend_bandwidths,
    probe_levels,
)
from pydlbench.devices.cpu.advice import assumption_advice, cpu_advice, peak_advice
from pydlbench.devices.cpu.affinity import physical_cores
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
    DeviceAdvice,
    ImpossiblePeakError,
    PrecisionPeak,
    ProbedDevice,
    Reading,
    peak_beside_theory,
)
from pydlbench.devices.tries import better_of, confirm_peak, try_peak
from pydlbench.errors import UnsupportedError

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from pydlbench.devices.cpu.facts import CpuFacts
    from pydlbench.devices.findings import Bandwidth
    from pydlbench.devices.probe_cache import ProbeCache


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class DeviceRecord(ProbedDevice):
    """A CPU as one run used and found it.

    Attributes:
        facts: what the system tells.
        cpus: the logical CPUs used, one pinned thread each.
        launch_s: seconds to start and join all threads; None while not probed, 0 if unknown.
    """

    kind: ClassVar[str] = "cpu"

    facts: CpuFacts
    cpus: tuple[int, ...]
    launch_s: float | None = None

    def caches(self) -> dict[str, int | None]:
        """Return the bytes of the levels of caches behind the CPUs that are used.

        All that are nearer than the level before the last one count as ``l1``, which has no probe.
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
    return peak_beside_theory(
        precision,
        reading,
        nominal,
        lambda clock_hz: theoretical_peak(facts, precision, cores, clock_hz),
    )


# -----------------------------------------------------------------------------
# Which probes fill a device record; the caller runs them, in the native worker.

# Every run that times layers pays for these, so they are short; the best round counts.
_FMA_SECONDS = 0.03


def start_record(facts: CpuFacts, cpus: Sequence[int], own: int = 0) -> DeviceRecord:
    """Return the record of a device on which nothing was probed yet.

    Taken before any worker starts: later, our own threads would look like other load.

    Args:
        facts: of the CPU.
        cpus: the logical CPUs in use, one pinned thread each.
        own: processes of ours that are starting.
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
) -> DeviceRecord:
    """Return ``record`` with the bandwidths and the peaks of ``precisions``, probing what it lacks.

    Args:
        record: what is known so far.
        precisions: which compute peaks are needed; one that the CPU lacks gets a reason instead.
        library: what the native worker says of its library: ``name``, ``version`` and more.
        probe: runs a native probe: ``probe("fma_peak", precision=..., cpus=..., seconds=...)``.
        patterns: which bandwidths are needed.
        levels: of which levels: ``memory``, ``llc`` (the last cache), ``l2`` (the one before it).
        kept: bandwidths of earlier runs, which are checked, and kept anew where they do not agree.
        take_over: believe them where a reading agrees; else everything is probed, and kept.

    Raises:
        ImpossiblePeakError: A probe measured more than 1.03 x the theoretical peak of a CPU whose
            core is known.
    """
    known = kept.read_peaks() if kept is not None and take_over else {}
    peaks = [
        _peak(record, name, probe, known.get(name), kept) for name in record.lacking(precisions)
    ]
    warnings = [_peak_warning(record, peak) for peak in peaks]
    before, earlier = record, kept.read() if kept is not None and take_over else ()
    record, remarks = extend_bandwidths(
        record,
        lambda: probe_bandwidths(before, patterns, levels, probe, earlier),
    )
    # Only what was probed just now: another process may have kept its own readings meanwhile.
    fresh = [item for item in record.bandwidths if item not in (*earlier, *before.bandwidths)]
    _keep(kept, fresh, record.bandwidths)
    return record.extend(
        peaks,
        (*warnings, *remarks),
        launch_s=_launch(probe) if record.launch_s is None else record.launch_s,
        libraries=record.libraries or _libraries(library),
    )


def _keep(kept: ProbeCache | None, fresh: Sequence[Bandwidth], every: Sequence[Bandwidth]) -> None:
    """Keep what can be believed: nothing was seen beside it, and no farther level reads faster."""
    rates = {(item.level, item.pattern): item.bytes_per_s for item in every}

    def outrun(item: Bandwidth) -> bool:
        farther = LEVELS[: LEVELS.index(item.level)]
        return any(rates.get((far, item.pattern), 0.0) > item.bytes_per_s for far in farther)

    believed = [item for item in fresh if item.disturbance is None and not outrun(item)]
    if kept is not None and believed:
        kept.write(believed)


def revisit(record: DeviceRecord, probe: Probe, kept: ProbeCache | None = None) -> DeviceRecord:
    """Return ``record`` with one more window of each bandwidth and one more try of each peak.

    Those at the start of a run lie within a second or two; whoever was on the machine then is
    gone later. Roofs of later rows count on all of them.

    Args:
        record: with what was probed so far.
        probe: runs a native probe.
        kept: where bandwidths are kept.
    """

    def again(peak: PrecisionPeak) -> PrecisionPeak:
        try:
            return better_of(peak, _peak_once(record, peak.precision, probe))
        except ImpossiblePeakError:
            return dataclasses.replace(peak, impossible=peak.impossible + 1)

    bandwidths = probe_once_more(record, probe)
    _keep(kept, [item for item in bandwidths if item not in record.bandwidths], bandwidths)
    peaks = tuple(again(peak) if peak.measured is not None else peak for peak in record.peaks)
    return dataclasses.replace(record, bandwidths=bandwidths, peaks=peaks)


def _peak(
    record: DeviceRecord,
    precision: str,
    probe: Probe,
    known_per_cycle: float | None,
    kept: ProbeCache | None,
) -> PrecisionPeak:
    """Return a peak that is kept, confirmed by one try; else that of several, which is kept."""

    def once() -> PrecisionPeak:
        return _peak_once(record, precision, probe)

    if (peak := confirm_peak(once, known_per_cycle)) is not None:
        return peak
    peak = try_peak(once, _falls_short)
    if kept is not None and peak.tries and not peak.impossible and not _falls_short(peak):
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
        return 0.0  # no thread pool that could be asked: no claim about its cost


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
    """The library by its name, everything else that is said of it, as text."""
    texts = {key: str(value) for key, value in library.items() if value is not None}
    name, version = texts.pop("name", None), texts.pop("version", None)
    return ({name: version} if name and version else {}) | texts


# -----------------------------------------------------------------------------
# The bandwidths of a CPU's levels of memory.

# Every run that times layers pays for these, so they are short; the best round of all counts.
_SECONDS = 0.02


def probe_bandwidths(
    record: DeviceRecord,
    patterns: Sequence[str],
    levels: Sequence[str],
    probe: Probe,
    kept: Sequence[Bandwidth] = (),
    windows: int = ROUNDS,
) -> tuple[tuple[Bandwidth, ...], tuple[DeviceAdvice, ...]]:
    """Return all bandwidths of a CPU's record and those it lacks; see :func:`probe_levels`.

    Args:
        record: what is known so far.
        patterns: which bandwidths are needed.
        levels: of which levels; one that the machine lacks is left out.
        probe: runs a native probe.
        kept: what an earlier run has probed; believed where one reading of the level agrees.
        windows: of each reading at least.

    Raises:
        UnsupportedError: the probe cannot run on this machine.
    """
    ask = _ask_of(record, probe)
    sizes = probed_sizes(record)
    return probe_levels(record.bandwidths, sizes, patterns, levels, ask, kept, windows)


def probe_once_more(record: DeviceRecord, probe: Probe) -> tuple[Bandwidth, ...]:
    """Return a CPU's bandwidths with one more window of each level's fastest pattern.

    The windows at the start of a run lie within a second; what they missed shows later.

    Args:
        record: with its bandwidths.
        probe: runs a native probe.
    """
    return add_windows(record, probed_sizes(record), _ask_of(record, probe))


def probed_sizes(record: DeviceRecord) -> dict[str, int | None]:
    """Return the bytes that probes of each level span on a CPU; None of one that it lacks."""
    facts, cpus = record.facts, record.cpus
    return {
        "memory": memory_working_set(facts, cpus),
        "llc": cache_working_set(facts, cpus),
        "l2": private_working_set(facts, cpus),
    }


def _ask_of(record: DeviceRecord, probe: Probe) -> Callable[[str, str, int], Mapping[str, Any]]:
    def ask(level: str, pattern: str, size: int) -> Mapping[str, Any]:
        return probe(
            "bandwidth",
            kind=pattern,
            bytes=size,
            cpus=list(record.cpus),
            seconds=_SECONDS,
            # Non-temporal stores would send to memory what is to stay in the cache.
            streaming=level == "memory",
        )

    return ask
