"""The GPU backend's choice among plans, on an invented native module."""

from __future__ import annotations

import importlib
import math
import sys
from pathlib import Path

import pytest

from pydlbench.backends.base import Preparation
from pydlbench.backends.case import Case
from pydlbench.errors import DeviceLostError, PrimitiveError, UnsupportedError
from pydlbench.layers import Conv2d, Gemm, Pool2d
from pydlbench.timing.chunk import Request

sys.path.insert(0, str(Path(__file__).parent))
import fake_cuda

sys.path.pop(0)

CONV = Conv2d.of(batch=2, in_channels=3, in_size=5, out_channels=4, kernel=3, padding=1)
_MODULES = ("cuda", "cuda_choice", "cuda_problems", "cuda_probes", "cuda_libraries")


@pytest.fixture
def native(monkeypatch):
    """The invented module, with the backend's own modules imported on top of it."""
    module = fake_cuda.Module()
    fake_cuda.Kernel.made.clear()
    monkeypatch.setitem(sys.modules, "pydlbench._cuda", module)
    import pydlbench

    monkeypatch.setattr(pydlbench, "_cuda", module, raising=False)
    package = importlib.import_module("pydlbench.backends.native")
    for name in _MODULES:
        monkeypatch.delitem(sys.modules, f"pydlbench.backends.native.{name}", raising=False)
        monkeypatch.delattr(package, name, raising=False)
    yield module
    for name in _MODULES:  # built on the invented one: nobody else may see them
        sys.modules.pop(f"pydlbench.backends.native.{name}", None)
        vars(package).pop(name, None)


@pytest.fixture
def backend(native, monkeypatch):
    assert native.offer == []
    cuda = importlib.import_module("pydlbench.backends.native.cuda")
    monkeypatch.setattr(cuda.cuda_libraries, "load", dict)
    return cuda.create("cuda:3")


def prepare(backend, preparation=None, **words):
    return backend.prepare(Case(layer=CONV, device="cuda:3", **words), preparation or Preparation())


def statuses(kernel):
    return {entry["algorithm"]: entry["status"] for entry in kernel.facts.candidates}


def test_the_fastest_right_plan_is_chosen(native, backend):
    native.offer = [
        fake_cuda.Plan("slow", 2e-3),
        fake_cuda.Plan("wrong", 0.5e-3, error=0.1),
        fake_cuda.Plan("half written", 0.6e-3, unwritten=7, error=math.nan),
        fake_cuda.Plan("right", 1e-3),
    ]
    kernel = prepare(backend)
    assert kernel.facts.algorithm == "right"
    assert kernel.facts.correct["status"] == "ok"
    assert kernel.facts.setup_s == 0.25
    assert statuses(kernel)["wrong"] == "failed"
    reasons = {entry["algorithm"]: entry["reason"] for entry in kernel.facts.candidates}
    assert reasons["wrong"] == "element [0, 1, 2, 3] is 1, expected 2"
    assert reasons["half written"] == "7 of 100 elements never written (NaN)"


@pytest.mark.parametrize("fate", ["build", "memory"])
def test_a_plan_that_fails_costs_itself_only(native, backend, fate):
    native.offer = [fake_cuda.Plan("bad", 1e-6, fails=fate), fake_cuda.Plan("good")]
    kernel = prepare(backend)
    assert kernel.facts.algorithm == "good"
    assert statuses(kernel) == {"good": "ok", "bad": "failed"}


def test_after_a_lost_device_nothing_more_is_tried(native, backend):
    native.offer = [fake_cuda.Plan("bad", fails="lost"), fake_cuda.Plan("good")]
    with pytest.raises(DeviceLostError):
        prepare(backend)
    assert fake_cuda.Kernel.made == []


def test_no_right_plan_is_a_failure_that_says_why(native, backend):
    native.offer = [fake_cuda.Plan("wrong", error=0.1)]
    with pytest.raises(PrimitiveError, match="no plan gives a right result: element"):
        prepare(backend)


def test_an_error_of_tf32_size_is_a_failure_in_fp32(native, backend):
    native.offer = [fake_cuda.Plan("tf32 in disguise", 1e-4, error=2.0**-12)]
    with pytest.raises(PrimitiveError):
        prepare(backend)
    native.offer = [fake_cuda.Plan("honest", error=2.0**-12, tensor_cores=True)]
    assert prepare(backend, precision="fp16-tc").facts.tensor_cores is True


