"""The table of interleaved backends: times, ratios to the fastest, shares of the limit."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from typing import Final

from pydlbench.records.measurement import UNCERTAIN_LEGEND, Measurement, is_uncertain
from pydlbench.records.record import Column, columns_of
from pydlbench.report.blocks import TableBlock
from pydlbench.report.columns import (
    AXES,
    BACKEND_AXES,
    by_problem,
    common_model,
    label,
    unit_of,
    varying,
)
from pydlbench.units import format_bytes, format_flops

_CONTENDED, _UNCERTAIN, _OTHER_SUMS, _FEWER_FLOPS, _INTERRUPTED = "!", "~", "a", "f", "i"
# Columns that follow the column of the backend.
_METRICS: Final = (
    "algorithm short_layout time.median time.spread tflops of_theoretical=theory of_measured "
    "roofline.efficiency gflops_per_watt to_best warm_s=kept checked"
)


def interleaved_table(rows: Sequence[Measurement]) -> TableBlock:
    """Return the table; a line above each problem has the values that only its rows share.

    Args:
        rows: ``ok`` rows, some of them with a ratio to the fastest.
    """
    problems = by_problem(rows)
    above, at = {}, 0
    for problem in problems if len(problems) > 1 else ():
        above[at] = _above(problem, rows)
        at += len(problem)
    ordered = [row for problem in problems for row in problem]
    return TableBlock.from_rows(_columns(rows, problems), ordered, above=above)


def interleaved_legend(rows: Sequence[Measurement]) -> list[str]:
    """Return a line for each mark, and for titles that need an explanation."""
    lines = []
    other = [row for problem in by_problem(rows) for row in _other_sums(problem)]
    if any(row.warm_s for row in rows):
        lines.append("kept: the same call with an allocator that keeps freed pages")
    if any(is_uncertain(row) for row in rows):
        lines.append(f"{_UNCERTAIN}: {UNCERTAIN_LEGEND}")
    if any(row.contended for row in rows):
        lines.append(f"{_CONTENDED}: contended, the time is an upper bound")
    if not all(row.complete for row in rows):
        lines.append(f"{_INTERRUPTED}: interrupted, only some of its repetitions were made")
    if fewer := dict.fromkeys(row.fewer_flops for row in rows if row.fewer_flops):
        lines.append(
            f"{_FEWER_FLOPS}: {' and '.join(fewer)} need fewer FLOPs than a direct kernel: "
            "rates and percentages count the direct kernel's"
        )
    if other:
        formats = ", ".join(dict.fromkeys(row.accumulate or "" for row in other))
        lines.append(
            f"{_OTHER_SUMS}: accumulates in another format than the row it is compared with: "
            f"{formats}"
        )
    if any(map(_disagree, by_problem(rows))):
        lines.append(
            "to best: over the rounds that both rows share; medians are over all repetitions, so "
            "where the two disagree on an order, the ratio counts"
        )
    return lines


def _columns(
    rows: Sequence[Measurement], problems: Sequence[Sequence[Measurement]]
) -> list[Column[Measurement]]:
    inside = {axis for problem in problems for axis in varying(problem)}
    inside -= {"backend", "mode", "accumulate"}  # a mark shows other accumulators
    other = {id(row) for problem in problems for row in _other_sums(problem)}

    def marks(row: Measurement) -> str:
        return _marks(row) + (_OTHER_SUMS if id(row) in other else "")

    columns: list[Column[Measurement]] = [Column("backend", lambda row: row.who, right=False)]
    columns += [Column(axis, AXES[axis], right=False) for axis in AXES if axis in inside]
    columns += columns_of(rows, _METRICS, seconds=unit_of(rows))
    if any(map(marks, rows)):
        columns.append(Column("note", marks, right=False))
    return columns


def _above(problem: Sequence[Measurement], rows: Sequence[Measurement]) -> str:
    """Return the line above a problem: values that its rows share, and all rows do not."""
    axes = [axis for axis in varying(rows) if axis not in BACKEND_AXES]
    first, model = problem[0], common_model(rows)
    name = label(first, axes)
    items = [name.removeprefix(f"{model}/") if model else name]
    if first.problem != first.layer:
        items.append(first.problem)
    items += [format_flops(first.flops), format_bytes(first.bytes)]
    bounds = {row.roofline.bound for row in problem if row.roofline is not None}
    if len(bounds) == 1:
        items.append(f"{bounds.pop()} bound")
    return "  ".join(items)


def _marks(row: Measurement) -> str:
    uncertain = _UNCERTAIN if is_uncertain(row) else ""
    disturbed = _CONTENDED if row.contended else ""
    early = "" if row.complete else _INTERRUPTED
    return uncertain + disturbed + early + (_FEWER_FLOPS if row.fewer_flops else "")


def _other_sums(problem: Sequence[Measurement]) -> list[Measurement]:
    """Return the rows of a problem with another accumulator than the row they are compared with.

    Without such a row, the most frequent accumulator is the reference.
    """
    known = [row.accumulate for row in problem if row.accumulate]
    if len(set(known)) < 2:
        return []
    names = {row.ratio["to"] for row in problem if row.ratio}
    references = [row.accumulate for row in problem if row.who in names and row.accumulate]
    usual = references[0] if references else max(dict.fromkeys(known), key=known.count)
    return [row for row in problem if row.accumulate not in (None, usual)]


def _disagree(problem: Sequence[Measurement]) -> bool:
    """Whether the printed medians of a problem have another order than the ratios."""
    shown = sorted(
        (_digits(row.ratio["median"]), _digits(row.time.median))
        for row in problem
        if row.ratio and row.time is not None
    )
    return any(
        first[0] < second[0] and first[1] > second[1] for first, second in itertools.pairwise(shown)
    )


def _digits(value: float) -> float:
    return float(f"{value:.3g}")
