"""The time line of a recorded step: what a device executed, and when the host launched it.

Times are in seconds from the beginning of the recording. Activities are kernels, copies, fills and
collectives. Streams may overlap, so the sum of all activities is at least the time in which the
device is busy, which is the length of their union.
"""

from __future__ import annotations

import bisect
import re
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final, NamedTuple

if TYPE_CHECKING:
    from pydlbench.records.trace import ProgramCall

KERNEL: Final = "kernel"
COPY: Final = "copy"
FILL: Final = "fill"
COLLECTIVE: Final = "collective"

#: Causes of idle time of the device.
NOT_LAUNCHED: Final = "the host had not launched yet"
SYNCHRONISED: Final = "the host waited for the device"
LAUNCHED: Final = "the next kernel was launched already"
BEFORE_COLLECTIVE: Final = "communication: the next collective was launched already"
NO_LAUNCH: Final = "not known: the launch was not recorded"
BETWEEN_CALLS: Final = "between calls"
#: Shapes in signatures of calls, and types in those of oneDNN.
_SHAPES: Final = re.compile(r"(?:\w\[|\"shape\":\[)([0-9, ]*)\]")
_TYPES: Final = re.compile(r"[:_]((?:bf|f|s|u)\d\w*):")


class TimeSpan(NamedTuple):
    """A time from ``begin`` to ``end``, in seconds."""

    begin: float
    end: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Wait:
    """A call of the host that returns when the device has finished.

    Attributes:
        name: of the function: ``cudaStreamSynchronize``.
        operator: in which it was called; empty outside of operators.
        interval: of the host in it.
    """

    name: str
    operator: str
    interval: TimeSpan


@dataclass(frozen=True, slots=True, kw_only=True)
class Origin:
    """What launched an activity.

    Attributes:
        number: of the operator's call; activities of one call share it.
        call: the operator's call; None if the activity belongs to no operator whose call can be
            read, and is known by its own name.
        direction: ``forward``, ``loss``, ``backward`` or ``optimizer``.
        modules: names of the modules around it, the outermost first.
        shapes: of the operands, as text.
        moved: bytes of the distinct tensors that a compiler's kernel reads and writes; None if
            they are not known.
    """

    number: int
    call: ProgramCall | None
    direction: str = "forward"
    modules: tuple[str, ...] = ()
    shapes: str = ""
    moved: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Activity:
    """A kernel, copy, fill or collective on a device; on a CPU an operator's call.

    Attributes:
        name: of the kernel.
        kind: :data:`KERNEL`, :data:`COPY`, :data:`FILL` or :data:`COLLECTIVE`.
        interval: of its execution.
        seconds: of its own; less than the interval where others ran inside it on a CPU.
        launch: of the host's call that put it into the queue; None if that was not recorded.
        origin: what launched it.
        bytes: that a copy or fill moves; None if not recorded.
        group: ranks that take part in a collective, as the file has them.
        threads: blocks and threads of a kernel as text; empty if they were not recorded.
        replayed: whether one launch replayed it in a graph with others.
    """

    name: str
    kind: str
    interval: TimeSpan
    seconds: float
    launch: TimeSpan | None
    origin: Origin
    bytes: int | None = None
    group: str = ""
    threads: str = ""
    replayed: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class StepTimeline:
    """One step.

    Attributes:
        activities: of the step, in order of time.
        begin: when the step began on the device: at the end of the step before it, or with its
            first activity.
        host_s: of the step on the host; None if nobody noted it.
        waits: calls in which the host waited for the device.
        busy: when the device executed anything, of whichever step; spans that do not overlap.
    """

    activities: tuple[Activity, ...]
    begin: float
    host_s: float | None = None
    waits: tuple[Wait, ...] = ()
    busy: tuple[TimeSpan, ...] = ()

    @property
    def end(self) -> float:
        """When its last activity ended."""
        last = max((each.interval.end for each in self.activities), default=self.begin)
        return max(self.begin, last)

    @property
    def span_s(self) -> float:
        """Seconds from its begin to its end."""
        return self.end - self.begin

    @property
    def kernel_s(self) -> float:
        """Sum of all activities."""
        return sum(activity.seconds for activity in self.activities)

    @property
    def busy_s(self) -> float:
        """Seconds in which at least one activity ran, of this step or of a neighbour."""
        return self._busy_between(self.begin, self.end)

    def _busy_between(self, begin: float, end: float) -> float:
        """Return the seconds between two moments in which the device executed anything."""
        first = bisect.bisect_right(self.busy, begin, key=lambda span: span.end)
        last = bisect.bisect_left(self.busy, end, key=lambda span: span.begin)
        return sum(min(span.end, end) - max(span.begin, begin) for span in self.busy[first:last])

    def exposed_s(self, kind: str) -> float:
        """Return the seconds in which only activities of a kind ran, beside no computation.

        A copy beside a collective does not count as exposed; a collective beside a copy does.

        Args:
            kind: :data:`COPY` or :data:`COLLECTIVE`.
        """
        hiding = (KERNEL, FILL) if kind == COLLECTIVE else (KERNEL, FILL, COLLECTIVE)
        others = self._clipped(each for each in self.activities if each.kind in hiding)
        own = self._clipped(each for each in self.activities if each.kind == kind)
        return length([*own, *others]) - length(others)

    def idle(self) -> dict[str, float]:
        """Return the seconds in which the device was idle, by cause.

        Before an activity the device waits for the host until the host has launched it. That time
        counts as a synchronisation where the host waited for the device between the launch before
        and this one: it could not launch ahead. What is left after the launch is the device's own.
        """
        causes: dict[str, float] = {}
        waits = sorted(self.waits, key=lambda wait: wait.interval)
        begins = [wait.interval.begin for wait in waits]
        now, launched_before = self.begin, float("-inf")
        for activity in sorted(self.activities, key=lambda each: each.interval):
            begin, end = activity.interval
            launch = activity.launch
            if begin > now:
                if launch is None:
                    _add(causes, NO_LAUNCH, self._idle_between(now, begin))
                else:
                    ready = min(max(launch.end, now), begin)
                    first = bisect.bisect_left(begins, launched_before)
                    where = NOT_LAUNCHED
                    if first < len(waits) and begins[first] < launch.begin:
                        wait = waits[first]
                        inside = f" in {wait.operator}" if wait.operator else ""
                        where = f"{SYNCHRONISED}: {wait.name}{inside}"
                    _add(causes, where, self._idle_between(now, ready))
                    rest = BEFORE_COLLECTIVE if activity.kind == COLLECTIVE else LAUNCHED
                    _add(causes, rest, self._idle_between(ready, begin))
            if launch is not None:
                launched_before = max(launched_before, launch.begin)
            now = max(now, end)
        return causes

    def largest_gap(self) -> tuple[float, str, str]:
        """Return the longest idle time between two activities: seconds, and the names of both."""
        gap = (0.0, "", "")
        before: Activity | None = None
        for activity in self.activities:
            if before is not None:
                idle_s = self._idle_between(before.interval.end, activity.interval.begin)
                if idle_s > gap[0]:
                    gap = (idle_s, before.name, activity.name)
            if before is None or activity.interval.end > before.interval.end:
                before = activity
        return gap

    def _idle_between(self, begin: float, end: float) -> float:
        return 0.0 if end <= begin else end - begin - self._busy_between(begin, end)

    def _clipped(self, activities: Iterable[Activity]) -> list[TimeSpan]:
        """Return the intervals of activities, without what lies before the step's begin."""
        return [
            TimeSpan(max(each.interval.begin, self.begin), each.interval.end)
            for each in activities
            if each.interval.end > self.begin
        ]


