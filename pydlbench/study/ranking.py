"""Who of several subjects is the fastest, and how much slower the others are."""

from __future__ import annotations

from typing import TYPE_CHECKING

from pydlbench.study.estimate import Estimate, contrast
from pydlbench.timing.statistics import median

if TYPE_CHECKING:
    from collections.abc import Collection, Mapping, Sequence

    from pydlbench.study.table import Series


def ratios(
    series: Mapping[int, Series], eligible: Collection[int] | None = None
) -> tuple[int, dict[int, Estimate]]:
    """Return which subject is the fastest, and each one's ratio to it.

    Ratios are of rounds that both were in; the fastest one's own is 1.

    Args:
        series: of one problem's subjects, by index.
        eligible: who may be the one that others are compared with, at least one of them; None is
            all.
    """
    able = sorted(index for index in series if eligible is None or index in eligible)
    estimates = {
        best: {index: ratio(own, series[best]) for index, own in series.items()} for best in able
    }
    fastest = max(able, key=lambda best: (*_rank(estimates[best], able), -series[best].median))
    return fastest, estimates[fastest]


def ratio(own: Series, best: Series) -> Estimate:
    """Return a subject's ratio to another; without a common round that of their medians.

    Args:
        own: a subject's visits.
        best: the other one's.
    """
    paired = contrast(own, best)
    if paired is not None:
        return paired
    return Estimate(
        median=own.median / best.median, interval=None, rounds=0, disturbed=0, reason=""
    )


def _rank(estimates: Mapping[int, Estimate], able: Sequence[int]) -> tuple[bool, float]:
    """How well somebody serves as the fastest: best is whom nobody else has a ratio below 1 to.

    Neither medians of all rounds tell (whoever ran on while the machine was fast has the smaller
    one, and yet is not faster), nor always the rounds' ratios: of three kernels that are as good as
    equal, each may be faster than the next in the rounds that the two of them were in. Then it is
    whom nobody is faster than beyond an interval, and of these whose least ratio is nearest to 1.
    """
    others = [estimates[index] for index in able]
    beyond = any((each.interval.high if each.interval else each.median) < 1 for each in others)
    return not beyond, min(1.0, *(each.median for each in others))


def clock_beside(own: Series, other: Series) -> float | None:
    """Return the core clock in Hz that was read beside another subject in the same rounds.

    Args:
        own: of a subject whose process reads no clock.
        other: of one on the same cores, whose process does.
    """
    mine = own.by_round()
    clocks = [clock for number, clock in other.clocks_by_round().items() if number in mine]
    return median(clocks) if clocks else None


def saved_s(default: Series, kept: Series) -> float:
    """Return the seconds per execution that an allocator saves by keeping its pages.

    The result is 0 if the rounds disagree, or if the page faults do not decrease: another process
    may be faster for other reasons.

    Args:
        default: visits with the default allocator.
        kept: visits of the same kernel in the same rounds, with an allocator that keeps its pages.
    """
    if default.faults is not None and kept.faults is not None and default.faults - kept.faults < 1:
        return 0.0
    paired = contrast(kept, default)
    if paired is None or paired.interval is None or paired.interval.high >= 1:
        return 0.0
    return default.median * (1 - paired.median)
