"""The report of a recorded step: the conclusion, the time line, and where the time goes."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from msgspec.structs import replace

from pydlbench.grouping import sum_by
from pydlbench.records.fields import Column, columns_of
from pydlbench.report.blocks import Figure, Heading, Lines, TableBlock
from pydlbench.report.figures.bars import Bar, bars
from pydlbench.report.figures.timeline import timeline_figure
from pydlbench.traces import timeline
from pydlbench.units import format_seconds, percent, quantity

if TYPE_CHECKING:
    from collections.abc import Sequence

    from pydlbench.records.ledger import LedgerCall, LedgerComparison, LedgerModule, StepLedger
    from pydlbench.records.record import Record
    from pydlbench.report.blocks import Block

#: Rows of the tables without ``--all``.
MAX_CALLS: Final = 12
MAX_MODULES: Final = 12
MAX_DIFFERENCES: Final = 15
#: Parts of a tree that take less than this share of a step are shown with ``--all`` only.
MIN_MODULE_SHARE: Final = 0.01
#: Share of the kernels' time from which on a limit stands for all of it.
MIN_LIMITED_SHARE: Final = 0.99
#: Names of a module's path in a table, counted from the innermost.
SHOWN_NAMES: Final = 2
#: Places that a conclusion names.
MAX_NAMED: Final = 2

_REMEDIES: Final = {
    "element-wise": "a fused step (torch.compile) reads and writes each tensor once",
    "data movement": "avoid the copies: keep one layout and type, and operands contiguous",
    "norm": "use a fused kernel for the norm, or torch.compile",
    "reduction": "fuse the reductions with what reads their results (torch.compile)",
    "softmax": "use fused attention, which never writes the scores",
    "optimizer": "use a fused optimizer (fused=True)",
    "product": "try a lower precision, larger batches, or sizes that are multiples of 64",
    "convolution": "try channels_last, and cudnn.benchmark",
    "attention": "try another kernel of scaled_dot_product_attention",
    "gather": "sort or merge the indices",
}


def trace_report(ledger: StepLedger, *, everything: bool = False) -> list[Block]:
    """Return conclusion, time line, categories, idle time, modules, calls and notes.

    Args:
        ledger: of a recorded step.
        everything: show all modules and calls.
    """
    blocks: list[Block] = [
        Lines([conclusion(ledger)], bold=1),
        Heading(_heading(ledger), bold=0),
        _table(ledger.categories, "category device_s share limit_s unlimited_s kernels"),
    ]
    if len(ledger.directions) > 1:
        directions = "category=direction device_s share limit_s unlimited_s kernels"
        blocks.append(_table(ledger.directions, directions))
    if ledger.idle and ledger.device_time and ledger.device_time.idle_s:
        blocks.append(_table(ledger.idle, "cause seconds"))
    modules = shown_modules(ledger.modules, everything=everything)
    if modules:
        blocks.append(TableBlock.from_rows(_module_columns(modules), modules))
    calls = ledger.calls if everything else ledger.calls[:MAX_CALLS]
    blocks.append(
        _table(
            _with_short_modules(calls),
            "operator module direction shapes count device_s share limit_s best_s kernels",
        )
    )
    return [*blocks, Lines(_rest(ledger, len(calls), len(modules))), *_figures(ledger)]


def conclusion(ledger: StepLedger) -> str:
    """Return the sentence that says where the time above the limit lies, and what to do."""
    dominant, line = ledger.dominant, ledger.device_time
    if line is None or ledger.step_s is None:
        return "The recording has no times: its calls are listed by their limits."
    if dominant is None:
        return "Nothing of this step lies above its limit."
    step, seconds = format_seconds(ledger.step_s), format_seconds(dominant.seconds)
    if dominant.kind == "idle":
        share = percent(dominant.seconds / ledger.step_s)
        largest = ledger.idle[0]
        what = f"The device is idle for {seconds} of the {step} of a step ({share})"
        cause = f"{largest.cause}, {format_seconds(largest.seconds)}"
        return f"{what}: {cause}. {_idle_remedy(largest.cause)}"
    if dominant.kind == "copy":
        share = percent(dominant.seconds / ledger.step_s)
        return (
            f"Copies are exposed for {seconds} of the {step} of a step ({share}): no kernel runs "
            "beside them. Next: copy ahead from pinned memory (non_blocking=True), or copy less."
        )
    if dominant.kind == "communication":
        share = percent(dominant.seconds / ledger.step_s)
        return (
            f"Communication is exposed for {seconds} of the {step} of a step ({share}): no kernel "
            "runs beside it. Overlap it with the backward pass, or send less."
        )
    category = next(row for row in ledger.categories if row.category == dominant.name)
    calls = [call for call in ledger.calls if call.category == dominant.name]
    kernels = f"{category.kernels:,.6g} kernels"
    if category.device_s and category.kernels:
        kernels += f", {format_seconds(category.device_s / category.kernels)} each"
    where = _places(ledger, calls)
    if category.limit_s is None or category.unlimited_s > category.above_limit_s:
        share = percent(dominant.seconds / ledger.step_s)
        return (
            f"{_capital(dominant.name)} kernels take {seconds} of the {step} of a step ({share}): "
            f"{kernels}{where}. No limit is known for {format_seconds(category.unlimited_s)} of it."
        )
    whole = dominant.seconds / dominant.share
    remedy = _REMEDIES.get(dominant.name, "")
    limit = f"their limit is {format_seconds(category.limit_s)}"
    return (
        f"{_capital(dominant.name)} kernels take {seconds} of the {format_seconds(whole)} that lie "
        f"between this step and its limit: {kernels}{where}; {limit}"
        f"{f'. Next: {remedy}' if remedy else ''}."
    )


def _figures(ledger: StepLedger) -> list[Figure]:
    """Return the figures of the page: the time line, and categories beside their limits."""
    step_s = ledger.step_s or 0.0
    parts = [
        Bar(row.category, row.device_s, {"limit": row.limit_s})
        for row in ledger.categories
        if row.device_s
    ]
    if ledger.device_time is not None and ledger.device_time.idle_s > 0:
        parts.append(Bar("idle", ledger.device_time.idle_s))
    figures = bars("categories", "Where the time of a step goes", parts)
    return [*timeline_figure(ledger.timeline, step_s), *figures]


def _capital(text: str) -> str:
    return text[:1].upper() + text[1:]


def _idle_remedy(cause: str) -> str:
    if cause.startswith(timeline.SYNCHRONISED):
        return "Next: avoid the synchronisation (.item(), .cpu(), printing), or do it once a step."
    if cause == timeline.NOT_LAUNCHED:
        return "Next: launch less, by a CUDA graph or torch.compile(mode='reduce-overhead')."
    if cause == timeline.BETWEEN_CALLS:
        return "Next: compile the step, or take Python out of it."
    return "Next: look at what the streams wait for."


def _places(ledger: StepLedger, calls: Sequence[LedgerCall]) -> str:
    """Return the parts of the model in which most of some calls are, as text."""
    sums = sum_by((call.module, call.device_s or 0.0) for call in calls if call.module)
    repeats = {row.module: row.repeats for row in ledger.modules}
    named = sorted(sums, key=lambda name: -sums[name])[:MAX_NAMED]
    if not named:
        return ""
    texts = []
    for name in named:
        times = repeats.get(name, 1)
        last = name.rpartition("/")[2]
        texts.append(f"{times} x {last}" if times > 1 else last)
    return f", most of them in {' and '.join(texts)}"


def _heading(ledger: StepLedger) -> list[str]:
    device = ledger.device or "no device named"
    if ledger.card and ledger.card != ledger.device:
        device = f"{device} ({ledger.card})"
    items = [ledger.file, ledger.source, device, quantity(ledger.steps, "step")]
    if ledger.step_s is not None:
        spread = ""
        if ledger.steps > 1 and ledger.step_low_s is not None and ledger.step_high_s is not None:
            low, high = format_seconds(ledger.step_low_s), format_seconds(ledger.step_high_s)
            spread = f" ({low} .. {high})"
        items.append(f"{format_seconds(ledger.step_s)}{spread} each")
    if ledger.host_step_s is not None:
        items.append(f"host {format_seconds(ledger.host_step_s)}")
    lines = ["  ".join(items)]
    line = ledger.device_time
    if line is not None:
        parts = []
        if ledger.limit_s is not None:
            limited = ledger.limited_share or 0.0
            of = "" if limited > MIN_LIMITED_SHARE else f" of {percent(limited)} of the kernels"
            parts.append(f"limit {format_seconds(ledger.limit_s)}{of}")
        parts += [f"busy {format_seconds(line.busy_s)}", f"idle {format_seconds(line.idle_s)}"]
        if line.overlapped_s > 0:
            parts.append(f"overlapped {format_seconds(line.overlapped_s)}")
        if line.exposed_copy_s > 0:
            parts.append(f"exposed copies {format_seconds(line.exposed_copy_s)}")
        if line.exposed_communication_s > 0:
            exposed = format_seconds(line.exposed_communication_s)
            parts.append(f"exposed communication {exposed}")
        parts.append(f"unattributed {format_seconds(ledger.unattributed_s)}")
        lines.append("  ".join(parts))
    return lines


def shown_modules(
    modules: Sequence[LedgerModule], *, everything: bool = False
) -> list[LedgerModule]:
    """Return the parts of a tree that a table shows, in the order of the tree.

    Args:
        modules: each followed by its parts.
        everything: all of them; else the largest.
    """
    if everything:
        return list(modules)
    large = [row for row in modules if (row.share or 0.0) >= MIN_MODULE_SHARE]
    # A part that is all of the part around it says nothing new.
    kept = [
        row
        for place, row in enumerate(large)
        if not (
            place + 1 < len(large)
            and large[place + 1].depth == row.depth + 1
            and (large[place + 1].device_s or 0.0) > 0.999 * (row.device_s or 0.0)
        )
    ]
    largest = sorted(kept, key=lambda row: -(row.device_s or 0.0))[:MAX_MODULES]
    return [row for row in kept if row in largest]


def _module_columns(modules: Sequence[LedgerModule]) -> list[Column[LedgerModule]]:
    shown = {row.module for row in modules}

    def indented(row: LedgerModule) -> str:
        *outer, name = row.module.split("/")
        around = ("/".join(outer[: place + 1]) for place in range(len(outer)))
        return "\N{NO-BREAK SPACE}\N{NO-BREAK SPACE}" * sum(each in shown for each in around) + name

    name: Column[LedgerModule] = Column("module", indented, right=False)
    each: Column[LedgerModule] = Column(
        "each",
        lambda row: (
            "-"
            if row.repeats == 1
            else f"{format_seconds(row.low_s)} .. {format_seconds(row.high_s)}"
        ),
    )
    fields = columns_of(modules, "repeats device_s share limit_s unlimited_s slowest")
    return [name, fields[0], *fields[1:3], each, *fields[3:]]


def _with_short_modules(calls: Sequence[LedgerCall]) -> list[LedgerCall]:
    """Return calls with the innermost names of their modules, which fit into a table."""
    return [replace(call, module=_innermost(call.module)) for call in calls]


def _innermost(module: str) -> str:
    return "/".join(module.split("/")[-SHOWN_NAMES:])


def _table(rows: Sequence[Record], names: str) -> TableBlock:
    return TableBlock.from_rows(columns_of(rows, names), rows)


def _rest(ledger: StepLedger, calls: int, modules: int) -> list[str]:
    """Return lines on hidden rows, on time without a limit, and the notes."""
    lines = []
    below = ledger.calls[calls:]
    if below:
        share = percent(sum(call.share or 0.0 for call in below))
        lines.append(f"{len(below):,} more calls: {share} of the step (--all)")
    if len(ledger.modules) > modules > 0:
        lines.append(f"{len(ledger.modules) - modules:,} more modules (--all)")
    without = [call for call in ledger.calls if call.limit_missing is not None]
    missing = sum_by((call.limit_missing or "", call.unlimited_s) for call in without)
    reasons = sorted(missing, key=lambda reason: -missing[reason])
    for reason in reasons[:MAX_NAMED]:
        share = percent(missing[reason] / ledger.step_s) if ledger.step_s else "?"
        lines.append(f"without a limit, {share} of the step: {reason}")
    if len(reasons) > MAX_NAMED:
        rest = sum(missing[reason] for reason in reasons[MAX_NAMED:])
        share = percent(rest / ledger.step_s) if ledger.step_s else "?"
        lines.append(f"{len(reasons) - MAX_NAMED} more reasons: {share} of the step (--json)")
    if ledger.card is not None and ledger.limit_s is not None:
        lines.append(
            f"limits: published peaks of the {ledger.card}; bytes over the bandwidth of its "
            "memory, which a kernel whose operands stay in a cache can pass"
        )
    elif ledger.limits_of is not None:
        lines.append(f"limits: measured peaks of {ledger.limits_of}")
    return [*lines, *ledger.notes]


# -----------------------------------------------------------------------------
# Two recorded steps.


def comparison_report(comparison: LedgerComparison, *, everything: bool = False) -> list[Block]:
    """Return the conclusion, the rows by which two steps differ, and notes.

    Args:
        comparison: of the steps.
        everything: show all rows.
    """
    rows = comparison.rows if everything else comparison.rows[:MAX_DIFFERENCES]
    below = comparison.rows[len(rows) :]
    shown = [replace(row, module=_innermost(row.module)) for row in rows]
    lines = list(comparison.notes)
    if below:
        rest = format_seconds(sum(row.difference_s for row in below))
        lines.insert(0, f"{len(below):,} more rows: {rest} together (--all)")
    heading = f"A  {comparison.a}  {format_seconds(comparison.a_s)}"
    return [
        Lines([_difference(comparison)], bold=1),
        Heading([heading, f"B  {comparison.b}  {format_seconds(comparison.b_s)}"], bold=0),
        _table(shown, "operator module direction shapes a_s b_s difference_s why"),
        Lines(lines),
    ]


def _difference(comparison: LedgerComparison) -> str:
    ratio = comparison.b_s / comparison.a_s if comparison.a_s else 0.0
    length = format_seconds(abs(comparison.difference_s))
    longer = "longer" if comparison.difference_s >= 0 else "shorter"
    # The part that made the step longer or shorter, as the whole is.
    same_sign = (
        row
        for row in comparison.rows
        if row.difference_s * comparison.difference_s > 0 and row.why != "overlap"
    )
    first = next(same_sign, None)
    text = f"B's step is {length} {longer} than A's ({ratio:.3g} times its time)"
    if first is None or not first.difference_s:
        return f"{text}."
    more = "more" if first.difference_s > 0 else "less"
    where = f" in {first.module.rpartition('/')[2]}" if first.module else ""
    return (
        f"{text}; the largest part is {first.operator}{where}, "
        f"{format_seconds(abs(first.difference_s))} {more}: {first.why}."
    )
