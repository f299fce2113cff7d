"""The batch sweep: what a larger batch gives."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple

from pydlbench.report.blocks import Figure
from pydlbench.report.drawing import series
from pydlbench.units import number

if TYPE_CHECKING:
    from collections.abc import Sequence


class Rate(NamedTuple):
    """What a series reaches with a batch."""

    series: str
    batch: int
    rate: float


def batches(rates: Sequence[Rate], unit: str) -> list[Figure]:
    """Return the figure of series with several batches; none where there is none.

    Args:
        rates: of all series.
        unit: of the rates: ``images/s`` or ``samples/s``.
    """
    by_series: dict[str, dict[int, float]] = {}
    for item in rates:
        by_series.setdefault(item.series, {}).setdefault(item.batch, item.rate)
    several = {name: line for name, line in by_series.items() if len(line) > 1}
    if not several:
        return []
    values: list[dict[str, Any]] = [
        {"series": name, "batch": batch, "rate": rate}
        | {"words": f"{name}, batch {batch}: {number(rate)} {unit}"}
        for name, line in several.items()
        for batch, rate in sorted(line.items())
    ]
    ticks = sorted({value["batch"] for value in values})
    look = series(list(several))
    encoding = {
        "x": {"field": "batch", "type": "quantitative", "scale": {"type": "log", "base": 2}}
        | {"axis": {"values": ticks}},
        "y": {"field": "rate", "type": "quantitative", "title": unit},
        "color": look["color"],
    }
    spec = {
        "height": 240,
        "data": {"values": values},
        "layer": [
            {"mark": {"type": "line", "strokeWidth": 1.3}, "encoding": encoding},
            {
                "mark": {"type": "point"},
                "encoding": {**encoding, **look, "description": {"field": "words"}},
            },
        ],
    }
    text = f"Lines, {unit} over batch. {'. '.join(value['words'] for value in values)}."
    caption = "Batch on a logarithmic scale; the upright axis begins at zero."
    return [Figure("batches", f"Batch sweep: {unit}", text, caption, spec)]
