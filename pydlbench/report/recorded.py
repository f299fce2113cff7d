"""The report of a log or a trace: the dominant module, and each problem's share of its limit."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from typing import Final

from pydlbench.records.record import columns_of
from pydlbench.records.recorded import RecordedProblem, RecordedSteps
from pydlbench.report.blocks import Block, Heading, Headline, Lines, TableBlock
from pydlbench.report.context import dominant_text
from pydlbench.report.module_tree import module_parts, parts_table, shown_parts
from pydlbench.units import format_seconds, percent

#: Maximum number of problems in the table; JSON has all.
_MAX_PROBLEMS: Final = 15
#: Maximum number of operators without a native layer that are named.
_MAX_LISTED_OPERATORS: Final = 6


def recorded_report(recorded: RecordedSteps) -> list[Block]:
    """Return heading, dominant module, modules, problems, operators without a layer, and notes."""
    shown = recorded.problems[:_MAX_PROBLEMS]
    blocks: list[Block] = [
        Heading([_heading(recorded)]),
        Headline(_dominates(recorded)),
    ]
    if recorded.modules:
        parts = module_parts(recorded.calls, recorded.step_s or 0.0)
        blocks.append(parts_table(shown_parts(parts), "seconds share of_limit slowest"))
    blocks.append(TableBlock.from_rows(columns_of(shown, _COLUMNS), shown))
    return [*blocks, Lines(_rest(recorded)), Lines(list(recorded.notes))]


def _heading(recorded: RecordedSteps) -> str:
    steps = f"{recorded.steps} steps of " if recorded.steps > 1 else ""
    items = [recorded.file, recorded.source, f"{steps}{recorded.count:,} calls"]
    if recorded.step_s is not None:
        items.append(format_seconds(recorded.step_s))
    if recorded.between_calls_s is not None and recorded.step_s:
        share = percent(recorded.between_calls_s / recorded.step_s)
        items.append(f"between calls {format_seconds(recorded.between_calls_s)}, {share}")
    return "  ".join(items)


def _dominates(recorded: RecordedSteps) -> list[str]:
    dominant = recorded.dominant
    if dominant is None:
        return []
    whole = "the sum of the limits" if recorded.step_s is None else "the time"
    text = dominant_text(dominant, whole)
    timed = [
        problem for problem in recorded.problems if problem.limit_s is not None and problem.seconds
    ]
    limits_s = sum(problem.limit_s or 0.0 for problem in timed)
    seconds = sum(problem.seconds or 0.0 for problem in timed)
    if not seconds or recorded.step_s is None:
        return [text]
    limit = (
        f"the limit is {percent(limits_s / seconds)} of the {format_seconds(seconds)} that "
        f"problems with one take ({percent(seconds / recorded.step_s)} of all); limits by the "
        f"peaks of {recorded.limits_of}"
    )
    return [text, limit]


_COLUMNS: Final = (
    "operator problem pass_ precision count seconds share limit_s of_limit native_s times_native"
)


def _rest(recorded: RecordedSteps) -> list[str]:
    """Return lines on problems that are not in the table, and on those without a native layer."""
    lines = []
    if below := recorded.problems[_MAX_PROBLEMS:]:
        share = percent(sum(problem.share or 0.0 for problem in below))
        lines.append(f"{len(below)} more problems: {share} (--json)")
    without = recorded.without_layer
    if without:
        calls = sum(problem.count for problem in without)
        share = percent(sum(problem.share or 0.0 for problem in without))
        which = f"{calls} of {recorded.count:,} calls, {share}: {_operators(without)}"
        lines.append(f"without a native layer: {which}")
    return lines


def _operators(problems: Sequence[RecordedProblem]) -> str:
    """Return the operators of problems with their numbers of calls and reasons."""
    counts = Counter[tuple[str, str]]()
    for problem in problems:
        counts[problem.operator, problem.no_layer or ""] += problem.count
    names = [f"{operator} x {count} ({why})" for (operator, why), count in counts.items()]
    more = len(names) - _MAX_LISTED_OPERATORS
    rest = [f"and {more} more (--json)"] if more > 0 else []
    return "; ".join([*names[:_MAX_LISTED_OPERATORS], *rest])
