"""The report of ``check``: predicted and measured, the ladder, the ledger, and what follows."""

from __future__ import annotations

import math
import shlex
import textwrap
from dataclasses import dataclass, field
from statistics import median
from typing import TYPE_CHECKING, Any

import msgspec

from pydlbench.errors import UsageError
from pydlbench.report.columns import device_name
from pydlbench.report.text import (
    PLAIN,
    Style,
    markdown_run,
    markdown_table,
    markdown_text,
    plain_table,
)
from pydlbench.units import format_seconds

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from pydlbench.ladder.estimate import Plan
    from pydlbench.records.check import CheckRecord, LedgerTerm, PieceRow, RoundRow
    from pydlbench.records.measurement import Measurement
    from pydlbench.records.run import RunRecord
    from pydlbench.records.specs import KernelSpec

__all__ = [
    "CheckResult",
    "Limits",
    "Scale",
    "check_conclusion",
    "checks_markdown",
    "errors_line",
    "explain_check",
    "ledger_rows",
    "limits",
    "operators_s",
    "percent",
    "render_checks",
    "rungs",
    "signed_percent",
    "summary_parts",
]


# -----------------------------------------------------------------------------
# Numbers of the check's tables: times in one common unit, fractions with their sign.

#: Columns that every line fits into.
WIDTH = 150


@dataclass(frozen=True, slots=True, kw_only=True)
class Scale:
    """One unit for all times of a table, so that its column can be added up by eye.

    Attributes:
        unit: ``s``, ``ms`` or ``us``.
        factor: seconds in a unit.
        decimals: behind the point.
    """

    unit: str
    factor: float
    decimals: int

    @classmethod
    def of(cls, seconds: float) -> Scale:
        """Return the scale in which ``seconds`` has four digits."""
        size = abs(seconds) or 1e-3
        for unit, factor in (("s", 1.0), ("ms", 1e-3), ("us", 1e-6)):
            if size >= factor or unit == "us":
                break
        digits = math.floor(math.log10(size / factor))
        return cls(unit=unit, factor=factor, decimals=max(0, 3 - digits))

    def text(self, seconds: float | None) -> str:
        """Return a time: ``116.8 ms``; a dash for None."""
        return "-" if seconds is None else f"{self.bare(seconds)} {self.unit}"

    def bare(self, seconds: float) -> str:
        """Return a time without its unit."""
        return _unsigned_zero(f"{seconds / self.factor:.{self.decimals}f}")

    def signed(self, seconds: float) -> str:
        """Return a difference: ``+3.6 ms``."""
        return f"{_plus(self.bare(seconds))} {self.unit}"


def percent(fraction: float) -> str:
    """Return a share with a decimal below 99.95 %: ``71.9 %``."""
    value = 100 * fraction
    return f"{_unsigned_zero(f'{value:.{1 if abs(value) < 99.95 else 0}f}')} %"


def signed_percent(fraction: float) -> str:
    """Return an error or a difference: ``-3.8 %``, ``+0.2 %``."""
    return _plus(percent(fraction))


def clip(text: str, width: int = WIDTH) -> str:
    """Return the lines of a text, those cut that are too wide."""
    return "\n".join(
        line if len(line) <= width else f"{line[: width - 3].rstrip()}..."
        for line in text.splitlines()
    )


def wrap(lines: Iterable[str], indent: str = "  ") -> list[str]:
    """Return lines broken between words; words that belong to one line are indented."""
    return [
        part
        for line in lines
        for part in textwrap.wrap(
            line, WIDTH, subsequent_indent=indent, break_on_hyphens=False, break_long_words=False
        )
    ]


def _plus(text: str) -> str:
    return text if text.startswith("-") else f"+{text}"


def _unsigned_zero(text: str) -> str:
    """Nothing is below zero by nothing."""
    return text.removeprefix("-") if not text.strip("-0.") else text


