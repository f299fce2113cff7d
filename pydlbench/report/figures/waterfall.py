"""The levels of a step as a waterfall: each level from zero, and its causes between two levels."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

from pydlbench.report.blocks import Figure
from pydlbench.report.drawing import LIGHT, labels
from pydlbench.units import format_seconds, time_unit


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
