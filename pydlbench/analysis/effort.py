"""The interval of a sum of rows, and the rows that need further visits for it.

A round visits every row once, so the times of one round give one sum, with the drift that all rows
have in common. The interval is that of the median of these sums. Adding up the half-widths of the
rows would count a minute in which the machine was slow as an independent error of every row.

Rows that hardly affect the sum are visited less: the error of a row is its weight (the number of
its occurrences in the sum) times the deviation of its visits, and for a given number of visits the
best allocation is in proportion to that (Neyman, J. R. Stat. Soc. 97, 1934). After the first round
the shortest rows, which together make a hundredth of the sum's variance if all rows deviate by the
same share of their times, are not visited again; after three rounds, by the deviations of their
visits, those that make a twentieth.
"""

import math
import statistics
from collections.abc import Mapping, Sequence
from typing import Final

from pydlbench.analysis.dominance import TimedItem
from pydlbench.records.measurement import KernelSpec, Measurement
from pydlbench.runner.session import Effort
from pydlbench.timing.policy import LEAST_ROUNDS
from pydlbench.timing.statistics import median_interval

# Number of rounds from which visits give a deviation.
_SHARED_ROUNDS: Final = 3
# Maximum share of the sum's variance from the rows that are not visited again: before deviations
# are known (those of short kernels are two or three times as large as others), and then.
_EARLY_TAIL_SHARE: Final = 0.01
_TAIL_SHARE: Final = 0.05
# Relative difference between cold and hot caches up to which the cold row needs no further visit:
# it moves the sum by half of that.
_COLD_TOLERANCE: Final = 0.02


def half_width_s(
    weights: Mapping[KernelSpec, float], rows: Mapping[KernelSpec, Measurement]
) -> float:
    """Return half of the width of the interval of a weighted sum of rows, in seconds.

    It is the interval of the rounds' sums over rows with enough visits: four, or the largest number
    if no row has four; further visits of a row are not used. The other rows are added as
    independent errors (root of the sum of squares), each with the half-width of its own interval
    (the quartiles without one). If a disturbed visit was left out, the later ones of its row move
    by a round; rows that an earlier task of a sweep measured have rounds of another time.

    Args:
        weights: occurrences of each row in the sum.
        rows: measurements of at least these rows; a row without a time counts as zero.
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
    """Return the function that says why rows of a sum need no further visit, if so.

    Args:
        weights: occurrences of each row in the sum.
        hot: for each spec with cold caches, the same spec with hot caches.
    """

    def reason(specs: Sequence[KernelSpec], rows: Mapping[KernelSpec, Measurement]) -> str | None:
        (spec,) = specs  # native rows of an estimate are not interleaved
        row = rows.get(spec)
        if row is None or row.time is None or row.contended:
            return None
        if _is_like(row, rows.get(hot.get(spec, spec))):
            return "as fast as with hot caches, and bound by its arithmetic"
        early = row.time.repetitions < _SHARED_ROUNDS
        if early and not all(each in rows for each in weights):
            return None
        share = _EARLY_TAIL_SHARE if early else _TAIL_SHARE
        variances = {
            each: (weight * (time.median if early else statistics.stdev(time.visit_s))) ** 2
            for each, weight in weights.items()
            if each in rows and (time := rows[each].time) is not None
            if early or len(time.visit_s) > 1
        }
        limit = variances.get(spec, 0.0)
        tail = sum(variance for variance in variances.values() if variance <= limit)
        if tail > share * sum(variances.values()):
            return None
        return f"it has less than {share:.0%} of the sum's variance, others like it included"

    return reason


def _is_like(cold: Measurement, hot: Measurement | None) -> bool:
    """Whether cold caches hardly matter to a compute-bound kernel."""
    if hot is None or hot is cold or hot.time is None or cold.time is None or hot.contended:
        return False
    bound = hot.roofline.bound if hot.roofline else None
    return bound == "compute" and abs(cold.time.median / hot.time.median - 1) <= _COLD_TOLERANCE
