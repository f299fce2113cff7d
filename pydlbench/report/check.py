"""The report of ``check``: the rungs, what lies between them, the ledger, and what follows."""

from __future__ import annotations

import shlex
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from pydlbench.backends import capabilities
from pydlbench.ladder.dominance import Timed, dominance
from pydlbench.ladder.parts import parts_of
from pydlbench.records.check import RUNGS, LedgerTerm, step_words
from pydlbench.records.fields import Column, cut
from pydlbench.report.blocks import Heading, Lines, Table
from pydlbench.report.columns import device_name
from pydlbench.report.verdicts import disturbance, dominates, share_text, sum_is_disturbed
from pydlbench.units import Scale, format_seconds, percent

if TYPE_CHECKING:
    from collections.abc import Sequence

    from pydlbench.ladder.dominance import Dominance
    from pydlbench.ladder.parts import Part
    from pydlbench.records.check import (
        CheckRecord,
        CheckResult,
        Lap,
        OperatorRow,
        Rung,
    )
    from pydlbench.records.measurement import Measurement
    from pydlbench.records.run import RunRecord
    from pydlbench.report.blocks import Block

# Characters of the longest bar of a ledger.
_BAR: Final = 20
# What the terms of a ledger sum to.
_STEP: Final = "step"
# So many operators without a native layer are named.
_UNMAPPED: Final = 5
# Characters of a column of names.
_NAMES: Final = 40
# Below this share of the step nothing is worth a sentence.
_WORTH: Final = 0.005


def check_report(
    run: RunRecord,
    results: Sequence[CheckResult],
    native: Sequence[Measurement] = (),
    *,
    explain: bool = False,
    depth: int | None = None,
) -> list[Block]:
    """Return a report on each framework and mode; of several also all ladders in one table.

    Args:
        run: for the device's name.
        results: checks of the same step.
        native: the native rows behind them, which other work may have disturbed.
        explain: how each term was measured, all parts, operators and laps.
        depth: join modules below this level, and show the table of parts; None joins none.
    """
    blocks: list[Block] = []
    for one in results:
        if one.record is None:
            batch = "" if one.batch is None else f"batch {one.batch}  "
            step = f"{one.model}  {batch}{one.phase}  {one.precision}  {one.who}"
            reason = " ".join(str(one.reason).split())
            blocks.append(Lines([f"{step}  {one.status}: {reason}"], alarm=True, listed=True))
        else:
            blocks += _one_check(run, one.record, native, depth)
            blocks += _explanation(one.record, depth) if explain else []
            blocks += [_parts_table(one.record, depth)] if depth and not explain else []
    records = [one.record for one in results if one.record is not None]
    if len(records) > 1:
        blocks.append(Table.of(checks_columns(records), records))
    return blocks


def _one_check(
    run: RunRecord, record: CheckRecord, native: Sequence[Measurement], depth: int | None
) -> list[Block]:
    where = f"{device_name(run.device)}  checked in {record.seconds:.0f} s"
    if record.device == "cpu":
        threads = f"{record.threads} thread{'' if record.threads == 1 else 's'}"
        where = f"{device_name(run.device)}  {threads}  checked in {record.seconds:.0f} s"
    blocks: list[Block] = [
        Heading([*summary_parts(record), where], bold=2),
        Table.of(rung_columns(record), steps_of(record)),
    ]
    if record.ledger:
        total = sum(one.seconds for one in record.ledger)
        step = LedgerTerm(term=_STEP, kind="", seconds=total, share=1.0, how="the sum of the terms")
        blocks.append(Table.of(ledger_columns(record), [*record.ledger, step]))
    refused = [f"{_words(name)}: {reason}" for name, reason in record.reasons.items()]
    wrong = [f"contradiction: {one}" for one in record.contradictions]
    notes = [errors_line(record), *forecast_line(record), *known_line(record)]
    notes += unreplayed_line(record)
    notes += [faults_line(record)] if record.device == "cpu" else []
    notes += [f"note: {one}" for one in record.notes]
    blocks.append(Lines([*refused, *notes]))
    if wrong:
        blocks.append(Lines(wrong, alarm=True))
    return [*blocks, Lines(check_conclusion(record, native, depth))]


