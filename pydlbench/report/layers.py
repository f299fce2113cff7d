"""The report of ``layers``: what the rows share, the table, and what could not be timed and why."""

from __future__ import annotations

import math
import re
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from pydlbench.records.measurement import TimeSummary
from pydlbench.records.metrics import spread
from pydlbench.report.backends import contest_legend, contest_table
from pydlbench.report.columns import columns, heading, label, varying
from pydlbench.report.text import PLAIN, Style, plain_table
from pydlbench.units import (
    format_bytes,
    format_seconds,
    number,
    percent,
    scientific,
    time_in,
    time_unit,
)

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Sequence

    from pydlbench.records.measurement import Measurement
    from pydlbench.records.run import RunRecord

__all__ = [
    "disagreement",
    "evidence",
    "explanations",
    "gpu_notes",
    "render_algorithms",
    "render_layers",
]


# -----------------------------------------------------------------------------
# ``--algorithms``: every implementation that was tried for one layer, fastest first.

_TEXTS = 3  # columns before the numbers


def render_algorithms(row: Measurement, name: str) -> str:
    """Return the table of a measurement's candidates, or one line where there are none.

    Those that failed or were wrong stand last, with the reason in the place of a verdict.

    Args:
        row: Measurement with ``candidates``.
        name: What to call it in the title.
    """
    candidates = [(item, _time(item)) for item in row.candidates or ()]
    if not candidates:
        return f"{name}: no candidates were recorded"
    candidates.sort(key=lambda pair: pair[1].median if pair[1] else math.inf)
    medians = [time.median for _, time in candidates if time]
    unit = time_unit(medians)
    reordered = any(item.get("reorder_s") for item, _ in candidates)
    on_gpu = any(item.get("tensor_cores") is not None for item, _ in candidates)
    cells = []
    for item, time in candidates:
        reorders = sum((item.get("reorder_s") or {}).values())
        workspace = item.get("workspace_bytes")
        cells.append(
            [
                "*" if item.get("chosen") else "",
                str(item.get("algorithm") or "-"),
                str(item.get("layout") or "-"),
                time_in(unit, time.median) if time else "-",
                spread(time) if time else "-",
                str(time.n) if time else "-",
                f"{number(time.median / medians[0])}x" if time and medians[0] > 0 else "-",
                *([format_seconds(reorders) if reorders else "-"] if reordered else ()),
                format_bytes(workspace) if workspace else "-",
                *(_on_gpu(item) if on_gpu else ()),
                _verdict(item),
            ]
        )
    titles = ["", "algorithm", "layout", "median", "CI", "n", "ratio"]
    titles += [*(["reorders"] if reordered else ()), "workspace"]
    titles += ["tensor cores", "built in"] if on_gpu else []
    right = [index >= _TEXTS for index in range(len(titles))] + [False]
    many = f"{len(candidates)} candidate{'s' if len(candidates) > 1 else ''}"
    title = f"{name}: {many}, fastest first; * is the row above"
    return f"{title}\n\n{plain_table([*titles, 'verdict'], cells, right)}"


def _on_gpu(item: Mapping[str, Any]) -> list[str]:
    tensor_cores = item.get("tensor_cores")
    used = "-" if tensor_cores is None else "yes" if tensor_cores else "no"
    seconds = item.get("setup_s")
    return [used, format_seconds(seconds) if seconds else "-"]


def _time(item: Mapping[str, Any]) -> TimeSummary | None:
    value = item.get("time_s")
    if item.get("status", "ok") != "ok" or not value:
        return None
    # Trials are short; what they do not know is shown as unknown.
    unknown = dict.fromkeys(("q1", "q3", "min"), math.nan) | {"ci_low": None, "ci_high": None}
    known = value if isinstance(value, Mapping) else {"median": value}
    return TimeSummary.from_dict({**unknown, "n": 1, **known})


