"""The report of ``breakdown``: levels, the terms above each, modules, and the conclusion."""

import shlex
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Final

from pydlbench.records.breakdown import LEVELS, Alternative, BreakdownRecord, Term
from pydlbench.records.measurement import MIN_NAMED_SHARE
from pydlbench.records.record import columns_of
from pydlbench.records.run import RunRecord
from pydlbench.records.step import step_words
from pydlbench.records.user_model import rate_unit
from pydlbench.report.blocks import (
    Block,
    Heading,
    Headline,
    Lines,
    LostTime,
    TableBlock,
    largest_loss,
)
from pydlbench.report.columns import device_name, step_heading
from pydlbench.report.estimate import refused_line
from pydlbench.report.figures.bars import Bar, Part, bars, waterfall
from pydlbench.report.module_tree import (
    call_tree,
    dominant_part,
    module_parts,
    parts_table,
    shown_parts,
)
from pydlbench.units import Scale, known_text, merge_notes, number, per_second, percent, quantity
from pydlbench.workers.environment import ALLOCATOR_VARIABLES

_MODULES: Final = "seconds=in_context share alone_s native_s limit_s"
_TERMS: Final = "term kind seconds ci_low..ci_high share detail"
# Minimum share of the step of calls that are reported as taking longer alone than in the step.
_MIN_LONGER_SHARE: Final = 0.05
# Minimum share of a loss that its interval supports where its median is named.
_MIN_SUPPORTED: Final = 0.5
#: The meaning of a term, of which most is lost to it, in a sentence.
_MEANINGS: Final = {
    "kernels": "lost to what even the fastest kernels take above the limit",
    "another kernel": "lost to library kernels slower than the fastest native ones",
    "own kernels": "lost to the framework's own kernels, slower than the fastest native ones",
    "reorders": "lost to copies between layouts",
    "primitive creation": "lost to a library that prepares its kernels in each step",
    "dispatch": "lost on the framework's way from a call to its library",
    "call overhead": "lost to what calls take besides their kernels",
    "fresh memory": "lost to pages that are new in each step",
    "returned memory": "lost to pages that are given back to the system and fetched again",
    "caches": "lost to operands that are no longer in caches",
    "between calls": "lost between calls, where no call runs",
    "calls without a native layer": "in calls that no native kernel can be compared with",
    "choice and context": "lost to what calls take in the step above native kernels",
    "choice of other calls": "lost to calls slower than native kernels, not examined further",
    "unexplained choice": "lost to calls slower than native kernels, for no known reason",
    "unexplained context": "lost to calls that take longer in the step than alone, for no known "
    "reason",
}
#: Names of the differences between a level and the next one.
_DIFFERENCES: Final = {
    "limit": "kernels",
    "native": "the framework's choice",
    "alone": "context",
    "in_context": "between calls",
}


def breakdown_report(
    run: RunRecord, documents: Sequence[Mapping[str, Any]], *, explain: bool = False
) -> list[Block]:
    """Return a report on each breakdown; for several also a table of all levels.

    Args:
        run: the run, which has the device's name.
        documents: breakdowns, or reasons why there are none.
        explain: show all terms, how each was measured, and all modules.
    """
    blocks: list[Block] = []
    records = []
    for document in documents:
        if document["status"] == "ok":
            records.append(BreakdownRecord.from_dict(document))
            blocks += _blocks(run, records[-1], explain=explain)
        else:
            blocks.append(Lines([refused_line(document)], alarm=True))
    if len(records) > 1:
        levels = " ".join(f"levels.{name}.median={name}" for name in LEVELS)
        scale = Scale.fit(max(record.measured.median for record in records))
        columns = columns_of(records, f"who {levels} unexplained", seconds=scale.text)
        blocks.append(TableBlock.from_rows(columns, records))
    return blocks


