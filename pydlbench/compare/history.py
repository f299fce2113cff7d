"""How far two runs of the same thing differ although nothing has changed.

A run's own spread does not show it: another process, other pages of memory, another hour, another
winner among kernels of nearly the same speed. It is known from repeats, as far as there are some in
the store, and from a measured figure before that.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

import numpy as np

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from numpy.typing import NDArray

    from pydlbench.compare.rows import Row, Side

__all__ = [
    "EPISODE",
    "EPISODES",
    "PRIOR_FREEDOM",
    "RUN_SD",
    "Scatter",
    "compute_bound",
    "episodes",
    "from_history",
    "prior",
]

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
_LEAST_ROWS: Final = 5
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
    bound: NDArray[Any] = (moved > 0) & (done >= _INTENSE * moved)
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
    told = np.sum(~np.isnan(rests), axis=1) >= _LEAST_ROWS
    common = np.zeros(len(rests))
    common[told] = np.nanmedian(rests[told], axis=1)
    return common, told
