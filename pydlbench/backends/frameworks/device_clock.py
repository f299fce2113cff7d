"""A framework's work on a GPU under the native sampler: gate, stamps and events of native rows.

What a framework enqueues in the sampler's stream, or has captured into a graph, is work that the
sampler did not build; all else is the same for every backend. Knows no framework: what it needs of
one comes as a runtime, and tests put in a fake.
"""

from __future__ import annotations

import sys
from contextlib import contextmanager, nullcontext
from typing import TYPE_CHECKING, Any, Final, Protocol

from pydlbench.backends.host_clock import HostClock
from pydlbench.backends.native.modules import native_module
from pydlbench.backends.native.sustained import Sustained, measure_sustained
from pydlbench.errors import BackendMissingError, DeviceLostError, UnsupportedError
from pydlbench.timing.chunk import Chunk
from pydlbench.timing.statistics import median

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping, Sequence
    from contextlib import AbstractContextManager

    from pydlbench.backends.host_clock import Operator
    from pydlbench.backends.native.sustained import EnergyMeter
    from pydlbench.timing.chunk import Request

#: The states of the cache that the sampler brings about for what it did not build.
CACHES_OF_SAMPLER: Final = ("hot", "all-cold")
#: Calls in the graph that tells what a launch costs.
_LAUNCHES: Final = 10


class DeviceWork(Protocol):
    """Work that the native sampler times; see ``_cuda.ForeignKernel``."""

    def sample(self, samples: int, inner: int, untimed: int) -> Mapping[str, Any]:
        """Return samples of ``inner`` executions, after so many that do not count."""

    def launch_times(self, repetitions: int) -> Mapping[str, float]:
        """Return seconds per execution by several clocks."""

    def run_for(self, seconds: float) -> Mapping[str, Any]:
        """Launch executions back to back for so long; return how many, and their seconds."""

    def kernels(self) -> Sequence[Mapping[str, Any]]:
        """Return what a graph launches, by the driver's word; nothing of what is no graph."""


class DeviceRuntime(Protocol):
    """What timing needs of a framework on a GPU, and the host's clock."""

    def enqueued(self, call: Callable[[], Any], cache: str = "hot") -> DeviceWork:
        """Return a call as work: made for each execution, in the sampler's stream.

        With ``all-cold`` caches a sample is one execution behind a flush of the cache.
        """

    def captured(self, call: Callable[[], Any], times: int) -> DeviceWork:
        """Return a graph of so many calls as work.

        Raises:
            UnsupportedError: the framework captures nothing.
        """

    def wait(self) -> None:
        """Return when the device has done everything."""

    def now(self) -> float:
        """Return the host's time in seconds."""


class StepRuntime(DeviceRuntime, Protocol):
    """What timing whole steps and their calls needs besides: events, and a profiler."""

    def record(self) -> Any:
        """Put a new event into the framework's stream and return it."""

    def between(self, start: Any, end: Any) -> float:
        """Return the seconds between two events that have passed."""

    def kernel_seconds(
        self, calls: Sequence[tuple[Callable[[], Any], Callable[[], Any]]]
    ) -> Sequence[float]:
        """Return the seconds of each call's kernels, by the framework's profiler.

        Args:
            calls: made one after the other, each behind the one that comes first in its pair.
        """


# By name: no framework is imported here.
_LOST: Final = ("AcceleratorError",)
# What a call does that no graph can have: ``cudaErrorStreamCaptureUnsupported``, and those that
# follow from it.
_OF_CAPTURES: Final = range(900, 909)


def is_device_lost(error: Exception) -> bool:
    """Whether a GPU's context is beyond use after an error of a framework's, or of ours."""
    if isinstance(error, DeviceLostError):
        return True
    of_capture = getattr(error, "error_code", None) in _OF_CAPTURES
    return type(error).__name__ in _LOST and not of_capture


def sampler_module() -> Any:
    """Return the native module for GPUs.

    Raises:
        UnsupportedError: it was not built, or cannot be loaded: no row of any framework is timed.
    """
    try:
        return native_module("_cuda")
    except BackendMissingError as error:
        raise UnsupportedError(f"rows on a GPU are timed by pydlbench._cuda: {error}") from error


@contextmanager
def nvtx_range(name: str) -> Iterator[None]:
    """Show what is done meanwhile as a range of this name to NVIDIA's profilers (NVTX)."""
    # Without the module nothing is timed on a GPU: there is nobody to show anything to.
    native: Any = sys.modules.get("pydlbench._cuda")
    if native is None:
        yield
        return
    native.push_range(name)
    try:
        yield
    finally:
        native.pop_range()


