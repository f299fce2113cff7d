"""What a log or a trace says: rounds of calls, each with what it computes and how long it took."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from collections.abc import Sequence

    from pydlbench.records.trace import ProgramCall


@dataclass(frozen=True, slots=True)
class Round:
    """One execution of what was recorded.

    Attributes:
        calls: in their order.
        seconds: of each; None where the file has no times.
        step_s: of the whole; None where nobody noted it, and then the sum of its calls stands for
            it.
    """

    calls: tuple[ProgramCall, ...]
    seconds: tuple[float, ...] | None
    step_s: float | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Recorded:
    """What a file says.

    Attributes:
        source: what wrote it: ``PyTorch profiler``, ``oneDNN's log``.
        rounds: at least one; several are executions of the same calls.
        named: whether its calls have names of modules.
        on_gpu: whether its times are those of a GPU's kernels.
        notes: what a reader has to know.
    """

    source: str
    rounds: tuple[Round, ...]
    named: bool = False
    on_gpu: bool = False
    notes: tuple[str, ...] = ()


#: An optimizer's factors change from step to step: ``0.00099`` of a call is not what it computes.
_FACTOR: Final = re.compile(r"(?<![\w.])-?\d+(?:\.\d+(?:e[-+]?\d+)?|e[-+]?\d+)")


def alike(rounds: Sequence[Round]) -> tuple[tuple[Round, ...], tuple[str, ...]]:
    """Return rounds of the same calls, and what has to be said of them.

    Executions that differ in their calls are taken as a single one: their sum.

    Args:
        rounds: at least one.
    """
    kept = [each for each in rounds if each.calls] or rounds[:1]
    calls = {tuple(_FACTOR.sub("x", call.signature) for call in each.calls) for each in kept}
    if len(calls) == 1:
        return tuple(kept), ()
    whole = Round(
        tuple(call for each in kept for call in each.calls),
        tuple(second for each in kept for second in each.seconds or ()),
        sum(each.step_s or 0.0 for each in kept) or None,
    )
    return (whole,), (f"{len(kept)} steps whose calls differ: what is shown is their sum",)
