"""Two stored runs: ratios of medians, with the variance between runs in their intervals.

With y the logarithm of a row's ratio of medians,

    y = change + common + own,

where ``common`` is what the whole second run was faster or slower (the clock, a neighbour on the
machine) and ``own`` is what this row differs by from run to run. The variance of ``own`` is twice
that of one run (:mod:`pydlbench.compare.statistics`) and that of both medians within their runs.
The common part is estimated by the weighted median of all rows and taken off where that is safe:
with five rows or more, in two runs of the same environment, and as long as it is no larger than
such parts are. Where it is not taken off its variance is in each row's.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any, Final

import numpy as np

from pydlbench.compare.comparison import (
    SAME,
    UNCLEAR,
    ComparedRow,
    Comparison,
    Estimate,
    Settings,
    bounded,
)
from pydlbench.compare.environment import OTHER_CLOCK, differences
from pydlbench.compare.statistics import (
    PRIOR_FREEDOM,
    Evidence,
    Scatter,
    compute_bound,
    episodes,
    judge,
    prior,
)

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from numpy.typing import NDArray

    from pydlbench.compare.match import Matching, Pair
    from pydlbench.compare.rows import Row, Side

__all__ = ["compare"]

# Of the medians' intervals within their runs: all commands' default level.
_WITHIN: Final = 1.959964
_LEAST_ROWS: Final = 5
# A common part beyond so many standard deviations is no drift any more.
_DRIFT: Final = 2.0
# The median of |x| of a normal distribution, in standard deviations.
_NORMAL: Final = 0.674490
_NO_INTERVAL: Final = "too few samples for an interval"
# Of a row with itself: whatever disturbed it, and however runs differ.
_ITSELF: Final = Estimate(ratio=1.0, ci_low=1.0, ci_high=1.0, verdict=SAME, p=1.0)
_CONTENDED: Final = "other work disturbed it"
_TWO_READINGS: Final = "not the clock alone bounds it, and time and cycles say different things"


def compare(
    a: Side,
    b: Side,
    matching: Matching,
    settings: Settings | None = None,
    scatter: Callable[[Scatter, Sequence[Pair]], Scatter] | None = None,
) -> Comparison:
    """Compare two stored runs.

    Args:
        a: the first one.
        b: the second one.
        matching: of both.
        settings: what a verdict takes.
        scatter: returns the scatter with what earlier runs tell, given what is assumed.
    """
    settings = settings or Settings()
    pairs = matching.pairs
    assumed = prior([pair.a for pair in pairs])
    known = assumed if scatter is None else scatter(assumed, pairs)
    found = differences(a, b, pairs)
    alike = matching.axis is None and not any(one.counts for one in found)
    log, within, against = _logs(pairs)
    disturbed = episodes((a, b), [pair.a for pair in pairs])
    evidence, drift = _evidence(log, within, against, known, alike, disturbed)
    times = judge(evidence, settings)
    clocks = _clocks(pairs)
    lacking = [
        "no clock was read" if math.isnan(clock) else reason
        for clock, reason in zip(clocks.tolist(), against, strict=True)
    ]
    in_cycles, cycle_drift = _evidence(log + clocks, within, lacking, known, alike, disturbed)
    cycles = judge(in_cycles, settings)
    by_clock = alike and _only_clocks(clocks)
    geomean = _geomean(log, within, against, known, settings)
    geomean_cycles = _geomean(log + clocks, within, lacking, known, settings)
    if by_clock:
        bound = compute_bound([pair.a for pair in pairs]).tolist()
        cycles = list(map(_agreed, times, cycles, bound))
        if geomean is not None and geomean_cycles is not None:
            geomean_cycles = _agreed(geomean, geomean_cycles, all(bound))
    if (a.run_id, a.created_utc) == (b.run_id, b.created_utc):
        itself = [pair.a == pair.b for pair in pairs]
        times, cycles = (
            [_ITSELF if same else one for same, one in zip(itself, estimates, strict=True)]
            for estimates in (times, cycles)
        )
        if all(itself):
            geomean, geomean_cycles = _ITSELF, geomean_cycles and _ITSELF
    rows = [
        ComparedRow(pair.a, pair.b, time, None if math.isnan(clock) else cycle, by_clock)
        for pair, time, cycle, clock in zip(pairs, times, cycles, clocks.tolist(), strict=True)
    ]
    taken = cycle_drift if by_clock else drift
    return Comparison(
        a=a,
        b=b,
        matching=matching,
        rows=rows,
        geomean=geomean,
        geomean_cycles=geomean_cycles,
        differences=found,
        drift=None if taken is None else bounded(taken),
        settings=settings,
        repeats=known.runs,
        in_cycles=by_clock,
    )


def _logs(pairs: Sequence[Pair]) -> tuple[NDArray[Any], NDArray[Any], list[str | None]]:
    """Return ratios, their standard errors within the runs, and what speaks against rows."""
    first, second = _times([pair.a for pair in pairs]), _times([pair.b for pair in pairs])
    log = np.log(second[0] / first[0])
    error = np.hypot(_error(first), _error(second))
    disturbed = [bool(pair.a.contended or pair.b.contended) for pair in pairs]
    against = [
        _CONTENDED if contended else _NO_INTERVAL if math.isnan(one) else None
        for contended, one in zip(disturbed, error.tolist(), strict=True)
    ]
    return log, error, against


def _times(rows: Sequence[Row]) -> NDArray[Any]:
    """Return medians, lower and upper ends as three lines."""
    values = [(row.median, row.ci_low, row.ci_high) for row in rows]
    return np.array(values, dtype=float).reshape(-1, 3).T


def _error(times: NDArray[Any]) -> NDArray[Any]:
    with np.errstate(all="ignore"):
        wide = np.log(times[2] / times[1]) / 2 / _WITHIN
    return np.where(np.isfinite(wide), wide, np.nan)


def _clocks(pairs: Sequence[Pair]) -> NDArray[Any]:
    """Return the logarithm of B's clock over A's; NaN where one is not known."""
    values = [(pair.b.clock_hz, pair.a.clock_hz) for pair in pairs]
    found = np.array(values, dtype=float).reshape(-1, 2).T
    with np.errstate(all="ignore"):
        logs: NDArray[Any] = np.log(found[0] / found[1])
    return np.where(np.isfinite(logs), logs, np.nan)


def _only_clocks(clocks: NDArray[Any]) -> bool:
    """Whether the second run's clock was another one."""
    known = clocks[~np.isnan(clocks)]
    return len(known) > 0 and abs(float(np.median(known))) > OTHER_CLOCK