class Sampler:
    """The native sampler of one GPU, for work of a framework.

    Args:
        index: of the GPU.

    Raises:
        UnsupportedError: see :func:`sampler_module`.
    """

    def __init__(self, index: int) -> None:
        self._native: Any = sampler_module()
        self._device = self._native.Device(index)

    def enqueued(self, enqueue: Callable[[int], None], cache: str) -> DeviceWork:
        """Return what is enqueued by a function that is given the stream's address."""
        sampler: DeviceWork = self._native.ForeignKernel(
            self._device, enqueue, _LAUNCHES_OF_CALL, cache
        )
        return sampler

    def captured(self, graph: int, times: int) -> DeviceWork:
        """Return a graph of so many executions, by the address of its ``cudaGraph_t``."""
        sampler: DeviceWork = self._native.ForeignKernel.of_graph(self._device, graph, times)
        return sampler


# Nobody counts the launches of a framework's call: most are one to three kernels.
_LAUNCHES_OF_CALL: Final = 6


def chunk_of(raw: Mapping[str, Any]) -> Chunk:
    """Return what the native sampler has measured as a chunk."""
    return Chunk(
        seconds=tuple(raw["seconds"].tolist()),
        clock_hz=tuple(raw["clock_hz"].tolist()),
        enqueue_s=tuple(raw["enqueue_s"].tolist()),
        wall_s=raw["wall_s"],
        gate_timeouts=raw["gate_timeouts"],
    )


class DeviceClock(HostClock):
    """Times an operator of a framework on a GPU.

    Args:
        operator: what is timed.
        runtime: of its framework.
        timing: ``events``, or ``cuda-graph``: a sample is one graph of its executions then.
        watcher: of the GPU; None where nobody watches.
        guard: see :class:`HostClock`.
        cache: ``hot``, or ``all-cold``: between events then.
    """

    def __init__(
        self,
        operator: Operator,
        runtime: DeviceRuntime,
        timing: str = "events",
        watcher: EnergyMeter | None = None,
        guard: Callable[[], AbstractContextManager[Any]] = nullcontext,
        cache: str = "hot",
    ) -> None:
        super().__init__(operator, (), guard, watcher)
        self.timing = timing if cache == "hot" else "events"
        self._meter, self._cache = watcher, cache
        self._call, self._runtime = operator.call, runtime
        self._enqueued: DeviceWork | None = None
        self._graph: tuple[int, DeviceWork] | None = None

    def time_samples(self, request: Request) -> Chunk:
        """Do what :meth:`sample` does, within the guard."""
        sampler = self._captured(request.inner) if self.timing == "cuda-graph" else self._called()
        with nvtx_range("row of a framework"):
            return chunk_of(sampler.sample(request.samples, request.inner, request.untimed))

    def launch_times(self, repetitions: int) -> dict[str, float]:
        """Return seconds per execution by three clocks, and what the host needs to launch one."""
        with self._guard():
            times = self._called().launch_times(repetitions)
            launches = {
                "event": times["event_s"],
                "host": times["wall_s"],
                "enqueue": times["host_s"],
            }
            if (graph := self._some_captured()) is not None:
                raw = graph.sample(repetitions, _LAUNCHES, _LAUNCHES)
                launches["graph"] = median(raw["seconds"].tolist())
        return launches

    def kernels(self) -> list[dict[str, Any]]:
        """Return what one call launches, in a graph of several."""
        with self._guard():
            graph = self._some_captured()
        kernels = () if graph is None else graph.kernels()
        return [dict(each) for each in kernels[: len(kernels) // _LAUNCHES]]

    def sustained(self) -> Sustained:
        """Return what a second of executions in a row takes; nothing where nobody watches."""
        if self._meter is None:
            return Sustained()
        with self._guard():
            in_graph = self.timing == "cuda-graph"
            sampler = self._captured(_LAUNCHES) if in_graph else self._called()

        def run_for(seconds: float) -> Mapping[str, Any]:
            with self._guard():  # of the thread that launches
                return sampler.run_for(seconds)

        return measure_sustained(run_for, self._meter)

    def _some_captured(self) -> DeviceWork | None:
        """Return a graph of some calls; None of those between events that no graph can have."""
        try:
            return self._captured(_LAUNCHES)
        except RuntimeError as error:
            if self.timing == "cuda-graph" or is_device_lost(error):
                raise
            return None

    def _called(self) -> DeviceWork:
        if self._enqueued is None:
            self._enqueued = self._runtime.enqueued(self._call, self._cache)
        return self._enqueued

    def _captured(self, times: int) -> DeviceWork:
        """Return a graph of so many calls; the last one only is kept, for its memory."""
        if self._graph is None or self._graph[0] != times:
            self._graph = None
            self._graph = times, self._runtime.captured(self._call, times)
        return self._graph[1]
