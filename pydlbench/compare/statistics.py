"""From logarithmic ratios and their standard deviations to intervals and verdicts."""

from __future__ import annotations

import math
from collections.abc import Sequence
from functools import lru_cache
from typing import Any, Final, NamedTuple

import numpy as np
from numpy.typing import NDArray

from pydlbench.compare.comparison import (
    ALPHA,
    CONFIDENCE,
    FASTER,
    SAME,
    SLOWER,
    UNCLEAR,
    Estimate,
)

#: Degrees of freedom from which on Student's t is the normal distribution within 2 %.
MAX_FREEDOM: Final = 200
# With fewer repetitions a trimmed mean has a wider interval than the mean.
_LEAST_TRIMMED: Final = 10
# Degrees of freedom of the usual variance of a round, beside those of a repetition's own rounds.
_PRIOR_FREEDOM: Final = 4
# Clocks resolve no ratio below a millionth.
_LEAST_VARIANCE: Final = 1e-12
# Nearly the largest logarithm whose exponential is a finite float.
_MAX_LOG: Final = 700.0


# -----------------------------------------------------------------------------
# Student's t for whole degrees of freedom; arrays in, arrays out.


def two_sided(t: NDArray[Any], freedom: NDArray[Any]) -> NDArray[Any]:
    """Return the probability that Student's t is at least as far from zero.

    For whole degrees of freedom the distribution is a finite sum in the angle whose tangent is
    t / sqrt(n) (Abramowitz and Stegun, 26.7.3 and 26.7.4).

    Args:
        t: values, any sign; NaN gives NaN.
        freedom: degrees of freedom of each value: whole numbers, at least 1.
    """
    result = np.full(t.shape, np.nan)
    for n in np.unique(freedom):
        rows = freedom == n
        result[rows] = _tail(np.abs(t[rows]), int(n))
    return result


def _tail(t: NDArray[Any], n: int) -> NDArray[Any]:
    angle = np.arctan2(t, math.sqrt(n))
    sine, cosine = np.sin(angle), np.cos(angle)
    odd = n % 2
    inner = np.zeros_like(t)
    term = cosine.copy() if odd else np.ones_like(t)
    for k in range(odd, n - 1, 2):
        inner += term
        term *= cosine**2 * (k + 1) / (k + 2)
    inside = sine * inner
    if odd:
        inside = 2 / math.pi * (angle + inside)
    # Differences from one have no more precision; a probability is never exactly zero.
    return np.asarray(np.maximum(1 - inside, 1e-15))


@lru_cache(maxsize=4096)
def quantile(p: float, n: int) -> float:
    """Return the two-sided quantile of Student's t with ``n`` degrees of freedom.

    Its absolute value is smaller with probability ``p``: ``quantile(0.95, 10)`` is 2.228.
    """
    # Refine a bracket by a grid of 65 points at a time, each grid with one vectorised call.
    low, high = 0.0, 1.0
    while two_sided(np.array([high]), np.array([n]))[0] > 1 - p and high < 1e12:
        low, high = high, 32 * high
    for _ in range(8):
        grid = np.linspace(low, high, 65)
        place = int(np.argmax(two_sided(grid, np.full(grid.shape, n)) <= 1 - p)) or 64
        low, high = float(grid[place - 1]), float(grid[place])
    return high


def quantiles(p: float, freedom: NDArray[Any]) -> NDArray[Any]:
    """Return :func:`quantile` for each of many degrees of freedom."""
    result = np.empty(freedom.shape)
    for n in np.unique(freedom):
        result[freedom == n] = quantile(p, int(n))
    return result


# -----------------------------------------------------------------------------
# The scatter of rows.


class Scatter(NamedTuple):
    """Standard deviation of each row's logarithm, with its degrees of freedom.

    NaN and 0 where it is not known.
    """

    sd: NDArray[Any]
    freedom: NDArray[Any]


def pool_variances(sums: NDArray[Any], freedom: NDArray[Any], kinds: NDArray[Any]) -> Scatter:
    """Return the scatter of rows that have few values each.

    The few values of a row may be close by chance, so a row's variance is at least the pooled one
    of its kind. A row that scatters more keeps its own variance.

    Args:
        sums: sums of squared deviations of logarithms.
        freedom: degrees of freedom of each sum.
        kinds: kind of each row; rows of one kind scatter alike.
    """
    with np.errstate(divide="ignore", invalid="ignore"):
        variances = np.where(freedom > 0, sums / freedom, np.nan)
    variance, known = variances.copy(), freedom.astype(float)
    for kind in np.unique(kinds):
        rows = np.flatnonzero(kinds == kind)
        total = float(freedom[rows].sum())
        if not total:
            continue
        shared = float(sums[rows].sum()) / total
        usual = rows[~(variances[rows] > shared)]
        variance[usual], known[usual] = shared, total
    return Scatter(np.sqrt(variance), known)


