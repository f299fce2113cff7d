"""A step's modules as rows of bars, each below the module that it is a part of."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from pydlbench.ladder.parts import module_tree
from pydlbench.records.step import framework_text
from pydlbench.report.page.figures.canvas import Chart, bar, figure, mark, place
from pydlbench.report.page.palette import LIGHT
from pydlbench.report.page.plain import plain
from pydlbench.units import Scale, percent

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from pydlbench.ladder.parts import Module
    from pydlbench.records.check import CheckRecord
    from pydlbench.report.page.runs import PageRun

# Narrower bars than this share of the step are not drawn: nobody could point at them.
_LEAST: Final = 0.002
_DEEPEST: Final = 12
_ROW, _LETTER = 0.26, 0.062  # inches of a row, and of a letter in it
_HUES: Final = ("blue", "orange", "green", "purple", "sky")


def modules(runs: Sequence[PageRun]) -> Iterator[tuple[Chart, Module]]:
    """Yield a figure for each check whose operators have modules, or nodes with paths."""
    count = 0
    for run in runs:
        for check in run.checks:
            record = check.record
            if record is None or not record.operators:
                continue
            tree = module_tree(record.operators, record.native_parts)
            if any(one.children for one in tree.children):
                count += 1
                who = plain(framework_text(check.to_dict()), 60)
                yield _chart(record, tree, f"modules-{count}", who), tree


def _chart(record: CheckRecord, tree: Module, name: str, who: str) -> Chart:
    depth = min(_DEEPEST, _depth(tree))
    fig = figure(0.2 + _ROW * depth)
    axes = place(fig, 0.1, 0.1, 0.1, 0.1)
    axes.set_xlim(0, 1)
    axes.set_ylim(depth - 0.5, -0.5)
    axes.set_axis_off()
    values: list[dict[str, Any]] = []
    inches = fig.get_size_inches()[0] - 0.2
    _row(axes, tree, 0.0, 0, tree.seconds, inches, values)
    most = max(tree.children, key=lambda one: one.seconds)
    scale = Scale.fit(tree.seconds)
    return Chart(
        name=name,
        title=f"Operators by module: {plain(record.model, 60)}, {who}",
        alt=f"{len(values)} modules in {depth} levels; {plain(most.name, 60)} takes most of the "
        f"first level, {scale.text(most.seconds)} of {scale.text(tree.seconds)} "
        f"({percent(most.seconds / tree.seconds)}).",
        caption="Each row divides the one above it; widths are the operators' times, each alone. "
        f"Modules below {percent(_LEAST, decimal=True)} of them are left out; the tree has all.",
        figure=fig,
        values=values,
    )


def _depth(one: Module) -> int:
    return max((1 + _depth(child) for child in one.children), default=0)


def _row(
    axes: Any,
    parent: Module,
    left: float,
    level: int,
    whole: float,
    inches: float,
    values: list[dict[str, Any]],
) -> None:
    if level == _DEEPEST:
        return
    for number, one in enumerate(parent.children):
        width = one.seconds / whole
        if width >= _LEAST:
            hue = LIGHT[_HUES[(level + number) % len(_HUES)]]
            look = {"facecolor": hue, "edgecolor": LIGHT["paper"], "linewidth": 0.6, "alpha": 0.7}
            artist = bar(axes, left, level, width, 0.94, **look)
            time = Scale.fit(one.seconds).text(one.seconds)
            said = f"{plain(one.name, 80)}: {time}, {percent(width, decimal=True)}"
            mark(artist, values, said, module=one.name, time_s=one.seconds)
            label = plain(one.name, 80).rpartition(".")[2].rpartition("/")[2]
            if len(label) * _LETTER < width * inches:
                axes.text(left + width / 2, level, label, ha="center", va="center", fontsize=7)
            _row(axes, one, left, level + 1, whole, inches, values)
        left += width
