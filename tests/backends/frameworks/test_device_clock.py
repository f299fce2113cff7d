"""Frameworks' calls and graphs under an invented sampler: what it is asked, and what comes out."""

import contextlib
import importlib
import sys
import threading
from types import SimpleNamespace
from unittest import mock

import numpy as np
import pytest

from pydlbench.backends import autotune
from pydlbench.backends.base import Preparation
from pydlbench.backends.frameworks.backend import Variant, _FrameworkAutotuner
from pydlbench.backends.frameworks.device_clock import DeviceClock, nvtx_range
from pydlbench.errors import UnsupportedError
from pydlbench.ops.table import build_layer
from pydlbench.records.measurement import KernelSpec
from pydlbench.timing.chunk import ChunkRequest, GpuReadings
from pydlbench.verification.inputs import make_inputs

GEMM = build_layer("gemm", m=5, k=7, n=3)


class Runtime:
    """Makes work that writes down what it is asked; an execution takes 2 ms, in a graph 1 ms."""

    def __init__(self, clock_hz=(1.9e9,)):
        self.log = []
        self.clock_hz = clock_hz

    def call_work(self, call, cache):
        call()
        return self._work("call" if cache == "hot" else cache, 2e-3)

    def graph_work(self, call, times):
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

        def run_for(seconds):
            self.log.append((what, seconds, threading.current_thread() is threading.main_thread()))
            return {"executions": 1000, "seconds": 1.5}

        return SimpleNamespace(sample=sample, launch_times=lambda _: times, run_for=run_for)


def clock(runtime, timing="events", **words):
    called = []
    operator = SimpleNamespace(call=lambda: called.append(1), wait=lambda: None)
    return DeviceClock(operator, runtime, timing, **words), called


def test_what_is_timed_is_a_range_to_a_profiler_also_where_it_fails(monkeypatch):
    ranges = []
    stub = SimpleNamespace(push_range=ranges.append, pop_range=lambda: ranges.append("end"))
    monkeypatch.setitem(sys.modules, "pydlbench._cuda", stub)
    with nvtx_range("step"):
        pass
    with pytest.raises(RuntimeError), nvtx_range("calls alone"):
        raise RuntimeError
    assert ranges == ["step", "end", "calls alone", "end"]
    timer, _ = clock(Runtime())
    timer.sample(ChunkRequest(samples=1))
    assert len(ranges) == 6


def test_calls_are_sampled_as_the_sampler_measures_them():
    runtime = Runtime()
    timer, called = clock(runtime)
    chunk = timer.sample(ChunkRequest(samples=3, inner=4, untimed=9))
    timer.sample(ChunkRequest(samples=1))
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
        assert timer.sample(ChunkRequest(samples=1, inner=inner)).seconds == (1e-3,)
    captures = [times for what, times, *_ in runtime.log if what == "capture"]
    assert captures == [4, 2, 4]
    assert ("graph", 1, 2, 0) in runtime.log


def test_with_cold_caches_an_execution_is_between_events_however_it_is_asked():
    runtime = Runtime()
    timer, _ = clock(runtime, "cuda-graph", cache="all-cold")
    assert timer.timing == "events"
    assert timer.sample(ChunkRequest(samples=2)).seconds == (2e-3, 2e-3)
    assert runtime.log == [("all-cold", 2, 1, 0)]


@pytest.mark.parametrize(("timing", "what"), [("events", "call"), ("cuda-graph", "graph")])
def test_what_is_sustained_is_launched_within_the_guard_of_its_thread(timing, what):
    runtime, entered = Runtime(), []

    @contextlib.contextmanager
    def guard():
        entered.append(threading.current_thread())
        yield

    joules = iter((100.0, None))
    meter = SimpleNamespace(
        mark=lambda: 0.0,
        since=lambda _: GpuReadings(sm_clock_hz=1.4e9, readings=1),
        energy_j=lambda: next(joules),
    )
    timer, _ = clock(runtime, timing, watcher=meter, guard=guard)
    found = timer.sustained()
    assert (found.sustained_s, found.sustained_hz) == (1.5e-3, 1.4e9)
    assert (found.energy_j, found.power_w) == (None, None)  # the counter did not move twice
    assert [entry for entry in runtime.log if entry[0] == what] == [(what, 1.2, False)]
    assert len(set(entered)) == 2


