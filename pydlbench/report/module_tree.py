"""The modules and calls of a step: a tree as a table, where modules that repeat are one row."""

import re
import shlex
from collections.abc import Callable, Iterator, Sequence
from typing import Annotated, Any, Final, TypeVar

from pydlbench.grouping import group_by, sum_by
from pydlbench.models.tree import RepeatedModule, fold
from pydlbench.records.breakdown import BrokenDownModule
from pydlbench.records.record import Column, columns_of, shown
from pydlbench.records.step import StepRecord, step_words
from pydlbench.records.trace import CallInContext, Dominant, Tracing
from pydlbench.report.blocks import Block, Details, Lines, TableBlock
from pydlbench.report.columns import MAX_RIVALS
from pydlbench.report.figures.bars import Bar, bars
from pydlbench.report.verdicts import share_text
from pydlbench.steps.traced import limit_of_module
from pydlbench.timing.statistics import sum_known
from pydlbench.traces.kernel_names import category_of
from pydlbench.units import format_seconds, percent, quantity, some_names

#: A part of a tree: :class:`ModulePart` or :class:`~pydlbench.records.ledger.LedgerModule`.
Part = TypeVar("Part", bound=Any)

#: Rows of the table without ``--all``.
MAX_PARTS: Final = 12
#: Parts that take less than this share of a step are shown with ``--all`` only.
MIN_PART_SHARE: Final = 0.01
#: Blanks that a terminal and a page keep.
INDENT: Final = "\N{NO-BREAK SPACE}\N{NO-BREAK SPACE}"
#: A part whose only part of its own takes this share of it says nothing new.
SAME_PART_SHARE: Final = 0.999
#: The dominant part is the innermost one that has this share of the part around it.
DOMINANT_SHARE: Final = 0.5


class ModulePart(BrokenDownModule, frozen=True, kw_only=True):
    """A part of a model: a module, or several that repeat, with the times of all their calls.

    Attributes:
        depth: number of parts around it.
        repeats: number of modules, whose name is ``encoder.layers.0-3``.
        slowest: the calls that take most of its time.
    """

    depth: int = 0
    repeats: Annotated[int, shown("x", when=lambda rows: any(row.repeats > 1 for row in rows))] = 1
    slowest: Annotated[str, shown("slowest call", right=False)] = ""

    @property
    def name(self) -> str:
        """The part with the number of its modules: ``4 x encoder.layers.0-3``."""
        return f"{self.repeats} x {self.module}" if self.repeats > 1 else self.module


def module_parts(calls: Sequence[CallInContext], step_s: float) -> list[ModulePart]:
    """Return the parts of a model, each followed by its own parts, the longest first.

    Args:
        calls: calls of a step; the names of a module are separated by dots.
        step_s: time of the step.
    """
    tree = fold(
        (call.module.split("."), (call.operator, call.direction, call.count, call.flops), call)
        for call in calls
    )
    return _rows(tree, (), step_s)


def _rows(
    parts: Sequence[RepeatedModule[CallInContext]], outer: tuple[str, ...], step_s: float
) -> list[ModulePart]:
    rows = []
    for part in sorted(parts, key=lambda part: -_seconds(part.items)):
        path = (*outer, part.name)
        calls = part.items
        operators = sum_by((call_name(call), call.in_context_s) for call in calls)
        slowest = max(operators, key=lambda name: operators[name])
        rows.append(
            ModulePart(
                module=".".join(path),
                depth=len(outer),
                repeats=part.repeats,
                seconds=_seconds(calls),
                share=_seconds(calls) / step_s,
                limit_s=limit_of_module(calls),
                alone_s=sum_known([getattr(call, "alone_s", None) for call in calls]),
                native_s=sum_known([getattr(call, "native_s", None) for call in calls]),
                slowest=f"{slowest} {format_seconds(operators[slowest])}",
            )
        )
        rows += _rows(part.inner, path, step_s)
    return rows


def _seconds(calls: Sequence[CallInContext]) -> float:
    return sum(call.in_context_s for call in calls)


def call_name(call: CallInContext) -> str:
    """Return the operator of calls, with the direction unless the operator contains it."""
    operator = call.operator.removeprefix("aten.")
    contained = call.direction == "forward" or call.direction in operator.lower()
    return operator if contained else f"{operator} {call.direction}"


def parts_table(
    parts: Sequence[Part],
    names: str,
    *,
    seconds: Callable[[float], str] | None = None,
) -> TableBlock:
    """Return the table of parts, each indented below the part around it; see part_columns."""
    return TableBlock.from_rows(part_columns(parts, names, seconds=seconds), parts)


