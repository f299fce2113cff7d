"""The report of a recorded step: the conclusion, the time line, and where the time goes."""

import re
import shlex
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Final, TypeVar

from msgspec.structs import replace

from pydlbench.analysis.ledger import NO_OPERANDS, ROUNDING
from pydlbench.analysis.ledger_difference import are_ranks, compare_ledgers, compare_ranks
from pydlbench.grouping import sum_by
from pydlbench.records.ledger import LedgerCall, LedgerComparison, RankComparison, StepLedger
from pydlbench.records.record import Column, Record, columns_of
from pydlbench.report.blocks import Block, Figure, Heading, Headline, Lines, TableBlock
from pydlbench.report.figures.bars import Bar, bars, timeline_figure
from pydlbench.report.figures.roofline import recorded_roofline
from pydlbench.report.module_tree import part_columns, shown_parts
from pydlbench.traces import timeline
from pydlbench.units import format_seconds, known_text, percent, quantity, some_names

Row = TypeVar("Row", bound=Any)

#: Rows of the tables without ``--all``.
MAX_CALLS: Final = 12
MAX_DIFFERENCES: Final = 15
#: Share of the kernels' time from which on a limit stands for all of it.
MIN_LIMITED_SHARE: Final = 0.99
#: Names of a module's path in a table, counted from the innermost.
SHOWN_NAMES: Final = 2
#: Places that a conclusion names.
MAX_NAMED: Final = 2
#: Ranks that wait for less than this share of a step are balanced.
BALANCED_SHARE: Final = 0.02
#: Columns of CSV: a line for each call.
CSV_COLUMNS: Final = (
    *("run_id", "created_utc", "file", "operator", "module", "direction", "category", "shapes"),
    *("kernel", "count", "kernels", "device_s", "share", "flops", "bytes", "limit_s"),
    *("unlimited_s", "limit_missing", "best_s"),
)
#: Kinds of reasons for missing limits that are listed.
MAX_REASONS: Final = 4
#: Idle time beyond this share of a step hides the rest: rows have their share of the busy time.
IDLE_SHARE: Final = 0.5
#: Such an idle share of a recording without marks of steps is no step's: it has start-up in it.
UNMARKED_IDLE_SHARE: Final = 0.9
#: Operators and kernels of a compiler or of a library that are fused already.
_FUSED: Final = re.compile("fused|generated kernels")
#: A reason that begins with the operator that has no limit.
_REASON: Final = re.compile(r"(\S+): ([^:]*)")
_MARK_STEPS: Final = (
    "Next: mark the steps (prof.step()) and record a few after warm-up: the file has no marks, so "
    "all of it counts as one step."
)

#: Exposed parts of a step, each with what to do.
_EXPOSED: Final = {
    "copy": (
        "Copies are",
        "no kernel runs beside them. Next: copy less, or ahead (pinned memory, non_blocking=True).",
    ),
    "communication": (
        "Communication is",
        "no kernel runs beside it. Next: overlap it with the backward pass, or send less.",
    ),
}
#: By category, what PyTorch's users can do.
_REMEDIES: Final = {
    "element-wise": "a fused step (torch.compile) reads and writes each tensor once",
    "data movement": "avoid the copies: keep one layout and type, and operands contiguous",
    "norm": "use a fused kernel for the norm, or torch.compile",
    "reduction": "fuse the reductions with what reads their results (torch.compile)",
    "softmax": "use scaled_dot_product_attention, which never writes the scores",
    "optimizer": "use a fused optimizer (fused=True)",
    "product": "try a lower precision, larger batches, or sizes that are multiples of 64",
    "convolution": "try channels_last, and on a GPU cudnn.benchmark",
    "attention": "try another kernel of scaled_dot_product_attention",
    "gather": "sort or merge the indices",
}