def summary_parts(record: CheckRecord) -> tuple[str, str]:
    """Return what was checked, and the measured step, behind its forecast where there is one."""
    scale, time = Scale.fit(record.measured.median), record.measured
    layout = capabilities.of(record.framework).steps.layout_text(record.layout)
    fed = ", fed from the host" if record.feed == "host" else ""
    what = "  ".join(
        [
            record.model,
            *(f"{name}={value}" for name, value in record.options.items()),
            f"batch {record.batch}",
            record.phase,
            record.types or record.precision,
            f"{record.library} {record.mode}{layout}{fed}",
        ]
    )
    figures = f"measured {scale.text(time.median)} ({_level(record, scale)})"
    if record.forecast_s is not None:
        figures = (
            f"forecast {scale.text(record.forecast_s)}   {figures}   "
            f"error {percent(record.forecast_error, signed=True)}"
        )
    return what, figures


def _level(record: CheckRecord, scale: Scale) -> str:
    time, laps = record.measured, f"{record.measured.n} laps"
    if time.ci_low is None or time.ci_high is None:
        return laps
    level = f"{100 * time.confidence:g} %"
    return f"{level} {scale.bare(time.ci_low)} .. {scale.bare(time.ci_high)}, {laps}"


# -----------------------------------------------------------------------------
# The rungs, each with what lies between it and the one below.


@dataclass(frozen=True, slots=True, kw_only=True)
class Step:
    """A rung as it is printed, or the sum of what is unexplained.

    Attributes:
        name: of the rung, in words.
        rung: what was measured; None where it is not known.
        terms: of the ledger, what lies between it and the rung below.
        low: lower end of the sum's interval, of a row that is a sum; None without.
        high: upper end.
    """

    name: str
    rung: Rung | None
    terms: tuple[LedgerTerm, ...]
    low: float | None = None
    high: float | None = None


def steps_of(record: CheckRecord) -> list[Step]:
    """Return a check's rungs from the limit to the step, then what is unexplained of it."""
    found = [
        Step(
            name=_words(name),
            rung=record.rungs.of(name),
            terms=tuple(one for one in record.ledger if one.between[-1:] == (name,)),
        )
        for name in RUNGS
    ]
    left = tuple(one for one in record.ledger if one.kind == "unexplained")
    if left and record.rungs.step is not None:
        step_s = record.rungs.step.median
        ends = (record.unexplained_low, record.unexplained_high)
        low, high = (None if one is None else one * step_s for one in ends)
        found.append(Step(name="unexplained", rung=None, terms=left, low=low, high=high))
    return found


def _words(rung: str) -> str:
    return rung.replace("_", " ")


def rung_columns(record: CheckRecord) -> list[Column[Step]]:
    """Return the columns of the rungs."""
    scale = Scale.fit(record.measured.median)

    def time(one: Step) -> str:
        if one.name == "unexplained":
            return scale.signed(sum(term.seconds for term in one.terms))
        return "-" if one.rung is None else scale.text(one.rung.median)

    def interval(one: Step) -> str:
        if one.rung is None:
            return interval_text(one.low, one.high, scale)
        return interval_text(one.rung.ci_low, one.rung.ci_high, scale)

    def difference(one: Step) -> str:
        if one.rung is None or not one.terms or len(one.terms[0].between) < 2:
            return ""
        return scale.signed(sum(term.seconds for term in one.terms))

    def between(one: Step) -> str:
        if one.name == "unexplained":
            return percent(sum(term.share for term in one.terms), signed=True) + " of the step"
        if one.rung is None:
            return record.reasons.get(one.name.replace(" ", "_"), "")
        return "; ".join(_between(term, scale) for term in one.terms)

    return [
        Column("rung", lambda one: one.name, right=False),
        Column("time", time),
        Column("95 % CI", interval),
        Column("n", lambda one: str(one.rung.n) if one.rung else ""),
        Column("difference", difference),
        Column("what lies between", between, right=False),
    ]


