"""The sections of the page: each takes the runs and puts its blocks together."""

from __future__ import annotations

import datetime as dt
import re
from collections import Counter
from functools import partial
from itertools import starmap
from typing import TYPE_CHECKING, Any, NamedTuple

from pydlbench.compare.match import match
from pydlbench.compare.stored import compare
from pydlbench.errors import UsageError
from pydlbench.records.measurement_metrics import ratio_text
from pydlbench.records.step import framework_text, options_text
from pydlbench.report.check import interval_text, ledger_columns, rung_columns, steps_of
from pydlbench.report.columns import columns, heading, label, varying
from pydlbench.report.compare import (
    comparison_columns,
    conclude,
    legend,
    unclear_reasons,
)
from pydlbench.report.diagnose import OVERLAPS, because
from pydlbench.report.page.blocks import (
    Column,
    Details,
    Facts,
    Figure,
    Group,
    Heading,
    Section,
    Table,
    Text,
    blocks_of,
    figures_of,
    number_column,
    sentence,
)
from pydlbench.report.page.figures.batches import BATCHES_NEED, batch_sweeps
from pydlbench.report.page.figures.frameworks import FRAMEWORKS_NEED, frameworks
from pydlbench.report.page.figures.modules import modules
from pydlbench.report.page.figures.peaks import PEAKS_NEED, against_peaks
from pydlbench.report.page.figures.roofline import ROOFLINE_NEEDS, rooflines
from pydlbench.report.page.figures.samples import SAMPLES_NEED, distributions
from pydlbench.report.page.figures.step import STEP_NEEDS, steps
from pydlbench.report.page.ladders import rates
from pydlbench.report.page.plain import dotted, plain
from pydlbench.report.page.runs import finite
from pydlbench.report.page.sentences import conclusions
from pydlbench.units import Scale, format_flops, number, percent, time_in, time_unit

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Sequence

    from pydlbench.ladder.parts import Module
    from pydlbench.records.check import CheckRecord, LedgerTerm
    from pydlbench.records.diagnosis import Finding
    from pydlbench.records.forecast import ForecastRecord, Place
    from pydlbench.records.measurement import Measurement
    from pydlbench.records.metrics import Column as Printed
    from pydlbench.report.page.figures.canvas import Chart
    from pydlbench.report.page.ladders import DrawnLadder, Rate
    from pydlbench.report.page.runs import PageRun


def conclusion(runs: Sequence[PageRun]) -> Section:
    """Return what follows from each run: the sentences that its command prints."""
    return Section("conclusion", "Conclusion", [_conclusion_run(run, len(runs)) for run in runs])


def _conclusion_run(run: PageRun, count: int) -> Group:
    blocks: list[Any] = []
    for index, one in enumerate(conclusions(run)):
        number = f"run {run.number}: " if count > 1 and not index else ""
        first, *rest = one.lines or ["nothing was measured in this run."]
        blocks += [Heading(f"{number}{one.about}"), Text(first, "first")]
        blocks += [sentence(line) for line in rest if line]
    notes = list(run.troubles)
    if run.info.early:
        notes.insert(0, f"this run is {run.info.status}: it is not all that was asked for.")
    return Group("verdict", [*blocks, *(Text(note, "alarm") for note in notes)])


def comparison(runs: Sequence[PageRun]) -> Section:
    """Return two runs row by row, with what each row resolves; empty for one run or three."""
    title = "Comparison"
    blocks = blocks_of(lambda: _comparison(*runs), title) if len(runs) == 2 else []
    return Section("comparison", title, blocks)


def _comparison(first: PageRun, second: PageRun) -> Iterator[Any]:
    a, b = first.side, second.side
    if a is None or b is None:
        return
    try:
        found = compare(a, b, match(a, b))
    except UsageError:  # they have no row in common: nothing is compared
        return
    if not found.rows:
        return
    lead, *rest = conclude(found)
    yield Text(lead, "first")
    yield from map(sentence, [*rest, *unclear_reasons(found)])
    shown = [
        Column(one.title, one.cell, right=one.right)
        for one in comparison_columns(found, found.rows)
    ]
    across = found.matching.axis
    which = f", matched across {across}: {' and '.join(found.matching.values)}" if across else ""
    yield Table(f"A is run 1, B is run 2{which}", shown, list(found.rows), "comparison-table")
    yield from map(Text, legend(found))