# -----------------------------------------------------------------------------
# The rungs of the ladder side by side: from what the hardware allows to the real step.

TITLES = (
    "theoretical",
    "measured roof",
    "native, hot..cold",
    "operators",
    "predicted",
    "end-to-end",
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Limits:
    """The two lowest rungs of a step, in seconds.

    Attributes:
        theoretical_s: executed FLOPs over the peaks derived from the device's facts, at the clock
            it ran; None where no peak is known. Bytes are not in it: a processor does not say what
            its memory can do.
        roof_s: the rooflines of the measured peaks and bandwidths; None without any row.
    """

    theoretical_s: float | None
    roof_s: float | None


def limits(plan: Plan, rows: Mapping[KernelSpec, Measurement]) -> Limits:
    """Sum the limits of a step's native rows; rows without a time are not in the sums.

    Args:
        plan: the step's work.
        rows: a measurement for each of its cases.
    """
    theoretical: list[float] = []
    roofs: list[float] = []
    for term in plan.terms:
        row = rows[term.hot]
        if not row.ok or row.time is None:
            continue
        if row.peak.theoretical and row.flops_executed:
            theoretical.append(row.flops_executed / (row.peak.theoretical * 1e12))
        roofs.append(row.roofline.time_s if row.roofline else row.time.median)
    return Limits(
        theoretical_s=sum(theoretical) if theoretical else None,
        roof_s=sum(roofs) if roofs else None,
    )


def rungs(record: CheckRecord, found: Limits) -> dict[str, float | None]:
    """Return the rungs by name, in seconds."""
    return {
        "theoretical_s": found.theoretical_s,
        "roof_s": found.roof_s,
        "native_low_s": record.native_low_s,
        "native_high_s": record.native_high_s,
        "operators_s": operators_s(record),
        "estimate_s": record.estimate_s,
        "measured_s": record.measured.median,
    }


def operators_s(record: CheckRecord) -> float:
    """Return the framework's operators one by one, pages kept: the median over the rounds."""
    return median(one.pieces_s for one in record.rounds) if record.rounds else record.estimate_s


def ladder_cells(record: CheckRecord, found: Limits, scale: Scale) -> list[str]:
    """Return a row of the table under :data:`TITLES`."""
    low, high = scale.bare(record.native_low_s), scale.text(record.native_high_s)
    return [
        scale.text(found.theoretical_s),
        scale.text(found.roof_s),
        f"{low} .. {high}",
        scale.text(operators_s(record)),
        scale.text(record.estimate_s),
        scale.text(record.measured.median),
    ]


def ladder_table(records: Sequence[CheckRecord], found: Limits) -> str:
    """Return the ladder: of one check its rungs, of several also how far each is off.

    Args:
        records: checks of the same step.
        found: its two lowest rungs.
    """
    scale = Scale.of(max(one.measured.median for one in records))
    if len(records) == 1:
        cells = ladder_cells(records[0], found, scale)
        return clip(plain_table(TITLES, [cells], [False] * len(TITLES)))
    titles = ["", *TITLES, "error", "native", "unexplained"]
    rows = [
        [
            f"{one.framework} {one.mode}",
            *ladder_cells(one, found, scale),
            signed_percent(one.error),
            signed_percent(one.error_native),
            signed_percent(one.unexplained),
        ]
        for one in records
    ]
    return clip(plain_table(titles, rows, [title != "" for title in titles]))


# -----------------------------------------------------------------------------
# What came of checking a step in one framework and mode: a record, or the reason for none.


@dataclass(frozen=True, slots=True, kw_only=True)
class CheckResult:
    """One framework and mode.

    Attributes:
        model: the model's name.
        batch: images per step.
        phase: ``forward``, ``forward-backward`` or ``training``.
        precision: of the products.
        framework: ``torch`` or ``tensorflow``.
        mode: one of the framework's.
        status: ``ok``, ``skipped`` (it cannot) or ``failed``.
        record: what was found; None unless ``ok``.
        reason: why there is none.
        options: of the model.
        layout: of images: ``nhwc`` or ``nchw``.
        feed: ``resident`` or ``host``.
    """

    model: str
    batch: int
    phase: str
    precision: str
    framework: str
    mode: str
    status: str = "ok"
    record: CheckRecord | None = None
    reason: str | None = None
    options: Mapping[str, Any] = field(default_factory=dict)
    layout: str = "nhwc"
    feed: str = "resident"

    @property
    def who(self) -> str:
        """Framework and mode: ``torch eager``."""
        return f"{self.framework} {self.mode}"

    def to_dict(self, found: Limits | None) -> dict[str, Any]:
        """Return the JSON object.

        Args:
            found: the two lowest rungs; None if they were not measured.
        """
        head = {
            "model": self.model,
            "batch": self.batch,
            "phase": self.phase,
            "precision": self.precision,
            "framework": self.framework,
            "mode": self.mode,
            "options": dict(self.options),
            "layout": self.layout,
            "feed": self.feed,
            "status": self.status,
            "reason": self.reason,
        }
        if self.record is None:
            return head
        ladder = {} if found is None else {"ladder": rungs(self.record, found)}
        return {**head, **self.record.to_dict(), **ladder}


# -----------------------------------------------------------------------------
# ``check --explain``: how each term was measured, all parts, all rounds.

_NAME = 48


def explain_check(record: CheckRecord) -> list[str]:
    """Return blocks: how terms were measured, the table of parts, the table of rounds."""
    scale = Scale.of(record.measured.median)
    blocks = ["\n".join(["how each term was measured", *wrap(terms(record), "    ")])]
    if record.pieces:
        blocks.append(pieces_table(record.pieces, record.measured.median, scale))
    if record.rounds:
        blocks.append(rounds_table(record.rounds, scale))
    return blocks


def terms(record: CheckRecord) -> list[str]:
    """Return a line for each term, and one for what calls cost."""
    lines = [f"  {one.term}: {one.how}" for one in record.ledger]
    costs = [
        f"{name.removesuffix('_s').replace('_', ' ')} {format_seconds(value)}"
        for name, value in record.calibration.items()
        if isinstance(value, (int, float))
    ]
    how = record.calibration.get("how")
    if costs:
        lines.append(f"  calls: {', '.join(costs)}{f'; {how}' if how else ''}")
    return lines


def pieces_table(pieces: Sequence[PieceRow], measured_s: float, scale: Scale) -> str:
    """Return the parts, the largest first, each beside the native rows of the same nodes."""
    ranked = sorted(pieces, key=lambda one: one.count * one.seconds, reverse=True)
    rows = []
    for one in ranked:
        total = one.count * one.seconds
        gap = None if one.native_s is None else one.count * (one.seconds - one.native_s)
        rows.append(
            [
                clip(one.name, _NAME),
                one.kind,
                str(one.count),
                format_seconds(one.seconds),
                "-" if one.native_s is None else format_seconds(one.native_s),
                scale.text(total),
                percent(total / measured_s),
                "-" if gap is None else scale.signed(gap),
            ]
        )
    titles = ["part", "kind", "times", "each", "native", "in all", "share", "against native"]
    return clip(plain_table(titles, rows, [title not in ("part", "kind") for title in titles]))


def rounds_table(rounds: Sequence[RoundRow], scale: Scale) -> str:
    """Return the rounds in their order; each prediction was stored before its step ran."""
    rows = [
        [
            str(number),
            scale.text(one.pieces_s),
            scale.text(one.faults_s),
            scale.text(one.estimate_s),
            scale.text(one.measured_s),
            signed_percent((one.estimate_s - one.measured_s) / one.measured_s),
            scale.text(one.kept_s),
        ]
        for number, one in enumerate(rounds, start=1)
    ]
    titles = ["round", "parts", "page faults", "predicted", "measured", "error", "pages kept"]
    return clip(plain_table(titles, rows, [True] * len(titles)))


# -----------------------------------------------------------------------------
# What follows from a check: the dominant layer, the largest loss, the next command.

# The one term that is physics: what the hardware needs at the least.
_PHYSICS = "layers at their roof"
_UNEXPLAINED = "unexplained"
# Terms that are whole parts of a step, and no losses.
_NEEDED = ("loss", "optimizer")
# The same in the other way of running a framework: whether it has fewer calls and joins nodes.
_JOINED = {"eager": "compiled", "graph": "xla"}
_WORTH = 0.005


def check_conclusion(record: CheckRecord, *, diagnose: bool = False) -> list[str]:
    """Return sentences, each one line.

    Args:
        record: what was found.
        diagnose: whether there is a command of that name to point to.
    """
    lines = []
    scale = Scale.of(record.measured.median)
    first = dominant(record.pieces)
    if first is not None:
        seconds = first.count * first.seconds
        alike = "" if first.count == 1 else f" and {first.count - 1} like it"
        share = percent(seconds / record.measured.median)
        verb = "dominates" if first.count == 1 else "dominate"
        lines.append(f"{first.name}{alike} {verb}: {scale.text(seconds)}, {share} of the step.")
    loss = largest_loss(record)
    if loss is None:
        lines.append("No term besides the roof itself is worth 0.5 % of the step.")
    elif loss.term == _UNEXPLAINED:
        lines.append(
            f"The largest loss has no name: {scale.text(loss.seconds)}, {percent(loss.share)} of "
            "the step. More rounds tell whether it is noise."
        )
    else:
        detail = f" ({' '.join(loss.detail.split())})" if loss.detail else ""
        lines.append(
            f"The largest term that is not physics: {loss.term}, {scale.text(loss.seconds)}, "
            f"{percent(loss.share)} of the step{detail}."
        )
    lines.append(f"next: pydlbench {_next(record, loss, diagnose)}")
    return lines


def dominant(pieces: Sequence[PieceRow]) -> PieceRow | None:
    """Return the layer that takes longest, all that are alike together; of any part if none is."""
    layers = [one for one in pieces if one.kind == "layer"] or list(pieces)
    return max(layers, key=lambda one: one.count * one.seconds, default=None)


def largest_loss(record: CheckRecord) -> LedgerTerm | None:
    """Return the term that costs most besides the roof; None where none is worth it.

    Loss and optimizer have to be computed, so that only what they take above their native rows
    counts.
    """
    terms = [_lost(record, one) for one in record.ledger if one.term != _PHYSICS]
    found = max(terms, key=lambda one: one.seconds, default=None)
    return found if found is not None and found.share >= _WORTH else None


def _lost(record: CheckRecord, term: LedgerTerm) -> LedgerTerm:
    parts = [one for one in record.pieces if one.kind == term.term and one.native_s]
    if term.term not in _NEEDED or not parts:
        return term
    needed = sum(one.count * (one.native_s or 0.0) for one in parts)
    left = term.seconds - needed
    share = left / record.measured.median
    name = f"{term.term} above its native rows"
    return msgspec.structs.replace(term, term=name, seconds=left, share=share)


def _next(record: CheckRecord, loss: LedgerTerm | None, diagnose: bool) -> str:
    step = _step(record)
    if loss is not None and loss.term == _UNEXPLAINED:
        return f"check {step} --rounds {2 * max(1, len(record.rounds))} --explain"
    if diagnose:
        return f"diagnose {_step(record, feeds=False)}"
    term = None if loss is None else loss.term
    joined = _JOINED.get(record.mode)
    if term in ("pointwise", "dispatch") and joined is not None:
        return f"check {_step(record, mode=joined)}"
    shape = _shape(record, native=term == "above the roof, native")
    if term == "above the roof, native" and shape is not None:
        return f"layers {shape} --algorithms"
    if term in ("operator choice", "layout reorders") and shape is not None:
        how = f"--backend native,{record.framework} --mode {record.mode} --explain"
        return f"layers {shape} {how}"
    return f"check {step} --explain"


def _step(record: CheckRecord, mode: str | None = None, *, feeds: bool = True) -> str:
    """Return the words that name a step; ``mode`` takes the place of its own."""
    words = [record.model, "--batch", str(record.batch)]
    words += ["--phase", record.phase] if record.phase != "forward" else []
    words += ["--precision", record.precision] if record.precision != "fp32" else []
    words += ["--layout", record.layout] if record.layout != "nhwc" else []
    words += ["--feed", record.feed] if record.feed != "resident" and feeds else []
    for name, value in record.options.items():
        words += ["--option", f"{name}={value}"]
    words += ["--framework", record.framework]
    wanted = mode or record.mode
    return shlex.join([*words, "--mode", wanted] if wanted not in _JOINED else words)


def _shape(record: CheckRecord, native: bool) -> str | None:
    """Return the options that time the layer most worth a look alone; None if it has no name."""
    if record.options:  # the catalog has the models as they were published
        return None
    from pydlbench.models.catalog import find_layers

    layers = [one for one in record.pieces if one.kind == "layer" and one.native_s is not None]

    def gap(one: PieceRow) -> float:
        own = one.native_s or 0.0
        return one.count * (own if native else one.seconds - own)

    for piece in sorted(layers, key=gap, reverse=True)[:1]:
        name = f"{record.model}/{piece.nodes[0]}" if piece.nodes else record.model
        try:
            find_layers([name], record.batch, None)
        except UsageError:
            return None
        passes = "" if record.phase == "forward" else " --pass all"
        kind = "" if record.precision == "fp32" else f" --precision {record.precision}"
        return f"--shape {shlex.quote(name)} --batch {record.batch}{passes}{kind}"
    return None


_BAR = 20


def render_checks(
    run: RunRecord,
    results: Sequence[CheckResult],
    limits: Limits,
    *,
    explain: bool = False,
    diagnose: bool = False,
    style: Style = PLAIN,
) -> str:
    """Return a block for each framework and mode, then all of them in one table.

    Args:
        run: for the device's name.
        results: checks of the same step; no newline at the end.
        limits: the step's two lowest rungs.
        explain: how each term was measured, all parts and rounds.
        diagnose: whether there is a command of that name to point to.
        style: colours.
    """
    blocks = []
    for one in results:
        if one.record is None:
            step = f"{one.model}  batch {one.batch}  {one.phase}  {one.precision}  {one.who}"
            lines = wrap([f"{step}  {one.status}: {' '.join(str(one.reason).split())}"])
            blocks.append("\n".join(map(style.alarm, lines)))
        else:
            parts = _block(run, one.record, limits, diagnose, style)
            blocks += [*parts, *(explain_check(one.record) if explain else [])]
    records = [one.record for one in results if one.record is not None]
    if len(records) > 1:
        blocks.append(ladder_table(records, limits))
    return "\n\n".join(blocks)


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
        f"({interval})   error {signed_percent(record.error)}"
    )
    return what, figures