def test_where_nobody_watches_nothing_is_sustained():
    timer, _ = clock(Runtime())
    assert set(timer.sustained()) == {None}


def test_without_the_native_module_rows_of_cupy_are_skipped_with_the_reason(monkeypatch):
    monkeypatch.setitem(sys.modules, "pydlbench._cuda", None)
    found = importlib.import_module("pydlbench.backends.cupy.backend")
    backend = found.CupyBackend.__new__(found.CupyBackend)  # there is no GPU to make one of
    with pytest.raises(UnsupportedError) as caught:  # which is a skipped row
        backend.prepare(KernelSpec(layer=GEMM, device="cuda:0"), Preparation())
    assert "pydlbench._cuda" in str(caught.value)


def test_launch_times_by_three_clocks():
    timer, _ = clock(Runtime(), "cuda-graph")
    assert timer.launch_times(3) == {"event": 2e-3, "graph": 1e-3, "host": 4e-3, "enqueue": 1e-5}


class Uncapturable(Runtime):
    def graph_work(self, *_):
        raise RuntimeError("operation not permitted when stream is capturing")


def test_what_no_graph_can_have_is_timed_between_events_all_the_same():
    timer, _ = clock(Uncapturable(), "events")
    assert timer.launch_times(3) == {"event": 2e-3, "host": 4e-3, "enqueue": 1e-5}
    assert timer.kernels() == []
    in_graphs, _ = clock(Uncapturable(), "cuda-graph")
    with pytest.raises(RuntimeError, match="capturing"):
        in_graphs.launch_times(3)


@pytest.mark.parametrize(("stamps", "clock_hz"), [((1.9e9,), 1.9e9), ((), 1.7e9)])
def test_the_clock_is_that_of_the_stamps_and_else_the_cards(stamps, clock_hz):
    readings = GpuReadings(sm_clock_hz=1.7e9, reasons=("hardware thermal slowdown",), readings=3)
    watcher = SimpleNamespace(mark=lambda: 0.5, since=lambda mark: readings if mark else None)
    timer, _ = clock(Runtime(stamps), watcher=watcher)
    chunk = timer.sample(ChunkRequest(samples=2))
    assert chunk.gpu is readings
    assert chunk.clock_hz == (clock_hz,)
    assert "thermal" in chunk.disturbance


@pytest.mark.parametrize(
    ("kernel", "error", "status"),
    [
        ("void cudnn::winograd_nonfused::winogradWgradData4x4<float, float>(int)", 4e-6, "ok"),
        ("void cudnn::winograd_nonfused::winogradWgradData4x4<float, float>(int)", 1e-3, "failed"),
        ("sm80_xmma_wgrad_implicit_gemm", 4e-6, "failed"),
        ("sm80_xmma_wgrad_implicit_gemm", 0.0, "ok"),
    ],
)
def test_winograd_is_told_by_its_kernels_and_allowed_more(kernel, error, status):
    case = KernelSpec(layer=GEMM, device="cuda:0", backend="torch")
    inputs = make_inputs(GEMM, "forward", "fp32", 0)
    exact = inputs["src"].astype(np.float64) @ inputs["weights"]
    outputs = {"dst": (exact + error * (1 + np.abs(exact))).astype(np.float32)}
    operator = SimpleNamespace(call=lambda: None, wait=lambda: None, outputs=lambda: outputs)
    timer = mock.Mock(spec=DeviceClock, kernels=lambda: [{"name": kernel}])
    variant = Variant(
        algorithm="aten::mm", layout="plain", variant="plain", build=lambda _: operator
    )
    search = _FrameworkAutotuner(
        [variant], case, Preparation(), autotune.GPU_EFFORT, lambda _: timer
    )
    (candidate,) = search.candidates
    assert search.verify(candidate).status == status
