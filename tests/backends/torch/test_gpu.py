"""The GPU's side of the backend, as far as a CPU can run it: order of launches, facts, numbers."""

import warnings

import pytest
import torch
import torch.nn.functional as F  # noqa: N812 - PyTorch calls it so itself

from pydlbench.backends.base import Preparation
from pydlbench.backends.steps.requests import request_step
from pydlbench.backends.torch import settings
from pydlbench.backends.torch.layers.forward import ATTENTION_KERNELS, FORWARD, TorchForwardOptions
from pydlbench.errors import UnsupportedError
from pydlbench.ops.table import build_layer
from pydlbench.records.measurement import KernelSpec, kernel_name
from pydlbench.records.step import StepPreparation, StepSpec
from pydlbench.timing.chunk import ChunkRequest
from pydlbench.words import FP8_PRECISIONS, PASSES

CONV = build_layer("conv", batch=2, in_channels=4, in_size=6, out_channels=8, kernel=3, padding=1)
POOL = build_layer("pool", batch=2, channels=3, in_size=7, kernel=3, stride=2)


@pytest.mark.parametrize(
    ("words", "timing"),
    [
        ({"layer": CONV, "precision": "fp32"}, "cuda-graph"),
        ({"layer": CONV, "precision": "bf16-tc", "timing": "events"}, "events"),
        ({"layer": build_layer("gemm", m=5, k=7, n=3), "precision": "tf32"}, "cuda-graph"),
        ({"layer": POOL, "precision": "bf16-tc", "pass_": "backward-data"}, "cuda-graph"),
    ],
)
def test_facts_of_a_row(gpu_backend, monkeypatch, words, timing):
    case = KernelSpec(device="cuda:0", **words)
    found = gpu_backend.variants(case)[:1]
    if case.layer.weight_elements and case.precision != "fp32":
        assert found[0].accumulate == "float32-tensor"
    if case.layer is POOL:
        # This one really runs on a CPU, where sums are kept in what is stored.
        object.__setattr__(found[0], "accumulate", "bfloat16")
    monkeypatch.setattr(gpu_backend, "variants", lambda _: found)
    kernel = gpu_backend.prepare(case, Preparation())
    facts = kernel.facts
    assert facts.correct.status == "ok"
    assert facts.timing == timing
    assert facts.accumulate == ("bfloat16" if case.layer is POOL else "float32")
    assert facts.algorithm.endswith("(pad + sm90_xmma_fprop)")
    assert set(facts.launch_s) == {"event", "graph", "host", "enqueue"}
    assert [one["name"] for one in facts.kernels] == ["pad", "sm90_xmma_fprop"]
    switches = {"fp32": "allow_tf32 off", "tf32": "allow_tf32 on"}
    if case.precision in switches:
        assert switches[case.precision] in facts.notes
    assert any("cudnn.benchmark" in note for note in facts.notes) is (case.layer is CONV)
    chunk = kernel.sample(ChunkRequest(samples=2))
    assert len(chunk.seconds) == 2


@pytest.mark.parametrize("pass_", PASSES)
def test_a_batch_of_products_is_tried_as_a_grouped_one(gpu_backend, pass_):
    layer = build_layer("gemm", m=8, k=16, n=32, batch_count=3)
    case = KernelSpec(layer=layer, device="cuda:0", precision="bf16-tc", pass_=pass_)
    facts = gpu_backend.prepare(case, Preparation(all_candidates=True)).facts
    grouped = [one for one in facts.candidates if one["algorithm"].startswith("grouped: ")]
    assert {one["algorithm"].split()[1] for one in grouped} == {"aten::_grouped_mm"}
    assert {one["status"] for one in grouped} == {"ok"}
    assert len(facts.candidates) == 2 * len(grouped)
    # It is bfloat16's.
    others = gpu_backend.variants(KernelSpec(layer=layer, device="cuda:0", precision="fp16-tc"))
    assert not any(one.algorithm.startswith("grouped") for one in others)


