"""From logarithmic ratios and their scatter to verdicts that hold for all rows together."""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import lru_cache
from typing import TYPE_CHECKING, Any, Final

import numpy as np

from pydlbench.compare.comparison import FASTER, SAME, SLOWER, UNCLEAR, Estimate, Settings

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from numpy.typing import NDArray

    from pydlbench.compare.rows import Row, Side

__all__ = [
    "EPISODES",
    "PRIOR_FREEDOM",
    "RUN_SD",
    "Evidence",
    "Scatter",
    "compute_bound",
    "episodes",
    "from_history",
    "holm",
    "judge",
    "prior",
    "quantile",
    "quantiles",
    "two_sided",
]


# -----------------------------------------------------------------------------
# Student's t for whole degrees of freedom, and Holm's correction; arrays in, arrays out.


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


@lru_cache(maxsize=256)
def quantile(p: float, n: int) -> float:
    """Return what Student's t with ``n`` degrees of freedom stays within with probability ``p``.

    Both tails are counted: ``quantile(0.95, 10)`` is 2.228.
    """
    low, high = 0.0, 1.0
    one = np.ones(1)
    while two_sided(one * high, one * n)[0] > 1 - p and high < 1e12:
        low, high = high, 2 * high
    for _ in range(60):
        middle = (low + high) / 2
        if two_sided(one * middle, one * n)[0] > 1 - p:
            low = middle
        else:
            high = middle
    return high


def quantiles(p: float, freedom: NDArray[Any]) -> NDArray[Any]:
    """Return :func:`quantile` for each of many degrees of freedom."""
    found = np.empty(freedom.shape)
    for n in np.unique(freedom):
        found[freedom == n] = quantile(p, int(n))
    return found


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
# How far two runs of the same thing differ although nothing has changed.
#
# A run's own spread does not show it: another process, other pages of memory, another hour, another
# winner among kernels of nearly the same speed. It is known from repeats, as far as there are some
# in the store, and from a measured figure before that.

# Standard deviations of one run's logarithmic time, from ten repeats of AlexNet's layers on the
# virtual machine with two cores: benchmarks/results/amd-epyc-zen4-2-cores/repeatability.md, column
# "time", the root of the mean square over each class. Convolutions; products that stream their
# weights; poolings of 30 to 170 microseconds.
_COMPUTE: Final = 0.028
_MEMORY: Final = 0.067
_SHORT: Final = 0.140
# FLOP per byte: between the products (8) and the convolutions (60 and more) of that page.
_INTENSE: Final = 20.0
# Seconds: between its poolings (0.17 ms) and its smallest product (0.63 ms).
_LONG: Final = 0.5e-3
#: What a whole run is faster or slower in common, one standard deviation: absolute times wander by
#: 5 to 10 % between runs on a shared machine, which is taken as the range of most runs.
RUN_SD: Final = 0.05
#: So many repeats is the measured figure worth. The rows of a class on that page differ among each
#: other about as much as standard deviations from eight degrees of freedom do.
PRIOR_FREEDOM: Final = 8
#: On a virtual machine two CPUs can share a core for seconds, and none of the guest's counters says
#: so: a kernel that is measured then takes up to twice its time, all of its samples alike. So many
#: of 220 rows did in twenty runs of AlexNet's layers on that machine (``compare_repeats.py``):
EPISODES: Final = 2 / 220
#: Logarithm of the largest factor of such an episode, with two standard deviations of what a whole
#: run has in common on top.
EPISODE: Final = math.log(2) + 2 * RUN_SD
# A run's common part is only known with a few rows.
_LEAST_HISTORY_ROWS: Final = 5
_LEAST_RUNS: Final = 3


