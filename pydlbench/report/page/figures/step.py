"""A step as stacked bars: one bar per rung of the ladder, one segment per layer."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from pydlbench.ops.table import without_sides
from pydlbench.report.page.figures.canvas import (
    CONTENDED,
    Chart,
    bar,
    beside,
    figure,
    legend,
    lines_of,
    mark,
    patch,
    place,
)
from pydlbench.report.page.ladders import Segment, ladders, layer_sums
from pydlbench.report.page.palette import KINDS, LIGHT, kind_look
from pydlbench.report.page.plain import dotted, plain
from pydlbench.units import Scale, percent

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from pydlbench.report.page.ladders import DrawnLadder, DrawnRung
    from pydlbench.report.page.runs import PageRun

#: The command whose runs have what this figure needs.
STEP_NEEDS: Final = "pydlbench check alexnet-owt"
_HOW: Final = (
    "From top to bottom: executed FLOPs over the theoretical peak (bytes are not in it), the "
    "measured roofs (a layer without one stands with its own time), each layer alone, and what "
    "frameworks make of it."
)
_OF_A_STEP: Final = (
    "Native layers lie between hot and cold caches (whisker); a measured step's whisker is its "
    "confidence interval. A step is measured as a whole: what the layers do not explain is not "
    "spread over them; the ledger names it. The rest of a framework's operators is what starting "
    "them takes, and that the median of a sum is not the sum of the medians."
)
_OF_LAYERS: Final = (
    "These are sums over distinct problems that every backend has timed, each counted once: not a "
    "model's step, in which shapes repeat."
)
_MOST_SEGMENTS: Final = 30
_LEFT, _RIGHT = 1.75, 1.0
_PITCH, _THICK = 0.56, 0.72  # inches from bar to bar, and the share of it that a bar takes
_LETTER = 0.058  # inches, of a label in a segment
_LINE = 0.13


def steps(runs: Sequence[PageRun]) -> Iterator[tuple[Chart, DrawnLadder]]:
    """Yield a figure for each step, then one for each sum of layers."""
    found = [*ladders(runs), *layer_sums(runs)]
    for index, one in enumerate(found, start=1):
        yield _chart(one, f"step-{index}", len(runs)), one


def _chart(ladder: DrawnLadder, name: str, runs: int) -> Chart:
    longest = max(max(rung.seconds, rung.high or 0.0) for rung in ladder.rungs)
    scale = Scale.fit(longest)
    fig = figure(0.9 + _PITCH * len(ladder.rungs))
    axes = place(fig, _LEFT, 0.5, _RIGHT, 0.3)
    axes.set_xlim(0, longest / scale.factor * 1.01)
    lines_of(axes, [rung.name for rung in ladder.rungs])
    values: list[dict[str, Any]] = []
    keep = _largest(ladder)
    for line, rung in enumerate(ladder.rungs):
        _bar(axes, line, rung, keep, scale, values)
    axes.set_xlabel(f"{scale.unit} per step" if ladder.step else f"{scale.unit}, added up")
    _legend(axes, ladder)
    what = "Where a step goes" if ladder.step else "What the timed layers add up to"
    return Chart(
        name=name,
        title=f"{what}: {dotted(ladder.title)}",
        alt=_alt(ladder, scale),
        caption=_caption(ladder, keep, runs),
        figure=fig,
        values=values,
    )


def _largest(ladder: DrawnLadder) -> set[str]:
    """The layers that get a segment of their own: the longest of any rung."""
    longest: dict[str, float] = {}
    for rung in ladder.rungs:
        for one in rung.segments:
            longest[one.name] = max(longest.get(one.name, 0.0), one.seconds)
    return set(sorted(longest, key=lambda name: -longest[name])[:_MOST_SEGMENTS])


def _bar(
    axes: Any,
    line: int,
    rung: DrawnRung,
    keep: set[str],
    scale: Scale,
    values: list[dict[str, Any]],
) -> None:
    rest = sum(one.seconds for one in rung.segments if one.name not in keep)
    segments = [one for one in rung.segments if one.name in keep]
    if rest > 0:
        segments.append(Segment(f"{len(rung.segments) - len(segments)} others", "other", rest))
    across = (axes.figure.get_size_inches()[0] - _LEFT - _RIGHT) / axes.get_xlim()[1]
    at = 0.0
    for one in segments:
        width = one.seconds / scale.factor
        _segment(axes, line, at, width, one, across, values, rung)
        at += width
    if rung.low is not None and rung.high is not None:
        ends = [rung.low / scale.factor, rung.high / scale.factor]
        # Below the bar, where it covers no name.
        under = [line + _THICK / 2 + 0.08] * 2
        axes.plot(ends, under, color=LIGHT["ink"], lw=1.2, marker="|", ms=5, zorder=5)
    beside(axes, line, f"{scale.text(rung.seconds)}{'*' if rung.contended else ''}")


def _segment(
    axes: Any,
    line: int,
    at: float,
    width: float,
    one: Segment,
    inches: float,
    values: list[dict[str, Any]],
    rung: DrawnRung,
) -> None:
    whole = one.kind == "whole"
    look = kind_look("other" if whole else one.kind)
    artist = bar(
        axes,
        at,
        line,
        width,
        _THICK,
        facecolor=look.pale,
        edgecolor=look.color,
        linewidth=0.7,
        hatch="" if whole else look.hatch,
        zorder=2,
    )
    share = one.seconds / rung.seconds if rung.seconds > 0 else 0.0
    mark(
        artist,
        values,
        f"{rung.name}: {one.name}: {Scale.fit(one.seconds).text(one.seconds)}, {percent(share)}",
        rung=rung.name,
        layer=one.name,
        kind=one.kind,
        time_s=one.seconds,
    )
    name = "one piece: no layer can be told apart" if whole else _short(one.name)
    long, room = len(name) * _LETTER + 0.06, width * inches
    upright = long > room >= _LINE and long <= _PITCH * _THICK + 0.02
    if long <= room or upright:
        axes.text(
            at + width / 2,
            line,
            plain(name),
            ha="center",
            va="center",
            fontsize=6.5 if upright else 7,
            rotation=90 if upright else 0,
            zorder=4,
            bbox={"facecolor": look.pale, "edgecolor": "none", "pad": 0.8, "alpha": 1},
        )


def _short(name: str) -> str:
    """A name for a narrow segment: the first of joined nodes, the end of a path."""
    first, joined, _ = name.partition("..")
    last = first.rpartition("/")[2] if len(first) > 12 else first
    return f"{last}+" if joined else last


def _legend(axes: Any, ladder: DrawnLadder) -> None:
    named = {}
    for rung in ladder.rungs:
        for one in rung.segments:
            name = one.kind if without_sides(one.kind) in KINDS else "pointwise"
            if one.kind != "whole":
                named["others" if name == "other" else name] = patch(kind_look(one.kind))
    if named:
        legend(axes, named)


def _caption(ladder: DrawnLadder, keep: set[str], runs: int) -> str:
    names = {one.name for rung in ladder.rungs for one in rung.segments}
    lines = [_HOW, _OF_A_STEP if ladder.step else _OF_LAYERS]
    if len(names) > len(keep):
        lines.append(f"The {len(keep)} longest layers have segments; the rest is one.")
    if any(rung.contended for rung in ladder.rungs):
        lines.append(CONTENDED)
    sources = sorted({rung.source for rung in ladder.rungs})
    if runs > 1:
        which = ", ".join(map(str, sources))
        lines.append(f"From run{'s' if len(sources) > 1 else ''} {which}.")
        if len(sources) > 1:
            lines.append("Runs at different times drift by several percent against each other.")
        if ladder.left:
            which = ", ".join(map(str, ladder.left))
            lines.append(f"Rungs that an earlier run has too are not drawn again: run {which}.")
    return " ".join(lines)


def _alt(ladder: DrawnLadder, scale: Scale) -> str:
    parts = []
    for rung in ladder.rungs:
        text = f"{rung.name} {scale.text(rung.seconds)}"
        if rung.divided:
            top = sorted(rung.segments, key=lambda one: -one.seconds)[:4]
            shares = ", ".join(f"{one.name} {percent(one.seconds / rung.seconds)}" for one in top)
            text += f" (most: {shares})"
        elif rung.low is not None and rung.high is not None:
            text += f" ({scale.bare(rung.low)} to {scale.text(rung.high)})"
        parts.append(text)
    return f"Bars, {dotted(ladder.title)}: {'; '.join(parts)}."
