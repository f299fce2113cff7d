"""The table of visits: one row per turn of a subject, with the counters read during it.

A subject is anything that can be sampled: a kernel, a call, a step. A round visits each subject
once, so that the visits of a round share the state of the machine. Each preparation of a subject
allocates new memory, usually in a new process: times within a single preparation share a memory
placement that another process does not have.
"""

from array import array
from collections.abc import Hashable, Iterator, Sequence
from dataclasses import dataclass
from typing import Self

import msgspec

from pydlbench.grouping import group_by
from pydlbench.timing.chunk import Chunk, Counters, GpuReadings
from pydlbench.timing.guards import merge_readings, waited_s
from pydlbench.timing.statistics import median


@dataclass(frozen=True, slots=True, kw_only=True)
class Interference:
    """Rates of the bursts before and after a visit; None if not measured.

    Attributes:
        fma: FMA throughput of all cores over that of idle cores.
        llc: bytes per second read from a buffer of half the last-level cache.
        memory: bytes per second read from memory.
    """

    fma: float | None = None
    llc: float | None = None
    memory: float | None = None


class Visit(Counters, frozen=True, kw_only=True):
    """A subject's turn in a round, with the counters read during it. Times in seconds.

    ``run_delay_s`` is an upper bound of the time that a thread waited for a CPU.

    Attributes:
        subject: key of the subject.
        preparation: number of the subject's preparation, counted from 0.
        process: number of the process that held the subject.
        round: number of the round; two subjects' visits of one round are a pair.
        seconds: samples, seconds per execution.
        parts: for each sample the seconds of its parts; empty if not timed.
        inner: executions per sample.
        clock_hz: median core clock; None if not read.
        busy: share of the threads' time in which they ran or waited for a CPU; None if not counted.
        interference: bursts before and after the visit, the slower one of each.
        again: whether the visit was repeated because of interference; this is the less disturbed
            one of the two.
    """

    subject: Hashable
    preparation: int = 0
    process: int = 0
    round: int
    seconds: Sequence[float]
    parts: Sequence[Sequence[float]] = ()
    inner: int = 1
    clock_hz: float | None = None
    busy: float | None = None
    interference: Interference = msgspec.field(default_factory=Interference)
    again: bool = False

    @property
    def median(self) -> float:
        """Median of the samples, in seconds."""
        return median(self.seconds)


def visit_of(
    subject: Hashable,
    chunk: Chunk,
    *,
    inner: int,
    number: int,
    preparation: int,
    process: int,
    interference: Interference,
    again: bool = False,
) -> Visit:
    """Return a chunk of samples as a visit.

    Args:
        subject: key of the subject.
        chunk: the samples with their counters.
        inner: executions per sample.
        number: number of the round.
        preparation: number of the preparation.
        process: number of the process.
        interference: bursts before and after the round; the chunk's own bursts have precedence.
        again: see :class:`Visit`.
    """
    fma = min(chunk.bursts) if chunk.bursts else interference.fma
    counters = {name: getattr(chunk, name) for name in Counters.__struct_fields__}
    counters["run_delay_s"] = waited_s(chunk)
    counters["wall_s"] = max(chunk.wall_s, inner * sum(chunk.seconds))
    return Visit(
        **counters,
        subject=subject,
        preparation=preparation,
        process=process,
        round=number,
        seconds=array("d", chunk.seconds),
        parts=tuple(array("d", parts) for parts in chunk.parts),
        inner=inner,
        clock_hz=median(chunk.clock_hz) if chunk.clock_hz else None,
        busy=_busy(chunk),
        interference=Interference(fma=fma, llc=interference.llc, memory=interference.memory),
        again=again,
    )


def _busy(chunk: Chunk) -> float | None:
    if chunk.cpu_s is None or chunk.wall_s <= 0:
        return None
    # Only the longest wait is known. Charging it to all threads never counts a waiting thread as
    # idle.
    waited = min(chunk.run_delay_s, chunk.wall_s) * chunk.threads
    return min(1.0, (chunk.cpu_s + waited) / (chunk.wall_s * chunk.threads))


