"""The roofline plot: every layer's rate over its intensity, under the roofs of its device.

The roofs are theoretical and measured ones, of the device's record. Source: S. Williams, A.
Waterman, D. Patterson, "Roofline: an insightful visual performance model for multicore
architectures", CACM 52(4), 2009.
"""

from __future__ import annotations

from math import atan2, cos, degrees, radians, sin
from statistics import median
from typing import TYPE_CHECKING, Any, Final

from pydlbench.ops.table import MEMORY_BOUND
from pydlbench.report.page.figures.canvas import (
    Chart,
    figure,
    label_points,
    legend,
    log_ticks,
    mark_row,
    marker,
    place,
    points,
    ring,
    row_notes,
)
from pydlbench.report.page.palette import LIGHT, looks
from pydlbench.report.page.plain import plain
from pydlbench.report.page.runs import level_name, mapping, node_name, objects, positive
from pydlbench.units import format_seconds, number, percent

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from pydlbench.records.measurement import Measurement
    from pydlbench.report.page.palette import Look
    from pydlbench.report.page.runs import PageRun


class Roof:
    """One limit: ``value`` in FLOP/s or B/s, whether it is theory, and its name."""

    def __init__(self, name: str, value: float, *, theory: bool) -> None:
        self.name, self.value, self.theory = name, value, theory


def peak_roofs(run: PageRun, rows: Sequence[Measurement]) -> list[Roof]:
    """Return the compute peaks of the precisions of ``rows``, in FLOP/s.

    Out of the device's record; where that has none, the medians of the rows' own.
    """
    found = []
    for precision in dict.fromkeys(row.precision for row in rows):
        alike = [row for row in rows if row.precision == precision]
        device = mapping(run.record.device_for(alike[0].threads))
        peaks = objects(device.get("peaks"))
        entry = next((one for one in peaks if one.get("precision") == precision), {})
        values = {
            "theoretical": positive(mapping(entry.get("theoretical")).get("flops_per_s")),
            "measured": positive(entry.get("measured_flops_per_s")),
        }
        for which, value in values.items():
            own = [peak * 1e12 for row in alike if (peak := getattr(row.peak, which))]
            best = value or (median(own) if own else None)
            if best:
                name = f"{which} {precision} peak {number(best / 1e12)} TFLOP/s"
                found.append(Roof(name, best, theory=which == "theoretical"))
    return found


def memory_roofs(run: PageRun, rows: Sequence[Measurement]) -> list[Roof]:
    """Return the bandwidths of memory and caches, in B/s: the best pattern of each level."""
    device = mapping(run.record.device_for(rows[0].threads))
    best: dict[str, float] = {}
    for one in objects(device.get("bandwidths")):
        value = positive(one.get("bytes_per_s"))
        if value:
            level = plain(one.get("level"), 30)
            best[level] = max(best.get(level, 0.0), value)
    found = [
        Roof(f"measured {level_name(level)} {number(value / 1e9)} GB/s", value, theory=False)
        for level, value in best.items()
    ]
    theory = positive(mapping(device.get("facts")).get("memory_bytes_per_s"))
    if theory:
        found.append(Roof(f"theoretical memory {number(theory / 1e9)} GB/s", theory, theory=True))
    return found


def draw_roofs(axes: Any, peaks: Sequence[Roof], memories: Sequence[Roof]) -> None:
    """Draw the limits with their names into axes whose own limits are set.

    Args:
        axes: both logarithmic, FLOP/s over FLOP per byte.
        peaks: flat roofs, FLOP/s.
        memories: slanted ones, B/s.
    """
    low_x, high_x = axes.get_xlim()
    low_y, _ = axes.get_ylim()
    top = max((peak.value for peak in peaks), default=axes.get_ylim()[1])
    for peak in peaks:
        start = min((peak.value / one.value for one in memories), default=low_x)
        _line(axes, (max(low_x, start), high_x), (peak.value, peak.value), peak)
        axes.annotate(
            peak.name,
            (high_x, peak.value),
            # Above each other: where a probe reaches the theory, the two lines are one.
            xytext=(-3, 13 if peak.theory else 3),
            textcoords="offset points",
            ha="right",
            va="bottom",
            fontsize=7.5,
            color=LIGHT["muted"],
        )
    before = 0.0
    for one in sorted(memories, key=lambda roof: -roof.value):
        start = max(low_x, low_y / one.value)
        end = min(high_x, top / one.value)
        if end <= start:
            continue
        _line(axes, (start, end), (start * one.value, end * one.value), one)
        # Of two roofs that are near to each other the lower one has its name below it.
        below = bool(before) and before < 2 * one.value
        before = one.value
        slope = _slope(axes)
        away = -2.5 if below else 2.5
        axes.annotate(
            one.name,
            (start, start * one.value),
            xytext=(
                9 * cos(radians(slope)) - away * sin(radians(slope)),
                9 * sin(radians(slope)) + away * cos(radians(slope)),
            ),
            textcoords="offset points",
            rotation=slope,
            rotation_mode="anchor",
            ha="left",
            va="top" if below else "bottom",
            fontsize=7.5,
            color=LIGHT["muted"],
        )


