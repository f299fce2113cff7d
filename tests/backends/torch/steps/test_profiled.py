"""Traced steps of PyTorch: whose time is where, by its profiler and by time stamps."""

from __future__ import annotations

import json
import subprocess
import sys
import time
from pathlib import Path
from types import SimpleNamespace

import msgspec
import pytest

torch = pytest.importorskip("torch")

from pydlbench.backends.steps.device import GAPS, NO_CALL  # noqa: E402 - needs torch
from pydlbench.backends.steps.requests import request_call_list, request_step  # noqa: E402 - needs torch
from pydlbench.backends.torch.steps import profiled  # noqa: E402 - below importorskip
from pydlbench.backends.torch.steps.profiled import tracer  # noqa: E402 - needs torch
from pydlbench.backends.torch.steps.recording import by_module, record  # noqa: E402 - needs torch
from pydlbench.errors import PrimitiveError, UnsupportedError  # noqa: E402 - needs torch
from pydlbench.records.step import StepPreparation, StepSpec  # noqa: E402 - needs torch
from pydlbench.timing.chunk import ChunkRequest  # noqa: E402 - needs torch

SLOW_S = 5e-3


@torch.library.custom_op("pydlbench_planted::slow", mutates_args=())
def slow(values: torch.Tensor) -> torch.Tensor:
    time.sleep(SLOW_S)
    return values.clone()


class Slow(torch.nn.Module):
    def forward(self, values):
        return slow(values)


class Attention(torch.nn.Module):
    """What composes its calls in many ways: attention, recurrence, views, in-place calls."""

    def __init__(self):
        super().__init__()
        self.encoder = torch.nn.TransformerEncoderLayer(16, 2, 32, batch_first=True)
        self.recurrent = torch.nn.LSTM(16, 16, batch_first=True)
        self.act = torch.nn.Hardtanh(inplace=True)

    def forward(self, values):
        found, _ = self.recurrent(self.encoder(values))
        return self.act(found.transpose(1, 2).reshape(values.shape[0], -1) + 1).sum()


def steps_of(module, *inputs, backward=False, runtime=None):
    def step():
        if not backward:
            with torch.no_grad():
                return module(*inputs)
        module.zero_grad()
        loss = module(*inputs)
        loss.backward()
        return loss

    step()
    named = {one: name.rpartition(".")[0] for name, one in module.named_parameters()}
    recorded = record(lambda: [step()], naming=by_module(module), parameters=named)
    return tracer(recorded, step, runtime)


def by_module_s(found, trace):
    seconds: dict[str, float] = {}
    for call, call_s in zip(found.calls, trace.calls_s, strict=True):
        seconds[call.module] = seconds.get(call.module, 0.0) + call_s
    return seconds


@pytest.mark.parametrize("way", ["profile", "stamps"])
def test_a_call_that_sleeps_shows_in_its_module(way):
    module = torch.nn.Sequential(torch.nn.Linear(8, 8), torch.nn.ReLU(), Slow(), torch.nn.ReLU())
    found = steps_of(module, torch.ones(2, 8))
    run = found.ways[way][1]
    run()
    trace = run()
    seconds = by_module_s(found, trace)
    assert list(seconds) == ["0", "1", "2", "3"]
    assert SLOW_S <= seconds["2"] <= trace.step_s
    assert [one.operator for one in found.calls if one.module == "2"] == ["pydlbench_planted.slow"]


def test_what_sleeps_in_no_call_is_between_calls():
    module = torch.nn.Sequential(torch.nn.Linear(8, 8), torch.nn.ReLU())
    module[1].register_forward_hook(lambda *_: time.sleep(SLOW_S))
    trace = steps_of(module, torch.ones(2, 8)).ways["profile"][1]()
    assert trace.step_s - sum(trace.calls_s) >= SLOW_S


@pytest.mark.parametrize("backward", [False, True], ids=["forward", "backward"])
def test_calls_that_autograd_and_composed_operators_make_are_found_again(backward):
    found = steps_of(Attention().train(backward), torch.rand(2, 5, 16), backward=backward)
    trace = found.ways["profile"][1]()
    assert len(trace.calls_s) == len(found.calls)
    assert {one.module for one in found.calls} >= {"recurrent", "act"}
    assert all(one >= 0 for one in trace.calls_s)
    assert sum(trace.calls_s) <= trace.step_s


