"""Steps and their calls on a GPU: what the device needs for each, and what the host.

A call is launched several times behind the native sampler's gate, as native kernels are: between
two events lie the device's seconds of a call, the gap to the next one included, and the host's
clock tells meanwhile what enqueueing one takes. A step is timed in two ways, of which none is
computed from the other.

Knows no framework: what it needs of one comes as a runtime, and tests put in a device of their own.
"""

from __future__ import annotations

import itertools
import math
from typing import TYPE_CHECKING, Any, Final, NamedTuple, Protocol

from pydlbench.backends.frameworks.device_clock import chunk_of, is_lost, marked
from pydlbench.backends.host_clock import HostClock, watched
from pydlbench.errors import UnsupportedError
from pydlbench.records.step import StepKernel
from pydlbench.timing.chunk import Chunk, Request
from pydlbench.units import some_names

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence
    from contextlib import AbstractContextManager

    from pydlbench.backends.frameworks.backend import FrameworkBackend
    from pydlbench.backends.frameworks.device_clock import DeviceRuntime, DeviceWork, StepRuntime
    from pydlbench.backends.host_clock import Operator, Watcher
    from pydlbench.backends.steps.trace import TracedSteps
    from pydlbench.records.operator import OperatorsFacts
    from pydlbench.records.step import StepFacts

#: The ways in which a step on a GPU is timed: by the host, which waits for the device behind the
#: last of several; and replayed from a graph, which is captured when it is first asked for.
WAYS: Final = ("host-sync", "cuda-graph")

# What is timed between two events takes about so long, in calls of one to so many: an event's own
# microsecond is little beside it, and the queue has room for all of them.
_SPAN_S: Final = 200e-6
_MOST: Final = 20
_REASON: Final = 160  # letters


class DeviceCall(Protocol):
    """A call with its operands in the device's memory."""

    def call(self) -> Any:
        """Make it; returns when it is enqueued."""

    def settle(self) -> None:
        """Bring operands and caches into the state that it is to find."""


class DeviceOperators:
    """Calls that are ready to be timed; see ``backends.steps.timed_calls.OperatorsKernel``.

    A chunk has the device's seconds of each call and round, and beside them the host's. With
    ``inner`` above one there are :data:`PARTS` of each call: the seconds of its kernels by the
    framework's profiler, as a traced step has them, behind another call and once more; then its own
    in a row, which have the gap between two launches in them.

    Args:
        calls: in the order of the facts' ``names``.
        facts: what is known of them.
        runtime: of the framework.
        guard: makes the context in which they are to be called.
        watcher: reads the GPU meanwhile; None where nobody does.
    """

    #: Times of a call.
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
        self._timers = [_Timer(each, runtime) for each in calls]
        self._in_profile = [
            pair for each in calls for pair in ((each.settle, each.call), (_nothing, each.call))
        ]

    def sample(self, request: Request) -> Chunk:
        """Time the requested rounds, after those that are not timed."""
        with marked("calls alone"):
            return watched(lambda: self._timed(request), self._guard, self._watcher)

    def _timed(self, request: Request) -> Chunk:
        begin = self._runtime.now()
        for _ in range(request.untimed):
            for each in self._timers:
                each.time()
        seconds: list[float] = []
        enqueue_s: list[float] = []
        clock_hz: list[float] = []
        for _ in range(request.samples):
            times = [each.time() for each in self._timers]
            enqueue_s += (time.host_s for time in times)
            clock_hz += (each for time in times for each in time.clock_hz)
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
    """Leave everything as it is."""


def _captured(call: Callable[[], Any], runtime: DeviceRuntime) -> DeviceWork:
    """Return a graph of a call, or of a step.

    Raises:
        UnsupportedError: it cannot be captured; says why.
    """
    try:
        return runtime.captured(call, 1)
    except Exception as error:  # capturing raises what the call's code raises then
        if is_lost(error):
            raise
        raise UnsupportedError(" ".join(str(error).split())[:_REASON]) from error


def kernels_of(
    calls: Mapping[str, DeviceCall], runtime: DeviceRuntime
) -> tuple[dict[str, tuple[str, ...]], list[str]]:
    """Return the names of the kernels that calls launch, by the driver, and why others have none.

    Args:
        calls: by signature; each is captured into a graph, and is to be settled before it is timed.
        runtime: of the framework.
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


class _Time(NamedTuple):
    """Seconds of the device and of the host, and clocks that the device had."""

    device_s: float
    host_s: float
    clock_hz: Sequence[float]


class _Timer:
    """Times one call; the first time tells how often it is to be launched between two events."""

    def __init__(self, call: DeviceCall, runtime: DeviceRuntime) -> None:
        self._runtime, self._call, self._settle = runtime, call.call, call.settle
        self._sampler: DeviceWork | None = None
        self._inner = 0

    def time(self) -> _Time:
        """Return what one execution takes."""
        if self._sampler is None:
            self._sampler = self._runtime.enqueued(self._call)
        self._settle()
        self._runtime.wait()
        raw = self._sampler.sample(1, self._inner or 1, 0)
        device_s, host_s = float(raw["seconds"][0]), float(raw["enqueue_s"][0])
        if not self._inner:
            self._inner = min(_MOST, math.ceil(_SPAN_S / max(device_s, _SPAN_S / _MOST)))
        return _Time(device_s, host_s, raw["clock_hz"].tolist())


class StepClock(HostClock):
    """Times a step on a GPU in one of the :data:`WAYS`, which the request names.

    Args:
        operator: the step.
        runtime: of the framework.
        cpus: those that the process is pinned to.
        guard: makes the context in which it is to be called.
        watcher: reads the GPU meanwhile; None where nobody does.
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
        self._call, self._device, self._now = operator.call, runtime, runtime.now
        self._graph: DeviceWork | None = None

    def timed(self, request: Request) -> Chunk:
        """Do what :meth:`sample` does, within the guard.

        Raises:
            UnsupportedError: there is no such way, or the step cannot be captured into a graph.
        """
        with marked("step"):
            return self._timed(request)

    def _timed(self, request: Request) -> Chunk:
        match request.timing or WAYS[0]:
            case "host-sync":
                return HostClock.timed(self, request)
            case "cuda-graph":
                self._graph = self._graph or _captured(self._call, self._device)
                raw = self._graph.sample(request.samples, request.inner, request.untimed)
                return chunk_of(raw)
        raise UnsupportedError(f"a step is not timed by {request.timing} here")


def runtime_of(backend: FrameworkBackend) -> StepRuntime:
    """Return the runtime of a backend on a GPU.

    Raises:
        UnsupportedError: it has none that can be asked for events and graphs.
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
        backend: of the worker.
        operator: the step.
        guard: makes the context in which it is to be called.
        facts: what is known of it.
        traced: records it, and returns what runs it traced.
    """
    if backend.runtime is None:
        return StepKernel(HostClock(operator, backend.cpus, guard, backend.watcher), facts, traced)
    clock = StepClock(operator, backend.runtime, backend.cpus, guard, backend.watcher)
    return StepKernel(clock, facts, traced)
