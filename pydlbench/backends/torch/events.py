"""PyTorch's own events as the clock of rows on a GPU, where ``pydlbench._cuda`` is missing.

Samples are enqueued one behind the other, and the device is waited for once. There is no launch
gate: without a graph, the time between two events includes the time to enqueue short calls.
"""

import math
import time
from collections.abc import Callable, Mapping
from typing import Any, Final

import numpy as np
import torch

#: Properties that are missing in a row that PyTorch itself timed.
EVENTS_NOTE: Final = (
    "timed by PyTorch's own events and graphs: there is no launch gate, no limit, no "
    "clock of each sample, and no name of a kernel"
)


class EventWork:
    """Work that is timed between two of PyTorch's events.

    Args:
        run: enqueues the work in PyTorch's current stream.
        executions: number of executions that it contains.
    """

    def __init__(self, run: Callable[[], Any], executions: int | None = None) -> None:
        self._run, self._executions = run, executions

    def sample(self, samples: int, inner: int, untimed: int) -> Mapping[str, Any]:
        """Return samples of ``inner`` executions, or of one graph, after untimed executions."""
        launches = inner if self._executions is None else 1
        executions = self._executions or inner
        for _ in range(math.ceil(untimed / (self._executions or 1))):
            self._run()
        torch.cuda.synchronize()
        pairs, enqueue_s = [], []
        begin = time.perf_counter()
        for _ in range(samples):
            start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
            start.record()
            before = time.perf_counter()
            for _ in range(launches):
                self._run()
            enqueue_s.append((time.perf_counter() - before) / executions)
            end.record()
            pairs.append((start, end))
        torch.cuda.synchronize()
        wall_s = time.perf_counter() - begin
        return {
            "seconds": np.array([s.elapsed_time(e) / 1e3 / executions for s, e in pairs]),
            "clock_hz": np.array([]),
            "enqueue_s": np.array(enqueue_s),
            "wall_s": wall_s,
            "gate_timeouts": 0,
        }

    def launch_times(self, repetitions: int) -> Mapping[str, float]:
        """Return seconds per execution between events, on the host's clock, and of a launch."""
        raw = self.sample(1, repetitions, 1)
        return {
            "event_s": float(raw["seconds"][0]),
            "host_s": float(raw["enqueue_s"][0]),
            "wall_s": raw["wall_s"] / repetitions,
        }

    def run_for(self, seconds: float) -> Mapping[str, Any]:
        """Launch executions back to back for a time; return their number and seconds."""
        begin, count = time.perf_counter(), 0
        while time.perf_counter() - begin < seconds:
            self._run()
            count += self._executions or 1
        torch.cuda.synchronize()
        return {"executions": count, "seconds": time.perf_counter() - begin}

    def kernels(self) -> tuple[()]:
        """Return nothing: PyTorch does not list the kernels of a graph."""
        return ()
