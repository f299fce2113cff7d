"""The section of layers: measured against theoretical, every row, and those without a time."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from pydlbench.report.page.figures.peaks import NEEDS, against_peaks
from pydlbench.report.page.markup import Html, dotted, el, join
from pydlbench.report.page.section import Section, absent, capped, chart, collected
from pydlbench.report.page.tables import Column, table
from pydlbench.results.columns import columns
from pydlbench.results.heading import heading

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from pydlbench.report.page.runs import PageRun
    from pydlbench.results import Measurement

__all__ = ["layers"]

_LEGEND = {
    "theoretical": "executed FLOP/s over the theoretical peak at the clock it ran at",
    "measured": "executed FLOP/s over the peak that a probe reached",
    "of roof": "the measured roof over the time: 100 % is all that this kernel can reach",
    "TFLOP/s": "algorithmic: padding counted, as papers do",
    "to best": "time over the fastest backend's, from rounds that both were in",
    "checked": "largest relative error against exact results",
    "bound": "which limit is the highest: compute, memory or launch",
    "pages kept": "the same call where the allocator keeps the pages that were freed",
}


def layers(runs: Sequence[PageRun]) -> Section:
    """Return the section: a figure and the tables of each run."""
    charts, trouble = capped(lambda: against_peaks(runs), "Measured against theoretical")
    tables, other = collected(lambda: _tables(runs), "A table of layers")
    figures = [*map(chart, charts), trouble]
    if not charts and not trouble:
        text = "No comparison with peaks: no run here has a timed layer with a known peak."
        figures = [absent(text, NEEDS)]
    return Section("layers", "Layers", join([*figures, *tables, other]), charts)


def _tables(runs: Sequence[PageRun]) -> Iterator[Html]:
    for run in runs:
        which = run.within(len(runs))
        if run.timed:
            above = [
                el("p", dotted(line), class_="setting") for line in heading(run.record, run.timed)
            ]
            found = [_column(one) for one in columns(run.timed)]
            caption = f"Timed layers{which}{f'. {run.part}' if run.part else ''}"
            ident = f"layers-{run.number}"
            yield el("div", *above, table(caption, found, run.timed, ident))
        others = [row for row in run.rows if not row.ok]
        if others:
            more = f": {len(others)} of {len(others) + run.left_untimed}"
            caption = f"Without a time{which}{more if run.left_untimed else ''}"
            yield table(caption, _WITHOUT, others, f"untimed-{run.number}")


_WITHOUT = [
    Column("layer", lambda row: row.layer),
    Column("problem", lambda row: row.problem),
    Column("pass", lambda row: row.pass_),
    Column("precision", lambda row: row.precision),
    Column("backend", lambda row: row.who),
    Column("status", lambda row: row.status),
    Column("reason", lambda row: el("span", row.reason or "not told")),
]


def _column(one: Any) -> Column:
    value = _EXACT.get(one.title)
    if one.title.endswith("CI"):
        value = _spread
    return Column(one.title, one.cell, value, one.right, _LEGEND.get(one.title))


def _spread(row: Measurement) -> float | None:
    if row.time is None:
        return None
    return row.time.half_width if row.time.half_width is not None else row.time.iqr


_EXACT: dict[str, Callable[[Measurement], float | None]] = {
    "batch": lambda row: row.batch,
    "threads": lambda row: row.threads,
    "GFLOP": lambda row: row.flops,
    "median": lambda row: row.time.median if row.time else None,
    "n": lambda row: row.time.n if row.time else None,
    "TFLOP/s": lambda row: row.tflops,
    "GB/s": lambda row: row.gbps,
    "theoretical": lambda row: row.fraction_of_peak("theoretical"),
    "measured": lambda row: row.fraction_of_peak("measured"),
    "of roof": lambda row: row.roofline.efficiency if row.roofline else None,
    "to best": lambda row: row.ratio["median"] if row.ratio else None,
    "pages kept": lambda row: row.warm_s,
    "energy": lambda row: row.energy_j,
    "GFLOP/s/W": lambda row: row.gflops_per_watt,
    "checked": lambda row: row.correct.rel_error,
}