class Spread(NamedTuple):
    """Differences between independent repetitions, row by row.

    Attributes:
        means: mean of each row's logarithms; 0 if a row has none.
        counts: number of repetitions of each row.
        rest: logarithms minus these means: repetitions x rows, NaN where a repetition lacks a row.
    """

    means: NDArray[Any]
    counts: NDArray[Any]
    rest: NDArray[Any]

    def of_means(self, usable: NDArray[Any]) -> Spread:
        """Return the spread of the mean over some rows, as that of a single row."""
        rest = self.rest[:, usable]
        rest = rest[~np.isnan(rest).all(axis=1)]  # a repetition may have none of these rows
        return spread_of(np.nanmean(rest, axis=1, keepdims=True))


def spread_of(logs: NDArray[Any]) -> Spread:
    """Return the spread of logarithms of times: repetitions x rows, NaN where there is none."""
    counts = np.sum(~np.isnan(logs), axis=0)
    means = np.nansum(logs, axis=0) / np.maximum(counts, 1)
    return Spread(means, counts, logs - means)


def trimmed_spread(logs: NDArray[Any], least: int = _LEAST_TRIMMED) -> Spread:
    """Return the spread of the means without the smallest and the largest fifth of the values.

    A neighbour on the machine may double the time of a single repetition. The scatter of a trimmed
    mean is that of the values with each fifth set to the next value, for as many repetitions as are
    left (Yuen, 1974, "The two-sample trimmed t for unequal population variances").

    Args:
        logs: logarithms of times, repetitions x rows. Rows with NaN are not trimmed.
        least: rows with fewer values are not trimmed.
    """
    spread = spread_of(logs)
    trimmed = len(logs) // 5
    if len(logs) < least or not trimmed:
        return spread
    for row in np.flatnonzero(spread.counts == len(logs)):
        values = np.sort(logs[:, row])
        low, high = values[trimmed], values[-trimmed - 1]
        limited = np.clip(logs[:, row], low, high)
        spread.means[row] = values[trimmed:-trimmed].mean()
        spread.counts[row] = len(logs) - 2 * trimmed
        spread.rest[:, row] = limited - limited.mean()
    return spread


def weighted_spread(logs: Sequence[NDArray[Any]]) -> Spread:
    """Return the spread of the mean of one row whose repetitions are known to different precision.

    Repetitions are weighted by the inverse of their variance: that of their own mean, and that
    between repetitions (DerSimonian and Laird, 1986, "Meta-analysis in clinical trials"). The
    scatter of the mean is that of the weighted values (Hartung and Knapp, 2001, "A refined method
    for the meta-analysis of controlled clinical trials with binary outcome").

    Args:
        logs: for each repetition the logarithms of its rounds, at least two. Their mean is trimmed.
    """
    rounds = [trimmed_spread(values[:, None], least=2) for values in logs]
    means = np.array([spread.means[0] for spread in rounds])
    counts = np.array([spread.counts[0] for spread in rounds])
    sums = np.array([(spread.rest**2).sum() for spread in rounds])
    # Few rounds may be close by chance: the usual variance of a round counts like some more rounds.
    freedom = counts - 1
    single = sums / freedom
    single = (_PRIOR_FREEDOM * np.median(single) + freedom * single) / (_PRIOR_FREEDOM + freedom)
    own = np.maximum(single / counts, _LEAST_VARIANCE)
    weights = 1 / own
    excess = (weights * (means - np.average(means, weights=weights)) ** 2).sum() - len(logs) + 1
    between = excess / (weights.sum() - (weights**2).sum() / weights.sum()) if len(logs) > 1 else 0
    weights = 1 / (own + max(0, between))
    mean = np.average(means, weights=weights)
    rest = (means - mean) * np.sqrt(weights / weights.mean())
    return Spread(np.array([mean]), np.array([len(logs)]), rest[:, None])


def freedom_of(spreads: Sequence[Spread]) -> int:
    """Return the number of repetitions that count, less one for each spread."""
    return sum(int(spread.counts.max(initial=1)) - 1 for spread in spreads)