def trace_report(ledger: StepLedger, *, everything: bool = False) -> list[Block]:
    """Return conclusion, time line, categories, idle time, modules, calls and notes.

    Args:
        ledger: of a recorded step.
        everything: show all modules and calls.
    """
    line = ledger.device_time
    busy_s = line.busy_s if line and line.idle_s > IDLE_SHARE * line.span_s else None
    unlimited = "limit_s unlimited_s " if ledger.limit_s is not None else ""
    names = f"device_s share {unlimited}kernels"
    modules = shown_parts(ledger.modules, everything=everything)
    columns = part_columns(modules, f"device_s share each {unlimited}slowest", separator="/")
    calls = ledger.calls if everything else ledger.calls[:MAX_CALLS]
    directions = ledger.directions if len(ledger.directions) > 1 else ()
    return [
        Headline([conclusion(ledger)]),
        Heading(_heading(ledger), bold=0),
        _table(ledger.categories, f"category {names}", busy_s),
        _table(directions, f"category=direction {names}", busy_s),
        _table(ledger.idle if line and line.idle_s else (), "cause seconds"),
        TableBlock.from_rows(_of_busy(columns, busy_s), modules),
        _table(
            list(map(_with_short_module, calls)),
            "operator module direction shapes count device_s share limit_s contradiction best_s "
            "kernels",
            busy_s,
        ),
        Lines(_rest(ledger, len(calls), len(modules))),
        *_figures(ledger),
    ]