def _verdict(item: Mapping[str, Any]) -> str:
    status, reason = str(item.get("status", "ok")), item.get("reason")
    if reason:
        return f"{status}: {' '.join(str(reason).split())}"
    verdict = item.get("correct")
    if status != "ok" or verdict:
        error = (verdict or {}).get("rel_error")
        return f"{status} {scientific(error)}" if error else status
    # Candidates that cannot win are not worth a verification unless asked for.
    return f"{status}, unchecked"


# -----------------------------------------------------------------------------
# Footnotes to rows of a GPU: clocks that disagree, units that were not used, throttling.

# The three clocks of one kernel agree within this, or the row says how they differ.
_AGREE = 0.10
_NAMED = 4
_CLOCKS = ("event", "graph", "host")


def gpu_notes(rows: Sequence[Measurement], name_of: Callable[[Measurement], str]) -> Iterator[str]:
    """Yield a line for each thing that a reader of these rows has to know.

    Args:
        rows: ``ok`` rows; those of a CPU have nothing to say here.
        name_of: names a row.
    """
    apart = [(row, text) for row in rows if (text := disagreement(row)) is not None]
    if len(apart) > _NAMED:
        yield from _clocks([row for row, _ in apart], name_of)
    else:
        for row, text in apart:
            yield f"{name_of(row)}: {text}"
    for remark, names in _units(rows, name_of).items():
        yield f"{remark}: {_some(names, len(rows))}"
    for reason, names in _held_down(rows, name_of).items():
        yield f"clock held down by {reason}: {_some(names, len(rows))}"
    powers = [row.power_w for row in rows if row.power_w]
    if powers:
        low, high = (number(value) for value in (min(powers), max(powers)))
        watts = low if low == high else f"{low} to {high}"
        yield f"energy of executions back to back, at {watts} W"


def _clocks(rows: Sequence[Measurement], name_of: Callable[[Measurement], str]) -> Iterator[str]:
    """A table of the times by three clocks, for many rows whose clocks disagree."""
    yield f"{len(rows)} rows whose time depends on the clock by over {100 * _AGREE:.0f} %:"
    titles = ["", "between events", "in a graph", "host's clock", "launching it"]
    cells = [
        [name_of(row), *(_seconds(row, clock) for clock in (*_CLOCKS, "enqueue"))] for row in rows
    ]
    right = [False, *[True] * (len(titles) - 1)]
    yield from (f"  {line}".rstrip() for line in plain_table(titles, cells, right).splitlines())


def _seconds(row: Measurement, clock: str) -> str:
    seconds = (row.launch_s or {}).get(clock)
    return format_seconds(seconds) if seconds else "-"


def _some(names: Sequence[str], rows: int) -> str:
    if len(names) == rows > 1:
        return f"all {rows} rows"
    more = f" and {len(names) - _NAMED} more" if len(names) > _NAMED + 1 else ""
    return ", ".join(names[:_NAMED] if more else names) + more


def _units(
    rows: Sequence[Measurement], name_of: Callable[[Measurement], str]
) -> dict[str, list[str]]:
    """Which rows ran on other arithmetic units than their precision suggests."""
    found: dict[str, list[str]] = {}
    for row in rows:
        if not row.device.startswith("cuda") or row.kind not in ("conv2d", "gemm"):
            continue
        if row.precision == "fp16" and row.accumulate == "float32":
            remark = "fp16 accumulated in float32, so held against the fp32 peak"
        elif row.precision.endswith(("-tc", "tf32")) and row.tensor_cores is False:
            remark = "the fastest right kernel uses no tensor cores"
        else:
            continue
        found.setdefault(remark, []).append(name_of(row))
    return found


