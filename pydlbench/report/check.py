"""The report of ``check``: predicted and measured, the ladder, the ledger, and what follows."""

from __future__ import annotations

import shlex
from typing import TYPE_CHECKING, Final

import msgspec

from pydlbench.records.check import UNEXPLAINED, LedgerTerm
from pydlbench.records.metrics import Column
from pydlbench.report.columns import device_name
from pydlbench.report.text import Heading, Lines, Table
from pydlbench.report.verdicts import disturbance, sum_is_disturbed
from pydlbench.units import Scale, format_seconds, percent
from pydlbench.words import FRAMEWORK_MODES

if TYPE_CHECKING:
    from collections.abc import Sequence

    from pydlbench.records.check import (
        CheckRecord,
        CheckResult,
        OperatorRow,
        RoundRow,
    )
    from pydlbench.records.measurement import Measurement
    from pydlbench.records.run import RunRecord
    from pydlbench.report.text import Block

__all__ = [
    "check_conclusion",
    "check_report",
    "errors_line",
    "ladder_columns",
    "ledger_columns",
    "summary_parts",
]

# Characters of the longest bar of a ledger.
_BAR: Final = 20
# What the terms of a ledger sum to.
_STEP: Final = "end-to-end step"
# The one term that is physics: what the hardware needs at the least.
_PHYSICS: Final = "layers at their roof"
# Terms that are whole parts of a step, and no losses.
_NEEDED: Final = ("loss", "optimizer")
# Below this share of the step nothing is worth a sentence.
_WORTH: Final = 0.005


def check_report(
    run: RunRecord,
    results: Sequence[CheckResult],
    native: Sequence[Measurement] = (),
    *,
    explain: bool = False,
) -> list[Block]:
    """Return a report on each framework and mode; of several also all ladders in one table.

    Args:
        run: for the device's name.
        results: checks of the same step.
        native: the native rows behind them, which other work may have disturbed.
        explain: how each term was measured, all operators and rounds.
    """
    blocks: list[Block] = []
    for one in results:
        if one.record is None:
            step = f"{one.model}  batch {one.batch}  {one.phase}  {one.precision}  {one.who}"
            reason = " ".join(str(one.reason).split())
            blocks.append(Lines([f"{step}  {one.status}: {reason}"], alarm=True, listed=True))
        else:
            blocks += _one_check(run, one.record, native)
            blocks += _explanation(one.record) if explain else []
    records = [one.record for one in results if one.record is not None]
    if len(records) > 1:
        blocks.append(Table.of(ladder_columns(records), records))
    return blocks


def _one_check(run: RunRecord, record: CheckRecord, native: Sequence[Measurement]) -> list[Block]:
    threads = f"{record.threads} thread{'' if record.threads == 1 else 's'}"
    where = f"{device_name(run.device)}  {threads}  checked in {record.seconds:.0f} s"
    total = sum(one.seconds for one in record.ledger)
    share = total / record.measured.median
    step = LedgerTerm(term=_STEP, seconds=total, share=share, how="the sum of the terms")
    notes = [errors_line(record), faults_line(record), *(f"note: {one}" for one in record.notes)]
    return [
        Heading([*summary_parts(record), where], bold=2),
        Table.of(ladder_columns([record]), [record]),
        Table.of(ledger_columns(record), [*record.ledger, step]),
        Lines(notes),
        Lines(check_conclusion(record, native)),
    ]


def summary_parts(record: CheckRecord) -> tuple[str, str]:
    """Return what was checked, and predicted against measured."""
    scale, time = Scale.of(record.measured.median), record.measured
    layout = ""
    if record.framework == "torch":
        layout = ", channels_last" if record.layout == "nhwc" else f", {record.layout}"
    fed = ", fed from the host" if record.feed == "host" else ""
    what = "  ".join(
        [
            record.model,
            *(f"{name}={value}" for name, value in record.options.items()),
            f"batch {record.batch}",
            record.phase,
            record.precision,
            f"{record.library} {record.mode}{layout}{fed}",
        ]
    )
    interval = f"n {time.n}"
    if time.ci_low is not None and time.ci_high is not None:
        level = f"{100 * time.confidence:g} %"
        interval = f"{level} {scale.bare(time.ci_low)} .. {scale.bare(time.ci_high)}, {interval}"
    figures = (
        f"predicted {scale.text(record.estimate_s)}   measured {scale.text(time.median)} "
        f"({interval})   error {percent(record.error, signed=True)}"
    )
    return what, figures


