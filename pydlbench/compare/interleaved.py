"""Two sides measured interleaved: ratios of rounds, with the variance between preparations.

In a pass both kernels are sampled alternately, round by round, so that interference cancels.
Effects of the preparation, such as other memory pages or another choice among similar kernels, do
not cancel. So every pass prepares both anew, in new processes, and only passes count as
independent: the interval is Student's for their mean, with a variance between passes of at least
that of the rows of its kind (:func:`pydlbench.compare.statistics.pool_variances`).
"""

from __future__ import annotations

import dataclasses
import math
from collections import Counter
from collections.abc import Iterable, Sequence
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from pydlbench.compare.comparison import MARGIN, ComparedRow, Comparison, Estimate
from pydlbench.compare.environment import differences
from pydlbench.compare.match import Matching, Pair, kinds_of
from pydlbench.compare.rerun import RerunPair
from pydlbench.compare.rows import Side, SideRow
from pydlbench.compare.statistics import Scatter, Spread, judge, scatter_of, spread_of
from pydlbench.records.run import RunRecord
from pydlbench.timing.statistics import median

#: Minimum number of passes for a verdict: with fewer, the interval of their mean is many times as
#: wide as their differences.
MIN_PASSES: Final = 4


def compare_interleaved(
    a: Side,
    b: Side,
    matching: Matching,
    rerun: Sequence[RerunPair],
    margin: float = MARGIN,
    finished: int | None = None,
    notes: tuple[str, ...] = (),
) -> Comparison:
    """Compare two sides that were measured interleaved.

    Pairs without a finished pass become untimed.

    Args:
        a: the first side, with its machine and environment.
        b: the second side.
        matching: matched rows; its pairs correspond to ``rerun``.
        rerun: measured pairs.
        margin: ratios within 1 +- this count as the same.
        finished: number of passes; None for the largest number of any pair.
        notes: notes for the reader.
    """
    measured = [pair for pair in rerun if pair.logs]
    pairs, untimed = [], list(matching.untimed)
    for pair, again in zip(matching.pairs, rerun, strict=True):
        if again.logs:
            pairs.append(Pair(*(_row(row, again, side) for side, row in enumerate(pair))))
        else:
            untimed.append(Pair(*(row._replace(status="failed") for row in pair)))
    if finished is None:
        finished = max((len(pair.logs) for pair in measured), default=0)
    passes = sorted({number for pair in measured for number in pair.logs})
    logs = [[pair.logs.get(number, math.nan) for pair in measured] for number in passes]
    spread = spread_of(np.array(logs, dtype=float).reshape(len(passes), len(measured)))
    against = [
        None
        if len(pair.logs) >= MIN_PASSES
        else pair.reason or f"{len(pair.logs)} repetitions; a verdict takes {MIN_PASSES}"
        for pair in measured
    ]
    cycles = np.array([_mean(pair.cycles) for pair in measured])
    scatter = _scatter_of_means(spread, kinds_of(pair.a for pair in pairs))
    estimates = judge(spread.means, scatter, against, margin, cycles)
    return Comparison(
        a=dataclasses.replace(a, rows=[pair.a for pair in pairs]),
        b=dataclasses.replace(b, rows=[pair.b for pair in pairs]),
        matching=dataclasses.replace(matching, pairs=pairs, untimed=untimed),
        rows=[
            ComparedRow(
                *pair,
                estimate,
                passes=[math.exp(log) for log in again.logs.values()],
                libraries=again.libraries,
            )
            for pair, again, estimate in zip(pairs, measured, estimates, strict=True)
        ],
        geomean=_geomean(spread, margin),
        differences=differences(a, b, pairs),
        margin=margin,
        passes=finished,
        notes=(*_lost(rerun), *notes),
    )


def as_remeasured(side: Side, run: RunRecord) -> Side:
    """Return a stored side as the side of a new run."""
    return dataclasses.replace(side, run_id="", device=run.device, environment=run.environment)


def _row(row: SideRow, pair: RerunPair, side: int) -> SideRow:
    clocks = pair.clocks[side]
    return row._replace(
        median=median(pair.seconds[side]),
        # Only ratios have intervals here, not the sides.
        ci_low=None,
        ci_high=None,
        n=len(pair.seconds[side]),
        clock_hz=median(clocks) if clocks else None,
        contended=None,
        algorithm=pair.algorithms[side] or row.algorithm,
    )


def _lost(rerun: Iterable[RerunPair]) -> tuple[str, ...]:
    """Return notes on rows that could not be measured."""
    reasons = Counter(pair.reason for pair in rerun if not pair.logs)
    return tuple(
        f"{count} {'row' if count == 1 else 'rows'} could not be measured: {reason}"
        for reason, count in reasons.items()
        if reason is not None
    )


def _mean(logs: Sequence[float]) -> float:
    return math.fsum(logs) / len(logs) if logs else math.nan


def _scatter_of_means(spread: Spread, kinds: NDArray[Any]) -> Scatter:
    """Return the scatter of means of passes."""
    sd, freedom = scatter_of([spread], kinds)
    return Scatter(sd / np.sqrt(np.maximum(spread.counts, 1)), freedom)


def _geomean(spread: Spread, margin: float) -> Estimate | None:
    """Return the geometric mean of all rows that can have a verdict, from the means of passes.

    The mean over the rows of a pass contains whatever affects all of them.
    """
    if not spread.counts.size:
        return None
    usable = spread.counts >= min(spread.counts.max(), MIN_PASSES)
    mean = np.array([spread.means[usable].mean()])
    scatter = _scatter_of_means(spread.of_means(usable), np.array(["all"]))
    return judge(mean, scatter, [None], margin)[0]
