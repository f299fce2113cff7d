"""Two sides measured in turn: ratios of rounds, with the variance between preparations.

Within a pass both kernels take turns round by round, so that whatever the machine does to both
cancels. It does not cancel what the preparation did: other pages of memory, another winner among
kernels of nearly the same speed. So every pass prepares both anew, in new processes, and only the
passes count as independent: the interval is Student's for their mean.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Final

import numpy as np

from pydlbench.compare.comparison import ComparedRow, Comparison, Estimate, Settings
from pydlbench.compare.environment import differences
from pydlbench.compare.statistics import Evidence, judge

if TYPE_CHECKING:
    from collections.abc import Sequence

    from pydlbench.compare.match import Matching
    from pydlbench.compare.rows import Side

__all__ = ["LEAST_PASSES", "Turns", "compare_turns"]

#: With fewer the interval of their mean is many times as wide as they differ.
LEAST_PASSES: Final = 4


@dataclass(frozen=True, slots=True, kw_only=True)
class Turns:
    """What the passes of one row gave.

    Attributes:
        logs: logarithm of B over A, one of each pass that both sides finished.
        cycles: the same in cycles, of passes in which both clocks were read.
        reason: why a pass is missing, the last one's; None where none is.
    """

    logs: tuple[float, ...]
    cycles: tuple[float, ...] = ()
    reason: str | None = None


def compare_turns(
    a: Side,
    b: Side,
    matching: Matching,
    turns: Sequence[Turns],
    settings: Settings | None = None,
    passes: int | None = None,
    notes: tuple[str, ...] = (),
) -> Comparison:
    """Compare two sides that were measured in turn.

    Args:
        a: the first one, as it was measured now.
        b: the second one.
        matching: of both.
        turns: of each of its pairs.
        settings: what a verdict takes.
        passes: how many were finished; None is the largest number that a row has.
        notes: what a reader has to know.
    """
    settings = settings or Settings()
    done = max((len(one.logs) for one in turns), default=0) if passes is None else passes
    times = judge(_evidence([one.logs for one in turns], turns), settings)
    cycles = judge(_evidence([one.cycles for one in turns], turns), settings)
    rows = [
        ComparedRow(pair.a, pair.b, time, cycle if one.cycles else None, passes=_ratios(one))
        for pair, one, time, cycle in zip(matching.pairs, turns, times, cycles, strict=True)
    ]
    return Comparison(
        a=a,
        b=b,
        matching=matching,
        rows=rows,
        geomean=_geomean([one.logs for one in turns], settings),
        geomean_cycles=_geomean([one.cycles for one in turns], settings),
        differences=differences(a, b, matching.pairs),
        settings=settings,
        passes=done,
        notes=notes,
    )


def _ratios(turns: Turns) -> tuple[list[float], list[float]]:
    return [math.exp(x) for x in turns.logs], [math.exp(x) for x in turns.cycles]


def _evidence(logs: Sequence[Sequence[float]], turns: Sequence[Turns]) -> Evidence:
    means = np.array([_mean(one) for one in logs], dtype=float)
    sd = np.array([_error(one) for one in logs], dtype=float)
    freedom = np.array([max(1, len(one) - 1) for one in logs])
    against = [
        None if len(one) >= LEAST_PASSES else _lacking(len(one), turn.reason)
        for one, turn in zip(logs, turns, strict=True)
    ]
    return Evidence(log=means, rest=means, sd=sd, freedom=freedom, against=against)


def _lacking(count: int, reason: str | None) -> str:
    return reason or f"{count} passes; a verdict takes {LEAST_PASSES}"


def _mean(logs: Sequence[float]) -> float:
    return math.fsum(logs) / len(logs) if logs else 0.0


def _error(logs: Sequence[float]) -> float:
    """Standard error of the mean; infinite of a single one."""
    if len(logs) < 2:
        return math.inf
    mean = _mean(logs)
    return math.sqrt(math.fsum((x - mean) ** 2 for x in logs) / (len(logs) - 1) / len(logs))


def _geomean(logs: Sequence[Sequence[float]], settings: Settings) -> Estimate | None:
    """Of all rows that can have a verdict: each pass has a mean, and these are what is independent.

    Where a row lacks a pass, as many passes tell the scatter as every row has.
    """
    most = max((len(one) for one in logs), default=0)
    kept = [one for one in logs if one and len(one) >= min(most, LEAST_PASSES)]
    if not kept:
        return None
    least = min(len(one) for one in kept)
    turn = Turns(logs=tuple(_mean([one[number] for one in kept]) for number in range(least)))
    middle = np.array([_mean([_mean(one) for one in kept])])
    evidence = replace(_evidence([turn.logs], [turn]), log=middle, rest=middle)
    return judge(evidence, settings)[0]