@pytest.mark.parametrize(
    ("words", "settings"),
    [
        ({}, ("hot", "cuda-graph", 500)),
        ({"timing": "events"}, ("hot", "events", 0)),
        ({"cache": "all-cold"}, ("all-cold", "events", 0)),
        ({"cache": "all-cold", "timing": "cuda-graph"}, ("all-cold", "cuda-graph", 500)),
    ],
)
def test_what_is_timed_in_the_end(native, backend, words, settings):
    native.offer = [fake_cuda.Plan("only")]
    kernel = prepare(backend, Preparation(cold_bytes=500), **words)
    assert kernel.facts.timing == settings[1]
    chunk = kernel.sample(Request(samples=3, inner=2, untimed=1))
    assert fake_cuda.Kernel.made[-1].settings == settings
    assert fake_cuda.Kernel.made[-1].requests[-1] == (3, 2, 1)
    assert chunk.seconds == (1e-3,) * 3
    assert chunk.clock_hz == (1.98e9,) * 3
    assert chunk.involuntary == ()


def test_behind_a_flush_a_trial_is_single_executions(native, backend):
    native.offer = [fake_cuda.Plan("short", 4e-6), fake_cuda.Plan("other", 4.01e-6)]
    prepare(backend, cache="all-cold")
    assert {inner for kernel in fake_cuda.Kernel.made for _, inner, _ in kernel.requests} == {1}
    fake_cuda.Kernel.made.clear()
    prepare(backend)
    assert max(inner for kernel in fake_cuda.Kernel.made for _, inner, _ in kernel.requests) == 13


def test_all_candidates_are_verified_when_asked_for(native, backend):
    native.offer = [fake_cuda.Plan("fast"), fake_cuda.Plan("slow and wrong", 1.0, error=1.0)]
    assert statuses(prepare(backend))["slow and wrong"] == "ok"
    kernel = prepare(backend, Preparation(all_candidates=True))
    assert statuses(kernel)["slow and wrong"] == "failed"


def test_a_fused_bias_is_an_input_of_its_own(native, backend):
    native.offer = [fake_cuda.Plan("fused")]
    choice = importlib.import_module("pydlbench.backends.native.cuda_choice")
    case = Case(layer=CONV, device="cuda:0", fuse="bias-relu")
    made = choice.Choice(fake_cuda.Device(0), case, Preparation(seed=4))
    bias = made._arena.inputs["bias"]
    assert bias.shape == (1, 4, 1, 1)
    assert abs(bias).max() <= 1
    prepare(backend, fuse="bias-relu")
    assert native.asked[-1][2]["fused"] is True
    assert native.asked[-1][:2] == ("forward-inference", "fp32")


@pytest.mark.parametrize(
    ("layer", "words", "text"),
    [
        (CONV, {"precision": "bf16"}, "bf16 is a CPU mode"),
        (CONV, {"layout": "blocked"}, "blocked is for CPUs"),
        (CONV, {"fuse": "bias-relu", "pass_": "backward-data"}, "forward pass of convolutions"),
        (
            Pool2d.of(batch=1, channels=1, in_size=4, kernel=2, stride=2),
            {"cache": "weights-cold"},
            "pool2d has no weights",
        ),
        (
            Pool2d.of(batch=1, channels=1, in_size=4, kernel=2, stride=2),
            {"pass_": "backward-weights"},
            "pool2d has no backward-weights pass",
        ),
        (CONV, {"layout": "nhwc"}, "no plan with --layout nhwc"),
    ],
)
def test_what_cannot_be_done_is_refused_with_the_reason(backend, layer, words, text):
    with pytest.raises(UnsupportedError, match=text):
        backend.prepare(Case(layer=layer, device="cuda:0", **words), Preparation())


def test_the_workspace_limit_reaches_the_library(native, backend):
    native.offer = [fake_cuda.Plan("only")]
    prepare(backend, Preparation(workspace_bytes=12345), layout="nhwc")
    assert native.asked[-1][2]["workspace_limit"] == 12345
    assert native.asked[-1][2]["layout"] == "nhwc"


def test_the_best_product_is_the_peak(native, backend):
    native.gemm_plans = lambda *_, **__: [
        fake_cuda.Plan("slow", 2e-3),
        fake_cuda.Plan("bad", fails="build"),
        fake_cuda.Plan("fast", 1e-3),
    ]
    reading = backend.probe("gemm_peak", {"precision": "bf16-tc", "size": 64})
    assert reading["per_second"] == pytest.approx(Gemm(m=64, k=64, n=64).flops("forward") / 1e-3)
    assert reading["clock_hz"] == 1.98e9
    assert reading["kernel"] == "64x64x64 cuDNN 9.0 fast"
    with pytest.raises(UnsupportedError, match="no such probe: heat"):
        backend.probe("heat", {})