def _blocks(run: RunRecord, record: BreakdownRecord, *, explain: bool) -> list[Block]:
    scale = Scale.fit(record.measured.median)
    threads = quantity(record.threads, "thread")
    place = record.spec.device if record.spec.on_gpu else threads
    where = f"{device_name(run.device)}  {place}  measured in {record.seconds:.0f} s"
    parts = shown_parts(module_parts(record.calls, record.measured.median), everything=explain)
    blocks: list[Block] = [
        Headline(conclusion(record)),
        Heading([*summary_parts(record), where], bold=2),
        _levels_table(record, scale),
        *waterfall("levels", "From the limit to the step", list(_falls(record))),
        parts_table(parts, _MODULES, seconds=scale.text),
        *bars(
            "modules",
            "Where the step goes",
            [
                Bar(
                    module.module,
                    module.seconds,
                    {"alone": module.alone_s, "native": module.native_s, "limit": module.limit_s},
                )
                for module in record.modules
            ],
        ),
        *call_tree(record.calls, record.measured.median),
        Lines(_remarks(record, scale)),
    ]
    hows = [
        *(f"{term.term}: {term.how}" for term in record.terms),
        *(f"with {change.change}: {change.how}" for change in record.alternatives),
    ]
    measurements = (
        TableBlock.from_rows(columns_of(record.terms, _TERMS, seconds=scale.signed), record.terms),
        Lines(hows, listed=True, title="how it was measured"),
    )
    return [
        *blocks,
        Lines([f"contradiction: {wrong}" for wrong in record.contradictions], alarm=True),
        *(measurements if explain else ()),
    ]


def summary_parts(record: BreakdownRecord) -> tuple[str, str]:
    """Return the step with its settings; and its time and rate."""
    step = record.measured
    spec = record.spec
    scale = Scale.fit(step.median)
    between = interval_text(step.ci_low, step.ci_high, scale)
    figures = f"{scale.text(step.median)} (95 % {between}, {record.processes} processes)"
    rate = f"{per_second((spec.batch or 0) / step.median)} {rate_unit(spec.own)}"
    return step_heading(spec, record.library, record.types), f"{figures}   {rate}"


def interval_text(low: float | None, high: float | None, scale: Scale) -> str:
    """Return an interval: ``409.1 .. 426.0``; a dash if there is none."""
    return "-" if low is None or high is None else f"{scale.bare(low)} .. {scale.bare(high)}"


# -----------------------------------------------------------------------------
# The table of levels.


def _levels_table(record: BreakdownRecord, scale: Scale) -> TableBlock:
    """Return the levels from the limit to the step, each followed by the terms above it."""
    cells = []
    for name, above in zip(LEVELS, (*LEVELS[1:], ""), strict=True):
        terms = [term for term in record.terms if term.level == above]
        title, level = name.replace("_", " "), getattr(record.levels, name)
        time, interval = "-", ""
        if level is not None:
            time = scale.text(level.median)
            interval = interval_text(level.ci_low, level.ci_high, scale)
        above_s = scale.signed(sum(term.seconds for term in terms)) if terms else ""
        known = level is not None
        words = _DIFFERENCES[name] if terms and known else record.reasons.get(name, "")
        if len(terms) == 1 and known:
            words = f"{words}: {terms[0].detail}" if terms[0].detail else words
            words = words if terms[0].kind == "difference" else _term_text(terms[0])
        cells.append([title, time, interval, above_s, words])
        if len(terms) > known:
            parts = [(scale.signed(term.seconds), f"  {_term_text(term)}") for term in terms]
            cells += [["", "", "", *part] for part in parts]
    titles = ("level", "time", "95 %", "above", "what lies above it")
    return TableBlock(titles, cells, (False, True, True, True, False))


def _term_text(term: Term) -> str:
    return f"{term.term}: {term.detail}" if term.detail else term.term


def _falls(record: BreakdownRecord) -> Iterator[Part]:
    """Yield the known levels, each after the terms between it and the one before."""
    for name in LEVELS:
        for term in record.terms:
            if term.level == name and term.kind != "limit":
                yield Part(term.term, term.seconds)
        if (level := getattr(record.levels, name)) is not None:
            yield Part(name.replace("_", " "), level.median, level=True)


# -----------------------------------------------------------------------------
# The lines below the tables.


