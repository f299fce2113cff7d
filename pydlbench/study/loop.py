"""The measuring loop: rounds over all subjects in random order.

The loop runs no kernel and reads no clock; a subject's ``sample`` does, so that tests can feed it
numbers. All other workers are stopped while a subject is sampled
(:meth:`pydlbench.workers.host.RemoteKernel.sample`).
"""

import math
import random
from collections.abc import Callable, Hashable, Sequence
from dataclasses import dataclass, replace
from typing import Final

from pydlbench.errors import PydlbenchError
from pydlbench.study.table import Interference, SampleTable, Series, visit_of
from pydlbench.timing.chunk import Chunk, ChunkRequest
from pydlbench.timing.guards import chunk_interference, waited_for_others_s
from pydlbench.timing.policy import MIN_READING_S, Policy
from pydlbench.timing.statistics import median

#: Rounds of subjects that are prepared once: the smallest number whose interval excludes both
#: extremes.
ROUNDS: Final = 9
# Bounds the untimed executions of a kernel whose time is below the clock's resolution.
_MAX_UNTIMED: Final = 10_000
# Disturbed visits are repeated until this many repetitions in a row were disturbed as well: the
# machine is not going to be quiet then.
_MAX_VAIN_REPETITIONS: Final = 3


def random_order(seed: int) -> random.Random:
    """Return the random generator for the order of the subjects in each round."""
    return random.Random(seed)  # noqa: S311 - an order, not a secret


@dataclass(frozen=True, slots=True, kw_only=True)
class Size:
    """The time of a subject's execution, which determines the number of samples of a visit.

    Attributes:
        execution_s: seconds of one execution in the fastest chunk so far: interference only slows
            it, and disturbed visits shall have as many samples as others.
        wall_s: wall seconds of one execution including overhead, of the fastest chunk so far.
        process: number of the process in which it was measured and warmed up.
    """

    execution_s: float
    wall_s: float
    process: int = 0


@dataclass(slots=True, kw_only=True, eq=False)
class Subject:
    """Something that is sampled.

    Attributes:
        key: key of the subject in the table.
        sample: times the samples of a request.
        policy: determines the size of the subject's visits.
        process: number of the process that holds it.
        preparation: number of the subject's preparation, counted from 0.
        size: time of the subject's executions; None until it is first sampled. A new preparation of
            the same kernel can start with the size of an earlier one.
    """

    key: Hashable
    sample: Callable[[ChunkRequest], Chunk]
    policy: Policy
    process: int = 0
    preparation: int = 0
    size: Size | None = None


