"""A comparison as text: the conclusion first, the sides, the rows, what has no partner."""

from __future__ import annotations

import heapq
import math
from typing import TYPE_CHECKING, Final

from pydlbench.compare.comparison import FASTER, SLOWER
from pydlbench.compare.keys import LAYER_KINDS
from pydlbench.report.compare_conclusion import conclude
from pydlbench.report.compare_words import (
    interval,
    left_over,
    legend,
    ratio_text,
    resolution,
    side_lines,
    unclear_reasons,
    wrapped,
)
from pydlbench.report.plain_table import plain_table
from pydlbench.report.style import PLAIN, Style
from pydlbench.results.columns import time_in, time_unit

if TYPE_CHECKING:
    from collections.abc import Sequence

    from pydlbench.compare import ComparedRow, Comparison, Row

__all__ = ["render_comparison", "table"]

#: Rows that are printed; files have all.
LIMIT: Final = 60
_NAME_WIDTH: Final = 44
# Settings that get a column where rows differ in them.
_AXES: Final = (
    *("kind", "batch", "pass_", "precision", "device", "backend", "mode", "cache", "threads"),
    *("layout_request", "fuse", "propagation"),
)
# Whole steps have none of these: beside layers that is no difference.
_OF_LAYERS: Final = frozenset(("cache", "fuse", "propagation"))
_NUMBERS: Final = frozenset(("batch", "threads"))
_TITLES: Final = {"pass_": "pass", "layout_request": "layout"}
_OF_AXIS: Final = {
    "backend": ("backend", "mode"),
    "mode": ("mode",),
    "threads": ("threads",),
    "layout": ("layout_request",),
    "cache": ("cache",),
    "precision": ("precision",),
    "fuse": ("fuse",),
    "propagation": ("propagation",),
    "device": ("device", "threads"),
}


def render_comparison(found: Comparison, style: Style = PLAIN, *, everything: bool = False) -> str:
    """Return the report; no newline at the end.

    Args:
        found: with at least one row.
        style: colours.
        everything: print all rows, however many there are.
    """
    first, *rest = conclude(found)
    blocks = [wrapped("\n".join([style.bold(first), *rest]))]
    blocks.append(wrapped("\n".join(side_lines(found))))
    warnings = [f"warning: {one.text}" for one in found.differences]
    if warnings:
        blocks.append(wrapped("\n".join(warnings)))
    shown = _shown(found.rows, everything)
    titles, cells, right = table(found, shown)
    text = plain_table(titles, cells, right).splitlines()
    verdicts = [row.verdict for row in shown]
    coloured = [
        style.alarm(line) if verdict == SLOWER else line
        for line, verdict in zip(text[1:], verdicts, strict=True)
    ]
    if len(shown) < len(found.rows):
        coloured.append(f"... {len(found.rows) - len(shown)} rows more; --all prints them")
    blocks.append("\n".join([text[0], *coloured]))
    others = [*left_over(found), *unclear_reasons(found), *(f"note: {one}" for one in found.notes)]
    if others:
        blocks.append(wrapped("\n".join(others)))
    blocks.append(wrapped("\n".join(legend(found))))
    return "\n\n".join(blocks)


def table(
    found: Comparison, rows: Sequence[ComparedRow]
) -> tuple[list[str], list[list[str]], list[bool]]:
    """Return titles, cells and which columns are right-aligned."""
    units = time_unit([row.a.median or 0.0 for row in rows] + [row.b.median or 0.0 for row in rows])
    axes = _varying(found, rows)
    cycles = any(row.cycles is not None for row in rows)
    titles = ["", *(_TITLES.get(axis, axis) for axis in axes), f"A {units[1]}", f"B {units[1]}"]
    titles += ["ratio", f"{100 * found.settings.confidence:g} % CI", "resolves", "verdict"]
    right = [False, *(axis in _NUMBERS for axis in axes), True, True, True, True, True, False]
    if cycles:
        titles += ["in cycles", "verdict"]
        right += [True, False]
    cells = []
    for row in rows:
        line = [_cut(row.b.layer), *(_cell(row.b, axis) for axis in axes)]
        line += [_time(units, row.a), _time(units, row.b), ratio_text(row.time.ratio)]
        line += [interval(row.time), resolution(row.time), row.time.verdict]
        if cycles:
            line += (
                ["-", ""]
                if row.cycles is None
                else [ratio_text(row.cycles.ratio), row.cycles.verdict]
            )
        cells.append(line)
    return titles, cells, right


def _shown(rows: Sequence[ComparedRow], everything: bool) -> Sequence[ComparedRow]:
    """Return what is printed: all that fit, else those with a verdict and the largest ratios."""
    if everything or len(rows) <= LIMIT:
        return rows

    def weight(at: int) -> tuple[bool, float]:
        counts = rows[at].counts
        return counts.verdict in (SLOWER, FASTER), abs(math.log(counts.ratio))

    kept = heapq.nlargest(LIMIT, range(len(rows)), key=weight)
    return [rows[at] for at in sorted(kept)]


def _varying(found: Comparison, rows: Sequence[ComparedRow]) -> list[str]:
    """Return the settings along which rows differ, but for those they are matched across."""
    across = _OF_AXIS.get(found.matching.axis or "", ())
    varying = []
    for axis in _AXES:
        values = {getattr(row.b, axis) for row in rows}
        if axis == "kind":
            values = {"layer" if value in LAYER_KINDS else value for value in values}
        if axis in _OF_LAYERS:
            layers = [row.b for row in rows if row.b.kind in LAYER_KINDS]
            known = [row for row in layers if axis != "propagation" or row.pass_ == "forward"]
            values = {getattr(row, axis) for row in known}
        if len(values) > 1 and axis not in across:
            varying.append(axis)
    return varying


def _cell(row: Row, axis: str) -> str:
    value = getattr(row, axis)
    return "" if value is None else str(value)


def _cut(text: str) -> str:
    return text if len(text) <= _NAME_WIDTH else f"{text[: _NAME_WIDTH - 1]}…"


def _time(unit: tuple[float, str], row: Row) -> str:
    seconds = row.median or 0.0
    return time_in(unit, seconds).removesuffix(unit[1]).strip()
