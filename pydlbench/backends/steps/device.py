"""Steps and their calls on a GPU: device time and host time of each.

A call is launched several times behind the native sampler's gate, as native kernels are. Two events
enclose the device's seconds of a call with the gap to the next one; the host's clock measures
meanwhile how long enqueueing takes. A step is timed in two independent ways.

Independent of the framework, which provides a runtime; tests provide an invented device.

The host enqueues work, and the device executes its queue. A profile has both on one time axis: the
host's operators and launches, and the device's kernels, each with the number of its launch. The
device time of a call is the time of its kernels; the host's time to enqueue them is kept beside it.
Until the host has launched the next kernel, an idle device waits for the host, either in a call
(dispatch, launch) or between two calls (Python, modules, autograd). Idle time after the launch is
caused by the device itself.

A step begins when the last kernel of the previous step ends, and ends with its own last kernel, as
in a loop of steps.
"""

import bisect
import itertools
import math
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import Any, Final, NamedTuple, Protocol

from pydlbench.backends.frameworks.backend import FrameworkBackend
from pydlbench.backends.frameworks.device_clock import (
    DeviceRuntime,
    DeviceWork,
    StepRuntime,
    chunk_of,
    is_device_lost,
    nvtx_range,
)
from pydlbench.backends.host_clock import HostClock, Operator, Watcher, take_watched
from pydlbench.backends.steps.trace import CallEvent, StepTrace, TracedSteps, align
from pydlbench.errors import PrimitiveError, UnsupportedError
from pydlbench.records.step import StepFacts, StepKernel
from pydlbench.records.trace import OperatorsFacts
from pydlbench.timing.chunk import Chunk, ChunkRequest
from pydlbench.units import some_names

#: The ways in which a step on a GPU is timed: by the host, which waits for the device after the
#: last of several steps; and replayed from a graph, which is captured at the first request.
WAYS: Final = ("host-sync", "cuda-graph")

# Calls are launched between two events until they take this long: long beside the microsecond of an
# event itself. No more calls than the queue has room for.
_SPAN_S: Final = 200e-6
_MAX_CALLS_PER_SPAN: Final = 20
_MAX_REASON_LETTERS: Final = 160


class DeviceCall(Protocol):
    """A call with its operands in the device's memory."""

    def call(self) -> Any:
        """Make the call; returns when it is enqueued."""

    def settle(self) -> None:
        """Restore the operands and caches that the call is to find."""


class DeviceOperators:
    """Calls that are ready to be timed; see ``backends.steps.timed_calls.OperatorsKernel``.

    A chunk has the device's seconds of each call and round, and the host's seconds as
    ``enqueue_s``. With ``inner`` above one there are :data:`PARTS` of each call: the seconds of its
    kernels when it follows another call, and when it is repeated (both by the framework's profiler,
    as in a traced step); and the seconds between events, which include the gap between two
    launches.

    Args:
        calls: calls in the order of the facts' ``names``.
        facts: facts of the calls.
        runtime: the framework's GPU runtime.
        guard: makes the context in which the calls are made.
        watcher: reads the GPU during the samples; None if nothing is read.
    """

    #: Number of times that a chunk has of each call.
    PARTS: Final = 3

    def __init__(
        self,
        calls: Sequence[DeviceCall],
        facts: OperatorsFacts,
        runtime: StepRuntime,
        guard: Callable[[], AbstractContextManager[Any]],
        watcher: Watcher | None = None,
    ) -> None:
        self.facts = facts
        self._runtime, self._guard, self._watcher = runtime, guard, watcher
        self._timers = [_Timer(call, runtime) for call in calls]
        self._in_profile = [
            pair for call in calls for pair in ((call.settle, call.call), (_nothing, call.call))
        ]

    def sample(self, request: ChunkRequest) -> Chunk:
        """Time the requested rounds, after the untimed ones."""
        with nvtx_range("calls alone"):
            return take_watched(lambda: self._timed(request), self._guard, self._watcher)

    def _timed(self, request: ChunkRequest) -> Chunk:
        begin = self._runtime.now()
        for _ in range(request.untimed):
            for timer in self._timers:
                timer.time()
        seconds: list[float] = []
        enqueue_s: list[float] = []
        clock_hz: list[float] = []
        for _ in range(request.samples):
            times = [timer.time() for timer in self._timers]
            enqueue_s += (time.host_s for time in times)
            clock_hz += (clock for time in times for clock in time.clock_hz)
            rows = [[time.device_s] for time in times]
            if request.inner > 1:
                kernels = self._runtime.kernel_seconds(self._in_profile)
                rows = [
                    [*kernels[2 * place : 2 * place + 2], *row] for place, row in enumerate(rows)
                ]
            seconds += itertools.chain.from_iterable(rows)
        return Chunk(
            seconds=tuple(seconds),
            enqueue_s=tuple(enqueue_s),
            clock_hz=tuple(clock_hz),
            wall_s=self._runtime.now() - begin,
        )


