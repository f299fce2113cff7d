"""The estimator of all results: the median of the rounds' values, with an interval.

The value of a row in a round is its time. The contrast of two subjects is the ratio of their times
in the rounds that both were in, so that the state of the machine cancels. The interval is that of
the median (:func:`pydlbench.timing.statistics.median_interval`): it assumes that fewer than six
values are normally distributed, and assumes no distribution for six or more.

Interference is a covariate; no round is left out because of it. It never moves the median, but it
widens the interval to include

- the median of the undisturbed rounds;
- the median after each round's time is scaled by the share of the cores that the subject had: if
  all FMA bursts reached half of their throughput, the true time may be half of the measured one.

If half of the rounds or more were disturbed, the time is an upper bound, unless the median of the
undisturbed rounds is at most 2 % lower: the interference made no difference then.
"""

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Final

from pydlbench.study.table import Series, Visit
from pydlbench.timing.guards import describe_interference
from pydlbench.timing.policy import Policy
from pydlbench.timing.statistics import Interval, median, median_interval

# On undisturbed cores 95 of 100 FMA bursts reach 98 % or more; fewer means interference.
_MIN_FMA_SHARE: Final = 0.95
# Read bursts scatter more: by a tenth on quiet machines.
_MIN_READ_SHARE: Final = 0.75
# If the median of the undisturbed rounds is at least this share of that of all rounds, the
# interference made no difference.
_MIN_UNDISTURBED_RATIO: Final = 0.98
_POLICY: Final = Policy()


@dataclass(frozen=True, slots=True, kw_only=True)
class Estimate:
    """A median over rounds.

    Attributes:
        median: median of the rounds' values.
        interval: interval of the median, widened by interference; None for a single round.
        rounds: number of rounds.
        disturbed: number of disturbed rounds.
        undisturbed: median of the undisturbed rounds, for times only; None if there are none.
        reason: description of the interference; empty if there was none.
        again: number of rounds that were repeated because the first try was disturbed.
    """

    median: float
    interval: Interval | None
    rounds: int
    disturbed: int
    undisturbed: float | None = None
    reason: str
    again: int = 0

    @property
    def contended(self) -> bool:
        """Whether there is no verdict: most rounds were disturbed, and the others were faster."""
        if self.rounds == 0 or 2 * self.disturbed < self.rounds:
            return False
        return self.undisturbed is None or self.undisturbed < _MIN_UNDISTURBED_RATIO * self.median

    @property
    def second_tries(self) -> tuple[str, ...]:
        """A sentence on the repeated rounds; empty if none was repeated."""
        if not self.again:
            return ()
        return (f"disturbed by others and taken once more: {self.again} of {self.rounds} rounds",)

    @property
    def disturbances(self) -> tuple[str, ...]:
        """A sentence on the disturbed rounds; empty if none was disturbed."""
        if not self.disturbed:
            return ()
        return (f"disturbed rounds: {self.disturbed} of {self.rounds}: {self.reason}",)

    def above(self, limit: float) -> bool:
        """Whether the whole interval is above a limit."""
        return self.interval is not None and self.interval.low > limit


def estimate(series: Series) -> Estimate:
    """Return a subject's time in seconds: the median of its repetitions.

    Args:
        series: visits of the subject.
    """
    disturbances = _Disturbances(series)
    values = series.by_round()
    others = [value for number, value in values.items() if number not in disturbances.words]
    whole = _estimate(values, disturbances.shares, disturbances.words)
    return replace(whole, undisturbed=median(others) if others else None, again=series.again)


def contrast(own: Series, other: Series) -> Estimate | None:
    """Return the ratio of two subjects' times in the rounds of both; None if there is none.

    Args:
        own: visits of the subject in the numerator.
        other: visits of the subject in the denominator.
    """
    first, second = own.by_round(), other.by_round()
    shared = first.keys() & second.keys()
    if not shared:
        return None
    mine, theirs = _Disturbances(own), _Disturbances(other)
    return _estimate(
        {number: first[number] / second[number] for number in sorted(shared)},
        {number: mine.shares[number] / theirs.shares[number] for number in shared},
        {
            number: words
            for number in sorted(shared)
            if (words := mine.words.get(number) or theirs.words.get(number))
        },
    )