def ledger_rows(record: CheckRecord) -> list[list[str]]:
    """Return the rows of the ledger: term, time, share, bar, what stands out; the sum last."""
    scale = Scale.of(record.measured.median)
    rows = []
    for one in record.ledger:
        rest = one.term == _UNEXPLAINED
        rows.append(
            [
                one.term,
                (scale.signed if rest else scale.text)(one.seconds),
                (signed_percent if rest else percent)(one.share),
                ("-" if one.seconds < 0 else "#") * round(_BAR * min(1.0, abs(one.share))),
                " ".join(one.detail.split()),
            ]
        )
    total = sum(one.seconds for one in record.ledger)
    share = total / record.measured.median
    return [*rows, ["end-to-end step", scale.text(total), percent(share), "", ""]]


def errors_line(record: CheckRecord) -> str:
    """Return both errors: of the prediction and of the native sum."""
    return (
        f"error of the prediction {signed_percent(record.error)}, "
        f"of the native sum {signed_percent(record.error_native)}; "
        f"unexplained {signed_percent(record.unexplained)}"
    )


def faults_line(record: CheckRecord) -> str:
    """Return the page faults that the prediction knew of, and those of the step.

    It knows of those of earlier steps; where the framework keeps its pages, of those of its parts.
    """
    earlier = record.calibration.get("fault_s") is not None
    names = (
        ("predicted", "in the steps before" if earlier else "in the parts"),
        ("counted", "counted"),
        ("kept", "with kept pages"),
    )
    parts = []
    for key, word in names:
        count = record.faults.get(key)
        parts.append(f"{word} {'unknown' if count is None else f'{count:,.0f}'}")
    return f"page faults per step: {', '.join(parts)}"


