"""The procedure that times one kernel, as a state machine fed with chunks.

It runs nothing and reads no clock: the caller asks ``next_request()``, has a kernel execute it,
and feeds the chunk back. Phases: calibrate (executions per sample), warm-up, rounds, done.
"""

from __future__ import annotations

import math
from array import array
from dataclasses import dataclass
from typing import TYPE_CHECKING

from pydlbench.timing.chunk import Chunk, GpuReadings, Request
from pydlbench.timing.guards import Contention, combine, judge
from pydlbench.timing.policy import Policy
from pydlbench.timing.statistics import median
from pydlbench.timing.stopping import AnyOf, Warmup, WarmupOutcome, default_rule

if TYPE_CHECKING:
    import random
    from collections.abc import Callable, Sequence


@dataclass(frozen=True, slots=True, kw_only=True)
class Round:
    """Median of a round's kept samples, with its number; rounds of interleaved kernels pair up."""

    index: int
    seconds: float
    clock_hz: float | None

    @property
    def cycles(self) -> float | None:
        """Core cycles of the median execution, or None without a clock reading."""
        return None if self.clock_hz is None else self.seconds * self.clock_hz


@dataclass(frozen=True, slots=True, kw_only=True)
class Samples:
    """What one kernel's sampling gave.

    Attributes:
        seconds: kept samples in order of time, seconds per execution; never empty. Packed, as those
            of all visits of all rows of a run are in memory together: quantiles are of all.
        all_seconds: every sample, disturbed ones included.
        discarded: samples left out; 0 when contended.
        clock_hz: median core clock of the kept rounds, or None.
        contended: the machine was shared; the times are worthless as absolute numbers.
        contention_reason: why, in words.
        stop_reason: ``precision``, ``steady-noise``, ``budget``, ``max-samples``, ``rounds``,
            ``visits`` or ``interrupted``.
        stop_detail: the same in words.
        warmup: how the warm-up ended.
        rounds: medians of the rounds that have kept samples.
        inner: executions per sample.
        retries: extra chunks asked for because of contention.
        spent_s: wall time of the rounds.
        confidence: the level of intervals.
        gpu: what was read from a GPU during all rounds.
        gate_timeouts: of all rounds, see ``Chunk``.
        faults: page faults per execution, in the median of the rounds; None where nobody counted.
        busy: share of the threads' time in which they had a CPU (spinning included) or waited for
            one that another process had, in the median of the rounds; likewise.
        visits: medians of the visits that were joined (:mod:`pydlbench.timing.visits`), in seconds;
            empty where there was one.
        within: relative half width of the median's interval within a visit; None likewise.
        processes: how many the visits were made in.
        disturbed: how many of ``visits`` were contended, and stay as there are no others.
    """

    seconds: Sequence[float]
    all_seconds: Sequence[float]
    discarded: int
    clock_hz: float | None
    contended: bool
    contention_reason: str | None
    stop_reason: str
    stop_detail: str
    warmup: WarmupOutcome
    rounds: tuple[Round, ...]
    inner: int
    retries: int
    spent_s: float
    confidence: float
    gpu: GpuReadings | None = None
    gate_timeouts: int = 0
    faults: float | None = None
    busy: float | None = None
    visits: tuple[float, ...] = ()
    within: float | None = None
    processes: int = 1
    disturbed: int = 0

    @property
    def median(self) -> float:
        """Median of the kept samples, or of the visits' medians, in seconds."""
        return median(self.visits or self.seconds)

    def by_round(self) -> dict[int, float]:
        """Median seconds by round number, for ``paired_ratio``."""
        return {r.index: r.seconds for r in self.rounds}

    def cycles_by_round(self) -> dict[int, float]:
        """Median core cycles by round number; rounds without a clock reading are left out."""
        return {r.index: r.cycles for r in self.rounds if r.cycles is not None}


