"""Which of many nodes are slow, from their times in several rounds: numbers only.

The logarithm of a time is compared with the median of the other nodes of its kind in the same
round. So a change of the whole round cancels, and two nodes can be told apart as well as a
thousand. A node's effect is the mean of its rounds. Its standard error follows from the variance
between its rounds. As three rounds hardly tell a variance, it is moderated by those of the other
nodes (Smyth, Stat. Appl. Genet. Mol. Biol. 3 (2004) 3), unless it is far larger than theirs; then
its own is used (compare Phipson et al., Ann. Appl. Stat. 10 (2016) 946).

A node is SLOW if its effect exceeds a margin by more than chance gives in a whole fleet: one in a
hundred of all SLOW nodes is expected to be wrong (Benjamini and Hochberg, J. R. Stat. Soc. B 57
(1995) 289).
"""

import math
from dataclasses import dataclass
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from pydlbench.compare.statistics import MAX_FREEDOM, Scatter, quantiles, two_sided, welch

SLOW: Final = "SLOW"
FAST: Final = "FAST"
SAME: Final = "SAME"
UNCLEAR: Final = "UNCLEAR"

#: Expected share of wrong verdicts among all SLOW nodes, and among all FAST ones.
FALSE_RATE: Final = 0.01
#: Confidence of each interval.
_CONFIDENCE: Final = 0.95
# A variance is an outlier if chance would exceed it once in a thousand: the quantile of the normal
# distribution, from which that of chi-squared is approximated.
_OUTLIER_QUANTILE: Final = 3.09
# Rounds that are equal to the last bit have no variance, and no logarithm of it.
_MIN_VARIANCE: Final = 1e-24


@dataclass(frozen=True, slots=True, kw_only=True)
class Effects:
    """Effects of nodes; arrays of nodes x metrics.

    Attributes:
        log: logarithm of the ratio of the node's time to the median of the other nodes; mean over
            the rounds.
        se: standard error of ``log``; NaN if unknown.
        freedom: degrees of freedom of ``se``, a whole number.
        low: lower end of a 95 % interval of ``log``, for this node and metric alone.
        high: upper end of the interval of ``log``.
        rounds: number of rounds with times of this node and another one.
        q: lowest rate of false discoveries at which the node counts as slow.
        verdict: ``SLOW``, ``FAST``, ``SAME`` or ``UNCLEAR``.
    """

    log: NDArray[Any]
    se: NDArray[Any]
    freedom: NDArray[Any]
    low: NDArray[Any]
    high: NDArray[Any]
    rounds: NDArray[Any]
    q: NDArray[Any]
    verdict: NDArray[Any]


def judge(log_s: NDArray[Any], groups: NDArray[Any], beyond: float) -> Effects:
    """Judge every node in every metric, and in several metrics together.

    Args:
        log_s: logarithms of times, rounds x nodes x metrics; NaN for missing ones.
        groups: number of each node's kind; only nodes of the same kind are compared.
        beyond: minimum slowdown of a slow node, as a fraction such as 0.03.

    Returns:
        The effects. If there are several metrics, a last column has the median over the metrics of
        each round: a node that is slow in all metrics is found sooner than in a single one.
    """
    ratios = against_others(log_s, groups)
    if ratios.shape[2] > 1:
        median: Any = np.ma.median  # it has no types
        whole = median(np.ma.masked_invalid(ratios), axis=2, keepdims=True)
        ratios = np.concatenate([ratios, whole.filled(np.nan)], axis=2)
    known = np.ma.masked_invalid(ratios)
    rounds = known.count(axis=0)
    effect = known.mean(axis=0).filled(np.nan)
    own = known.var(axis=0, ddof=1).filled(np.nan)
    variance = np.full(effect.shape, np.nan)
    freedom = np.ones(effect.shape, dtype=int)
    for group in np.unique(groups):
        rows = np.flatnonzero(groups == group)
        for metric in range(effect.shape[1]):
            own_variance = moderated(own[rows, metric], rounds[rows, metric] - 1)
            variance[rows, metric], freedom[rows, metric] = own_variance
    with np.errstate(invalid="ignore", divide="ignore"):
        se = np.sqrt(variance / np.where(rounds, rounds, np.nan))
    return _judged(effect, se, freedom, rounds, beyond)