class Series:
    """The visits of one subject, in the order of their rounds.

    Args:
        visits: at least one visit.

    Raises:
        ValueError: there are no visits.
    """

    def __init__(self, visits: Sequence[Visit]) -> None:
        if not visits:
            raise ValueError("no visits")
        self.visits = tuple(sorted(visits, key=lambda visit: visit.round))

    def __len__(self) -> int:
        return len(self.visits)

    def __iter__(self) -> Iterator[Visit]:
        return iter(self.visits)

    @property
    def median(self) -> float:
        """Median of the rounds' medians, in seconds."""
        return median(self.by_round().values())

    @property
    def seconds(self) -> Sequence[float]:
        """All samples, in seconds. A packed array: all rows of a run are in memory together."""
        return array("d", (x for visit in self.visits for x in visit.seconds))

    @property
    def inner(self) -> int:
        """Executions per sample."""
        return self.visits[-1].inner

    @property
    def preparations(self) -> int:
        """Number of preparations."""
        return len({visit.preparation for visit in self.visits})

    @property
    def processes(self) -> int:
        """Number of processes that held the subject."""
        return len({visit.process for visit in self.visits})

    @property
    def spent_s(self) -> float:
        """Wall time of all visits, in seconds."""
        return sum(visit.wall_s for visit in self.visits)

    @property
    def gate_timeouts(self) -> int:
        """See :class:`~pydlbench.timing.chunk.Chunk`."""
        return sum(visit.gate_timeouts for visit in self.visits)

    @property
    def again(self) -> int:
        """Number of repeated visits, see :class:`Visit`."""
        return sum(visit.again for visit in self.visits)

    @property
    def clock_hz(self) -> float | None:
        """Median core clock of the rounds; None if not read."""
        return _median_known(visit.clock_hz for visit in self.visits)

    @property
    def faults(self) -> float | None:
        """Page faults per execution, median of the rounds; None if not counted."""
        return _median_known(visit.faults for visit in self.visits)

    @property
    def busy(self) -> float | None:
        """See :class:`Visit`; median of the rounds."""
        return _median_known(visit.busy for visit in self.visits)

    @property
    def gpu(self) -> GpuReadings | None:
        """Readings of the GPU during all rounds, merged."""
        return merge_readings(visit.gpu for visit in self.visits if visit.gpu is not None)

    def by_round(self) -> dict[int, float]:
        """Return the median of each round's samples, in seconds, by its number."""
        return {visit.round: visit.median for visit in self.visits}

    def clocks_by_round(self) -> dict[int, float]:
        """Return the core clock in Hz by round; rounds without a reading are left out."""
        return {visit.round: visit.clock_hz for visit in self.visits if visit.clock_hz is not None}

    def cycles_by_round(self) -> dict[int, float]:
        """Return the core cycles of an execution by round; rounds without a clock are left out."""
        return {
            visit.round: visit.median * visit.clock_hz
            for visit in self.visits
            if visit.clock_hz is not None
        }

    def preparations_s(self) -> tuple[float, ...]:
        """Return the median of each preparation's rounds, in seconds, in their order."""
        preparations = group_by(self.visits, lambda visit: visit.preparation)
        return tuple(median(visit.median for visit in visits) for visits in preparations.values())

    def by_preparation(self, part: int | None = None) -> dict[int, float]:
        """Return the median of all samples of each preparation, in seconds, by its number.

        Args:
            part: number of a part of the samples; None for the whole.
        """
        preparations = group_by(self.visits, lambda visit: visit.preparation)
        return {
            number: median(
                each
                for visit in visits
                for each in (visit.seconds if part is None else [row[part] for row in visit.parts])
            )
            for number, visits in preparations.items()
        }

    def ratios_to(self, other: Self) -> dict[int, tuple[float, ...]]:
        """Return the ratio of the times in each round of both, by number of the preparation.

        Args:
            other: visits of the subject in the denominator.
        """
        theirs = other.by_round()
        shared = [visit for visit in self.visits if visit.round in theirs]
        return {
            number: tuple(visit.median / theirs[visit.round] for visit in visits)
            for number, visits in group_by(shared, lambda visit: visit.preparation).items()
        }


def _median_known(values: Iterator[float | None]) -> float | None:
    known = [value for value in values if value is not None]
    return median(known) if known else None


class SampleTable:
    """All visits of a study so far; complete up to any interruption."""

    def __init__(self) -> None:
        self._visits: dict[Hashable, list[Visit]] = {}

    def add(self, visit: Visit) -> None:
        """Add a visit."""
        self._visits.setdefault(visit.subject, []).append(visit)

    def __contains__(self, subject: Hashable) -> bool:
        return subject in self._visits

    def series(self, subject: Hashable) -> Series:
        """Return a subject's visits.

        Raises:
            ValueError: the subject had no visit.
        """
        return Series(self._visits.get(subject, ()))

    @property
    def again(self) -> int:
        """Number of repeated visits of all subjects, see :class:`Visit`."""
        return sum(visit.again for visits in self._visits.values() for visit in visits)

    def rounds(self, subject: Hashable) -> int:
        """Return the number of a subject's visits."""
        return len(self._visits.get(subject, ()))

    def forget(self, subject: Hashable) -> None:
        """Drop the visits of a subject that are no longer needed."""
        self._visits.pop(subject, None)