def _remarks(record: BreakdownRecord, scale: Scale) -> list[str]:
    trace, lacking = record.trace, record.without_layer
    traced = "the chain of calls" if trace.way == "stamps" else "a traced step"
    error = percent(record.forecast_error, signed=True)
    rounds = f"{record.disturbed} of {record.measured.n}"
    lines = (
        unexplained_line(record),
        *(f"with {change.change}: {_saving(change, scale)}" for change in record.alternatives),
        *(f"not measured: {reason}" for reason in record.not_measured),
        f"without a native layer: {', '.join(lacking)}" if lacking else "",
        known_text(
            record.forecast_s,
            lambda seconds: f"forecast made before: {scale.text(seconds)} ({error})",
        ),
        (
            f"calls are timed by {trace.source} in {trace.rounds} steps: {traced} takes "
            f"{trace.cost:.2f} times as long as an untraced one ({scale.text(trace.untraced_s)})"
        ),
        *(f"note: {note}" for note in merge_notes((*trace.notes, *record.notes))),
        f"warning: disturbed rounds, which widen intervals: {rounds}: {record.disturbance}"
        if record.disturbed
        else "",
    )
    return list(filter(None, lines))


def _saving(alternative: Alternative, scale: Scale) -> str:
    """Return the time of the changed step, and its difference to the step."""
    ends = (alternative.ci_low, alternative.ci_high)
    low, high = (None if end is None else -end for end in ends)
    between = interval_text(high, low, scale)
    changed = f"{scale.signed(-alternative.saved)}, 95 % {between}, {alternative.n} rounds"
    return f"{scale.text(alternative.median)} ({changed})"


def unexplained_line(record: BreakdownRecord) -> str:
    """Return the unexplained part of the step, and whether everything was measured."""
    missing = record.not_measured or record.without_layer
    whole = "" if missing else "   everything was measured"
    if record.unexplained is None:
        return f"unexplained: not known, every difference lacks an experiment{whole}"
    step_s = record.measured.median
    words = f"unexplained {Scale.fit(step_s).signed(record.unexplained * step_s)}"
    inside = [f"{percent(record.unexplained, signed=True, decimal=True)} of the step"]
    if record.unexplained_low is not None and record.unexplained_high is not None:
        ends = (record.unexplained_low, record.unexplained_high)
        low, high = (percent(end, signed=True, decimal=True) for end in ends)
        inside.append(f"95 % {low} .. {high}")
    return f"{words} ({', '.join(inside)}){whole}"


def conclusion(record: BreakdownRecord) -> list[str]:
    """Return lines on the largest loss of all levels, the dominant module, and the next command.

    The first one has the step only if other processes disturbed most rounds, if measurements
    contradict each other, or if no interval supports a loss.
    """
    step = record.measured
    scale = Scale.fit(step.median)
    again = f"pydlbench {shlex.join(['breakdown', *step_words(record.spec)])}"
    takes = f"The step takes {scale.text(step.median)}"
    within = f"{takes} (95 % {interval_text(step.ci_low, step.ci_high, scale)})"
    if record.contradictions:
        wrong = quantity(len(record.contradictions), "contradiction")
        return [f"{within}; no conclusion on its parts: {wrong}, below.", f"next: {again}"]
    if 2 * record.disturbed > step.n:
        why = "other processes used the machine in most rounds; repeat on an idle machine"
        at_most = takes.replace("takes", "takes at most")
        return [f"{at_most}; no conclusion on its parts: {why}.", f"next: {again}"]
    if record.coarse:
        return [
            f"{within}; its parts are not measured yet.",
            *_dominant_module(record),
            f"next: {again}",
        ]
    losses = _losses(record)
    loss = largest_loss(losses)
    largest = max(losses, key=lambda each: each.seconds, default=None)
    doubtful = []
    if loss is None:
        text = "no term besides the limit is worth 0.5 % of it"
        if largest is not None:
            text = f"no loss is beyond doubt; {largest.doubtful}"
        loss = LostTime(0.0, None, f"{within}; {text}", _diagnose(record))
    elif largest is not None and largest.seconds > loss.seconds:
        doubtful = [f"not beyond doubt: {largest.doubtful}"]
    return [
        f"{loss.text[0].upper()}{loss.text[1:]}.",
        *doubtful,
        *_dominant_module(record),
        f"next: {loss.command}",
    ]


