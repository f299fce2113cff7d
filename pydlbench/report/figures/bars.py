"""The parts of a time as bars: parts of a sum, levels of a step, the time line of a device."""

from collections.abc import Mapping, Sequence
from typing import Any, Final, NamedTuple

from pydlbench.report.blocks import Figure
from pydlbench.report.drawing import HUES, LIGHT, labels
from pydlbench.units import format_seconds, percent, time_unit

# -----------------------------------------------------------------------------
# The parts of a sum: a bar for each, with ticks for its limit and its native layers.

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


# -----------------------------------------------------------------------------
# The levels of a step as a waterfall: each level from zero, and its causes between two levels.


class Part(NamedTuple):
    """A level, or a cause that lies between two levels.

    Attributes:
        name: name of the level or the cause.
        seconds: time; negative where time is saved.
        level: whether it is a level, which begins at zero.
    """

    name: str
    seconds: float
    level: bool = False


def waterfall(kind: str, title: str, parts: Sequence[Part]) -> list[Figure]:
    """Return the figure of levels and what lies between them; empty if there are none.

    Args:
        kind: kind of the figure; see :class:`~pydlbench.report.blocks.Figure`.
        title: title of the figure.
        parts: levels and causes from top to bottom; a cause begins where the part above it ends.
    """
    if not parts:
        return []
    factor, unit = time_unit([part.seconds for part in parts if part.level])
    names = labels([f"{part.name}" if part.level else f"+ {part.name}" for part in parts])
    values: list[dict[str, Any]] = []
    end_s = 0.0
    for name, part in zip(names, parts, strict=True):
        start_s = 0.0 if part.level else end_s
        end_s = start_s + part.seconds
        what = "level" if part.level else "cause" if part.seconds >= 0 else "saved"
        words = f"{part.name}: {format_seconds(part.seconds)}"
        values.append(
            {"name": name, "what": what, "words": words}
            | {"start": factor * start_s, "end": factor * end_s}
        )
    y = {"field": "name", "type": "nominal", "sort": names, "title": None}
    known = list(dict.fromkeys(value["what"] for value in values))
    hues = {"level": "blue", "cause": "vermillion", "saved": "green"}
    scale = {"domain": known, "range": [LIGHT[hues[what]] for what in known]}
    spec = {
        "height": {"step": 20},
        "data": {"values": values},
        "mark": {"type": "bar", "height": {"band": 0.7}},
        "encoding": {
            "y": y,
            "x": {"field": "start", "type": "quantitative", "title": unit},
            "x2": {"field": "end"},
            "color": {"field": "what", "type": "nominal", "scale": scale},
            "description": {"field": "words"},
        },
    }
    text = f"Waterfall. {'; '.join(value['words'] for value in values)}."
    caption = "Each level is the one above it with the causes in between."
    return [Figure(kind, title, text, caption, spec)]


# -----------------------------------------------------------------------------
# The time line of a step: what a device executes, from the begin of the step to its end.


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
