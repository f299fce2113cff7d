"""The table of visits: one row for each turn that a subject had, with all that was counted beside.

A subject is whatever can be sampled: a kernel, a call, a step. A round goes once through
all subjects, so that visits of one round share what the machine did then. A preparation is a
subject made ready anew, with new memory, mostly in a process of its own: what is timed twice within
one shares what another process tomorrow does not.
"""

from __future__ import annotations

from array import array
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from pydlbench.grouping import group_by
from pydlbench.timing.guards import merge_readings, waited_s
from pydlbench.timing.statistics import median

if TYPE_CHECKING:
    from collections.abc import Hashable, Iterator, Sequence

    from pydlbench.timing.chunk import Chunk, GpuReadings


@dataclass(frozen=True, slots=True, kw_only=True)
class Interference:
    """What bursts beside a visit have reached; None where nobody measured it.

    Attributes:
        fma: FMA throughput of all cores over what they do when nobody else uses them.
        llc: bytes per second read from a buffer of half of the last-level cache.
        memory: bytes per second read from memory.
    """

    fma: float | None = None
    llc: float | None = None
    memory: float | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Visit:
    """A subject's turn in a round. Times in seconds.

    Attributes:
        subject: who had it.
        preparation: which of its preparations was sampled, counted from 0.
        process: the number of the process that held it.
        round: number of the round; two subjects' visits of one round are a pair.
        seconds: samples, seconds per execution.
        parts: of each sample the seconds of what it consists of; empty where nobody timed them.
        inner: executions per sample.
        clock_hz: median core clock; None where nobody read it.
        faults: page faults per execution; None where nobody counted.
        voluntary: voluntary context switches of all threads; likewise.
        involuntary: involuntary ones; likewise.
        run_delay_s: how long the thread that waited most was kept from a CPU.
        others_s: CPU time of others on the same CPUs; None where nobody counted.
        steal_s: CPU time that the hypervisor took.
        wall_s: of the visit.
        busy: share of the threads' time in which they had a CPU or waited for one; None likewise.
        interference: bursts before and after it, the slower one of each.
        disturbance: what the backend saw that speaks against it, in words.
        gpu: what was read from a GPU meanwhile.
        gate_timeouts: see :class:`~pydlbench.timing.chunk.Chunk`.
        again: others disturbed a visit of it in this round, so that there was a second one; this is
            the one beside which they took less of the CPUs.
    """

    subject: Hashable
    preparation: int = 0
    process: int = 0
    round: int
    seconds: Sequence[float]
    parts: Sequence[Sequence[float]] = ()
    inner: int = 1
    clock_hz: float | None = None
    faults: float | None = None
    voluntary: int | None = None
    involuntary: int | None = None
    run_delay_s: float = 0.0
    others_s: float | None = None
    steal_s: float = 0.0
    wall_s: float = 0.0
    busy: float | None = None
    interference: Interference = field(default_factory=Interference)
    disturbance: str | None = None
    gpu: GpuReadings | None = None
    gate_timeouts: int = 0
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
        subject: whose it is.
        chunk: the samples, with what was counted around them.
        inner: executions per sample.
        number: of the round.
        preparation: which of the subject's was sampled.
        process: that held it.
        interference: bursts before and after the round; one of the backend's own counts before.
        again: see :class:`Visit`.
    """
    fma = min(chunk.bursts) if chunk.bursts else interference.fma
    return Visit(
        subject=subject,
        preparation=preparation,
        process=process,
        round=number,
        seconds=array("d", chunk.seconds),
        parts=tuple(array("d", parts) for parts in chunk.parts),
        inner=inner,
        clock_hz=median(chunk.clock_hz) if chunk.clock_hz else None,
        faults=chunk.faults,
        voluntary=chunk.voluntary,
        involuntary=chunk.involuntary,
        run_delay_s=waited_s(chunk),
        others_s=chunk.others_s,
        steal_s=chunk.steal_s,
        wall_s=max(chunk.wall_s, inner * sum(chunk.seconds)),
        busy=_busy(chunk),
        interference=Interference(fma=fma, llc=interference.llc, memory=interference.memory),
        disturbance=chunk.disturbance,
        gpu=chunk.gpu,
        gate_timeouts=chunk.gate_timeouts,
        again=again,
    )


def _busy(chunk: Chunk) -> float | None:
    if chunk.cpu_s is None or chunk.wall_s <= 0:
        return None
    # How long the others waited nobody knows; counted as the longest, no thread is called idle
    # that was only kept from its CPU.
    waited = min(chunk.run_delay_s, chunk.wall_s) * chunk.threads
    return min(1.0, (chunk.cpu_s + waited) / (chunk.wall_s * chunk.threads))


class Series:
    """The visits of one subject, in the order of their rounds.

    Args:
        visits: at least one.

    Raises:
        ValueError: there is none.
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
        """Median over the rounds of their medians, in seconds."""
        return median(self.by_round().values())

    @property
    def seconds(self) -> Sequence[float]:
        """All samples, in seconds. Packed: those of all rows of a run are in memory together."""
        return array("d", (x for visit in self.visits for x in visit.seconds))

    @property
    def inner(self) -> int:
        """Executions per sample."""
        return self.visits[-1].inner

    @property
    def preparations(self) -> int:
        """How often it was made ready anew."""
        return len({visit.preparation for visit in self.visits})

    @property
    def processes(self) -> int:
        """How many processes held it."""
        return len({visit.process for visit in self.visits})

    @property
    def spent_s(self) -> float:
        """Wall seconds of its visits."""
        return sum(visit.wall_s for visit in self.visits)

    @property
    def gate_timeouts(self) -> int:
        """See :class:`~pydlbench.timing.chunk.Chunk`."""
        return sum(visit.gate_timeouts for visit in self.visits)

    @property
    def again(self) -> int:
        """How many of its visits were taken again, see :class:`Visit`."""
        return sum(visit.again for visit in self.visits)

    @property
    def clock_hz(self) -> float | None:
        """Median core clock over the rounds; None where nobody read it."""
        return _middle(visit.clock_hz for visit in self.visits)

    @property
    def faults(self) -> float | None:
        """Page faults per execution, in the median of the rounds; None where nobody counted."""
        return _middle(visit.faults for visit in self.visits)

    @property
    def busy(self) -> float | None:
        """See :class:`Visit`; the median of the rounds."""
        return _middle(visit.busy for visit in self.visits)

    @property
    def gpu(self) -> GpuReadings | None:
        """What was read from a GPU during all rounds."""
        return merge_readings(visit.gpu for visit in self.visits if visit.gpu is not None)

    def by_round(self) -> dict[int, float]:
        """Return the median of each round's samples, in seconds, by its number."""
        return {visit.round: visit.median for visit in self.visits}

    def clocks_by_round(self) -> dict[int, float]:
        """Return the core clock in Hz by round; rounds without a reading are left out."""
        return {visit.round: visit.clock_hz for visit in self.visits if visit.clock_hz is not None}

    def cycles_by_round(self) -> dict[int, float]:
        """Return core cycles of an execution by round; likewise."""
        return {
            visit.round: visit.median * visit.clock_hz
            for visit in self.visits
            if visit.clock_hz is not None
        }

    def preparations_s(self) -> tuple[float, ...]:
        """Return the median of each preparation's rounds, in seconds, in their order."""
        preparations = group_by(self.visits, lambda visit: visit.preparation)
        return tuple(median(visit.median for visit in own) for own in preparations.values())


def _middle(values: Iterator[float | None]) -> float | None:
    known = [value for value in values if value is not None]
    return median(known) if known else None


class SampleTable:
    """All visits of a study so far. Whenever it is interrupted, it has an answer."""

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
            ValueError: it had none.
        """
        return Series(self._visits.get(subject, ()))

    @property
    def again(self) -> int:
        """How many visits of all were taken again, see :class:`Visit`."""
        return sum(visit.again for visits in self._visits.values() for visit in visits)

    def rounds(self, subject: Hashable) -> int:
        """Return how many visits a subject had."""
        return len(self._visits.get(subject, ()))

    def forget(self, subject: Hashable) -> None:
        """Drop a subject's visits, once an answer is made of them."""
        self._visits.pop(subject, None)