def test_a_step_that_makes_other_calls_than_before_is_refused():
    module = torch.nn.Sequential(torch.nn.Linear(8, 8), torch.nn.ReLU())
    found = steps_of(module, torch.ones(2, 8))
    module[1] = torch.nn.Tanh()
    with pytest.raises(PrimitiveError, match=r"aten::relu of 1, forward; .*aten::tanh"):
        found.ways["profile"][1]()


@pytest.mark.parametrize("phase", ["forward", "training"])
def test_a_step_of_the_catalogue_is_traced_and_keeps_its_weights(backend, phase):
    case = StepSpec(model="mnist", batch=2, phase=phase)
    how = StepPreparation(checks=False)
    kernel = request_step(backend, case.to_dict(), how.to_dict())
    trace = kernel.trace()
    assert list(trace.sources) == ["profile", "stamps"]
    for way in trace.sources:
        seconds = kernel.sample(ChunkRequest(samples=2, untimed=1, timing=way)).seconds
        assert len(seconds) == 2 * (2 + len(trace.calls))
        traced_s, plain_s, *calls_s = seconds[: 2 + len(trace.calls)]
        assert 0 < sum(calls_s) <= traced_s
        assert plain_s > 0
    directions = {one.direction for one in trace.calls}
    assert directions == ({"forward"} if phase == "forward" else {*directions, "optimizer"})


@pytest.mark.parametrize("phase", ["forward", "training"])
def test_a_trace_tells_the_calls_that_are_recorded_elsewhere(backend, phase):
    case = StepSpec(model="mnist", batch=2, phase=phase)
    traced = request_step(backend, case.to_dict(), {}).trace().operators
    recorded = request_call_list(backend, case.to_dict()).facts
    assert (traced.calls, traced.order, traced.batch) == (
        recorded.calls,
        recorded.order,
        recorded.batch,
    )
    fed = msgspec.structs.replace(case, feed="host")
    assert request_step(backend, fed.to_dict(), {}).trace().operators is None


# A GPU beside a CPU's profile: each of these operators launches a kernel of so many nanoseconds as
# it begins, into a queue. Its own name for a step is among what the device has, as on a real one.
KERNELS_NS = {"aten::addmm": 40_000, "aten::relu": 10_000}
RUNTIME = SimpleNamespace(wait=lambda: None)


def kineto_event(name, start_ns, duration_ns, number, *, on_host=False, annotation=False):
    return SimpleNamespace(
        name=lambda: name,
        start_ns=lambda: start_ns,
        duration_ns=lambda: duration_ns,
        correlation_id=lambda: number,
        linked_correlation_id=lambda: number * on_host,
        device_type=lambda: torch.autograd.DeviceType(0 if on_host else 1),
        is_user_annotation=lambda: annotation,
    )


def test_a_profile_of_a_gpu_tells_which_launch_a_kernel_is_of():
    """Two training steps of a small network, as PyTorch 2.11 profiled them on an H200."""
    rows = json.loads((Path(__file__).parent / "data" / "h200_profile.json").read_text())
    events = [
        SimpleNamespace(
            name=lambda name=name: name,
            start_ns=lambda start=start: start,
            duration_ns=lambda length=length: length,
            correlation_id=lambda number=number: number,
            linked_correlation_id=lambda linked=linked: linked,
            device_type=lambda on_host=on_host: torch.autograd.DeviceType(0 if on_host else 1),
            is_user_annotation=lambda annotation=annotation: annotation,
        )
        for name, on_host, start, length, number, linked, annotation in rows
    ]
    found = profiled.device_profile(events)
    assert len(found.kernels) == 46
    launched = [found.launches[number] for number, _ in found.kernels]
    assert all(
        launch.begin_ns <= kernel.begin_ns
        for launch, (_, kernel) in zip(launched, found.kernels, strict=True)
    )
    # Each step launches as many, and nothing but the marked step's is launched in it.
    assert sum(found.step.begin_ns <= one.begin_ns <= found.step.end_ns for one in launched) == 23
    assert {"aten::cudnn_batch_norm", "aten::convolution_backward"} <= {
        one.name for one in found.operators
    }


