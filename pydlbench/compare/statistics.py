"""From logarithmic ratios and their scatter to verdicts that hold for all rows together."""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import lru_cache
from typing import TYPE_CHECKING, Any, Final

import numpy as np

from pydlbench.compare.comparison import FASTER, SAME, SLOWER, UNCLEAR, Estimate, Settings

if TYPE_CHECKING:
    from collections.abc import Sequence

    from numpy.typing import NDArray


# -----------------------------------------------------------------------------
# Student's t for whole degrees of freedom, and Holm's correction; arrays in, arrays out.


# Of the density of an angle; with as many its mean is exact to three digits.
_ANGLES: Final = 24


def two_sided(t: NDArray[Any], freedom: NDArray[Any]) -> NDArray[Any]:
    """Return the probability that Student's t is at least as far from zero.

    For whole degrees of freedom the distribution is a finite sum in the angle whose tangent is
    t / sqrt(n) (Abramowitz and Stegun, 26.7.3 and 26.7.4).

    Args:
        t: values, any sign; NaN gives NaN.
        freedom: degrees of freedom, whole, at least 1; as many.
    """
    found = np.full(t.shape, np.nan)
    for n in np.unique(freedom):
        rows = freedom == n
        found[rows] = _tail(np.abs(t[rows]), int(n))
    return found


def _tail(t: NDArray[Any], n: int) -> NDArray[Any]:
    angle = np.arctan2(t, math.sqrt(n))
    sine, cosine = np.sin(angle), np.cos(angle)
    if n % 2:
        inner = np.zeros_like(t)
        term = cosine.copy()
        for k in range(1, n - 1, 2):
            inner += term
            term = term * cosine**2 * (k + 1) / (k + 2)
        inside = 2 / math.pi * (angle + sine * inner)
    else:
        inside = np.zeros_like(t)
        term = np.ones_like(t)
        for k in range(0, n - 1, 2):
            inside += term
            term = term * cosine**2 * (k + 1) / (k + 2)
        inside = sine * inside
    # Beyond the precision of a difference from one; never zero, which nothing measured is.
    outside: NDArray[Any] = np.maximum(1 - inside, 1e-15)
    return outside


@lru_cache(maxsize=4096)
def quantile(p: float, n: int) -> float:
    """Return what Student's t with ``n`` degrees of freedom stays within with probability ``p``.

    Both tails are counted: ``quantile(0.95, 10)`` is 2.228.
    """
    # Of a grid between what is too near and what is far enough, the two beside each other that
    # are; and so on between these. What it takes is one call for a whole grid.
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
    found = np.empty(freedom.shape)
    for n in np.unique(freedom):
        found[freedom == n] = quantile(p, int(n))
    return found


def detectable(
    p: float, margin: float, sd: NDArray[Any], freedom: NDArray[Any], power: float
) -> NDArray[Any]:
    """Return which true distance from zero a test finds in another sample with a probability.

    Who asks has an estimate of the standard deviation, and so will the test: each is by chance too
    small or too large, and the test's threshold with its own. With the true one as the unit, S the
    estimate at hand, S' that of the test, Z the error of what is tested and t the quantile, a
    distance of k S is found where

        Z + k S > max(t S', m S),

    with m S the margin. S = sqrt(2) R sin(a) and S' = sqrt(2) R cos(a) make R^2 a chi-squared of
    twice the degrees of freedom n, independent of the angle, whose density is that of a beta
    distribution, in proportion to sin(2a)^(n - 1). So the probability is the mean over the angles
    of Student's distribution with 2n degrees of freedom.

    Args:
        p: of the test, both tails together.
        margin: what has to be exceeded besides.
        sd: estimates of the standard deviation.
        freedom: their degrees of freedom, whole.
        power: the probability.
    """
    with np.errstate(divide="ignore", invalid="ignore"):
        margins = margin / sd
    found = np.empty(sd.shape)
    for n in np.unique(freedom):
        rows = freedom == n
        known, factors = _factors(p, int(n), power)
        beyond = np.maximum(margins[rows] - known[-1], 0)
        # Far beyond the quantile a margin is all that counts, and adds what it is.
        found[rows] = (np.interp(margins[rows], known, factors) + beyond) * sd[rows]
    return found


@lru_cache(maxsize=4096)
def _factors(p: float, n: int, power: float) -> tuple[NDArray[Any], NDArray[Any]]:
    """Return margins and what is detectable beyond them, in estimated standard deviations."""
    t = quantile(1 - p, n)
    margins = t * np.array([0, 0.6, 0.8, 0.9, 1, 1.15, 1.4, 2])
    # Of the density, five standard deviations on either side of equal estimates.
    half = min(math.pi / 2, 5 / math.sqrt(n))
    places = half * (2 * (np.arange(_ANGLES) + 0.5) / _ANGLES - 1)
    weights = np.cos(places) ** (n - 1)
    weights /= weights.sum()
    own, other = np.sin(math.pi / 4 + places / 2), np.cos(math.pi / 4 + places / 2)
    threshold = np.maximum(t * other, margins[:, None] * own)

    def found(factors: NDArray[Any]) -> NDArray[Any]:
        beyond = math.sqrt(2) * (factors[:, None] * own - threshold)
        tails = two_sided(beyond, np.full(beyond.shape, 2 * n)) / 2
        total: NDArray[Any] = np.where(beyond > 0, 1 - tails, tails) @ weights
        return total

    low = np.maximum(t, margins)
    high = low + 1
    while (short := found(high) < power).any():
        low, high = np.where(short, high, low), np.where(short, 3 * high, high)
    for _ in range(12):
        middle = (low + high) / 2
        short = found(middle) < power
        low, high = np.where(short, middle, low), np.where(short, high, middle)
    return margins, high