@dataclass(frozen=True, slots=True, kw_only=True)
class Scatter:
    """What runs of the same thing differ by.

    Attributes:
        rows: standard deviation of each row's logarithmic time from run to run, without what a
            whole run has in common.
        freedom: its degrees of freedom, whole numbers.
        run: standard deviation of what a whole run has in common.
        runs: of how many earlier runs this was learnt.
    """

    rows: NDArray[Any]
    freedom: NDArray[Any]
    run: float = RUN_SD
    runs: int = 0


def prior(rows: Sequence[Row]) -> Scatter:
    """Return what is assumed of rows before there is a repeat of them."""
    seconds = np.array([row.median or 0.0 for row in rows], dtype=float)
    # A whole step has neither FLOPs nor bytes here: it is a mean over its layers.
    whole = np.array([not row.bytes for row in rows], dtype=bool)
    sd = np.where(compute_bound(rows) | whole, _COMPUTE, _MEMORY)
    sd = np.where(seconds < _LONG, _SHORT, sd)
    return Scatter(rows=sd, freedom=np.full(len(rows), PRIOR_FREEDOM))


def compute_bound(rows: Sequence[Row]) -> NDArray[Any]:
    """Return of which rows it is known that their time follows the core's clock."""
    done = np.array([row.flops_executed or row.flops or 0.0 for row in rows], dtype=float)
    moved = np.array([row.bytes or 0.0 for row in rows], dtype=float)
    bound: NDArray[Any] = (moved > 0) & (done / _INTENSE >= moved)
    return bound


def episodes(sides: Sequence[Side], rows: Sequence[Row]) -> NDArray[Any]:
    """Return the probability of each row that one side measured it in an episode.

    Args:
        sides: with their devices; only virtual machines have episodes, as far as is known.
        rows: of one of them.
    """
    facts = [side.device.get("facts") or {} for side in sides]
    virtual = sum(bool(one.get("virtualised")) for one in facts)
    on_cpu = np.array([row.device == "cpu" for row in rows], dtype=float)
    found: NDArray[Any] = virtual * EPISODES * on_cpu
    return found


def from_history(
    assumed: Scatter, keys: Sequence[Any], runs: Sequence[Mapping[Any, float]]
) -> Scatter:
    """Return the scatter with what earlier runs on the same machine tell.

    The variance of a row is that of its repeats and the assumed one, weighted by their degrees of
    freedom, as an empirical Bayes estimate (Smyth, Stat. Appl. Genet. Mol. Biol. 3 (2004) 3).

    Args:
        assumed: of :func:`prior`.
        keys: of the rows, in its order.
        runs: seconds by key, of each earlier run; neither of the two that are compared.
    """
    if not runs or not keys:
        return assumed
    logs = np.full((len(runs), len(keys)), np.nan)
    for number, seconds in enumerate(runs):
        found = np.array([seconds.get(key) or np.nan for key in keys], dtype=float)
        logs[number] = np.log(found)
    counts = np.sum(~np.isnan(logs), axis=0)
    repeated = counts >= 2
    if not repeated.any():
        return assumed
    logs, counts = logs[:, repeated], counts[repeated]
    rests = logs - np.nanmedian(logs, axis=0)
    common, told = _common(rests)
    rests = rests - common[:, None]
    rests = rests - np.nanmean(rests, axis=0)
    own = np.nansum(rests**2, axis=0)  # over counts - 1 degrees of freedom
    rows, freedom = assumed.rows.copy(), assumed.freedom.copy()
    known = freedom[repeated]
    total = known + counts - 1
    rows[repeated] = np.sqrt((known * rows[repeated] ** 2 + own) / total)
    freedom[repeated] = total
    run = assumed.run
    if told.sum() >= _LEAST_RUNS:
        spread = float(np.sum((common[told] - np.mean(common[told])) ** 2))
        weight = PRIOR_FREEDOM + int(told.sum()) - 1
        run = float(np.sqrt((PRIOR_FREEDOM * run**2 + spread) / weight))
    return Scatter(rows=rows, freedom=freedom, run=run, runs=len(runs))


