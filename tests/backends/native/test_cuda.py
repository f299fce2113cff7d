"""The GPU backend's choice among plans, on an invented native module."""

import importlib
import math
import threading
from concurrent.futures import ThreadPoolExecutor

import fake_cuda
import numpy as np
import pytest

from pydlbench.backends.base import Preparation
from pydlbench.backends.native import nvml
from pydlbench.backends.native.inputs import RecentInputs
from pydlbench.errors import DeviceLostError, PrimitiveError, UnsupportedError
from pydlbench.ops.descriptor import parse_problem
from pydlbench.ops.table import build_layer
from pydlbench.records.measurement import KernelSpec
from pydlbench.timing.chunk import ChunkRequest, GpuReadings
from pydlbench.verification.inputs import draw_inputs, make_inputs

CONV = build_layer("conv", batch=2, in_channels=3, in_size=5, out_channels=4, kernel=3, padding=1)


def prepare(backend, preparation=None, **words):
    return backend.prepare(
        KernelSpec(layer=CONV, device="cuda:3", **words), preparation or Preparation()
    )


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
    assert kernel.facts.correct.status == "ok"
    assert kernel.facts.setup_s == 0.25
    (launched,) = kernel.facts.kernels
    assert (launched["name"], launched["registers"]) == ("sm90_right", 168)
    assert statuses(kernel)["wrong"] == "failed"
    reasons = {entry["algorithm"]: entry["reason"] for entry in kernel.facts.candidates}
    assert reasons["wrong"] == "element [0, 1, 2, 3] is 1, expected 2"
    assert reasons["half written"] == "7 of 100 elements never written (NaN)"


def test_a_brief_search_is_noted_and_times_launches_once(native, backend, monkeypatch):
    native.offer = [fake_cuda.Plan("right")]
    asked = []
    times = fake_cuda.Kernel.launch_times

    def launch_times(kernel, repetitions):
        asked.append(repetitions)
        return times(kernel, repetitions)

    monkeypatch.setattr(fake_cuda.Kernel, "launch_times", launch_times)
    brief, full = (prepare(backend, Preparation(brief=each)).facts for each in (True, False))
    assert asked == [1, 20]
    assert set(brief.notes) - set(full.notes)


def test_a_plan_that_has_won_and_was_verified_is_not_searched_for_again(native, backend):
    native.offer = [fake_cuda.Plan("slow", 2e-3), fake_cuda.Plan("right")]
    wanted = Preparation(variant=f"right {fake_cuda.Plan.layout}", verified=True)
    kernel = prepare(backend, wanted)
    assert {one.plan.algorithm for one in fake_cuda.Kernel.made} == {"right"}
    assert not any(hasattr(one, "poisoned") for one in fake_cuda.Kernel.made)
    assert (kernel.facts.algorithm, kernel.facts.correct.status) == ("right", "unchecked")
    # Where there is none such, all compete.
    other = prepare(backend, Preparation(variant="another nhwc", verified=True))
    assert other.facts.correct.status == "ok"


def test_samples_that_waited_behind_the_gate_are_counted(native, backend, monkeypatch):
    monkeypatch.setattr(fake_cuda.Kernel, "timeouts", 2)
    native.offer = [fake_cuda.Plan("waits")]
    kernel = prepare(backend)
    assert kernel.sample(ChunkRequest(samples=3)).gate_timeouts == 2
    assert any("waits (" in note for note in kernel.facts.notes)


def test_a_profiler_sees_a_row_s_samples_and_its_one_execution_under_their_names(native, backend):
    native.offer = [fake_cuda.Plan("plain")]
    kernel = prepare(backend, precision="tf32")
    assert [one.marked for one in fake_cuda.Kernel.made if hasattr(one, "marked")] == ["execution"]
    assert native.ranges == []
    kernel.sample(ChunkRequest(samples=3))
    case = KernelSpec(layer=CONV, device="cuda:3", precision="tf32")
    assert native.ranges == [case.label, "end"]


def test_a_row_says_that_there_was_no_gate(native, backend, monkeypatch):
    native.offer = [fake_cuda.Plan("plain")]
    assert prepare(backend).facts.notes == []
    monkeypatch.setenv("PYDLBENCH_GATE", "0")
    (note,) = prepare(backend).facts.notes
    assert "PYDLBENCH_GATE=0" in note


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


def test_a_device_lost_in_the_race_is_no_fault_of_the_plans(native, backend):
    native.offer = [
        fake_cuda.Plan(name, fails="run", device=backend.device) for name in ("one", "two")
    ]
    with pytest.raises(DeviceLostError):
        prepare(backend)


