"""Gaps between kernels: what starting an operator costs, whatever it computes."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from pydlbench.diagnose.commands import again
from pydlbench.diagnose.experiments import StepChange
from pydlbench.diagnose.finding import ALL, Hypothesis
from pydlbench.diagnose.rules.fusion import ONE_BY_ONE, compiler_s, compiling_mode
from pydlbench.units import format_percent, format_seconds

if TYPE_CHECKING:
    from collections.abc import Iterator

    from pydlbench.diagnose.observations import Observations

__all__ = ["find"]

# Of the step.
_LARGE: Final = 0.02


def find(seen: Observations) -> Iterator[Hypothesis]:
    """Yield a mode that joins operators, and a batch that makes each of them longer."""
    found = _dispatch(seen)
    if found is None or found[0] < _LARGE * seen.step_s:
        return
    seconds, how = found
    symptom = (
        f"{format_seconds(seconds)} of each step "
        f"({format_percent(seconds / seen.step_s)}) go into starting operators"
    )
    cause = "many operators are so small that starting them is a large part of their time"
    mode = compiling_mode(seen.case)
    if mode is not None:
        changes = (("mode", mode),)
        yield Hypothesis(
            problem=ONE_BY_ONE,
            symptom=symptom,
            evidence=(how,),
            reason="launch gaps",
            cause=cause,
            experiment=StepChange(
                what=mode, changes=changes, checks=True, setup_s=compiler_s(seen)
            ),
            next=again(seen.changed(mode=mode)),
            parts=frozenset({ALL}),
            most_s=seen.step_s,
        )
    batch = 2 * seen.model.batch
    yield Hypothesis(
        problem=ONE_BY_ONE,
        symptom=symptom,
        evidence=(how,),
        reason="launch gaps",
        cause=cause,
        experiment=StepChange(what=f"batch {batch}", changes=(("batch", batch),), images=2),
        next=again(seen.changed(batch=batch)),
        parts=frozenset({ALL}),
        most_s=seconds,
    )


def _dispatch(seen: Observations) -> tuple[float, str] | None:
    term = seen.term("dispatch")
    if term is not None:
        return term.seconds, f"cross-check: {term.how}"
    if seen.dispatch_s is None:
        return None
    operators = len(seen.plan.terms)
    each = format_seconds(seen.dispatch_s)
    return seen.dispatch_s * operators, f"{each} for a call that does nothing, times {operators}"