class Study:
    """Takes rounds of visits and adds them to a table, also those of an interrupted round.

    Args:
        order: seeded generator of the order in each round. In a fixed order each subject would
            always inherit the caches and the temperature of the same other one.
        interference: runs bursts between the rounds; None if there are no bursts.
        paired: the visits of a round are compared as a pair. The machine changes within tenths of a
            second, so nothing else runs between them: bursts run only before and after all rounds
            of a call, and no disturbed visit is repeated. Each round of a call has the order of the
            one before it reversed, so that each of two subjects is first equally often.
    """

    def __init__(
        self,
        order: random.Random,
        interference: Callable[[], Interference] | None = None,
        *,
        paired: bool = False,
    ) -> None:
        self.table = SampleTable()
        self._order = order
        self._interference = interference
        self._paired = paired
        self._in_vain = 0

    def take(
        self, subjects: Sequence[Subject], first: int = 0, rounds: int = 1
    ) -> dict[Hashable, PydlbenchError]:
        """Take rounds over all subjects, and add their visits to the table.

        Args:
            subjects: subjects with different keys; each is sized and warmed up before the first
                round unless its process has already sampled it.
            first: number of the first round.
            rounds: number of rounds.

        Returns:
            Errors of subjects that failed, by key; the other subjects continued.
        """
        errors: dict[Hashable, PydlbenchError] = {}
        waiting = list(subjects)
        self._order.shuffle(waiting)
        for subject in waiting:
            try:
                _warm_up(subject)
            except PydlbenchError as error:
                errors[subject.key] = error
        alone = len(subjects) == 1 and self._interference is None
        before: Interference | None = None
        every = range(first, first + rounds)
        # Rounds between two readings of the bursts.
        for numbers in [every] if self._paired else [[number] for number in every]:
            if len(errors) == len(subjects):
                break
            if self._interference is not None and before is None:
                before = self._interference()
            taken: list[tuple[int, Subject, ChunkRequest, Chunk, bool]] = []
            after: Interference | None = None
            try:
                waiting = []
                for number in numbers:
                    left = [subject for subject in subjects if subject.key not in errors]
                    waiting = self._reordered(left, waiting)
                    for subject in waiting:
                        request = request_for(subject, alone=alone and number > first)
                        try:
                            chunk = subject.sample(request)
                            taken.append((number, subject, request, chunk, False))
                            if self._is_worth_another(chunk, subject.policy):
                                chunk = self._better(chunk, subject, request)
                                taken[-1] = number, subject, request, chunk, True
                        except PydlbenchError as error:
                            errors[subject.key] = error
                            continue
                        subject.size = _sized(subject, request, chunk)
                after = None if self._interference is None else self._interference()
            finally:  # also of a round that is interrupted
                self._add(taken, _slower(before, after))
            before = after
        return errors

    def _reordered(self, subjects: Sequence[Subject], before: Sequence[Subject]) -> list[Subject]:
        """Return subjects in a new order; pairs in the reverse of that of the round before."""
        if self._paired and before:
            return [subject for subject in reversed(before) if subject in subjects]
        order = list(subjects)
        self._order.shuffle(order)
        return order

    def _is_worth_another(self, chunk: Chunk, policy: Policy) -> bool:
        """Whether a visit was disturbed, and a second one is likely to be undisturbed."""
        quiet_expected = not self._paired and self._in_vain < _MAX_VAIN_REPETITIONS
        return quiet_expected and chunk_interference(chunk, policy) is not None

    def _better(self, chunk: Chunk, subject: Subject, request: ChunkRequest) -> Chunk:
        """Repeat a visit; return the less disturbed one of the two, whatever its time."""
        policy = subject.policy

        def loss(visit: Chunk) -> tuple[bool, float]:
            return visit.disturbance is not None, waited_for_others_s(visit, policy) + visit.steal_s

        second = subject.sample(request)
        self._in_vain = 0 if chunk_interference(second, policy) is None else self._in_vain + 1
        return min(chunk, second, key=loss)

    def _add(
        self,
        taken: Sequence[tuple[int, Subject, ChunkRequest, Chunk, bool]],
        interference: Interference,
    ) -> None:
        """Add the visits of rounds to the table."""
        for number, subject, request, chunk, again in taken:
            self.table.add(
                visit_of(
                    subject.key,
                    chunk,
                    inner=request.inner,
                    number=number,
                    preparation=subject.preparation,
                    process=subject.process,
                    interference=interference,
                    again=again,
                )
            )


def sample_pair(
    samplers: Sequence[Callable[[ChunkRequest], Chunk]],
    policies: Sequence[Policy],
    order: random.Random,
    rounds: int,
) -> tuple[Series, Series]:
    """Return the visits of two subjects that were sampled in alternation.

    Args:
        samplers: for each subject the function that times the samples of a request.
        policies: for each subject the policy of its visits.
        order: seeded generator of the order in each round.
        rounds: number of rounds.

    Raises:
        PydlbenchError: one of them could not be sampled in all rounds.
    """
    study = Study(order)
    subjects = [
        Subject(key=number, sample=sample, policy=policy)
        for number, (sample, policy) in enumerate(zip(samplers, policies, strict=True))
    ]
    for error in study.take(subjects, rounds=rounds).values():
        raise error
    return study.table.series(0), study.table.series(1)


