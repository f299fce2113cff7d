"""Frameworks' calls and graphs under an invented sampler: what it is asked, and what comes out."""

from types import SimpleNamespace

import numpy as np
import pytest

from pydlbench.backends.frameworks.device_clock import DeviceClock
from pydlbench.timing.chunk import GpuReadings, Request


class Runtime:
    """Makes work that writes down what it is asked; an execution takes 2 ms, in a graph 1 ms."""

    def __init__(self, clock_hz=(1.9e9,)):
        self.log = []
        self.clock_hz = clock_hz

    def enqueued(self, call):
        call()
        return self._work("call", 2e-3)

    def captured(self, call, times):
        call()
        self.log.append(("capture", times))
        return self._work("graph", 1e-3)

    def _work(self, what, seconds):
        def sample(*request):
            self.log.append((what, *request))
            return {
                "seconds": np.full(request[0], seconds),
                "clock_hz": np.array(self.clock_hz),
                "enqueue_s": np.full(request[0], 1e-5),
                "wall_s": 0.5,
                "gate_timeouts": 3,
            }

        times = {"event_s": 2e-3, "wall_s": 4e-3, "host_s": 1e-5}
        return SimpleNamespace(sample=sample, launch_times=lambda _: times)


def clock(runtime, timing="events", **words):
    called = []
    operator = SimpleNamespace(call=lambda: called.append(1), wait=lambda: None)
    return DeviceClock(operator, runtime, timing, **words), called


def test_calls_are_sampled_as_the_sampler_measures_them():
    runtime = Runtime()
    timer, called = clock(runtime)
    chunk = timer.sample(Request(samples=3, inner=4, untimed=9))
    timer.sample(Request(samples=1))
    assert chunk.seconds == (2e-3,) * 3
    assert chunk.enqueue_s == (1e-5,) * 3
    assert chunk.clock_hz == (1.9e9,)
    assert (chunk.wall_s, chunk.gate_timeouts) == (0.5, 3)
    assert runtime.log == [("call", 3, 4, 9), ("call", 1, 1, 0)]
    assert len(called) == 1  # made ready once


def test_one_graph_at_a_time_holds_its_memory():
    runtime = Runtime()
    timer, _ = clock(runtime, "cuda-graph")
    for inner in (4, 4, 2, 4):
        assert timer.sample(Request(samples=1, inner=inner)).seconds == (1e-3,)
    captures = [times for what, times, *_ in runtime.log if what == "capture"]
    assert captures == [4, 2, 4]
    assert ("graph", 1, 2, 0) in runtime.log


def test_launch_times_by_three_clocks():
    timer, _ = clock(Runtime(), "cuda-graph")
    assert timer.launch_times(3) == {"event": 2e-3, "graph": 1e-3, "host": 4e-3, "enqueue": 1e-5}


@pytest.mark.parametrize(("stamps", "clock_hz"), [((1.9e9,), 1.9e9), ((), 1.7e9)])
def test_the_clock_is_that_of_the_stamps_and_else_the_cards(stamps, clock_hz):
    readings = GpuReadings(sm_clock_hz=1.7e9, reasons=("hardware thermal slowdown",), readings=3)
    watcher = SimpleNamespace(mark=lambda: 0.5, since=lambda mark: readings if mark else None)
    timer, _ = clock(Runtime(stamps), watcher=watcher)
    chunk = timer.sample(Request(samples=2))
    assert chunk.gpu is readings
    assert chunk.clock_hz == (clock_hz,)
    assert "thermal" in chunk.disturbance
