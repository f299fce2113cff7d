"""Visits: a kernel is timed several times over a run, in memory and processes of its own.

The samples of one process at one time share what a repetition tomorrow does not: the layout of its
addresses, the pages it was given, the neighbours of those seconds. However well they agree, their
interval says nothing of the next process. So a row's budget is split: the medians of its visits,
which lie apart in time and in memory, are what its interval is made of, and what the stopping rule
looks at. From six visits on there is an interval at 95 % (:mod:`pydlbench.timing.statistics`).

A visit beside which somebody else used the cores (``Samples.contended``: canary and counters, never
its times) is taken again in a later lap, and left out once there are undisturbed ones enough.
"""

from __future__ import annotations

import math
from array import array
from dataclasses import replace
from typing import TYPE_CHECKING, Final

from pydlbench.timing.guards import combine
from pydlbench.timing.procedure import Round, Samples
from pydlbench.timing.statistics import Ratio, median, median_interval

if TYPE_CHECKING:
    from collections.abc import Collection, Mapping

    from pydlbench.timing.policy import Policy

#: The fewest that have an interval at 95 %.
VISITS: Final = 6
#: Seconds of sampling, all visits together, where nobody says how many: of a layer's row, and of a
#: framework's step, which is some hundred times as long.
LAYER_BUDGET_S: Final = 1.0
STEP_BUDGET_S: Final = 10.0
# Rounds of a visit, at least. Six samples, the fewest with an interval, of a kernel of 10 ms.
_ROUNDS = 3
# Where kernels take turns, each chunk is waited for by all others and by threads that fall asleep,
# and begins with data that has to be brought back. What is repeated is the visit.
_ROUNDS_IN_TURN = 1
# And at most so many: a third one would cost all that take turns as much as a further visit, which
# tells more.
_MOST_IN_TURN = 2
# Four slices of the scheduler, as for the summands of an estimate (``estimate_policy``).
_CHUNK_S = 0.015
# What is known better within a visit than the visits agree is of no use to their median.
_HALF_WIDTH = 0.02
# Keeps the numbers of the rounds of two visits apart.
_APART = 1_000_000


def visit_policy(policy: Policy, visits: int, *, alone: bool = True) -> Policy:
    """Return the constants of one of several visits: all of them have the budget of a row.

    Args:
        policy: of the row.
        visits: how many there are to be.
        alone: no other kernel takes turns with it.
    """
    if visits == 1:
        return policy
    budget_s = policy.budget_s / visits
    rounds = _ROUNDS if alone else _ROUNDS_IN_TURN
    return replace(
        policy,
        budget_s=budget_s,
        half_width=max(policy.half_width, _HALF_WIDTH),
        min_samples=policy.floor_samples,
        # A kernel that is slower than the budget has one sample in a visit, and visits enough.
        floor_samples=policy.slow_samples,
        slow_samples=1,
        min_rounds=rounds,
        least_rounds=0,
        most_rounds=None if alone else _MOST_IN_TURN,
        chunk_s=min(policy.chunk_s, _CHUNK_S, budget_s / rounds),
        chunk_samples=math.ceil(policy.floor_samples / rounds),
        # Just above the 0.8 ms of a kernel thread, as two ticks are a fifth of a tenth of a second.
        chunk_wait_floor_s=0.001,
        total_steal_ticks=2,
        # The kernel has run a moment ago, when it was made ready.
        warmup_window=2,
        warmup_tolerance=max(policy.warmup_tolerance, 0.05),
        warmup_limit_s=min(policy.warmup_limit_s, budget_s),
        # A visit that was disturbed all the same is made again in a later lap.
        max_retries=1,
    )


def more_wanted(taken: Mapping[int, Samples], policy: Policy, visits: int, cost_s: float) -> bool:
    """Whether a row wants another visit.

    It does until it has ``visits``, until disturbed ones have been made up for
    (:func:`taken_again`), and then until the interval of their medians is as narrow as
    the policy asks for, or the budget has no room for another one.

    Args:
        taken: its visits.
        policy: of the row.
        visits: how many there are at least.
        cost_s: wall seconds of these visits, what was made ready for them anew included.
    """
    if len(taken) < visits or taken_again(taken.values(), visits):
        return True
    if visits == 1 or cost_s * (len(taken) + 1) / len(taken) > policy.budget_s:
        return False
    return not _is_precise(_counted(taken, visits), policy.confidence, policy.half_width)


def taken_again(taken: Collection[Samples], visits: int) -> bool:
    """Whether another visit is wanted because some were disturbed.

    Up to half as many more are made as there were to be, and none where they would not do: a
    machine that is shared for most of the time is shared in the next visit, too.

    Args:
        taken: the visits.
        visits: how many there are to be.
    """
    lacking = visits - sum(not one.contended for one in taken)
    return 0 < lacking <= visits + visits // 2 - len(taken)


