"""How many repetitions a study needs: planned once, from what is known before."""

from __future__ import annotations

import math
import statistics
from typing import TYPE_CHECKING, Final

from pydlbench.timing.policy import LEAST_ROUNDS
from pydlbench.timing.statistics import median

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

#: What a row's interval is to be where nobody says otherwise: a half-width relative to its median.
WIDTH: Final = 0.03
#: As many have an interval that assumes nothing. More within a run tell little for their time: what
#: the machine does over hours none of them sees. Who asks for a width may have more.
MOST: Final = 6
MOST_FOR_WIDTH: Final = 30
# Half of the 95 % interval of a normal sample's median over the deviation, times the root of n.
_HALF: Final = 1.96 * math.sqrt(math.pi / 2)


def repetitions(scatter: float | None, width: float | None = None) -> int:
    """Return how many repetitions give a median whose 95 % interval is so narrow.

    Args:
        scatter: of :func:`scatter`; None if unknown.
        width: half of the interval that is wanted, relative likewise; None is :data:`WIDTH`, as
            far as :data:`MOST` repetitions reach it.
    """
    if scatter is None:
        return LEAST_ROUNDS
    most = MOST if width is None else MOST_FOR_WIDTH
    wanted = math.ceil((_HALF * scatter / (width or WIDTH)) ** 2)
    return min(most, max(LEAST_ROUNDS, wanted))


def scatter(times: Sequence[float]) -> float | None:
    """Return the standard deviation of repetitions, relative to their mean; None of fewer than two.

    Args:
        times: of a row's repetitions, in any unit.
    """
    if len(times) < 2:
        return None
    return statistics.stdev(times) / statistics.fmean(times)


def planned(scatters: Iterable[float | None], width: float | None = None) -> int:
    """Return how many repetitions rows need that are taken together.

    Args:
        scatters: what is known of each row: the median counts, so that a disturbed row does not
            plan for all.
        width: see :func:`repetitions`.
    """
    known = [scatter for scatter in scatters if scatter is not None]
    return repetitions(median(known) if known else None, width)
