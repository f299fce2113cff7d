"""The batch sweep: what a larger batch gives, in images per second or TFLOP/s."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final, NamedTuple

from pydlbench.report.page.figures.canvas import (
    CONTENDED,
    Chart,
    figure,
    legend,
    log_ticks,
    mark,
    marker,
    place,
    ring,
)
from pydlbench.report.page.ladders import rates
from pydlbench.report.page.palette import LINES, line_looks
from pydlbench.report.page.plain import plain
from pydlbench.units import number

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from pydlbench.report.page.runs import PageRun

#: The command whose runs have what this figure needs.
BATCHES_NEED: Final = "pydlbench layers --shape conv3 --batch 1 2 4 8 16 32"


class _Point(NamedTuple):
    """A rate, and whether other work disturbed what it is the rate of."""

    rate: float
    contended: bool


_Line = dict[int, _Point]  # by batch


def batch_sweeps(runs: Sequence[PageRun]) -> Iterator[Chart]:
    """Yield a figure of steps and one of layers, where something was measured in two batches."""
    steps: dict[str, _Line] = {}
    for one in rates(runs):
        name = f"{one.model} {one.phase} {one.precision} {one.who} {one.device} {one.machine}"
        steps.setdefault(name, {}).setdefault(one.batch, _Point(one.images_per_s, one.contended))
    layers: dict[str, _Line] = {}
    for run in runs:
        for row in run.timed:
            if row.tflops and row.batch > 0:
                words = [row.layer, row.pass_, row.precision, row.who, row.device, row.cache]
                # One word: what all lines share is left out word by word.
                words += [f"threads={row.threads}"] if row.threads else []
                told = ((row.fuse, "none"), (row.layout_request, "best"))
                words += [value for value, usual in told if value != usual]
                # Another machine's rates are another line.
                name = " ".join(words) if len(runs) == 1 else " ".join([*words, run.machine])
                layers.setdefault(name, {}).setdefault(row.batch, _Point(row.tflops, row.contended))
    count = 0
    for lines, unit, what in (
        (steps, "images/s", "steps of frameworks"),
        (layers, "TFLOP/s", "layers"),
    ):
        several = {name: line for name, line in lines.items() if len(line) > 1}
        if several:
            count += 1
            part = "" if lines is steps else " ".join(dict.fromkeys(run.part for run in runs))
            yield _chart(f"batches-{count}", _short(several), unit, what, part.strip())


def _short(lines: Mapping[str, _Line]) -> dict[str, _Line]:
    """Names without the words that all of them share."""
    split = {name: name.split() for name in lines}
    shared = set.intersection(*(set(words) for words in split.values())) if len(lines) > 1 else ()
    found: dict[str, _Line] = {}
    for name, line in lines.items():
        rest = " ".join(word for word in split[name] if word not in shared)
        found[name if rest in found or not rest else rest] = line
    return found


def _chart(name: str, lines: Mapping[str, _Line], unit: str, what: str, part: str) -> Chart:
    # Those with most batches say most.
    chosen = sorted(lines, key=lambda key: -len(lines[key]))[:LINES]
    series = line_looks([plain(key, 60) for key in chosen])
    fig = figure(3.9)
    axes = place(fig, 0.75, 0.5, 3.3, 0.3)
    values: list[dict[str, Any]] = []
    for key, look in zip(chosen, series.values(), strict=False):
        line = sorted(lines[key].items())
        style = {"color": look.color, "linestyle": look.line}
        rates_ = [point.rate for _, point in line]
        axes.plot([batch for batch, _ in line], rates_, **style, linewidth=1.3, zorder=2)
        for batch, (rate, contended) in line:
            (artist,) = axes.plot(
                [batch], [rate], marker=look.marker, markersize=6, color=look.color, zorder=3
            )
            mark(
                artist,
                values,
                f"{plain(key, 60)}, batch {batch}: {number(rate)} {unit}"
                f"{', contended' if contended else ''}",
                series=plain(key),
                batch=batch,
                **{"images_per_s" if unit == "images/s" else "tflops": rate},
            )
            if contended:
                ring(axes, batch, rate)
    batches = sorted({batch for key in chosen for batch in lines[key]})
    points = [point for key in chosen for point in lines[key].values()]
    _scales(axes, batches, [point.rate for point in points], unit)
    names = {name: marker(look, line=True) for name, look in series.items()}
    legend(axes, names, loc="upper left", bbox_to_anchor=(1.01, 1.0), ncols=1)
    left = len(lines) - len(chosen)
    more = f" {left} more lines are not drawn; the tables have them." if left else ""
    more += f" {part}" if part else ""
    more += f" {CONTENDED}" if any(point.contended for point in points) else ""
    return Chart(
        name=name,
        title=f"Batch sweep: {unit} of {what}",
        alt=_alt({key: lines[key] for key in chosen}, unit),
        caption=f"Batch on a logarithmic scale; the upright axis begins at zero.{more}",
        figure=fig,
        values=values,
    )


def _scales(axes: Any, batches: Sequence[int], found: Sequence[float], unit: str) -> None:
    from matplotlib.ticker import FixedLocator, NullLocator

    axes.set_xscale("log")
    axes.set_xlim(batches[0] / 1.25, batches[-1] * 1.25)
    log_ticks(axes.xaxis, batches[0], batches[-1])
    if len(batches) <= 12:
        axes.xaxis.set_major_locator(FixedLocator(batches))
        axes.xaxis.set_minor_locator(NullLocator())
    axes.set_ylim(0, 1.1 * max(found))
    axes.grid(visible=True)
    axes.set_xlabel("batch")
    axes.set_ylabel(unit)


def _alt(lines: Mapping[str, _Line], unit: str) -> str:
    parts = []
    for name, line in lines.items():
        points = (f"{number(point.rate)} at {batch}" for batch, point in sorted(line.items()))
        parts.append(f"{plain(name, 60)}: {', '.join(points)}")
    return f"Lines, {unit} over batch. {'. '.join(parts)}."
