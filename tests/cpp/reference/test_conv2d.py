"""Convolutions in float64 on the device, against NumPy sums written term by term."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
import pytest

from pydlbench.ops.table import build_layer

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from pydlbench.ops.op import Layer

    Array = NDArray[np.float64]

RESULT = {"forward": "dst", "backward-data": "src", "backward-weights": "weights"}

CONVS = {
    "plain": build_layer(
        "conv", batch=2, in_channels=3, in_size=(5, 4), out_channels=4, kernel=3, padding=1
    ),
    "pointwise": build_layer(
        "conv", batch=3, in_channels=5, in_size=(3, 2), out_channels=2, kernel=1
    ),
    "grouped": build_layer(
        "conv", batch=1, in_channels=6, in_size=(4, 5), out_channels=4, kernel=(2, 3), groups=2
    ),
    "depthwise": build_layer(
        "conv", batch=2, in_channels=3, in_size=(4, 4), out_channels=6, kernel=2, groups=3
    ),
    "dilated": build_layer(
        "conv",
        batch=1,
        in_channels=2,
        in_size=(8, 7),
        out_channels=3,
        kernel=(3, 2),
        dilation=(2, 3),
    ),
    "strided": build_layer(
        "conv",
        batch=2,
        in_channels=2,
        in_size=(7, 9),
        out_channels=2,
        kernel=3,
        stride=(2, 3),
        padding=1,
    ),
    "uneven pads": build_layer(
        "conv",
        batch=2,
        in_channels=2,
        in_size=(5, 6),
        out_channels=3,
        kernel=(3, 4),
        stride=(2, 1),
        padding=(0, 2, 3, 1),
        dilation=(1, 2),
    ),
    # A thread of the weights' gradient takes every 256th pixel: of other rows and other images.
    "many images": build_layer(
        "conv", batch=60, in_channels=1, in_size=(6, 4), out_channels=1, kernel=(2, 1)
    ),
    "long rows": build_layer(
        "conv", batch=3, in_channels=1, in_size=(2, 300), out_channels=1, kernel=(1, 2)
    ),
}


def conv_shapes(layer: Layer) -> dict[str, tuple[int, ...]]:
    return {
        "src": (layer.batch, layer.in_channels, layer.in_size[0], layer.in_size[1]),
        "weights": (
            layer.out_channels,
            layer.in_channels // layer.groups,
            layer.kernel[0],
            layer.kernel[1],
        ),
        "dst": (layer.batch, layer.out_channels, layer.out_size[0], layer.out_size[1]),
    }


def conv_sums(numpy_sums: Any, layer: Layer, pass_: str, inputs: dict[str, Array]) -> Any:
    sums = numpy_sums.Sums.zeros(conv_shapes(layer)[RESULT[pass_]])
    ins, outs = layer.in_channels // layer.groups, layer.out_channels // layer.groups
    x, w, y = (inputs.get(role) for role in ("src", "weights", "dst"))
    for oh, ow, kh, kw, ih, iw in numpy_sums.taps(layer):
        for o, c in np.ndindex(layer.out_channels, ins):
            i = o // outs * ins + c
            if pass_ == "forward":
                sums.add(np.s_[:, o, oh, ow], x[:, i, ih, iw] * w[o, c, kh, kw])
            elif pass_ == "backward-data":
                sums.add(np.s_[:, i, ih, iw], y[:, o, oh, ow] * w[o, c, kh, kw])
            else:
                for n in range(layer.batch):
                    sums.add(np.s_[o, c, kh, kw], x[n, i, ih, iw] * y[n, o, oh, ow])
    return sums


def conv_inputs(numpy_sums: Any, layer: Layer, pass_: str) -> dict[str, NDArray[np.float32]]:
    return {
        role: numpy_sums.uniform(seed, shape)
        for seed, (role, shape) in enumerate(conv_shapes(layer).items())
        if role != RESULT[pass_]
    }


@pytest.mark.parametrize("name", CONVS)
@pytest.mark.parametrize("pass_", RESULT)
def test_each_error_of_a_convolution_is_the_one_that_numpy_finds(checker, numpy_sums, name, pass_):
    layer = CONVS[name]
    inputs = conv_inputs(numpy_sums, layer, pass_)
    sums = conv_sums(
        numpy_sums, layer, pass_, {role: one.astype(np.float64) for role, one in inputs.items()}
    )
    for kind, format_ in (("plain", "float32"), ("channels-last", "float16"), ("gaps", "bfloat16")):
        stored = numpy_sums.Stored(sums.value, kind, format_)
        result = checker.conv(layer, pass_, inputs, stored)
        numpy_sums.assert_found(result, sums.errors(stored), stored, sums.value)
    evidence = numpy_sums.evidence(layer, pass_, inputs, sums.value)
    # The host leaves out taps that meet no element of the source, wherever the window is.
    assert 0 < evidence.terms <= result.terms
    assert evidence.worst.error < 1e-12


@pytest.mark.parametrize("name", ["plain", "grouped"])
def test_bias_and_relu_are_held_against_the_sum_before_the_relu(checker, numpy_sums, name):
    layer = CONVS[name]
    inputs = conv_inputs(numpy_sums, layer, "forward")
    sums = conv_sums(
        numpy_sums, layer, "forward", {r: one.astype(np.float64) for r, one in inputs.items()}
    )
    inputs["bias"] = numpy_sums.uniform(9, (layer.out_channels,))
    for channel, term in enumerate(inputs["bias"].astype(np.float64)):
        sums.add(np.s_[:, channel], term)
    expected = np.maximum(sums.value, 0)
    assert (expected == 0).any()
    stored = numpy_sums.Stored(expected, "channels-last", "float16")
    result = checker.conv(layer, "forward", inputs, stored)
    numpy_sums.assert_found(result, sums.errors(stored, relu=True), stored, expected)
    assert result.terms == np.prod(conv_shapes(layer)["weights"][1:]) + 1

    # A kernel that leaves the ReLU out is off by more than rounding where the sum is negative.
    wrong = checker.conv(layer, "forward", inputs, numpy_sums.Stored(sums.value))
    assert wrong.max_error > 0.1
    assert wrong.expected == 0


@pytest.mark.parametrize("pass_", RESULT)
def test_the_result_does_not_depend_on_how_it_is_split_into_launches(checker, numpy_sums, pass_):
    layer = build_layer("conv", batch=4, in_channels=4, in_size=(9, 8), out_channels=5, kernel=2)
    inputs = conv_inputs(numpy_sums, layer, pass_)
    stored = numpy_sums.Stored(
        numpy_sums.uniform(7, conv_shapes(layer)[RESULT[pass_]]).astype(np.float64)
    )
    whole, split = (
        checker.conv(layer, pass_, inputs, stored, per_launch) for per_launch in (1 << 32, 1000)
    )
    assert whole.max_error > 0.1
    for field, _ in whole._fields_:
        one, other = getattr(whole, field), getattr(split, field)
        assert (list(one) == list(other)) if field == "where" else (one == other), field