def estimate_values(
    values: Mapping[int, float], subjects: Collection[Series], *, signed: bool = False
) -> Estimate:
    """Return the median of values that were computed from several subjects, round by round.

    Args:
        values: at least one value, by round.
        subjects: visits of the subjects; interference with one of them disturbs the value.
        signed: whether the values are differences.
    """
    words = {
        number: seen for number, seen in disturbances_by_round(subjects).items() if number in values
    }
    return _estimate(values, {}, words, signed=signed)


def disturbances_by_round(series: Collection[Series]) -> dict[int, str]:
    """Return a description of the interference in each disturbed round of the subjects."""
    return {
        number: words for visits in series for number, words in _Disturbances(visits).words.items()
    }


def _estimate(
    values: Mapping[int, float],
    shares: Mapping[int, float],
    words: Mapping[int, str],
    *,
    signed: bool = False,
) -> Estimate:
    middle = median(values.values())
    interval = median_interval(values.values(), signed=signed)
    disturbed = [number for number in values if number in words]
    if interval is not None and disturbed:
        undisturbed = [value for number, value in values.items() if number not in words]
        scaled = median(value * shares.get(number, 1.0) for number, value in values.items())
        ends = [interval.low, interval.high, scaled]
        ends += [median(undisturbed)] if undisturbed else []
        interval = Interval(low=min(ends), high=max(ends))
    return Estimate(
        median=middle,
        interval=interval,
        rounds=len(values),
        disturbed=len(disturbed),
        reason=words[disturbed[len(disturbed) // 2]] if disturbed else "",
    )


class _Disturbances:
    """Interference in each round of a subject.

    Attributes:
        shares: by round the smallest share of the cores that the subject had; 1 if undisturbed.
        words: description of the interference in each disturbed round.
    """

    def __init__(self, series: Series) -> None:
        foreign = _waits_for_others(series)
        best = {
            level: _second_best([getattr(visit.interference, level) for visit in series])
            for level in ("llc", "memory")
        }
        self.shares: dict[int, float] = {}
        self.words: dict[int, str] = {}
        for visit in series:
            wait_s = visit.run_delay_s if foreign else 0.0
            self.shares[visit.round] = _share(visit, wait_s)
            words = describe_interference(
                disturbance=visit.disturbance,
                fma=visit.interference.fma,
                wait_s=wait_s,
                steal_s=visit.steal_s,
                wall_s=visit.wall_s,
                policy=_POLICY,
                involuntary=visit.involuntary,
            ) or _slow_reads(visit, best)
            if words:
                self.words[visit.round] = words


def _waits_for_others(series: Series) -> bool:
    """Whether waits are due to other processes and not to the subject's own threads.

    If all other processes together used less CPU time than the ticks at both ends of some visits
    can hide, the process has more threads than CPUs. Only the sum over all visits shows that.
    """
    taken = [visit.others_s for visit in series if visit.others_s is not None]
    wall_s = sum(visit.wall_s for visit in series)
    limit = max(_POLICY.others_fraction * wall_s, _POLICY.others_floor_s)
    counted = len(taken) == len(series) and wall_s >= 4 * _POLICY.others_floor_s
    return not (counted and sum(taken) < limit)


def _share(visit: Visit, wait_s: float) -> float:
    fma = visit.interference.fma
    share = 1.0 if fma is None or fma >= _MIN_FMA_SHARE else fma
    if visit.wall_s > 0 and wait_s > _POLICY.chunk_wait_floor_s:
        share = min(share, max(0.0, 1 - wait_s / visit.wall_s))
    return share or 1e-3


def _second_best(rates: Collection[float | None]) -> float | None:
    """Return the second highest rate: a single burst may be an outlier."""
    known = sorted(rate for rate in rates if rate is not None)
    return known[-2] if len(known) > 1 else None


def _slow_reads(visit: Visit, best: Mapping[str, float | None]) -> str:
    for level, name in (("llc", "last-level cache"), ("memory", "memory")):
        rate, reference = getattr(visit.interference, level), best[level]
        if rate is not None and reference is not None and rate < _MIN_READ_SHARE * reference:
            reached = f"{rate / reference:.0%} of their rate"
            return f"other processes used the {name}: reads ran at {reached}"
    return ""


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