def _between(term: LedgerTerm, scale: Scale) -> str:
    """A term in the line of its rung: an experiment and what it leaves with their time."""
    if term.kind in ("limit", "difference", "fused"):
        words = term.how if term.kind == "limit" else term.term
        return f"{words} ({term.detail})" if term.detail else words
    if term.kind == "unexplained":
        return f"{scale.signed(term.seconds)} unexplained"
    return f"{term.term} {scale.text(term.seconds)}"


def interval_text(low: float | None, high: float | None, scale: Scale) -> str:
    """Return an interval: ``409.1 .. 426.0``; a dash without one."""
    return "-" if low is None or high is None else f"{scale.bare(low)} .. {scale.bare(high)}"


def checks_columns(records: Sequence[CheckRecord]) -> list[Column[CheckRecord]]:
    """Return the columns of several checks of the same step: all rungs, and what they leave.

    Args:
        records: all that stand in the table, at least one.
    """
    scale = Scale.fit(max(one.measured.median for one in records))

    def rung(name: str) -> Column[CheckRecord]:
        def time(one: CheckRecord) -> str:
            found = one.rungs.of(name)
            return "-" if found is None else scale.text(found.median)

        return Column(_words(name), time)

    return [
        Column("step", lambda one: f"{one.framework} {one.mode}", right=False),
        *map(rung, RUNGS),
        Column("additivity", lambda one: percent(one.additivity_error, signed=True)),
        Column("unexplained", lambda one: percent(one.unexplained, signed=True)),
    ]


def ledger_columns(record: CheckRecord) -> list[Column[LedgerTerm]]:
    """Return the columns of a check's ledger; what is no limit has its sign."""
    scale = Scale.fit(record.measured.median)

    def bare(one: LedgerTerm) -> bool:
        return one.kind in ("limit", "")

    def bar(one: LedgerTerm) -> str:
        size = 0 if one.term == _STEP else round(_BAR * min(1.0, abs(one.share)))
        return ("-" if one.seconds < 0 else "#") * size

    return [
        Column("term", lambda one: one.term, right=False),
        Column("kind", lambda one: one.kind, right=False),
        Column("time", lambda one: (scale.text if bare(one) else scale.signed)(one.seconds)),
        Column("95 % CI", lambda one: interval_text(one.ci_low, one.ci_high, scale)),
        Column("share", lambda one: percent(one.share, decimal=True, signed=not bare(one))),
        Column("", bar, right=False),
        Column("what stands out", lambda one: " ".join(one.detail.split()), right=False),
    ]


def errors_line(record: CheckRecord) -> str:
    """Return how well parts add up, and what is unexplained."""
    words = f"additivity error {percent(record.additivity_error, signed=True)}"
    what = "isolated operators and page faults of this step"
    if record.device != "cpu":
        what = "makespan of what host and device need for the isolated operators of this step"
    words += f" ({what}, measured beside it)"
    if record.unexplained is None:
        return words
    found = f"{words}; unexplained {percent(record.unexplained, signed=True)}"
    if record.unexplained_low is None or record.unexplained_high is None:
        return found
    ends = (record.unexplained_low, record.unexplained_high)
    return f"{found} (95 % {' .. '.join(percent(one, signed=True) for one in ends)})"


def forecast_line(record: CheckRecord) -> list[str]:
    """Return what each part of a forecast has to do with its error; nothing without a forecast."""
    step_s, parts = record.measured.median, record.forecast_parts
    if not parts or record.rungs.operators is None:
        return []
    operators = (parts["operators"] - record.rungs.operators.median) / step_s
    rest = (record.forecast_error or 0.0) - operators
    scale = Scale.fit(step_s)
    known = sum(one.forecast_s is not None for one in record.operators)
    words = f"its operators ({known} of these {len(record.operators)}) are "
    words += f"{percent(operators, signed=True)} of the step off those timed here"
    if record.device == "cpu":
        words += f", its {scale.text(parts['faults'])} of page faults"
    words += f"; the rest is {percent(rest, signed=True)} off"
    return [f"forecast error {percent(record.forecast_error, signed=True)}: {words}"]