def with_device(events, kernels_ns):
    found, free_ns, number = list(events), 0, 1
    for one in sorted(events, key=lambda one: one.start_ns()):
        launch_ns = one.start_ns()
        if one.name() == profiled.MARK:
            found.append(kineto_event(profiled.MARK, launch_ns, 1_000, 1, annotation=True))
        if one.name() not in kernels_ns:
            continue
        begin_ns, length_ns = max(free_ns, launch_ns + 1_000), kernels_ns[one.name()]
        found.append(kineto_event("cudaLaunchKernel", launch_ns + 1, 500, number, on_host=True))
        found.append(kineto_event("kernel", begin_ns, length_ns, number))
        free_ns, number = begin_ns + length_ns, number + 1
    return found


def traced_on_device(monkeypatch, kernels_ns):
    read = profiled.kineto_events
    monkeypatch.setattr(
        profiled, "kineto_events", lambda profiler: with_device(read(profiler), kernels_ns)
    )
    module = torch.nn.Sequential(torch.nn.Linear(8, 8), torch.nn.ReLU(), torch.nn.Linear(8, 8))
    found = steps_of(module, torch.ones(2, 8), runtime=RUNTIME)
    return found, found.ways["profile"][1]()


def test_on_a_gpu_a_call_takes_what_its_kernels_take(monkeypatch):
    found, trace = traced_on_device(monkeypatch, KERNELS_NS)
    assert tuple(found.gaps) == GAPS
    seconds = by_module_s(found, trace)
    assert seconds == pytest.approx({"0": 40e-6, "1": 10e-6, "2": 40e-6})
    assert trace.step_s == pytest.approx(90e-6 + sum(trace.gaps_s))
    assert trace.gaps_s[GAPS.index(NO_CALL)] == 0
    assert len(trace.host_s) == len(found.calls)
    assert min(trace.host_s) > 0


def test_kernels_of_calls_alone_are_told_from_those_that_prepare_them(monkeypatch):
    read = profiled.kineto_events
    monkeypatch.setattr(
        profiled, "kineto_events", lambda profiler: with_device(read(profiler), KERNELS_NS)
    )
    values, weights = torch.ones(4, 4), torch.ones(4)

    def relu():
        return torch.relu(values)

    def both():
        return torch.addmm(weights, torch.relu(values), values)

    def view():
        return values.view(16)

    calls = [(relu, both), (view, relu), (both, view)]
    assert profiled.kernel_seconds(RUNTIME, calls) == pytest.approx([50e-6, 10e-6, 0])


def test_on_a_gpu_whose_kernels_nobody_may_read_a_step_is_not_traced(monkeypatch):
    with pytest.raises(PrimitiveError, match="CUPTI"):
        traced_on_device(monkeypatch, {})


def test_without_the_profiler_a_step_on_a_gpu_is_not_traced(monkeypatch):
    monkeypatch.setenv("PYDLBENCH_PROFILER", "0")
    with pytest.raises(UnsupportedError, match="PYDLBENCH_PROFILER"):
        steps_of(torch.nn.ReLU(), torch.ones(2), runtime=RUNTIME)


_CHECKED_AND_TRACED = """
import sys
from pydlbench.backends import capabilities
from pydlbench.backends.steps.requests import request_step
from pydlbench.records.step import StepSpec
from pydlbench.timing.chunk import ChunkRequest
backend = capabilities.load("torch", "cpu")
spec = StepSpec(model="mnist", framework="torch", batch=2)
step = request_step(backend, spec.to_dict(), {})
assert step.trace().calls
assert step.sample(ChunkRequest(samples=1, timing="profile")).seconds
print(sorted({"sympy", "torch._dynamo", "torch._inductor"} & set(sys.modules)))
"""


@pytest.mark.deep
def test_a_forward_step_is_checked_and_traced_without_the_compiler():
    command = [sys.executable, "-c", _CHECKED_AND_TRACED]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    assert done.stdout.splitlines()[-1] == "[]"
