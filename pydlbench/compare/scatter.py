"""How far a row's ratio of two runs is off although nothing has changed.

Two things tell it, and nothing is assumed beside them. The medians of a row's visits
(:mod:`pydlbench.timing.visits`): processes, pages and minutes of their own, within one run. And
replicates, runs of the same code on the same machine in the same environment: hours and days of
their own, and the choice among kernels of nearly the same speed. Both are few, so that a row's own
variance is known badly; that of rows of the same kind tells what is to be expected of it.

Everything is in logarithms of seconds; ``NaN`` stands for what nobody has measured.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any, Final

import numpy as np

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from numpy.typing import NDArray

    from pydlbench.compare.match import Pair
    from pydlbench.compare.rows import Row

#: What rows have in common is their median; of fewer, the rows themselves are most of it.
LEAST_ROWS: Final = 5
# Of a variance by kind: of two rows, neither says which of them is the unusual one.
_LEAST_OF_KIND: Final = 3
# The median of |x| of a normal distribution, in standard deviations.
_NORMAL: Final = 0.674490
# A normal value is beyond so many standard deviations once in 370.
_FAR: Final = 3.0
# The same for what only one tail has.
_ONE_IN_100: Final = 2.326348


# -----------------------------------------------------------------------------
# Variances of many rows, each known badly.


def kinds_of(pairs: Sequence[Pair]) -> NDArray[Any]:
    """Return which rows scatter alike: the same kind of layer or step, on the same backend.

    Those that other work disturbed are kinds of their own: they tell nothing of the others.
    """
    return np.array(
        [
            f"{pair.a.kind} {pair.a.backend} {pair.a.mode} {pair.a.cache} {is_disturbed(pair)}"
            for pair in pairs
        ]
    )


def is_disturbed(pair: Pair) -> bool:
    """Whether other work disturbed either side."""
    return bool(pair.a.contended or pair.b.contended)


def moderated(
    sums: NDArray[Any], freedom: NDArray[Any], kinds: NDArray[Any]
) -> tuple[NDArray[Any], NDArray[Any]]:
    """Return each row's variance, made steadier by those of the other rows of its kind.

    An empirical Bayes estimate: the true variances of a kind are taken to scatter like those of an
    inverse chi-squared distribution, whose middle and width are read from the rows themselves
    (Smyth, Stat. Appl. Genet. Mol. Biol. 3 (2004) 3), both by medians, so that a few unusual rows
    change neither. Where rows differ among each other as much as chance has it, each gets the
    variance that they share; where they differ far more, each keeps its own. A row that scatters
    beyond what its kind explains keeps its own as well (Phipson et al., Ann. Appl. Stat. 10 (2016)
    946): one of whose visits every other was disturbed is no usual row with bad luck.

    Args:
        sums: sums of squared deviations.
        freedom: their degrees of freedom; a row with none gets what its kind shares.
        kinds: of the rows.

    Returns:
        Variances, NaN where nothing tells; their degrees of freedom, whole numbers.
    """
    with np.errstate(divide="ignore", invalid="ignore"):
        variance = np.where(freedom > 0, sums / freedom, np.nan)
    total = freedom.astype(int)
    for kind in np.unique(kinds):
        rows = np.flatnonzero(kinds == kind)
        known = rows[(freedom[rows] > 0) & (sums[rows] > 0)]
        if len(known) < _LEAST_OF_KIND:
            continue
        shared, weight = _shared(variance[known], freedom[known])
        if weight < 1:
            continue
        most = shared * _chi2(np.maximum(freedom[rows], 1), _ONE_IN_100)
        usual = rows[sums[rows] <= most]
        variance[usual] = (weight * shared + sums[usual]) / (weight + freedom[usual])
        total[usual] = (weight + freedom[usual]).astype(int)
    return variance, total


def _shared(variance: NDArray[Any], freedom: NDArray[Any]) -> tuple[float, float]:
    """Return the variance that rows share, and how many degrees of freedom it is worth to each."""
    logs = np.log(variance) - np.log(_median_of_chi2(freedom))
    middle = float(np.median(logs))
    spread = (float(np.median(np.abs(logs - middle))) / _NORMAL) ** 2
    # Of the spread, the rows' own few degrees of freedom explain so much.
    own = [_trigamma(one / 2) for one in freedom.tolist()]
    rest = spread - float(np.median(own))
    # The middle is a median, and itself known no better than so.
    most = _freedom(math.pi / 2 * float(np.mean(own)) / len(variance))
    weight = min(most, _freedom(rest))
    if weight < 1:
        return math.exp(middle), weight
    return math.exp(middle) * float(_median_of_chi2(np.array([weight]))[0]), weight


def _median_of_chi2(freedom: NDArray[Any]) -> NDArray[Any]:
    """Median of chi-squared over its degrees of freedom (Wilson and Hilferty, 1931)."""
    found: NDArray[Any] = _chi2(freedom, 0.0) / freedom
    return found


def _chi2(freedom: NDArray[Any], normal: float) -> NDArray[Any]:
    """Chi-squared that is exceeded as often as a normal value exceeds so many of its deviations."""
    part = 2 / (9 * freedom)
    found: NDArray[Any] = freedom * (1 - part + normal * np.sqrt(part)) ** 3
    return found


def _trigamma(x: float) -> float:
    """Second derivative of the logarithm of the gamma function, x > 0."""
    found = 0.0
    while x < 6:
        found += 1 / x**2
        x += 1
    return found + 1 / x + 1 / (2 * x**2) + 1 / (6 * x**3) - 1 / (30 * x**5)


def _freedom(spread: float) -> float:
    """Return the degrees of freedom of variances whose logarithms have this variance."""
    low, high = 1e-3, 1e9
    for _ in range(60):
        half = math.sqrt(low * high)
        low, high = (half, high) if _trigamma(half / 2) > spread else (low, half)
    return high


# -----------------------------------------------------------------------------
# Visits: processes of their own, within a run.


def visits_of(rows: Sequence[Row]) -> NDArray[Any]:
    """Return the logarithms of the rows' visits, a line for each, NaN behind the last.

    A row that was visited once has its median alone.
    """
    found = [
        (row.median,) if row.visit_s is None else np.frombuffer(row.visit_s, dtype="<f8")
        for row in rows
    ]
    logs = np.full((len(rows), max(map(len, found), default=1)), np.nan)
    for number, one in enumerate(found):
        logs[number, : len(one)] = one
    with np.errstate(divide="ignore", invalid="ignore"):
        logs = np.log(logs)
    return np.where(np.isfinite(logs), logs, np.nan)


def of_visits(
    sides: Sequence[NDArray[Any]], kinds: NDArray[Any]
) -> tuple[NDArray[Any], NDArray[Any]]:
    """Return the variance of the logarithm of each ratio of medians, as the visits tell it.

    Args:
        sides: :func:`visits_of` either run.
        kinds: of the rows.

    Returns:
        Variances, NaN where both sides have a single visit and no other row of the kind has more;
        their degrees of freedom.
    """
    rows = len(kinds)
    sums, freedom, factor = np.zeros(rows), np.zeros(rows), np.zeros(rows)
    for visits in sides:
        rest = _without_laps(visits)
        count = np.sum(~np.isnan(rest), axis=1)
        mean = np.nansum(rest, axis=1) / np.maximum(count, 1)
        sums += np.nansum((rest - mean[:, None]) ** 2, axis=1)
        freedom += np.maximum(count - 1, 0)
        factor += _of_median(count)
    variance, freedom = moderated(sums, freedom, kinds)
    return variance * factor, freedom


def _without_laps(visits: NDArray[Any]) -> NDArray[Any]:
    """Take off what all rows' visits of one lap over the run have in common.

    What the machine does to a lap is in all of its rows, and in the run's common part therefore;
    with it in the rows' own scatter it would count twice.
    """
    several = np.sum(~np.isnan(visits), axis=1) > 1
    counts = np.sum(~np.isnan(visits[several]), axis=0)
    shared = counts >= LEAST_ROWS
    if not shared.any():
        return visits
    rest = visits[several] - np.nanmedian(visits[several], axis=1)[:, None]
    found = visits.copy()
    found[np.ix_(several, shared)] -= np.nanmedian(rest[:, shared], axis=0)
    return found


def _of_median(count: NDArray[Any]) -> NDArray[Any]:
    """Variance of the median of ``count`` normal values over that of one of them."""
    # Its asymptote pi / 2n, corrected so that it is 1 for a single one (within 3 % for odd counts).
    found: NDArray[Any] = math.pi / (2 * (np.maximum(count, 1) - 1) + math.pi)
    return found


# -----------------------------------------------------------------------------
# Replicates: runs of their own.


@dataclass(frozen=True, slots=True, kw_only=True)
class Replicates:
    """What runs of the same thing differ by.

    Attributes:
        rows: variance of each row's logarithm from run to run, without what a whole run has in
            common; NaN where nothing tells.
        freedom: its degrees of freedom.
        run: variance of what a whole run has in common; None where too few tell.
        run_freedom: its degrees of freedom.
        count: of how many runs this was learnt.
    """

    rows: NDArray[Any]
    freedom: NDArray[Any]
    run: float | None = None
    run_freedom: int = 0
    count: int = 0


def of_replicates(
    groups: Sequence[Sequence[Mapping[Any, float]]],
    keys: Sequence[Sequence[Any]],
    kinds: NDArray[Any],
) -> Replicates:
    """Return what replicates tell.

    Args:
        groups: runs that are repetitions of each other; of each run, seconds by key.
        keys: of each group, those of the rows.
        kinds: of the rows; a row without replicates is expected to scatter as its kind does.
    """
    sums, freedom = np.zeros(len(kinds)), np.zeros(len(kinds))
    run, run_freedom, count = 0.0, 0, 0
    for runs, own in zip(groups, keys, strict=True):
        if len(runs) < 2 or not len(kinds):
            continue
        logs = np.log([[seconds.get(key, np.nan) for key in own] for seconds in runs])
        counts = np.sum(~np.isnan(logs), axis=0)
        logs[:, counts < 2] = np.nan
        if not (counts >= 2).any():
            continue
        count += len(runs)
        rest = logs - np.nansum(logs, axis=0) / np.maximum(counts, 1)
        told = np.sum(~np.isnan(rest), axis=1) >= LEAST_ROWS
        common = np.zeros(len(runs))
        common[told] = np.nanmedian(rest[told], axis=1)
        if told.sum() >= 2:
            run += float(np.sum((common[told] - np.mean(common[told])) ** 2))
            run_freedom += int(told.sum()) - 1
        rest = rest - common[:, None]
        rest = rest - np.nansum(rest, axis=0) / np.maximum(counts, 1)
        sums += np.nansum(rest**2, axis=0)
        freedom += np.maximum(counts - 1, 0)
    if not freedom.any():
        return Replicates(rows=np.full(len(kinds), np.nan), freedom=freedom.astype(int))
    rows, freedom = moderated(sums, freedom, kinds)
    return Replicates(
        rows=rows,
        freedom=freedom,
        run=run / run_freedom if run_freedom else None,
        run_freedom=run_freedom,
        count=count,
    )


def between_runs(rest: NDArray[Any], within: NDArray[Any]) -> tuple[float, int]:
    """Return the variance that visits do not show, from how far rows of two runs are apart.

    Most rows have not changed, so that most ratios should lie as near to their common part as the
    visits say. Where they lie farther, every row has a variance between runs besides: that which
    makes their sum of squares what chance makes it on the average (Paule and Mandel, J. Res. Natl.
    Bur. Stand. 87 (1982) 377). Rows that are far away by then have changed, or may have: they are
    left out.

    Args:
        rest: logarithmic ratios without their common part.
        within: their variances.

    Returns:
        The variance, 0 where the visits explain all, and how many degrees of freedom the rows are
        worth: no row's scatter between runs is known better, whatever its visits say.
    """
    distance = np.abs(rest)
    found = _solved(lambda more: np.median(distance / np.sqrt(within + more)) <= _NORMAL)
    kept = np.zeros(len(rest), dtype=bool)
    freedom = 1
    # The median knows little of few rows: what is near by what has been found is let in again.
    while (more := kept | (distance <= _FAR * np.sqrt(within + found))).sum() > kept.sum():
        kept = more
        freedom = max(1, int(kept.sum()) - 1)  # the common part was taken from the same rows
        found = max(found, _solved(partial(_as_small, rest[kept] ** 2, within[kept], freedom)))
    return found, freedom


def _as_small(squares: NDArray[Any], within: NDArray[Any], usual: float, between: float) -> bool:
    return float(np.sum(squares / (within + between))) <= usual


def _solved(enough: Callable[[float], bool]) -> float:
    """Return the smallest variance that is enough, 0 where none is needed."""
    if enough(0.0):
        return 0.0
    low, high = 1e-12, 1e-12
    while not enough(high):
        low, high = high, 4 * high
    for _ in range(40):
        middle = math.sqrt(low * high)
        low, high = (low, middle) if enough(middle) else (middle, high)
    return high