def unreplayed_line(record: CheckRecord) -> list[str]:
    """Return which calls are in no sum of operators, and why; nothing where all are."""
    found = record.unreplayed
    if found is None:
        return []
    share = f"{percent(found.calls, decimal=True)} of the calls"
    if found.bytes is not None:
        share += f" ({percent(found.bytes, decimal=True)} of their bytes)"
    time = "of unknown time"
    if found.profiled is not None:
        time = f"{percent(found.profiled, decimal=True)} of a step in the framework's own profile"
    why = "; ".join(f"{name}: {' and '.join(each)}" for name, each in found.reasons.items())
    # What they take within the step we do not measure.
    return [f"not replayed, in no sum of operators, {time}: {share}: {why}"]


def known_line(record: CheckRecord) -> list[str]:
    """Return how much of the calls has native layers and formulas."""
    found = record.known
    if found is None:
        return []
    line = f"native layers stand for {percent(found.native_time)} of the operators' time "
    line += f"({percent(found.native_calls)} of the calls, {percent(found.native_bytes)} of their "
    line += f"bytes); {percent(1 - found.formula_time, decimal=True)} of it is in calls without a "
    line += "formula for FLOPs"
    scale = Scale.fit(record.measured.median)
    most = [
        f"{one.operator} {scale.text(one.seconds)} ({one.reason})"
        for one in found.unmapped[:_UNMAPPED]
        if one.seconds > _WORTH * record.measured.median
    ]
    return [line, f"without a native layer: {', '.join(most)}"] if most else [line]


def faults_line(record: CheckRecord) -> str:
    """Return the page faults of the step, with kept pages too, and of its blocks alone."""
    parts = []
    words = {"counted": "counted", "kept": "with kept pages"}
    if record.faults.get("played") is not None:
        words["played"] = "of its blocks alone"
    for key, word in words.items():
        count = record.faults.get(key)
        parts.append(f"{word} {'unknown' if count is None else f'{count:,.0f}'}")
    return f"page faults per step: {', '.join(parts)}"


# -----------------------------------------------------------------------------
# ``check --explain``: how each term was measured, all operators, all laps.


def _explanation(record: CheckRecord, depth: int | None) -> list[Block]:
    scale = Scale.fit(record.measured.median)
    lines = ["how each term was measured"]
    lines += [f"  {one.term}: {one.how}" for one in record.ledger]
    costs = [
        f"{name.removesuffix('_s').replace('_', ' ')} {format_seconds(value)}"
        for name, value in record.calibration.items()
        if isinstance(value, (int, float))
    ]
    how = record.calibration.get("how")
    if costs:
        lines.append(f"  calls: {', '.join(costs)}{f'; {how}' if how else ''}")
    calls = sorted(record.operators, key=lambda one: one.count * one.seconds, reverse=True)
    laps = list(enumerate(record.laps, start=1))
    return [
        Lines(lines),
        _parts_table(record, depth),
        Table.of(_kind_columns(scale, record.measured.median), _by_operator(calls)),
        Table.of(_operator_columns(scale, record.measured.median), calls),
        Table.of(_lap_columns(record, scale), laps),
    ]


def _parts_table(record: CheckRecord, depth: int | None) -> Table:
    scale = Scale.fit(record.measured.median)
    parts = parts_of(record.operators, record.native_parts, depth)
    ranked = sorted(parts, key=lambda one: one.total_s, reverse=True)
    return Table.of(_part_columns(scale, record.measured.median), ranked)


