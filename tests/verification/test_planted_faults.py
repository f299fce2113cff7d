"""Wrong results are seen: unwritten tiles, wrong indices, too little precision."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
from right_results import right_results

from pydlbench.errors import UnsupportedError
from pydlbench.ops.descriptor import parse_problem
from pydlbench.ops.table import build_layer
from pydlbench.ops.windows import PASS_OF_CONVOLUTION
from pydlbench.verification import elements
from pydlbench.verification.inputs import (
    largest,
    make_inputs,
    round_to,
    significand_bits,
    smallest_normal,
)
from pydlbench.verification.verify import verify

if TYPE_CHECKING:
    from types import SimpleNamespace

    from numpy.typing import NDArray

    from pydlbench.verification.verify import Verdict

PASSES = ("forward", "backward-data", "backward-weights")
SMALL = build_layer(
    "conv",
    batch=3,
    in_channels=6,
    in_size=(9, 8),
    out_channels=4,
    kernel=3,
    stride=(2, 1),
    padding=(1, 0, 0, 1),
    groups=2,
)
#: Too large to recompute every element, so that the checksums have to find the fault.
LARGE = build_layer("conv", batch=16, in_channels=128, in_size=32, out_channels=128, kernel=1)


def large_result(inputs: dict[str, NDArray[np.float32]]) -> NDArray[np.float32]:
    product = np.einsum(
        "nchw,oc->nohw", inputs["src"], inputs["weights"][:, :, 0, 0], optimize=True
    )
    return np.ascontiguousarray(product)


@pytest.fixture
def few_points(monkeypatch):
    """Leave the finding of faults to the checksums: recompute a single pixel."""
    monkeypatch.setattr("pydlbench.verification.sums._POINT_MACS", 1)


def judge_large(output: NDArray[np.float32], inputs: dict[str, NDArray[np.float32]]) -> Verdict:
    verdict = verify(LARGE, "forward", "fp32", inputs, output, 4)
    assert verdict.points == 128
    return verdict


@pytest.mark.parametrize("pass_", PASSES)
def test_unwritten_elements_are_counted(naive, pass_):
    inputs = make_inputs(SMALL, pass_, "fp32", 1)
    output = naive.conv(SMALL, pass_, inputs)
    output[1:, 1, 1:3, :2] = np.nan
    planted = output[1:, 1, 1:3, :2].size
    verdict = verify(SMALL, pass_, "fp32", inputs, output, 1)
    assert verdict.status == "failed"
    assert verdict.unwritten == planted
    assert f"{planted} of {output.size} elements" in verdict.detail
    assert "never written" in verdict.detail
    assert verdict.rel_error is None


def unwritten_element(output: NDArray[np.float32]) -> None:
    output[7, 77, 17, 27] = np.nan


def swapped_pixels(output: NDArray[np.float32]) -> None:
    output[7, 77, 17, [26, 27]] = output[7, 77, 17, [27, 26]]


def swapped_images(output: NDArray[np.float32]) -> None:
    output[[2, 3], 5] = output[[3, 2], 5]


@pytest.mark.usefixtures("few_points")
@pytest.mark.parametrize(
    ("plant", "detail"),
    [
        (unwritten_element, "1 of 2097152 elements of dst never written"),
        (swapped_pixels, "checksum of dst[7, 77, :, :]"),
        (swapped_images, "checksum of dst["),
    ],
)
def test_a_fault_among_two_million_elements(plant, detail):
    inputs = make_inputs(LARGE, "forward", "fp32", 4)
    output = large_result(inputs)
    assert judge_large(output, inputs).status == "ok"
    plant(output)
    verdict = judge_large(output, inputs)
    assert verdict.status == "failed"
    assert detail in verdict.detail


@pytest.mark.usefixtures("few_points")
def test_a_tile_of_zeros_is_seen_in_bfloat16():
    inputs = make_inputs(LARGE, "forward", "bf16", 4)
    output = round_to("bf16", large_result(inputs))
    assert verify(LARGE, "forward", "bf16", inputs, output, 4).status == "ok"
    output[9, 16:32, 24:, 28:] = 0
    assert verify(LARGE, "forward", "bf16", inputs, output, 4).status == "failed"


@pytest.mark.parametrize("pass_", PASSES)
@pytest.mark.parametrize(
    "wrong",
    [
        pytest.param(lambda y: np.roll(y, 1, axis=0), id="first axis moved by one"),
        pytest.param(lambda y: np.roll(y, 1, axis=1), id="channels moved by one"),
        pytest.param(lambda y: np.roll(y, 1, axis=2), id="rows moved by one"),
        pytest.param(lambda y: np.roll(y, 1, axis=3), id="columns moved by one"),
        pytest.param(np.zeros_like, id="all zero"),
        pytest.param(lambda y: 2 * y, id="added twice"),
    ],
)
def test_wrong_indices(naive, pass_, wrong):
    inputs = make_inputs(SMALL, pass_, "fp32", 1)
    output = wrong(naive.conv(SMALL, pass_, inputs))  # type: ignore[operator]
    verdict = verify(SMALL, pass_, "fp32", inputs, output, 1)
    assert verdict.status == "failed"
    assert verdict.unwritten == 0
    # There is no relative error where the right result is zero: rows that the stride skips.
    assert verdict.rel_error is None or verdict.rel_error > 100 * verdict.tolerance


def test_the_worst_element_is_named(naive):
    inputs = make_inputs(SMALL, "forward", "fp32", 1)
    output = naive.conv(SMALL, "forward", inputs)
    output[2, 3, 1, 5] = 1000
    detail = verify(SMALL, "forward", "fp32", inputs, output, 1).detail
    assert detail.startswith("dst[2, 3, 1, 5] is 1000, expected ")


@pytest.mark.parametrize("pass_", PASSES)
def test_tf32_inputs_are_not_float32(naive, pass_):
    inputs = make_inputs(SMALL, pass_, "fp32", 1)
    truncated = {role: round_to("tf32", array) for role, array in inputs.items()}
    output = naive.conv(SMALL, pass_, truncated)
    assert verify(SMALL, pass_, "fp32", inputs, output, 1).status == "failed"


def test_tf32_is_seen_in_long_sums():
    layer = build_layer("gemm", m=4, k=300_000, n=4)
    inputs = make_inputs(layer, "forward", "fp32", 1)
    exact = inputs["src"].astype(np.float64) @ inputs["weights"].astype(np.float64)
    assert verify(layer, "forward", "fp32", inputs, exact.astype("f4"), 1).status == "ok"
    rounded = [round_to("tf32", inputs[role]).astype(np.float64) for role in ("src", "weights")]
    wrong = (rounded[0] @ rounded[1]).astype(np.float32)
    assert verify(layer, "forward", "fp32", inputs, wrong, 1).status == "failed"


def test_tf32_arithmetic_on_tf32_inputs_is_right(naive):
    inputs = make_inputs(SMALL, "forward", "tf32", 1)
    output = naive.conv(SMALL, "forward", inputs)
    assert verify(SMALL, "forward", "tf32", inputs, output, 1).status == "ok"


@pytest.mark.parametrize("precision", ["fp32", "bf16"])
def test_bfloat16_partial_sums(naive, precision):
    layer = build_layer("conv", batch=2, in_channels=16, in_size=6, out_channels=8, kernel=3)
    inputs = make_inputs(layer, "forward", precision, 1)
    output = naive.conv(layer, "forward", inputs, lambda partial: round_to("bf16", partial))
    assert verify(layer, "forward", precision, inputs, output, 1).status == "failed"
    relaxed = verify(layer, "forward", precision, inputs, output, 1, accumulate="bfloat16")
    assert relaxed.status == "ok"


@pytest.mark.usefixtures("few_points")
def test_wrong_column_of_a_matrix_product(naive):
    layer = build_layer("gemm", m=300, k=300, n=700)
    inputs = make_inputs(layer, "forward", "fp32", 1)
    output = naive.gemm("forward", inputs)
    output[0, 123, 456] = output[0, 124, 456]
    verdict = verify(layer, "forward", "fp32", inputs, output, 1)
    assert verdict.points < output.size
    assert verdict.status == "failed"
    assert verdict.detail.startswith("checksum of dst[0, :, 456] is ")


POOLS = {
    "1-D, dilated": {"in_size": 17, "sides": 1, "kernel": 3, "dilation": 3, "stride": 2},
    "2-D, overlapping": {"in_size": 9, "kernel": 3, "stride": 2},
    "2-D, apart": {"in_size": 9, "kernel": 3, "stride": 3},
    "2-D, dilated": {"in_size": 9, "kernel": 2, "dilation": (2, 4), "stride": (1, 2)},
    "3-D": {"in_size": (5, 6, 7), "kernel": (2, 3, 2), "stride": (2, 1, 2), "padding": 1},
}


@pytest.mark.parametrize("pass_", ["forward", "backward-data"])
@pytest.mark.parametrize("fields", POOLS.values(), ids=POOLS)
def test_a_maximum_of_another_window(naive, pass_, fields):
    """Dense windows in place of dilated ones, or sides in another order."""
    layer = build_layer("pool", batch=2, channels=3, **fields)
    inputs = make_inputs(layer, pass_, "fp32", 1)
    output = naive.pool(layer, pass_, inputs)
    wrong = output[:, :, ::-1]
    assert verify(layer, pass_, "fp32", inputs, wrong, 1).status == "failed"


@pytest.mark.parametrize("precision", ["fp32", "fp16", "bf16"])
def test_a_maximum_over_padding_alone_is_the_least_number_or_infinite(naive, precision):
    layer = build_layer("pool", batch=2, channels=3, in_size=4, kernel=2, stride=2, padding=2)
    inputs = make_inputs(layer, "forward", precision, 1)
    output = naive.pool(layer, "forward", inputs)
    alone = np.isneginf(output)
    assert 0 < alone.sum() < output.size
    assert verify(layer, "forward", precision, inputs, output, 1).status == "ok"
    output[alone] = -largest(precision)
    assert verify(layer, "forward", precision, inputs, output, 1).status == "ok"
    for wrong in (0, -1000, np.inf, np.nan):
        spoilt = output.copy()
        spoilt[np.unravel_index(np.argmax(alone), alone.shape)] = wrong
        assert verify(layer, "forward", precision, inputs, spoilt, 1).status == "failed"
    spoilt = output.copy()
    spoilt[np.unravel_index(np.argmin(alone), alone.shape)] = -largest(precision)
    assert verify(layer, "forward", precision, inputs, spoilt, 1).status == "failed"
    gradient = make_inputs(layer, "backward-data", precision, 1)
    right = naive.pool(layer, "backward-data", gradient)
    assert verify(layer, "backward-data", precision, gradient, right, 1).status == "ok"


def test_a_mean_over_padding_alone_is_refused():
    layer = build_layer(
        "pool", batch=1, channels=1, in_size=4, kernel=2, stride=2, padding=2, mode="avg"
    )
    for pass_ in ("forward", "backward-data"):
        with pytest.raises(UnsupportedError, match="padding alone"):
            make_inputs(layer, pass_, "fp32", 1)
    counted = layer.replace(count_include_pad=True)
    inputs = make_inputs(counted, "forward", "fp32", 1)
    right = counted.reference(inputs)["dst"].astype(np.float32)
    assert verify(counted, "forward", "fp32", inputs, right, 1).status == "ok"


SIDED = {
    "conv1d": build_layer(
        "conv", batch=3, in_channels=6, in_size=(11,), out_channels=4, kernel=3, stride=2, groups=2
    ),
    "conv3d": build_layer(
        "conv",
        batch=2,
        in_channels=4,
        in_size=(4, 5, 6),
        out_channels=3,
        kernel=(2, 3, 2),
        stride=(1, 2, 1),
        padding=(1, 0, 1, 1, 0, 1),
        dilation=(1, 1, 2),
    ),
    "deconv1d": build_layer(
        "deconv", batch=2, in_channels=4, in_size=(7,), out_channels=6, kernel=4, stride=2
    ),
    "deconv3d": build_layer(
        "deconv",
        batch=2,
        in_channels=4,
        in_size=(2, 3, 4),
        out_channels=6,
        kernel=(2, 3, 2),
        stride=(2, 1, 2),
        groups=2,
    ),
}


@pytest.mark.parametrize("points", ["all points", "few points"])
@pytest.mark.parametrize("pass_", PASSES)
@pytest.mark.parametrize("layer", SIDED.values(), ids=SIDED)
def test_faults_in_windows_of_one_and_three_sides(naive, monkeypatch, layer, pass_, points):
    if points == "few points":
        monkeypatch.setattr("pydlbench.verification.sums._POINT_MACS", 1)
    assert layer.kind in SIDED
    inputs = make_inputs(layer, pass_, "fp32", 1)
    right = of_convolution(naive, layer, pass_, inputs)
    verdict = verify(layer, pass_, "fp32", inputs, right, 1)
    assert verdict.status == "ok", verdict
    assert (verdict.points == right.size) == (points == "all points")
    for axis in range(right.ndim):
        for wrong in (np.flip(right, axis), np.roll(right, 1, axis)):
            assert verify(layer, pass_, "fp32", inputs, wrong, 1).status == "failed", axis
    one = right.copy()
    at = tuple(size // 2 for size in right.shape)
    one[at] += 0.01
    verdict = verify(layer, pass_, "fp32", inputs, one, 1)
    assert verdict.status == "failed"
    if points == "all points":
        (role,) = layer.writes(pass_)
        assert verdict.detail.startswith(f"{role}[")
        assert verdict.detail.startswith(f"{role}[{', '.join(map(str, at))}] is ")
    one[at] = np.nan
    assert verify(layer, pass_, "fp32", inputs, one, 1).unwritten == 1


BROADCAST = ("2x1x5x16:1x4x16x8", "3x2x5x7:1x1x7x4", "1x5x7:6x7x4", "2x3x5x7:2x3x7x4")


@pytest.mark.parametrize("points", ["all points", "few points"])
@pytest.mark.parametrize("pass_", PASSES)
@pytest.mark.parametrize("text", BROADCAST)
def test_faults_in_products_spread_over_a_batch(monkeypatch, text, pass_, points):
    """The gradient of a matrix that stands for several of the batch is the sum over them."""
    if points == "few points":
        monkeypatch.setattr("pydlbench.verification.sums._POINT_MACS", 1)
    layer = parse_problem(text)
    inputs = make_inputs(layer, pass_, "fp32", 1)
    (right,) = right_results(layer, pass_, inputs).values()
    verdict = verify(layer, pass_, "fp32", inputs, right, 1)
    assert verdict.status == "ok", verdict
    for axis in range(right.ndim):
        if right.shape[axis] > 1:
            wrong = np.roll(right, 1, axis)
            assert verify(layer, pass_, "fp32", inputs, wrong, 1).status == "failed"
    assert verify(layer, pass_, "fp32", inputs, 4 * right, 1).status == "failed"
    right[(0,) * right.ndim] = np.nan
    assert verify(layer, pass_, "fp32", inputs, right, 1).unwritten == 1


def test_a_gradient_sent_to_the_second_largest_element(naive):
    layer = build_layer("pool", batch=1, channels=1, in_size=2, kernel=2)
    inputs = make_inputs(layer, "backward-data", "bf16", 1)
    output = naive.pool(layer, "backward-data", inputs)
    wrong = np.roll(output, 1, axis=3)
    verdict = verify(layer, "backward-data", "bf16", inputs, wrong, 1)
    assert verdict.status == "failed"
    assert verdict.unwritten == 0


def test_infinite_elements_are_not_called_unwritten(naive):
    inputs = make_inputs(SMALL, "forward", "fp32", 1)
    output = naive.conv(SMALL, "forward", inputs)
    output[0, 0, 0, 0] = np.inf
    verdict = verify(SMALL, "forward", "fp32", inputs, output, 1)
    assert (verdict.status, verdict.unwritten) == ("failed", 0)
    assert verdict.detail == f"1 of {output.size} elements of dst infinite"


@pytest.mark.parametrize("image", [0, -1])
def test_a_shuffled_gradient_in_the_first_or_the_last_of_many_images(naive, monkeypatch, image):
    """Sums over a plane do not see it, so these images have to be compared one by one."""
    monkeypatch.setattr(elements, "_COMPARISONS", 1)
    layer = build_layer("pool", batch=40, channels=2, in_size=4, kernel=2)
    inputs = make_inputs(layer, "backward-data", "fp32", 1)
    output = naive.pool(layer, "backward-data", inputs)
    for seed in range(5):
        assert verify(layer, "backward-data", "fp32", inputs, output, seed).status == "ok"
    wrong = output.copy()
    wrong[image] = wrong[image, :, ::-1, ::-1]
    for seed in range(5):
        assert verify(layer, "backward-data", "fp32", inputs, wrong, seed).status == "failed"


def test_a_single_image_is_compared_once(naive, monkeypatch):
    monkeypatch.setattr(elements, "_COMPARISONS", 1)
    for batch in (1, 2, 3):
        layer = build_layer("pool", batch=batch, channels=2, in_size=4, kernel=2)
        inputs = make_inputs(layer, "backward-data", "fp32", 1)
        output = naive.pool(layer, "backward-data", inputs)
        assert verify(layer, "backward-data", "fp32", inputs, output, 1).status == "ok"


TINY = {
    "gemm": (build_layer("gemm", m=12, k=9, n=10, batch_count=2), PASSES),
    "conv2d": (SMALL, PASSES),
    "deconv2d": (
        build_layer(
            "deconv", batch=2, in_channels=4, in_size=5, out_channels=6, kernel=3, stride=2
        ),
        PASSES,
    ),
    "pool2d": (
        build_layer("pool", batch=2, channels=3, in_size=9, kernel=3, stride=2, mode="avg"),
        PASSES[:2],
    ),
}


def tiny_case(
    naive: SimpleNamespace, layer: Any, pass_: str, precision: str
) -> tuple[dict[str, NDArray[np.float32]], NDArray[np.float32]]:
    """Return inputs whose results are subnormal, and the result as storing it rounds it."""
    least = smallest_normal(precision)
    inputs = make_inputs(layer, pass_, precision, 6)
    small = least / 2 if len(inputs) == 1 else (least / 4) ** (1 / 2)
    inputs = {role: round_to(precision, array * small) for role, array in inputs.items()}
    if layer.kind == "gemm":
        result = naive.gemm(pass_, inputs)
    elif layer.kind == "pool2d":
        result = naive.pool(layer, pass_, inputs)
    else:
        result = of_convolution(naive, layer, pass_, inputs)
    result = round_to(precision, result)
    assert np.any((result != 0) & (np.abs(result) < least))
    return inputs, result


def of_convolution(
    naive: SimpleNamespace, layer: Any, pass_: str, inputs: dict[str, NDArray[np.float32]]
) -> NDArray[np.float32]:
    """Return the result of a convolution's pass, or of the one that a transposed one stands for."""
    if layer.op == "conv":
        return naive.conv(layer, pass_, inputs)
    other = {"src": "dst", "dst": "src", "weights": "weights"}
    turned = {other[role]: array for role, array in inputs.items()}
    return naive.conv(layer.convolution, PASS_OF_CONVOLUTION[pass_], turned)


