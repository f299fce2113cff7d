"""Right results of an independent float32 implementation pass, whatever the layer."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pydlbench.ops.table import build_layer
from pydlbench.verification.inputs import make_inputs, round_to
from pydlbench.verification.verify import verify

if TYPE_CHECKING:
    from numpy.typing import NDArray

PASSES = ("forward", "backward-data", "backward-weights")
PRECISIONS = ("fp32", "bf16", "fp16")


def as_nhwc(array: NDArray[np.float32]) -> NDArray[np.float32]:
    return np.ascontiguousarray(array.transpose(0, 2, 3, 1)).transpose(0, 3, 1, 2)


@settings(max_examples=40)
@given(data=st.data(), pass_=st.sampled_from(PASSES), seed=st.integers(0, 1000))
def test_convolutions(naive, drawn, data, pass_, seed):
    layer = data.draw(drawn.convs)
    precision = data.draw(st.sampled_from(PRECISIONS))
    inputs = make_inputs(layer, pass_, precision, seed)
    output = round_to(precision, naive.conv(layer, pass_, inputs))
    verdict = verify(layer, pass_, precision, inputs, output, seed)
    assert verdict.status == "ok", verdict
    assert verdict.rel_error is not None
    assert verdict.rel_error <= verdict.tolerance
    assert verdict.points == output.size


@settings(max_examples=30)
@given(
    m=st.integers(1, 20),
    k=st.integers(1, 40),
    n=st.integers(1, 20),
    count=st.integers(1, 3),
    pass_=st.sampled_from(PASSES),
    precision=st.sampled_from(PRECISIONS),
)
def test_matrix_products(naive, m, k, n, count, pass_, precision):
    layer = build_layer("gemm", m=m, k=k, n=n, batch_count=count)
    inputs = make_inputs(layer, pass_, precision, 3)
    output = round_to(precision, naive.gemm(pass_, inputs))
    verdict = verify(layer, pass_, precision, inputs, output, 3)
    assert verdict.status == "ok", verdict
    assert verdict.points == output.size


@settings(max_examples=40)
@given(
    data=st.data(),
    pass_=st.sampled_from(["forward", "backward-data"]),
    precision=st.sampled_from(PRECISIONS),
)
def test_poolings(naive, drawn, data, pass_, precision):
    layer = data.draw(drawn.pools)
    inputs = make_inputs(layer, pass_, precision, 5)
    output = round_to(precision, naive.pool(layer, pass_, inputs))
    verdict = verify(layer, pass_, precision, inputs, output, 5)
    assert verdict.status == "ok", verdict


@pytest.mark.parametrize("pass_", PASSES)
def test_large_convolution_is_covered_by_checksums_and_points(pass_):
    # Float32 matrix products make the result here: the naive loops would take minutes.
    layer = build_layer("conv", batch=64, in_channels=256, in_size=16, out_channels=256, kernel=1)
    inputs = make_inputs(layer, pass_, "fp32", 1)
    pixels = {
        role: inputs[role].transpose(1, 0, 2, 3).reshape(256, -1)
        for role in ("src", "dst")
        if role in inputs
    }
    if pass_ == "backward-weights":
        output = (pixels["dst"] @ pixels["src"].T)[:, :, None, None]
    else:
        matrix = inputs["weights"][:, :, 0, 0]
        matrix, role = (matrix, "src") if pass_ == "forward" else (matrix.T, "dst")
        output = (matrix @ pixels[role]).reshape(256, 64, 16, 16).transpose(1, 0, 2, 3)
    verdict = verify(layer, pass_, "fp32", inputs, output, 1)
    assert verdict.status == "ok", verdict
    assert 8 <= verdict.points < output.size
    assert verdict.checksums >= 256


@pytest.mark.parametrize("pass_", PASSES)
def test_large_matrix_product_is_covered_by_checksums_and_points(naive, pass_):
    layer = build_layer("gemm", m=300, k=500, n=400)
    inputs = make_inputs(layer, pass_, "fp32", 1)
    verdict = verify(layer, pass_, "fp32", inputs, naive.gemm(pass_, inputs), 1)
    assert verdict.status == "ok", verdict
    assert verdict.points >= 8
    assert verdict.checksums >= 400


def test_large_transposed_convolution_is_covered_by_checksums_and_points():
    layer = build_layer(
        "deconv", batch=8, in_channels=64, in_size=16, out_channels=64, kernel=2, stride=2
    )
    inputs = make_inputs(layer, "forward", "fp32", 3)
    right = layer.reference(inputs)["dst"].astype(np.float32)
    verdict = verify(layer, "forward", "fp32", inputs, right, 3)
    assert verdict.status == "ok"
    assert verdict.points < right.size
    assert verdict.checksums == 8 * 64
    right[5, 17] = np.roll(right[5, 17], 1)
    assert verify(layer, "forward", "fp32", inputs, right, 3).status == "failed"


def test_many_images_of_a_large_weight_matrix_share_checksums():
    layer = build_layer("conv", batch=40, in_channels=2048, in_size=1, out_channels=2048, kernel=1)
    inputs = make_inputs(layer, "forward", "fp32", 1)
    output = inputs["src"][:, :, 0, 0] @ inputs["weights"][:, :, 0, 0].T
    verdict = verify(layer, "forward", "fp32", inputs, output[:, :, None, None], 1)
    assert verdict.status == "ok", verdict
    assert verdict.checksums < output.size
    output[17, 3] = output[18, 3]
    assert verify(layer, "forward", "fp32", inputs, output[:, :, None, None], 1).status == "failed"


@pytest.mark.parametrize("pass_", PASSES)
def test_strided_views_give_the_same_verdict(naive, pass_):
    layer = build_layer(
        "conv",
        batch=3,
        in_channels=4,
        in_size=(7, 9),
        out_channels=6,
        kernel=3,
        padding=1,
        groups=2,
    )
    inputs = make_inputs(layer, pass_, "fp32", 2)
    output = naive.conv(layer, pass_, inputs)
    plain = verify(layer, pass_, "fp32", inputs, output, 2)
    viewed = {role: as_nhwc(array) for role, array in inputs.items()}
    strided = verify(layer, pass_, "fp32", viewed, as_nhwc(output), 2)
    assert strided.status == plain.status == "ok"
    assert strided.rel_error == pytest.approx(plain.rel_error, abs=1e-9)


def test_grouped_weights_may_have_five_axes(naive):
    layer = build_layer(
        "conv", batch=2, in_channels=4, in_size=5, out_channels=6, kernel=3, groups=2
    )
    inputs = make_inputs(layer, "forward", "fp32", 2)
    output = naive.conv(layer, "forward", inputs)
    inputs["weights"] = inputs["weights"].reshape(2, 3, 2, 3, 3)
    assert verify(layer, "forward", "fp32", inputs, output, 2).status == "ok"


def test_a_single_matrix_may_come_without_its_batch_axis(naive):
    layer = build_layer("gemm", m=4, k=5, n=6)
    inputs = make_inputs(layer, "forward", "fp32", 2)
    output = naive.gemm("forward", inputs)[0]
    assert verify(layer, "forward", "fp32", inputs, output, 2).status == "ok"


def test_large_max_pooling_gradient_compares_some_images_and_all_sums(monkeypatch, naive):
    monkeypatch.setattr("pydlbench.verification.elements._COMPARISONS", 1000)
    layer = build_layer("pool", batch=6, channels=3, in_size=8, kernel=3, stride=2)
    inputs = make_inputs(layer, "backward-data", "fp32", 2)
    output = naive.pool(layer, "backward-data", inputs)
    verdict = verify(layer, "backward-data", "fp32", inputs, output, 2)
    assert verdict.status == "ok", verdict
    assert verdict.points < output.size
    assert verdict.checksums == 18