def part_columns(
    parts: Sequence[Part],
    names: str,
    *,
    seconds: Callable[[float], str] | None = None,
    separator: str = ".",
) -> list[Column[Part]]:
    """Return the columns of a table of parts: the indented module, its number, and others.

    Args:
        parts: as :func:`shown_parts` returns them.
        names: of the columns behind the module and its number.
        seconds: formats times; None keeps each field's format.
        separator: between the names of modules.
    """
    every = {part.module for part in parts}

    def indented(part: Part) -> str:
        *outer, name = part.module.split(separator)
        around = [separator.join(outer[: place + 1]) for place in range(len(outer))]
        inside = [place for place, each in enumerate(around) if each in every]
        # Parts that are not shown stay in the name: "encoder.layers.0-3".
        below = outer[inside[-1] + 1 :] if inside else outer
        return INDENT * len(inside) + separator.join([*below, name])

    module: Column[Part] = Column("module", indented, right=False)
    return [module, *columns_of(parts, f"repeats {names}", seconds=seconds)]


def shown_parts(parts: Sequence[Part], *, everything: bool = False) -> list[Part]:
    """Return the parts that a table shows, in the order of the tree.

    Args:
        parts: each followed by its own parts.
        everything: all of them; else the longest.
    """
    if everything:
        return list(parts)
    kept = [
        part
        for place, part in enumerate(parts)
        if (part.share or 0.0) >= MIN_PART_SHARE and not _is_its_only_part(parts, place)
    ]
    longest = sorted(kept, key=lambda part: -part.seconds)[:MAX_PARTS]
    return [part for part in kept if part in longest]


def _is_its_only_part(parts: Sequence[Part], place: int) -> bool:
    """Whether the part behind this one is inside of it, and takes all of its time."""
    part, after = parts[place], parts[place + 1] if place + 1 < len(parts) else None
    return (
        after is not None
        and after.depth == part.depth + 1
        and after.seconds > SAME_PART_SHARE * part.seconds
    )


def dominant_part(parts: Sequence[ModulePart]) -> ModulePart | None:
    """Return the innermost part in which most of the time above the limit lies.

    Without a limit for all of its calls, a part counts with its time.

    Args:
        parts: each followed by its own parts.
    """
    if not parts:
        return None

    def above(part: ModulePart) -> float:
        return part.seconds - (part.limit_s or 0.0)

    best = max((part for part in parts if part.depth == 0), key=above)
    while True:
        place = parts.index(best) + 1
        inner = []
        while place < len(parts) and parts[place].depth > best.depth:
            inner.append(parts[place])
            place += 1
        own = [part for part in inner if part.depth == best.depth + 1]
        first = max(own, key=above, default=None)
        if first is None or above(first) < DOMINANT_SHARE * above(best):
            return best
        best = first


# -----------------------------------------------------------------------------
# The blocks of a traced step: its modules, the dominant one, and the time between calls.

#: Maximum time of a traced step over that of an untraced one with shares of the limit.
MAX_TRACE_COST: Final = 1.5
#: Share of the limit above which the time or the limit must be wrong.
MAX_OF_LIMIT: Final = 1.1
_DISTURBED: Final = "other work disturbed the step: which module dominates is not known"
# Categories that are named for each direction.
_MAX_CATEGORIES: Final = 3


def context_blocks(record: StepRecord, who: str, *, alone: bool = False) -> list[Block]:
    """Return the blocks of a traced step, or the reason why it was not traced.

    Args:
        record: record of the step.
        who: framework and mode.
        alone: whether it is the report's only step, whose headline has the dominant part.
    """
    if record.untraced is not None:
        return [Lines([f"{who}: modules and calls were not measured: {record.untraced}"])]
    modules, trace = record.modules, record.trace
    if not modules or trace is None or record.dominant is None:
        return []
    calls = record.calls or ()
    step_s = sum(call.in_context_s for call in calls) + (record.between_calls_s or 0.0)
    parts = module_parts(calls, step_s)
    table = shown_parts(parts)

    def text(seconds: float) -> str:
        return f"{format_seconds(seconds)}{'*' if record.contended else ''}"

    lines = list(_limit_lines(table, trace))
    shares = "" if trace.cost > MAX_TRACE_COST else "of_limit"
    if len(parts) > len(table):
        hidden = [module for module in modules if module.share < MIN_PART_SHARE]
        share = percent(sum(module.share for module in hidden))
        more = quantity(len(parts) - len(table), "more part")
        lines.append(
            f"{more} (the page has the whole tree); modules below {percent(MIN_PART_SHARE)} each: "
            f"{share} of the step"
        )
    lines.append(_between(record, trace))
    lines += trace.notes
    dominates = dominant_line(record)
    introduced = [] if alone and dominates else [f"{who}: {dominates or _DISTURBED}"]
    return [
        Lines(introduced),
        parts_table(table, f"seconds share {shares} slowest", seconds=text),
        *bars(
            "modules",
            f"Where a step goes: {who}",
            [Bar(module.module, module.seconds, {"limit": module.limit_s}) for module in modules],
        ),
        _sums(calls, step_s),
        *call_tree(calls, step_s),
        Lines(lines),
    ]