def test_a_row_with_cold_caches_and_the_energy_of_one(gpu_backend, runtime):
    case = KernelSpec(layer=POOL, device="cuda:0", cache="all-cold")
    facts = gpu_backend.prepare(case, Preparation(energy=True)).facts
    assert facts.timing == "events"
    assert facts.sustained_s == 1 / 400
    asked = {entry.partition(" ")[0] for entry in runtime.log} - {"wait", "call"}
    # A graph only tells what a launch costs.
    assert asked == {"all-cold", "capture", "graph"}
    assert "all-cold for 1.2 s" in runtime.log


@pytest.mark.parametrize(
    ("words", "sentence"),
    [
        ({"cache": "weights-cold"}, "there is: hot, all-cold"),
        ({"cache": "all-cold", "timing": "cuda-graph"}, "nearest: --timing events"),
    ],
)
def test_states_of_the_cache_that_are_not_brought_about(gpu_backend, words, sentence):
    with pytest.raises(UnsupportedError, match=sentence):
        gpu_backend.prepare(KernelSpec(layer=CONV, device="cuda:0", **words), Preparation())


@pytest.mark.parametrize("precision", FP8_PRECISIONS)
@pytest.mark.parametrize("pass_", PASSES)
def test_fp8_products_have_both_factors_along_the_sum(gpu_backend, monkeypatch, pass_, precision):
    case = KernelSpec(
        layer=build_layer("gemm", m=32, k=48, n=16),
        device="cuda:0",
        precision=precision,
        pass_=pass_,
    )
    (variant,) = gpu_backend.variants(case)
    monkeypatch.setattr(gpu_backend, "variants", lambda _: [variant])
    asked = []
    multiply = torch._scaled_mm

    def scaled(a, b, *scales, **words):
        asked.append((a.stride(1), b.stride(0), words["use_fast_accum"]))
        return multiply(a, b, *scales, **words)

    monkeypatch.setattr(torch, "_scaled_mm", scaled)
    facts = gpu_backend.prepare(case, Preparation()).facts
    assert (facts.correct.status, facts.accumulate) == ("ok", "float32")
    assert set(asked) == {(1, 1, precision == "fp8-tc-fast")}


ATTENTION = {"batch": 2, "heads": 4, "queries": 8, "size": 16}


@pytest.mark.parametrize("pass_", ["forward", "backward-data"])
@pytest.mark.parametrize(
    "words", [{}, {"causal": True}, {"kv_heads": 2, "queries": 1, "keys": 9}], ids=str
)
def test_each_kernel_of_attention_is_a_candidate_and_one_that_is_not_there_says_so(
    gpu_backend, words, pass_
):
    # A CPU has a flash kernel and the formula, and neither of the others.
    layer = build_layer("attention", **{**ATTENTION, **words})
    case = KernelSpec(layer=layer, device="cuda:0", precision="bf16-tc", pass_=pass_)
    facts = gpu_backend.prepare(case, Preparation(all_candidates=True)).facts
    candidates = {one["algorithm"].partition(":")[0]: one for one in facts.candidates}
    assert candidates.keys() == set(ATTENTION_KERNELS)
    status = {name: one["status"] for name, one in candidates.items()}
    assert status == {
        name: "ok" if name in ("FLASH_ATTENTION", "MATH") else "failed" for name in status
    }
    assert candidates["CUDNN_ATTENTION"]["reason"].startswith("CUDNN_ATTENTION: ")
    assert "aten::_scaled_dot_product_flash" in candidates["FLASH_ATTENTION"]["algorithm"]
    assert "aten::bmm" in candidates["MATH"]["algorithm"]
    assert facts.correct.status == "ok"