def holm(p: NDArray[Any]) -> NDArray[Any]:
    """Return p-values corrected for their number by Holm's step-down method.

    Whoever is called below ``alpha`` then: the chance that any of them is called wrongly is at most
    ``alpha``, however they depend on each other (Holm, Scand. J. Statist. 6 (1979) 65). NaN is not
    counted and stays NaN.
    """
    found = np.full(p.shape, np.nan)
    known = np.flatnonzero(~np.isnan(p))
    order = known[np.argsort(p[known], kind="stable")]
    steps = p[order] * np.arange(len(order), 0, -1)
    found[order] = np.minimum(np.maximum.accumulate(steps), 1) if len(order) else steps
    return found


# -----------------------------------------------------------------------------
# Verdicts.

#: As many degrees of freedom are as good as all: Student's t is the normal distribution within 2 %.
MOST_FREEDOM: Final = 200
# A change of the size of the resolution is found in so many comparisons.
_POWER: Final = 0.8
# The largest logarithm of a ratio that a float can hold, nearly.
_MOST: Final = 700.0


@dataclass(frozen=True, slots=True)
class Evidence:
    """What is known of each row.

    Attributes:
        log: logarithm of B over A.
        rest: the same without what all rows have in common, where that may be the machine's or not;
            else equal to ``log``.
        sd: standard deviation of ``rest``, everything counted that differs between two runs; NaN
            where it is not known.
        freedom: degrees of freedom of ``sd``.
        against: why a row can have no verdict; None where it can.
        adverse: in what fraction of comparisons like this one what all rows have in common hides
            a change, because a verdict has to hold without it and with it.
    """

    log: NDArray[Any]
    rest: NDArray[Any]
    sd: NDArray[Any]
    freedom: NDArray[Any]
    against: Sequence[str | None]
    adverse: float = 0.0


def judge(evidence: Evidence, settings: Settings) -> list[Estimate]:
    """Return an estimate for each row.

    FASTER and SLOWER take a ratio that differs from one at ``alpha``, corrected by Holm for all
    rows that can have a verdict, and by more than the margin, with the common part and without it.
    SAME takes an interval within the margin. All else is UNCLEAR.

    The interval holds for a single row. It spans both readings, with and without the common part.
    The resolution is the smallest change that these rules find in four of five comparisons like
    this one, see :func:`detectable`; where the two readings differ, by so much more.
    """
    usable = np.array([reason is None for reason in evidence.against], dtype=bool)
    sd, freedom = evidence.sd, evidence.freedom
    with np.errstate(divide="ignore", invalid="ignore"):
        t = np.where(sd > 0, evidence.rest / sd, np.where(evidence.rest == 0, 0.0, np.inf))
    p = holm(np.where(usable, two_sided(t, freedom), np.nan))
    reach = quantiles(settings.confidence, freedom) * sd
    low = np.minimum(evidence.log, evidence.rest) - reach
    high = np.maximum(evidence.log, evidence.rest) + reach
    margin = math.log1p(settings.margin)
    each = settings.alpha / max(1, int(usable.sum()))
    seen = detectable(each, margin, sd, freedom, _POWER / (1 - evidence.adverse))
    seen = seen + np.abs(evidence.log - evidence.rest)
    up = np.minimum(evidence.log, evidence.rest) > margin
    down = np.maximum(evidence.log, evidence.rest) < -margin
    far = p < settings.alpha
    same = (low > -margin) & (high < margin)
    known = np.isfinite(low) & np.isfinite(high)
    verdicts = np.select(
        [usable & far & up, usable & far & down, usable & same], [SLOWER, FASTER, SAME], UNCLEAR
    )
    columns = (
        _ratios(evidence.log),
        _or_none(_ratios(low), known),
        _or_none(_ratios(high), known),
        verdicts.tolist(),
        _or_none(p.tolist(), ~np.isnan(p)),
        _or_none(_ratios(seen), usable & (seen < _MOST)),
        evidence.against,
    )
    return [
        Estimate(
            ratio=ratio,
            ci_low=lower,
            ci_high=upper,
            verdict=verdict,
            p=chance,
            resolution=resolution,
            reason=reason,
        )
        for ratio, lower, upper, verdict, chance, resolution, reason in zip(*columns, strict=True)
    ]


def _ratios(logs: NDArray[Any]) -> list[float]:
    with np.errstate(over="ignore"):
        return np.exp(logs).tolist()  # type: ignore[no-any-return]  # of floats


def _or_none(values: list[Any], known: NDArray[Any]) -> list[Any]:
    if known.all():
        return values
    return [value if one else None for value, one in zip(values, known.tolist(), strict=True)]