def test_a_device_lost_in_the_peak_product_is_no_fault_of_the_plans(native, backend):
    native.plans = lambda *_, **__: [fake_cuda.Plan("bad", fails="build")]
    with pytest.raises(UnsupportedError):
        backend.probe("gemm_peak", {"precision": "bf16-tc", "size": 64})
    backend.device.lost = True
    with pytest.raises(DeviceLostError):
        backend.probe("gemm_peak", {"precision": "bf16-tc", "size": 64})


def test_a_plan_that_cannot_be_captured_is_timed_by_events(native, backend):
    native.offer = [fake_cuda.Plan("plain", fails="capture")]
    kernel = prepare(backend)
    assert kernel.facts.timing == "events"
    assert kernel.facts.kernels == []
    assert "graph" not in kernel.facts.launch_s
    assert fake_cuda.Kernel.made[-1].settings == ("hot", "events", 0)
    with pytest.raises(UnsupportedError, match="plain, the fastest plan, cannot be captured"):
        prepare(backend, timing="cuda-graph")


class Counter:
    """A GPU of 500 W under load and 100 W without, whose counter steps with each look."""

    def __init__(self, fake_time):
        self.time = fake_time
        self.joules = 0.0

    def mark(self):
        return 0.0

    def since(self, mark):
        assert mark == 0.0
        return GpuReadings(sm_clock_hz=1.4e9, readings=1)

    def energy_j(self):
        self.time.now += 0.1
        self.joules += 0.1 * (500 if self.time.loaded else 100)
        if self.time.now >= self.time.end:
            self.time.finish()
        return self.joules


class FakeTime:
    """Seconds that pass when somebody sleeps or looks; the load lasts until ``end``."""

    def __init__(self):
        self.now, self.end, self.loaded = 0.0, 1.25, False
        self.started, self.over = threading.Event(), threading.Event()

    def run_for(self, _seconds):
        self.loaded = True
        self.started.set()
        self.over.wait(20)
        return {"executions": 100, "seconds": self.end}

    def finish(self):
        self.over.set()

    def sleep(self, seconds):
        self.started.wait(20)
        self.now += seconds

    def monotonic(self):
        if self.now >= self.end:  # the look that ends the load is after it
            while not self.load_is_over():
                pass
        return self.now


def test_energy_is_that_of_the_load_alone(monkeypatch):
    fake = FakeTime()

    class Pool(ThreadPoolExecutor):
        def submit(self, *arguments):
            load = super().submit(*arguments)
            fake.load_is_over = load.done
            return load

    monkeypatch.setattr(nvml, "ThreadPoolExecutor", Pool)
    monkeypatch.setattr(nvml, "time", fake)
    found = nvml.measure_sustained(fake.run_for, Counter(fake))
    assert found.energy_j == pytest.approx(500 * 1.25 / 100)
    assert found.sustained_s == pytest.approx(1.25 / 100)
    assert found.sustained_hz == 1.4e9


def test_a_plan_that_cannot_be_captured_has_no_energy(backend, monkeypatch):
    monkeypatch.setattr(nvml, "_START_S", 0)

    def run_for(_seconds):
        raise PrimitiveError("not while a stream is captured")

    assert set(nvml.measure_sustained(run_for, backend._monitor)) == {None}


def test_without_a_counter_there_is_no_energy(native, backend):
    native.offer = [fake_cuda.Plan("only")]
    kernel = prepare(backend, Preparation(energy=True))
    assert (kernel.facts.energy_j, kernel.facts.power_w) == (None, None)
    # The clock on the wall needs none.
    assert kernel.facts.sustained_s == pytest.approx(1.2 / 1000)
    assert kernel.facts.sustained_hz is None


def test_launches_that_wait_are_refused(native, monkeypatch):
    assert native.offer == []
    cuda = importlib.import_module("pydlbench.backends.native.cuda")
    monkeypatch.setattr(cuda, "load_libraries", dict)
    monkeypatch.setenv("CUDA_LAUNCH_BLOCKING", "1")
    with pytest.raises(UnsupportedError, match="CUDA_LAUNCH_BLOCKING is set"):
        cuda.create("cuda:0")
    monkeypatch.setenv("CUDA_LAUNCH_BLOCKING", "0")
    assert cuda.create("cuda:0").name == "native"


def test_inputs_of_the_row_before_are_used_again(native, backend, monkeypatch):
    asked = []

    def counting(*arguments, **words):
        asked.append(arguments[2])
        return draw_inputs(*arguments, **words)

    monkeypatch.setattr("pydlbench.backends.native.inputs.draw_inputs", counting)
    native.offer = [fake_cuda.Plan("only")]
    steps = (
        {"precision": "fp32"},
        {"precision": "fp32", "cache": "all-cold"},
        {"precision": "fp32", "fuse": "bias-relu"},
        {"precision": "tf32"},
        {"precision": "fp16-tc"},
        {"precision": "fp16-tc", "pass_": "backward-data"},
    )
    for words in steps:
        prepare(backend, **words)
    assert asked == ["fp32", "tf32", "fp16-tc"]
    prepare(backend, Preparation(seed=1), **steps[-1])
    assert asked[3:] == ["fp16-tc"]