def _nothing() -> None:
    """Do nothing."""


def _captured(call: Callable[[], Any], runtime: DeviceRuntime) -> DeviceWork:
    """Return a graph of a call, or of a step.

    Raises:
        UnsupportedError: the call cannot be captured; the message has the reason.
    """
    try:
        return runtime.graph_work(call, 1)
    except Exception as error:  # capturing raises anything that the call raises
        if is_device_lost(error):
            raise
        raise UnsupportedError(_reason(error)) from error


def kernels_of(
    calls: Mapping[str, DeviceCall], runtime: DeviceRuntime
) -> tuple[dict[str, tuple[str, ...]], list[str]]:
    """Return the names of the kernels that each call launches, and notes on calls without names.

    Args:
        calls: calls by signature. Each is captured into a graph, so it must be settled before it
            is timed.
        runtime: the framework's GPU runtime.
    """
    kernels: dict[str, tuple[str, ...]] = {}
    uncaptured: dict[str, dict[str, None]] = {}
    for name, call in calls.items():
        try:
            graph = _captured(call.call, runtime)
        except UnsupportedError as error:
            uncaptured.setdefault(str(error), {})[name.partition("(")[0]] = None
            continue
        if names := tuple(str(kernel["name"]) for kernel in graph.kernels()):
            kernels[name] = names
    return kernels, [
        f"{some_names(list(names))} cannot be captured into a graph: {why}"
        for why, names in uncaptured.items()
    ]


def refused_calls(calls: Mapping[str, DeviceCall], runtime: DeviceRuntime) -> dict[str, str]:
    """Return the reasons of calls that cannot be timed alone; each call is tried by itself.

    A call that waits for the device, for example, never returns while the gate is closed.

    Args:
        calls: calls by signature, which are executed a few times.
        runtime: the framework's GPU runtime.
    """
    refused: dict[str, str] = {}
    for name, call in calls.items():
        try:
            _Timer(call, runtime).time()
        except Exception as error:  # calls raise anything
            if is_device_lost(error):
                raise
            refused[name] = _reason(error)
    return refused


def _reason(error: Exception) -> str:
    return " ".join(str(error).split())[:_MAX_REASON_LETTERS]


class _Time(NamedTuple):
    """Seconds of the device and of the host, and the device's clocks."""

    device_s: float
    host_s: float
    clock_hz: Sequence[float]


class _Timer:
    """Times one call; the first time determines how often it is launched between two events."""

    def __init__(self, call: DeviceCall, runtime: DeviceRuntime) -> None:
        self._runtime, self._call, self._settle = runtime, call.call, call.settle
        self._sampler: DeviceWork | None = None
        self._inner = 0

    def time(self) -> _Time:
        """Return the times of one execution."""
        if self._sampler is None:
            self._sampler = self._runtime.call_work(self._call)
        self._settle()
        self._runtime.wait()
        raw = self._sampler.sample(1, self._inner or 1, 0)
        device_s, host_s = float(raw["seconds"][0]), float(raw["enqueue_s"][0])
        if not self._inner:
            fitting = math.ceil(_SPAN_S / max(device_s, 1e-9))
            self._inner = min(_MAX_CALLS_PER_SPAN, fitting)
        return _Time(device_s, host_s, raw["clock_hz"].tolist())


class StepClock(HostClock):
    """Times a step on a GPU in one of the :data:`WAYS`, which the request names.

    Args:
        operator: the step.
        runtime: the framework's GPU runtime.
        cpus: CPUs that the process is pinned to.
        guard: makes the context in which the step is run.
        watcher: reads the GPU during the samples; None if nothing is read.
    """

    def __init__(
        self,
        operator: Operator,
        runtime: StepRuntime,
        cpus: Sequence[int],
        guard: Callable[[], AbstractContextManager[Any]],
        watcher: Watcher | None = None,
    ) -> None:
        super().__init__(operator, cpus, guard, watcher)
        self._call, self._device = operator.call, runtime
        self._graph: DeviceWork | None = None

    def time_samples(self, request: ChunkRequest) -> Chunk:
        """Time the step as :meth:`sample` does, within the guard.

        Raises:
            UnsupportedError: there is no such way, or the step cannot be captured into a graph.
        """
        with nvtx_range("step"):
            return self._timed(request)

    def _timed(self, request: ChunkRequest) -> Chunk:
        match request.timing or WAYS[0]:
            case "host-sync":
                return HostClock.time_samples(self, request)
            case "cuda-graph":
                self._graph = self._graph or _captured(self._call, self._device)
                raw = self._graph.sample(request.samples, request.inner, request.untimed)
                return chunk_of(raw)
        raise UnsupportedError(f"a step is not timed by {request.timing} here")