def _part_columns(scale: Scale, measured_s: float) -> list[Column[Part]]:
    """Each node or module beside its native layers."""

    def native(one: Part) -> str:
        return "-" if one.native_s is None else format_seconds(one.native_s)

    def gap(one: Part) -> str:
        if one.native_s is None:
            return "-"
        return scale.signed(one.count * (one.seconds - one.native_s))

    return [
        Column("part", lambda one: one.name, right=False),
        Column("kind", lambda one: one.kind, right=False),
        Column("alike", lambda one: str(one.count)),
        Column("each", lambda one: format_seconds(one.seconds)),
        Column("native", native),
        Column("in all", lambda one: scale.text(one.total_s)),
        Column("share", lambda one: percent(one.total_s / measured_s, decimal=True)),
        Column("against native", gap),
    ]


def _by_operator(calls: Sequence[OperatorRow]) -> list[tuple[str, list[OperatorRow]]]:
    """Return all calls of each operator together, those that take longest first."""
    found: dict[str, list[OperatorRow]] = {}
    for one in calls:
        found.setdefault(one.operator, []).append(one)
    return sorted(found.items(), key=lambda pair: -_total_s(pair[1]))


def _total_s(calls: Sequence[OperatorRow]) -> float:
    return sum(one.count * one.seconds for one in calls)


def _kind_columns(scale: Scale, measured_s: float) -> list[Column[tuple[str, list[OperatorRow]]]]:
    """All calls of an operator, whatever their signatures are."""
    return [
        Column("operator", lambda pair: pair[0], right=False),
        Column("signatures", lambda pair: str(len(pair[1]))),
        Column("calls", lambda pair: str(sum(one.count for one in pair[1]))),
        Column("in all", lambda pair: scale.text(_total_s(pair[1]))),
        Column("share", lambda pair: percent(_total_s(pair[1]) / measured_s, decimal=True)),
    ]


def _operator_columns(scale: Scale, measured_s: float) -> list[Column[OperatorRow]]:
    """Each operator, and what a forecast had for it."""

    def forecast(one: OperatorRow) -> str:
        return "-" if one.forecast_s is None else format_seconds(one.forecast_s)

    return [
        Column("operator", lambda one: one.operator, right=False),
        Column("direction", lambda one: one.direction, right=False),
        Column("times", lambda one: str(one.count)),
        Column("each", lambda one: format_seconds(one.seconds)),
        Column("forecast", forecast),
        Column("in all", lambda one: scale.text(one.count * one.seconds)),
        Column("share", lambda one: percent(one.count * one.seconds / measured_s, decimal=True)),
        Column("of", lambda one: cut(", ".join(one.names), _NAMES), right=False),
    ]


def _lap_columns(record: CheckRecord, scale: Scale) -> list[Column[tuple[int, Lap]]]:
    """The laps in their order: what was visited, and how far the cores were ours."""
    names = dict.fromkeys(name for lap in record.laps for name in lap.seconds)

    def visited(name: str) -> Column[tuple[int, Lap]]:
        def cell(pair: tuple[int, Lap]) -> str:
            seconds = pair[1].seconds.get(name)
            return "-" if seconds is None else scale.text(seconds)

        return Column(_words(name), cell)

    def least(pair: tuple[int, Lap]) -> str:
        return percent(min(pair[1].canary.values())) if pair[1].canary else "-"

    return [
        Column("lap", lambda pair: str(pair[0])),
        *map(visited, names),
        Column("least canary", least),
        Column("retaken", lambda pair: ", ".join(map(_words, pair[1].retaken)), right=False),
    ]


# -----------------------------------------------------------------------------
# What follows from a check: the dominant layer, the largest loss, the next command.


def check_conclusion(
    record: CheckRecord, native: Sequence[Measurement] = (), depth: int | None = None
) -> list[str]:
    """Return sentences, each one line.

    Nothing is said to dominate or to be lost where other work disturbed the check, where rungs
    contradict each other, or where the native rows were disturbed for a large part of their sum.

    Args:
        record: what was found.
        native: the native rows behind it.
        depth: join modules below this level; None joins none.
    """
    lines = disturbance(native)
    why = _unsound(record)
    if why:
        return [*lines, why, f"next: pydlbench {_check_again(record)}"]
    loss = None
    if not sum_is_disturbed(native):
        loss = largest_loss(record)
        lines += [*_dominant(record, depth), _loss_sentence(record, loss)]
    unexplained = loss is not None and loss.kind == "unexplained"
    lines.append(f"next: pydlbench {_check_again(record) if unexplained else _diagnose(record)}")
    return lines