def test_why_a_kernel_of_attention_is_not_there_is_the_last_thing_that_it_warns_of(monkeypatch):
    def refuse(*_, **__):
        warnings.warn("Flash attention requires\nhalf precision", stacklevel=1)
        raise RuntimeError("No available kernel. Aborting execution.")

    monkeypatch.setattr(F, "scaled_dot_product_attention", refuse)
    layer = build_layer("attention", **ATTENTION)
    attend = FORWARD["attention"](layer, TorchForwardOptions(kernel="FLASH_ATTENTION"))
    with pytest.raises(UnsupportedError) as caught:
        attend(*(torch.zeros(1) for _ in range(3)))
    assert str(caught.value) == "FLASH_ATTENTION: Flash attention requires half precision"


def test_tf32_is_allowed_inside_only():
    def switches():
        return torch.backends.cudnn.allow_tf32, torch.backends.cuda.matmul.allow_tf32

    # With the threads that there are: they are the process's, and other tests count them.
    settings.choose(torch.get_num_threads())
    with settings.guard(KernelSpec(layer=CONV, precision="tf32", device="cuda:0"))():
        assert switches() == (True, True)
    assert switches() == (False, False)
    with settings.guard(KernelSpec(layer=CONV, device="cuda:0"))():
        assert switches() == (False, False)


@pytest.mark.parametrize(
    ("name", "short"),
    [
        ("void cudnn::nchwToNhwcKernel<float, (int)3>(params)", "cudnn::nchwToNhwcKernel"),
        (
            "void at::native::(anonymous namespace)::max_pool_forward_nchw<float, int>(int)",
            "at::native::max_pool_forward_nchw",
        ),
        ("sm90_xmma_fprop_implicit_gemm_f32", "sm90_xmma_fprop_implicit_gemm_f32"),
        (
            "void cutlass::Kernel2<cutlass_80_simt_sgemm_256x128_8x4_nn_align1>(int)",
            "cutlass_80_simt_sgemm_256x128_8x4_nn_align1",
        ),
    ],
)
def test_names_of_kernels_are_without_their_arguments(name, short):
    assert kernel_name({"name": name}) == short


@pytest.mark.gpu
@pytest.mark.parametrize("precision", ["fp32", "tf32", "fp16-tc", "bf16-tc"])
@pytest.mark.parametrize(
    "layer", [CONV, POOL, build_layer("gemm", m=64, k=64, n=32)], ids=lambda x: x.kind
)
def test_on_a_gpu(layer, precision):
    from pydlbench.backends.torch.backend import create

    made = create("cuda:0")
    for pass_ in layer.passes:
        case = KernelSpec(layer=layer, device="cuda:0", precision=precision, pass_=pass_)
        kernel = made.prepare(case, Preparation())
        assert kernel.facts.correct.status == "ok"
        assert kernel.facts.timing == "cuda-graph"
        assert all(one > 0 for one in kernel.sample(ChunkRequest(samples=3, inner=4)).seconds)


@pytest.mark.gpu
@pytest.mark.filterwarnings("default")  # of the compiler's
@pytest.mark.parametrize("mode", ["eager", "compiled"])
@pytest.mark.parametrize("phase", ["forward", "training"])
def test_a_step_on_a_gpu_is_traced_and_replayed_from_a_graph(mode, phase):
    from pydlbench.backends.torch.backend import create

    spec = StepSpec(model="mnist", batch=16, mode=mode, phase=phase, device="cuda:0")
    how = StepPreparation(checks=False)
    kernel = request_step(create("cuda:0"), spec.to_dict(), how.to_dict())
    assert all(
        one > 0 for one in kernel.sample(ChunkRequest(samples=3, timing="cuda-graph")).seconds
    )
    trace = kernel.trace()
    seconds = kernel.sample(ChunkRequest(samples=1, untimed=1, timing="profile")).seconds
    calls_s = dict(zip(trace.calls, seconds[2:], strict=False))
    fused = [each for call, each in calls_s.items() if call.operator.startswith("triton_")]
    assert bool(fused) is (mode == "compiled")
    assert all(each > 0 for each in fused)
    modules = {call.module for call, each in calls_s.items() if each > 0}
    assert modules >= {"conv1", "conv2"}
