"""A traced step in text: its modules, what dominates it, and what is between calls."""

from __future__ import annotations

import shlex
from typing import TYPE_CHECKING, Final

from pydlbench.records.fields import Column, columns_of
from pydlbench.records.step import step_words
from pydlbench.report.blocks import Details, Lines, Table
from pydlbench.report.figures.bars import Bar, bars
from pydlbench.units import format_seconds, percent

if TYPE_CHECKING:
    from collections.abc import Sequence

    from pydlbench.records.step import StepRecord
    from pydlbench.records.trace import CallInContext, Dominant, ModuleInContext, Tracing
    from pydlbench.report.blocks import Block

#: Modules that are shown; JSON has all.
_SHOWN: Final = 10
#: Modules that cannot be told from the dominant one are named up to so many.
_RIVALS: Final = 3


def context_blocks(record: StepRecord, who: str) -> list[Block]:
    """Return what is said of a traced step; of one that was not traced the reason.

    Args:
        record: of the step.
        who: framework and mode.
    """
    if record.untraced is not None:
        return [Lines([f"{who}: modules and calls were not measured: {record.untraced}"])]
    modules, trace = record.modules, record.trace
    if not modules or trace is None or record.dominant is None:
        return []
    calls = record.calls or ()
    lines = []
    if rest := modules[_SHOWN:]:
        seconds, share = sum(part.seconds for part in rest), sum(part.share for part in rest)
        lines.append(
            f"{len(rest)} more modules: {format_seconds(seconds)}, {percent(share)} of the step "
            "(--json)"
        )
    lines.append(_between(record, trace))
    lines += trace.notes
    lines.append(f"next: {shlex.join(['pydlbench', 'breakdown', *step_words(record.spec)])}")
    dominates = _dominates(record.dominant, calls)
    if record.contended:
        dominates = "other work disturbed the step: which module dominates is not known"
    return [
        Lines([f"{who}: {dominates}"], bold=1),
        modules_table(modules[:_SHOWN], calls, contended=record.contended),
        *bars(
            "modules",
            f"Where a step goes: {who}",
            [Bar(module.module, module.seconds, {"limit": module.limit_s}) for module in modules],
        ),
        *call_tree(calls),
        Lines(lines),
    ]


def call_tree(calls: Sequence[CallInContext]) -> list[Block]:
    """Return modules, those in them, and their calls, each level folded below the one above.

    Args:
        calls: of a step; the dots in a module's name part it from the one that holds it.
    """
    tree = [(tuple(call.module.split(".")), call) for call in calls]
    return [Details("Tree of modules and calls, with their shares of the step", _branches(tree))]


def _branches(calls: Sequence[tuple[tuple[str, ...], CallInContext]]) -> list[Block]:
    below: dict[str, list[tuple[tuple[str, ...], CallInContext]]] = {}
    leaves = []
    for path, call in calls:
        if path:
            below.setdefault(path[0], []).append((path[1:], call))
        else:
            leaves.append(call)
    ranked = sorted(below.items(), key=lambda pair: -sum(call.share for _, call in pair[1]))
    lines = [
        _part(f"{_named(leave)}, {leave.count} times", [leave])
        for leave in sorted(leaves, key=lambda each: -each.in_context_s)
    ]
    return [
        *(
            Details(_part(name, [call for _, call in some]), _branches(some))
            for name, some in ranked
        ),
        Lines(lines, listed=True),
    ]


def _part(name: str, calls: Sequence[CallInContext]) -> str:
    seconds, share = sum(call.in_context_s for call in calls), sum(call.share for call in calls)
    return f"{name}: {format_seconds(seconds)}, {percent(share)}"


def modules_table(
    modules: Sequence[ModuleInContext], calls: Sequence[CallInContext], *, contended: bool = False
) -> Table:
    """Return modules with their times, what the limit is of them, and their slowest calls.

    Args:
        modules: of a step.
        calls: of the same step.
        contended: whether other work disturbed the step; its times get a star.
    """

    def text(seconds: float) -> str:
        return f"{format_seconds(seconds)}{'*' if contended else ''}"

    def slowest(module: ModuleInContext) -> str:
        own = [call for call in calls if call.module == module.module]
        call = max(own, key=lambda each: each.in_context_s)
        return f"{_named(call)} {text(call.in_context_s)}"

    columns = columns_of(modules, "module seconds share of_limit", seconds=text)
    return Table.from_rows([*columns, Column("slowest call", slowest, right=False)], modules)


def _named(call: CallInContext) -> str:
    """Return operator and direction of calls, the latter where the name does not say it."""
    operator = call.operator.removeprefix("aten.")
    named = call.direction == "forward" or call.direction in operator.lower()
    return operator if named else f"{operator} {call.direction}"


def _dominates(dominant: Dominant, calls: Sequence[CallInContext]) -> str:
    """Say which module takes most of the step, and by which calls."""
    text = f"dominated by {dominant.name}: {percent(dominant.share)} of the step"
    if dominant.ci_low is not None and dominant.ci_high is not None:
        text += f" (95 % {percent(dominant.ci_low)} .. {percent(dominant.ci_high)})"
    own = [call for call in calls if call.module == dominant.name]
    slowest = max(own, key=lambda each: each.in_context_s)
    if len(own) > 1:
        text += f", {_named(slowest)} {percent(slowest.share)} of the step"
    if dominant.rivals:
        named = ", ".join(dominant.rivals[:_RIVALS])
        more = len(dominant.rivals) - _RIVALS
        text += f"; cannot be told from {named}" + (f" and {more} more" if more > 0 else "")
    return text


def _between(record: StepRecord, trace: Tracing) -> str:
    between_s = record.between_calls_s or 0.0
    share = percent(between_s / (between_s + sum(call.in_context_s for call in record.calls or ())))
    chain = trace.way == "stamps"
    over = "the chain of its calls over the step" if chain else "traced over untraced"
    return (
        f"between calls {format_seconds(between_s)}, {share} of the traced step; "
        f"{trace.calls:,} calls in {trace.rounds} steps of one process, by {trace.source}: "
        f"{over} {trace.cost:.3f}"
    )
