"""The report of ``breakdown``: levels, the terms between them, and the modules that dominate."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from pydlbench.records.breakdown import LEVELS, BreakdownRecord
from pydlbench.records.fields import Column
from pydlbench.report.blocks import Heading, Lines, Table
from pydlbench.report.columns import device_name
from pydlbench.report.context import call_tree
from pydlbench.report.figures.bars import Bar, bars
from pydlbench.units import Scale, percent

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from pydlbench.records.breakdown import BrokenDownModule, Level, Term
    from pydlbench.records.run import RunRecord
    from pydlbench.report.blocks import Block

# Modules that are shown unless all are asked for.
_SHOWN: Final = 8


def breakdown_report(
    run: RunRecord, documents: Sequence[Mapping[str, Any]], *, explain: bool = False
) -> list[Block]:
    """Return a report on each breakdown.

    Args:
        run: for the device's name.
        documents: breakdowns, or why there are none.
        explain: how each term was measured, and all modules.
    """
    blocks: list[Block] = []
    for one in documents:
        if one["status"] == "ok":
            blocks += _blocks(run, BreakdownRecord.from_dict(one), explain=explain)
        else:
            words = f"{one['model']}  {one['phase']}  {one['framework']} {one['mode']}"
            blocks.append(Lines([f"{words}  {one['status']}: {one['reason']}"], alarm=True))
    return blocks


def _blocks(run: RunRecord, record: BreakdownRecord, *, explain: bool) -> list[Block]:
    step = record.measured
    scale = Scale.fit(step.median)
    options = [f"{name}={value}" for name, value in record.options.items()]
    what = [record.model, *options, f"batch {record.batch}", record.phase, record.precision]
    where = [record.library, record.mode, record.layout]
    figures = f"{_with_interval(step, scale)}, {record.processes} processes"
    modules = record.modules if explain else record.modules[:_SHOWN]
    blocks: list[Block] = [
        Heading(
            [
                "  ".join([*what, " ".join(where)]),
                f"{figures}   {record.batch / step.median:.4g} images/s",
                f"{device_name(run.device)}  {record.threads} threads",
            ],
            bold=2,
        ),
        _levels(record, scale),
        *bars(
            "levels",
            "From the limit to the step",
            [
                Bar(name.replace("_", " "), level.median, ends=_ends(level))
                for name in LEVELS
                if (level := _level(record, name)) is not None
            ],
            ordered=False,
        ),
        Table.of(_term_columns(scale), record.terms),
        Table.of(_module_columns(scale), modules),
        *bars(
            "modules",
            "Where the step goes",
            [
                Bar(
                    one.module,
                    one.seconds,
                    {"alone": one.alone_s, "native": one.native_s, "limit": one.limit_s},
                )
                for one in record.modules
            ],
        ),
        *call_tree(record.calls),
        Lines(_remarks(record, scale)),
    ]
    if explain:
        hows = [f"{one.term}: {one.how}" for one in record.terms]
        blocks.append(Lines(hows, listed=True, title="how it was measured"))
    return blocks


def _level(record: BreakdownRecord, name: str) -> Level | None:
    found: Level | None = getattr(record.levels, name)
    return found


def _levels(record: BreakdownRecord, scale: Scale) -> Table:
    """Return a row for each level; of one that is not known the reason."""

    def cell(name: str) -> str:
        level = _level(record, name)
        return record.reasons[name] if level is None else _with_interval(level, scale)

    columns: list[Column[str]] = [
        Column("level", lambda name: name.replace("_", " "), right=False),
        Column("time", cell, right=False),
    ]
    return Table.of(columns, LEVELS)


def _ends(level: Level) -> tuple[float, float] | None:
    low, high = level.ci_low, level.ci_high
    return None if low is None or high is None else (low, high)


def _with_interval(level: Level, scale: Scale) -> str:
    text = scale.text(level.median)
    if level.ci_low is None or level.ci_high is None:
        return f"{text} (n {level.n})"
    return f"{text} (95 % {scale.bare(level.ci_low)} .. {scale.bare(level.ci_high)}, n {level.n})"


def _term_columns(scale: Scale) -> list[Column[Term]]:
    def interval(one: Term) -> str:
        if one.ci_low is None or one.ci_high is None:
            return "-"
        return f"{scale.bare(one.ci_low)} .. {scale.bare(one.ci_high)}"

    return [
        Column("term", lambda one: one.term, right=False),
        Column("kind", lambda one: one.kind, right=False),
        Column("time", lambda one: scale.text(one.seconds)),
        Column("95 %", interval),
        Column("of the step", lambda one: percent(one.share)),
        Column("stands out", lambda one: one.detail, right=False),
    ]


def _module_columns(scale: Scale) -> list[Column[BrokenDownModule]]:
    def seconds(value: float | None) -> str:
        return "-" if value is None else scale.bare(value)

    return [
        Column("module", lambda one: one.module, right=False),
        Column("in context", lambda one: scale.text(one.seconds)),
        Column("share", lambda one: percent(one.share)),
        Column("alone", lambda one: seconds(one.alone_s)),
        Column("native", lambda one: seconds(one.native_s)),
        Column("limit", lambda one: seconds(one.limit_s)),
    ]


def _remarks(record: BreakdownRecord, scale: Scale) -> list[str]:
    lines = []
    if record.unexplained is not None:
        words = f"unexplained {record.unexplained:+.1%} of the step"
        if record.unexplained_low is not None and record.unexplained_high is not None:
            words += f", 95 % {record.unexplained_low:+.1%} .. {record.unexplained_high:+.1%}"
        lines.append(words)
    lines += [f"not measured: {one}" for one in record.not_measured]
    lines += [f"contradiction: {one}" for one in record.contradictions]
    trace = record.trace
    lines.append(
        f"calls are timed by {trace.source} in {trace.rounds} steps and more: a traced step takes "
        f"{trace.cost:.2f} times as long as one beside it ({scale.text(trace.untraced_s)})"
    )
    lines += [f"note: {one}" for one in (*trace.notes, *record.notes)]
    if record.disturbed:
        rounds = f"{record.disturbed} of {record.measured.n} rounds"
        lines.append(
            f"warning: {rounds} were disturbed, which widens intervals: {record.disturbance}"
        )
    return lines