@pytest.mark.product
@pytest.mark.parametrize("points", ["all points", "few points"])
@pytest.mark.parametrize("precision", ["fp16", "fp16-tc", "fp8-tc"])
@pytest.mark.parametrize(
    ("kind", "pass_"), [(kind, pass_) for kind, (_, passes) in TINY.items() for pass_ in passes]
)
def test_subnormal_results_are_right_when_rounded_right(
    naive, monkeypatch, kind, pass_, precision, points
):
    """They have fewer digits; one step more or less is wrong nevertheless."""
    if points == "few points":
        monkeypatch.setattr("pydlbench.verification.sums._POINT_MACS", 1)
        monkeypatch.setattr("pydlbench.verification.sums._PATCH_ELEMENTS", 1)
    layer = TINY[kind][0]
    inputs, right = tiny_case(naive, layer, pass_, precision)
    found = verify(layer, pass_, precision, inputs, right, 1)
    assert found.status == "ok", found.detail
    for wrong in (np.zeros_like(right), 1.5 * right, np.roll(right, 1, axis=-1)):
        assert verify(layer, pass_, precision, inputs, wrong, 1).status == "failed"
    if points == "few points":
        return
    step = smallest_normal(precision) * 2.0 ** (1 - significand_bits(precision))
    wrong = right.copy()
    wrong.flat[np.argmin(np.abs(right))] += np.float32(1.01 * step)
    assert verify(layer, pass_, precision, inputs, wrong, 1).status == "failed"


def test_a_small_sum_of_float16_products_is_right_to_its_last_step():
    """1.09e-5 has seven digits of two in float16."""
    layer = build_layer("gemm", m=1, k=25, n=2, batch_count=2)
    for seed in range(40):
        inputs = make_inputs(layer, "backward-weights", "fp16", seed)
        exact = inputs["src"].swapaxes(1, 2).astype(np.float64) @ inputs["dst"]
        right = round_to("fp16", exact.astype(np.float32))
        found = verify(layer, "backward-weights", "fp16", inputs, right, seed)
        assert found.status == "ok", (seed, found.detail)
