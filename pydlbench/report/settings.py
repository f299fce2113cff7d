"""Conclusions on settings side by side: which precision, layout, cache state... is faster."""

from __future__ import annotations

from collections.abc import Sequence

from pydlbench.grouping import group_by
from pydlbench.records.measurement import Measurement
from pydlbench.report.columns import AXES, axis_values, label
from pydlbench.units import number, percent, time_in, time_unit

# Minimum ratio that counts as a difference. Rows of one run are timed one after another, and the
# machine drifts in between by several percent, which no interval of a single row shows.
_MIN_RATIO = 1.10
_TOO_CLOSE = "too close to tell apart unless interleaved"


def compare_settings(timed: Sequence[Measurement], settings: Sequence[str]) -> list[str]:
    """Return one sentence about rows that differ along ``settings``.

    Along one axis, its fastest and its slowest value are compared over the rows that all values
    have. With several axes, these are the fastest and the slowest row of a layer, or the row
    furthest from its roof.

    Args:
        timed: ``ok`` rows, at least two.
        settings: Axes other than layer and pass along which the rows differ.
    """
    if len(settings) == 1:
        return _one_axis(timed, settings[0])
    one_problem = len({(row.layer, row.problem, row.pass_) for row in timed}) == 1
    if one_problem:
        ordered = sorted(timed, key=lambda row: row.time.median if row.time else 0.0)
        fast, slow = ordered[0], ordered[-1]
        ratio = slow.time.median / fast.time.median if slow.time and fast.time else 1.0
        name = label(fast, settings)
        if ratio < _MIN_RATIO:
            return [f"{len(timed)} settings of {fast.layer} differ by {_gap(ratio)}: {_TOO_CLOSE}."]
        text = f"fastest of {len(timed)} settings: {name}, {_two_digits(ratio)} faster than "
        return [f"{text}{label(slow, settings).removeprefix(slow.layer).strip() or slow.layer}."]
    known = [row for row in timed if row.roofline is not None]
    if not known:
        return [f"{len(timed)} rows were timed."]
    worst = min(known, key=lambda row: row.roofline.efficiency if row.roofline else 0.0)
    reached = percent(worst.roofline.efficiency) if worst.roofline else "-"
    passes = ["pass"] if len({row.pass_ for row in timed}) > 1 else []
    name = label(worst, [*passes, *settings])
    return [f"furthest from its roof: {name} with {reached} of it."]


def _one_axis(timed: Sequence[Measurement], axis: str) -> list[str]:
    values = axis_values(timed, axis)
    others = [name for name in AXES if name not in {axis, "accumulate"}]
    by_others = group_by(timed, lambda row: tuple(AXES[name](row) for name in others))
    groups = [{AXES[axis](row): row for row in rows} for rows in by_others.values()]
    common = [group for group in groups if all(value in group for value in values)]
    if not common:
        return [f"{len(timed)} rows were timed; no row was timed for every {axis}."]
    sums = {value: _add([group[value] for group in common], axis) for value in values}
    fast = min(values, key=lambda value: sums[value][1])
    slow = max((value for value in values if value != fast), key=lambda value: sums[value][1])
    over = "" if len(common) == 1 else f", added up over {len(common)} rows each"
    per = " per image" if axis == "batch" else ""
    quick, late = _name(axis, fast), _name(axis, slow)
    unit = time_unit([sums[fast][1], sums[slow][1]])
    times = f"{time_in(unit, sums[fast][1])} against {time_in(unit, sums[slow][1])}"
    ratio = sums[slow][1] / sums[fast][1] if sums[fast][1] > 0 else 1.0
    if ratio < _MIN_RATIO:
        return [f"{quick} and {late} differ by {_gap(ratio)}{per}{over} ({times}): {_TOO_CLOSE}."]
    if sums[fast][2] >= sums[slow][0]:
        return [f"{quick} and {late} do not differ{per} beyond their intervals{over} ({times})."]
    return [f"{quick} is {_two_digits(ratio)} faster{per} than {late}{over} ({times})."]


def _two_digits(value: float) -> str:
    """Format a ratio with two digits: the others are drift."""
    return f"{number(float(f'{value:.1e}'), 2)}x"


def _gap(ratio: float) -> str:
    gap = int(100 * (ratio - 1))  # rounded down: 9.9 % is below the limit of 10 %
    return f"{gap} %" if gap else "less than 1 %"


def _add(rows: Sequence[Measurement], axis: str) -> tuple[float, float, float]:
    """Return the sums of lower ends, medians and upper ends, a conservative interval of the sum."""
    terms = [
        (row.time, row.batch if axis == "batch" else 1) for row in rows if row.time is not None
    ]
    return (
        sum((time.q1 if time.ci_low is None else time.ci_low) / per for time, per in terms),
        sum(time.median / per for time, per in terms),
        sum((time.q3 if time.ci_high is None else time.ci_high) / per for time, per in terms),
    )


def _name(axis: str, value: str) -> str:
    threads = "1 thread" if value == "1" else f"{value} threads"
    plain = {"batch": f"batch {value}", "threads": threads}
    return plain.get(axis, value or {"propagation": "inference"}.get(axis, f"no {axis}"))