def step(runs: Sequence[PageRun]) -> Section:
    """Return the ladder of each step as bars and as a table, every ledger, and all forecasts."""
    blocks = [
        *figures_of(lambda: starmap(_step_figure, steps(runs)), "The ladder of a step"),
        *figures_of(lambda: starmap(_module_figure, modules(runs)), "The modules of a step"),
        *blocks_of(lambda: _ledgers(runs), "A ledger"),
        *blocks_of(lambda: _forecasts(runs), "A forecast"),
    ]
    return Section("step", "Where a step goes", blocks, STEP_NEEDS)


def _step_figure(chart: Chart, ladder: DrawnLadder) -> Figure:
    return Figure(chart, [_ladder(ladder, f"{chart.name}-table")])


def _module_figure(chart: Chart, tree: Module) -> Figure:
    """The modules as rows of bars, and as a tree that can be unfolded."""
    scale = Scale.fit(tree.seconds)

    def branch(one: Module) -> Details | Text:
        native = "" if one.native_s is None else f", native {scale.text(one.native_s)}"
        share = percent(one.seconds / tree.seconds, decimal=True)
        text = f"{plain(one.name, 80)}: {scale.text(one.seconds)}, {share}{native}"
        below = sorted(one.children, key=lambda child: -child.seconds)
        return Details(text, [branch(child) for child in below]) if below else Text(text)

    first = sorted(tree.children, key=lambda one: -one.seconds)
    return Figure(chart, [Details("Tree of modules", [Group("tree", [*map(branch, first)])])])


def _ladder(ladder: DrawnLadder, ident: str) -> Details:
    """Layers over rungs, seconds in one unit."""
    scale = Scale.fit(max(rung.seconds for rung in ladder.rungs))
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
    return Details(f"Table: {caption}", [Table(caption, columns, list(names), ident)])


def _ledgers(runs: Sequence[PageRun]) -> Iterator[Group]:
    count = 0
    for run in runs:
        for check in run.checks:
            if check.record is not None:
                count += 1
                which = f"{plain(framework_text(check.to_dict()), 60)}{run.within(len(runs))}"
                yield _ledger(check.record, count, which)


def _ledger(record: CheckRecord, count: int, which: str) -> Group:
    """The rungs of a check and the terms between them, with their intervals and kinds."""
    words = [record.model, options_text(record.options), f"batch {record.batch}", record.phase]
    what = " ".join(filter(None, [*words, record.precision]))
    rungs = [
        Column(one.title, one.cell, right=one.right, style="plain" if one.right else "wrap")
        for one in rung_columns(record)
    ]
    blocks: list[Any] = [
        Table(f"Rungs: {what}, {which}", rungs, steps_of(record), f"rungs-{count}"),
        *(Text(f"contradiction: {one}", "alarm") for one in record.contradictions),
    ]
    if record.ledger:
        columns = [_term_column(one) for one in ledger_columns(record)]
        columns.append(Column("how it was measured", lambda one: one.how, style="wrap"))
        step = Scale.fit(record.measured.median).text(sum(one.seconds for one in record.ledger))
        caption = f"Ledger: {what}, {which}: the terms add up to the measured {step}"
        blocks.append(Table(caption, columns, list(record.ledger), f"ledger-{count}"))
    return Group("ledger", blocks)


def _term_column(one: Printed[LedgerTerm]) -> Column:
    """Return a ledger's column as it stands on the page: sorted by seconds, its bar drawn."""
    if not one.title:
        return Column("", lambda term: term.share, style="bar")
    value = (lambda term: finite(term.seconds)) if one.title in ("time", "share") else None
    style = "wrap" if one.title in ("term", "what stands out") else "plain"
    return Column(one.title, one.cell, value, right=one.right, style=style)


class _Forecast(NamedTuple):
    """A forecast, and the first check that ran the step later."""

    run: PageRun
    record: ForecastRecord
    check: CheckRecord | None

    @property
    def error(self) -> float | None:
        """(Forecast - measured) / measured; None without a check."""
        if self.check is None:
            return None
        return self.record.seconds / self.check.measured.median - 1


def _forecasts(runs: Sequence[PageRun]) -> Iterator[Table]:
    found = [
        _Forecast(run, record, _later_check(run, record, runs))
        for run in runs
        for record in run.forecast_records
    ]
    if not found:
        return
    scale = Scale.fit(max(one.record.seconds for one in found))
    caption = "Forecasts, from operators alone, and the checks that ran the same step later"
    yield Table(caption, _forecast_columns(scale), found, "forecasts-table")