def _line(axes: Any, across: tuple[float, float], up: tuple[float, float], roof: Roof) -> None:
    style = (0, (5, 3)) if roof.theory else "solid"
    axes.plot(across, up, color=LIGHT["ink"], linewidth=1.1, linestyle=style, zorder=2)


def _slope(axes: Any) -> float:
    """Degrees of a line of constant bandwidth on the page."""
    (x0, y0), (x1, y1) = axes.transData.transform([(1.0, 1e9), (10.0, 1e10)])
    return degrees(atan2(y1 - y0, x1 - x0))


#: The command whose runs have what this figure needs.
ROOFLINE_NEEDS: Final = "pydlbench layers --model alexnet-owt"
_HOW: Final = (
    "Rate of the executed FLOPs over executed FLOPs per byte moved at the least; both axes "
    "logarithmic. A kernel cannot be above the roofs unless it computes less than a direct one. "
    "Solid roofs were measured by probes, dashed ones derived from the device's facts."
)
_MOST_POINTS: Final = 300
_LABELLED: Final = 26
_FILL: Final = {"forward": "full", "backward-data": "none", "backward-weights": "left"}
_PASSES: Final = {
    "forward": "filled: forward",
    "backward-data": "hollow: backward-data",
    "backward-weights": "half: backward-weights",
}


def rooflines(runs: Sequence[PageRun]) -> Iterator[Chart]:
    """Yield a plot for each device that has rows with FLOPs and bytes; runs on it share one."""
    found: dict[tuple[str, str], list[tuple[PageRun, list[Measurement]]]] = {}
    for run in runs:
        for device in dict.fromkeys(row.device for row in run.timed):
            rows = [
                row for row in run.representative if row.device == device and _rate(row) is not None
            ]
            if rows:
                found.setdefault((run.machine, device), []).append((run, rows))
    for count, parts in enumerate(found.values(), start=1):
        yield _chart(parts, f"roofline-{count}", len(runs))


def _rate(row: Measurement) -> float | None:
    """Executed FLOP/s, where both coordinates of a point are known."""
    rate = row.tflops_executed
    return rate * 1e12 if rate and row.bytes > 0 and row.flops_executed > 0 else None


def _chart(parts: Sequence[tuple[PageRun, Sequence[Measurement]]], name: str, count: int) -> Chart:
    """Draw the rows of runs on one device, under the roofs that the first of them found."""
    run = parts[0][0]
    rows = [row for _, own in parts for row in own]
    shown = sorted(rows, key=lambda row: -(row.time.median if row.time else 0.0))[:_MOST_POINTS]
    peaks, memories = peak_roofs(run, shown), memory_roofs(run, shown)
    fig = figure(5.1)
    axes = place(fig, 0.75, 0.5, 0.25, 0.3)
    _limits(axes, shown, peaks, memories)
    draw_roofs(axes, peaks, memories)
    values: list[dict[str, Any]] = []
    _points(axes, shown, _series(rows), values)
    marks = [(_intensity(row), _rate(row) or 0.0) for row in shown]
    nameless = label_points(axes, _names(shown), marks, peaks[0].value if peaks else None)
    passes = [_PASSES[one] for one in dict.fromkeys(row.pass_ for row in shown) if one in _PASSES]
    notes = []
    which = run.within(count)
    if len(parts) > 1:
        numbers = ", ".join(str(one.number) for one, _ in parts)
        which = f", runs {numbers}"
        notes.append(
            f"Marks are the rows of runs {numbers}; the roofs are those of run {run.number}."
        )
    if len(rows) > len(shown):
        notes.append(f"The {len(shown)} slowest rows of {len(rows)} are drawn.")
    if nameless:
        names = "name" if nameless == 1 else "names"
        notes.append(f"{nameless} {names} had no room; each mark tells its own when pointed at.")
    if len(passes) > 1:
        notes.append(f"Marks: {', '.join(passes)}.")
    notes += row_notes([one for one, _ in parts], shown, cold=True)
    models = list(dict.fromkeys(model for one, _ in parts for model in one.models))
    what = " and ".join(models) if 0 < len(models) < 4 else "layers"
    return Chart(
        name=name,
        title=f"Roofline: {plain(what, 60)} on {plain(run.machine, 60)}{which}",
        alt=_alt(shown, [*peaks, *memories]),
        caption=" ".join([_HOW, *notes]),
        figure=fig,
        values=values,
    )


