"""A line through the times of each collective operation, with what it is wrong by."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from pydlbench.records.collectives import CollectiveFit
from pydlbench.runner.interleaved import random_order
from pydlbench.timing.statistics import median, quantile
from pydlbench.words import COLLECTIVES

if TYPE_CHECKING:
    import random
    from collections.abc import Sequence

    from pydlbench.records.collectives import CollectiveRow


# Sizes that a line can be wrong at: two have no error.
_LEAST: Final = 3
# Fewer visits have no interval, as elsewhere.
_VISITS: Final = 6
_RESAMPLED: Final = 400
_CONFIDENCE: Final = 0.95


def fits(rows: Sequence[CollectiveRow]) -> list[CollectiveFit]:
    """Fit ``t = alpha + S / B`` to each operation that has three sizes or more.

    Relative errors are what is squared: in a step a message of a kilobyte that takes twice as long
    is no less wrong than one of a gigabyte. Intervals come from visits that are drawn again: times
    of one visit share its processes.

    Args:
        rows: of one place.
    """
    found = []
    for operation in COLLECTIVES:
        own = [one for one in rows if one.case.operation == operation and one.time is not None]
        if len({one.case.bytes for one in own}) >= _LEAST:
            found.append(_fit(operation, own))
    return found


def _fit(operation: str, rows: Sequence[CollectiveRow]) -> CollectiveFit:
    sizes = [one.case.bytes for one in rows]
    times = [one.time.median for one in rows if one.time is not None]
    alpha, slope = _line(sizes, times)
    lines = _resampled(rows, random_order(0))
    alphas, slopes = _ends([one for one, _ in lines]), _ends([one for _, one in lines])
    return CollectiveFit(
        operation=operation,
        ranks=rows[0].place.ranks,
        sizes=len(rows),
        alpha_s=alpha,
        alpha_low=alphas[0],
        alpha_high=alphas[1],
        bytes_per_s=_rate(slope),
        bytes_low=_rate(slopes[1]),
        bytes_high=_rate(slopes[0]),
        errors={
            size: (alpha + size * slope) / time - 1 for size, time in zip(sizes, times, strict=True)
        },
    )


def _rate(slope: float | None) -> float | None:
    """Return bytes per second; None where a byte costs nothing, or nobody knows what."""
    return 1 / slope if slope else None


def _ends(values: Sequence[float]) -> tuple[float | None, float | None]:
    if not values:
        return None, None
    return quantile(values, (1 - _CONFIDENCE) / 2), quantile(values, (1 + _CONFIDENCE) / 2)


def _resampled(rows: Sequence[CollectiveRow], rng: random.Random) -> list[tuple[float, float]]:
    """Return the lines of visits that are drawn again, the same for all sizes; none of few."""
    visits = [one.time.visit_s for one in rows if one.time is not None]
    count = min(map(len, visits))
    if count < _VISITS:
        return []
    sizes = [one.case.bytes for one in rows]
    lines = []
    for _ in range(_RESAMPLED):
        drawn = rng.choices(range(count), k=count)
        lines.append(_line(sizes, [median(one[lap] for lap in drawn) for one in visits]))
    return lines


def _line(sizes: Sequence[int], times: Sequence[float]) -> tuple[float, float]:
    """Return alpha and 1 / B of the line with the least sum of squared relative errors.

    Neither is negative: a latency below zero, which curved times may ask for, is none.
    """
    # Of 1 = alpha / t + S / (B t), by the normal equations.
    ones = [1 / time for time in times]
    slopes = [size / time for size, time in zip(sizes, times, strict=True)]
    aa, bb = sum(x * x for x in ones), sum(x * x for x in slopes)
    ab = sum(x * y for x, y in zip(ones, slopes, strict=True))
    a, b = sum(ones), sum(slopes)
    whole = aa * bb - ab * ab
    alpha, per_byte = (a * bb - b * ab) / whole, (b * aa - a * ab) / whole
    if alpha < 0:
        alpha, per_byte = 0.0, b / bb
    elif per_byte <= 0:
        alpha, per_byte = a / aa, 0.0
    return alpha, per_byte
