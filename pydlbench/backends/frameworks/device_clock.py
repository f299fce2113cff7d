"""Times a framework's work on a GPU with the native sampler, in the same way as native rows.

A framework enqueues its work in the sampler's stream, or captures it into a graph; the rest is the
same for every backend. Nothing here depends on a framework: each provides a runtime.
"""

import abc
import functools
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from typing import Any, Final, Protocol

from pydlbench.backends.host_clock import HostClock, Operator, sealed
from pydlbench.backends.native.modules import native_module
from pydlbench.backends.native.nvml import EnergyMeter, Sustained, measure_sustained
from pydlbench.errors import BackendMissingError, DeviceLostError, UnsupportedError
from pydlbench.timing.chunk import Chunk, ChunkRequest
from pydlbench.timing.statistics import median

#: States of the cache that the sampler supports for a framework's work.
CACHES_OF_SAMPLER: Final = ("hot", "all-cold")
#: Number of calls in the graph that measures the cost of a launch.
_GRAPH_CALLS: Final = 10


class DeviceWork(Protocol):
    """Work that the native sampler times; see ``_cuda.ForeignKernel``."""

    def sample(self, samples: int, inner: int, untimed: int) -> Mapping[str, Any]:
        """Return samples of ``inner`` executions, after untimed executions."""

    def launch_times(self, repetitions: int) -> Mapping[str, float]:
        """Return seconds per execution by several clocks."""

    def run_for(self, seconds: float) -> Mapping[str, Any]:
        """Launch executions back to back for a time; return their number and seconds."""

    def kernels(self) -> Sequence[Mapping[str, Any]]:
        """Return the kernels of a graph, as the driver lists them; nothing for other work."""


class DeviceRuntime(Protocol):
    """The part of a framework's GPU runtime that is needed to time operators."""

    def call_work(self, call: Callable[[], Any], cache: str = "hot") -> DeviceWork:
        """Return work that makes a call for each execution, in the sampler's stream.

        With ``all-cold`` caches a sample is one execution after a flush of the cache.
        """

    def graph_work(self, call: Callable[[], Any], times: int) -> DeviceWork:
        """Return a graph of several calls as work.

        Raises:
            UnsupportedError: the framework captures no graphs.
        """

    def wait(self) -> None:
        """Return when the device has finished."""

    def now(self) -> float:
        """Return the host's time in seconds."""


class StepRuntime(DeviceRuntime, Protocol):
    """A runtime with events and a profiler, which are needed to time steps and their calls."""

    def record(self) -> Any:
        """Put a new event into the framework's stream and return it."""

    def between(self, start: Any, end: Any) -> float:
        """Return the seconds between two events that have passed."""

    def kernel_seconds(
        self, calls: Sequence[tuple[Callable[[], Any], Callable[[], Any]]]
    ) -> Sequence[float]:
        """Return the seconds of each call's kernels, by the framework's profiler.

        Args:
            calls: pairs of calls; the first one only precedes the second one, which is profiled.
        """


# Errors after which a device is lost, by name: no framework is imported here.
_DEVICE_ERRORS: Final = ("AcceleratorError",)
# Errors of calls that cannot be captured: ``cudaErrorStreamCaptureUnsupported``, and errors that
# follow from it.
_CAPTURE_ERROR_CODES: Final = range(900, 909)


def is_device_lost(error: Exception) -> bool:
    """Whether a GPU's context is unusable after an error of a framework or of pydlbench."""
    if isinstance(error, DeviceLostError):
        return True
    of_capture = getattr(error, "error_code", None) in _CAPTURE_ERROR_CODES
    return type(error).__name__ in _DEVICE_ERRORS and not of_capture


def sampler_module() -> Any:
    """Return the native module for GPUs.

    Raises:
        UnsupportedError: the module was not built, or cannot be loaded.
    """
    try:
        return native_module("_cuda")
    except BackendMissingError as error:
        raise UnsupportedError(f"rows on a GPU are timed by pydlbench._cuda: {error}") from error


