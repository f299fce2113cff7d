"""Sample distributions: every stored sample over its row's median, in order of time.

In each strip time runs from top to bottom, so that drift is a slant, and a warm-up or interference
a bend; two clusters side by side are two clocks.
"""

from collections.abc import Sequence
from typing import Any, Final, NamedTuple

from pydlbench.records.measurement import TimeSummary
from pydlbench.report.blocks import Figure
from pydlbench.report.drawing import LIGHT, labels, series
from pydlbench.units import format_seconds, holding, number

_HOW: Final = (
    "In each strip time runs from top to bottom; the band behind is the confidence interval of the "
    "median."
)
_MAX_STRIPS: Final = 24
_MAX_SAMPLES: Final = 100
_MAX_DEVIATION: Final = 0.5  # from the median; farther samples are drawn at the edge


class RowSamples(NamedTuple):
    """A row's samples in seconds, with its name and its backend."""

    name: str
    series: str
    time: TimeSummary
    samples: Sequence[float]


def samples(rows: Sequence[RowSamples]) -> list[Figure]:
    """Return the figure of the slowest rows; empty if no samples were stored."""
    known = [row for row in rows if row.samples]
    slowest = sorted(known, key=lambda row: -row.time.median)[:_MAX_STRIPS]
    shown = [row for row in known if row in slowest]
    if not shown:
        return []
    names = labels([f"{row.name} {format_seconds(row.time.median)}" for row in shown])
    drawn = [point for row, name in zip(shown, names, strict=True) for point in _points(row, name)]
    usual = sorted(abs(point["off"]) for point in drawn)[int(0.93 * (len(drawn) - 1))]
    reach = 100 * min(_MAX_DEVIATION, max(0.01, 1.1 * usual / 100))
    outside = sum(abs(point["off"]) > reach for point in drawn)
    for item in drawn:
        item["off"] = max(-reach, min(reach, item["off"]))
    across: dict[str, Any] = {
        "type": "quantitative",
        "title": "% from the row's median",
        "scale": {"domain": [-reach, reach]},
    }
    y: dict[str, Any] = {"field": "row", "type": "nominal", "sort": names, "title": None}
    bands: list[dict[str, Any]] = [
        {"row": name, **ends}
        for row, name in zip(shown, names, strict=True)
        if (ends := _ends(row.time, reach)) is not None
    ]
    spec: dict[str, Any] = {
        "height": {"step": 26},
        "layer": [
            {
                "data": {"values": bands},
                "mark": {"type": "bar", "color": LIGHT["pale"], "height": {"band": 0.95}},
                "encoding": {"x": {"field": "low", **across}, "x2": {"field": "high"}, "y": y},
            },
            {
                "data": {"values": [{"zero": 0}]},
                "mark": {"type": "rule"},
                "encoding": {"x": {"field": "zero", **across}},
            },
            {
                "data": {"values": drawn},
                "mark": {"type": "point", "size": 9},
                "encoding": {
                    "x": {"field": "off", **across},
                    "y": y,
                    "yOffset": {"field": "at", "type": "quantitative"},
                    **series([point["series"] for point in drawn]),
                },
            },
        ],
    }
    notes = {
        _HOW: True,
        f"The {len(shown)} slowest rows of {len(known)} with samples are drawn.": (
            len(known) > len(shown)
        ),
        f"Up to {_MAX_SAMPLES} samples per row are drawn, evenly spaced in time.": any(
            len(row.samples) > _MAX_SAMPLES for row in shown
        ),
        f"{outside} samples lie farther than {reach:.3g} % and stand at the edge.": outside,
    }
    text = f"Strips of samples. {'; '.join(map(_words, shown))}."
    title = "Samples, each against its row's median"
    return [Figure("samples", title, text, " ".join(holding(notes)), spec)]


def _points(row: RowSamples, name: str) -> list[dict[str, Any]]:
    """Return the points of up to ``_MAX_SAMPLES`` samples, evenly spaced in time."""
    last = len(row.samples) - 1
    count = min(last, _MAX_SAMPLES - 1)
    places = [round(at * last / count) for at in range(count + 1)] if count else [0]
    return [
        {
            "row": name,
            "series": row.series,
            "at": place / max(last, 1),
            "off": 100 * (row.samples[place] / row.time.median - 1),
        }
        for place in places
    ]


def _ends(time: TimeSummary, reach: float) -> dict[str, float] | None:
    if time.ci_low is None or time.ci_high is None:
        return None
    low, high = (100 * (end / time.median - 1) for end in (time.ci_low, time.ci_high))
    return {"low": max(-reach, low), "high": min(reach, high)}


def _words(row: RowSamples) -> str:
    low, high = (100 * (end(row.samples) / row.time.median - 1) for end in (min, max))
    return (
        f"{row.name}: median {format_seconds(row.time.median)}, n {row.time.n}, samples "
        f"{number(low, 2)} to {number(high, 2)} % from it"
    )
