"""How sure a sum of rows is, and which of them are visited again for its sake.

A round visits every row once, so the rows' times of one round make one sum: drift that all rows had
in common is in it. The sum's interval is that of the median of these sums. It is no sum of the
rows' own half-widths, which would take a machine that is slow for a minute for as many independent
errors as there are rows.

Rows that hardly move the sum are visited less: the error that a row adds is its weight (how often
it is in the sum) times the deviation of its visits, and the best use of the same number of visits
gives each row a number in proportion to that (Neyman, J. R. Stat. Soc. 97, 1934). After the rounds
that all rows share, those at the end of that list, which together make a twentieth of the sum's
variance, have visits enough.
"""

from __future__ import annotations

import math
import statistics
from typing import TYPE_CHECKING, Final

from pydlbench.analysis.dominance import TimedItem
from pydlbench.timing.policy import LEAST_ROUNDS
from pydlbench.timing.statistics import median_interval

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from pydlbench.records.measurement import Measurement
    from pydlbench.records.specs import KernelSpec
    from pydlbench.runner.repetitions import Effort

# Rounds that all rows share: fewer visits have no deviation to speak of.
_SHARED: Final = 3
# Of the variance of the sum: what may be left to the rows that are visited no more.
_TAIL: Final = 0.05
#: A kernel with cold caches that is so near to the one with hot ones adds half of that to the sum.
ALIKE: Final = 0.02


def half_width_s(
    weights: Mapping[KernelSpec, float], rows: Mapping[KernelSpec, Measurement]
) -> float:
    """Return half of the width of the interval of a weighted sum of rows, in seconds.

    It is that of the rounds' sums, of the rows that have visits enough: four, or as many as any row
    has where none has four; a row with more visits than another counts with its first ones. To this
    the other rows are added as independent errors (root of the sum of squares), each with the
    half-width of its own interval (the quartiles where there is none). A disturbed visit that was
    left out moves its row's later ones by a round, and rows that an earlier task of a sweep has
    measured have rounds of their own time.

    Args:
        weights: how often each row is in the sum.
        rows: at least these; one without a time counts as nothing.
    """
    times = {spec: time for spec in weights if (time := rows[spec].time) is not None}
    most = max((len(each.visit_s) for each in times.values()), default=0)
    enough = max(2, min(LEAST_ROUNDS, most))
    complete = {spec: each for spec, each in times.items() if len(each.visit_s) >= enough}
    rounds = min((len(each.visit_s) for each in complete.values()), default=0)
    sums = [
        sum(weights[spec] * each.visit_s[number] for spec, each in complete.items())
        for number in range(rounds)
    ]
    interval = median_interval(sums)
    squares = 0.0 if interval is None else ((interval.high - interval.low) / 2) ** 2
    for spec, entry in times.items():
        if spec not in complete:
            squares += (weights[spec] * TimedItem.from_summary(entry).half_width_s) ** 2
    return math.sqrt(squares)


def sharing(weights: Mapping[KernelSpec, float], hot: Mapping[KernelSpec, KernelSpec]) -> Effort:
    """Return what tells which rows of a sum need no further visit.

    Args:
        weights: how often each row is in the sum.
        hot: of a case with cold caches, the same with hot ones.
    """

    def reason(specs: Sequence[KernelSpec], rows: Mapping[KernelSpec, Measurement]) -> str | None:
        (spec,) = specs  # native rows compete with nobody
        row = rows.get(spec)
        if row is None or row.time is None or row.contended:
            return None
        if _is_like(row, rows.get(hot.get(spec, spec))):
            return "as fast as with hot caches, and bound by its arithmetic"
        if row.time.repetitions < _SHARED:
            return None
        variances = {
            each: (weight * statistics.stdev(time.visit_s)) ** 2
            for each, weight in weights.items()
            if each in rows and (time := rows[each].time) is not None and len(time.visit_s) > 1
        }
        own = variances.get(spec, 0.0)
        tail = sum(each for each in variances.values() if each <= own)
        if tail > _TAIL * sum(variances.values()):
            return None
        return f"it has less than {_TAIL:.0%} of the sum's variance, others like it included"

    return reason


def _is_like(cold: Measurement, hot: Measurement | None) -> bool:
    """Whether cold caches hardly matter to a kernel that its arithmetic bounds."""
    if hot is None or hot is cold or hot.time is None or cold.time is None or hot.contended:
        return False
    bound = hot.roofline.bound if hot.roofline else None
    return bound == "compute" and abs(cold.time.median / hot.time.median - 1) <= ALIKE
