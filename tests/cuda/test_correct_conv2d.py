"""Every plan of small odd convolutions is right, to the device's judgement and to the host's."""

import pytest

from pydlbench.errors import UnsupportedError
from pydlbench.ops.table import build_layer
from pydlbench.records.measurement import KernelSpec
from pydlbench.words import PASSES

pytestmark = pytest.mark.gpu

# The mode is the last word of each test's name, so that benchmarks/gpu_kit.py can run the
# modes one by one: -k 'fp16-tc]'.
MODES = ("fp32", "tf32", "fp16", "fp16-tc", "bf16-tc")
LAYERS = {
    "3x3": build_layer(
        "conv", batch=2, in_channels=5, in_size=(7, 9), out_channels=11, kernel=3, padding=1
    ),
    "stride 2 of 3 channels": build_layer(
        "conv", batch=3, in_channels=3, in_size=(15, 13), out_channels=33, kernel=(5, 3), stride=2
    ),
    "1x1": build_layer("conv", batch=3, in_channels=33, in_size=(5, 7), out_channels=17, kernel=1),
    "asymmetric": build_layer(
        "conv", batch=2, in_channels=8, in_size=9, out_channels=8, kernel=3, padding=(0, 1, 2, 0)
    ),
    "dilated": build_layer(
        "conv",
        batch=2,
        in_channels=8,
        in_size=(11, 9),
        out_channels=16,
        kernel=3,
        padding=2,
        dilation=2,
    ),
    "3 groups": build_layer(
        "conv", batch=2, in_channels=6, in_size=7, out_channels=9, kernel=3, padding=1, groups=3
    ),
    "2 groups of 16": build_layer(
        "conv", batch=2, in_channels=32, in_size=6, out_channels=32, kernel=3, padding=1, groups=2
    ),
    "depthwise": build_layer(
        "conv",
        batch=2,
        in_channels=16,
        in_size=(9, 8),
        out_channels=16,
        kernel=3,
        padding=1,
        groups=16,
    ),
    "aligned": build_layer(
        "conv", batch=2, in_channels=64, in_size=8, out_channels=64, kernel=3, padding=1
    ),
}


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("pass_", PASSES)
@pytest.mark.parametrize("name", LAYERS)
def test_every_plan_is_right(all_right, name, pass_, mode):
    found = all_right(LAYERS[name], pass_=pass_, precision=mode)
    tensor = mode not in ("fp32", "fp16")
    assert {one.plan.tensor_cores for one in found} == {tensor}


@pytest.mark.parametrize("mode", MODES)
def test_the_forward_pass_of_training(all_right, mode):
    all_right(LAYERS["3x3"], propagation="training", precision=mode)


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("name", ["3x3", "asymmetric", "aligned"])
def test_bias_and_relu_in_the_same_kernel(all_right, name, mode):
    for one in all_right(LAYERS[name], precision=mode, fuse="bias-relu"):
        assert one.device is not None
        assert "bias" in {tensor["role"] for tensor in one.plan.tensors}


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("pass_", PASSES)
def test_aligned_shapes_have_plans_in_every_mode_of_the_card(gpu, pass_, mode):
    least = {"fp32": 50, "fp16": 53, "fp16-tc": 70, "tf32": 80, "bf16-tc": 80}[mode]
    facts = gpu.device.facts
    case = KernelSpec(layer=LAYERS["aligned"], pass_=pass_, precision=mode, device="cuda:0")
    if 10 * facts["major"] + facts["minor"] < least:
        with pytest.raises(UnsupportedError, match=f"has no {mode}: it needs"):
            gpu.plans(case)
    else:
        assert gpu.check(case)


@pytest.mark.parametrize(("layout", "mode"), [("nchw", "fp32"), ("nhwc", "fp32")])
def test_a_layout_restricts_the_plans(gpu, layout, mode):
    case = KernelSpec(layer=LAYERS["aligned"], precision=mode, layout=layout, device="cuda:0")
    found = gpu.plans(case)
    assert found
    for plan in found:
        (source,) = [tensor for tensor in plan.tensors if tensor["role"] == "src"]
        assert (source["strides"][1] == 1) == (layout == "nhwc")


@pytest.mark.parametrize("mode", ["fp8-tc"])
def test_fp8_is_for_products(gpu, mode):
    case = KernelSpec(layer=LAYERS["aligned"], precision=mode, device="cuda:0")
    with pytest.raises(UnsupportedError, match="fp8-tc is for GEMM"):
        gpu.plans(case)