def _intensity(row: Measurement) -> float:
    return row.flops_executed / row.bytes


def _limits(
    axes: Any, rows: Sequence[Measurement], peaks: Sequence[Roof], memories: Sequence[Roof]
) -> None:
    across = [_intensity(row) for row in rows]
    up = [rate for row in rows if (rate := _rate(row))]
    # As far as the ridge, so that both parts of the roof are seen.
    ridges = [peak.value / one.value for peak in peaks for one in memories]
    # Room on the left for the names of the slanted roofs, at the top for those of the flat ones.
    low_x = min([*across, *ridges]) / (12 if memories else 3)
    high_x = max([*across, *ridges]) * 3
    low_y, high_y = min(up) / 2.5, max([*up, *(peak.value for peak in peaks)]) * 3
    axes.set_xscale("log")
    axes.set_yscale("log")
    axes.set_xlim(low_x, high_x)
    axes.set_ylim(low_y, high_y)
    log_ticks(axes.xaxis, low_x, high_x)
    log_ticks(axes.yaxis, low_y, high_y)
    axes.yaxis.set_major_formatter(lambda value, _: f"{value / 1e12:.10g}")
    axes.set_xlabel("executed FLOP per byte")
    axes.set_ylabel("TFLOP/s (executed)")
    axes.grid(visible=True)


def _series(rows: Sequence[Measurement]) -> dict[str, Look]:
    return looks(list(dict.fromkeys(plain(row.who, 30) for row in rows)))


def _points(
    axes: Any,
    rows: Sequence[Measurement],
    series: Mapping[str, Look],
    values: list[dict[str, Any]],
) -> None:
    for row in rows:
        look = series[plain(row.who, 30)]
        fill = _FILL.get(row.pass_, "full")
        artist = points(
            axes,
            [_intensity(row)],
            [_rate(row) or 0.0],
            linestyle="none",
            marker=look.marker,
            markersize=6,
            fillstyle=fill,
            color=look.color,
            markerfacecoloralt=LIGHT["paper"],
            markeredgecolor=look.color,
            markeredgewidth=1.1,
            zorder=3,
        )
        _mark(artist, values, row)
        if row.contended:
            ring(axes, _intensity(row), _rate(row) or 0.0)
    legend(axes, {name: marker(look) for name, look in series.items()})


def _mark(artist: Any, values: list[dict[str, Any]], row: Measurement) -> None:
    reached = "" if row.roofline is None else f", {percent(row.roofline.efficiency)} of its roof"
    rate = _rate(row)
    mark_row(
        artist,
        values,
        row,
        f"{number((rate or 0.0) / 1e12)} TFLOP/s{reached}",
        flop_per_byte=_intensity(row),
        flops_per_s=rate,
    )


def _names(rows: Sequence[Measurement]) -> list[tuple[float, float, str]]:
    """One label per layer: at the first backend's first pass, so that marks do not drown in it."""
    first = rows[0].who if not any(row.who == "native" for row in rows) else "native"
    passes = dict.fromkeys(row.pass_ for row in rows)
    shown = "forward" if "forward" in passes else next(iter(passes))
    found: dict[str, tuple[float, float, str]] = {}
    # What only passes values on stands in the way of what computes.
    large = {row.kind for row in rows} - MEMORY_BOUND
    for row in rows:
        if row.who == first and row.pass_ == shown and (row.kind in large or not large):
            name = plain(node_name(row.layer), 24)
            found.setdefault(row.layer, (_intensity(row), _rate(row) or 0.0, name))
    return list(found.values())[:_LABELLED]


def _alt(rows: Sequence[Measurement], roofs: Sequence[Roof]) -> str:
    limits = "; ".join(roof.name for roof in roofs) or "no roofs are known"
    best = max(rows, key=lambda row: _rate(row) or 0.0)
    slow = rows[0]
    assert slow.time is not None  # only timed rows have a rate
    names = _names(rows)
    listed = ", ".join(
        f"{name} {number(rate / 1e12)} TFLOP/s at {number(across)} FLOP per byte"
        for across, rate, name in names[:12]
    )
    return (
        f"{len(rows)} marks. Roofs: {limits}. Slowest: {plain(slow.layer, 60)} {slow.pass_} "
        f"{slow.who}, {format_seconds(slow.time.median)}. Highest rate: {plain(best.layer, 60)} "
        f"{best.pass_} {best.who}, {number((_rate(best) or 0.0) / 1e12)} TFLOP/s. {listed}."
    )