def _unsound(record: CheckRecord) -> str:
    """Return why nothing is concluded; empty where something may be."""
    if record.sound:
        return ""
    if record.rungs.step is None:
        why = "the step itself was refused"
    elif record.contradictions:
        why = f"{len(record.contradictions)} contradictions between rungs"
    else:
        why = "somebody else used the cores most of the time, so that all times are upper bounds"
    return f"Nothing is concluded: {why}. Repeat on an idle machine."


def _dominant(record: CheckRecord, depth: int | None) -> list[str]:
    """Name the layer that takes longest, all that are alike together; any part without one."""
    parts = parts_of(record.operators, record.native_parts, depth)
    parts = [one for one in parts if one.kind == "layer"] or parts
    first = max(parts, key=lambda one: one.total_s, default=None)
    if first is None:
        return []
    time = Scale.fit(record.measured.median).text(first.total_s)
    found = _leader(record, parts)
    if found is None:
        share = percent(first.total_s / record.measured.median, decimal=True)
        return [f"{dominates(first.name, first.count)}: {time}, {share} of the step."]
    who = dominates(first.name, first.count, found.rivals)
    if found.clear:
        return [f"{who}: {time}, {share_text(found)} of the step."]
    return [f"{who}: {time} and less, which their intervals cannot tell apart."]


def _leader(record: CheckRecord, parts: Sequence[Part]) -> Dominance | None:
    """Return which part takes most of the step; None without intervals."""
    times: dict[int | str, Timed] = {_STEP: Timed.of(record.measured)}
    for number, one in enumerate(record.operators):
        if one.ci_low is None or one.ci_high is None:
            return None
        times[number] = Timed(seconds=one.seconds, half_width_s=(one.ci_high - one.ci_low) / 2)
    weights: dict[str, dict[int | str, float]] = {
        part.name: {number: part.count * n for number, n in part.weights.items()} for part in parts
    }
    whole: dict[int | str, float] = {_STEP: 1}
    return dominance(weights, times, whole)


def _loss_sentence(record: CheckRecord, loss: LedgerTerm | None) -> str:
    if loss is None:
        return "No term besides the limit is worth 0.5 % of the step."
    time = Scale.fit(record.measured.median).text(loss.seconds)
    of_step = f"{time}, {percent(loss.share, decimal=True)} of the step"
    detail = f" ({' '.join(loss.detail.split())})" if loss.detail else ""
    if loss.kind == "experiment":
        return f"The largest cause that an experiment shows: {loss.term}, {of_step}{detail}."
    if loss.kind == "difference":
        return f"The largest difference between two rungs: {loss.term}, {of_step}{detail}."
    return f"The largest part has no cause yet: {loss.term}, {of_step}{detail}."


def largest_loss(record: CheckRecord) -> LedgerTerm | None:
    """Return the term that costs most besides the limit, beyond its interval; None without one."""
    terms = [one for one in record.ledger if one.kind != "limit"]
    sure = [one for one in terms if one.ci_low is None or one.ci_low > 0]
    found = max(sure, key=lambda one: one.seconds, default=None)
    return found if found is not None and found.share >= _WORTH else None


def _check_again(record: CheckRecord) -> str:
    """Return the command that tells whether what is unexplained is noise."""
    feed = ["--feed", record.feed] if record.feed != "resident" else []
    more = [] if record.ended == "settled" else ["--laps", str(2 * max(1, len(record.laps)))]
    if record.ended == "time limit" and record.time_limit_s is not None:
        more = ["--stop-after", f"{2 * record.time_limit_s:g}"]
    return shlex.join(["check", *step_words(record), *feed, *more, "--explain"])


def _diagnose(record: CheckRecord) -> str:
    return shlex.join(["diagnose", *step_words(record)])