class Sampling:
    """Drives one kernel from calibration to the last round.

    Args:
        policy: the constants.
        alone: no other kernel runs between two chunks, so that a kernel longer than
            ``settle_s`` finds its caches as it left them and needs no untimed execution.
        known: earlier samples of the same kernel in the same process: it goes on with rounds, as
            it was calibrated and warmed up then.
    """

    def __init__(
        self, policy: Policy | None = None, *, alone: bool = False, known: Samples | None = None
    ) -> None:
        self.policy = policy or Policy()
        self._alone = alone
        self._known = known
        # then "warm-up", "rounds", "done"
        self.phase = "calibrate" if known is None else "rounds"
        self._inner = 1 if known is None else known.inner
        # Latest estimate of one execution, 0 = unknown.
        self._execution_s = 0.0 if known is None else median(known.seconds)
        self._sample_wall_s = 0.0  # latest wall time per sample, whatever it was spent on
        self._calibrations = 0
        self._warmup = Warmup(self.policy)
        self._chunks: list[Chunk] = []
        self._indexes: list[int] = []
        self._contention = judge((), 1, self.policy)
        self._rule = default_rule(self.policy)
        self._fed: list[float] = []
        self._fed_s = 0.0
        self._spent_s = 0.0
        self._retries = 0

    @property
    def done(self) -> bool:
        """Whether nothing more will be asked."""
        return self.phase == "done"

    def next_request(self) -> Request | None:
        """Return what to run next, or None when done."""
        if self.phase == "done":
            return None
        if self.phase == "calibrate":
            return Request(samples=1, inner=self._inner, untimed=0 if self._calibrations else 1)
        policy = self.policy
        chunk_s = min(policy.chunk_s, policy.budget_s / policy.min_rounds)
        sample_s = max(self._execution_s * self._inner, 1e-9)
        if policy.chunk_by_wall:
            sample_s = max(sample_s, self._sample_wall_s)
        wanted = round(chunk_s / sample_s)
        warming = self.phase == "warm-up"
        if not warming:
            room = int(policy.budget_s / policy.min_rounds / sample_s)
            wanted = max(wanted, min(policy.chunk_samples, room))
        samples = max(1, min(wanted, policy.max_samples))
        untimed = 0
        # Nobody else runs between two chunks of a warm-up.
        limit = policy.settle_s if self._alone or warming else policy.settle_limit_s
        if self._execution_s < limit:
            # The cap is for kernels that a broken clock reads as free.
            settling = math.ceil(policy.settle_s / max(self._execution_s, 1e-9))
            untimed = max(1, min(settling, 10_000))
        return Request(samples=samples, inner=self._inner, untimed=untimed)

    def feed(self, chunk: Chunk, round_index: int | None = None) -> None:
        """Take the chunk that answers the last request.

        Args:
            chunk: the samples and counters.
            round_index: number of the interleaved round; counted here when left out.

        Raises:
            RuntimeError: if the sampling is done.
        """
        if self.phase == "done":
            raise RuntimeError("sampling is done: no chunk was asked for")
        self._sample_wall_s = self._wall(chunk) / len(chunk.seconds)
        if self.phase == "calibrate":
            self._feed_calibration(chunk)
        elif self.phase == "warm-up":
            self._warmup.add_chunk(chunk.seconds, chunk.clock_hz, self._wall(chunk))
            self._execution_s = median(chunk.seconds)
            if self._warmup.is_finished():
                self.phase = "rounds"
        else:
            self._feed_round(chunk, round_index)

    def _wall(self, chunk: Chunk) -> float:
        return max(chunk.wall_s, self._inner * sum(chunk.seconds))

    def _feed_calibration(self, chunk: Chunk) -> None:
        self._calibrations += 1
        self._execution_s = min(chunk.seconds)
        target = self.policy.min_sample_s
        if self._execution_s * self._inner < target:
            # A fifth more, so that a kernel that speeds up while warming stays above the target.
            ideal = 1.2 * target / self._execution_s if self._execution_s > 0 else math.inf
            self._inner = math.ceil(min(ideal, self._inner * 100.0))
            if self._calibrations < self.policy.max_calibrations:
                return
        self.phase = "warm-up"

    def _feed_round(self, chunk: Chunk, round_index: int | None) -> None:
        following = self._indexes[-1] + 1 if self._indexes else 0
        self._chunks.append(chunk)
        self._indexes.append(following if round_index is None else round_index)
        self._execution_s = median(chunk.seconds)
        self._spent_s += self._wall(chunk)
        self._contention = judge(self._chunks, self._inner, self.policy)
        self._update_rule()
        most = self.policy.most_rounds
        enough = most is not None and len(self._chunks) >= most
        if not self._rule.is_finished() and not enough:
            return
        bounded = enough or self._rule.reason in ("budget", "max-samples")
        if not bounded and len(self._chunks) < self.policy.min_rounds:
            return
        patience_s = 3 * self.policy.budget_s
        if len(self._chunks) < self.policy.least_rounds and self._spent_s < patience_s:
            return
        if self._contention.contended and self._retries < self.policy.max_retries:
            self._retries += 1
            return
        self.phase = "done"

    def _update_rule(self) -> None:
        """Feed the rule with the kept samples; a new chunk may take back earlier ones."""
        kept = _kept(self._chunks, self._contention)
        if kept[: len(self._fed)] != self._fed:
            self._rule, self._fed, self._fed_s = default_rule(self.policy), [], 0.0
        new = kept[len(self._fed) :]
        if new:
            # Discarded samples cost their time too.
            cost = (self._spent_s - self._fed_s) / len(new)
            for seconds in new:
                self._rule.add_measurement(seconds, cost)
            self._fed, self._fed_s = kept, self._spent_s

    def result(self) -> Samples:
        """Return the samples; before the end, what there is so far (``interrupted``).

        Raises:
            RuntimeError: if no round has been fed yet.
        """
        if not self._chunks:
            raise RuntimeError("no samples yet")
        rule: AnyOf = self._rule
        if self.phase != "done":
            reason, detail = "interrupted", "stopped before the end"
        elif rule.is_finished():
            reason, detail = rule.reason, rule.detail
        else:
            reason, detail = "rounds", f"{len(self._chunks)} rounds"
        rounds = _rounds(self._chunks, self._indexes, self._contention)
        clocks = [r.clock_hz for r in rounds if r.clock_hz is not None]
        faults = [chunk.faults for chunk in self._chunks if chunk.faults is not None]
        busy = [share for chunk in self._chunks if (share := _busy(chunk)) is not None]
        every = array("d", (x for chunk in self._chunks for x in chunk.seconds))
        discarded = self._contention.discarded
        kept = array("d", _kept(self._chunks, self._contention)) if discarded else every
        return Samples(
            seconds=kept,
            all_seconds=every,
            discarded=discarded,
            clock_hz=median(clocks) if clocks else None,
            contended=self._contention.contended,
            contention_reason=self._contention.reason,
            stop_reason=reason,
            stop_detail=detail,
            warmup=self._warmup.outcome() if self._known is None else self._known.warmup,
            rounds=rounds,
            inner=self._inner,
            retries=self._retries,
            spent_s=self._spent_s,
            confidence=self.policy.confidence,
            gpu=combine(chunk.gpu for chunk in self._chunks if chunk.gpu is not None),
            gate_timeouts=sum(chunk.gate_timeouts for chunk in self._chunks),
            faults=median(faults) if faults else None,
            busy=median(busy) if busy else None,
        )


