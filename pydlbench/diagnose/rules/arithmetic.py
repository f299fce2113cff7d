"""A step that computes in float32 what the hardware does faster in a narrower type."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from pydlbench.diagnose.commands import again
from pydlbench.diagnose.experiments import StepChange
from pydlbench.diagnose.finding import ALL, Hypothesis
from pydlbench.units import format_percent, format_seconds

if TYPE_CHECKING:
    from collections.abc import Iterator

    from pydlbench.diagnose.observations import Observations

__all__ = ["find"]

# Of the native sum.
_MOSTLY: Final = 0.3
_SETUP_S: Final = 15.0


def find(seen: Observations) -> Iterator[Hypothesis]:
    """Yield the step in bfloat16, where arithmetic bounds a good part of it."""
    case = seen.case
    if case.precision != "fp32" or case.on_gpu:
        return
    layers = seen.estimate.layers
    bound = sum(one.time.middle for one in layers if one.bound == "compute")
    total = seen.estimate.time.middle
    if not total or bound < _MOSTLY * total:
        return
    yield Hypothesis(
        problem="float32 arithmetic",
        symptom=f"arithmetic bounds {format_percent(bound / total)} of the native sum",
        evidence=(f"{format_seconds(bound)} in native layers whose roof is the compute peak",),
        cause="units for bfloat16 do more per cycle, and its tensors are half as large",
        experiment=StepChange(
            what="bf16 products", changes=(("precision", "bf16"),), checks=True, setup_s=_SETUP_S
        ),
        next=again(seen.changed(precision="bf16")),
        parts=frozenset({ALL}),
        most_s=bound,
    )
