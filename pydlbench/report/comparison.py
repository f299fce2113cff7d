"""Settings side by side: which precision, layout, cache state... is faster, and by how much."""

from __future__ import annotations

from typing import TYPE_CHECKING

from pydlbench.results.axes import AXES, axis_values, label
from pydlbench.results.columns import number, percent
from pydlbench.units import format_seconds

if TYPE_CHECKING:
    from collections.abc import Sequence

    from pydlbench.results.parts import TimeSummary
    from pydlbench.results.records import Measurement

__all__ = ["compare_settings"]


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
        text = f"fastest of {len(timed)} settings: {name}, {number(ratio)}x faster than "
        return [f"{text}{_without_layer(slow, settings)}."]
    known = [row for row in timed if row.roofline is not None]
    if not known:
        return [f"{len(timed)} rows were timed."]
    worst = min(known, key=lambda row: row.roofline.efficiency if row.roofline else 0.0)
    reached = percent(worst.roofline.efficiency) if worst.roofline else "-"
    return [f"furthest from its roof: {label(worst, settings)} with {reached} of it."]


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
    slow = max(values, key=lambda value: sums[value][1])
    over = "" if len(common) == 1 else f", added up over {len(common)} rows each"
    per = " per image" if axis == "batch" else ""
    quick, late = _name(axis, fast), _name(axis, slow)
    if sums[fast][2] >= sums[slow][0]:
        return [f"{quick} and {late} do not differ{per} beyond their intervals{over}."]
    ratio = number(sums[slow][1] / sums[fast][1])
    times = f"{format_seconds(sums[fast][1])} against {format_seconds(sums[slow][1])}"
    return [f"{quick} is {ratio}x faster{per} than {late}{over} ({times})."]


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
    plain = {"batch": f"batch {value}", "threads": f"{value} threads"}
    return plain.get(axis, value or {"propagation": "inference"}.get(axis, f"no {axis}"))


def _without_layer(row: Measurement, settings: Sequence[str]) -> str:
    return label(row, settings).removeprefix(row.layer).strip() or row.layer
