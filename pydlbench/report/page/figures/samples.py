"""Sample distributions: every stored sample over its row's median, in order of time.

A median hides what its samples did. In each strip time runs from top to bottom, so that drift leans
and a warm-up or a neighbour shows as a bend; two heaps side by side are two clocks.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, Final

from pydlbench.records.measurement_metrics import spread
from pydlbench.report.columns import label, varying
from pydlbench.report.page.figures.canvas import (
    CONTENDED,
    Chart,
    bar,
    beside,
    figure,
    lines_of,
    mark,
    place,
    points,
)
from pydlbench.report.page.palette import LIGHT, looks
from pydlbench.report.page.plain import plain
from pydlbench.report.page.runs import usable_samples
from pydlbench.units import format_seconds, number

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from pydlbench.records.measurement import TimeSummary
    from pydlbench.report.page.runs import PageRun

#: The command whose runs have what this figure needs.
SAMPLES_NEED: Final = "pydlbench layers --model alexnet-owt --samples --json FILE"
_HOW: Final = (
    "In each strip time runs from top to bottom; the bar behind is the confidence interval of the "
    "median. At the right: median and number of kept samples."
)
_MOST_STRIPS: Final = 24
_MOST_SAMPLES: Final = 100
_HALF = 0.36  # of a strip's height
_WIDEST = 0.5  # of the median: farther samples are drawn at the edge


@dataclass(frozen=True, slots=True, kw_only=True)
class _Strip:
    """One row's samples, in seconds."""

    name: str
    who: str
    time: TimeSummary
    samples: tuple[float, ...]
    contended: bool


def distributions(runs: Sequence[PageRun]) -> Iterator[Chart]:
    """Yield a figure for each run with stored samples."""
    count = 0
    for run in runs:
        strips = _strips(run)
        drawn = _drawn(strips)
        if drawn:
            count += 1
            yield _chart(run, drawn, len(strips), f"samples-{count}", run.within(len(runs)))


def _strips(run: PageRun) -> list[_Strip]:
    timed = run.timed
    axes = [axis for axis in varying(timed) if axis not in ("timing", "accumulate")]
    found = [
        _Strip(
            name=plain(label(row, axes), 52),
            who=row.who,
            time=row.time,
            samples=row.samples_s,
            contended=row.contended,
        )
        for row in timed
        if row.samples_s and row.time is not None
    ]
    for step in run.steps:
        record = step.record
        if record.time is not None and record.samples_s:
            case = record.case
            words = f"{case.model} {case.phase} {case.precision} batch {case.batch}"
            who = f"{case.framework} {case.mode}"
            name = plain(f"{words} {who}", 52)
            found.append(
                _Strip(
                    name=name,
                    who=who,
                    time=record.time,
                    samples=record.samples_s,
                    contended=record.contended,
                )
            )
    return found


def _drawn(strips: Sequence[_Strip]) -> list[_Strip]:
    """Return the slowest rows, in their own order, with those samples that are times."""
    found: dict[int, _Strip] = {}
    for index in sorted(range(len(strips)), key=lambda index: -strips[index].time.median):
        kept = usable_samples(strips[index].samples)
        if kept:
            found[index] = replace(strips[index], samples=kept)
        if len(found) == _MOST_STRIPS:
            break
    return [found[index] for index in sorted(found)]


def _chart(run: PageRun, shown: Sequence[_Strip], count: int, name: str, which: str) -> Chart:
    series = looks(list(dict.fromkeys(one.who for one in shown)))
    reach = _reach(shown)
    fig = figure(0.85 + 0.3 * len(shown))
    axes = place(fig, 3.35, 0.5, 1.35, 0.3)
    values: list[dict[str, Any]] = []
    outside = thinned = 0
    for line, one in enumerate(shown):
        kept = _thin(one.samples)
        thinned += len(kept) < len(one.samples)
        outside += _strip(axes, line, one, kept, reach, series[one.who], values)
    axes.set_xlim(-100 * reach * 1.04, 100 * reach * 1.04)
    lines_of(axes, [one.name for one in shown])
    axes.set_xlabel("% from the row's median")
    notes = [run.part] if run.part else []
    if any(one.contended for one in shown):
        notes.append(CONTENDED)
    if count > len(shown):
        notes.append(f"The {len(shown)} slowest rows of {count} with samples are drawn.")
    if thinned:
        notes.append(f"Of {thinned} rows {_MOST_SAMPLES} samples are drawn, evenly chosen in time.")
    if outside:
        notes.append(
            f"{outside} drawn samples lie farther than {100 * reach:.3g} % and stand at the edge "
            "as hollow triangles."
        )
    return Chart(
        name=name,
        title=f"Samples, each against its row's median{which}",
        alt=_alt(shown),
        caption=" ".join([_HOW, *notes]),
        figure=fig,
        values=values,
    )


