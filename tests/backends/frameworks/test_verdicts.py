"""Verdicts on what the reference alone has no word for, on results that are made up."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pydlbench.backends.frameworks.verdicts import fused_inputs, judge
from pydlbench.ops.descriptor import parse_problem
from pydlbench.ops.table import build_layer
from pydlbench.records.measurement import KernelSpec
from pydlbench.verification.inputs import make_inputs, round_to

DROPOUT = build_layer("dropout", batch=8, channels=16, height=7, width=5, keep=0.75)


def dropped(source, keep, seed):
    kept = np.random.default_rng(seed).random(source.shape) < keep
    return np.where(kept, source / np.float32(keep), np.float32(0)), kept


def verdict(spoil=None, again_seed=2, keep=0.75, drawn=0.75):
    source = make_inputs(DROPOUT, "forward", "fp32", 1)["src"]
    layer = build_layer("dropout", batch=8, channels=16, height=7, width=5, keep=keep)
    output, _ = dropped(source, drawn, 1)
    output *= np.float32(drawn / keep)
    if spoil is not None:
        spoil(output)
    again, _ = dropped(source, drawn, again_seed)
    return judge(
        KernelSpec(layer=layer),
        {"src": source},
        {"dst": output},
        seed=0,
        accumulate="float32",
        algorithm="test",
        second={"dst": again},
    )


def test_a_random_mask_is_right_by_its_structure():
    found = verdict()
    assert found.status == "ok"
    assert "each of 4480 elements is 0 or src/keep" in found.detail
    assert found.points == 4480
    assert 0 <= found.rel_error <= found.tolerance < 1e-6


def test_the_smallest_elements_of_a_mask_in_float16_have_fewer_digits():
    layer = build_layer("dropout", batch=64, channels=64, height=8, width=8, keep=0.75)
    source = make_inputs(layer, "forward", "fp16", 1)["src"]

    def drawn(seed):
        return round_to("fp16", dropped(source, 0.75, seed)[0])

    def judged(output):
        return judge(
            KernelSpec(layer=layer, precision="fp16"),
            {"src": source},
            {"dst": output},
            seed=0,
            accumulate="float32",
            algorithm="test",
            second={"dst": drawn(2)},
        )

    right = drawn(1)
    small = np.flatnonzero((right != 0) & (np.abs(right) < 2.0**-14))
    assert judged(right).status == "ok"
    right.flat[small[0]] += np.float32(3 * 2.0**-24)
    assert judged(right).status == "failed"


def scaled(output):
    output[3] *= np.float32(1.001)


def unscaled(output):
    where = np.argmax(output != 0)
    output.flat[where] *= np.float32(0.75)


def unwritten(output):
    output[1, 2, 3, 4] = np.nan


@pytest.mark.parametrize(
    ("words", "reason"),
    [
        ({"spoil": scaled}, "expected 0 or"),
        ({"spoil": unscaled}, "expected 0 or"),
        ({"spoil": unwritten}, "1 of 4480 elements of dst never written"),
        ({"drawn": 0.6}, "elements kept, expected about 3360"),
        ({"spoil": lambda output: output.fill(0)}, "0 of 4480 elements kept"),
        ({"again_seed": 1}, "two calls draw the same mask"),
    ],
)
def test_what_is_wrong_with_a_dropout(words, reason):
    found = verdict(**words)
    assert found.status == "failed"
    assert reason in found.detail


def test_a_dropout_that_keeps_all_draws_nothing():
    layer = build_layer("dropout", batch=8, channels=16, keep=1.0)
    source = make_inputs(layer, "forward", "fp32", 1)["src"]
    found = judge(
        KernelSpec(layer=layer),
        {"src": source},
        {"dst": source},
        seed=0,
        accumulate="float32",
        algorithm="test",
        second={"dst": source},
    )
    assert found.status == "ok"


def convolved(layer, source, weights):
    """A convolution in plain loops over taps, in float64."""
    padded = np.pad(
        source.astype(np.float64),
        (
            (0, 0),
            (0, 0),
            (layer.pad_before[0], layer.pad_after[0]),
            (layer.pad_before[1], layer.pad_after[1]),
        ),
    )
    result = np.zeros((layer.batch, layer.out_channels, layer.out_size[0], layer.out_size[1]))
    per_group = layer.out_channels // layer.groups
    inputs = layer.in_channels // layer.groups
    for channel in range(layer.out_channels):
        first = channel // per_group * inputs
        for row in range(layer.kernel[0]):
            for column in range(layer.kernel[1]):
                top, left = row * layer.dilation[0], column * layer.dilation[1]
                seen = padded[
                    :,
                    first : first + inputs,
                    top : top + (layer.out_size[0] - 1) * layer.stride[0] + 1 : (layer.stride[0]),
                    left : left + (layer.out_size[1] - 1) * layer.stride[1] + 1 : (layer.stride[1]),
                ]
                result[:, channel] += np.einsum(
                    "nchw,c->nhw", seen, weights[channel, :, row, column]
                )
    return result


@settings(max_examples=30)
@given(
    groups=st.integers(1, 3),
    stride=st.integers(1, 2),
    dilation=st.integers(1, 2),
    padding=st.tuples(*[st.integers(0, 2)] * 4),
)
def test_a_fused_bias_is_in_each_element(groups, stride, dilation, padding):
    layer = build_layer(
        "conv",
        batch=2,
        in_channels=2 * groups,
        in_size=(6, 7),
        out_channels=groups,
        kernel=(2, 3),
        stride=stride,
        dilation=dilation,
        padding=padding,
        groups=groups,
    )
    case = KernelSpec(layer=layer, fuse="bias")
    inputs = make_inputs(layer, "forward", "fp32", 1) | fused_inputs(case, 1)
    exact = convolved(layer, inputs["src"], inputs["weights"])
    words = {"seed": 0, "accumulate": "float32", "algorithm": "test"}
    right = (exact + inputs["bias"][:, None, None]).astype(np.float32)
    assert judge(case, inputs, {"dst": right}, **words).status == "ok"
    assert judge(case, inputs, {"dst": exact.astype(np.float32)}, **words).status == "failed"


def test_the_gradients_of_weights_and_bias_are_both_judged():
    layer = build_layer("gemm", m=6, k=4, n=5)
    case = KernelSpec(layer=layer, pass_="backward-weights", fuse="bias")
    inputs = make_inputs(layer, "backward-weights", "fp32", 1)
    assert fused_inputs(case, 1) == {}
    weights = np.matmul(inputs["src"][0].T, inputs["dst"][0])[None]
    bias = inputs["dst"].sum((0, 1))
    words = {"seed": 0, "accumulate": "float32", "algorithm": "test"}
    right = judge(case, inputs, {"weights": weights, "bias": bias}, **words)
    assert right.status == "ok"
    assert "; bias: " in right.detail
    for spoilt in ("weights", "bias"):
        found = {"weights": weights.copy(), "bias": bias.copy()}
        found[spoilt].reshape(-1)[1] += 0.01
        assert judge(case, inputs, found, **words).status == "failed"


@pytest.mark.parametrize(
    "problem", ["6x4:4x5", "3x6x4:3x4x5", "2x1x5x16:1x4x16x8", "2x3x5x16:1x1x16x8"]
)
def test_a_bias_fused_with_a_product_is_in_each_column(problem):
    layer = parse_problem(problem)
    case = KernelSpec(layer=layer, fuse="bias")
    inputs = make_inputs(layer, "forward", "fp32", 1) | fused_inputs(case, 1)
    words = {"seed": 0, "accumulate": "float32", "algorithm": "test"}
    exact = np.matmul(*(inputs[role].astype(np.float64) for role in ("src", "weights")))
    right = (exact + inputs["bias"]).astype(np.float32)
    assert judge(case, inputs, {"dst": right}, **words).status == "ok"
    wrong = right.copy()
    wrong.reshape(-1, layer.n)[-1] = wrong.reshape(-1, layer.n)[-1, ::-1]
    assert judge(case, inputs, {"dst": wrong}, **words).status == "failed"
    assert judge(case, inputs, {"dst": exact.astype(np.float32)}, **words).status == "failed"