def csv_rows(documents: Iterable[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """Return the calls of ledgers' JSON objects, each with its file; see CSV_COLUMNS."""
    return [{"file": each["file"], **call} for each in documents for call in each["calls"]]


def conclusion(ledger: StepLedger) -> str:
    """Return the sentence that says where the time above the limit lies, and what to do."""
    dominant, line = ledger.dominant, ledger.device_time
    if line is None or not ledger.step_s:
        return "The recording has no times: its calls are listed by their limits."
    if dominant is None:
        wrong = any(call.contradiction for call in ledger.calls)
        but = ", but calls took less than theirs: look at the card (--on) and the shapes" * wrong
        return f"Nothing of this step lies above its limit{but}."
    step, seconds = format_seconds(ledger.step_s), format_seconds(dominant.seconds)
    if dominant.kind == "idle":
        share = percent(dominant.seconds / ledger.step_s)
        largest = ledger.idle[0]
        what = f"The device is idle for {seconds} of the {step} of a step ({share})"
        cause = f"{largest.cause}, {format_seconds(largest.seconds)}"
        unmarked = ledger.host_step_s is None and dominant.seconds > (
            UNMARKED_IDLE_SHARE * ledger.step_s
        )
        return f"{what}: {cause}. {_MARK_STEPS if unmarked else _idle_remedy(largest.cause)}"
    if dominant.kind in _EXPOSED:
        what, remedy = _EXPOSED[dominant.kind]
        share = percent(dominant.seconds / ledger.step_s)
        return f"{what} exposed for {seconds} of the {step} of a step ({share}): {remedy}"
    category = next(row for row in ledger.categories if row.category == dominant.name)
    calls = [call for call in ledger.calls if call.category == dominant.name]
    name, kernels = dominant.name.capitalize(), quantity(category.kernels, "kernel")
    if category.device_s and category.kernels > 1:
        kernels += f", {format_seconds(category.device_s / category.kernels)} each"
    where = _places(ledger, calls)
    if category.limit_s is None or category.unlimited_s > category.above_limit_s:
        share = percent(dominant.seconds / ledger.step_s)
        return (
            f"{name} kernels take {seconds} of the {step} of a step ({share}): "
            f"{kernels}{where}. No limit is known for {format_seconds(category.unlimited_s)} of it"
            f"{_limit_remedy(ledger, calls)}."
        )
    whole = dominant.seconds / dominant.share
    remedy = _REMEDIES.get(dominant.name, "") if ledger.source.startswith("PyTorch") else ""
    if "fuse" in remedy and not _can_be_fused(ledger, calls):
        remedy = "a lower precision moves fewer bytes; there is nothing more to fuse"
    took = format_seconds(category.limit_s + category.above_limit_s)
    between = f"the {format_seconds(whole)} between this step and its limit"
    return (
        f"{name} kernels take {took} where their limit is {format_seconds(category.limit_s)}: "
        f"{seconds} of {between}; {kernels}{where}{f'. Next: {remedy}' if remedy else ''}."
    )


def _can_be_fused(ledger: StepLedger, calls: Sequence[LedgerCall]) -> bool:
    """Whether some calls could be fused: most are not yet, and there are others to fuse with."""
    done = (call for call in calls if _FUSED.search(f"{call.operator} {call.kernel}"))
    fused_s = sum(call.seconds for call in done)
    several = (row for row in ledger.categories if "fuse" in _REMEDIES.get(row.category, ""))
    kernels = sum(row.kernels for row in several)
    return kernels > 1 and fused_s < sum(call.seconds for call in calls) / 2


def _figures(ledger: StepLedger) -> list[Figure]:
    """Return the figures of the page: the time line, categories, and calls below their roofs."""
    step_s = ledger.step_s or 0.0
    parts = [
        Bar(row.category, row.device_s, {"limit": row.limit_s})
        for row in ledger.categories
        if row.device_s
    ]
    if ledger.device_time is not None and ledger.device_time.idle_s > 0:
        parts.append(Bar("idle", ledger.device_time.idle_s))
    figures = bars("categories", "Where the time of a step goes", parts)
    return [*timeline_figure(ledger.timeline, step_s), *figures, *recorded_roofline(ledger)]


def _limit_remedy(ledger: StepLedger, calls: Sequence[LedgerCall]) -> str:
    """Return the reason and the remedy for calls without a limit, as text."""
    missing = _missing_limits(calls)
    reason = max(missing, key=lambda reason: missing[reason][0], default="")
    if reason == NO_OPERANDS:
        remedy = ". Next: record with record_shapes=True" * ledger.source.startswith("PyTorch")
        return f": their operands were not recorded{remedy}"
    said, _, remedy = reason.partition("; nearest: ")
    if remedy.startswith("--"):
        remedy = f"pydlbench trace {shlex.quote(ledger.file)} {remedy}"
    return f": {said}. Next: {remedy}" if remedy else f": {reason}"


def _missing_limits(calls: Sequence[LedgerCall]) -> dict[str, tuple[float, list[str]]]:
    """Return seconds without a limit and the operators that have none, by kind of reason."""
    missing: dict[str, tuple[float, list[str]]] = {}
    for call in calls:
        if call.limit_missing is not None:
            named = _REASON.match(call.limit_missing)
            kind, name = (named[2], named[1]) if named else (call.limit_missing, "")
            seconds, names = missing.get(kind, (0.0, []))
            new = [name] if name and name not in names else []
            missing[kind] = (seconds + call.unlimited_s, [*names, *new])
    return missing


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
    times = {name: f"{repeats[name]} x " if repeats.get(name, 1) > 1 else "" for name in named}
    short = {name: name.rpartition("/")[2] for name in named}
    alike = len(set(short.values())) < len(named)
    texts = [times[name] + (_innermost(name) if alike else short[name]) for name in named]
    return f", most time in {' and '.join(texts)}" if texts else ""


def _heading(ledger: StepLedger) -> list[str]:
    device = ledger.device or "no device named"
    if ledger.card and ledger.card != ledger.device:
        device = f"{device} ({ledger.card})"
    ends = (format_seconds(each or 0.0) for each in (ledger.step_low_s, ledger.step_high_s))
    spread, each = (f" ({' .. '.join(ends)})", " each") if ledger.steps > 1 else ("", "")
    items = (
        *(ledger.file, ledger.source, device, quantity(ledger.steps, "step")),
        known_text(ledger.step_s, lambda seconds: f"{format_seconds(seconds)}{spread}{each}"),
        known_text(ledger.host_step_s, lambda seconds: f"host {format_seconds(seconds)}"),
    )
    return ["  ".join(filter(None, items)), *_time_line(ledger)]


def _time_line(ledger: StepLedger) -> list[str]:
    """Return the line of the limit and of the device's times; none of a file without times."""
    line = ledger.device_time
    if line is None:
        return []
    limited = ledger.limited_share or 0.0
    of = "" if limited > MIN_LIMITED_SHARE else f" of {percent(limited)} of the kernels"
    below_s = sum(call.seconds for call in ledger.calls if call.contradiction)
    others = {
        "overlapped": line.overlapped_s,
        "exposed copies": line.exposed_copy_s,
        "exposed communication": line.exposed_communication_s,
    }
    times = {
        "busy": line.busy_s,
        "idle": line.idle_s,
        **{name: seconds for name, seconds in others.items() if seconds > 0},
        "unattributed": ledger.unattributed_s,
    }
    parts = (
        known_text(ledger.limit_s, lambda seconds: f"limit {format_seconds(seconds)}{of}"),
        f"{percent(below_s / line.kernel_s)} of the kernels below their limit" if below_s else "",
        *(f"{name} {format_seconds(seconds)}" for name, seconds in times.items()),
    )
    return ["  ".join(filter(None, parts))]


def _of_busy(columns: list[Column[Row]], busy_s: float | None) -> list[Column[Row]]:
    """Return columns with the share of the busy time behind the share of the step.

    Args:
        columns: of rows with times.
        busy_s: seconds that the device is busy; None if the share of the step says enough.
    """
    places = [place + 1 for place, column in enumerate(columns) if column.title == "of step"]
    if not busy_s or not places:
        return columns
    share: Column[Row] = Column("of busy", lambda row: percent(row.seconds / busy_s))
    return [*columns[: places[0]], share, *columns[places[0] :]]


def _with_short_module(row: Row) -> Row:
    """Return a row with the innermost names of its module, which fit into a table."""
    short: Row = replace(row, module=_innermost(row.module))
    return short


def _innermost(module: str) -> str:
    return "/".join(module.split("/")[-SHOWN_NAMES:])


def _table(rows: Sequence[Record], names: str, busy_s: float | None = None) -> TableBlock:
    return TableBlock.from_rows(_of_busy(columns_of(rows, names), busy_s), rows)


def _rest(ledger: StepLedger, calls: int, modules: int) -> list[str]:
    """Return lines on hidden rows, on time without a limit, and the notes."""
    below, modules_below = ledger.calls[calls:], len(ledger.modules) - modules if modules else 0
    share = percent(sum(call.share or 0.0 for call in below))
    missing = _missing_limits(ledger.calls)
    reasons = sorted(missing, key=lambda reason: -missing[reason][0])
    kernel_s = ledger.device_time.kernel_s if ledger.device_time else 0.0

    def of_kernels(some: Sequence[str]) -> str:
        """Return the share of the kernels that have no limit for some reasons."""
        seconds = sum(missing[reason][0] for reason in some)
        return f"{percent(seconds / kernel_s) if kernel_s else '?'} of the kernels"

    rarest = reasons[MAX_REASONS:]
    others = quantity(len(rarest), "more reason")
    names = {reason: some_names(missing[reason][1]) for reason in reasons}
    limits = known_text(ledger.limits_of, "limits: measured peaks of {}".format)
    if ledger.card is not None and ledger.limit_s is not None:
        limits = (
            f"limits: published peaks of the {ledger.card}; bytes over the bandwidth of its "
            "memory, which a kernel whose operands stay in a cache can pass"
        )
    whys = [call.contradiction for call in ledger.calls if call.contradiction]
    rows = f"{quantity(len(whys), 'row')} of calls took less than the limit"
    lines = (
        f"{quantity(len(below), 'more call')}: {share} of the step (--all)" if below else "",
        f"{quantity(modules_below, 'more module')} (--all)" if modules_below else "",
        *(
            f"without a limit, {of_kernels([reason])}: {reason}"
            + (f" ({names[reason]})" if names[reason] else "")
            for reason in reasons[:MAX_REASONS]
        ),
        f"{others}: {of_kernels(rarest)} (--json)" if rarest else "",
        limits,
        f"{rows}, which cannot be: {', '.join(dict.fromkeys(whys))}" if whys else "",
    )
    return [*filter(None, lines), *ledger.notes]


# -----------------------------------------------------------------------------
# Ranks of a job.


def ranks_report(
    comparison: RankComparison, *, options: Sequence[str] = (), everything: bool = False
) -> list[Block]:
    """Return the conclusion, each rank's step, the skew of collectives, and notes.

    Args:
        comparison: of the ranks.
        options: options of the command to run next.
        everything: show all collectives.
    """
    rows = comparison.collectives if everything else comparison.collectives[:MAX_CALLS]
    how = "the shortest time of any rank, which the others wait for; wait: what it takes longer"
    lines = [f"transfer: {how} on the others"]
    below = comparison.collectives[len(rows) :]
    if below:
        rest = format_seconds(sum(row.wait_s for row in below))
        lines.append(f"{quantity(len(below), 'more collective')}: {rest} of waiting (--all)")
    if comparison.unmatched_s:
        lines.append(
            f"{format_seconds(comparison.unmatched_s)} of collectives correspond to none of "
            "another rank"
        )
    names = "rank file step_s busy_s idle_s exposed_communication_s wait_s caused_s last"
    skews = "operator shapes count transfer_s wait_s longest_wait_s last_rank last_share"
    return [
        Headline([_skew(comparison, options)]),
        _table(comparison.ranks, names),
        *([_table(rows, skews)] if rows else []),
        Lines([*(lines if rows else []), *comparison.notes]),
    ]


def _skew(comparison: RankComparison, options: Sequence[str]) -> str:
    """Return the sentence that says which rank the others wait for."""
    ranks = comparison.ranks
    step_s = sum(rank.step_s for rank in ranks) / len(ranks)
    wait_s = sum(rank.wait_s for rank in ranks) / len(ranks)
    transfer_s = sum(row.transfer_s for row in comparison.collectives)
    if not comparison.matched:
        return f"No collective of these {len(ranks)} ranks corresponds to one of another rank."
    where = (
        f"{format_seconds(wait_s)} of the {format_seconds(step_s)} of a step "
        f"({percent(wait_s / step_s if step_s else None)})"
    )
    moved = f"the transfer itself takes {format_seconds(transfer_s)}"
    if wait_s < BALANCED_SHARE * step_s:
        return f"The ranks are balanced: they wait {where} for each other in collectives; {moved}."
    last = max(ranks, key=lambda rank: rank.caused_s)
    longest = comparison.collectives[0]
    first = max(ranks, key=lambda rank: rank.wait_s)
    of = f"{last.last:,} of {quantity(comparison.matched, 'collective')}"
    following = ""
    if len(ranks) > 2:  # with two, the report has their differences
        following = f" Next: {_command(first.file, last.file, *options)} (what differs)"
    return (
        f"Ranks wait {where} for each other, {format_seconds(last.caused_s)} of it for rank "
        f"{last.rank}, which arrives last in {of}; most of it in {longest.operator}; {moved}."
        f"{following}"
    )


# -----------------------------------------------------------------------------
# Two recorded steps.


def _command(*words: str) -> str:
    return shlex.join(["pydlbench", "trace", *words])


def comparison_report(
    comparison: LedgerComparison, *, options: Sequence[str] = (), everything: bool = False
) -> list[Block]:
    """Return the conclusion, the rows by which two steps differ, and notes.

    Args:
        comparison: of the steps.
        options: options of the command to run next.
        everything: show all rows.
    """
    rows = comparison.rows if everything else comparison.rows[:MAX_DIFFERENCES]
    below = comparison.rows[len(rows) :]
    shown = list(map(_with_short_module, rows))
    lines = list(comparison.notes)
    if below:
        rest = format_seconds(sum(row.difference_s for row in below))
        lines.insert(0, f"{quantity(len(below), 'more row')}: {rest} together (--all)")
    heading = f"A  {comparison.a}  {format_seconds(comparison.a_s)}"
    longer = comparison.b if comparison.difference_s > 0 else comparison.a
    return [
        Headline([_difference(comparison), f"next: {_command(longer, *options)}"]),
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
    if abs(comparison.difference_s) < ROUNDING * comparison.a_s:
        return f"B's step takes as long as A's, {format_seconds(comparison.a_s)}."
    text = f"B's step is {length} {longer} than A's ({ratio:.3g} times its time)"
    if first is None or not first.difference_s:
        return f"{text}."
    more = "more" if first.difference_s > 0 else "less"
    where = f" in {first.module.rpartition('/')[2]}" if first.module else ""
    return (
        f"{text}; the largest part is {first.operator}{where}, "
        f"{format_seconds(abs(first.difference_s))} {more}: {first.why}."
    )


# -----------------------------------------------------------------------------
# One or several recorded steps.


def recorded_report(
    ledgers: Sequence[StepLedger], *, options: Sequence[str] = (), everything: bool = False
) -> list[Block]:
    """Return the report of a recorded step; of two, what differs; of ranks, their skew.

    Args:
        ledgers: of the recordings.
        options: options of the command to run next.
        everything: show all modules, calls and differences.
    """
    blocks: list[Block] = []
    if are_ranks(ledgers):
        blocks += ranks_report(compare_ranks(ledgers), options=options, everything=everything)
    if len(ledgers) == 2:  # A and B
        compared = compare_ledgers(*ledgers)
        blocks += comparison_report(compared, options=options, everything=everything)
    return blocks or [
        block for ledger in ledgers for block in trace_report(ledger, everything=everything)
    ]


def recorded_document(ledgers: Sequence[StepLedger]) -> dict[str, Any]:
    """Return the results of a JSON object: the ledgers, what differs, and the ranks' skew."""
    if len(ledgers) < 2:
        return {"recorded": ledgers[0].to_dict() if ledgers else None}
    document: dict[str, Any] = {"recorded": [ledger.to_dict() for ledger in ledgers]}
    if are_ranks(ledgers):
        document |= compare_ranks(ledgers).to_dict()
    if len(ledgers) == 2:  # A and B
        document |= compare_ledgers(*ledgers).to_dict()
    return document