def runtime_of(backend: FrameworkBackend) -> StepRuntime:
    """Return the runtime of a backend on a GPU.

    Raises:
        UnsupportedError: the backend has no runtime that offers events and graphs.
    """
    if backend.runtime is None:
        raise UnsupportedError(
            f"{backend.name}: calls on a GPU are timed in PyTorch only; nearest: --framework torch"
        )
    return backend.runtime


def step_kernel(
    backend: FrameworkBackend,
    operator: Operator,
    guard: Callable[[], AbstractContextManager[Any]],
    facts: StepFacts,
    traced: Callable[[], TracedSteps],
) -> StepKernel:
    """Return a step that is ready to be timed: by the host's clock, on a GPU in other ways, too.

    Args:
        backend: the worker's backend.
        operator: the step.
        guard: makes the context in which the step is run.
        facts: facts of the step.
        traced: records the step, and returns the traced steps.
    """
    if backend.runtime is None:
        return StepKernel(HostClock(operator, backend.cpus, guard, backend.watcher), facts, traced)
    clock = StepClock(operator, backend.runtime, backend.cpus, guard, backend.watcher)
    return StepKernel(clock, facts, traced)


#: Parts of a step on a GPU besides the kernels of its calls, in the order of ``gaps_s``.
IDLE_IN_CALLS: Final = "idle: the host enqueues a call"
IDLE_BETWEEN: Final = "idle: the host is between calls"
IDLE_QUEUED: Final = "idle: the next kernel was launched"
NO_CALL: Final = "kernels of no call"
GAPS: Final = (IDLE_IN_CALLS, IDLE_BETWEEN, IDLE_QUEUED, NO_CALL)


class Span(NamedTuple):
    """An interval in nanoseconds of the profile's time axis."""

    begin_ns: int
    end_ns: int


@dataclass(frozen=True, slots=True, kw_only=True)
class DeviceProfile:
    """The profile of a step that follows an untimed one.

    Attributes:
        step: interval from the start of the step's first call on the host to the end of its last.
        operators: the host's events in all threads: the backward pass may have its own thread.
        launches: the host's calls that enqueue work on the device, by number.
        kernels: the device's kernels and copies, each with the number of its launch.
    """

    step: Span
    operators: Sequence[CallEvent]
    launches: Mapping[int, Span]
    kernels: Sequence[tuple[int, Span]]


def trace_of(
    profile: DeviceProfile,
    names: Sequence[str],
    contains: Callable[[str], bool],
    describe: Callable[[int], str] = str,
    heads: Mapping[str, str] | None = None,
) -> StepTrace:
    """Return the device time of each call of a step, its gaps, and the host's time in each call.

    Calls and gaps sum to the step.

    Args:
        profile: profile of the step.
        names: see :func:`~pydlbench.backends.steps.trace.align`.
        contains: see :func:`~pydlbench.backends.steps.trace.align`.
        describe: see :func:`~pydlbench.backends.steps.trace.align`.
        heads: see :func:`~pydlbench.backends.steps.trace.align`.

    Raises:
        PrimitiveError: the profile has other calls, or no kernels.
    """
    step = profile.step
    host = align(
        names,
        [event for event in profile.operators if step.begin_ns <= event.start_ns <= step.end_ns],
        contains,
        describe,
        heads,
    )
    spans = [Span(event.start_ns, event.end_ns) for event in host.events]
    return device_times(profile, spans, host.seconds)


