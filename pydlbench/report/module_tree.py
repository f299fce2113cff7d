"""The tree of a model's modules as a table: modules that repeat are one row, at every level."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Annotated, Any, Final, TypeVar

from pydlbench.grouping import sum_by
from pydlbench.models.tree import RepeatedModule, fold
from pydlbench.records.record import Column, Record, columns_of, shown
from pydlbench.records.trace import CallInContext
from pydlbench.report.blocks import TableBlock
from pydlbench.steps.traced import limit_of_module
from pydlbench.timing.statistics import sum_known
from pydlbench.units import format_seconds, percent

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


class ModulePart(Record, frozen=True, kw_only=True):
    """A part of a model: a module, or several that repeat. Times in seconds.

    Attributes:
        module: names of the modules, parted by dots: ``encoder.layers.0-3``.
        depth: number of parts around it.
        repeats: number of modules.
        seconds: time of their calls together.
        share: of the step.
        limit_s: least time of their calls; None where calls without one take more than a tenth.
        alone_s: time of their calls, each alone; None if one was not timed alone.
        native_s: time of the native layers; None if a call has none.
        slowest: the calls that take most of its time.
    """

    module: Annotated[str, shown("module", right=False)]
    depth: int = 0
    repeats: Annotated[int, shown("x", when=lambda rows: any(row.repeats > 1 for row in rows))] = 1
    seconds: Annotated[float, shown("time", format_seconds, unit="s")]
    share: Annotated[float, shown("of step", percent)]
    limit_s: Annotated[float | None, shown("limit", format_seconds, unit="s")] = None
    alone_s: Annotated[float | None, shown("alone", format_seconds, unit="s")] = None
    native_s: Annotated[float | None, shown("native", format_seconds, unit="s")] = None
    slowest: Annotated[str, shown("slowest call", right=False)] = ""

    @property
    def of_limit(self) -> Annotated[float | None, shown("of limit", percent)]:
        """The limit over the time, 0 to 1; None without a limit."""
        return self.limit_s / self.seconds if self.limit_s is not None and self.seconds else None

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