def changed(before: Effects, after: Effects, beyond: float) -> Effects:
    """Judge the changes of nodes' effects from one run of a fleet to another.

    Args:
        before: effects of the same nodes and metrics as ``after``.
        after: effects in the later run.
        beyond: minimum size of a change, as a fraction.

    Returns:
        The changes; SLOW is slower than before. The rounds are those of the run with fewer.
    """
    worth = welch(Scatter(before.se, before.freedom), Scatter(after.se, after.freedom))
    freedom = np.clip(np.nan_to_num(worth, nan=1.0), 1, MAX_FREEDOM).astype(int)
    rounds = np.minimum(before.rounds, after.rounds)
    return _judged(after.log - before.log, np.hypot(before.se, after.se), freedom, rounds, beyond)


def _judged(
    effect: NDArray[Any],
    se: NDArray[Any],
    freedom: NDArray[Any],
    rounds: NDArray[Any],
    beyond: float,
) -> Effects:
    """Return which effects exceed a margin by more than chance gives among all of them."""
    margin = math.log1p(beyond)
    slow, fast = (_beyond(sign * effect, se, freedom, margin) for sign in (1, -1))
    reach = quantiles(_CONFIDENCE, freedom) * se
    low, high = effect - reach, effect + reach
    with np.errstate(invalid="ignore"):
        verdict = np.select(
            [
                (slow <= FALSE_RATE) & (low > margin),
                (fast <= FALSE_RATE) & (high < -margin),
                (low > -margin) & (high < margin),
            ],
            [SLOW, FAST, SAME],
            UNCLEAR,
        )
    return Effects(
        log=effect,
        se=se,
        freedom=freedom,
        low=low,
        high=high,
        rounds=rounds,
        q=slow,
        verdict=verdict,
    )


def against_others(log_s: NDArray[Any], groups: NDArray[Any]) -> NDArray[Any]:
    """Return logarithms minus the median of the other nodes of the group in the same round.

    Args:
        log_s: logarithms of times, rounds x nodes x metrics; NaN for missing times.
        groups: number of each node's group.

    Returns:
        An array of the same shape; NaN also where no other node has a value.
    """
    ratios = np.full(log_s.shape, np.nan)
    for group in np.unique(groups):
        rows = np.flatnonzero(groups == group)
        values = log_s[:, rows]
        ratios[:, rows] = values - _median_of_others(values)
    return ratios


