"""The batch sweep: rates over the batch."""

from collections.abc import Sequence
from typing import Any, NamedTuple

from pydlbench.grouping import group_by
from pydlbench.report.blocks import Figure
from pydlbench.report.drawing import line_spec
from pydlbench.units import number


class Rate(NamedTuple):
    """The rate of a series with a batch."""

    series: str
    batch: int
    rate: float


def batches(rates: Sequence[Rate], unit: str) -> list[Figure]:
    """Return the figure of series with several batches; empty if there are none.

    Args:
        rates: rates of all series; the first one of a batch counts.
        unit: unit of the rates: ``images/s`` or ``samples/s``.
    """
    by_series = {
        name: {rate.batch: rate.rate for rate in reversed(line)}
        for name, line in group_by(rates, lambda rate: rate.series).items()
    }
    values: list[dict[str, Any]] = [
        {"series": name, "batch": batch, "rate": rate}
        | {"words": f"{name}, batch {batch}: {number(rate)} {unit}"}
        for name, line in by_series.items()
        for batch, rate in sorted(line.items())
        if len(line) > 1
    ]
    if not values:
        return []
    x = {"field": "batch", "type": "quantitative", "scale": {"type": "log", "base": 2}}
    x["axis"] = {"values": sorted({value["batch"] for value in values})}
    spec = line_spec(values, x, {"field": "rate", "type": "quantitative", "title": unit})
    text = f"Lines, {unit} over batch. {'. '.join(value['words'] for value in values)}."
    caption = "Batch on a logarithmic scale; the upright axis begins at zero."
    return [Figure("batches", f"Batch sweep: {unit}", text, caption, spec)]
