"""Order statistics: median, quartiles, intervals of the median; and sums."""

import bisect
import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Final, TypeVar

Number = TypeVar("Number", int, float)


@dataclass(frozen=True, slots=True, kw_only=True)
class Interval:
    """A confidence interval of a median."""

    low: float
    high: float


def quantile(values: Iterable[float], q: float) -> float:
    """Return the ``q`` quantile, 0 to 1, with linear interpolation (Hyndman and Fan's type 7).

    Raises:
        ValueError: there are no values.
    """
    ordered = sorted(values)
    if not ordered:
        raise ValueError("quantile of no values")
    position = q * (len(ordered) - 1)
    below = math.floor(position)
    above = min(below + 1, len(ordered) - 1)
    share = position - below
    low, high = ordered[below], ordered[above]
    # low + share * (high - low) overshoots ``high`` by rounding; equal neighbours stay exact.
    return min(low + share * (high - low), high)


def median(values: Iterable[float]) -> float:
    """Return the median; ValueError without values."""
    return quantile(values, 0.5)


def sum_known(values: Iterable[Number | None]) -> Number | None:
    """Return the sum of values; None if one of them is None."""
    every = list(values)
    return None if None in every else sum(value for value in every if value is not None)


def middle_rounds(seconds: Sequence[float], width: int) -> list[float]:
    """Return the time of each of several summands: its mean over the middle rounds.

    Medians do not add up: times have long right tails, so the sum of many medians is below the
    median of the sums (by up to 6 % for the calls of a step, on a quiet machine). Rounds are ranked
    by their sums, and a quarter is dropped at either end. The result adds up to about the median of
    the sums, and a single slow round does not change it.

    Args:
        seconds: ``width`` summands of the first round, then those of the next, and so on.
        width: number of summands, positive.

    Raises:
        ValueError: there is no round, or the last one is incomplete.
    """
    count, rest = divmod(len(seconds), width)
    if rest or not count:
        raise ValueError(f"{len(seconds)} times are no rounds of {width}")
    rounds = sorted((seconds[i * width : (i + 1) * width] for i in range(count)), key=sum)
    outside = (count + 1) // 4
    middle = rounds[outside : count - outside]
    return [sum(times) / len(middle) for times in zip(*middle, strict=True)]


def _lower_tail(n: int, k: int) -> float:
    """P(X <= k) for X ~ Binomial(n, 1/2) and k below n / 2, summed downwards from k."""
    log_term = math.lgamma(n + 1) - math.lgamma(k + 1) - math.lgamma(n - k + 1)
    term = math.exp(log_term - n * math.log(2))
    total = 0.0
    for i in range(k, -1, -1):
        total += term
        if term < total * 1e-17:
            break
        term *= i / (n - i + 1)
    return total


@lru_cache(maxsize=4096)
def interval_ranks(n: int, confidence: float) -> tuple[int, int, float] | None:
    """Ranks of the order statistics that enclose the median.

    The median lies outside [x(k), x(n+1-k)] when fewer than k samples fall on one side of it, so
    the coverage is 1 - 2 P(Binomial(n, 1/2) < k) whatever the (continuous) distribution is, and
    more with ties (David and Nagaraja, Order Statistics, section 7.1).

    Returns:
        Zero-based ranks (low, high) of the narrowest such interval and its coverage, at least
        ``confidence``; None where even minimum to maximum does not reach it (n < 6 at 95 %).
    """
    # The tolerance lets a level that is exactly attainable (31/32 with 6 samples) be attained.
    alpha_half = (1 - confidence) / 2 * (1 + 1e-9)
    # The largest rank whose tail is small enough.
    ranks = range((n + 1) // 2)
    low = bisect.bisect_right(ranks, alpha_half, key=lambda rank: _lower_tail(n, rank)) - 1
    return None if low < 0 else (low, n - 1 - low, 1 - 2 * _lower_tail(n, low))


#: Level of the intervals of medians.
CONFIDENCE: Final = 0.95
# Half of the 95 % interval of the median over the range, by the number of normal values: Lord's
# substitute for Student's t (Biometrika 34 (1947) 41), simulated for the median.
_OF_RANGE: Final = {2: 6.35, 3: 1.34, 4: 0.74, 5: 0.56}


def median_interval(values: Iterable[float], *, signed: bool = False) -> Interval | None:
    """Return the 95 % interval of the median; None for fewer than two values.

    For six or more values it assumes no distribution. Two to five values are assumed to be normally
    distributed.

    Args:
        values: times, ratios or shares; or differences.
        signed: whether the values are differences; otherwise the interval is cut off at 0.
    """
    ordered = sorted(values)
    ranks = interval_ranks(len(ordered), CONFIDENCE)
    if ranks is not None:
        return Interval(low=ordered[ranks[0]], high=ordered[ranks[1]])
    if len(ordered) < min(_OF_RANGE):
        return None
    middle = median(ordered)
    half = _OF_RANGE[len(ordered)] * (ordered[-1] - ordered[0])
    low = middle - half
    return Interval(low=low if signed else max(0.0, low), high=middle + half)
