"""What to conclude from a table: one sentence, and what to try next."""

from __future__ import annotations

from typing import TYPE_CHECKING

from pydlbench.report.backends import compare_backends
from pydlbench.report.comparison import compare_settings
from pydlbench.report.kernel import next_step, short_name, verdict
from pydlbench.results.axes import varying
from pydlbench.results.columns import percent
from pydlbench.timing.throttle import HARMFUL
from pydlbench.units import format_seconds

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from pydlbench.results.records import Measurement

__all__ = ["conclude"]

# Rows of one step, not alternatives: their times may be added up.
_ADDITIVE = {"layer", "pass"}


def conclude(rows: Sequence[Measurement], peaks: Mapping[str, float] | None = None) -> list[str]:
    """Return the conclusion, a line each; the first one is the sentence to remember.

    Args:
        rows: All measurements of a run, those without a time too.
        peaks: Measured compute peak of the device by precision, in any unit.
    """
    timed = [row for row in rows if row.ok]
    if not timed:
        return [_nothing(rows)]
    lines = []
    disturbed = [row for row in timed if row.contended]
    if len(timed) == 1:
        lines = [verdict(timed[0]), *next_step(timed[0], peaks or {})]
    else:
        settings = [axis for axis in varying(timed) if axis not in _ADDITIVE]
        if "batch" in settings and not _same_layer_in_two_batches(timed):
            settings.remove("batch")
        one_model = len({row.layer.rpartition("/")[0] for row in timed}) == 1
        add_up = not settings and one_model
        beside = compare_backends(timed)
        alone = [_sum(timed)] if add_up else compare_settings(timed, settings)
        lines = beside or alone
    if disturbed:
        lines.append(_disturbed(disturbed, len(timed)))
    failed = sum(row.status == "failed" for row in rows)
    if failed:
        lines.append(f"{failed} of {len(rows)} rows failed; their reasons stand above.")
    return lines


def _disturbed(rows: Sequence[Measurement], timed: int) -> str:
    which = "this time" if timed == 1 else f"{len(rows)} of {timed} times"
    few = "is an upper bound" if len(rows) == 1 else "are upper bounds"
    slowed = [any(name in (row.contention_reason or "") for name in HARMFUL) for row in rows]
    if all(slowed):
        return f"the GPU was slowed down: {which} {few}; repeat when it is cool."
    what = "heat and other work" if any(slowed) else "other work"
    return f"{what} disturbed the run: {which} {few}; repeat on an idle machine."


def _same_layer_in_two_batches(rows: Sequence[Measurement]) -> bool:
    return len({(row.layer, row.batch) for row in rows}) > len({row.layer for row in rows})


def _nothing(rows: Sequence[Measurement]) -> str:
    failed = sum(row.status == "failed" for row in rows)
    skipped = len(rows) - failed
    if not failed:
        return f"nothing was timed: {skipped} of {len(rows)} rows skipped."
    return f"nothing was timed: {failed} of {len(rows)} rows failed, {skipped} skipped."


def _sum(timed: Sequence[Measurement]) -> str:
    """Which layer dominates, how much is physics, and which one loses most."""
    times: dict[str, float] = {}
    losses: dict[str, float] = {}
    roof = 0.0
    for row in timed:
        if row.time is None:
            continue
        times[row.layer] = times.get(row.layer, 0.0) + row.time.median
        if row.roofline is not None:
            roof += row.roofline.time_s
            loss = row.time.median - row.roofline.time_s
            losses[row.layer] = losses.get(row.layer, 0.0) + loss
    total = sum(times.values())
    top = max(times, key=lambda name: times[name])
    passes = dict.fromkeys(row.pass_ for row in timed)
    over = "" if len(passes) == 1 else f" over {len(passes)} passes"
    known = sum(row.roofline is not None for row in timed) == len(timed)
    if len(times) == 1:
        slow = max(timed, key=lambda row: row.time.median if row.time else 0.0)
        share = slow.time.median / total if slow.time else 0.0
        text = f"{short_name(top)} takes {format_seconds(total)}{over}"
        text += f", {percent(share)} of it in {slow.pass_}"
        return f"{text}; {percent(roof / total)} of it is the measured limit." if known else text
    text = f"{short_name(top)} dominates: {percent(times[top] / total)} of the "
    text += f"{format_seconds(total)} that {len(times)} layers add up to{over}"
    if not known:
        return f"{text}."
    text += f"; {percent(roof / total)} of the sum is the measured limit"
    worst = max(losses, key=lambda name: losses[name])
    if losses[worst] <= 0.02 * total:
        return f"{text}, and no layer loses more than 2 % of it."
    lost = f"{format_seconds(losses[worst])} above its roof"
    return f"{text}, and {short_name(worst)} loses most: {lost}."
