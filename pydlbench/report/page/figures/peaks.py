"""Measured against theoretical: how much of the peak each layer reaches, and what its roof allows.

The scale is the theoretical peak at the clock that the kernel really ran at, so that 100 % is what
the arithmetic units could do if they never waited. A layer that is bound by memory cannot get
there: a tick shows how far its own measured roof lets it.
"""

from __future__ import annotations

from itertools import chain
from typing import TYPE_CHECKING, Any, Final

from pydlbench.ops.table import MEMORY_BOUND
from pydlbench.report.columns import AXES, axis_values, label
from pydlbench.report.page.figures.canvas import (
    Chart,
    bar,
    beside,
    figure,
    legend,
    lines_of,
    mark_row,
    marker,
    patch,
    place,
    points,
    ring,
    row_notes,
)
from pydlbench.report.page.palette import LIGHT, Look, looks
from pydlbench.report.page.plain import plain
from pydlbench.report.page.runs import node_name
from pydlbench.units import percent

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from pydlbench.records.measurement import Measurement
    from pydlbench.report.page.runs import PageRun

#: The command whose runs have what this figure needs.
PEAKS_NEED: Final = "pydlbench layers --model alexnet-owt --backend all"
_MOST_LINES: Final = 40
_HOW: Final = (
    "Executed FLOP/s as a share of the theoretical peak at the clock the kernel ran at. Bars, and "
    "numbers at the right: {lead}; other marks: other backends on the same problem. The upright "
    "tick is the layer's own measured roof, which for a layer bound by memory lies far below the "
    "peak."
)
# Part of a measurement's identity that has no line of its own.
_SERIES: Final = ("backend", "mode", "timing", "accumulate")
# Characters at the left of a line: all, and those that a layer keeps at the least.
_WIDE: Final = 44
_LEAST: Final = 10
_Key = tuple[str, str]  # the layer, and what else tells a line from others


def against_peaks(runs: Sequence[PageRun]) -> Iterator[Chart]:
    """Yield a figure for each run that has rows with a theoretical or measured peak."""
    count = 0
    for run in runs:
        rows = [row for row in run.representative if _reached(row) is not None]
        if rows:
            count += 1
            yield _chart(run, rows, f"peaks-{count}", run.within(len(runs)))


def _reached(row: Measurement) -> float | None:
    """The share of the theoretical peak; of the measured one where theory is silent."""
    found = row.fraction_of_peak("theoretical") or row.fraction_of_peak("measured")
    return found or None


def _roof_share(row: Measurement) -> float | None:
    """What the row's own roof allows, on the same scale."""
    reached = _reached(row)
    if row.roofline is None or reached is None or not row.roofline.efficiency > 0:
        return None
    return reached / row.roofline.efficiency


def _chart(run: PageRun, rows: Sequence[Measurement], name: str, which: str) -> Chart:
    large = [row for row in rows if row.kind not in MEMORY_BOUND]
    pointwise = len(rows) - len(large) if large else 0
    rows = large or rows
    lines = _lines(rows)
    shown = dict(sorted(lines.items(), key=lambda item: -_slowest(item[1]))[:_MOST_LINES])
    shown = {key: lines[key] for key in lines if key in shown}  # in the order of the model
    series = looks(list(dict.fromkeys(plain(row.who, 30) for row in rows)))
    lead = "native" if "native" in series else next(iter(series))
    fig = figure(0.95 + 0.235 * len(shown))
    axes = place(fig, 2.35, 0.5, 0.85, 0.33)
    values: list[dict[str, Any]] = []
    for place_, group in enumerate(shown.values()):
        _line(axes, place_, group, series, lead, values)
    _decorate(axes, shown, rows)
    _legend(axes, series, lead)
    theory = all(row.peak.theoretical for row in rows)
    notes = [] if theory else ["Where no theoretical peak is known, the measured one is the scale."]
    if pointwise:
        notes.append(f"{pointwise} pointwise rows, which compute next to nothing, are left out.")
    notes += row_notes([run], chain.from_iterable(shown.values()), cold=True)
    if len(lines) > len(shown):
        notes.append(f"The {len(shown)} slowest lines of {len(lines)} are drawn.")
    return Chart(
        name=name,
        title=f"Measured against theoretical, by layer{which}",
        alt=_alt(shown, lead),
        caption=" ".join([_HOW.format(lead=lead), *notes]),
        figure=fig,
        values=values,
    )


