"""The last lines of ``e2e``: who is fastest and by how much, which batch pays, what the GPU is."""

from __future__ import annotations

from typing import TYPE_CHECKING

from pydlbench.report.e2e_rows import device_ratio, fastest, ratio
from pydlbench.report.e2e_verdict import verdicts
from pydlbench.units import format_seconds

if TYPE_CHECKING:
    from collections.abc import Sequence

    from pydlbench.report.e2e_rows import StepRow

__all__ = ["conclude"]


def conclude(rows: Sequence[StepRow]) -> list[str]:
    """Return the sentences under the table.

    Args:
        rows: all of them, at least one.
    """
    timed = [row for row in rows if row.record.ok]
    if not timed:
        failed = sum(row.record.status == "failed" for row in rows)
        return [f"nothing was timed: {failed} of {len(rows)} rows failed, the others skipped."]
    groups = list(dict.fromkeys(row.group for row in timed))
    lines = [_group([row for row in timed if row.group == one], len(groups) > 1) for one in groups]
    lines += _sweep(timed)
    lines += _devices(timed)
    lines += verdicts(timed)
    disturbed = sum(row.record.contended for row in timed)
    if disturbed:
        lines.append(
            f"* other work disturbed {disturbed} of {len(timed)} times: they are upper bounds; "
            "repeat on an idle machine."
        )
    failed = sum(row.record.status == "failed" for row in rows)
    if failed:
        lines.append(f"{failed} of {len(rows)} rows failed; their reasons stand above.")
    return lines


def _name(row: StepRow, rows: Sequence[StepRow]) -> str:
    """Framework and mode, with the precision and the device where those differ too."""
    axes = [
        axis
        for axis in ("precision", "device")
        if len({getattr(one.record.case, axis) for one in rows}) > 1
    ]
    return " ".join([row.who, *(getattr(row.record.case, axis) for axis in axes)])


def _group(rows: Sequence[StepRow], several: bool) -> str:
    """Who is fastest of those that took turns."""
    best = fastest(rows)
    assert best is not None, "all of them have a time"
    assert best.record.time is not None, "likewise"
    batch, phase = best.group
    text = f"{_name(best, rows)} " + ("is fastest" if len(rows) > 1 else "takes")
    text += ": " if len(rows) > 1 else " "
    text += f"{format_seconds(best.record.time.median)} per step"
    if best.record.images_per_s is not None:
        text += f", {best.record.images_per_s:.4g} images/s"
    others = []
    for row in rows:
        found = None if row is best else ratio(row, best)
        if found is None:
            continue
        span = ""
        if found.interval is not None:
            span = f" ({found.interval.low:.3g} to {found.interval.high:.3g})"
        tied = found.interval.low <= 1 if found.interval else found.median <= 1
        if tied:
            others.append(f"{_name(row, rows)} cannot be told from it{span}")
        else:
            others.append(f"{_name(row, rows)} takes {found.median:.3g} times as long{span}")
    end = "; ".join([text, *others]) + "."
    return f"batch {batch}, {phase}: {end}" if several else end


def _sweep(timed: Sequence[StepRow]) -> list[str]:
    """Which batch gives most images per second."""
    if len({row.record.case.batch for row in timed}) < 2:
        return []
    lines = []
    for phase in dict.fromkeys(row.record.case.phase for row in timed):
        rows = [row for row in timed if row.record.case.phase == phase]
        best = max(rows, key=lambda row: row.record.images_per_s or 0.0)
        lines.append(
            f"most images per second in {phase}: {best.record.images_per_s or 0.0:.4g} at batch "
            f"{best.record.case.batch} with {_name(best, rows)}."
        )
    return lines


def _devices(timed: Sequence[StepRow]) -> list[str]:
    """How much faster the GPU is than the CPU."""
    lines = []
    for row in timed:
        found = device_ratio(row, timed)
        if found is not None:
            span = ""
            if found.interval is not None:
                span = f" ({found.interval.low:.3g} to {found.interval.high:.3g})"
            case = row.record.case
            lines.append(
                f"{case.device} is {found.median:.3g} times as fast as the CPU{span}: {row.who} "
                f"{case.precision}, batch {case.batch}, {case.phase}."
            )
    return lines