def scatter_of(spreads: Sequence[Spread], kinds: NDArray[Any]) -> Scatter:
    """Return the scatter of the rows of a single repetition.

    Interference with a whole repetition is in all of its rows. So the degrees of freedom are
    limited by the number of repetitions, however many rows of a kind there are.

    Args:
        spreads: spreads of the same rows, each with its own means.
        kinds: kind of each row; rows of one kind scatter alike.
    """
    sums = np.sum([np.nansum(spread.rest**2, axis=0) for spread in spreads], axis=0)
    freedom = np.sum([np.maximum(spread.counts - 1, 0) for spread in spreads], axis=0)
    sd, known = pool_variances(sums, freedom, kinds)
    return Scatter(sd, np.minimum(known, freedom_of(spreads)))


def scatter_of_means(spread: Spread, kinds: NDArray[Any]) -> Scatter:
    """Return the scatter of the means of the rows' repetitions.

    Args:
        spread: spread of the repetitions.
        kinds: kind of each row; rows of one kind scatter alike.
    """
    sd, freedom = scatter_of([spread], kinds)
    return Scatter(sd / np.sqrt(np.maximum(spread.counts, 1)), freedom)


def welch(first: Scatter, second: Scatter) -> NDArray[Any]:
    """Return the degrees of freedom of a sum of two variances (Welch and Satterthwaite).

    Infinite where both are known exactly; NaN where one is not known.
    """
    a, b = first.sd**2, second.sd**2
    with np.errstate(invalid="ignore", divide="ignore"):
        freedom: NDArray[Any] = (a + b) ** 2 / (a**2 / first.freedom + b**2 / second.freedom)
    return freedom


# -----------------------------------------------------------------------------
# Verdicts.


def judge(
    log: NDArray[Any],
    scatter: Scatter,
    against: Sequence[str | None],
    margin: float,
    cycles: NDArray[Any] | None = None,
    confidence: float = CONFIDENCE,
    worth: float = 0.0,
    level: float = ALPHA,
) -> list[Estimate]:
    """Return an estimate for each row.

    FASTER and SLOWER need a ratio beyond the resolution: beyond the margin, and reached by chance
    in one of 1 / ``level`` comparisons, over all rows together (Bonferroni). SAME needs an interval
    within the margin, or within the resolution if no larger change is worth a look. All other rows
    are UNCLEAR. The interval holds for a single row.

    Args:
        log: logarithms of B's time over A's time.
        scatter: scatter that these logarithms have if nothing has changed.
        against: why a row can have no verdict; None where it can.
        margin: ratios within 1 +- this count as the same.
        cycles: logarithms of the ratios in cycles, NaN where a clock is not known.
        confidence: level of the interval.
        worth: changes beyond it are worth a look; smaller ones need not be excluded for SAME where
            the resolution is coarser than the margin.
        level: level of the test behind FASTER and SLOWER.
    """
    usable = np.array([reason is None for reason in against], dtype=bool)
    freedom = np.clip(np.nan_to_num(scatter.freedom, nan=1.0), 1, MAX_FREEDOM).astype(int)
    reach = quantiles(confidence, freedom) * scatter.sd
    each = level / max(1, int(usable.sum()))
    within, look = math.log1p(margin), math.log1p(worth)
    least = np.maximum(quantiles(1 - each, freedom) * scatter.sd, within)
    with np.errstate(invalid="ignore"):
        verdicts = np.select(
            [
                usable & (log > least),
                usable & (log < -least),
                usable & (np.abs(log) + reach < np.minimum(least, max(within, look))),
            ],
            [SLOWER, FASTER, SAME],
            UNCLEAR,
        ).tolist()
    columns = zip(
        *(_ratios(log), _ratios(log - reach), _ratios(log + reach), verdicts),
        _ratios(np.where(usable & (least < _MAX_LOG), least, np.nan)),
        _ratios(np.full(log.shape, np.nan) if cycles is None else cycles),
        against,
        strict=True,
    )
    return [
        Estimate(
            ratio=ratio,
            ci_low=low,
            ci_high=high,
            verdict=verdict,
            resolution=resolution,
            cycles=in_cycles,
            reason=reason,
        )
        for ratio, low, high, verdict, resolution, in_cycles, reason in columns
    ]


def _ratios(logs: NDArray[Any]) -> list[Any]:
    with np.errstate(over="ignore"):
        ratios = np.exp(logs)
    return [None if math.isnan(ratio) else ratio for ratio in ratios.tolist()]
