"""The part that dominates a sum, its share with an interval, and whether the data can tell.

The parts of the sum are weighted sums of measured times. The share of a part is a function of all
times, and its interval follows by the delta method: with the share
``s = sum a_k x_k / sum w_k x_k`` of times ``x_k`` with half widths ``h_k``, ::

    half width = sqrt(sum ((a_k - s w_k) h_k)^2) / sum w_k x_k

A measurement in both part and sum counts once. Two parts can be distinguished if the interval of
their difference, computed in the same way, does not contain zero. Errors of the times are assumed
to be independent: drift of the machine between them moves the shares by more.
"""

import math
from collections import Counter
from collections.abc import Hashable, Mapping
from dataclasses import dataclass
from typing import Self, TypeVar

from pydlbench.records.measurement import TimeSummary
from pydlbench.records.trace import Dominant

Key = TypeVar("Key", bound="Hashable")


@dataclass(frozen=True, slots=True, kw_only=True)
class TimedItem:
    """A measured time.

    Attributes:
        seconds: median of the time.
        half_width_s: half of its interval, in seconds.
        known: false if ``half_width_s`` is not from an interval but from the distance of the
            quartiles, which only distinguishes large parts of a sum from small ones.
    """

    seconds: float
    half_width_s: float
    known: bool = True

    @classmethod
    def from_summary(cls, time: TimeSummary) -> Self:
        """Return a row's time; with the quartiles if it has no interval."""
        if time.ci_low is None or time.ci_high is None:
            return cls(seconds=time.median, half_width_s=(time.q3 - time.q1) / 2, known=False)
        return cls(seconds=time.median, half_width_s=(time.ci_high - time.ci_low) / 2)


def dominance(
    parts: Mapping[str, Mapping[Key, float]], times: Mapping[Key, TimedItem]
) -> Dominant | None:
    """Return the largest part of a sum; None if the sum is zero.

    Args:
        parts: the weights of times in each part, by name.
        times: the times by the same keys.
    """
    sums = {
        name: sum(weight * times[key].seconds for key, weight in part.items())
        for name, part in parts.items()
    }
    whole = sum((Counter(part) for part in parts.values()), Counter[Key]())
    total = sum(sums.values())
    if not sums or not total > 0:
        return None
    first, *others = sorted(sums, key=lambda name: -sums[name])
    share = sums[first] / total
    width = _half_width(parts[first], whole, share, times) / total
    complete = all(times[key].known for key in whole.keys() | parts[first].keys())
    return Dominant(
        name=first,
        share=share,
        ci_low=max(0.0, share - width) if complete else None,
        ci_high=min(1.0, share + width) if complete else None,
        rivals=tuple(
            name
            for name in others
            if sums[first] - sums[name] <= _half_width(parts[first], parts[name], 1.0, times)
        ),
    )


def _half_width(
    part: Mapping[Key, float],
    other: Mapping[Key, float],
    scale: float,
    times: Mapping[Key, TimedItem],
) -> float:
    """Return the half width of a part minus another one times a factor, in seconds."""
    return math.sqrt(
        sum(
            ((part.get(key, 0.0) - scale * other.get(key, 0.0)) * times[key].half_width_s) ** 2
            for key in part.keys() | other.keys()
        )
    )
