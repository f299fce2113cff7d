"""The reports of ``estimate`` and ``forecast``: a step's predicted time and its largest parts."""

import datetime as dt
import shlex
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Final

from pydlbench.analysis.forecast import MIN_SCORED
from pydlbench.models.user_model import is_onnx
from pydlbench.records.documents import SummaryDocument
from pydlbench.records.estimate import (
    EstimatedLayer,
    ForecastRecord,
    ForecastTerm,
    Recorded,
    StepEstimate,
)
from pydlbench.records.measurement import MIN_NAMED_SHARE, Measurement, fewer_flops
from pydlbench.records.record import Column, columns_of
from pydlbench.records.run import RunRecord
from pydlbench.records.step import StepSpec, step_words
from pydlbench.records.trace import Dominant
from pydlbench.records.user_model import rate_unit
from pydlbench.report.blocks import Block, Facts, Heading, Headline, Lines, TableBlock
from pydlbench.report.columns import device_name, group_names, step_heading
from pydlbench.report.figures.bars import Bar, bars
from pydlbench.report.figures.roofline import roofline
from pydlbench.report.verdicts import disturbance, dominance_text, sum_is_disturbed
from pydlbench.units import (
    Scale,
    format_bytes,
    format_seconds,
    known_text,
    merge_notes,
    percent,
    quantity,
    si,
    some_names,
)
from pydlbench.words import FRAMEWORKS, ONNX_FRAMEWORK

# Titles of the passes' columns, and columns of the table.
_PASSES: Final = {
    "forward": "forward",
    "backward-data": "bwd_data",
    "backward-weights": "bwd_weights",
    "l2": "L2_terms",
    "update": "update",
}
_COLUMNS: Final = "alike kind {} hot_s cold_s share bar bound efficiency note"


def estimate_report(
    run: RunRecord,
    step: StepEstimate,
    rows: Sequence[Measurement] = (),
    *,
    top: int | None = 20,
) -> list[Block]:
    """Return heading, table of layers, sums and conclusion.

    Args:
        run: the run, which has the device's name.
        step: the estimate.
        rows: the measurements of its kernels, if they are known.
        top: number of layers to show, the longest first and those with the same kernels in one
            line; None shows all layers in the model's order.
    """
    # A user's file computes in its own types.
    types = step.recorded.types if step.recorded is not None else ""
    what = (step.model, f"batch {step.batch}", step.phase, types or step.precision, step.title)
    where = (
        device_name(run.device),
        quantity(run.threads, "thread") if run.threads else "",
        *sorted({row.library for row in rows if row.library}),
        "native backend, every layer alone",
    )
    known: list[Block] = [
        _table(step, top),
        *bars("layers", "Where the estimate goes", list(map(_bar, step.groups))),
        *roofline(run, rows),
        Facts(_sums(step, rows)),
    ]
    missing = group_names((row["reason"], f"{row['layer']} {row['pass']}") for row in step.missing)
    lines = [
        f"not in the sum: {some_names([*dict.fromkeys(names)])}: {why}"
        for why, names in missing.items()
    ]
    # Runs that an older version stored have no sizes.
    if size := sum(row.get("share_of_bytes", 0) for row in step.missing):
        lines.append(
            f"layers that are not in the sum have {percent(size)} of the least bytes of all"
        )
    recorded = [] if step.recorded is None else list(_recorded(step.recorded))
    conclusion = [*estimate_conclusion(step, rows), _following(step, rows)] if step.layers else []
    return [
        Headline(conclusion),
        Heading(["  ".join(filter(None, words)) for words in (what, where)]),
        *(known if step.layers else ()),
        Lines(recorded, listed=True),
        Lines(lines, alarm=True),
    ]


def _is_clear(step: StepEstimate, rows: Sequence[Measurement]) -> bool:
    """Whether other work disturbed so little of the sum that it allows conclusions."""
    return step.tells and not sum_is_disturbed(rows)


def _following(step: StepEstimate, rows: Sequence[Measurement]) -> str:
    """Return the command for a real step; that for the estimate again if it was disturbed."""
    names = ("model", "options", "own", "batch", "phase", "precision")
    spec = StepSpec(
        **{name: getattr(step, name) for name in names},
        framework=ONNX_FRAMEWORK if is_onnx(step.model) else FRAMEWORKS[0],
        device=step.device or "cpu",
    )
    command = "step" if _is_clear(step, rows) else "estimate"
    return f"next: pydlbench {shlex.join([command, *step_words(spec, framework=False)])}"


def _recorded(recorded: Recorded) -> Iterator[str]:
    """Yield lines on the share of a recorded step that layers stand for, and on the rest."""
    calls, size = percent(recorded.native_calls), percent(recorded.native_bytes)
    yield f"kinds of layers stand for {calls} of the calls, {size} of their bytes, timed or not"
    reasons = group_names(
        (why.removeprefix(f"{name.rpartition('.')[2]}: "), name)
        for name, why in recorded.unmapped.items()
    )
    for why, names in reasons.items():
        yield f"not in the sum: {some_names(names)}{f': {why}' if why else ''}"
    yield from (f"note: {note}" for note in recorded.notes)


