"""A log or a trace, read: steps of calls with their times, and the time line of the device."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from pydlbench.traces.timeline import StepTimeline, sequence_of_calls

if TYPE_CHECKING:
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
class RecordedTrace:
    """A step that somebody recorded, with all of its executions.

    Attributes:
        source: what wrote the file: ``PyTorch profiler``, ``oneDNN's log``.
        rounds: at least one; several are executions of the same calls.
        timelines: of the steps, in order; empty of a file that lists calls only.
        named: whether its calls have names of modules.
        on_gpu: whether another device than the host's CPU computed.
        host_times: whether times are those of the host in each call, although a device computed.
        device: name of the device as recorded; None if the file does not name it.
        outside_s: seconds of the device's activities outside of the steps.
        rank: number of the process in its job; None if the file does not tell it.
        world_size: number of processes of the job; likewise.
        notes: restrictions that a reader has to know.
    """

    source: str
    rounds: tuple[Round, ...]
    timelines: tuple[StepTimeline, ...] = ()
    named: bool = False
    on_gpu: bool = False
    host_times: bool = False
    device: str | None = None
    outside_s: float = 0.0
    rank: int | None = None
    world_size: int | None = None
    notes: tuple[str, ...] = ()

    @property
    def timed(self) -> bool:
        """Whether the file has times."""
        return bool(self.timelines) or self.rounds[0].seconds is not None

    @property
    def steps(self) -> tuple[StepTimeline, ...]:
        """The time lines of the steps; of listed calls one after the other, without times too."""
        if self.timelines:
            return self.timelines
        return tuple(
            sequence_of_calls(each.calls, each.seconds or [0.0] * len(each.calls))
            for each in self.rounds
        )


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
