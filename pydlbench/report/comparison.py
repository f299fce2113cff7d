"""Settings side by side: which precision, layout, cache state... is faster, and by how much."""

from __future__ import annotations

from typing import TYPE_CHECKING

from pydlbench.results.axes import AXES, axis_values, label
from pydlbench.results.columns import number, percent, time_in, time_unit

if TYPE_CHECKING:
    from collections.abc import Sequence

    from pydlbench.results.parts import TimeSummary
    from pydlbench.results.records import Measurement

__all__ = ["compare_settings"]

# Rows of one run are timed one after another, and the machine drifts in between by several
# percent, which no interval of a single row shows.
_CLAIM = 1.10
_TOO_CLOSE = "too close to tell apart unless interleaved"


def compare_settings(timed: Sequence[Measurement], settings: Sequence[str]) -> list[str]:
    """Return one sentence about rows that differ along ``settings``.

    With one such axis its fastest and slowest value are compared over the rows that all values
    have; with several, the single extremes of a layer, or the row furthest from its roof.

    Args:
        timed: ``ok`` rows, at least two.
        settings: Axes other than layer and pass along which they differ.
    """
    if len(settings) == 1:
        return _one_axis(timed, settings[0])
    one_problem = len({(row.layer, row.problem, row.pass_) for row in timed}) == 1
    if one_problem:
        ordered = sorted(timed, key=lambda row: row.time.median if row.time else 0.0)
        fast, slow = ordered[0], ordered[-1]
        ratio = slow.time.median / fast.time.median if slow.time and fast.time else 1.0
        name = label(fast, settings)
        if ratio < _CLAIM:
            return [f"{len(timed)} settings of {fast.layer} differ by {_gap(ratio)}: {_TOO_CLOSE}."]
        text = f"fastest of {len(timed)} settings: {name}, {_ratio(ratio)} faster than "
        return [f"{text}{_without_layer(slow, settings)}."]
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
    groups: dict[tuple[str, ...], dict[str, Measurement]] = {}
    for row in timed:
        key = tuple(AXES[name](row) for name in others)
        groups.setdefault(key, {})[AXES[axis](row)] = row
    common = [group for group in groups.values() if all(value in group for value in values)]
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
    if ratio < _CLAIM:
        return [f"{quick} and {late} differ by {_gap(ratio)}{per}{over} ({times}): {_TOO_CLOSE}."]
    if sums[fast][2] >= sums[slow][0]:
        return [f"{quick} and {late} do not differ{per} beyond their intervals{over} ({times})."]
    return [f"{quick} is {_ratio(ratio)} faster{per} than {late}{over} ({times})."]


def _ratio(value: float) -> str:
    """Two digits: more would be drift."""
    return f"{number(float(f'{value:.1e}'), 2)}x"


def _gap(ratio: float) -> str:
    gap = int(100 * (ratio - 1))  # rounded down: 9.9 % is not yet the 10 % of a claim
    return f"{gap} %" if gap else "less than 1 %"


def _add(rows: Sequence[Measurement], axis: str) -> tuple[float, float, float]:
    """Add up lower ends, medians and upper ends; ends of a sum so are wider than needed."""
    low = middle = high = 0.0
    for row in rows:
        if row.time is None:
            continue
        share = 1 / row.batch if axis == "batch" else 1.0
        bottom, top = _ends(row.time)
        low += share * bottom
        middle += share * row.time.median
        high += share * top
    return low, middle, high


def _ends(time: TimeSummary) -> tuple[float, float]:
    if time.ci_low is None or time.ci_high is None:
        return time.q1, time.q3
    return time.ci_low, time.ci_high


def _name(axis: str, value: str) -> str:
    threads = "1 thread" if value == "1" else f"{value} threads"
    plain = {"batch": f"batch {value}", "threads": threads}
    return plain.get(axis, value or {"propagation": "inference"}.get(axis, f"no {axis}"))


def _without_layer(row: Measurement, settings: Sequence[str]) -> str:
    return label(row, settings).removeprefix(row.layer).strip() or row.layer