def test_a_result_is_downloaded_once(native, backend):
    layer = build_layer("relu", channels=3, batch=2, height=4, width=5)
    source = make_inputs(layer, "forward", "fp32", 0)["src"]
    plan = fake_cuda.Plan("own", results={"dst": np.maximum(source, 0)})
    native.plans = lambda *_, **__: [plan]
    kernel = backend.prepare(KernelSpec(layer=layer, device="cuda:0"), Preparation())
    assert kernel.facts.correct.status == "ok"


@pytest.mark.parametrize("precision", ["fp16", "fp16-tc"])
def test_formats_of_equal_significands_have_equal_inputs(precision):
    layer = build_layer("gemm", m=1024, k=1024, n=1)
    expected, found = (make_inputs(layer, "forward", name, 3) for name in ("tf32", precision))
    assert all(np.array_equal(found[role], expected[role]) for role in expected)


def test_no_right_plan_is_a_failure_that_says_why(native, backend):
    native.offer = [fake_cuda.Plan("wrong", error=0.1)]
    with pytest.raises(PrimitiveError, match="wrong result: element"):
        prepare(backend)


def test_an_error_of_tf32_size_is_a_failure_in_fp32(native, backend):
    native.offer = [fake_cuda.Plan("tf32 in disguise", 1e-4, error=2.0**-12)]
    with pytest.raises(PrimitiveError):
        prepare(backend)
    native.offer = [fake_cuda.Plan("honest", error=2.0**-12, tensor_cores=True)]
    assert prepare(backend, precision="fp16-tc").facts.tensor_cores is True


def test_a_profiler_sees_the_plan_that_the_environment_names(native, backend, monkeypatch):
    fast, slow = fake_cuda.Plan("engine 1", 1e-3), fake_cuda.Plan("engine 2", 2e-3)
    native.offer = [fast, slow]
    monkeypatch.setenv("PYDLBENCH_PLAN", f"engine 2 {slow.layout}")
    facts = prepare(backend).facts
    assert (facts.algorithm, len(facts.candidates)) == ("engine 2", 1)
    assert native.asked[-1][-1]["sweep"]  # what is on no list of the library's is looked for, too
    monkeypatch.setenv("PYDLBENCH_PLAN", "engine 3")
    with pytest.raises(UnsupportedError, match=r"engine 3.*engine 1"):
        prepare(backend)


def test_an_engine_whose_kernels_are_winograds_is_allowed_what_that_needs(native, backend):
    kernel = "void cudnn::winograd_nonfused::winogradWgradOutput4x4<float, float>(float*)"
    native.offer = [fake_cuda.Plan("engine 17", error=2e-5, kernel=kernel)]
    facts = prepare(backend).facts
    assert facts.correct.status == "ok"
    assert "runs cudnn::winograd_nonfused::winogradWgradOutput4x4" in facts.notes
    native.offer = [fake_cuda.Plan("engine 17", error=2e-5)]
    with pytest.raises(PrimitiveError, match="wrong result: "):
        prepare(backend)
    native.offer = [fake_cuda.Plan("engine 17", error=2e-5, fails="capture")]
    with pytest.raises(PrimitiveError, match="wrong result: "):
        prepare(backend)


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
    chunk = kernel.sample(ChunkRequest(samples=3, inner=2, untimed=1))
    assert fake_cuda.Kernel.made[-1].settings == settings
    assert fake_cuda.Kernel.made[-1].requests[-1] == (3, 2, 1)
    assert chunk.seconds == (1e-3,) * 3
    assert chunk.clock_hz == (1.98e9,) * 3
    assert chunk.involuntary is None


def test_behind_a_flush_a_trial_is_single_executions(native, backend):
    native.offer = [fake_cuda.Plan("short", 4e-6), fake_cuda.Plan("other", 4.01e-6)]
    prepare(backend, cache="all-cold")
    assert {inner for kernel in fake_cuda.Kernel.made for _, inner, _ in kernel.requests} == {1}
    fake_cuda.Kernel.made.clear()
    prepare(backend, timing="events")
    assert max(inner for kernel in fake_cuda.Kernel.made for _, inner, _ in kernel.requests) == 13