def _busy(chunk: Chunk) -> float | None:
    """The busy share of a chunk's threads, see ``Samples``."""
    if chunk.cpu_s is None or chunk.wall_s <= 0:
        return None
    # How long the others waited nobody knows; counted as the longest, no thread is called idle
    # that was only kept from its CPU.
    waited = min(chunk.run_delay_s, chunk.wall_s) * chunk.threads
    return min(1.0, (chunk.cpu_s + waited) / (chunk.wall_s * chunk.threads))


def _kept(chunks: list[Chunk], contention: Contention) -> list[float]:
    return [
        seconds
        for chunk, row in zip(chunks, contention.keep, strict=True)
        for seconds, keep in zip(chunk.seconds, row, strict=True)
        if keep
    ]


def _rounds(chunks: list[Chunk], indexes: list[int], contention: Contention) -> tuple[Round, ...]:
    rounds = []
    for chunk, index, row in zip(chunks, indexes, contention.keep, strict=True):
        kept = [seconds for seconds, keep in zip(chunk.seconds, row, strict=True) if keep]
        if kept:
            clock = median(chunk.clock_hz) if chunk.clock_hz else None
            rounds.append(Round(index=index, seconds=median(kept), clock_hz=clock))
    return tuple(rounds)


def interleave(
    samplings: Sequence[Sampling],
    sample: Callable[[int, Request], Chunk | None],
    rng: random.Random,
) -> None:
    """Drive all samplings to their end.

    Every kernel is calibrated and warmed up before the first round, one after another, so that
    equal round numbers mean the same moment. Each round visits the kernels in a new order: with a
    fixed one, each would always follow the same neighbour and inherit its caches and temperature.

    Args:
        samplings: one per kernel.
        sample: runs a request on kernel ``i``; None gives the kernel up (its worker died, say),
            the others go on.
        rng: seeded source of the order.
    """
    live = set(range(len(samplings)))

    def visit(indexes: list[int], round_index: int | None) -> None:
        rng.shuffle(indexes)
        for i in indexes:
            request = samplings[i].next_request()
            chunk = None if request is None else sample(i, request)
            if chunk is None:
                live.discard(i)
            else:
                samplings[i].feed(chunk, round_index)

    cold = [i for i in sorted(live) if samplings[i].phase in ("calibrate", "warm-up")]
    rng.shuffle(cold)
    for i in cold:
        while i in live and samplings[i].phase in ("calibrate", "warm-up"):
            visit([i], None)
    round_index = 0
    while ready := [i for i in sorted(live) if not samplings[i].done]:
        visit(ready, round_index)
        round_index += 1
