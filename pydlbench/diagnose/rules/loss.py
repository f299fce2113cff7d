"""A loss that takes a part of the step that it should not."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from pydlbench.diagnose.commands import layer_command
from pydlbench.diagnose.experiments import Contest
from pydlbench.diagnose.finding import Hypothesis
from pydlbench.models.work import LOSS
from pydlbench.units import format_percent, format_seconds

if TYPE_CHECKING:
    from collections.abc import Iterator

    from pydlbench.diagnose.observations import Observations

__all__ = ["find"]

# Of the step.
_LARGE: Final = 0.03


def find(seen: Observations) -> Iterator[Hypothesis]:
    """Yield a contest with the native library on the loss itself."""
    if seen.model.decays:
        return  # see the rule of L2 terms
    pieces = seen.pieces(LOSS)
    own = sum(one.count * one.seconds for one in pieces) if pieces else seen.native.loss_s
    if own < _LARGE * seen.step_s:
        return
    for term in seen.plan.terms:
        work = term.work
        if work.node != LOSS:
            continue
        case = seen.framework_case(work)
        yield Hypothesis(
            problem="slow loss",
            symptom=f"the loss takes {format_seconds(own)}, "
            f"{format_percent(own / seen.step_s)} of the step",
            evidence=(),
            cause="the framework's loss is slower than one kernel that does it all",
            experiment=Contest(case=case),
            next=layer_command(case),
            parts=frozenset({f"{LOSS} {work.pass_}"}),
            where=f"{LOSS} {work.pass_}",
            most_s=own,
        )
