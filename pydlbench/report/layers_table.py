"""The report of ``layers``: what the rows share, the table, and what could not be timed and why."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

from pydlbench.report.contest_table import contest_legend, contest_table
from pydlbench.report.explanations import explanations
from pydlbench.report.gpu_notes import gpu_notes
from pydlbench.report.plain_table import plain_table
from pydlbench.report.style import PLAIN, Style
from pydlbench.results.axes import label, varying
from pydlbench.results.columns import columns
from pydlbench.results.heading import heading
from pydlbench.units import format_bytes, format_seconds

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence

    from pydlbench.results.records import Measurement, RunRecord

__all__ = ["plain_table", "render_layers"]

_NAMED = 4  # labels written out before "and n more"


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
