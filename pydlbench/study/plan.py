"""How many repetitions a study needs: planned once, from what is known before."""

import math
import statistics
from collections.abc import Iterable, Sequence
from typing import Final

from pydlbench.timing.policy import LEAST_ROUNDS
from pydlbench.timing.statistics import median

#: Default half-width of a row's interval, relative to its median.
WIDTH: Final = 0.03
#: Six repetitions have an interval that assumes no distribution. More of them within a run gain
#: little: none of them sees how the machine varies over hours. An explicit width may need more.
MAX_REPETITIONS: Final = 6
MAX_REPETITIONS_FOR_WIDTH: Final = 30
# Half-width of the 95 % interval of a normal sample's median, times sqrt(n) over the deviation.
_HALF_WIDTH: Final = 1.96 * math.sqrt(math.pi / 2)


def repetitions(deviation: float | None, width: float | None = None) -> int:
    """Return the number of repetitions that makes the 95 % interval of the median narrow enough.

    Args:
        deviation: see :func:`relative_deviation`; None if unknown.
        width: half-width wanted, relative to the median; None is :data:`WIDTH`, if
            :data:`MAX_REPETITIONS` are enough for it.
    """
    if deviation is None:
        return LEAST_ROUNDS
    most = MAX_REPETITIONS if width is None else MAX_REPETITIONS_FOR_WIDTH
    wanted = math.ceil((_HALF_WIDTH * deviation / (width or WIDTH)) ** 2)
    return min(most, max(LEAST_ROUNDS, wanted))


def relative_deviation(times: Sequence[float]) -> float | None:
    """Return the standard deviation over the mean; None for fewer than two times.

    Args:
        times: times of a row's repetitions, in any unit.
    """
    return statistics.stdev(times) / statistics.fmean(times) if len(times) > 1 else None


def planned_repetitions(deviations: Iterable[float | None], width: float | None = None) -> int:
    """Return the number of repetitions of rows that are measured together.

    Args:
        deviations: relative deviation of each row. Their median counts, so that a single disturbed
            row does not determine the number for all.
        width: see :func:`repetitions`.
    """
    known = [deviation for deviation in deviations if deviation is not None]
    return repetitions(median(known) if known else None, width)
