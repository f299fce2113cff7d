"""L2 terms in the loss: sums of squares whose value nobody looks at."""

from __future__ import annotations

from typing import TYPE_CHECKING

from pydlbench.diagnose.commands import again
from pydlbench.diagnose.experiments import StepChange
from pydlbench.diagnose.finding import WORTH, Hypothesis
from pydlbench.units import format_percent, format_seconds

if TYPE_CHECKING:
    from collections.abc import Iterator

    from pydlbench.diagnose.observations import Observations

__all__ = ["find"]


def find(seen: Observations) -> Iterator[Hypothesis]:
    """Yield the step without L2 terms, where they are a part that matters."""
    model = seen.model
    if seen.case.phase != "training" or not model.decays:
        return
    pieces = seen.pieces("loss")
    own = sum(one.count * one.seconds for one in pieces) if pieces else seen.native.loss_s
    if own < WORTH * seen.step_s:
        return
    who = f"timed alone in {seen.case.framework}" if pieces else "in native kernels"
    yield Hypothesis(
        problem="L2 terms in the loss",
        symptom=f"the loss with its {len(model.decays)} L2 terms takes {format_seconds(own)} "
        f"{who}, {format_percent(own / seen.step_s)} of the step",
        evidence=(),
        cause="each term reads its weights to sum squares, and once more for its gradient; an "
        "optimizer that takes the decay itself reads them anyway",
        experiment=StepChange(
            what="no L2 terms in the loss (weight_decay of the optimizer instead)",
            options=(("decay", "0"),),
        ),
        next=again(seen.changed(options={**seen.case.options, "decay": "0"})),
        parts=frozenset({"loss"}),
        most_s=own,
    )
