"""A log or a trace, read: the time lines of its steps, with the calls of operators."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pydlbench.records.trace import ProgramCall
    from pydlbench.traces.timeline import StepTimeline


@dataclass(frozen=True, slots=True, kw_only=True)
class RecordedTrace:
    """A step that somebody recorded, with all of its executions.

    Attributes:
        source: what wrote the file: ``PyTorch profiler``, ``oneDNN's log``.
        timelines: of the steps, in order; at least one.
        timed: whether the file has times; without them activities take no time.
        on_gpu: whether another device than the host's CPU computed.
        host_times: whether times are those of the host in each call, although a device computed.
        device: name of the device as recorded; None if the file does not name it.
        outside_s: seconds of the device's activities outside of the steps.
        rank: number of the process in its job; None if the file does not tell it.
        world_size: number of processes of the job; None if the file does not tell it.
        notes: restrictions that a reader has to know.
    """

    source: str
    timelines: tuple[StepTimeline, ...]
    timed: bool = True
    on_gpu: bool = False
    host_times: bool = False
    device: str | None = None
    outside_s: float = 0.0
    rank: int | None = None
    world_size: int | None = None
    notes: tuple[str, ...] = ()

    @property
    def calls(self) -> tuple[ProgramCall, ...]:
        """The calls of operators in all steps, in order."""
        activities = (each for step in self.timelines for each in step.activities)
        origins = (each.origin for each in activities)
        return tuple({each.number: each.call for each in origins if each.call}.values())
