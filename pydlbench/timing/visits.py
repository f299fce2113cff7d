"""Visits: a kernel is timed several times over a run, each time in a process of its own.

The samples of one process at one time share what a repetition tomorrow does not: the layout of its
addresses, the pages it was given, the neighbours of those seconds. However well they agree, their
interval says nothing of the next process. So a row's budget is split: the medians of its visits,
which lie apart in time and in memory, are what its interval is made of.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from pydlbench.timing.guards import combine
from pydlbench.timing.procedure import Round, Samples
from pydlbench.timing.statistics import median, median_interval

if TYPE_CHECKING:
    from collections.abc import Sequence

    from pydlbench.timing.policy import Policy

__all__ = ["joined", "visit_of", "visit_policy"]

# Rounds of a visit, at least; a ratio has its interval from the visits, not from these.
_ROUNDS = 2
# Keeps the numbers of the rounds of two visits apart.
_APART = 1_000_000


def visit_policy(policy: Policy, visits: int) -> Policy:
    """Return the constants of one of several visits: all of them have the budget of a row.

    Args:
        policy: of the row.
        visits: how many there are.
    """
    if visits == 1:
        return policy
    budget_s = policy.budget_s / visits
    return replace(
        policy,
        budget_s=budget_s,
        # Half a percent within each of six visits leaves a fifth of one to their median.
        min_samples=policy.floor_samples,
        floor_samples=policy.slow_samples,
        min_rounds=_ROUNDS,
        least_rounds=0,
        chunk_s=min(policy.chunk_s, budget_s / _ROUNDS),
        warmup_limit_s=min(policy.warmup_limit_s, budget_s),
    )


def joined(visits: Sequence[Samples]) -> Samples:
    """Return the samples of a row's visits as one.

    The row is contended where more than half of the visits were: fewer do not move the median.

    Args:
        visits: at least one, in the order in which they were made.

    Raises:
        ValueError: there is none.
    """
    if not visits:
        raise ValueError("no visits to join")
    if len(visits) == 1:
        return visits[0]
    contended = [one for one in visits if one.contended]
    unsteady = [one for one in visits if not one.warmup.steady]
    clocks = [one.clock_hz for one in visits if one.clock_hz is not None]
    faults = [one.faults for one in visits if one.faults is not None]
    busy = [one.busy for one in visits if one.busy is not None]
    most = 2 * len(contended) > len(visits)
    spent_s = sum(one.spent_s for one in visits)
    return Samples(
        seconds=tuple(x for one in visits for x in one.seconds),
        all_seconds=tuple(x for one in visits for x in one.all_seconds),
        discarded=sum(one.discarded for one in visits),
        clock_hz=median(clocks) if clocks else None,
        contended=most,
        contention_reason=contended[0].contention_reason if most else None,
        stop_reason="visits",
        stop_detail=f"{len(visits)} visits, each in processes of its own, in {spent_s:.3g} s",
        warmup=(unsteady or visits)[0].warmup,
        rounds=tuple(
            Round(index=number * _APART + one.index, seconds=one.seconds, clock_hz=one.clock_hz)
            for number, visit in enumerate(visits)
            for one in visit.rounds
        ),
        inner=visits[0].inner,
        retries=sum(one.retries for one in visits),
        spent_s=spent_s,
        confidence=visits[0].confidence,
        gpu=combine(one.gpu for one in visits if one.gpu is not None),
        faults=median(faults) if faults else None,
        busy=median(busy) if busy else None,
        visits=tuple(median(one.seconds) for one in visits),
        within=_within(visits),
    )


def visit_of(round_index: int) -> int:
    """Return the number of the visit that a round of joined samples belongs to."""
    return round_index // _APART


def _within(visits: Sequence[Samples]) -> float | None:
    """The relative half width of the median's interval within a visit: the median over them."""
    widths = []
    for one in visits:
        interval = median_interval(one.seconds, one.confidence)
        middle = median(one.seconds)
        if interval is not None and middle > 0:
            widths.append((interval.high - interval.low) / 2 / middle)
    return median(widths) if widths else None
