"""The time line of a step: what a device executes, from the begin of the step to its end."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from pydlbench.report.blocks import Figure
from pydlbench.units import format_seconds, percent, time_unit


def timeline_figure(rows: Mapping[str, Sequence[float]], step_s: float) -> list[Figure]:
    """Return the figure of a time line; none of an empty one.

    Args:
        rows: seconds in each of equal parts of the step, by category.
        step_s: time of the step.
    """
    if not rows or not step_s:
        return []
    count = len(next(iter(rows.values())))
    part_s = step_s / count
    factor, unit = time_unit([step_s])
    largest = sorted(rows, key=lambda category: -sum(rows[category]))
    values = [
        {
            "time": factor * part_s * place,
            "end": factor * part_s * (place + 1),
            "busy": seconds / part_s,
            "category": category,
            "order": largest.index(category),
            "words": f"{category}: {percent(seconds / part_s)}",
        }
        for category in largest
        for place, seconds in enumerate(rows[category])
        if seconds > 0
    ]
    busy = ", ".join(f"{each} {format_seconds(sum(rows[each]))}" for each in largest)
    spec = {
        "height": 160,
        "data": {"values": values},
        "mark": {"type": "bar", "binSpacing": 0},
        "encoding": {
            "x": {"field": "time", "type": "quantitative", "title": unit, "bin": "binned"},
            "x2": {"field": "end"},
            "y": {
                "field": "busy",
                "type": "quantitative",
                "title": "busy",
                "axis": {"format": "%"},
            },
            "color": {"field": "category", "type": "nominal", "sort": largest},
            "order": {"field": "order", "type": "quantitative"},
            "description": {"field": "words"},
        },
    }
    caption = "The first step. White is idle; above 100 % streams overlap."
    return [Figure("timeline", "What the device executes", f"Time line. {busy}.", caption, spec)]
