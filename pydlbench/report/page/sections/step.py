"""The section of steps: the ladder as bars and as a table, and the ledger of every cross-check."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from pydlbench.report.check_numbers import Scale, percent, signed_percent
from pydlbench.report.page.cleaning import finite
from pydlbench.report.page.figures.step import NEEDS, steps
from pydlbench.report.page.markup import Html, dotted, el, join, plain
from pydlbench.report.page.section import Section, absent, capped, chart, collected
from pydlbench.report.page.tables import Column, table
from pydlbench.report.page.throughput import options_text

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from pydlbench.crosscheck import CheckRecord, LedgerTerm
    from pydlbench.report.page.rungs import Ladder
    from pydlbench.report.page.runs import PageRun

__all__ = ["step"]


def step(runs: Sequence[PageRun]) -> Section:
    """Return the section: a figure and a table per step, then the ledgers."""
    found, trouble = capped(lambda: steps(runs), "The ladder of a step")
    parts = []
    for one, ladder in found:
        parts += [chart(one), _ladder(ladder, f"{one.name}-table")]
    ledgers, other = collected(lambda: _ledgers(runs), "A ledger")
    body = join([*parts, trouble, *ledgers, other])
    missing = absent("No ladder: no run here holds an estimate, a cross-check or a model.", NEEDS)
    return Section("step", "Where a step goes", body or missing, [one for one, _ in found])


def _ladder(ladder: Ladder, ident: str) -> Html:
    """Layers over rungs, seconds in one unit."""
    scale = Scale.of(max(rung.seconds for rung in ladder.rungs))
    divided = [rung for rung in ladder.rungs if rung.divided]
    seconds = {rung.name: {one.name: one.seconds for one in rung.segments} for rung in ladder.rungs}
    names = dict.fromkeys(one.name for rung in divided for one in rung.segments)

    def cell(rung: str) -> Callable[[str], str]:
        return lambda name: scale.text(seconds[rung].get(name))

    def value(rung: str) -> Callable[[str], float | None]:
        return seconds[rung].get

    columns = [Column("layer", lambda name: name)]
    columns += [
        Column(rung.name, cell(rung.name), value(rung.name), right=True) for rung in divided
    ]
    caption = f"Time by layer: {dotted(ladder.title)}"
    inside = table(caption, columns, list(names), ident)
    return el("details", el("summary", f"Table: {caption}"), inside)


def _ledgers(runs: Sequence[PageRun]) -> Iterator[Html]:
    count = 0
    for run in runs:
        for check in run.checks:
            if check.record is not None:
                count += 1
                which = f"{check.who}{run.within(len(runs))}"
                yield _ledger(check.record, f"ledger-{count}", which)


def _ledger(record: CheckRecord, ident: str, which: str) -> Html:
    scale = Scale.of(record.measured.median)

    def seconds(one: LedgerTerm) -> float:
        return finite(one.seconds) or 0.0

    def time(one: LedgerTerm) -> str:
        rest = one.term == "unexplained"
        return (scale.signed if rest else scale.text)(seconds(one))

    def share(one: LedgerTerm) -> str:
        part = seconds(one) / record.measured.median
        return (signed_percent if one.term == "unexplained" else percent)(part)

    columns = [
        Column("term", lambda one: one.term),
        Column("time", time, seconds, right=True),
        Column("share", share, seconds, right=True),
        Column("", _bar(record)),
        Column("what stands out", lambda one: plain(one.detail) if one.detail else ""),
        Column("how it was measured", lambda one: el("span", one.how)),
    ]
    words = [record.model, options_text(record.options), f"batch {record.batch}", record.phase]
    what = " ".join(filter(None, [*words, record.precision]))
    caption = (
        f"Ledger: {what}, {which}: the terms add up to the "
        f"measured {scale.text(record.measured.median)}"
    )
    return el("div", table(caption, columns, list(record.ledger), ident), class_="ledger")


def _bar(record: CheckRecord) -> Callable[[LedgerTerm], Any]:
    def bar(one: LedgerTerm) -> Html:
        share = (finite(one.seconds) or 0.0) / record.measured.median
        width = round(100 * min(1.0, abs(share)), 1)
        css = "bar less" if share < 0 else "bar"
        return el("span", class_=css, style=f"width:{width}%", aria_hidden="true")

    return bar