def _lines(rows: Sequence[Measurement]) -> dict[_Key, list[Measurement]]:
    """Rows by what their line is about: the layer, and whatever else differs."""
    own = [axis for axis in AXES if axis not in (*_SERIES, "layer")]
    axes = [axis for axis in own if len(axis_values(rows, axis)) > 1]
    one_model = len({row.layer.partition("/")[0] for row in rows}) == 1
    found: dict[_Key, list[Measurement]] = {}
    for row in rows:
        layer = plain(node_name(row.layer) if one_model else row.layer)
        words = label(row, axes).removeprefix(row.layer)
        found.setdefault((layer, plain(words)), []).append(row)
    return found


def _written(key: _Key) -> str:
    """What stands at the left: what tells lines apart goes before the end of a long name."""
    layer, words = key
    return plain(f"{plain(layer, max(_LEAST, _WIDE - len(words) - 1))} {words}", _WIDE)


def _slowest(rows: Sequence[Measurement]) -> float:
    return max(row.time.median for row in rows if row.time is not None)


def _line(
    axes: Any,
    place_: int,
    rows: Sequence[Measurement],
    series: Mapping[str, Look],
    lead: str,
    values: list[dict[str, Any]],
) -> None:
    for row in rows:
        reached, who = 100 * (_reached(row) or 0.0), plain(row.who, 30)
        look = series[who]
        if who == lead:
            colors = {"facecolor": look.pale, "edgecolor": look.color}
            artist = bar(axes, 0.0, place_, reached, 0.62, **colors, zorder=2)
            if row.contended:
                artist.set(linestyle=(0, (3, 2)), linewidth=1.2)
        else:
            artist = points(
                axes,
                [reached],
                [place_],
                linestyle="none",
                marker=look.marker,
                markersize=5,
                color=look.color,
                zorder=4,
            )
            if row.contended:
                ring(axes, reached, place_)
        _mark(artist, values, row)
    first = next((row for row in rows if plain(row.who, 30) == lead), rows[0])
    share = _roof_share(first)
    if share is not None:
        ends = [place_ - 0.42, place_ + 0.42]
        points(axes, [100 * share] * 2, ends, color=LIGHT["ink"], lw=1.6, zorder=2)
    if plain(first.who, 30) == lead:
        beside(axes, place_, f"{percent(_reached(first))}{'*' if first.contended else ''}")


def _mark(artist: Any, values: list[dict[str, Any]], row: Measurement) -> None:
    own = "" if row.roofline is None else f", {percent(row.roofline.efficiency)} of its own roof"
    scale = "theoretical" if row.fraction_of_peak("theoretical") else "measured"
    mark_row(
        artist,
        values,
        row,
        f"{percent(_reached(row))} of the {scale} peak{own}",
        of_theoretical=row.fraction_of_peak("theoretical"),
        of_measured=row.fraction_of_peak("measured"),
    )


def _decorate(
    axes: Any, shown: Mapping[_Key, Sequence[Measurement]], rows: Sequence[Measurement]
) -> None:
    most = max(100 * max(_reached(row) or 0.0, 0.0) for row in rows)
    axes.set_xlim(0, max(104.0, 1.04 * most))
    lines_of(axes, list(map(_written, shown)))
    axes.set_xlabel("% of the theoretical peak")
    axes.axvline(100, color=LIGHT["ink"], linewidth=1.1, linestyle=(0, (5, 3)), zorder=3)


def _legend(axes: Any, series: Mapping[str, Look], lead: str) -> None:
    from matplotlib.lines import Line2D

    entries = {who: (patch if who == lead else marker)(look) for who, look in series.items()}
    ink = LIGHT["ink"]
    entries["its roof (measured)"] = Line2D(
        [], [], linestyle="none", marker="|", markersize=9, mew=1.6, color=ink
    )
    entries["theoretical peak"] = Line2D([], [], linestyle=(0, (5, 3)), linewidth=1.1, color=ink)
    legend(axes.figure, entries, loc="upper left", ncols=8, fontsize=7.5)


def _alt(shown: Mapping[_Key, Sequence[Measurement]], lead: str) -> str:
    parts = []
    for name, rows in shown.items():
        row = next((one for one in rows if plain(one.who, 30) == lead), rows[0])
        share = _roof_share(row)
        roof = "" if share is None else f" (its roof {percent(share)})"
        parts.append(f"{plain(' '.join(name))} {percent(_reached(row))}{roof}")
    return f"Share of the theoretical peak, {lead}: {'; '.join(parts)}."
