"""The report of ``forecast``: the sum with its interval, its sources, the largest operators."""

import datetime as dt
import shlex
from collections.abc import Mapping, Sequence
from typing import Any, Final

from pydlbench.analysis.forecast import MIN_SCORED
from pydlbench.backends import capabilities
from pydlbench.records.forecast import ForecastRecord, ForecastTerm
from pydlbench.records.record import Column, columns_of
from pydlbench.records.run import RunRecord
from pydlbench.records.step import StepSpec, step_words
from pydlbench.report.blocks import Block, Heading, Headline, Lines, TableBlock
from pydlbench.report.columns import device_name
from pydlbench.units import (
    Scale,
    format_seconds,
    known_text,
    merge_notes,
    percent,
    quantity,
)

# Maximum number of operators in the table, unless --explain is given.
_MAX_OPERATORS: Final = 12
# The dominating operators: the largest ones up to this share together, at most this number.
_DOMINATING_SHARE: Final = 0.5
_MAX_DOMINATING: Final = 4
_COLUMNS: Final = "operator names direction count=calls seconds half_width share"
# Settings of a step that a forecast has.
_OF_RECORD: Final = ("model", "options", "own", "batch", "phase", "layout", "feed")
_MINUTE, _HOUR, _DAY = 60.0, 3600.0, 86400.0


def forecast_report(
    run: RunRecord, documents: Sequence[Mapping[str, Any]], *, explain: bool = False
) -> list[Block]:
    """Return a report on each forecast.

    Args:
        run: the run, which has the device's name.
        documents: forecasts, or reasons why there are none.
        explain: show all operators.
    """
    return [block for document in documents for block in _blocks(run, document, explain)]


def _blocks(run: RunRecord, document: Mapping[str, Any], explain: bool) -> list[Block]:
    if "forecast_s" not in document:
        return [Lines([refused_line(document)], alarm=True, listed=True)]
    record = ForecastRecord.from_dict(document)
    scale = Scale.fit(record.seconds)
    terms = record.terms if explain else record.terms[:_MAX_OPERATORS]
    more = len(record.terms) - len(terms)
    share = percent(sum(term.share for term in record.terms[_MAX_OPERATORS:]))
    lines = (
        f"{more} more operators make up {share}; --explain shows them" if more else "",
        *(f"note: {note}" for note in merge_notes(record.notes)),
        f"not whole: {record.reason}" if record.reason else "",
    )
    row: Column[ForecastTerm] = Column(
        "row", lambda term: _row_text(term, record.created_utc), right=False
    )
    place = record.place
    spec = StepSpec(
        **{name: getattr(record, name) for name in _OF_RECORD},
        **{name: getattr(place, name) for name in ("framework", "mode", "precision", "device")},
    )
    between = f"{scale.bare(record.ci_low)} .. {scale.text(record.ci_high)}"
    conclusion = f"{dominating(record)}, {scale.text(record.seconds)} ({between})"
    return [
        Headline([conclusion, f"next: pydlbench {shlex.join(['step', *step_words(spec)])}"]),
        Heading([*summary_parts(record), _where(run, record)], bold=2),
        Lines([sources(record), parts_line(record, scale), interval_line(record)]),
        TableBlock.from_rows([*columns_of(terms, _COLUMNS), row], terms),
        Lines(list(filter(None, lines))),
    ]


def refused_line(document: Mapping[str, Any]) -> str:
    """Return why there is no forecast of a step."""
    batch = [f"batch {document['batch']}"] if document["batch"] is not None else []
    words = [document["model"], *batch, document["phase"]]
    words += [document["precision"], f"{document['framework']} {document['mode']}"]
    return f"{'  '.join(words)}  {document['status']}: {document['reason']}"


def summary_parts(record: ForecastRecord) -> tuple[str, str]:
    """Return two texts: the step with its settings, and the forecast with its interval."""
    return _what(record), _figures(record, Scale.fit(record.seconds))


def _what(record: ForecastRecord) -> str:
    place = record.place
    layout = capabilities.declaration(place.framework).steps.layout_text(record.layout)
    words = (
        record.model,
        *(f"{name}={value}" for name, value in record.options.items()),
        *(f"batch {record.batch}", record.phase, record.types or place.precision),
        *(record.own.described(record.phase) if record.own is not None else ()),
        f"{place.library} {place.mode}{layout}",
    )
    return "  ".join(words)