def _later_check(
    run: PageRun, forecast: ForecastRecord, runs: Sequence[PageRun]
) -> CheckRecord | None:
    """Return the earliest check of the step on this machine that began after the forecast."""
    made = _step_key(run, forecast, forecast.place)
    later = {
        begun: check.record
        for other in runs
        for check in other.checks
        if check.record is not None
        and _step_key(other, check.record, check.record) == made
        and (begun := dt.datetime.fromisoformat(check.record.step_utc or other.record.created_utc))
        >= dt.datetime.fromisoformat(forecast.created_utc)
    }
    return later[min(later)] if later else None


def _step_key(
    run: PageRun, step: ForecastRecord | CheckRecord, place: Place | CheckRecord
) -> tuple[Any, ...]:
    """What makes two steps the same one."""
    what = (step.model, options_text(step.options), step.batch, step.phase, step.layout, step.feed)
    how = (place.precision, place.framework, place.mode, place.library, place.threads)
    return (run.machine, *what, *how)


def _minute(when: str | None) -> str:
    """Return a moment in ISO 8601 to the minute, in UTC."""
    return f"{dt.datetime.fromisoformat(when):%Y-%m-%d %H:%M}" if when else "-"


def _forecast_columns(scale: Scale) -> list[Column]:
    def rows(one: _Forecast) -> int:
        return one.record.stored + one.record.measured + one.record.missing

    def measured(one: _Forecast) -> float | None:
        return None if one.check is None else one.check.measured.median

    def around(one: _Forecast) -> str:
        time = None if one.check is None else one.check.measured
        return "-" if time is None else interval_text(time.ci_low, time.ci_high, scale)

    def step(one: _Forecast) -> str:
        record, place = one.record, one.record.place
        words = [record.model, options_text(record.options), f"batch {record.batch}"]
        words += [record.phase, place.precision, place.framework, place.mode]
        return " ".join(filter(None, words))

    return [
        Column("step", step, style="wrap"),
        Column("forecast at", lambda one: _minute(one.record.created_utc)),
        number_column("forecast", lambda one: one.record.seconds, scale.text),
        Column(
            "its interval",
            lambda one: interval_text(one.record.ci_low, one.record.ci_high, scale),
            right=True,
        ),
        number_column("from the store", lambda one: one.record.stored / max(1, rows(one)), percent),
        number_column("without a row", lambda one: one.record.missing),
        Column("checked at", lambda one: _minute(one.check and one.check.step_utc)),
        number_column("measured", measured, scale.text),
        Column("its 95 % CI", around, right=True),
        number_column("error", lambda one: one.error, partial(percent, signed=True)),
        number_column("run", lambda one: one.run.number),
    ]


def findings(runs: Sequence[PageRun]) -> Section:
    """Return what ``diagnose`` measured that would save time; nothing where it was not run."""
    tables = blocks_of(lambda: _finding_tables(runs), "A finding")
    return Section("findings", "Findings", tables)


def _finding_tables(runs: Sequence[PageRun]) -> Iterator[Table]:
    every = [(run, one) for run in runs for one in run.findings if one.findings]
    for count, (run, one) in enumerate(every, start=1):
        case = one.step.case
        what = f"{case.model} {case.batch} {case.phase} {case.framework}{run.within(len(runs))}"
        overlaps = OVERLAPS if any(found.overlaps for found in one.findings) else ""
        caption = f"What would save time: {what}. {overlaps}"
        columns = _finding_columns(one.findings)
        yield Table(caption.strip(), columns, one.findings, f"findings-{count}")


def _finding_columns(found: Sequence[Finding]) -> list[Column]:
    unit = time_unit([abs(one.saving.seconds) for one in found])
    return [
        Column("problem", lambda one: one.problem),
        Column("where", lambda one: ", ".join(one.where), style="wrap"),
        number_column("saves", lambda one: one.saving.seconds, partial(time_in, unit)),
        number_column("of the step", lambda one: one.saving.share, percent),
        Column("cause", lambda one: "; ".join(because(one)), style="wrap"),
        Column("next", lambda one: one.next, style="code"),
    ]


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
    """Return rows measured against theoretical, all of them as tables, and those without a time."""
    blocks = [
        *figures_of(lambda: map(Figure, against_peaks(runs)), "Measured against theoretical"),
        *blocks_of(lambda: _layer_tables(runs), "A table of layers"),
    ]
    return Section("layers", "Layers", blocks, PEAKS_NEED)