def next_line(record: StepRecord) -> str:
    """Return the command that breaks the time of a step down."""
    return f"next: {shlex.join(['pydlbench', 'breakdown', *step_words(record.spec)])}"


def dominant_line(record: StepRecord) -> str:
    """Return the dominant part of a traced step; empty if it is not known, or was disturbed."""
    if record.dominant is None or record.contended or record.trace is None:
        return ""
    calls = record.calls or ()
    step_s = sum(call.in_context_s for call in calls) + (record.between_calls_s or 0.0)
    return _dominates(record.dominant, calls, module_parts(calls, step_s))


def _limit_lines(parts: Sequence[ModulePart], trace: Tracing) -> Iterator[str]:
    """Yield why shares of the limit are missing, or which of them contradict the limit."""
    if trace.cost > MAX_TRACE_COST:
        yield (
            f"shares of the limit are not shown: a traced step takes {trace.cost:.2f} times as long"
            " as an untraced one, and its calls are shortened by one factor"
        )
    elif short := [part.name for part in parts if (part.of_limit or 0.0) > MAX_OF_LIMIT]:
        yield f"contradiction: less time than the limit: {some_names(short)}"


def call_tree(calls: Sequence[CallInContext], step_s: float) -> list[Block]:
    """Return the tree of modules with their calls, each level folded in the one above.

    The bars behind the names are an icicle: those of parts lie below that of the whole.

    Args:
        calls: calls of a step; the parts of a module's path are separated by dots.
        step_s: time of the step.
    """
    tree = [(tuple(call.module.split(".")), call) for call in calls]
    title = "Tree of modules and calls, with their shares of the step"
    return [Details(title, _branches(tree, 0.0, step_s))] if step_s else []


def _branches(
    calls: Sequence[tuple[tuple[str, ...], CallInContext]], start: float, step_s: float
) -> list[Block]:
    children = group_by(((path, call) for path, call in calls if path), lambda pair: pair[0][0])
    ranked = sorted(children.items(), key=lambda item: -sum(call.share for _, call in item[1]))
    leaves = sorted((call for path, call in calls if not path), key=lambda call: -call.in_context_s)
    blocks: list[Block] = []
    for name, pairs in ranked:
        own = [call for _, call in pairs]
        length = min(1.0 - start, sum(call.in_context_s for call in own) / step_s)
        below = _branches([(path[1:], call) for path, call in pairs], start, step_s)
        blocks.append(Details(_part(name, own), below, (start, max(0.0, length))))
        start = min(1.0, start + length)
    return [
        *blocks,
        Lines(
            [
                _part(f"{call_name(leaf)}, {quantity(leaf.count, 'time')}", [leaf])
                for leaf in leaves
            ],
            listed=True,
        ),
    ]


def _sums(calls: Sequence[CallInContext], step_s: float) -> TableBlock:
    """Return the time of each direction, and of each category of calls in it."""
    by_direction = group_by(calls, lambda call: call.direction)
    cells = []
    for direction, own in by_direction.items():
        seconds = sum(call.in_context_s for call in own)
        kinds = sum_by((_category(call.operator), call.in_context_s) for call in own)
        ranked = sorted(kinds, key=lambda name: -kinds[name])[:_MAX_CATEGORIES]
        largest = ", ".join(f"{name} {format_seconds(kinds[name])}" for name in ranked)
        cells.append([direction, format_seconds(seconds), percent(seconds / step_s), largest])
    titles = ("direction", "time", "of step", "largest categories")
    return TableBlock(titles, cells, (False, True, True, False))


def _category(operator: str) -> str:
    """Return the category of an operator; kernels of products have no operator's name in theirs."""
    product = re.search(r"mm$|mm[._]|matmul|(^|[._])q?linear(?![a-z]|\dd)", operator.lower())
    return "product" if product else category_of(operator)


def _part(name: str, calls: Sequence[CallInContext]) -> str:
    seconds, share = sum(call.in_context_s for call in calls), sum(call.share for call in calls)
    return f"{name}: {format_seconds(seconds)}, {percent(share)}"


def _dominates(
    dominant: Dominant, calls: Sequence[CallInContext], parts: Sequence[ModulePart]
) -> str:
    """Return the dominant part, its slowest call, and modules that may dominate as well."""
    part = dominant_part(parts)
    if part is not None and part.repeats > 1:
        held = "" if part.of_limit is None else f", of which its limit is {percent(part.of_limit)}"
        text = f"dominated by {part.name}: {percent(part.share)} of the step{held}"
        return f"{text}; its slowest call: {part.slowest}"
    text = f"dominated by {dominant.name}: {share_text(dominant)} of the step"
    own = [call for call in calls if call.module == dominant.name]
    slowest = max(own, key=lambda call: call.in_context_s)
    if len(own) > 1:
        text += f", {call_name(slowest)} {percent(slowest.share)} of the step"
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
