"""Every plan of small matrix products is right, to the device's judgement and to the host's."""

import pytest

from pydlbench.errors import UnsupportedError
from pydlbench.ops.table import build_layer
from pydlbench.records.measurement import KernelSpec
from pydlbench.words import FP8_PRECISIONS, GPU_PRECISIONS, PASSES

pytestmark = pytest.mark.gpu

LAYERS = {
    "odd": build_layer("gemm", m=7, k=33, n=5),
    "a row": build_layer("gemm", m=1, k=100, n=17),
    "even": build_layer("gemm", m=32, k=48, n=80),
    "3 odd": build_layer("gemm", m=9, k=31, n=13, batch_count=3),
    "5 aligned": build_layer("gemm", m=16, k=64, n=32, batch_count=5),
    "aligned": build_layer("gemm", m=128, k=256, n=64),
    "long": build_layer("gemm", m=16, k=4096, n=16),
}


@pytest.mark.parametrize("mode", GPU_PRECISIONS)
@pytest.mark.parametrize("pass_", PASSES)
@pytest.mark.parametrize("name", LAYERS)
def test_every_plan_is_right(all_right, name, pass_, mode):
    found = all_right(LAYERS[name], pass_=pass_, precision=mode)
    tensor = mode not in ("fp32", "fp16")
    # Where the library does not tell, the mode has been asked for and the error must fit it.
    assert {one.plan.tensor_cores for one in found} <= {tensor, None}


@pytest.mark.parametrize("mode", [mode for mode in GPU_PRECISIONS if mode not in FP8_PRECISIONS])
@pytest.mark.parametrize("name", ["odd", "even", "aligned"])
def test_bias_and_relu_in_the_same_kernel(all_right, name, mode):
    for one in all_right(LAYERS[name], precision=mode, fuse="bias-relu"):
        assert "bias" in {tensor["role"] for tensor in one.plan.tensors}


@pytest.mark.parametrize("mode", ["fp32"])
def test_transposed_storage_is_among_the_plans(gpu, mode):
    case = KernelSpec(layer=LAYERS["aligned"], precision=mode, device="cuda:0")
    assert {plan.variant for plan in gpu.plans(case)} >= {"plain", "transposed"}


@pytest.mark.parametrize("mode", GPU_PRECISIONS)
def test_aligned_products_exist_in_every_mode_of_the_card(gpu, mode):
    least = {"fp32": 50, "fp16": 60, "fp16-tc": 70, "tf32": 80, "bf16-tc": 80}.get(mode, 89)
    facts = gpu.device.facts
    case = KernelSpec(layer=LAYERS["aligned"], precision=mode, device="cuda:0")
    if 10 * facts["major"] + facts["minor"] < least:
        with pytest.raises(UnsupportedError, match=f"has no {mode}: it needs"):
            gpu.plans(case)
    else:
        assert gpu.check(case)


@pytest.mark.parametrize(
    "layer", [build_layer("gemm", m=16, k=24, n=32), build_layer("gemm", m=16, k=32, n=33)]
)
def test_fp8_needs_multiples_of_16(gpu, layer):
    case = KernelSpec(layer=layer, precision="fp8-tc", device="cuda:0")
    with pytest.raises(UnsupportedError, match="fp8-tc") as caught:
        gpu.plans(case)
    facts = gpu.device.facts
    if (facts["major"], facts["minor"]) >= (8, 9):
        assert "16" in str(caught.value)