@contextmanager
def nvtx_range(name: str) -> Iterator[None]:
    """Mark the block as a range of this name for NVIDIA's profilers (NVTX)."""
    # Nothing is timed on a GPU unless the module is loaded.
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
        index: index of the GPU.

    Raises:
        UnsupportedError: the native module is missing, see :func:`sampler_module`.
    """

    def __init__(self, index: int) -> None:
        self._native: Any = sampler_module()
        self._device = self._native.Device(index)

    def call_work(self, enqueue: Callable[[int], None], cache: str) -> DeviceWork:
        """Return the work of a function that enqueues it in the stream of a given address."""
        work: DeviceWork = self._native.ForeignKernel(
            self._device, enqueue, _MAX_LAUNCHES_PER_CALL, cache
        )
        return work

    def graph_work(self, graph: int, times: int) -> DeviceWork:
        """Return a graph of several executions, given by the address of its ``cudaGraph_t``."""
        work: DeviceWork = self._native.ForeignKernel.of_graph(self._device, graph, times)
        return work


class SampledRuntime(abc.ABC):
    """A framework's CUDA runtime whose calls the sampler times.

    Args:
        index: index of the device.
    """

    def __init__(self, index: int = 0) -> None:
        self._index = index

    @functools.cached_property
    def _sampler(self) -> Sampler:
        return Sampler(self._index)

    @abc.abstractmethod
    def on_stream(self, stream: int) -> Any:
        """Return the context in which the framework enqueues into a stream."""

    @abc.abstractmethod
    def wait(self) -> None:
        """Return when the device has done everything."""

    def call_work(self, call: Callable[[], Any], cache: str = "hot") -> DeviceWork:
        """Return a call as work, enqueued in the sampler's stream."""

        def enqueue(stream: int) -> None:
            with self.on_stream(stream):
                call()

        self.wait()  # other streams may still write the operands
        return self._sampler.call_work(enqueue, cache)

    def now(self) -> float:
        """Return the host's time in seconds."""
        return time.perf_counter()


# The launches of a framework's call are not counted: most calls launch one to three kernels.
_MAX_LAUNCHES_PER_CALL: Final = 6


def chunk_of(raw: Mapping[str, Any]) -> Chunk:
    """Return the samples of the native sampler as a chunk."""
    return Chunk(
        seconds=tuple(raw["seconds"].tolist()),
        clock_hz=tuple(raw["clock_hz"].tolist()),
        enqueue_s=tuple(raw["enqueue_s"].tolist()),
        wall_s=raw["wall_s"],
        gate_timeouts=raw["gate_timeouts"],
    )


@sealed
class DeviceClock(HostClock):
    """Times an operator of a framework on a GPU.

    Args:
        operator: the operator to time.
        runtime: runtime of the operator's framework.
        timing: ``events``, or ``cuda-graph``: a sample is then one graph of its executions.
        watcher: monitor of the GPU, if there is one.
        guard: makes the context of the samples, see :class:`HostClock`.
        cache: ``hot``, or ``all-cold``, which is timed by events.
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
        self._work: DeviceWork | None = None
        self._graph: tuple[int, DeviceWork] | None = None

    def time_samples(self, request: ChunkRequest) -> Chunk:
        """Time the requested samples, within the guard."""
        work = self._graph_work(request.inner) if self.timing == "cuda-graph" else self._call_work()
        with nvtx_range("row of a framework"):
            return chunk_of(work.sample(request.samples, request.inner, request.untimed))

    def launch_times(self, repetitions: int) -> dict[str, float]:
        """Return the seconds of an execution by three clocks, and of its launch on the host."""
        with self._guard():
            times = self._call_work().launch_times(repetitions)
            launches = {
                "event": times["event_s"],
                "host": times["wall_s"],
                "enqueue": times["host_s"],
            }
            if (graph := self._small_graph()) is not None:
                raw = graph.sample(repetitions, _GRAPH_CALLS, _GRAPH_CALLS)
                launches["graph"] = median(raw["seconds"].tolist())
        return launches

    def kernels(self) -> list[dict[str, Any]]:
        """Return the kernels of one call, from a graph of several."""
        with self._guard():
            graph = self._small_graph()
        kernels = () if graph is None else graph.kernels()
        return [dict(kernel) for kernel in kernels[: len(kernels) // _GRAPH_CALLS]]

    def sustained(self) -> Sustained:
        """Measure energy and clock over a second of executions; nothing without a monitor."""
        if self._meter is None:
            return Sustained()
        with self._guard():
            in_graph = self.timing == "cuda-graph"
            work = self._graph_work(_GRAPH_CALLS) if in_graph else self._call_work()

        def run_for(seconds: float) -> Mapping[str, Any]:
            with self._guard():  # in the thread that launches
                return work.run_for(seconds)

        return measure_sustained(run_for, self._meter)

    def _small_graph(self) -> DeviceWork | None:
        """Return a graph of some calls; None if the calls cannot be captured."""
        try:
            return self._graph_work(_GRAPH_CALLS)
        except RuntimeError as error:
            if self.timing == "cuda-graph" or is_device_lost(error):
                raise
            return None

    def _call_work(self) -> DeviceWork:
        if self._work is None:
            self._work = self._runtime.call_work(self._call, self._cache)
        return self._work

    def _graph_work(self, times: int) -> DeviceWork:
        """Return a graph of several calls; only the last graph is kept, to save memory."""
        if self._graph is None or self._graph[0] != times:
            self._graph = None
            self._graph = times, self._runtime.graph_work(self._call, times)
        return self._graph[1]
