"""Whether a GPU works as its kind should: a step's TFLOP/s against what its product promises.

Published end-to-end runs of dense networks (AlexNet, VGG, ResNet on Kepler to Volta) reach 24 to
140 % of the product's figure on CUDA cores, more than 100 % through Winograd's algorithm and the
boost clock, and 14 to 31 % of it on tensor cores. Steps of few FLOPs reach 6 to 18 % on a healthy
card: they wait for launches. So small steps judge nothing, and the bars stand a little below the
published ones.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from pydlbench.devices.gpu import GpuFacts
from pydlbench.devices.gpu.cards import find_card
from pydlbench.devices.gpu.rates import on_tensor_cores
from pydlbench.units import format_flops, format_percent

if TYPE_CHECKING:
    from collections.abc import Sequence

    from pydlbench.report.e2e_rows import StepRow

__all__ = ["ENOUGH_FLOPS", "verdicts"]

#: A step of fewer floating-point operations waits for launches more than for arithmetic.
ENOUGH_FLOPS: Final = 1e11
#: Share of the product's figure from which on a card is healthy: CUDA cores, tensor cores.
_GOOD: Final = {False: 0.20, True: 0.10}
#: Below this part of the bar something is wrong; in between it may be the step.
_BAD: Final = 0.5


def verdicts(rows: Sequence[StepRow]) -> list[str]:
    """Return one line for each GPU that was timed.

    Args:
        rows: with a time; those of CPUs are left out.
    """
    devices = dict.fromkeys(row.record.case.device for row in rows if row.record.case.on_gpu)
    return [_verdict([row for row in rows if row.record.case.device == one]) for one in devices]


def _verdict(rows: Sequence[StepRow]) -> str:
    told = rows[0].record.environment.get("gpu", {})
    facts = GpuFacts(
        name=told.get("name", "unknown GPU"),
        capability=told.get("capability", ""),
        memory_bytes=told.get("memory_bytes", 0),
    )
    device = rows[0].record.case.device
    card = find_card(facts)
    if card is None:
        return (
            f"{device} ({facts.name}): not among the known cards, so there is nothing to judge it "
            "by; see pydlbench device --known."
        )
    judged = [
        (row.tflops / promised, row, promised)
        for row in rows
        if row.tflops is not None
        and row.flops >= ENOUGH_FLOPS
        and (promised := card.tflops.get(row.record.case.precision))
    ]
    if not judged:
        most = max(row.flops for row in rows)
        return (
            f"{device} ({card.name}): no verdict: steps of up to {format_flops(most)} say more of "
            "launches than of the card; nearest: a larger --batch."
        )
    # Of a card that is well, the best way to run it shows it.
    share, row, promised = max(judged, key=lambda one: one[0] / _bar(one[1]))
    bar = _bar(row)
    case = row.record.case
    reached = (
        f"{row.tflops:.3g} TFLOP/s, {format_percent(share)} of the {promised:g} that a {card.name} "
        f"has in {case.precision} ({row.who}, batch {case.batch}, {case.phase})"
    )
    usual = f"{format_percent(bar)} or more is usual"
    if share >= bar:
        return f"{device} works as a {card.name} should: {reached}; {usual}."
    if share >= _BAD * bar:
        return f"{device} may be held back: {reached}; {usual}; nearest: a larger --batch."
    return (
        f"{device} does not work as a {card.name} should: {reached}; {usual}; next: pydlbench "
        f"layers --device {device}."
    )


def _bar(row: StepRow) -> float:
    return _GOOD[on_tensor_cores(row.record.case.precision)]