def _common(rests: NDArray[Any]) -> tuple[NDArray[Any], NDArray[Any]]:
    """Return what each run's rows have in common, and of which runs that is known."""
    told = np.sum(~np.isnan(rests), axis=1) >= _LEAST_HISTORY_ROWS
    common = np.zeros(len(rests))
    common[told] = np.nanmedian(rests[told], axis=1)
    return common, told


@dataclass(frozen=True, slots=True)
class Evidence:
    """What is known of each row.

    Attributes:
        log: logarithm of B over A as measured.
        rest: the same without what all rows have in common; equal to ``log`` where that is not
            taken off.
        sd: standard deviation of ``rest``, everything counted that differs between two runs.
        freedom: degrees of freedom of ``sd``.
        against: why a row can have no verdict; None where it can.
        episodes: probability that one of the two was measured in an episode, see
            :data:`pydlbench.compare.statistics.EPISODES`.
    """

    log: NDArray[Any]
    rest: NDArray[Any]
    sd: NDArray[Any]
    freedom: NDArray[Any]
    against: Sequence[str | None]
    episodes: NDArray[Any] | float = 0.0


def judge(evidence: Evidence, settings: Settings) -> list[Estimate]:
    """Return an estimate for each row.

    FASTER and SLOWER take a ratio that differs from one at ``alpha``, corrected by Holm for all
    rows that can have a verdict, and by more than the margin, both as measured and without the
    common part; the probability of an episode is counted in. SAME takes an interval within the
    margin. All else is UNCLEAR.

    The interval holds for a single row. It spans both readings, with and without the common part.
    """
    usable = np.array([reason is None for reason in evidence.against], dtype=bool)
    sd, freedom = evidence.sd, evidence.freedom
    with np.errstate(divide="ignore", invalid="ignore"):
        t = np.where(sd > 0, evidence.rest / sd, np.where(evidence.rest == 0, 0.0, np.inf))
    chance = two_sided(t, freedom)
    # What an episode may have done is no change: its size is anything up to the largest.
    beyond = np.maximum(0.0, 1 - np.abs(evidence.rest) / EPISODE)
    p = holm(np.where(usable, np.minimum(1.0, chance + evidence.episodes * beyond), np.nan))
    reach = quantiles(settings.confidence, freedom) * sd
    low = np.minimum(evidence.log, evidence.rest) - reach
    high = np.maximum(evidence.log, evidence.rest) + reach
    each = settings.alpha / max(1, int(usable.sum()))
    seen = quantiles(1 - each, freedom) * sd
    likely = np.asarray(evidence.episodes) > each
    share = np.where(likely, evidence.episodes, 1.0)
    seen = np.where(likely, np.maximum(seen, EPISODE * (1 - each / share)), seen)
    margin = math.log1p(settings.margin)
    up = np.minimum(evidence.log, evidence.rest) > margin
    down = np.maximum(evidence.log, evidence.rest) < -margin
    far = p < settings.alpha
    same = (low > -margin) & (high < margin)
    known = np.isfinite(low) & np.isfinite(high)
    can_see = np.isfinite(seen)
    verdicts = np.select(
        [usable & far & up, usable & far & down, usable & same], [SLOWER, FASTER, SAME], UNCLEAR
    )
    return list(
        map(
            Estimate,
            _ratios(evidence.log),
            _or_none(_ratios(low), known),
            _or_none(_ratios(high), known),
            verdicts.tolist(),
            _or_none(p.tolist(), ~np.isnan(p)),
            _or_none(_ratios(np.maximum(seen, margin)), can_see),
            evidence.against,
        )
    )


def _ratios(logs: NDArray[Any]) -> list[float]:
    with np.errstate(over="ignore"):
        return np.exp(logs).tolist()  # type: ignore[no-any-return]  # of floats


def _or_none(values: list[Any], known: NDArray[Any]) -> list[Any]:
    if known.all():
        return values
    return [value if one else None for value, one in zip(values, known.tolist(), strict=True)]
