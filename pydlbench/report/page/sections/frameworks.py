"""The section of frameworks: images per second by model, phase and precision."""

from __future__ import annotations

from typing import TYPE_CHECKING

from pydlbench.report.page.figures.frameworks import NEEDS, frameworks
from pydlbench.report.page.markup import Html, el, join
from pydlbench.report.page.section import Section, absent, chart, collected
from pydlbench.report.page.tables import Column, table
from pydlbench.report.page.throughput import rates
from pydlbench.results.columns import number
from pydlbench.units import format_seconds

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from pydlbench.report.page.runs import PageRun
    from pydlbench.report.page.throughput import Rate

__all__ = ["by_framework"]


def by_framework(runs: Sequence[PageRun]) -> Section:
    """Return the section: the figure, and a table of all steps."""
    charts, trouble = collected(lambda: frameworks(runs), "The comparison of frameworks")
    tables, other = collected(lambda: _tables(runs), "A table of steps")
    body = join([*map(chart, charts), trouble, *tables, other])
    missing = absent("No comparison of frameworks: no run here timed a whole step.", NEEDS)
    return Section("frameworks", "Frameworks by precision", body or missing, charts)


def _tables(runs: Sequence[PageRun]) -> Iterator[Html]:
    found = rates(runs)
    if found:
        yield table("Steps of frameworks", _COLUMNS, found, "steps-table")
    without = [
        (one.record.case, one.record) for run in runs for one in run.steps if not one.record.ok
    ]
    if without:
        columns = [
            Column("step", lambda pair: pair[0].label),
            Column("status", lambda pair: pair[1].status),
            Column("reason", lambda pair: el("span", pair[1].reason or "not told")),
        ]
        yield table("Steps without a time", columns, without, "steps-without")


def _interval(one: Rate) -> str:
    if one.low is None or one.high is None:
        return "no interval"
    return f"{number(one.low)} to {number(one.high)}"


_COLUMNS = [
    Column("model", lambda one: one.model),
    Column("batch", lambda one: one.batch, lambda one: one.batch, right=True),
    Column("phase", lambda one: one.phase),
    Column("precision", lambda one: one.precision),
    Column("framework", lambda one: one.who),
    Column("device", lambda one: one.device),
    Column("machine", lambda one: one.machine),
    Column(
        "images/s", lambda one: number(one.images_per_s), lambda one: one.images_per_s, right=True
    ),
    Column("interval", _interval, lambda one: one.low, right=True),
    Column("step", lambda one: format_seconds(one.seconds), lambda one: one.seconds, right=True),
    Column("n", lambda one: one.n, lambda one: one.n, right=True),
    Column("note", lambda one: "contended" if one.contended else ""),
    Column("run", lambda one: one.run, lambda one: one.run, right=True),
]