def _thin(samples: Sequence[float]) -> list[tuple[int, float]]:
    """At most so many samples with their places, evenly chosen, the last one among them."""
    count = len(samples)
    if count <= _MOST_SAMPLES:
        return list(enumerate(samples))
    places = [round(i * (count - 1) / (_MOST_SAMPLES - 1)) for i in range(_MOST_SAMPLES)]
    return [(place_, samples[place_]) for place_ in places]


def _reach(strips: Sequence[_Strip]) -> float:
    """How far the axis goes to either side: nearly all samples, within limits."""
    off = sorted(
        abs(value / one.time.median - 1) for one in strips for _, value in _thin(one.samples)
    )
    usual = off[int(0.93 * (len(off) - 1))]
    return min(_WIDEST, max(0.01, 1.1 * usual))


def _strip(
    axes: Any,
    line: int,
    one: _Strip,
    kept: Sequence[tuple[int, float]],
    reach: float,
    look: Any,
    values: list[dict[str, Any]],
) -> int:
    """Draw a row's samples; returns how many lie outside."""
    middle, last = one.time.median, max(len(one.samples) - 1, 1)
    if one.time.ci_low is not None and one.time.ci_high is not None:
        low, high = (100 * (end / middle - 1) for end in (one.time.ci_low, one.time.ci_high))
        bar(axes, low, line, high - low, 2 * _HALF + 0.1, facecolor=look.pale, zorder=1)
    points(axes, [0, 0], [line - 0.42, line + 0.42], color=LIGHT["ink"], lw=1, zorder=2)
    cloud = [
        (100 * (value / middle - 1), line + _HALF * (2 * place_ / last - 1))
        for place_, value in kept
    ]
    edge = 100 * reach
    near = [point for point in cloud if abs(point[0]) <= edge]
    far = [(edge if x > 0 else -edge, y) for x, y in cloud if abs(x) > edge]
    style = {"linestyle": "none", "markersize": 3.2, "color": look.color, "zorder": 3}
    across, up = [x for x, _ in near], [y for _, y in near]
    artist = points(axes, across, up, marker=look.marker, **style)
    mark(
        artist,
        values,
        f"{one.name}: median {format_seconds(middle)}, n {one.time.n}, "
        f"{len(one.samples)} samples stored",
        row=one.name,
        time_s=middle,
        n=one.time.n,
        samples=len(one.samples),
        drawn=len(kept),
    )
    for sign, marker in ((1, ">"), (-1, "<")):
        beyond = [y for x, y in far if x * sign > 0]
        if beyond:
            edges = [sign * edge] * len(beyond)
            points(axes, edges, beyond, marker=marker, fillstyle="none", **style)
    star = "*" if one.contended else ""
    beside(axes, line, f"{format_seconds(middle)}{star}  n {one.time.n}")
    return len(far)


def _alt(strips: Sequence[_Strip]) -> str:
    parts = []
    for one in strips:
        low, high = min(one.samples), max(one.samples)
        away = f"{number(100 * (low / one.time.median - 1), 2)} to "
        away += f"{number(100 * (high / one.time.median - 1), 2)} %"
        parts.append(
            f"{one.name}: median {format_seconds(one.time.median)} (+-{spread(one.time)}), "
            f"n {one.time.n}, samples {away} from it"
        )
    return f"Strips of samples. {'; '.join(parts)}."