def _figures(record: ForecastRecord, scale: Scale) -> str:
    whole = "forecast" if record.status == "ok" else "sum of what is known"
    between = f"{scale.bare(record.ci_low)} .. {scale.text(record.ci_high)}"
    return f"{whole} {scale.text(record.seconds)}   interval {between}   the step was not timed"


def _where(run: RunRecord, record: ForecastRecord) -> str:
    threads = record.place.threads
    if record.place.device != "cpu":
        return device_name(run.device)
    return f"{device_name(run.device)}  {quantity(threads, 'thread')}"


def sources(record: ForecastRecord) -> str:
    """Return the sources of the operators' times, and the age of the oldest."""
    number = record.stored + record.measured + record.missing
    parts = [f"{record.calls} calls of {number} distinct operators: {record.stored} from the store"]
    if record.stored and record.oldest_utc:
        parts[0] += f" (the oldest {age(record.oldest_utc, record.created_utc)} old)"
    parts.append(f"{record.measured} measured now")
    if record.missing:
        share = f"{percent(record.missing_calls)} of the calls"
        if record.missing_bytes is not None:
            share += f", {percent(record.missing_bytes)} of the bytes"
        parts.append(f"{record.missing} without a row ({share})")
    return ", ".join(parts)


def parts_line(record: ForecastRecord, scale: Scale) -> str:
    """Return the parts of the forecast, or on a GPU the times of host and device."""
    if record.host_s is not None and record.graph_s is not None:
        return (
            f"makespan of the host's {scale.text(record.host_s)} and the device's "
            f"{scale.text(record.graph_s)}, which is the step in a CUDA graph"
        )
    faulted = quantity(record.faults or 0, "page fault")
    faults = known_text(record.faults_s, lambda seconds: f" + {faulted} {format_seconds(seconds)}")
    scaled = ", ".join(f"{name} {factor:.3f}" for name, factor in record.factors.items())
    after = f"   stored rows scaled to now: {scaled}" if scaled else ""
    return f"operators {scale.text(record.operators_s)}{faults}{after}"


def interval_line(record: ForecastRecord) -> str:
    """Return the origin of the interval."""
    if record.scored >= MIN_SCORED:
        return f"the 90 % interval is from the errors of {record.scored} earlier forecasts here"
    return (
        f"the interval is assumed: only {record.scored} earlier forecasts here were scored, and "
        f"it takes {MIN_SCORED} to know their errors"
    )


def dominating(record: ForecastRecord) -> str:
    """Return the operators that make up most of the step."""
    known = [term for term in record.terms if term.seconds is not None]
    chosen: list[ForecastTerm] = []
    for item in known[:_MAX_DOMINATING]:
        if chosen and sum(term.share for term in chosen) >= _DOMINATING_SHARE:
            break
        chosen.append(item)
    if not chosen:
        return "no operator was measured"
    names = ", ".join(_name(term) for term in chosen)
    share = percent(sum(term.share for term in chosen))
    verb = "make" if len(chosen) > 1 else "makes"
    return f"{names} {verb} up {share} of the forecast"


def _name(term: ForecastTerm) -> str:
    if not term.names:
        return term.operator
    more = f" and {len(term.names) - 1} more" if len(term.names) > 1 else ""
    return f"{term.operator} ({term.names[0]}{more})"


def age(then: str, now: str) -> str:
    """Return the time between two moments in ISO 8601: ``3 h``."""
    seconds = (dt.datetime.fromisoformat(now) - dt.datetime.fromisoformat(then)).total_seconds()
    for unit, word in ((_DAY, "days"), (_HOUR, "h"), (_MINUTE, "min")):
        if seconds >= 2 * unit:
            return f"{seconds / unit:.0f} {word}"
    return f"{max(0.0, seconds):.0f} s"


def _row_text(term: ForecastTerm, now: str) -> str:
    stored = term.source == "stored" and term.created_utc is not None
    return f"stored, {age(term.created_utc or now, now)} old" if stored else term.source