def _table(step: StepEstimate, top: int | None) -> TableBlock:
    shown = list(step.layers)
    if top is not None and len(shown) > top:
        ranked = sorted(step.groups, key=lambda layer: -layer.time_s)
        shown, others = ranked[:top], ranked[top:]
        if others:
            sums: dict[str, Any] = {
                name: sum(getattr(layer, name) for layer in others)
                for name in ("time_s", "hot_s", "cold_s", "share")
            }
            name = f"{sum(other.count for other in others)} others"
            shown.append(EstimatedLayer(name=name, kind="", bound=None, efficiency=None, **sums))
    passes = [name for name in _PASSES if any(name in layer.passes for layer in step.layers)]
    by_pass = [f"passes.{name}={_PASSES[name]}" for name in (passes if len(passes) > 1 else ())]
    return TableBlock.from_rows(columns_of(shown, _COLUMNS.format(" ".join(by_pass))), shown)


def _bar(layer: EstimatedLayer) -> Bar:
    return Bar(_group_name(layer), layer.time_s, {"limit": layer.roof_s}, (layer.low, layer.high))


def _sums(step: StepEstimate, rows: Sequence[Measurement]) -> list[tuple[str, str]]:
    total = step.estimate
    hot, cold = format_seconds(total.hot_s), format_seconds(total.cold_s)
    width, middle = format_seconds(total.half_width_s), format_seconds(total.time_s)
    unit = rate_unit(step.own)
    rate = "" if total.images_per_s is None else f", {si(total.images_per_s, unit)}"
    kernels = f"{total.kernels_measured} distinct kernels stand for {total.kernels_in_step}"
    roof = "-" if total.roof_s is None else format_seconds(total.roof_s)
    kinds = ", ".join(
        f"{kind} {percent(seconds / total.time_s)}"
        for kind, seconds in list(step.kinds.items())[:5]
    )
    sizes = ", ".join(f"{name} {format_bytes(size)}" for name, size in step.memory_bytes.items())
    alone, why = total.kernels_without_cold, total.without_cold
    doubt = f"{alone} of them with hot caches only, which stand for both: {why}"
    return [
        ("estimate", f"{middle}: {hot} (hot caches) to {cold} (cold), sampling +-{width}{rate}"),
        ("estimate", f"{kernels}; all at their measured roof: {roof}"),
        *([("estimate", doubt)] if alone else []),
        *_visits(rows),
        ("by kind", kinds),
        *_fewer_flops(step),
        *([("memory", sizes)] if sizes else []),
    ]


def _visits(rows: Sequence[Measurement]) -> list[tuple[str, str]]:
    """Return the number of repetitions of rows, if some have several."""
    visits = [row.time.repetitions for row in rows if row.time is not None]
    if max(visits, default=1) == 1:
        return []
    fewer = sum(visit < max(visits) for visit in visits)
    rest = f", {fewer} of {len(visits)} rows, which hardly change the sum, have fewer"
    return [("repetitions", f"{max(visits)}{rest if fewer else ''}")]


def _fewer_flops(step: StepEstimate) -> list[tuple[str, str]]:
    """Return the layers whose algorithm needs fewer FLOPs than their roofs count."""
    by_algorithm = group_names(
        (name, f"{layer.name} {pass_}")
        for layer in step.layers
        for pass_, algorithm in layer.algorithms.items()
        if (name := fewer_flops(algorithm)) is not None
    )
    return [
        ("of roof", f"{some_names(names)}: {name}: roofs count a direct kernel's FLOPs")
        for name, names in by_algorithm.items()
    ]


def estimate_conclusion(step: StepEstimate, rows: Sequence[Measurement] = ()) -> list[str]:
    """Return lines on the sum with its dominant layer, and on the sum without a layer's excess.

    If other work disturbed kernels, the last line says so; if these are a large part of the sum,
    it is known to lie between the limit and the sum of these times, and no layer is named.

    Args:
        step: the estimate.
        rows: the measurements of its kernels.
    """
    if not step.layers:
        return disturbance(rows)
    total, roof_s = step.estimate.time_s, step.estimate.roof_s
    names = {layer.name for layer in step.layers}
    lacking = {row["layer"] for row in step.missing}
    every = quantity(len(names | lacking), "layer")
    which = f"The {every} of {step.model}"
    if lacking:
        which = f"{len(names - lacking)} of {every} of {step.model} have a time: they"
    which += " takes" if len(names | lacking) == 1 else " take"
    much, alone = format_seconds(total), "each alone with its fastest kernel"
    if not _is_clear(step, rows):
        limit = known_text(roof_s, lambda s: f"{format_seconds(s)} (the limit of the hardware) to ")
        return [f"{which} {limit or 'at most '}{much}, {alone}.", *disturbance(rows)]
    limit = known_text(
        roof_s,
        lambda s: f"; the limit of the hardware is {format_seconds(s)} ({percent(s / total)})",
    )
    leads = f"; {leader}" if (leader := dominant_groups(step)) else ""
    return [f"{which} {much}, {alone}{leads}{limit}.", *_gain(step), *disturbance(rows)]