def disagreement(row: Measurement) -> str | None:
    """Say how a kernel's three times differ, if by more than 10 %; None where they agree.

    The time in a CUDA graph is what the kernel needs; between events the start of each launch
    counts too; on the host's clock a launch that takes longer than the kernel shows, as it does in
    a framework's step.
    """
    times = row.launch_s
    if not times or not all(times.get(name) for name in _CLOCKS):
        return None
    found = [times[name] for name in _CLOCKS]
    if max(found) <= (1 + _AGREE) * min(found):
        return None
    event, graph, host = map(format_seconds, found)
    text = f"{event} between events, {graph} in a graph, {host} on the host's clock"
    enqueue = times.get("enqueue")
    if enqueue is None:
        return text
    return f"{text} (launching it takes the host {format_seconds(enqueue)})"


def _held_down(
    rows: Sequence[Measurement], name_of: Callable[[Measurement], str]
) -> dict[str, list[str]]:
    found: dict[str, list[str]] = {}
    for row in rows:
        for reason in (row.gpu or {}).get("reasons", ()):
            if reason != "idle":
                found.setdefault(reason, []).append(name_of(row))
    return found


# -----------------------------------------------------------------------------
# Why the slower backends are slower: one line each, and with ``--explain`` the measurements.

_UNEXPLAINED = "unexplained"
# Two measurements that agree this well, as a share of the gap, add up.
_SLACK = 0.05


def explanations(
    rows: Sequence[Measurement], name_of: Callable[[Measurement], str]
) -> Iterator[str]:
    """Yield a line for each row that is much slower than the fastest backend on its problem.

    Args:
        rows: ``ok`` rows.
        name_of: names a row.
    """
    for row in rows:
        if not row.causes or row.ratio is None:
            continue
        found = [cause for cause in row.causes if cause["cause"] != _UNEXPLAINED]
        rest = next((one for one in row.causes if one["cause"] == _UNEXPLAINED), None)
        parts = [_share(cause) for cause in found] or ["no cause found"]
        if rest is not None and found:
            share = rest["share"]
            more = f"together {percent(-share)} more than the gap"
            parts.append(more if share < -_SLACK else f"unexplained {percent(max(0.0, share))}")
        times = f"{number(row.ratio['median'], 3)}x the time of {row.ratio['to']}"
        yield f"{name_of(row)}: {times}: {', '.join(parts)}"


def evidence(rows: Sequence[Measurement], name_of: Callable[[Measurement], str]) -> Iterator[str]:
    """Yield the measurements behind :func:`explanations`, and what each backend's calls cost.

    Args:
        rows: ``ok`` rows.
        name_of: names a row.
    """
    for row in rows:
        lines = [
            f"  {cause['cause']}: {format_seconds(cause['seconds'])} "
            f"({_signed(cause['share'])} of the gap): {cause['how']}"
            for cause in row.causes
        ]
        if row.empty_call_s is not None:
            empty = format_seconds(row.empty_call_s)
            lines.append(f"  a call that does nothing takes {empty}; it is subtracted nowhere")
        faults = row.faults or {}
        if faults.get("default") is not None:
            kept = faults.get("warm")
            beside = "" if kept is None else f", {kept:.0f} with pages kept"
            lines.append(f"  page faults per call: {faults['default']:.0f}{beside}")
        lines += [f"  {note}" for note in row.notes]
        if lines:
            yield f"{name_of(row)}:"
            yield from lines


def _share(cause: Mapping[str, Any]) -> str:
    return f"{cause['cause']} {format_seconds(cause['seconds'])} ({percent(cause['share'])})"


def _signed(share: float) -> str:
    return f"-{percent(-share)}" if share < 0 else percent(share)