def _layer_tables(runs: Sequence[PageRun]) -> Iterator[Any]:
    for run in runs:
        which = run.within(len(runs))
        if run.timed:
            above = [Text(dotted(line), "setting") for line in heading(run.record, run.timed)]
            found = [_column(one) for one in columns(run.timed)]
            caption = f"Timed layers{which}{f'. {run.part}' if run.part else ''}"
            ident = f"layers-{run.number}"
            yield from (*above, Table(caption, found, run.timed, ident))
            yield from _causes(run, which)
        others = [row for row in run.rows if not row.ok]
        if others:
            more = f": {len(others)} of {len(others) + run.left_untimed}"
            caption = f"Without a time{which}{more if run.left_untimed else ''}"
            yield Table(caption, _WITHOUT, others, f"untimed-{run.number}")


def _causes(run: PageRun, which: str) -> Iterator[Table]:
    """Yield the table of what ``--explain`` measured, if the run has any of it."""
    axes = [axis for axis in varying(run.timed) if axis != "accumulate"]
    found = [(row, cause) for row in run.timed for cause in row.causes]
    if not found:
        return
    unit = time_unit([abs(cause["seconds"]) for _, cause in found])
    columns = [
        Column("row", lambda pair: label(pair[0], axes)),
        Column("to best", lambda pair: ratio_text(pair[0]), right=True),
        Column("cause", lambda pair: pair[1]["cause"]),
        number_column("time", lambda pair: pair[1]["seconds"], partial(time_in, unit)),
        number_column("of the gap", lambda pair: pair[1]["share"], partial(percent, decimal=True)),
        Column("how it was measured", lambda pair: pair[1].get("how"), style="wrap"),
        Column("note", lambda pair: "contended" if pair[0].contended else ""),
    ]
    caption = f"Why the slower backends are slower{which}"
    yield Table(caption, columns, found, f"causes-{run.number}")


_WITHOUT = [
    Column("layer", lambda row: row.layer),
    Column("problem", lambda row: row.problem),
    Column("pass", lambda row: row.pass_),
    Column("precision", lambda row: row.precision),
    Column("backend", lambda row: row.who),
    Column("status", lambda row: row.status),
    Column("reason", lambda row: row.reason or "not told", style="wrap"),
]


def _column(one: Any) -> Column:
    value = _EXACT.get(one.title)
    if one.title == "GFLOP":
        # Of a pooling that is 0.000083: each in a unit that fits, as they are sorted by number.
        return Column("work", lambda row: format_flops(row.flops), value, right=True)
    if one.title.endswith("CI"):
        value = _spread
    style = "wrap" if one.title in {"algorithm", "note"} else "plain"
    return Column(one.title, one.cell, value, one.right, _LEGEND.get(one.title), style)


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


def roofline(runs: Sequence[PageRun]) -> Section:
    """Return a roofline plot for each device."""
    plots = figures_of(lambda: map(Figure, rooflines(runs)), "The roofline")
    return Section("roofline", "Roofline", plots, ROOFLINE_NEEDS)


def by_framework(runs: Sequence[PageRun]) -> Section:
    """Return images per second by model, phase and precision, and a table of all steps."""
    blocks = [
        *figures_of(lambda: map(Figure, frameworks(runs)), "The comparison of frameworks"),
        *blocks_of(lambda: _framework_tables(runs), "A table of steps"),
    ]
    return Section("frameworks", "Frameworks by precision", blocks, FRAMEWORKS_NEED)


def _framework_tables(runs: Sequence[PageRun]) -> Iterator[Any]:
    found = rates(runs)
    if found:
        yield Table("Steps of frameworks", _framework_columns(found), found, "steps-table")
    without = [
        (one.record.case, one.record) for run in runs for one in run.steps if not one.record.ok
    ]
    if without:
        columns = [
            Column("step", lambda pair: pair[0].label),
            Column("status", lambda pair: pair[1].status),
            Column("reason", lambda pair: pair[1].reason or "not told", style="wrap"),
        ]
        yield Table("Steps without a time", columns, without, "steps-without")