def _size(
    seconds: float, low: float | None, high: float | None, step_s: float, *, least: bool = True
) -> str:
    """Return a part of a step with its interval; of a wide one the lower end, if ``least``."""
    scale = Scale.fit(step_s)
    whole = f"of the {scale.text(step_s)} that a step takes"
    if least and low is not None and 0.0 < low < _MIN_SUPPORTED * seconds:
        return f"at least {scale.text(low)} {whole} ({percent(low / step_s)})"
    within = "no interval yet"
    if low is not None and high is not None:
        within = f"95 % {scale.bare(low)} .. {scale.text(high)}"
    return f"{scale.text(seconds)} {whole} ({percent(seconds / step_s)}; {within})"


def _diagnose(record: BreakdownRecord) -> str:
    return f"pydlbench {shlex.join(['diagnose', *step_words(record.spec)])}"


def _losses(record: BreakdownRecord) -> list[LostTime]:
    """Return the terms besides the limit, and what changed steps save, if they are large enough."""
    step_s = record.measured.median
    scale = Scale.fit(step_s)
    losses = []
    for term in record.terms:
        if term.kind != "limit" and term.share >= MIN_NAMED_SHARE:
            size = _size(term.seconds, term.ci_low, term.ci_high, step_s)
            meaning = _MEANINGS.get(term.term)
            what = f"{meaning} ({term.term})" if meaning else f"lost to {term.term}"
            parts = (f"most is {what}: {size}", term.detail, *_overstated(record, term, scale))
            text = "; ".join(filter(None, parts))
            whole = _size(term.seconds, term.ci_low, term.ci_high, step_s, least=False)
            doubtful = f"{whole} may be {what}"
            losses.append(LostTime(term.seconds, term.ci_low, text, _diagnose(record), doubtful))
    for other in record.alternatives:
        if other.saved < MIN_NAMED_SHARE * step_s:
            continue
        variables = ALLOCATOR_VARIABLES.get(other.change, {})
        setting = " ".join(f"{name}={shlex.quote(value)}" for name, value in variables.items())
        text = (
            f"with {other.change} the step takes {scale.text(other.median)} and is "
            f"{number((other.median + other.saved) / other.median, 2)}x as fast: that saves "
            f"{_size(other.saved, other.ci_low, other.ci_high, step_s)}"
        )
        command = f"pydlbench {shlex.join(['step', *step_words(record.spec)])}"
        line = f"{setting} {command}" if setting else _diagnose(record)
        whole = _size(other.saved, other.ci_low, other.ci_high, step_s, least=False)
        doubtful = f"{other.change} may save {whole}"
        losses.append(LostTime(other.saved, other.ci_low, text, line, doubtful))
    return losses


def _dominant_module(record: BreakdownRecord) -> list[str]:
    """Return a line on the part of the model that takes most time; empty without modules."""
    if not record.modules:
        return []
    first, step_s = record.modules[0], record.measured.median
    name, seconds = first.module, first.seconds
    if line := record.lines.get(name):
        name += f" ({line})"
    part = dominant_part(module_parts(record.calls, step_s))
    if part is not None and part.repeats > 1:
        name, seconds = part.name, part.seconds
    time = Scale.fit(step_s).text(seconds)
    return [f"the longest part is {name}: {time}, {percent(seconds / step_s)} of the step"]


def _overstated(record: BreakdownRecord, loss: Term, scale: Scale) -> list[str]:
    """Return a line on the maximum of a term whose calls take longer alone than in the step."""
    levels = record.levels
    if loss.level != "alone" or not (levels.native and levels.alone and levels.in_context):
        return []
    longer_s = levels.alone.median - levels.in_context.median
    if longer_s <= _MIN_LONGER_SHARE * levels.step.median:
        return []
    most_s = max(0.0, levels.in_context.median - levels.native.median)
    longer, most = scale.text(longer_s), scale.text(most_s)
    return [f"in the step it is {most} at most, as calls take {longer} longer alone"]