def _median_of_others(values: NDArray[Any]) -> NDArray[Any]:
    """Return for each value along the second axis the median of all others; NaN without any."""
    order = np.argsort(values, axis=1)  # NaN comes last
    ordered = np.take_along_axis(values, order, axis=1)
    place = np.argsort(order, axis=1)
    others = (~np.isnan(values)).sum(axis=1, keepdims=True) - 1

    def among_others(number: NDArray[Any]) -> NDArray[Any]:
        """Return the value of this rank among the others."""
        at = number + (number >= place)
        return np.take_along_axis(ordered, np.minimum(at, values.shape[1] - 1), axis=1)

    lower = among_others(np.maximum(others - 1, 0) // 2)
    upper = among_others(np.maximum(others, 0) // 2)
    return np.where((others > 0) & ~np.isnan(values), (lower + upper) / 2, np.nan)


def moderated(own: NDArray[Any], freedom: NDArray[Any]) -> tuple[NDArray[Any], NDArray[Any]]:
    """Return variances that are moderated by those of all nodes, and their degrees of freedom.

    The true variances of nodes are taken to have a scaled inverse chi-squared distribution, whose
    scale and degrees of freedom are estimated from the logarithms of the measured ones.

    Args:
        own: variance between the rounds of each node; NaN if it has fewer than two.
        freedom: degrees of freedom of each variance; 0 or less if the node has no variance.

    Returns:
        The variances, NaN for nodes without a variance of their own; and their degrees of freedom,
        whole numbers of at least 1.
    """
    variance, total = own.copy(), np.maximum(freedom, 1)
    known = (freedom > 0) & ~np.isnan(own)
    if known.sum() < 2:
        return variance, total
    logs = np.log(np.maximum(own[known], _MIN_VARIANCE))
    known_freedom = freedom[known]
    # The quantiles of chi-squared over its degrees of freedom (Wilson and Hilferty 1931).
    share = 2 / (9 * known_freedom)
    middle, outlier = ((1 - share + z * np.sqrt(share)) ** 3 for z in (0.0, _OUTLIER_QUANTILE))
    usual = float(np.median(logs - np.log(middle)))
    alike = logs - usual < np.log(outlier)
    half = known_freedom[alike] / 2
    centred = logs[alike] - _digamma(half) + np.log(half)
    excess = float(centred.var(ddof=1) - _trigamma(half).mean()) if alike.sum() > 1 else 0.0
    prior = 2 * _trigamma_inverse(excess) if excess > 0 else math.inf
    scale = float(centred.mean())
    if math.isfinite(prior):
        at = np.array([prior / 2])
        scale += float(_digamma(at)[0] - np.log(at)[0])
    # All ratios of a round use medians of the same nodes, so one node's ratios are not independent.
    most = float(known_freedom[alike].sum()) * (1 - 1 / len(own))
    near = np.ones(own.shape, dtype=bool)
    near[np.flatnonzero(known)[~alike]] = False
    mine = np.where(known, freedom, 0)
    shared = np.clip(most - mine, 0, prior)
    both = shared + mine
    pooled = (shared * math.exp(scale) + mine * np.where(known, own, 0)) / np.maximum(both, 1)
    # A disturbed round is not recognizable alone, however alike the rounds of other nodes are.
    use = near & known & (both >= 1)
    variance[use] = pooled[use]
    total[use] = np.minimum(both[use], MAX_FREEDOM).astype(int)
    return variance, total


# Steps of the recurrences; their series are exact to ten digits from there on.
_RECURRENCE: Final = np.arange(6.0)


def _digamma(x: NDArray[Any]) -> NDArray[Any]:
    """The derivative of the logarithm of the gamma function; x above 0."""
    large = x + _RECURRENCE.size
    square = 1 / large**2
    series = np.log(large) - 0.5 / large - square * (1 / 12 - square * (1 / 120 - square / 252))
    return np.asarray(series - (1 / np.add.outer(x, _RECURRENCE)).sum(axis=-1))


def _trigamma(x: NDArray[Any]) -> NDArray[Any]:
    """The second derivative of the logarithm of the gamma function; x above 0."""
    large = x + _RECURRENCE.size
    square = 1 / large**2
    series = 1 / large + square / 2 + square / large * (1 / 6 - square * (1 / 30 - square / 42))
    return np.asarray(series + (1 / np.add.outer(x, _RECURRENCE) ** 2).sum(axis=-1))


def _trigamma_inverse(value: float) -> float:
    """Return the inverse of the trigamma function, which falls from infinity to 0."""
    low, high = 1e-8, 1e8
    for _ in range(80):
        middle = math.sqrt(low * high)
        above = _trigamma(np.array([middle]))[0] > value
        low, high = (middle, high) if above else (low, middle)
    return low


def _beyond(
    effect: NDArray[Any], se: NDArray[Any], freedom: NDArray[Any], margin: float
) -> NDArray[Any]:
    """Return rates of false discoveries of "the true effect exceeds the margin"."""
    with np.errstate(invalid="ignore", divide="ignore"):
        t = np.where(se > 0, (effect - margin) / se, np.where(np.isnan(se), np.nan, np.inf))
        t = np.where((se == 0) & (effect <= margin), -np.inf, t)
    tail = two_sided(t, freedom) / 2
    return false_discovery(np.where(t > 0, tail, 1 - tail))


def false_discovery(p: NDArray[Any]) -> NDArray[Any]:
    """Return for p-values the least rates of false discoveries at which each is discovered.

    NaN is ignored and stays NaN.
    """
    flat = p.ravel()
    rates = np.full(flat.shape, np.nan)
    known = np.flatnonzero(~np.isnan(flat))
    order = known[np.argsort(flat[known], kind="stable")]
    steps = flat[order] * len(order) / np.arange(1, len(order) + 1)
    rates[order] = np.minimum(np.minimum.accumulate(steps[::-1])[::-1], 1)
    return rates.reshape(p.shape)


def detectable(effects: Effects, beyond: float) -> NDArray[Any]:
    """Return for each metric the slowdown of one node that is found in 99 of 100 fleets.

    Args:
        effects: effects of the fleet.
        beyond: slowdown beyond which a node is SLOW, as a fraction.

    Returns:
        Fractions; NaN if no standard error is known.
    """
    count = max(1, int((~np.isnan(effects.se)).sum()))
    slowdowns = np.full(effects.se.shape[1], np.nan)
    for metric in range(effects.se.shape[1]):
        known = ~np.isnan(effects.se[:, metric])
        if not known.any():
            continue
        se = float(np.median(effects.se[known, metric]))
        freedom = np.array([int(np.median(effects.freedom[known, metric]))])
        reach = quantiles(1 - 2 * FALSE_RATE / count, freedom) + quantiles(0.98, freedom)
        slowdowns[metric] = math.expm1(min(math.log1p(beyond) + se * float(reach[0]), 700.0))
    return slowdowns
