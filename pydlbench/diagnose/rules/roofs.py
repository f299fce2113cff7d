"""Layers that stay far below what the hardware could do, even with the fastest kernel known."""

from __future__ import annotations

import dataclasses
from typing import TYPE_CHECKING, Final

from pydlbench.diagnose.commands import layer_command
from pydlbench.diagnose.experiments import LayerChange
from pydlbench.diagnose.finding import WORTH, Hypothesis
from pydlbench.units import format_percent, format_seconds

if TYPE_CHECKING:
    from collections.abc import Iterator

    from pydlbench.diagnose.observations import Observations
    from pydlbench.models.work import Work
    from pydlbench.results import Measurement

__all__ = ["find"]

# Of the roof; below it, something else than the hardware holds a kernel up.
_FAR: Final = 0.6
_MOST: Final = 5
# How a framework keeps the operands in a step and the other way in which it can, by the names that
# its operators go by. TensorFlow's convolutions have one way on CPUs.
_OTHER_WAY: Final = {
    ("torch", "conv2d", "nhwc"): ("nhwc", "nchw"),
    ("torch", "conv2d", "nchw"): ("nchw", "nhwc"),
    ("torch", "gemm", "nhwc"): ("transposed", "plain"),
    ("torch", "gemm", "nchw"): ("transposed", "plain"),
    ("tensorflow", "gemm", "nhwc"): ("plain", "transposed"),
}
_KINDS: Final = ("conv2d", "gemm")
_WAYS: Final = {
    "nchw": "contiguous NCHW images",
    "nhwc": "channels last",
    "plain": "weights kept as (inputs, outputs)",
    "transposed": "weights kept as (outputs, inputs)",
}


def find(seen: Observations) -> Iterator[Hypothesis]:
    """Yield another algorithm and another batch for the layers that lose most."""
    gaps: list[tuple[float, Work, Measurement]] = []
    for term in seen.plan.terms:
        row = seen.rows[term.hot]
        if term.work.layer.kind not in _KINDS or not row.ok or row.time is None:
            continue
        if row.roofline is None or row.roofline.efficiency >= _FAR:
            continue
        gap = row.time.median - row.roofline.time_s
        if gap >= WORTH * seen.step_s:
            gaps.append((gap, term.work, row))
    gaps.sort(key=lambda one: -one[0])
    for gap, work, row in gaps[:_MOST]:
        yield from _of(seen, gap, work, row)


def _of(seen: Observations, gap: float, work: Work, row: Measurement) -> Iterator[Hypothesis]:
    assert row.time is not None
    assert row.roofline is not None
    where = f"{work.node} {work.pass_}"
    symptom = (
        f"{where} reaches {format_percent(row.roofline.efficiency)} of its roof "
        f"({row.roofline.bound}): {format_seconds(row.time.median)} where "
        f"{format_seconds(row.roofline.time_s)} are possible"
    )
    evidence = (f"native row, {row.algorithm or 'unknown kernel'}, hot caches",)
    case = seen.framework_case(work)
    ways = _OTHER_WAY.get((seen.case.framework, work.layer.kind, seen.case.layout))
    twice = work.layer.with_batch(2 * work.layer.batch)
    changes = [
        (
            "too few images for its size",
            "what a layer does once, whatever the batch, is a large part of it",
            LayerChange(
                what="twice the batch",
                case=case,
                changed=dataclasses.replace(case, layer=twice),
                images=2,
            ),
            dataclasses.replace(case, layer=twice),
        ),
    ]
    if ways is not None:
        own, other = ways
        change = LayerChange(
            what=_WAYS[other], case=case, changed=case, variant=own, changed_variant=other
        )
        cause = "the kernel that these layouts lead to does not suit these sizes"
        changes.insert(0, ("far below its roof", cause, change, case))
    for problem, cause, experiment, shown in changes:
        yield Hypothesis(
            problem=problem,
            symptom=symptom,
            evidence=evidence,
            cause=cause,
            experiment=experiment,
            next=layer_command(shown),
            parts=frozenset({where}),
            where=where,
            most_s=gap,
        )