def _add(causes: dict[str, float], cause: str, seconds: float) -> None:
    if seconds > 0:
        causes[cause] = causes.get(cause, 0.0) + seconds


def sequence_of_calls(calls: Sequence[ProgramCall], seconds: Sequence[float]) -> StepTimeline:
    """Return the time line of calls that follow each other, as a log lists them.

    Args:
        calls: in their order.
        seconds: of each.
    """
    activities, now = [], 0.0
    for number, (call, own_s) in enumerate(zip(calls, seconds, strict=True)):
        modules = (call.module,) if call.module != call.direction else ()
        activities.append(
            Activity(
                name=call.operator,
                kind=KERNEL,
                interval=TimeSpan(now, now + own_s),
                seconds=own_s,
                launch=None,
                origin=Origin(
                    number=number,
                    call=call,
                    direction=call.direction,
                    modules=modules,
                    shapes=shapes_of(call),
                ),
            )
        )
        now += own_s
    return StepTimeline(activities=tuple(activities), begin=0.0)


def shapes_of(call: ProgramCall) -> str:
    """Return the shapes of a call's operands as text, by its signature: ``8x10 8``.

    Calls of oneDNN have their types before the problem: ``f32 64x128:128x32``.
    """
    if call.signature.startswith("onednn:"):
        types = dict.fromkeys(_TYPES.findall(call.signature))
        return " ".join((*types, call.signature.rpartition(",")[2]))
    return " ".join(
        shape.replace(", ", "x").replace(",", "x") for shape in _SHAPES.findall(call.signature)
    )


def merge(intervals: Iterable[TimeSpan]) -> Iterator[TimeSpan]:
    """Yield the union of intervals as intervals that do not overlap, in order of time."""
    current: TimeSpan | None = None
    for each in sorted(intervals):
        if current is None or each.begin > current.end:
            if current is not None:
                yield current
            current = each
        elif each.end > current.end:
            current = TimeSpan(current.begin, each.end)
    if current is not None:
        yield current


def length(intervals: Iterable[TimeSpan]) -> float:
    """Return the length of the union of intervals, in seconds."""
    return sum(each.end - each.begin for each in merge(intervals))


def split_steps(
    activities: Sequence[Sequence[Activity]],
    hosts_s: Sequence[float | None],
    waits: Sequence[Sequence[Wait]],
) -> tuple[StepTimeline, ...]:
    """Return steps that follow each other on a device: each begins where the one before ends.

    Args:
        activities: of each step.
        hosts_s: seconds of each step on the host.
        waits: of the host in each step.
    """
    busy = tuple(merge(each.interval for own in activities for each in own))
    steps: list[StepTimeline] = []
    end: float | None = None
    for own, host_s, waited in zip(activities, hosts_s, waits, strict=True):
        if not own:
            continue
        ordered = tuple(sorted(own, key=lambda each: each.interval))
        step = StepTimeline(
            activities=ordered,
            begin=ordered[0].interval.begin if end is None else end,
            host_s=host_s,
            waits=tuple(waited),
            busy=busy,
        )
        # A step that ends within the one before it takes no time of its own.
        end = step.end
        steps.append(step)
    return tuple(steps)


# -----------------------------------------------------------------------------
# A log or a trace, read: the time lines of its steps, with the calls of operators.


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