def _gain(step: StepEstimate) -> list[str]:
    """Return a line on the sum if the layers with the largest excess ran at their limits."""
    total = step.estimate.time_s
    best = max(step.groups, key=lambda layer: layer.excess_s)
    if best.contended:
        return []
    if best.excess_s <= MIN_NAMED_SHARE * total:
        return [f"No layer at its limit would save {percent(MIN_NAMED_SHARE)} of it."]
    owner, which = ("its", "a single layer") if best.count == 1 else ("their", "one kind of layer")
    reached = "" if best.efficiency is None else f" (now {percent(best.efficiency)} of it)"
    seconds, less = format_seconds(total - best.excess_s), percent(best.excess_s / total)
    text = f"If {_group_name(best)} ran at {owner} limit{reached}, the sum would be {seconds}"
    return [f"{text} ({less} less): the most that {which} can give."]


def dominant_groups(step: StepEstimate) -> str:
    """Return the groups of layers that dominate; empty for a single group, or a disturbed one."""
    largest = max(step.groups, key=lambda layer: layer.time_s)
    if largest.contended or len(step.groups) == 1:
        return ""
    share = {"median": largest.share, **(step.dominant_share or {})}
    leader = Dominant(
        name=largest.name,
        share=share["median"],
        ci_low=share.get("ci_low"),
        ci_high=share.get("ci_high"),
        rivals=tuple(step.dominant_rivals),
    )
    return dominance_text(leader, "it", largest.count)


def _group_name(layer: EstimatedLayer) -> str:
    """Return the name of a layer, with the number of others that run the same kernels."""
    return layer.name if layer.count == 1 else f"{layer.name} and {layer.count - 1} like it"


# -----------------------------------------------------------------------------
# The report of ``estimate --summary``: sizes of a model, without timing.


def summary_report(model: SummaryDocument) -> list[Block]:
    """Return the table of nodes and the totals."""
    head = f"{model.model}  {model.title}  batch {model.batch}  from {model.source}"
    totals = [
        ("parameters", f"{model.parameters:,}"),
        ("multiply-adds forward", f"{model.macs_forward:,}"),
        ("multiply-adds training", f"{model.macs_training:,}"),
    ]
    note = "multiply-adds are those of one image; one is two FLOP"
    columns = columns_of(model.layers, "name op shape problem parameters macs_forward")
    return [
        Heading([head], bold=0),
        TableBlock.from_rows(columns, model.layers),
        Facts(totals),
        Lines([note]),
    ]


# -----------------------------------------------------------------------------
# The report of ``forecast``: the sum with its interval, its sources, the largest operators.


# Maximum number of operators in the table, unless --explain is given.
_MAX_OPERATORS: Final = 12
# The dominating operators: the largest ones up to this share together, at most this number.
_DOMINATING_SHARE: Final = 0.5
_MAX_DOMINATING: Final = 4
_OPERATOR_COLUMNS: Final = "operator names direction count=calls seconds half_width share"
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
    between = f"{scale.bare(record.ci_low)} .. {scale.text(record.ci_high)}"
    takes = f"the step takes {scale.text(record.seconds)} ({between})"
    if record.missing:
        of = record.stored + record.measured + record.missing
        takes = f"{record.missing} of {of} operators have no time; the others take {between}"
    conclusion = f"Forecast: {takes}; {dominating(record)}."
    return [
        Headline([conclusion, f"next: pydlbench {shlex.join(['step', *step_words(record.spec)])}"]),
        Heading([*summary_parts(record), _where(run, record)], bold=2),
        Lines([sources(record), parts_line(record, scale), interval_line(record)]),
        TableBlock.from_rows([*columns_of(terms, _OPERATOR_COLUMNS), row], terms),
        Lines(list(filter(None, lines))),
    ]


def refused_line(document: Mapping[str, Any]) -> str:
    """Return why there is no forecast, or no breakdown, of a step."""
    batch = [f"batch {document['batch']}"] if document["batch"] is not None else []
    words = [document["model"], *batch, document["phase"]]
    words += [document["precision"], f"{document['framework']} {document['mode']}"]
    return f"{'  '.join(words)}  {document['status']}: {document['reason']}"


def summary_parts(record: ForecastRecord) -> tuple[str, str]:
    """Return two texts: the step with its settings, and the forecast with its interval."""
    scale = Scale.fit(record.seconds)
    whole = "forecast" if record.status == "ok" else "sum of what is known"
    between = f"{scale.bare(record.ci_low)} .. {scale.text(record.ci_high)}"
    figures = f"{whole} {scale.text(record.seconds)}   interval {between}   the step was not timed"
    return step_heading(record.spec, record.place.library, record.types), figures


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
        f"the interval is assumed: forecasts that were scored here: {record.scored}; it takes "
        f"{MIN_SCORED} to know their errors"
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
    return f"{share} of it in {names}"


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