def _counted(taken: Mapping[int, Samples], visits: int) -> dict[int, Samples]:
    """Return the visits without the disturbed ones, where enough are left; else all of them."""
    clean = {lap: one for lap, one in taken.items() if not one.contended}
    return clean if len(clean) >= visits else dict(taken)


def _is_precise(taken: Mapping[int, Samples], confidence: float, half_width: float) -> bool:
    medians = [median(one.seconds) for one in taken.values()]
    interval = median_interval(medians, confidence)
    return interval is not None and interval.half_width(median(medians)) <= half_width


def joined(visits: Mapping[int, Samples], wanted: int = 1, processes: int = 1) -> Samples:
    """Return the samples of a row's visits as one.

    Where as many as were wanted are undisturbed, the others are left out, as their samples are that
    were discarded. Else all stay, and the row is contended where half of them or more were: fewer
    do not move the median.

    Args:
        visits: at least one, by the number of the lap in which it was made.
        wanted: how many there were to be; with fewer the row counts as interrupted.
        processes: that they were made in.

    Raises:
        ValueError: there is none.
    """
    if not visits:
        raise ValueError("no visits to join")
    counted = _counted(visits, wanted)
    left_out = [one for lap, one in visits.items() if lap not in counted]
    taken = list(counted.values())
    rounds = tuple(
        Round(index=lap * _APART + one.index, seconds=one.seconds, clock_hz=one.clock_hz)
        for lap, visit in counted.items()
        for one in visit.rounds
    )
    if len(taken) == wanted == 1:
        return replace(taken[0], rounds=rounds)
    contended = [one for one in taken if one.contended]
    unsteady = [one for one in taken if not one.warmup.steady]
    clocks = [one.clock_hz for one in taken if one.clock_hz is not None]
    faults = [one.faults for one in taken if one.faults is not None]
    busy = [one.busy for one in taken if one.busy is not None]
    most = 2 * len(contended) >= len(taken)
    spent_s = sum(one.spent_s for one in visits.values())
    again = f", {len(left_out)} more that were disturbed" if left_out else ""
    early = len(taken) < wanted
    return Samples(
        seconds=array("d", (x for one in taken for x in one.seconds)),
        all_seconds=array("d", (x for one in visits.values() for x in one.all_seconds)),
        discarded=sum(one.discarded for one in taken)
        + sum(len(one.all_seconds) for one in left_out),
        clock_hz=median(clocks) if clocks else None,
        contended=most,
        contention_reason=contended[0].contention_reason if most else None,
        stop_reason="interrupted" if early else "visits",
        stop_detail=(
            f"{len(taken)} of {wanted} visits made, {spent_s:.3g} s"
            if early
            else f"{len(taken)} visits in {_number(processes)}{again}, {spent_s:.3g} s"
        ),
        # One in which the machine did not settle is one of several; most tell of the row.
        warmup=(unsteady if 2 * len(unsteady) > len(taken) else taken)[0].warmup,
        rounds=rounds,
        inner=taken[0].inner,
        retries=sum(one.retries for one in taken),
        spent_s=spent_s,
        confidence=taken[0].confidence,
        gpu=combine(one.gpu for one in taken if one.gpu is not None),
        gate_timeouts=sum(one.gate_timeouts for one in taken),
        faults=median(faults) if faults else None,
        busy=median(busy) if busy else None,
        visits=tuple(median(one.seconds) for one in taken),
        within=_within(taken),
        processes=processes,
        disturbed=len(contended),
    )


def _number(processes: int) -> str:
    return "one process" if processes == 1 else f"{processes} processes"


def visit_of(round_index: int) -> int:
    """Return the lap of the visit that a round of joined samples belongs to."""
    return round_index // _APART


def visit_ratio(
    first: Mapping[int, float], second: Mapping[int, float], confidence: float
) -> Ratio:
    """Return the ratio of two rows that were visited beside each other, with that of the visits.

    Rounds of one visit share its processes: what is repeated is the visit.

    Args:
        first: seconds by round of joined samples.
        second: likewise; some round is in both.
        confidence: level of the interval.

    Raises:
        ValueError: they share no round.
    """
    found: dict[int, list[float]] = {}
    for index in first.keys() & second.keys():
        found.setdefault(visit_of(index), []).append(first[index] / second[index])
    medians = [median(one) for one in found.values()]
    interval = median_interval(medians, confidence)
    return Ratio(median=median(medians), interval=interval, n=len(medians))


def _within(visits: list[Samples]) -> float | None:
    """The relative half width of the median's interval within a visit: the median over them."""
    widths = []
    for one in visits:
        interval = median_interval(one.seconds, one.confidence)
        middle = median(one.seconds)
        if interval is not None and middle > 0:
            widths.append((interval.high - interval.low) / 2 / middle)
    return median(widths) if widths else None
