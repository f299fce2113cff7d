"""The fastest of several subjects, and the ratios of the others to it."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence

from pydlbench.study.estimate import Estimate, contrast
from pydlbench.study.table import Series
from pydlbench.timing.statistics import median


def ratios(
    series: Mapping[int, Series], eligible: Collection[int] | None = None
) -> tuple[int, dict[int, Estimate]]:
    """Return the fastest subject, and the ratio of each subject's time to it.

    Ratios are over common rounds; that of the fastest subject is 1.

    Args:
        series: visits of the subjects of one problem, by index.
        eligible: indices of the subjects that may be the fastest, at least one; None is all.
    """
    able = sorted(index for index in series if eligible is None or index in eligible)
    estimates = {
        best: {index: ratio(visits, series[best]) for index, visits in series.items()}
        for best in able
    }
    fastest = max(able, key=lambda best: (*_rank(estimates[best], able), -series[best].median))
    return fastest, estimates[fastest]


def ratio(own: Series, best: Series) -> Estimate:
    """Return the ratio of two subjects' times; without a common round that of their medians.

    Args:
        own: visits of the subject in the numerator.
        best: visits of the subject in the denominator.
    """
    paired = contrast(own, best)
    if paired is not None:
        return paired
    return Estimate(
        median=own.median / best.median, interval=None, rounds=0, disturbed=0, reason=""
    )


def _rank(estimates: Mapping[int, Estimate], able: Sequence[int]) -> tuple[bool, float]:
    """Return the rank of a subject as the fastest, given the ratios of all subjects to it.

    Medians of all rounds mislead: a subject with more rounds while the machine was fast has a
    smaller median without being faster. The ratios may be cyclic: of three equally fast kernels
    each may beat the next in their common rounds. Therefore a subject ranks higher if no other is
    faster beyond its interval, then by its smallest ratio.
    """
    others = [estimates[index] for index in able]
    beaten = any((other.interval.high if other.interval else other.median) < 1 for other in others)
    return not beaten, min(1.0, *(other.median for other in others))


def clock_beside(own: Series, other: Series) -> float | None:
    """Return the core clock in Hz that was read beside another subject in the same rounds.

    Args:
        own: visits of a subject whose process reads no clock.
        other: visits of a subject on the same cores whose process reads it.
    """
    rounds = own.by_round()
    clocks = [clock for number, clock in other.clocks_by_round().items() if number in rounds]
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
