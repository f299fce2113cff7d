"""A pass: every pair of cases is prepared anew, in new processes, and sampled in turn.

What two runs of the same thing differ by is made anew in each pass (memory, processes, the race
among candidates); what the machine does meanwhile is the same for both kernels of a round.
"""

from __future__ import annotations

import contextlib
import math
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Protocol

from pydlbench.errors import PydlbenchError
from pydlbench.side_by_side import Contestant, sample_in_turn
from pydlbench.timing.policy import Policy, gpu_policy
from pydlbench.timing.statistics import median, paired_ratio

if TYPE_CHECKING:
    import random
    from collections.abc import Callable, Sequence

    from pydlbench.backends.case import Case
    from pydlbench.timing.chunk import Chunk, Request
    from pydlbench.timing.procedure import Samples

__all__ = ["Contest", "Half", "Host", "Passes", "SidePrepared", "policy", "take_pass"]

# A pass counts as one value; its rounds only make that value a good one.
_ROUNDS = 5
_LEAST_ROUNDS = 3


class SidePrepared(Protocol):
    """A kernel that is ready to be timed."""

    @property
    def facts(self) -> dict[str, Any]:
        """What is known about it."""

    def sample(self, request: Request) -> Chunk:
        """Time the requested samples."""

    def release(self) -> None:
        """Let go of it."""


class Host(Protocol):
    """What a pass needs of a session; made anew for each pass and side."""

    def prepare(self, case: Case) -> SidePrepared:
        """Have a case made ready."""

    def close(self) -> None:
        """End its processes."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Half:
    """One side of a pair.

    Attributes:
        case: what is computed.
        threads: of its kernel; None is one per physical core, or a GPU.
    """

    case: Case
    threads: int | None = None


@dataclass(slots=True, kw_only=True)
class Passes:
    """What is known of a pair, pass by pass.

    Attributes:
        logs: logarithm of B over A: the median of the rounds' ratios.
        cycles: likewise of cycles, where both clocks were read.
        seconds: medians of A and of B.
        clocks: of A and of B, in Hz.
        facts: of the kernels that ran last.
        reason: why the last pass that failed did.
    """

    logs: list[float] = field(default_factory=list)
    cycles: list[float] = field(default_factory=list)
    seconds: tuple[list[float], list[float]] = field(default_factory=lambda: ([], []))
    clocks: tuple[list[float], list[float]] = field(default_factory=lambda: ([], []))
    facts: list[dict[str, Any]] = field(default_factory=lambda: [{}, {}])
    reason: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Contest:
    """A pair of cases and what came of it so far."""

    halves: tuple[Half, Half]
    found: Passes = field(default_factory=Passes)


def policy(budget_s: float, case: Case, facts: dict[str, Any]) -> Policy:
    """Return the constants of sampling a kernel within a pass.

    Args:
        budget_s: seconds of sampling.
        case: what is sampled.
        facts: of the prepared kernel.
    """
    base = Policy(budget_s=budget_s)
    short = Policy(
        budget_s=budget_s,
        min_rounds=_ROUNDS,
        least_rounds=_LEAST_ROUNDS,
        min_samples=_ROUNDS,
        chunk_s=min(base.chunk_s, budget_s / _ROUNDS),
        warmup_limit_s=min(base.warmup_limit_s, budget_s),
    )
    return gpu_policy(short, facts, case.cache) if case.on_gpu else short


def take_pass(
    contests: Sequence[Contest],
    open_host: Callable[[int, int | None], Host],
    budget_s: float,
    rng: random.Random,
    progress: Callable[[str], None] = lambda _label: None,
    rest: Callable[[], None] | None = None,
) -> None:
    """Take one pass over all pairs, in a new order; what it finds is added to theirs.

    Whoever cannot be prepared, dies or hangs costs its pair this pass; the others go on.

    Args:
        contests: the pairs.
        open_host: opens a session for a side (0 is A, 1 is B) with a number of threads.
        budget_s: seconds of sampling of each kernel.
        rng: seeded source of all orders.
        progress: called with the name of the next pair.
        rest: see :func:`pydlbench.side_by_side.sample_in_turn`.
    """
    hosts: dict[tuple[int, int | None], Host] = {}
    order = list(contests)
    rng.shuffle(order)
    try:
        for one in order:
            progress(one.halves[1].case.label)
            try:
                _one(one, hosts, open_host, budget_s, rng, rest)
            except PydlbenchError as error:
                one.found.reason = str(error)
    finally:
        for host in hosts.values():
            host.close()


def _one(
    contest: Contest,
    hosts: dict[tuple[int, int | None], Host],
    open_host: Callable[[int, int | None], Host],
    budget_s: float,
    rng: random.Random,
    rest: Callable[[], None] | None,
) -> None:
    sides = [0, 1]
    rng.shuffle(sides)  # who is prepared first gets the better pages, or the worse ones
    kernels: dict[int, SidePrepared] = {}
    try:
        for side in sides:
            half = contest.halves[side]
            place = (side, half.threads)
            if place not in hosts:
                hosts[place] = open_host(side, half.threads)
            kernels[side] = hosts[place].prepare(half.case)
        _sample(contest, kernels, budget_s, rng, rest)
    finally:
        for kernel in kernels.values():
            with contextlib.suppress(PydlbenchError):  # its worker has died meanwhile
                kernel.release()


def _sample(
    contest: Contest,
    kernels: dict[int, SidePrepared],
    budget_s: float,
    rng: random.Random,
    rest: Callable[[], None] | None,
) -> None:
    contestants = [
        Contestant(
            sample=kernels[side].sample,
            policy=policy(budget_s, contest.halves[side].case, kernels[side].facts),
        )
        for side in (0, 1)
    ]
    between = {} if rest is None else {"rest": rest}
    outcomes = sample_in_turn(contestants, rng, **between)
    for outcome in outcomes:
        if outcome.error is not None:
            raise outcome.error
    a, b = outcomes[0].samples, outcomes[1].samples
    if a is None or b is None or not a.by_round().keys() & b.by_round().keys():
        contest.found.reason = "no round in common in which neither was disturbed"
        return
    _add(contest.found, a, b)
    contest.found.facts[:] = [kernels[side].facts for side in (0, 1)]


def _add(found: Passes, a: Samples, b: Samples) -> None:
    found.logs.append(math.log(paired_ratio(b.by_round(), a.by_round()).median))
    first, second = a.cycles_by_round(), b.cycles_by_round()
    if first.keys() & second.keys():
        found.cycles.append(math.log(paired_ratio(second, first).median))
    for number, samples in enumerate((a, b)):
        found.seconds[number].append(median(samples.by_round().values()))
        if samples.clock_hz is not None:
            found.clocks[number].append(samples.clock_hz)