@pytest.mark.parametrize(
    ("words", "chosen"),
    [({}, "graphs"), ({"timing": "events"}, "events"), ({"cache": "all-cold"}, "events")],
)
def test_finals_are_timed_as_the_row_is(native, backend, words, chosen):
    """Some plans take longer in a graph than between events."""
    native.offer = [
        fake_cuda.Plan("events", 60e-6, graph_time=70e-6),
        fake_cuda.Plan("graphs", 61e-6, graph_time=61e-6),
        fake_cuda.Plan("no graph", 62e-6, fails="capture"),
    ]
    facts = prepare(backend, **words).facts
    assert facts.algorithm == chosen
    times = {each["algorithm"]: min(each["seconds"]) for each in facts.candidates}
    in_graphs = words == {}
    assert times == {
        "events": 70e-6 if in_graphs else 60e-6,
        "graphs": 61e-6,
        "no graph": 62e-6,
    }
    turns = [
        kernel.requests[-1] for kernel in fake_cuda.Kernel.made if kernel.plan.graph_time == 70e-6
    ]
    assert ((1, 10, 1) in turns) == in_graphs  # ten executions in one launch


def test_all_candidates_are_verified_when_asked_for(native, backend):
    native.offer = [fake_cuda.Plan("fast"), fake_cuda.Plan("slow and wrong", 1.0, error=1.0)]
    assert statuses(prepare(backend))["slow and wrong"] == "ok"
    kernel = prepare(backend, Preparation(all_candidates=True))
    assert statuses(kernel)["slow and wrong"] == "failed"


def test_a_fused_bias_is_an_input_of_its_own(native, backend):
    native.offer = [fake_cuda.Plan("fused")]
    case = KernelSpec(layer=CONV, device="cuda:0", fuse="bias-relu")
    bias = RecentInputs().inputs(case, seed=4)["bias"]
    assert bias.shape == (1, 4, 1, 1)
    assert 0 < abs(bias).max() < 8  # of the size of sums of 27 products
    prepare(backend, fuse="bias-relu")
    assert native.asked[-1][2]["fused"] is True
    assert native.asked[-1][:2] == ("forward-inference", "fp32")


@pytest.mark.parametrize(
    ("layer", "words", "text"),
    [
        (CONV, {"precision": "bf16"}, "bf16 is a CPU mode"),
        (CONV, {"layout": "blocked"}, "blocked is for CPUs"),
        (parse_problem("lstm:t2mb1slc4dhc4"), {}, "recurrent: .*nearest: --device cpu"),
        (CONV, {"fuse": "bias-relu", "pass_": "backward-data"}, "forward pass of convolutions"),
        (CONV, {"fuse": "bias"}, "natively on a GPU there is: bias-relu"),
        (
            build_layer("pool", batch=1, channels=1, in_size=4, kernel=2, stride=2),
            {"cache": "weights-cold"},
            "pool2d has no weights",
        ),
        (
            build_layer("pool", batch=1, channels=1, in_size=4, kernel=2, stride=2),
            {"pass_": "backward-weights"},
            "pool2d has no backward-weights pass",
        ),
        (CONV, {"layout": "nhwc"}, "no plan with --layout nhwc"),
    ],
)
def test_what_cannot_be_done_is_refused_with_the_reason(backend, layer, words, text):
    with pytest.raises(UnsupportedError, match=text):
        backend.prepare(KernelSpec(layer=layer, device="cuda:0", **words), Preparation())


def test_the_workspace_limit_reaches_the_library(native, backend):
    native.offer = [fake_cuda.Plan("only")]
    prepare(backend, Preparation(workspace_bytes=12345), layout="nhwc")
    assert native.asked[-1][2]["workspace_limit"] == 12345
    assert native.asked[-1][2]["layout"] == "nhwc"


def test_the_best_product_is_the_peak(native, backend):
    native.plans = lambda *_, **__: [
        fake_cuda.Plan("slow", 2e-3),
        fake_cuda.Plan("bad", fails="build"),
        fake_cuda.Plan("fast", 1e-3),
    ]
    reading = backend.probe("gemm_peak", {"precision": "bf16-tc", "size": 64})
    assert reading["per_second"] == pytest.approx(
        build_layer("gemm", m=64, k=64, n=64).flops("forward") / 1e-3
    )
    assert reading["clock_hz"] == 1.98e9
    assert reading["kernel"] == "64x64x64 cuDNN 9.0 fast"
    with pytest.raises(UnsupportedError, match="probe: heat"):
        backend.probe("heat", {})


def test_sums_of_integers_are_exact(native, backend):
    native.offer = [fake_cuda.Plan("rounds", error=1e-7, accumulate="int32", tensor_cores=True)]
    with pytest.raises(PrimitiveError):
        prepare(backend, precision="int8")
    native.offer = [fake_cuda.Plan("exact", error=0.0, accumulate="int32", tensor_cores=True)]
    facts = prepare(backend, precision="int8").facts
    assert (facts.accumulate, facts.correct.tolerance) == ("int32", 0.0)
