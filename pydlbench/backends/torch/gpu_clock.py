"""A PyTorch operator on a GPU between CUDA events: many calls in a graph, or launched one by one.

In a graph, samples are replays of ``inner`` calls, each between two events; nothing waits for the
host in between, which is ahead by a whole graph. This is how native hot rows are timed.

With ``events``, ``inner`` calls are launched between two events while the device still sleeps: it
finds them all in its queue, and the host's launches are hidden as by the native gate. A sleep needs
no flag that somebody must set, so nothing can hang; where the host takes longer than the sleep (the
queue holds about a thousand launches), the gaps show.
"""

from __future__ import annotations

import itertools
import statistics
from typing import TYPE_CHECKING

from pydlbench.backends.frameworks.kernel import HostClock
from pydlbench.timing.chunk import Chunk
from pydlbench.timing.throttle import disturbance

if TYPE_CHECKING:
    from pydlbench.backends.native.nvml import Monitor
    from pydlbench.backends.torch.gpu_runtime import Graph, Runtime
    from pydlbench.backends.torch.operator import TorchOperator
    from pydlbench.timing.chunk import Request

__all__ = ["GpuClock"]

# The sleep is as long as the launches took, and so much more.
_SLEEP_FACTOR = 1.5
_SLEEP_LEAST_S = 50e-6
_SLEEP_MOST_S = 0.5
# Executions per reading of launch times: a reading is their mean.
_LAUNCHES = 10


class GpuClock(HostClock):
    """Times an operator on a GPU.

    Args:
        operator: what is timed; says whether in a graph.
        runtime: of CUDA.
        monitor: reads clock, power and heat meanwhile.
    """

    def __init__(self, operator: TorchOperator, runtime: Runtime, monitor: Monitor) -> None:
        super().__init__(operator, ())
        self._call = operator.call
        self._guard = operator.guard
        self.timing = operator.timing
        self._runtime = runtime
        self._monitor = monitor
        self._graphs: dict[int, Graph] = {}
        self._enqueue_s: float | None = None

    def sample(self, request: Request) -> Chunk:
        """Time the requested samples, after the calls that are not timed."""
        mark = self._monitor.mark()
        begin = self._runtime.now()
        with self._guard():
            if self.timing == "cuda-graph":
                seconds = self._replays(request.samples, request.inner, request.untimed)
            else:
                seconds = self._launches(request.samples, request.inner, request.untimed)
        wall = self._runtime.now() - begin
        readings = self._monitor.since(mark)
        clock = None if readings is None else readings.sm_clock_hz
        return Chunk(
            seconds=tuple(seconds),
            clock_hz=(clock,) if clock else (),
            wall_s=wall,
            disturbance=disturbance(readings),
            gpu=readings,
        )

    def launch_times(self, repetitions: int) -> dict[str, float]:
        """Return seconds per execution by three clocks, and what the host needs to launch one."""
        host, enqueue = [], []
        with self._guard():
            for _ in range(repetitions):
                self._runtime.wait()
                start = self._runtime.now()
                for _ in range(_LAUNCHES):
                    self._call()
                launched = self._runtime.now()
                self._runtime.wait()
                host.append((self._runtime.now() - start) / _LAUNCHES)
                enqueue.append((launched - start) / _LAUNCHES)
            times = {
                "event": self._launches(repetitions, _LAUNCHES, _LAUNCHES),
                "graph": self._replays(repetitions, _LAUNCHES, _LAUNCHES),
                "host": host,
                "enqueue": enqueue,
            }
        return {name: statistics.median(values) for name, values in times.items()}

    def _replays(self, samples: int, inner: int, untimed: int) -> list[float]:
        graph = self._graph(inner)
        for _ in range(1 + untimed // inner):
            graph.replay()
        events = [self._runtime.event() for _ in range(samples + 1)]
        events[0].record()
        for event in events[1:]:
            graph.replay()
            event.record()
        self._runtime.wait()
        pairs = itertools.pairwise(events)
        return [start.elapsed_time(end) / 1e3 / inner for start, end in pairs]

    def _graph(self, inner: int) -> Graph:
        """Return the graph of ``inner`` calls; the last one only is kept, for its memory."""
        if inner not in self._graphs:
            self._graphs.clear()
            self._graphs[inner] = self._runtime.capture(self._call, inner)
        return self._graphs[inner]

    def _launches(self, samples: int, inner: int, untimed: int) -> list[float]:
        for _ in range(untimed):
            self._call()
        pause = self._enqueue() * inner * _SLEEP_FACTOR + _SLEEP_LEAST_S
        pairs = []
        for _ in range(samples):
            start, end = self._runtime.event(), self._runtime.event()
            self._runtime.sleep(min(pause, _SLEEP_MOST_S))
            start.record()
            for _ in range(inner):
                self._call()
            end.record()
            pairs.append((start, end))
            self._runtime.wait()  # else the queue fills up, and the next launches wait for room
        return [start.elapsed_time(end) / 1e3 / inner for start, end in pairs]

    def _enqueue(self) -> float:
        """Return what the host needs to launch one, in seconds; measured once."""
        if self._enqueue_s is None:
            self._runtime.wait()
            start = self._runtime.now()
            for _ in range(_LAUNCHES):
                self._call()
            self._enqueue_s = (self._runtime.now() - start) / _LAUNCHES
            self._runtime.wait()
        return self._enqueue_s
