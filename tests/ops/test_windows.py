"""Convolutions, transposed convolutions and poolings, compared with brute force."""

import itertools
import math

from hypothesis import given
from hypothesis import strategies as st

from pydlbench.ops.descriptor import parse_problem
from pydlbench.ops.op import Layer
from pydlbench.ops.table import build_layer
from pydlbench.ops.windows import PASS_OF_CONVOLUTION, on_padded_images
from pydlbench.words import PASSES

from .conftest import convolutions, poolings, transposed

Place = tuple[int, ...]


def meetings(layer: Layer) -> set[tuple[Place, Place, Place]]:
    """All triples of output, tap and element of a channel that meet, without padding."""
    met = set()
    for out in itertools.product(*map(range, layer.out_size)):
        for tap in itertools.product(*map(range, layer.kernel)):
            sides = zip(out, tap, layer.stride, layer.dilation, layer.pad_before, strict=True)
            place = tuple(o * s + k * d - p for o, k, s, d, p in sides)
            if all(0 <= at < size for at, size in zip(place, layer.in_size, strict=True)):
                met.add((out, tap, place))
    return met


@given(convolutions(), st.sampled_from([1, 2, 4]))
def test_a_convolution_counts_what_meets(layer, itemsize):
    met = meetings(layer)
    channels = layer.batch * layer.out_channels * layer.in_channels // layer.groups
    filters = layer.out_channels * layer.in_channels // layer.groups
    read = {
        "src": layer.batch * layer.in_channels * len({place for _, _, place in met}),
        "weights": filters * len({tap for _, tap, _ in met}),
        "dst": layer.batch * layer.out_channels * len({out for out, _, _ in met}),
    }
    for pass_ in PASSES:
        taps = math.prod(layer.out_size) * math.prod(layer.kernel)
        assert layer.flops(pass_) == 2 * channels * taps
        assert layer.flops_executed(pass_) == 2 * channels * len(met)
        whole, result = layer.operands(pass_), layer.result(pass_)
        expected = sum(whole[role] if role == result else read[role] for role in read)
        assert layer.bytes(pass_, itemsize) == itemsize * expected


@given(convolutions())
def test_the_output_has_the_windows_that_fit(layer):
    for side in range(layer.sides):
        span = (layer.kernel[side] - 1) * layer.dilation[side] + 1
        padded = layer.in_size[side] + layer.pad_before[side] + layer.pad_after[side]
        assert layer.out_size[side] == len(range(0, padded - span + 1, layer.stride[side]))


@given(poolings())
def test_a_pooling_counts_what_meets(layer):
    met = meetings(layer)
    planes, outputs = layer.batch * layer.channels, math.prod(layer.out_size)
    for pass_ in layer.passes:
        assert layer.flops(pass_) == planes * outputs * math.prod(layer.kernel)
        assert layer.flops_executed(pass_) == planes * len(met)
    src, dst = planes * math.prod(layer.in_size), planes * outputs
    touched = planes * len({place for _, _, place in met})
    assert layer.bytes("forward", 2) == 2 * (touched + dst)
    assert layer.bytes("backward-data", 2) == 2 * (src + dst)


@given(convolutions())
def test_a_transposed_one_is_a_convolutions_gradient(conv):
    layer = transposed(conv)
    # Trailing pads that nothing reads may differ.
    assert layer.convolution.replace(pad_after=conv.pad_after) == conv
    shapes, others = layer.shapes(), conv.shapes()
    assert (shapes["src"], shapes["dst"]) == (others["dst"], others["src"])
    for pass_, same in PASS_OF_CONVOLUTION.items():
        assert layer.flops(pass_) == conv.flops(same)
        assert layer.flops_executed(pass_) == conv.flops_executed(same)
        assert layer.bytes(pass_, 2) == conv.bytes(same, 2)


def test_kinds_are_told_by_their_sides():
    for sides, kind in ((1, "conv1d"), (2, "conv2d"), (3, "conv3d")):
        layer = build_layer(
            "conv", batch=1, in_channels=2, in_size=9, out_channels=3, kernel=3, sides=sides
        )
        assert (layer.kind, layer.sides) == (kind, sides)
        assert layer.shapes()["weights"] == (3, 2, *(3,) * sides)
        assert transposed(layer).kind == kind.replace("conv", "deconv")
    assert parse_problem("ic2id8kd3", pool="max").kind == "pool3d"


def test_trailing_pads_that_nothing_reads_do_not_tell_layers_apart():
    # ResNet's first convolution: with stride 2 the last padded row is never read.
    first = {"batch": 1, "in_channels": 3, "in_size": 224, "out_channels": 64, "kernel": 7}
    symmetric = build_layer("conv", **first, stride=2, padding=3)
    trimmed = build_layer("conv", **first, stride=2, padding=(3, 2, 3, 2))
    assert trimmed == symmetric
    assert trimmed.pad_after == (3, 3)


def test_forms_of_size_and_padding():
    sizes = {"batch": 1, "in_channels": 1, "out_channels": 1}
    windows = {"kernel": (3, 2), "stride": (1, 2), "dilation": (2, 1)}
    layer = build_layer("conv", **sizes, in_size=(8, 9), padding=(1, 0), **windows)
    assert (layer.pad_before, layer.pad_after, layer.out_size) == ((1, 0), (1, 0), (6, 4))
    sides = build_layer("conv", **sizes, in_size=8, kernel=3, padding=(0, 1, 2, 3))
    assert (sides.pad_before, sides.pad_after) == ((0, 2), (1, 3))
    deep = build_layer("conv", **sizes, in_size=8, kernel=3, padding=(0, 1, 2, 3, 4, 5), sides=3)
    assert (deep.pad_before, deep.pad_after) == ((0, 2, 4), (1, 3, 5))


def test_on_padded_images_the_same_is_computed_and_nothing_left_out():
    layer = parse_problem("mb2ic4ih6iw5oc6oh6ow5kh3kw2ph2pw0")
    ready = on_padded_images(layer)
    assert ready.shapes()["dst"] == layer.shapes()["dst"]
    assert ready.flops_executed("forward") == ready.flops("forward") == layer.flops("forward")
