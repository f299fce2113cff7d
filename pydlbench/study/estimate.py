"""The one estimator: the paired value of each round, its median, and an interval that holds.

A row is the contrast of a subject with nothing: its value in a round is its time. The contrast of
two subjects is the ratio of their times in the rounds that both were in, so that whatever the
machine did to both cancels. The interval is that of the median of the rounds
(:func:`pydlbench.timing.statistics.median_interval`), which takes fewer than six for normal and
assumes nothing about the distribution of more.

Interference is a covariate and never a reason to leave a round out. It widens the interval in two
ways, and moves nothing:

- What the rounds without interference say for themselves is inside. Where a neighbour had the
  memory for half of the rounds, the interval reaches to where the other half lies.
- What the median would be, had each round been slowed by as much as its cores were used by others,
  is inside: where FMA bursts did half beside all rounds, the time may be half of what was measured.

Where it was seen in half of the rounds or more, the time is an upper bound, unless the median of
the other rounds is no more than 2 % below it: then what was seen made no difference here.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Final

from pydlbench.timing.guards import describe_interference
from pydlbench.timing.policy import Policy
from pydlbench.timing.statistics import Interval, median, median_interval

if TYPE_CHECKING:
    from collections.abc import Collection, Mapping

    from pydlbench.study.table import Series, Visit

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
        median: of the rounds' values.
        interval: of that median, widened by interference; None of a single round.
        rounds: how many values these are of.
        disturbed: beside how many of them somebody else used the machine.
        undisturbed: of times the median of the other rounds; None where there are none.
        reason: what was seen there, in words; empty without any.
        again: how many of its rounds were taken again, because others disturbed the first try.
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
        """Whether half of the rounds or more were disturbed, and the others were shorter.

        Then there is no verdict.
        """
        if self.rounds == 0 or 2 * self.disturbed < self.rounds:
            return False
        return self.undisturbed is None or self.undisturbed < _MIN_UNDISTURBED_RATIO * self.median

    @property
    def second_tries(self) -> tuple[str, ...]:
        """A sentence on the rounds that were taken a second time; none where none was."""
        if not self.again:
            return ()
        return (f"disturbed by others and taken once more: {self.again} of {self.rounds} rounds",)

    @property
    def disturbances(self) -> tuple[str, ...]:
        """A sentence on what others did beside its rounds; none where nothing was seen."""
        if not self.disturbed:
            return ()
        return (f"disturbed rounds: {self.disturbed} of {self.rounds}: {self.reason}",)

    def above(self, limit: float) -> bool:
        """Whether it is above a limit beyond doubt."""
        return self.interval is not None and self.interval.low > limit


def estimate(series: Series) -> Estimate:
    """Return a subject's time, in seconds: the median over its repetitions.

    Args:
        series: its visits.
    """
    disturbances = _Disturbances(series)
    values = series.by_round()
    others = [value for number, value in values.items() if number not in disturbances.words]
    whole = _estimate(values, disturbances.shares, disturbances.words)
    return replace(whole, undisturbed=median(others) if others else None, again=series.again)


def contrast(own: Series, other: Series) -> Estimate | None:
    """Return the ratio of two subjects' times over the rounds that both were in; None without any.

    Args:
        own: one of them.
        other: whom it is compared with.
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
    """Return the median of values that were made of several subjects' visits, round by round.

    Args:
        values: by round; at least one.
        subjects: that they were made of: what disturbed one of them disturbed the value.
        signed: the values are differences.
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
    """What others did beside each of a subject's rounds.

    Attributes:
        shares: by round, the least share of the cores that the subject had; 1 where nobody else
            was seen on them.
        words: what was seen, of the rounds that were disturbed.
    """

    def __init__(self, series: Series) -> None:
        foreign = _foreign(series)
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


def _foreign(series: Series) -> bool:
    """Whether waits are others' doing: threads of a process wait for each other, too.

    Where all others together took less of the CPUs than ticks at both ends of some visits can hide,
    the process has more threads than CPUs. Only the sum over all visits can tell.
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
    """The rate that two bursts have reached: one alone may have been lucky."""
    known = sorted(rate for rate in rates if rate is not None)
    return known[-2] if len(known) > 1 else None


def _slow_reads(visit: Visit, best: Mapping[str, float | None]) -> str:
    for level, name in (("llc", "last-level cache"), ("memory", "memory")):
        rate, reference = getattr(visit.interference, level), best[level]
        if rate is not None and reference is not None and rate < _MIN_READ_SHARE * reference:
            reached = f"{rate / reference:.0%} of their rate"
            return f"other processes used the {name}: reads ran at {reached}"
    return ""