def ladder_columns(records: Sequence[CheckRecord]) -> list[Column[CheckRecord]]:
    """Return the columns of the ladder: the rungs; of several checks also how far each is off.

    Args:
        records: all that stand in the table, at least one.
    """
    scale = Scale.of(max(one.measured.median for one in records))

    def native(one: CheckRecord) -> str:
        return f"{scale.bare(one.native_low_s)} .. {scale.text(one.native_high_s)}"

    rungs: list[Column[CheckRecord]] = [
        Column("theoretical", lambda one: scale.text(one.ladder.get("theoretical_s"))),
        Column("measured roof", lambda one: scale.text(one.ladder.get("roof_s"))),
        Column("native, hot..cold", native),
        Column("operators", lambda one: scale.text(one.operators_s)),
        Column("predicted", lambda one: scale.text(one.estimate_s)),
        Column("end-to-end", lambda one: scale.text(one.measured.median)),
    ]
    if len(records) == 1:
        return rungs
    return [
        Column("step", lambda one: f"{one.framework} {one.mode}", right=False),
        *rungs,
        Column("error", lambda one: percent(one.error, signed=True)),
        Column("native", lambda one: percent(one.error_native, signed=True)),
        Column("unexplained", lambda one: percent(one.unexplained, signed=True)),
    ]


def ledger_columns(record: CheckRecord) -> list[Column[LedgerTerm]]:
    """Return the columns of a check's ledger; what is left unexplained has its sign."""
    scale = Scale.of(record.measured.median)

    def time(one: LedgerTerm) -> str:
        return (scale.signed if one.term == UNEXPLAINED else scale.text)(one.seconds)

    def share(one: LedgerTerm) -> str:
        return percent(one.share, decimal=True, signed=one.term == UNEXPLAINED)

    def bar(one: LedgerTerm) -> str:
        size = 0 if one.term == _STEP else round(_BAR * min(1.0, abs(one.share)))
        return ("-" if one.seconds < 0 else "#") * size

    return [
        Column("term", lambda one: one.term, right=False),
        Column("time", time),
        Column("share", share),
        Column("", bar, right=False),
        Column("what stands out", lambda one: " ".join(one.detail.split()), right=False),
    ]


def errors_line(record: CheckRecord) -> str:
    """Return both errors: of the prediction and of the native sum."""
    return (
        f"error of the prediction {percent(record.error, signed=True)}, "
        f"of the native sum {percent(record.error_native, signed=True)}; "
        f"unexplained {percent(record.unexplained, signed=True)}"
    )


def faults_line(record: CheckRecord) -> str:
    """Return the page faults that the prediction knew of, and those of the step.

    It knows of those of earlier steps; where the framework keeps its pages, of those of its
    operators.
    """
    earlier = record.calibration.get("fault_s") is not None
    names = (
        ("predicted", "in the steps before" if earlier else "in the operators"),
        ("counted", "counted"),
        ("kept", "with kept pages"),
    )
    parts = []
    for key, word in names:
        count = record.faults.get(key)
        parts.append(f"{word} {'unknown' if count is None else f'{count:,.0f}'}")
    return f"page faults per step: {', '.join(parts)}"


# -----------------------------------------------------------------------------
# ``check --explain``: how each term was measured, all operators, all rounds.


def _explanation(record: CheckRecord) -> list[Block]:
    scale = Scale.of(record.measured.median)
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
    ranked = sorted(record.operators, key=lambda one: one.count * one.seconds, reverse=True)
    rounds = list(enumerate(record.rounds, start=1))
    return [
        Lines(lines),
        Table.of(_operator_columns(scale, record.measured.median), ranked),
        Table.of(_round_columns(scale), rounds),
    ]


def _operator_columns(scale: Scale, measured_s: float) -> list[Column[OperatorRow]]:
    """Each operator beside the native rows of the same nodes."""

    def native(one: OperatorRow) -> str:
        return "-" if one.native_s is None else format_seconds(one.native_s)

    def gap(one: OperatorRow) -> str:
        if one.native_s is None:
            return "-"
        return scale.signed(one.count * (one.seconds - one.native_s))

    return [
        Column("operator", lambda one: one.name, right=False),
        Column("kind", lambda one: one.kind, right=False),
        Column("times", lambda one: str(one.count)),
        Column("each", lambda one: format_seconds(one.seconds)),
        Column("native", native),
        Column("in all", lambda one: scale.text(one.count * one.seconds)),
        Column("share", lambda one: percent(one.count * one.seconds / measured_s, decimal=True)),
        Column("against native", gap),
    ]


