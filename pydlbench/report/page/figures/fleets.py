"""A fleet at a glance: in each metric's strip every node is a mark at how much slower it is.

Thousands of nodes are a cloud, drawn as one path in each strip; nodes that stand out have marks of
their own.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any, Final

from pydlbench.report.fleet import some_metrics, title_of, whole_of
from pydlbench.report.page.figures.canvas import (
    Chart,
    beside,
    figure,
    legend,
    lines_of,
    mark,
    marker,
    place,
    points,
)
from pydlbench.report.page.palette import LIGHT, LINES, Look, line_looks
from pydlbench.report.page.plain import plain
from pydlbench.units import percent

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from pydlbench.records.fleet import FleetEffect, FleetMetric, FleetVerdict
    from pydlbench.report.page.runs import PageRun

__all__ = ["FLEETS_NEED", "histories", "strips"]

#: The command whose runs have what these figures need.
FLEETS_NEED: Final = "pydlbench fleet run FILE.toml"
_LOOKS: Final = {
    "SLOW": Look("vermillion", ">"),
    "FAST": Look("green", "<"),
    "SAME": Look("blue", "o"),
    "UNCLEAR": Look("grey", "o"),
}
# Up to so many nodes each one is a mark that can be pointed at.
_EACH: Final = 64
# Marks of a strip that stand out.
_OUTLIERS: Final = 24
_NAMED: Final = 3
# Effects beyond it are drawn at the edge.
_WIDEST: Final = 0.3
_HALF: Final = 0.3  # of a strip's height
_GOLDEN: Final = (math.sqrt(5) - 1) / 2


def strips(runs: Sequence[PageRun]) -> Iterator[Chart]:
    """Yield a figure for each fleet."""
    count = 0
    for run in runs:
        if run.fleet is not None and any(one.effect is not None for one in run.fleet.effects):
            count += 1
            yield _strips(run.fleet, f"fleet-{count}", run.within(len(runs)))


def _strips(fleet: FleetVerdict, name: str, which: str) -> Chart:
    shown, left = some_metrics(fleet)
    groups = {one.node: one.group for one in fleet.nodes}
    by_line: dict[tuple[str, int | None], list[FleetEffect]] = {}
    for one in fleet.effects:
        if one.effect is not None:
            by_line.setdefault((one.metric, groups.get(one.node)), []).append(one)
    lines = [by_line.get((one.metric, one.group), []) for one in shown]
    ends = [one.effect or 0.0 for line in lines for one in line]
    far = max([1.5 * fleet.beyond, *map(abs, ends)])
    reach = min(far, _WIDEST) * 1.06
    fig = figure(0.9 + 0.34 * len(shown))
    axes = place(fig, 3.3, 0.5, 1.5, 0.35)
    axes.set_xlim(-100 * reach, 100 * reach)
    axes.axvspan(
        -100 * fleet.beyond, 100 * fleet.beyond, facecolor=LIGHT["pale-blue"], alpha=0.5, zorder=0
    )
    lines_of(axes, [title_of(one, fleet) for one in shown])
    values: list[dict[str, Any]] = []
    for line, found in enumerate(lines):
        _cloud(axes, line, found, reach)
        _marks(axes, line, found, reach, values)
        slow = [one for one in found if one.verdict == "SLOW"]
        beside(axes, line, _names(slow))
    axes.set_xlabel("% slower than the median of the other nodes of the kind")
    seen = {one.verdict for line in lines for one in line}
    legend(
        axes,
        {name: marker(look) for name, look in _LOOKS.items() if name in seen},
        loc="lower left",
    )
    return Chart(
        name=name,
        title=f"{len(fleet.nodes)} nodes at a glance{which}",
        alt=_alt(fleet, shown),
        caption="Every node is a mark in each strip. The band is the margin of "
        f"{percent(fleet.beyond)}: SLOW lies beyond it by more than chance gives a whole fleet; "
        "at the right are the slow ones' names."
        + (f" {left} more metrics are in the table only." if left else "")
        + (" Marks at the edge lie farther out." if far > _WIDEST else ""),
        figure=fig,
        values=values,
    )


def _alt(fleet: FleetVerdict, shown: Sequence[FleetMetric]) -> str:
    said = [
        f"{one.metric}: {percent(one.least, signed=True)} to {percent(one.most, signed=True)}"
        for one in shown
    ]
    slow = list(dict.fromkeys(one.node for one in fleet.slow))
    names = f"SLOW: {plain(', '.join(slow), 200)}. " if slow else "No node is SLOW. "
    return f"{names}Fastest to slowest node, {'; '.join(said)}."


def _names(slow: Sequence[FleetEffect]) -> str:
    ordered = sorted(slow, key=lambda one: -(one.effect or 0.0))
    more = f" +{len(ordered) - _NAMED}" if len(ordered) > _NAMED else ""
    return ", ".join(plain(one.node, 14) for one in ordered[:_NAMED]) + more


def _cloud(axes: Any, line: int, found: Sequence[FleetEffect], reach: float) -> None:
    """Draw the nodes of a large fleet that do not stand out, those of a verdict as one path."""
    from matplotlib.patches import PathPatch
    from matplotlib.path import Path

    if len(found) <= _EACH:
        return
    for verdict in ("UNCLEAR", "SAME"):
        own = [one.effect for one in found if one.verdict == verdict and one.effect is not None]
        # Dots are lines without a length and with round ends. Heights do not follow from values,
        # and those of neighbours are far apart.
        ends = [
            (100 * max(-reach, min(reach, value)), line + _HALF * (2 * (at * _GOLDEN % 1) - 1))
            for at, value in enumerate(sorted(own))
        ]
        if not ends:
            continue
        path = Path(
            [(x + more, y) for x, y in ends for more in (0.0, 1e-4 * 100 * reach)],
            [Path.MOVETO, Path.LINETO] * len(ends),
        )
        path.should_simplify = False
        look = {"edgecolor": _LOOKS[verdict].color, "linewidth": 1.6, "capstyle": "round"}
        axes.add_artist(PathPatch(path, fill=False, alpha=0.6, snap=False, **look))


def _marks(
    axes: Any, line: int, found: Sequence[FleetEffect], reach: float, values: list[dict[str, Any]]
) -> None:
    """Draw nodes that can be pointed at: all of a small fleet, else those that stand out."""
    own = list(found)
    if len(own) > _EACH:
        own = [one for one in own if one.verdict in ("SLOW", "FAST")]
        own = sorted(own, key=lambda one: -abs(one.effect or 0.0))[:_OUTLIERS]
    for at, one in enumerate(sorted(own, key=lambda one: one.effect or 0.0)):
        assert one.effect is not None  # others are not drawn
        look = _LOOKS[one.verdict]
        height = line + (_HALF * (2 * (at * _GOLDEN % 1) - 1) if len(own) > 4 else 0.0)
        x = 100 * max(-reach, min(reach, one.effect))
        style = {"marker": look.marker, "markersize": 5, "linestyle": "none", "color": look.color}
        artist = points(axes, [x], [height], zorder=4, clip_on=False, **style)
        ends = (
            ""
            if one.ci_low is None
            else (
                f" (95 % {percent(one.ci_low, signed=True)} .. {percent(one.ci_high, signed=True)})"
            )
        )
        mark(
            artist,
            values,
            f"{one.node}, {one.metric}: {percent(one.effect, signed=True)}{ends}, {one.verdict}",
            node=one.node,
            metric=one.metric,
            effect=one.effect,
            verdict=one.verdict,
        )


def histories(runs: Sequence[PageRun]) -> Iterator[Chart]:
    """Yield what became of nodes over the fleets of the page, where there are several."""
    fleets = [(run, run.fleet) for run in runs if run.fleet is not None]
    if len(fleets) < 2:
        return
    every = [_whole(fleet) for _, fleet in fleets]
    slow = {
        key: max(one[key].effect or 0.0 for one in every if key in one)
        for found in every
        for key, effect in found.items()
        if effect.verdict in ("SLOW", "FAST")
    }
    drawn = sorted(slow, key=lambda key: -slow[key])[:LINES]
    fig = figure(3.4)
    axes = place(fig, 0.7, 0.7, 2.2, 0.3)
    steps = range(len(fleets))
    axes.set_xlim(-0.4, len(fleets) - 0.6)
    ends = [one.effect or 0.0 for found in every for one in found.values()]
    low, high = min([-0.05, *ends]), max([0.05, *ends])
    margin = 0.06 * (high - low)
    axes.set_ylim(100 * (low - margin), 100 * (high + margin))
    beyond = max(fleet.beyond for _, fleet in fleets)
    axes.axhspan(-100 * beyond, 100 * beyond, facecolor=LIGHT["pale-blue"], alpha=0.5, zorder=0)
    for step, found in zip(steps, every, strict=True):
        rest = sorted(100 * (one.effect or 0.0) for key, one in found.items() if key not in slow)
        if rest:
            points(axes, [step, step], [rest[0], rest[-1]], color=LIGHT["grey"], linewidth=3)
    values: list[dict[str, Any]] = []
    names = [f"{node} ({machine})" if _twice(node, drawn) else node for node, machine in drawn]
    looks = line_looks(names)
    for key, name in zip(drawn, names, strict=True):
        at = [(step, one[key]) for step, one in zip(steps, every, strict=True) if key in one]
        y = [100 * (one.effect or 0.0) for _, one in at]
        look = looks[name]
        points(axes, [step for step, _ in at], y, color=look.color, linestyle=look.line)
        for (step, one), height in zip(at, y, strict=True):
            artist = points(axes, [step], [height], color=look.color, marker=look.marker)
            said = f"{name}, run {fleets[step][0].number}: {percent(one.effect, signed=True)}"
            mark(artist, values, f"{said}, {one.verdict}", node=one.node, effect=one.effect)
    axes.set_xticks(
        list(steps), [f"run {run.number}\n{str(run.record.created_utc)[:10]}" for run, _ in fleets]
    )
    axes.set_ylabel("% slower than the others, all metrics")
    axes.yaxis.grid(visible=True)
    if drawn:
        shown = {name: marker(looks[name], line=True) for name in names}
        legend(axes, shown, loc="upper left", bbox_to_anchor=(1.01, 1.0), ncols=1)
    more = len(slow) - len(drawn)
    yield Chart(
        name="fleet-history",
        title="Nodes over the runs",
        alt=f"{len(drawn)} nodes stood out in {len(fleets)} runs: {plain(', '.join(names), 200)}.",
        caption="Lines are nodes that were SLOW or FAST in a run; the grey bar spans all others. "
        "Nodes are matched by their name and their CPU or card."
        + (f" {more} more are in the table only." if more > 0 else ""),
        figure=fig,
        values=values,
    )


def _whole(fleet: FleetVerdict) -> Mapping[tuple[str, str], FleetEffect]:
    """Return each node's effect in all metrics together, by its name and its machine."""
    machines = {one.node: one.machine for one in fleet.nodes}
    return {
        (one.node, machines.get(one.node, "")): one
        for one in whole_of(fleet)
        if one.effect is not None
    }


def _twice(node: str, keys: Sequence[tuple[str, str]]) -> bool:
    return sum(node == name for name, _ in keys) > 1
