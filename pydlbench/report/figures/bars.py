"""The parts of a time: a bar for each, with ticks for its limit and its native layers."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Final, NamedTuple

from pydlbench.report.blocks import Figure
from pydlbench.report.drawing import HUES, LIGHT, labels
from pydlbench.units import format_seconds, time_unit

_MAX_BARS: Final = 24


class Bar(NamedTuple):
    """A part of a time.

    Attributes:
        name: name of the part.
        seconds: time of the part.
        ticks: seconds to compare it with by name: its limit, its native layers.
        ends: ends of the time's interval, if it has one.
    """

    name: str
    seconds: float
    ticks: Mapping[str, float | None] = {}
    ends: tuple[float, float] | None = None


def bars(kind: str, title: str, parts: Sequence[Bar], *, ordered: bool = True) -> list[Figure]:
    """Return the figure of some parts; empty if there are none.

    Args:
        kind: kind of the figure; see :class:`~pydlbench.report.blocks.Figure`.
        title: title of the figure.
        parts: bars from top to bottom.
        ordered: whether to sort them, the longest first.
    """
    shown = sorted(parts, key=lambda bar: -bar.seconds) if ordered else list(parts)
    shown = shown[:_MAX_BARS]
    if not shown:
        return []
    factor, unit = time_unit([bar.seconds for bar in shown])
    shown = [
        bar._replace(name=name)
        for name, bar in zip(labels([bar.name for bar in shown]), shown, strict=True)
    ]
    values = [
        {"name": bar.name, "time": factor * bar.seconds, "words": _words(bar)}
        | ({"low": factor * bar.ends[0], "high": factor * bar.ends[1]} if bar.ends else {})
        for bar in shown
    ]
    ticks = [
        {"name": bar.name, "time": factor * seconds, "what": what}
        for bar in shown
        for what, seconds in bar.ticks.items()
        if seconds is not None
    ]
    y = {"field": "name", "type": "nominal", "sort": [bar.name for bar in shown], "title": None}
    x: dict[str, Any] = {"field": "time", "type": "quantitative", "title": unit}
    layers: list[dict[str, Any]] = [
        {
            "mark": {"type": "bar", "height": {"band": 0.7}},
            "encoding": {"y": y, "x": x, "description": {"field": "words"}},
        }
    ]
    if any(bar.ends for bar in shown):
        layers.append(
            {
                "mark": {"type": "rule"},
                "encoding": {"y": y, "x": {**x, "field": "low"}, "x2": {"field": "high"}},
            }
        )
    if ticks:
        what = list(dict.fromkeys(tick["what"] for tick in ticks))
        colors = [LIGHT[hue] for hue in HUES[1 : 1 + len(what)]]
        scale = {"domain": what, "range": colors}
        layers.append(
            {
                "data": {"values": ticks},
                "mark": {"type": "tick", "thickness": 4, "opacity": 1, "height": {"band": 0.95}},
                "encoding": {"y": y, "x": x}
                | {"color": {"field": "what", "type": "nominal", "scale": scale}},
            }
        )
    more = len(parts) - len(shown)
    caption = f"The {len(shown)} longest of {len(parts)}." if more else ""
    text = f"Bars. {'; '.join(map(_words, shown))}."
    spec = {"height": {"step": 20}, "data": {"values": values}, "layer": layers}
    return [Figure(kind, title, text, caption, spec)]


def _words(bar: Bar) -> str:
    held = [f"{name} {format_seconds(value)}" for name, value in bar.ticks.items() if value]
    return ", ".join([f"{bar.name}: {format_seconds(bar.seconds)}", *held])
