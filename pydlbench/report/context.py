"""The blocks of a traced step: its modules, the dominant one, and the time between calls."""

from __future__ import annotations

import shlex
from typing import TYPE_CHECKING, Final

from pydlbench.grouping import group_by
from pydlbench.records.fields import Column, columns_of
from pydlbench.records.step import step_words
from pydlbench.report.blocks import Details, Lines, TableBlock
from pydlbench.report.columns import MAX_RIVALS
from pydlbench.report.figures.bars import Bar, bars
from pydlbench.units import format_seconds, percent

if TYPE_CHECKING:
    from collections.abc import Sequence

    from pydlbench.records.step import StepRecord
    from pydlbench.records.trace import CallInContext, Dominant, ModuleInContext, Tracing
    from pydlbench.report.blocks import Block

#: Modules in the table; JSON has all.
_MAX_MODULES: Final = 10


def context_blocks(record: StepRecord, who: str) -> list[Block]:
    """Return the blocks of a traced step, or the reason why it was not traced.

    Args:
        record: record of the step.
        who: framework and mode.
    """
    if record.untraced is not None:
        return [Lines([f"{who}: modules and calls were not measured: {record.untraced}"])]
    modules, trace = record.modules, record.trace
    if not modules or trace is None or record.dominant is None:
        return []
    calls = record.calls or ()
    lines = []
    if rest := modules[_MAX_MODULES:]:
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
        modules_table(modules[:_MAX_MODULES], calls, contended=record.contended),
        *bars(
            "modules",
            f"Where a step goes: {who}",
            [Bar(module.module, module.seconds, {"limit": module.limit_s}) for module in modules],
        ),
        *call_tree(calls),
        Lines(lines),
    ]


def call_tree(calls: Sequence[CallInContext]) -> list[Block]:
    """Return the tree of modules with their calls, each level folded in the one above.

    Args:
        calls: calls of a step; the parts of a module's path are separated by dots.
    """
    tree = [(tuple(call.module.split(".")), call) for call in calls]
    return [Details("Tree of modules and calls, with their shares of the step", _branches(tree))]


def _branches(calls: Sequence[tuple[tuple[str, ...], CallInContext]]) -> list[Block]:
    children = group_by(((path, call) for path, call in calls if path), lambda pair: pair[0][0])
    ranked = sorted(children.items(), key=lambda item: -sum(call.share for _, call in item[1]))
    leaves = sorted((call for path, call in calls if not path), key=lambda call: -call.in_context_s)
    return [
        *(
            Details(
                _part(name, [call for _, call in pairs]),
                _branches([(path[1:], call) for path, call in pairs]),
            )
            for name, pairs in ranked
        ),
        Lines(
            [_part(f"{_name(leaf)}, {leaf.count} times", [leaf]) for leaf in leaves], listed=True
        ),
    ]


def _part(name: str, calls: Sequence[CallInContext]) -> str:
    seconds, share = sum(call.in_context_s for call in calls), sum(call.share for call in calls)
    return f"{name}: {format_seconds(seconds)}, {percent(share)}"


def modules_table(
    modules: Sequence[ModuleInContext], calls: Sequence[CallInContext], *, contended: bool = False
) -> TableBlock:
    """Return modules with their times, their shares of the limit, and their slowest calls.

    Args:
        modules: modules of a step.
        calls: calls of the same step.
        contended: whether other work disturbed the step; its times get a star.
    """

    def text(seconds: float) -> str:
        return f"{format_seconds(seconds)}{'*' if contended else ''}"

    def slowest(module: ModuleInContext) -> str:
        call = max(_calls_of(module.module, calls), key=lambda call: call.in_context_s)
        return f"{_name(call)} {text(call.in_context_s)}"

    columns = columns_of(modules, "module seconds share of_limit", seconds=text)
    return TableBlock.from_rows([*columns, Column("slowest call", slowest, right=False)], modules)


def _calls_of(module: str, calls: Sequence[CallInContext]) -> list[CallInContext]:
    return [call for call in calls if call.module == module]


def _name(call: CallInContext) -> str:
    """Return the operator of calls, with the direction unless the operator contains it."""
    operator = call.operator.removeprefix("aten.")
    contained = call.direction == "forward" or call.direction in operator.lower()
    return operator if contained else f"{operator} {call.direction}"


def dominant_text(dominant: Dominant, whole: str) -> str:
    """Return the dominant module with its share: ``dominated by fc: 21 % of the step``."""
    text = f"dominated by {dominant.name}: {percent(dominant.share)} of {whole}"
    if dominant.ci_low is None or dominant.ci_high is None:
        return text
    return f"{text} (95 % {percent(dominant.ci_low)} .. {percent(dominant.ci_high)})"


def _dominates(dominant: Dominant, calls: Sequence[CallInContext]) -> str:
    """Return the dominant module, its slowest call, and modules that may dominate as well."""
    text = dominant_text(dominant, "the step")
    own = _calls_of(dominant.name, calls)
    slowest = max(own, key=lambda call: call.in_context_s)
    if len(own) > 1:
        text += f", {_name(slowest)} {percent(slowest.share)} of the step"
    if dominant.rivals:
        more = len(dominant.rivals) - MAX_RIVALS
        text += f"; cannot be told from {', '.join(dominant.rivals[:MAX_RIVALS])}"
        text += f" and {more} more" if more > 0 else ""
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
