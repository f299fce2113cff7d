"""Frameworks by precision: images per second, a group of bars per model, inference and training.

The arrangement is that of the deep-learning-benchmark: models in groups, evaluation beside
training.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from pydlbench.report.page.figures.canvas import WIDTH, Chart, figure, legend, mark, patch, place
from pydlbench.report.page.ladders import rates
from pydlbench.report.page.palette import LIGHT, looks
from pydlbench.units import format_seconds, number

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from pydlbench.report.page.ladders import Rate
    from pydlbench.report.page.palette import Look
    from pydlbench.report.page.runs import PageRun

#: The command whose runs have what this figure needs.
FRAMEWORKS_NEED: Final = "pydlbench step alexnet-owt --framework all --phase forward training"
_PHASES: Final = {
    "forward": "evaluation (forward)",
    "forward-backward": "forward and backward",
    "training": "training",
}
_HOW: Final = (
    "Real steps, images over the median time of one; whiskers are confidence intervals of the "
    "median. Groups differ in model, batch, precision, device or machine."
)
_MOST_GROUPS: Final = 10
_MARGIN = 0.62
_ROOM = 0.24  # inches of a bar that its number needs


def frameworks(runs: Sequence[PageRun]) -> Iterator[Chart]:
    """Yield one figure with a panel per phase, if any step of a framework was measured."""
    found = rates(runs)
    if not found:
        return
    groups = list(dict.fromkeys(_group(one, found) for one in found))
    kept = set(groups[:_MOST_GROUPS])
    shown = [one for one in found if _group(one, found) in kept]
    phases = [phase for phase in _PHASES if any(one.phase == phase for one in shown)]
    phases += [one for one in dict.fromkeys(rate.phase for rate in shown) if one not in phases]
    series = looks(list(dict.fromkeys(one.who for one in shown)))
    fig = figure(3.7)
    width = (WIDTH - _MARGIN * len(phases) - 0.1) / len(phases)
    values: list[dict[str, Any]] = []
    for index, phase in enumerate(phases):
        left = _MARGIN * (index + 1) + width * index
        axes = place(fig, left, 0.75, WIDTH - left - width, 0.62)
        inside = [one for one in shown if one.phase == phase]
        _panel(axes, inside, found, series, width, values)
        axes.set_title(_PHASES.get(phase, phase), fontsize=8.5)
    names = {name: patch(look) for name, look in series.items()}
    legend(fig, names, loc="upper left", bbox_to_anchor=(_MARGIN / WIDTH, 1.0), ncols=6)
    notes = []
    if len(groups) > len(kept):
        notes.append(f"The first {len(kept)} groups of {len(groups)}; the table has all.")
    if any(one.contended for one in shown):
        notes.append("A star: other work disturbed the step, and its rate is a lower bound.")
    yield Chart(
        name="frameworks-1",
        title="Frameworks by precision: images per second",
        alt=_alt(shown),
        caption=" ".join([_HOW, *notes]),
        figure=fig,
        values=values,
    )


def _group(one: Rate, everything: Sequence[Rate]) -> str:
    """What stands below a group: the model, and what else differs among them."""
    words = [one.model, one.precision]
    if len({other.batch for other in everything}) > 1:
        words.append(f"batch {one.batch}")
    if len({other.device for other in everything}) > 1:
        words.append(one.device)
    if len({other.machine for other in everything}) > 1:
        words.append(one.machine[:20])
    return "\n".join(words)


def _panel(
    axes: Any,
    inside: Sequence[Rate],
    everything: Sequence[Rate],
    series: Mapping[str, Look],
    inches: float,
    values: list[dict[str, Any]],
) -> None:
    order = list(series)
    groups: dict[str, list[Rate]] = {}
    for one in inside:
        groups.setdefault(_group(one, everything), []).append(one)
    numbers = inches / (len(inside) + 0.9 * len(groups) + 1) > _ROOM
    at = 0.0
    middles = []
    for members in groups.values():
        middles.append(at + (len(members) - 1) / 2)
        # Those that were measured twice stand beside themselves.
        for one in sorted(members, key=lambda one: order.index(one.who)):
            _bar(axes, at, one, series[one.who], values)
            if numbers:
                _number(axes, at, one)
            at += 1
        at += 0.9
    axes.set_xlim(-0.8, at - 1.1)
    axes.set_xticks(middles, list(groups))
    axes.tick_params(axis="x", length=0)
    axes.set_ylim(0, 1.14 * max(max(one.images_per_s, one.high or 0.0) for one in inside))
    axes.yaxis.grid(visible=True)
    axes.set_ylabel("images/s")


def _number(axes: Any, at: float, one: Rate) -> None:
    axes.annotate(
        f"{number(one.images_per_s)}{'*' if one.contended else ''}",
        (at, max(one.images_per_s, one.high or 0.0)),
        xytext=(0, 2),
        textcoords="offset points",
        ha="center",
        fontsize=7,
    )


def _bar(axes: Any, at: float, one: Rate, look: Look, values: list[dict[str, Any]]) -> None:
    artist = axes.bar(
        at,
        one.images_per_s,
        width=0.86,
        color=look.pale,
        edgecolor=look.color,
        hatch=look.hatch,
        zorder=2,
    )[0]
    if one.low is not None and one.high is not None:
        axes.plot([at, at], [one.low, one.high], color=LIGHT["ink"], lw=1.1, zorder=4)
    what = f"{one.model} batch {one.batch} {one.phase} {one.precision} {one.who}"
    mark(
        artist,
        values,
        f"{what}: {number(one.images_per_s)} images/s, {format_seconds(one.seconds)} per step",
        model=one.model,
        batch=one.batch,
        phase=one.phase,
        precision=one.precision,
        who=one.who,
        time_s=one.seconds,
        images_per_s=one.images_per_s,
    )


def _alt(shown: Sequence[Rate]) -> str:
    parts = [
        f"{one.model} batch {one.batch} {one.phase} {one.precision} {one.who} "
        f"{number(one.images_per_s)}"
        for one in shown[:40]
    ]
    more = "" if len(shown) <= 40 else f"; {len(shown) - 40} more stand in the table"
    return f"Bars, images per second: {'; '.join(parts)}{more}."
