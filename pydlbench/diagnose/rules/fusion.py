"""Pointwise layers bound by memory, where a fusing mode would keep values in registers."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from pydlbench.diagnose.commands import again
from pydlbench.diagnose.experiments import StepChange
from pydlbench.diagnose.finding import ALL, Hypothesis
from pydlbench.units import format_percent, format_seconds

if TYPE_CHECKING:
    from collections.abc import Iterator

    from pydlbench.diagnose.observations import Observations
    from pydlbench.endtoend import StepCase

__all__ = ["ONE_BY_ONE", "compiler_s", "compiling_mode", "find"]

#: What launch gaps and pointwise layers that are not joined have in common.
ONE_BY_ONE: Final = "operators run one by one"
# Of the step.
_LARGE: Final = 0.03
_MODES: Final = {"eager": "compiled", "graph": "xla"}


def compiling_mode(case: StepCase) -> str | None:
    """Return the mode that joins operators; None if the step runs in it."""
    return _MODES.get(str(case.mode))


def compiler_s(seen: Observations) -> float:
    """Return about how long a compiler takes for the step's model, in seconds."""
    return 20.0 + 0.3 * len(seen.model.nodes)


def find(seen: Observations) -> Iterator[Hypothesis]:
    """Yield the fusing mode where pointwise layers are a part of the step that matters."""
    mode = compiling_mode(seen.case)
    if mode is None:
        return
    seconds, how = _pointwise(seen)
    if seconds < _LARGE * seen.step_s:
        return
    yield Hypothesis(
        problem=ONE_BY_ONE,
        reason="pointwise layers bound by memory",
        symptom=f"{format_seconds(seconds)} of each step "
        f"({format_percent(seconds / seen.step_s)}) go into layers that hardly compute",
        evidence=(how,),
        cause="each of them reads its input from memory and writes it back; joined with the layer "
        "before, it would do neither",
        experiment=StepChange(
            what=mode, changes=(("mode", mode),), checks=True, setup_s=compiler_s(seen)
        ),
        next=again(seen.changed(mode=mode)),
        parts=frozenset({ALL}),
        most_s=seen.step_s,
    )


def _pointwise(seen: Observations) -> tuple[float, str]:
    own = [*seen.pieces("pointwise"), *seen.pieces("gradient sum")]
    if own:
        seconds = sum(one.count * one.seconds for one in own)
        return seconds, f"{len(own)} different ones, each timed alone in {seen.case.framework}"
    seconds = seen.native.of_pointwise(seen.model)
    return seconds, "native rows of the pointwise nodes, between hot and cold caches"