def render_layers(run: RunRecord, rows: Sequence[Measurement], style: Style = PLAIN) -> str:
    """Return heading, table, rows without a time, and footnotes; no newline at the end.

    Args:
        run: The run, for the device's name.
        rows: Measurements, in the order in which they are to stand.
        style: Colours.
    """
    if not rows:
        return "nothing was timed"
    timed = [row for row in rows if row.ok]
    axes = varying(rows)
    head = heading(run, timed or rows)
    blocks = ["\n".join([style.bold(head[0]), *head[1:]])]
    if any(row.ratio for row in timed):
        blocks.append(contest_table(timed))
        # It follows from the backend that a row is named after: "bf16 float32" says nothing.
        axes = [axis for axis in axes if axis != "accumulate"]
    elif timed:
        found = columns(timed)
        blocks.append(
            plain_table(
                [column.title for column in found],
                [[column.cell(row) for column in found] for row in timed],
                [column.right for column in found],
            )
        )
    for status in ("failed", "skipped"):
        group = [row for row in rows if not row.ok and row.status == status]
        lines = [
            f"{status}  {names}: {reason}"
            for reason, names in _by(group, axes, lambda row: row.reason or "no reason recorded")
        ]
        if lines:
            blocks.append("\n".join(map(style.alarm, lines) if status == "failed" else lines))
    notes = list(_footnotes(timed, axes))
    if notes:
        blocks.append("\n".join(notes))
    return "\n\n".join(blocks)


def _by(
    rows: Iterable[Measurement], axes: Sequence[str], key: Callable[[Measurement], str]
) -> list[tuple[str, str]]:
    """Group rows by a text and name the members: ``[(text, "conv1, conv2 and 3 more")]``."""
    groups: dict[str, list[str]] = {}
    for row in rows:
        groups.setdefault(" ".join(key(row).split()), []).append(label(row, axes))
    named = []
    for text, names in groups.items():
        more = f" and {len(names) - _NAMED} more" if len(names) > _NAMED + 1 else ""
        shown = names[:_NAMED] if more else names
        named.append((text, ", ".join(shown) + more))
    return named


def _stop_of(several: bool) -> Callable[[Measurement], str]:
    if several:
        # "known to 0.43% at" and "known to 0.44% at" are one reason; a column has the figures.
        figures = re.compile(r" (?:to|at) [\d.]+ ?%|^[\d.]+ s of ")
        return lambda row: figures.sub("", row.stop_reason or "")
    return lambda row: row.stop_reason or ""


def _footnotes(timed: Sequence[Measurement], axes: Sequence[str]) -> Iterable[str]:
    if any(row.ratio for row in timed):
        yield from contest_legend(timed)
    stops = _by((row for row in timed if row.stop_reason), axes, _stop_of(len(timed) > 1))
    if len(stops) == 1:
        yield f"stopped: {stops[0][0]}"
    else:
        yield from (f"stopped: {reason}: {names}" for reason, names in stops)
    if len(timed) == 1:
        beside = _beside(timed[0])
        if beside:
            yield f"beside the kernel: {beside}"
    disturbed = [row for row in timed if row.contended]
    for reason, names in _by(disturbed, axes, lambda row: row.contention_reason or "other work"):
        yield f"contended: {names}: {reason}"
    yield from gpu_notes(timed, lambda row: label(row, axes))
    yield from explanations(timed, lambda row: label(row, axes))
    discarded = sum(row.discarded for row in timed)
    if discarded:
        kept = sum(row.time.n for row in timed if row.time is not None)
        yield f"discarded: {discarded} disturbed samples of {kept + discarded}"
    if any(row.flops_executed != row.flops for row in timed):
        yield "TFLOP/s counts padding, as papers do; percentages use the executed FLOPs only"


def _beside(row: Measurement) -> str:
    """What the kernel needs and its time leaves out: reorders, memory, creation."""
    parts = []
    if row.reorder_s:
        times = ", ".join(f"{role} {format_seconds(s)}" for role, s in row.reorder_s.items())
        parts.append(f"reorders from and to plain layouts {times}")
    if row.workspace_bytes:
        parts.append(f"workspace {format_bytes(row.workspace_bytes)}")
    if row.setup_s is not None:
        parts.append(f"created in {format_seconds(row.setup_s)}")
    return "; ".join(parts)
