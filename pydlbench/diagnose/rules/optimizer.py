"""An optimizer that is slower than moving its tensors once."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from pydlbench.diagnose.commands import again
from pydlbench.diagnose.experiments import StepChange
from pydlbench.diagnose.finding import WORTH, Hypothesis
from pydlbench.units import format_percent, format_seconds

if TYPE_CHECKING:
    from collections.abc import Iterator

    from pydlbench.diagnose.observations import Observations

__all__ = ["find"]

# Of the step.
_LARGE: Final = 0.03


def find(seen: Observations) -> Iterator[Hypothesis]:
    """Yield the step without its updates, less what the native library needs for them."""
    model = seen.model
    if seen.case.phase != "training" or model.optimizer.kind == "none":
        return
    if "optimizer" in seen.native.incomplete:
        return  # nobody knows what of it has to be done
    pieces = seen.pieces("optimizer")
    native = seen.native.optimizer_s
    own = sum(one.count * one.seconds for one in pieces) if pieces else native
    if own < _LARGE * seen.step_s:
        return
    if pieces and own - native < WORTH * seen.step_s:
        return  # it is as fast as memory allows
    who = f"timed alone in {seen.case.framework}" if pieces else "in native kernels"
    yield Hypothesis(
        problem="slow optimizer",
        symptom=f"the updates ({model.optimizer.kind}) take {format_seconds(own)} {who}, "
        f"{format_percent(own / seen.step_s)} of the step",
        evidence=(f"native kernels need {format_seconds(native)} for the same updates",),
        cause="it goes over weights, gradients and velocities more often than once; a fused "
        "optimizer reads and writes each of them once",
        experiment=StepChange(
            what="no updates",
            changes=(("phase", "forward-backward"),),
            # A step without updates is one without L2 terms too: those are another rule's.
            both=(("decay", "0"),) if model.decays else (),
            kept_s=native,
            kept_how="the updates in native kernels",
        ),
        next=again(seen.changed(phase="forward-backward")),
        parts=frozenset({"optimizer"}),
        most_s=own,
    )
