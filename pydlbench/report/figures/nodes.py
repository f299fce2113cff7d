"""The nodes of a fleet: a strip for each metric, with a mark for each node at its slowdown."""

from collections.abc import Mapping, Sequence
from typing import Any, Final

from pydlbench.records.fleet import FleetEffect, FleetVerdict
from pydlbench.report.blocks import Figure
from pydlbench.report.drawing import LIGHT, line_spec
from pydlbench.units import holding, percent, some_names

_MAX_METRICS: Final = 24
_MAX_NODES: Final = 400
_MAX_EFFECT: Final = 0.3  # larger effects are drawn at the edge
_COLORS: Final = {"SLOW": "vermillion", "FAST": "green", "SAME": "blue", "UNCLEAR": "grey"}
_MARKS: Final = ("triangle-right", "triangle-left", "circle", "square")
_SLOWER: Final = "% slower than the median of the other nodes"


def nodes(fleet: FleetVerdict) -> list[Figure]:
    """Return a strip for each metric, all metrics together first; empty without an effect."""
    effects = [effect for effect in fleet.effects if effect.effect is not None]
    metrics = list(dict.fromkeys(metric.metric for metric in reversed(fleet.metrics)))[
        :_MAX_METRICS
    ]
    if not effects:
        return []
    far = max([1.5 * fleet.beyond, *(abs(effect.effect or 0.0) for effect in effects)])
    reach = 100 * min(far, _MAX_EFFECT)
    values = [
        mark
        for metric in metrics
        for mark in _marks([effect for effect in effects if effect.metric == metric], reach)
    ]
    y = {"field": "metric", "type": "nominal", "sort": metrics, "title": None}
    x = {"type": "quantitative", "title": _SLOWER, "scale": {"domain": [-reach, reach]}}
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
    notes = {
        "Every node is a mark in each strip. The band is the margin of "
        f"{percent(fleet.beyond)}: SLOW lies beyond it by more than chance gives a whole fleet.": (
            True
        ),
        "Marks at the edge lie farther out.": far > _MAX_EFFECT,
        f"Each strip shows the {_MAX_NODES} nodes that are farthest out.": (
            len(effects) > _MAX_NODES * len(metrics)
        ),
    }
    text = f"{names}Fastest to slowest node, {'; '.join(spans)}."
    return [
        Figure(
            "nodes", f"{len(fleet.nodes)} nodes at a glance", text, " ".join(holding(notes)), spec
        )
    ]


def _marks(effects: Sequence[FleetEffect], reach: float) -> list[dict[str, Any]]:
    largest = sorted(effects, key=lambda effect: -abs(effect.effect or 0.0))[:_MAX_NODES]
    return [
        {
            "metric": effect.metric,
            "effect": max(-reach, min(reach, 100 * (effect.effect or 0.0))),
            "at": at * 0.618 % 1,  # neighbours are far apart
            "verdict": effect.verdict,
            "words": f"{effect.node}: {percent(effect.effect, signed=True)}, {effect.verdict}",
        }
        for at, effect in enumerate(largest)
    ]


def node_history(fleets: Mapping[str, FleetVerdict]) -> list[Figure]:
    """Return the history of nodes that were SLOW or FAST, over several runs; empty for one run.

    Args:
        fleets: verdicts by the name of their run, in the order of time.
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
    outliers = {value["series"] for value in values if value["verdict"] in ("SLOW", "FAST")}
    shown = [value for value in values if value["series"] in outliers]
    if len(fleets) < 2 or not shown:
        return []
    x = {"field": "run", "type": "ordinal", "sort": list(fleets), "axis": {"labelAngle": 0}}
    spec = line_spec(shown, x, {"field": "effect", "type": "quantitative", "title": _SLOWER})
    text = f"{'; '.join(value['words'] for value in shown)}."
    caption = (
        "Lines are nodes that were SLOW or FAST in a run, in all metrics together; nodes are "
        "matched by their name and their CPU or card."
    )
    return [Figure("node-history", "Nodes over the runs", text, caption, spec)]