def _round_columns(scale: Scale) -> list[Column[tuple[int, RoundRow]]]:
    """The rounds in their order; each prediction was stored before its step ran."""

    def error(one: RoundRow) -> str:
        return percent((one.estimate_s - one.measured_s) / one.measured_s, signed=True)

    return [
        Column("round", lambda pair: str(pair[0])),
        Column("operators", lambda pair: scale.text(pair[1].operators_s)),
        Column("page faults", lambda pair: scale.text(pair[1].faults_s)),
        Column("predicted", lambda pair: scale.text(pair[1].estimate_s)),
        Column("measured", lambda pair: scale.text(pair[1].measured_s)),
        Column("error", lambda pair: error(pair[1])),
        Column("pages kept", lambda pair: scale.text(pair[1].kept_s)),
    ]


# -----------------------------------------------------------------------------
# What follows from a check: the dominant layer, the largest loss, the next command.


def check_conclusion(record: CheckRecord, native: Sequence[Measurement] = ()) -> list[str]:
    """Return sentences, each one line.

    The native rows are terms of the ledger. Where other work disturbed some that is said first,
    and where those are a large part of their sum nothing is said to dominate or to be lost.

    Args:
        record: what was found.
        native: the native rows behind it.
    """
    lines = disturbance(native)
    loss = None
    if not sum_is_disturbed(native):
        loss = largest_loss(record)
        lines += [*_dominant(record), _loss_sentence(record, loss)]
    unexplained = loss is not None and loss.term == UNEXPLAINED
    lines.append(f"next: pydlbench {_check_again(record) if unexplained else _diagnose(record)}")
    return lines


def _dominant(record: CheckRecord) -> list[str]:
    """Name the layer that takes longest, all that are alike together; any operator without one."""
    layers = [one for one in record.operators if one.kind == "layer"] or list(record.operators)
    first = max(layers, key=lambda one: one.count * one.seconds, default=None)
    if first is None:
        return []
    seconds = first.count * first.seconds
    alike = "" if first.count == 1 else f" and {first.count - 1} like it"
    verb = "dominates" if first.count == 1 else "dominate"
    time = Scale.of(record.measured.median).text(seconds)
    share = percent(seconds / record.measured.median, decimal=True)
    return [f"{first.name}{alike} {verb}: {time}, {share} of the step."]


def _loss_sentence(record: CheckRecord, loss: LedgerTerm | None) -> str:
    if loss is None:
        return "No term besides the roof itself is worth 0.5 % of the step."
    time = Scale.of(record.measured.median).text(loss.seconds)
    of_step = f"{time}, {percent(loss.share, decimal=True)} of the step"
    if loss.term == UNEXPLAINED:
        return f"The largest loss has no name: {of_step}. More rounds tell whether it is noise."
    detail = f" ({' '.join(loss.detail.split())})" if loss.detail else ""
    return f"The largest term that is not physics: {loss.term}, {of_step}{detail}."


def largest_loss(record: CheckRecord) -> LedgerTerm | None:
    """Return the term that costs most besides the roof; None where none is worth it.

    Loss and optimizer have to be computed, so that only what they take above their native rows
    counts.
    """
    terms = [_lost(record, one) for one in record.ledger if one.term != _PHYSICS]
    found = max(terms, key=lambda one: one.seconds, default=None)
    return found if found is not None and found.share >= _WORTH else None


def _lost(record: CheckRecord, term: LedgerTerm) -> LedgerTerm:
    known = [one for one in record.operators if one.kind == term.term and one.native_s]
    if term.term not in _NEEDED or not known:
        return term
    needed = sum(one.count * (one.native_s or 0.0) for one in known)
    left = term.seconds - needed
    share = left / record.measured.median
    name = f"{term.term} above its native rows"
    return msgspec.structs.replace(term, term=name, seconds=left, share=share)


def _check_again(record: CheckRecord) -> str:
    """Return the command that tells whether what is unexplained is noise."""
    feed = ["--feed", record.feed] if record.feed != "resident" else []
    rounds = ["--rounds", str(2 * max(1, len(record.rounds))), "--explain"]
    return shlex.join(["check", *_step_words(record), *feed, *rounds])


def _diagnose(record: CheckRecord) -> str:
    return shlex.join(["diagnose", *_step_words(record)])


def _step_words(record: CheckRecord) -> list[str]:
    """Return the words that name a step, as both commands take them."""
    words = [record.model, "--batch", str(record.batch)]
    words += ["--phase", record.phase] if record.phase != "forward" else []
    words += ["--precision", record.precision] if record.precision != "fp32" else []
    words += ["--layout", record.layout] if record.layout != "nhwc" else []
    for name, value in record.options.items():
        words += ["--option", f"{name}={value}"]
    words += ["--framework", record.framework]
    # A framework's first mode needs no word.
    usual = record.mode == FRAMEWORK_MODES[record.framework][0]
    return words if usual else [*words, "--mode", record.mode]
