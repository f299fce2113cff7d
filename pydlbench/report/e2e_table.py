"""The report of ``e2e``: what the steps share, the table, and what could not be run and why."""

from __future__ import annotations

from typing import TYPE_CHECKING

from pydlbench.report.e2e_rows import StepRow, device_ratio, fastest, ratio
from pydlbench.report.plain_table import plain_table
from pydlbench.report.style import PLAIN, Style
from pydlbench.results.heading import device_name
from pydlbench.units import format_seconds

if TYPE_CHECKING:
    from collections.abc import Sequence

    from pydlbench.results import RunRecord

__all__ = ["heading", "refused", "render_steps", "table"]

#: Settings that get a column where rows differ in them.
_AXES = ("precision", "phase", "batch", "device")


def render_steps(
    run: RunRecord, rows: Sequence[StepRow], conclusion: Sequence[str], style: Style = PLAIN
) -> str:
    """Return heading, table, rows without a time, and conclusion; no newline at the end.

    Args:
        run: for the device's name.
        rows: in the order in which they are to stand; at least one.
        conclusion: sentences.
        style: colours.
    """
    head = heading(run, rows)
    blocks = ["\n".join([style.bold(head[0]), *head[1:]])]
    titles, cells, right = table(rows)
    if cells:
        blocks.append(plain_table(titles, cells, right))
    for status, lines in refused(rows).items():
        blocks.append("\n".join(map(style.alarm, lines) if status == "failed" else lines))
    notes = dict.fromkeys(f"{row.who}: {note}" for row in rows for note in row.record.notes)
    if notes:
        blocks.append("\n".join(notes))
    if conclusion:
        blocks.append("\n".join(conclusion))
    return "\n\n".join(blocks)


def heading(run: RunRecord, rows: Sequence[StepRow]) -> list[str]:
    """Return the lines above the table: what all rows share, and where they ran."""
    first = rows[0].record.case
    differ = _differing(rows)
    items = [first.model]
    items += [] if "batch" in differ else [f"batch {first.batch}"]
    items += [getattr(first, axis) for axis in ("phase", "precision") if axis not in differ]
    items += [f"{first.cast} precision"] if any(_narrow(row) for row in rows) else []
    items += [first.layout, f"{first.feed} images"]
    items += [f"{name}={value}" for name, value in first.options.items()]
    where = [device_name(run.device)] if not first.on_gpu or "device" in differ else []
    where += sorted({_gpu(row) for row in rows if row.record.case.on_gpu})
    threads = {row.record.threads for row in rows if row.record.threads}
    if len(threads) == 1:
        count = threads.pop()
        where.append(f"{count} thread{'' if count == 1 else 's'}")
    where += sorted({row.record.library for row in rows if row.record.library})
    return ["  ".join([*items, rows[0].title]), "  ".join(where)]


def table(rows: Sequence[StepRow]) -> tuple[list[str], list[list[str]], list[bool]]:
    """Return titles, cells and which columns are right-aligned, of all rows that have a time."""
    timed = [row for row in rows if row.record.time is not None]
    differ = _differing(rows)
    several = len(timed) > 1
    crossed = any(device_ratio(row, timed) for row in timed)
    titles = ["framework", *differ, "median", "95 % CI", "n", "images/s", "TFLOP/s"]
    titles += ["faults/step", "checks", *(["x fastest"] if several else [])]
    titles += ["CPU / GPU"] if crossed else []
    cells = []
    for row in timed:
        cell = [row.who, *(str(getattr(row.record.case, axis)) for axis in differ), *_times(row)]
        if several:
            cell.append(_to_fastest(row, timed))
        if crossed:
            found = device_ratio(row, timed)
            cell.append("-" if found is None else f"{found.median:.3g}x")
        cells.append(cell)
    left = {"framework", "precision", "phase", "device", "checks"}
    return titles, cells, [title not in left for title in titles]


def refused(rows: Sequence[StepRow]) -> dict[str, list[str]]:
    """Return a line for each row that was skipped or has failed, by status."""
    found: dict[str, list[str]] = {}
    differ = _differing(rows)
    for status in ("failed", "skipped"):
        for row in rows:
            if row.record.status == status:
                where = "  ".join(str(getattr(row.record.case, axis)) for axis in differ)
                name = f"{row.who}  {where}" if where else row.who
                reason = " ".join((row.record.reason or "no reason recorded").split())
                found.setdefault(status, []).append(f"{status}  {name}: {reason}")
    return found


def _differing(rows: Sequence[StepRow]) -> list[str]:
    return [axis for axis in _AXES if len({getattr(row.record.case, axis) for row in rows}) > 1]


def _narrow(row: StepRow) -> bool:
    return row.record.case.precision not in ("fp32", "tf32")


def _gpu(row: StepRow) -> str:
    found = row.record.environment.get("gpu", {}).get("name")
    return str(found or row.record.case.device)


def _times(row: StepRow) -> list[str]:
    record = row.record
    time = record.time
    assert time is not None, "only rows with a time stand in the table"
    low, high = time.ci_low, time.ci_high
    interval = "-"
    if low is not None and high is not None:
        interval = f"{format_seconds(low)} to {format_seconds(high)}"
    wrong = [one.name for one in record.checks if one.status != "ok"]
    checks = f"{len(record.checks)} ok" if record.checks else "none"
    return [
        format_seconds(time.median) + ("*" if record.contended else ""),
        interval,
        str(time.n),
        "-" if record.images_per_s is None else f"{record.images_per_s:.4g}",
        "-" if row.tflops is None else f"{row.tflops:.3g}",
        "-" if record.faults is None else f"{record.faults:.0f}",
        f"failed: {', '.join(wrong)}" if wrong else checks,
    ]


def _to_fastest(row: StepRow, timed: Sequence[StepRow]) -> str:
    """A row's ratio to the fastest that it took turns with."""
    best = fastest([one for one in timed if one.group == row.group])
    if best is None:
        return "-"
    found = None if best is row else ratio(row, best)
    return "1" if best is row else ("-" if found is None else f"{found.median:.3g}")