def device_times(
    profile: DeviceProfile,
    spans: Sequence[Span],
    host_s: Sequence[float],
    owners: Mapping[int, int] | None = None,
) -> StepTrace:
    """Return the device time of each call of a step, and its gaps.

    Args:
        profile: profile of the step; its ``operators`` do not matter.
        spans: interval of each call on the host; empty for a call that is not in the profile.
        host_s: the host's seconds in each call.
        owners: places of calls by number of launch, where the profile names them; else a kernel is
            of the call that the host was in when it launched the kernel.

    Raises:
        PrimitiveError: the profile has no kernels.
    """
    step = profile.step
    launched: list[tuple[Span, Span, int]] = []
    before_ns = None
    for number, span in profile.kernels:
        launch = profile.launches.get(number)
        if launch is None:
            continue
        if launch.begin_ns < step.begin_ns:
            before_ns = span.end_ns if before_ns is None else max(before_ns, span.end_ns)
        elif launch.begin_ns <= step.end_ns:
            launched.append((span, launch, number))
    if not launched or before_ns is None:
        raise PrimitiveError(
            "the profile has no kernels of the device: reading them (CUPTI) may not be permitted "
            "here"
        )
    calls = _CallSpans(spans)
    calls_ns = [0] * len(spans)
    gaps_ns = dict.fromkeys(GAPS, 0)
    now_ns = before_ns
    for span, launch, number in sorted(launched):
        if span.end_ns <= now_ns:  # entirely beside another kernel
            continue
        if span.begin_ns > now_ns:
            launched_ns = min(max(launch.end_ns, now_ns), span.begin_ns)
            within_ns = calls.covered(now_ns, launched_ns)
            gaps_ns[IDLE_IN_CALLS] += within_ns
            gaps_ns[IDLE_BETWEEN] += launched_ns - now_ns - within_ns
            gaps_ns[IDLE_QUEUED] += span.begin_ns - launched_ns
            now_ns = span.begin_ns
        place = calls.around(launch.begin_ns) if owners is None else owners.get(number)
        if place is None:
            gaps_ns[NO_CALL] += span.end_ns - now_ns
        else:
            calls_ns[place] += span.end_ns - now_ns
        now_ns = span.end_ns
    return StepTrace(
        step_s=(now_ns - before_ns) / 1e9,
        calls_s=[call_ns / 1e9 for call_ns in calls_ns],
        gaps_s=[gaps_ns[name] / 1e9 for name in GAPS],
        host_s=host_s,
    )


def fit_to_step(
    calls_s: Sequence[float], gaps_s: Sequence[float], step_s: float
) -> tuple[list[float], list[float]]:
    """Return the calls and gaps of a step without a trace, estimated from a traced one.

    A trace slows the host down, which leaves the device idle for longer; kernels take the same
    time. The rest of the step is idle time, split as in the trace. If the kernels leave no rest,
    they are scaled to the step.

    Args:
        calls_s: seconds of the kernels of each call in the traced step.
        gaps_s: seconds of the traced step's other parts, in the order of :data:`GAPS`.
        step_s: seconds of the step without a trace.
    """
    *idle_s, others_s = gaps_s
    busy_s, waiting_s = sum(calls_s) + others_s, sum(idle_s)
    idle_scale = (step_s - busy_s) / waiting_s if waiting_s and busy_s < step_s else 0.0
    scale = step_s / (busy_s + idle_scale * waiting_s)
    kernels_s = [scale * kernel_s for kernel_s in (*calls_s, others_s)]
    return kernels_s[:-1], [*(idle_scale * gap_s for gap_s in idle_s), kernels_s[-1]]


class _CallSpans:
    """The call that the host was in at each moment.

    Args:
        spans: intervals of the calls, in their order; one may lie within another.
    """

    def __init__(self, spans: Sequence[Span]) -> None:
        # Between two neighbouring bounds the innermost call is the same: the one that began last.
        self._bounds = sorted({bound for span in spans for bound in span})
        self._places: list[int | None] = [None] * len(self._bounds)
        outermost_first = sorted(
            range(len(spans)), key=lambda place: (spans[place].begin_ns, -spans[place].end_ns)
        )
        for place in outermost_first:
            begin = bisect.bisect_left(self._bounds, spans[place].begin_ns)
            end = bisect.bisect_left(self._bounds, spans[place].end_ns)
            self._places[begin:end] = [place] * (end - begin)

    def around(self, moment_ns: int) -> int | None:
        """Return the index of the innermost call at a moment; None between calls."""
        number = bisect.bisect_right(self._bounds, moment_ns) - 1
        return self._places[number] if number >= 0 else None

    def covered(self, begin_ns: int, end_ns: int) -> int:
        """Return the nanoseconds between two moments that the host spent in calls."""
        first = bisect.bisect_right(self._bounds, begin_ns)
        last = bisect.bisect_left(self._bounds, end_ns)
        moments = [begin_ns, *self._bounds[first:last], end_ns]
        return sum(
            later - earlier
            for earlier, later in itertools.pairwise(moments)
            if self.around(earlier) is not None
        )
