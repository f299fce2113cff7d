"""A fleet at a glance: in each metric's strip every node is a mark at how much slower it is."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from pydlbench.report.blocks import Figure
from pydlbench.report.drawing import LIGHT, series
from pydlbench.units import percent, some_names

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from pydlbench.records.fleet import FleetEffect, FleetVerdict

_METRICS: Final = 24
_NODES: Final = 400
_WIDEST: Final = 0.3  # effects beyond it are drawn at the edge
_COLORS: Final = {"SLOW": "vermillion", "FAST": "green", "SAME": "blue", "UNCLEAR": "grey"}
_MARKS: Final = ("triangle-right", "triangle-left", "circle", "square")
_SLOWER: Final = "% slower than the median of the other nodes"


def nodes(fleet: FleetVerdict) -> list[Figure]:
    """Return a strip for each metric, that of all together first; none without an effect."""
    effects = [effect for effect in fleet.effects if effect.effect is not None]
    metrics = list(dict.fromkeys(metric.metric for metric in reversed(fleet.metrics)))[:_METRICS]
    if not effects:
        return []
    far = max([1.5 * fleet.beyond, *(abs(effect.effect or 0.0) for effect in effects)])
    reach = 100 * min(far, _WIDEST)
    values = [
        mark
        for metric in metrics
        for mark in _marks([effect for effect in effects if effect.metric == metric], reach)
    ]
    y = {"field": "metric", "type": "nominal", "sort": metrics, "title": None}
    x: dict[str, Any] = {"type": "quantitative", "title": _SLOWER}
    x |= {"scale": {"domain": [-reach, reach]}}
    scale = {"domain": list(_COLORS), "range": [LIGHT[hue] for hue in _COLORS.values()]}
    look = {"field": "verdict", "type": "nominal"}
    band = {"low": -100 * fleet.beyond, "high": 100 * fleet.beyond}
    spec = {
        "height": {"step": 30},
        "layer": [
            {
                "data": {"values": [band]},
                "mark": {"type": "rect", "color": LIGHT["pale"]},
                "encoding": {"x": {**x, "field": "low"}, "x2": {"field": "high"}},
            },
            {
                "data": {"values": values},
                "mark": {"type": "point", "size": 45, "opacity": 0.8},
                "encoding": {
                    "x": {**x, "field": "effect"},
                    "y": y,
                    "yOffset": {"field": "at", "type": "quantitative"},
                    "color": {**look, "scale": scale},
                    "shape": {**look, "scale": {"domain": list(_COLORS), "range": list(_MARKS)}},
                    "description": {"field": "words"},
                },
            },
        ],
    }
    slow = list(dict.fromkeys(effect.node for effect in fleet.slow))
    spans = (
        f"{metric.metric}: {percent(metric.least, signed=True)} to "
        f"{percent(metric.most, signed=True)}"
        for metric in fleet.metrics
        if metric.metric in metrics
    )
    names = f"SLOW: {some_names(slow)}. " if slow else "No node is SLOW. "
    caption = (
        "Every node is a mark in each strip. The band is the margin of "
        f"{percent(fleet.beyond)}: SLOW lies beyond it by more than chance gives a whole fleet."
    )
    if far > _WIDEST:
        caption += " Marks at the edge lie farther out."
    if len(effects) > _NODES * len(metrics):
        caption += f" Each strip shows the {_NODES} nodes that are farthest out."
    text = f"{names}Fastest to slowest node, {'; '.join(spans)}."
    return [Figure("nodes", f"{len(fleet.nodes)} nodes at a glance", text, caption, spec)]


def _marks(effects: Sequence[FleetEffect], reach: float) -> list[dict[str, Any]]:
    far = sorted(effects, key=lambda each: -abs(each.effect or 0.0))[:_NODES]
    return [
        {
            "metric": each.metric,
            "effect": max(-reach, min(reach, 100 * (each.effect or 0.0))),
            "at": at * 0.618 % 1,  # neighbours are far apart
            "verdict": each.verdict,
            "words": f"{each.node}: {percent(each.effect, signed=True)}, {each.verdict}",
        }
        for at, each in enumerate(far)
    ]


def node_history(fleets: Mapping[str, FleetVerdict]) -> list[Figure]:
    """Return what became of the nodes that stood out, over several runs; none of a single run.

    Args:
        fleets: by the name of their run, in the order of time.
    """
    values: list[dict[str, Any]] = []
    for run, fleet in fleets.items():
        machines = {node.node: node.machine for node in fleet.nodes}
        values += [
            {
                "run": run,
                "series": f"{effect.node} ({machines[effect.node]})",
                "effect": 100 * effect.effect,
                "verdict": effect.verdict,
                "words": f"{effect.node}, {run}: {percent(effect.effect, signed=True)}, "
                f"{effect.verdict}",
            }
            for effect in fleet.whole
            if effect.effect is not None
        ]
    apart = {value["series"] for value in values if value["verdict"] in ("SLOW", "FAST")}
    shown = [value for value in values if value["series"] in apart]
    if len(fleets) < 2 or not shown:
        return []
    look = series([each["series"] for each in shown])
    encoding = {
        "x": {"field": "run", "type": "ordinal", "sort": list(fleets), "axis": {"labelAngle": 0}},
        "y": {"field": "effect", "type": "quantitative", "title": _SLOWER},
        "color": look["color"],
    }
    spec = {
        "height": 240,
        "data": {"values": shown},
        "layer": [
            {"mark": {"type": "line"}, "encoding": encoding},
            {
                "mark": {"type": "point"},
                "encoding": {**encoding, **look, "description": {"field": "words"}},
            },
        ],
    }
    text = f"{'; '.join(each['words'] for each in shown)}."
    caption = (
        "Lines are nodes that were SLOW or FAST in a run, in all metrics together; nodes are "
        "matched by their name and their CPU or card."
    )
    return [Figure("node-history", "Nodes over the runs", text, caption, spec)]