def request_for(subject: Subject, *, alone: bool = False) -> ChunkRequest:
    """Return the request of a subject's next visit.

    Args:
        subject: a subject whose size is known.
        alone: no other subject has run since it was last sampled.
    """
    policy, size = subject.policy, subject.size
    assert size is not None, "sized before the first round"
    execution_s = max(size.execution_s, MIN_READING_S)
    inner = 1
    if execution_s < policy.min_sample_s:
        # A fifth more, so that a kernel that speeds up while warming stays above the target.
        inner = math.ceil(1.2 * policy.min_sample_s / execution_s)
    sample_s = inner * (max(execution_s, size.wall_s) if policy.chunk_by_wall else execution_s)
    wanted = max(round(policy.chunk_s / sample_s), policy.least_samples)
    most = max(1, min(policy.max_samples, int(policy.visit_s / sample_s)))
    untimed = 0
    limit = policy.settle_s if alone else policy.settle_limit_s
    if execution_s < limit:
        untimed = max(1, min(math.ceil(policy.settle_s / execution_s), _MAX_UNTIMED))
    touch = untimed > 0 and execution_s >= policy.settle_s
    return ChunkRequest(
        samples=max(1, min(wanted, most)), inner=inner, untimed=untimed, touch=touch
    )


def _warm_up(subject: Subject) -> None:
    """Find a subject's size and warm it up, unless its process has already sampled it."""
    policy, size = subject.policy, subject.size
    known = size is not None and size.execution_s >= policy.ready_limit_s
    if known or (size is not None and size.process == subject.process):
        return
    inner = 1 if size is None else request_for(subject).inner
    # A subject that is known to be slow need not run twice to be warm. Nor need one that is warm
    # once it has been prepared, if it is slow: its first sample tells.
    slow_s = policy.ready_limit_s if size is None else size.execution_s
    untimed = not policy.settle_limit_s <= slow_s < math.inf
    request = ChunkRequest(samples=1, inner=inner, untimed=int(untimed), touch=untimed)
    # A subject of known size has its first round of this process below.
    calibrates = size is None or size.execution_s >= policy.warm_limit_s
    for _ in range(policy.max_calibrations if calibrates else 0):
        chunk = subject.sample(request)
        subject.size = _sized(subject, request, chunk)
        # A first reading may be all noise: trust it up to a factor of a hundred.
        inner = min(request_for(subject).inner, 100 * request.inner)
        if inner <= request.inner or min(chunk.seconds) * request.inner >= policy.min_sample_s:
            break
        request = ChunkRequest(samples=1, inner=inner)
    assert subject.size is not None, "sampled at least once"
    if subject.size.execution_s < policy.warm_limit_s:
        # As long as a visit; a single sample if that alone takes longer.
        policy = replace(policy, least_samples=1)
        request = request_for(replace(subject, policy=policy))
        subject.size = _sized(subject, request, subject.sample(request))


def _sized(subject: Subject, request: ChunkRequest, chunk: Chunk) -> Size:
    """Return a subject's size, updated by a chunk."""
    whole_s = max(chunk.wall_s, request.inner * sum(chunk.seconds))
    execution_s = median(chunk.seconds)
    wall_s = whole_s / len(chunk.seconds) / request.inner
    if subject.size is not None:
        execution_s = min(execution_s, subject.size.execution_s)
        wall_s = min(wall_s, subject.size.wall_s)
    return Size(execution_s=execution_s, wall_s=wall_s, process=subject.process)


def _slower(before: Interference | None, after: Interference | None) -> Interference:
    """Return the slower one of two readings of each burst."""
    both = [reading for reading in (before, after) if reading is not None]

    def slowest(name: str) -> float | None:
        known = [rate for reading in both if (rate := getattr(reading, name)) is not None]
        return min(known, default=None)

    return Interference(fma=slowest("fma"), llc=slowest("llc"), memory=slowest("memory"))