def _block(
    run: RunRecord, record: CheckRecord, limits: Limits, diagnose: bool, style: Style
) -> list[str]:
    what, figures = summary_parts(record)
    one_line = f"{what}    {figures}"
    first = [one_line] if len(one_line) <= WIDTH else [what, figures]
    threads = f"{record.threads} thread{'' if record.threads == 1 else 's'}"
    where = f"{device_name(run.device)}  {threads}  checked in {record.seconds:.0f} s"
    table = plain_table(
        ["term", "time", "share", "", ""],
        ledger_rows(record),
        [False, True, True, False, False],
    )
    below = [errors_line(record), faults_line(record), *(f"note: {one}" for one in record.notes)]
    return [
        "\n".join([*map(style.bold, wrap(first)), *wrap([where])]),
        ladder_table([record], limits),
        clip(table),
        "\n".join(wrap(below)),
        "\n".join(wrap(check_conclusion(record, diagnose=diagnose))),
    ]


# -----------------------------------------------------------------------------
# Markdown of ``check``: the ladder, each ledger, and the conclusions, to paste into a page.


def checks_markdown(
    run: RunRecord, results: Sequence[CheckResult], limits: Limits, *, diagnose: bool = False
) -> str:
    """Return a section, ending in a newline.

    Args:
        run: where and when.
        results: checks of the same step.
        limits: the step's two lowest rungs.
        diagnose: whether there is a command of that name to point to.
    """
    records = [one.record for one in results if one.record is not None]
    blocks = [markdown_text(device_name(run.device))]
    if records:
        blocks.append(_ladder(records, limits))
    for one in results:
        if one.record is None:
            blocks.append(f"- {one.status}: {one.who}: {markdown_text(str(one.reason))}")
        else:
            blocks += _section(one.record, diagnose)
    blocks += markdown_run(run)
    return "\n\n".join(blocks) + "\n"


def _ladder(records: Sequence[CheckRecord], limits: Limits) -> str:
    scale = Scale.of(max(one.measured.median for one in records))
    rows = [
        [
            f"{one.framework} {one.mode}",
            *ladder_cells(one, limits, scale),
            signed_percent(one.error),
            signed_percent(one.error_native),
            signed_percent(one.unexplained),
        ]
        for one in records
    ]
    titles = ["step", *TITLES, "error", "native", "unexplained"]
    return markdown_table(titles, rows)


def _section(record: CheckRecord, diagnose: bool) -> list[str]:
    titles = ["term", "time", "share", "what stands out"]
    rows = [[term, time, share, detail] for term, time, share, _, detail in ledger_rows(record)]
    notes = [errors_line(record), faults_line(record), *(f"note: {one}" for one in record.notes)]
    sentences = check_conclusion(record, diagnose=diagnose)
    return [
        "  \n".join(markdown_text(part) for part in summary_parts(record)),
        markdown_table(titles, rows),
        "  \n".join(markdown_text(line) for line in [*notes, *sentences]),
    ]