def _agreed(time: Estimate, cycles: Estimate, bound: bool) -> Estimate:
    """Return the cycles' estimate; without a verdict where it may be the clock that gave it.

    A kernel that waits for memory takes the same time at half the clock, and half the cycles: its
    cycles tell nothing where its time does not tell the same.
    """
    if bound or cycles.verdict in (time.verdict, UNCLEAR):
        return cycles
    return cycles._replace(verdict=UNCLEAR, reason=_TWO_READINGS)


def _evidence(
    log: NDArray[Any],
    within: NDArray[Any],
    against: Sequence[str | None],
    scatter: Scatter,
    alike: bool,
    disturbed: NDArray[Any],
) -> tuple[Evidence, float | None]:
    """Return the evidence, and the common part that was taken off."""
    usable = np.array([reason is None for reason in against], dtype=bool)
    own = np.sqrt(2 * scatter.rows**2 + np.nan_to_num(within) ** 2)
    log = np.where(np.isnan(log), 0.0, log)
    if alike and usable.sum() >= _LEAST_ROWS:
        common = _weighted_median(log[usable], 1 / own[usable])
        if abs(common) <= _DRIFT * math.sqrt(2) * scatter.run:
            rest = log - common
            scale = _scale(rest[usable] / own[usable])
            # Of a median: pi / 2 times the variance of the mean.
            known = math.pi / 2 / float(np.sum(1 / own[usable] ** 2))
            sd = scale * np.sqrt(own**2 + known)
            return Evidence(log, rest, sd, scatter.freedom, against, disturbed), common
    sd = np.sqrt(own**2 + 2 * scatter.run**2)
    return Evidence(log, log, sd, scatter.freedom, against, disturbed), None


def _scale(rests: NDArray[Any]) -> float:
    """Return by how much these rows scatter more, or less, than they should.

    The median of their distances is used: rows that have really changed hardly move it. It is worth
    half as many degrees of freedom as there are rows, and is held against the assumed one.
    """
    seen = float(np.median(np.abs(rests))) / _NORMAL
    weight = len(rests) / 2
    return math.sqrt((PRIOR_FREEDOM + weight * seen**2) / (PRIOR_FREEDOM + weight))


def _weighted_median(values: NDArray[Any], weights: NDArray[Any]) -> float:
    order = np.argsort(values, kind="stable")
    reached = np.cumsum(weights[order])
    half = reached[-1] / 2
    place = int(np.searchsorted(reached, half))
    if place + 1 < len(order) and reached[place] == half:
        return float((values[order[place]] + values[order[place + 1]]) / 2)
    return float(values[order[place]])


def _geomean(
    log: NDArray[Any],
    within: NDArray[Any],
    against: Sequence[str | None],
    scatter: Scatter,
    settings: Settings,
) -> Estimate | None:
    """Return the geometric mean of all ratios that can have a verdict, the common part in it."""
    usable = np.array([reason is None for reason in against], dtype=bool)
    count = int(usable.sum())
    if not count:
        return None
    own = 2 * scatter.rows[usable] ** 2 + within[usable] ** 2
    sd = math.sqrt(2 * scatter.run**2 + float(np.sum(own)) / count**2)
    mean = np.array([float(np.mean(log[usable]))])
    evidence = Evidence(
        log=mean,
        rest=mean,
        sd=np.array([sd]),
        freedom=np.array([int(np.min(scatter.freedom[usable]))]),
        against=[None],
    )
    return judge(evidence, settings)[0]
