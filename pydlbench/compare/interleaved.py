"""Two sides measured interleaved: ratios of rounds, with the variance between preparations.

In a pass both kernels are sampled alternately, round by round, so that what the machine does to
both cancels. What the preparation does, such as other memory pages or another choice among similar
kernels, does not cancel. So every pass prepares both anew, in new processes, and only passes count
as independent: the interval is Student's for their mean, with a variance between passes of at least
that of the rows of its kind (:func:`pydlbench.compare.statistics.pooled`).
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final

import numpy as np

from pydlbench.compare.comparison import ComparedRow, Comparison, Estimate, Settings
from pydlbench.compare.environment import differences
from pydlbench.compare.match import kinds_of
from pydlbench.compare.statistics import Scatter, judge, pooled

if TYPE_CHECKING:
    from collections.abc import Sequence

    from numpy.typing import NDArray

    from pydlbench.compare.match import Matching
    from pydlbench.compare.rows import Side

#: With fewer the interval of their mean is many times as wide as they differ.
LEAST_PASSES: Final = 4


@dataclass(slots=True, kw_only=True)
class Passes:
    """Results of a pair of rows, pass by pass.

    Attributes:
        logs: logarithm of B over A for each finished pass: the median of the rounds' ratios.
        cycles: the same in cycles, for passes in which both clocks were read.
        seconds: medians of A and of B.
        clocks: clocks of A and of B, in Hz.
        algorithms: algorithms of the two kernels that ran last; None before, and for steps.
        libraries: libraries of the two that ran last, with their versions; None before.
        reason: why the last failed pass failed; None if none did.
    """

    logs: list[float] = field(default_factory=list)
    cycles: list[float] = field(default_factory=list)
    seconds: tuple[list[float], list[float]] = field(default_factory=lambda: ([], []))
    clocks: tuple[list[float], list[float]] = field(default_factory=lambda: ([], []))
    algorithms: list[str | None] = field(default_factory=lambda: [None, None])
    libraries: list[str | None] = field(default_factory=lambda: [None, None])
    reason: str | None = None


def compare_interleaved(
    a: Side,
    b: Side,
    matching: Matching,
    measured: Sequence[Passes],
    settings: Settings | None = None,
    finished: int | None = None,
    notes: tuple[str, ...] = (),
) -> Comparison:
    """Compare two sides that were measured interleaved.

    Args:
        a: the first side, as measured now.
        b: the second side.
        matching: matched rows of both.
        measured: results of each pair.
        settings: settings of the verdicts.
        finished: number of passes; None for the largest number of any pair.
        notes: notes for the reader.
    """
    settings = settings or Settings()
    if finished is None:
        finished = max((len(passes.logs) for passes in measured), default=0)
    logs = [passes.logs for passes in measured]
    against = [
        None
        if len(passes.logs) >= LEAST_PASSES
        else passes.reason or f"{len(passes.logs)} repetitions; a verdict takes {LEAST_PASSES}"
        for passes in measured
    ]
    cycles = np.array([_mean(passes.cycles) if passes.cycles else math.nan for passes in measured])
    means = np.array([_mean(values) for values in logs])
    scatter = _scatter(logs, kinds_of(pair.a for pair in matching.pairs))
    estimates = judge(means, scatter, against, settings, cycles)
    rows = [
        ComparedRow(
            *pair,
            estimate,
            passes=[math.exp(log) for log in passes.logs],
            libraries=(passes.libraries[0], passes.libraries[1]),
        )
        for pair, passes, estimate in zip(matching.pairs, measured, estimates, strict=True)
    ]
    return Comparison(
        a=a,
        b=b,
        matching=matching,
        rows=rows,
        geomean=_geomean(logs, settings),
        differences=differences(a, b, matching.pairs),
        settings=settings,
        passes=finished,
        notes=notes,
    )


def _scatter(logs: Sequence[Sequence[float]], kinds: NDArray[Any]) -> Scatter:
    """Return the scatter of means of passes."""
    counts = np.array([len(values) for values in logs])
    sums = np.array([math.fsum((x - _mean(values)) ** 2 for x in values) for values in logs])
    sd, freedom = pooled(sums, np.maximum(counts - 1, 0), kinds)
    return Scatter(sd / np.sqrt(np.maximum(counts, 1)), freedom)


def _mean(logs: Sequence[float]) -> float:
    return math.fsum(logs) / len(logs) if logs else 0.0


def _geomean(logs: Sequence[Sequence[float]], settings: Settings) -> Estimate | None:
    """Return the ratio of all rows that can have a verdict, from the means of passes.

    If a row lacks a pass, the scatter comes from as many passes as every row has.
    """
    most = max((len(values) for values in logs), default=0)
    kept = [values for values in logs if values and len(values) >= min(most, LEAST_PASSES)]
    if not kept:
        return None
    least = min(len(values) for values in kept)
    of_passes = [_mean([values[number] for values in kept]) for number in range(least)]
    middle = np.array([_mean([_mean(values) for values in kept])])
    return judge(middle, _scatter([of_passes], np.array(["all"])), [None], settings)[0]