def _interval(one: Rate) -> str:
    if one.low is None or one.high is None:
        return "no interval"
    return f"{number(one.low)} to {number(one.high)}"


def _framework_columns(found: Sequence[Rate]) -> list[Column]:
    unit = time_unit([one.seconds for one in found])
    return [
        Column("model", lambda one: one.model),
        number_column("batch", lambda one: one.batch),
        Column("phase", lambda one: one.phase),
        Column("precision", lambda one: one.precision),
        Column("framework", lambda one: one.who),
        Column("device", lambda one: one.device),
        Column("machine", lambda one: one.machine),
        number_column("images/s", lambda one: one.images_per_s, number),
        Column("interval", _interval, lambda one: one.low, right=True),
        number_column("step", lambda one: one.seconds, partial(time_in, unit)),
        number_column("n", lambda one: one.n),
        Column("note", lambda one: "contended" if one.contended else ""),
        number_column("run", lambda one: one.run),
    ]


def batches(runs: Sequence[PageRun]) -> Section:
    """Return what a larger batch gives."""
    plots = figures_of(lambda: map(Figure, batch_sweeps(runs)), "The batch sweep")
    return Section("batches", "Batch sweep", plots, BATCHES_NEED)


def samples(runs: Sequence[PageRun]) -> Section:
    """Return the samples behind the medians."""
    plots = figures_of(lambda: map(Figure, distributions(runs)), "The samples")
    return Section("samples", "Sample distributions", plots, SAMPLES_NEED)


_TERMS = (
    (
        "time",
        (
            "the median of the samples, each the seconds of one execution; its interval is that "
            "of the median and assumes no distribution. Creating a plan and reordering layouts "
            "are not in it."
        ),
    ),
    (
        "TFLOP/s",
        (
            "2 x multiply-adds, padding counted as papers do, over the median. Percentages and the "
            "roofline use the executed FLOPs only, without the padded taps."
        ),
    ),
    (
        "theoretical peak",
        "FLOP per cycle and core x cores x the clock that was read beside the samples.",
    ),
    (
        "measured roof",
        (
            "the larger of executed FLOPs over the peak that a probe reached, and least bytes over "
            "the measured bandwidths of the levels that they fit into; or the cost of starting a "
            "kernel."
        ),
    ),
    (
        "estimate of a step",
        (
            "the sum of its layers, each alone: low with hot caches, high with cold ones, the "
            "middle between them."
        ),
    ),
    (
        "ledger",
        (
            "rungs are measured interleaved, each on its own; what lies between two of them is a "
            "difference. An experiment explains a part of it, what it leaves is unexplained."
        ),
    ),
    (
        "checked",
        (
            "outputs are poisoned before the run; checksums cover every element, and exact results "
            "in float64 at random places give the error."
        ),
    ),
)


def method(runs: Sequence[PageRun]) -> Section:
    """Return the formulae, and what the rows say of how they were measured."""
    rows = [row for run in runs for row in run.timed]
    blocks: list[Any] = [Facts(_TERMS)]
    if rows:
        blocks += [Heading("Of the layers on this page"), Facts(list(_of(rows)))]
    return Section("method", "How it was measured", blocks)


def _of(rows: Sequence[Measurement]) -> Iterator[tuple[str, str]]:
    counts = [row.time.n for row in rows if row.time is not None]
    yield "samples", f"{min(counts)} to {max(counts)} per row, {sum(counts)} in all"
    yield "caches", _counted(row.cache for row in rows)
    yield "clock of the samples", _counted(row.timing for row in rows)
    # "known to 0.43% at" and "known to 0.44% at" are one reason.
    yield "stopped by", _counted(row.stop_rule or _reason(row) for row in rows)
    yield "verification", _counted(row.correct.status for row in rows)
    yield "libraries", _counted(row.library for row in rows if row.library)
    disturbed = sum(bool(row.contended) for row in rows)
    if disturbed:
        yield "disturbed", f"{disturbed} of {len(rows)} times are upper bounds"


def _reason(row: Measurement) -> str:
    return re.sub(r"[\d.]+ ?%?", "...", plain(row.stop_reason or "not told", 60))


def _counted(words: Iterable[str]) -> str:
    found = Counter(plain(word, 60) for word in words).most_common(8)
    return ", ".join(f"{word} ({count})" for word, count in found)
