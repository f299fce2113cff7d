import itertools
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pydlbench.errors import UsageError
from pydlbench.layers.base import PASSES
from pydlbench.layers.conv import Conv2d

SMALL: dict[str, Any] = {
    "batch": 2,
    "in_channels": 4,
    "in_height": 6,
    "in_width": 5,
    "out_channels": 6,
    "kernel_height": 3,
    "kernel_width": 2,
}


def multiply_adds(layer: Conv2d) -> set[tuple[tuple[int, int], tuple[int, int], tuple[int, int]]]:
    """Every multiply-add on real elements of one image and group: (dst, weights, src) indices."""
    found = set()
    for oh, ow, kh, kw in itertools.product(
        range(layer.out_height),
        range(layer.out_width),
        range(layer.kernel_height),
        range(layer.kernel_width),
    ):
        ih = oh * layer.stride_height - layer.pad_top + kh * layer.dilation_height
        iw = ow * layer.stride_width - layer.pad_left + kw * layer.dilation_width
        if 0 <= ih < layer.in_height and 0 <= iw < layer.in_width:
            found.add(((oh, ow), (kh, kw), (ih, iw)))
    return found


@given(st.from_type(Conv2d))
def test_flops_agree_with_brute_force(layer):
    channels = layer.batch * layer.out_channels * layer.in_channels // layer.groups
    outputs = layer.out_height * layer.out_width
    for pass_ in PASSES:
        taps = layer.kernel_height * layer.kernel_width
        assert layer.flops(pass_) == 2 * channels * outputs * taps
        assert layer.flops_executed(pass_) == 2 * channels * len(multiply_adds(layer))


@given(st.from_type(Conv2d), st.sampled_from([1, 2, 4]))
def test_least_bytes_agree_with_the_elements_touched(layer, itemsize):
    met = multiply_adds(layer)
    src = layer.batch * layer.in_channels
    dst = layer.batch * layer.out_channels
    filters = layer.out_channels * layer.in_channels // layer.groups
    read = {
        "src": src * len({s for _, _, s in met}),
        "weights": filters * len({w for _, w, _ in met}),
        "dst": dst * len({d for d, _, _ in met}),
    }
    written = {"forward": "dst", "backward-data": "src", "backward-weights": "weights"}
    for pass_, result in written.items():
        whole = layer.operands(pass_)
        assert whole["src"] == src * layer.in_height * layer.in_width
        assert whole["dst"] == dst * layer.out_height * layer.out_width
        assert whole["weights"] == filters * layer.kernel_height * layer.kernel_width
        expected = sum(whole[role] if role == result else read[role] for role in read)
        assert layer.bytes(pass_, itemsize) == itemsize * expected


@given(st.from_type(Conv2d))
def test_the_output_size_is_that_of_the_windows_that_fit(layer):
    span = (layer.kernel_height - 1) * layer.dilation_height + 1
    padded = layer.in_height + layer.pad_top + layer.pad_bottom
    starts = range(0, padded - span + 1, layer.stride_height)
    assert layer.out_height == len(starts)


def test_alexnet_conv3_executes_nine_tenths():
    conv3 = Conv2d.of(batch=128, in_channels=192, in_size=13, out_channels=384, kernel=3, padding=1)
    assert conv3.problem == "mb128ic192ih13oc384oh13kh3ph1"
    assert conv3.flops("forward") == 2 * 128 * 112_140_288
    # Each side has 13 * 3 - 2 of its 13 * 3 taps on elements.
    assert conv3.flops_executed("forward") * 39**2 == conv3.flops("forward") * 37**2
    assert conv3.bytes("forward", 4) == 4 * (128 * 192 * 169 + 384 * 192 * 9 + 128 * 384 * 169)


def test_a_strided_pointwise_convolution_reads_a_quarter():
    layer = Conv2d.of(batch=1, in_channels=8, in_size=56, out_channels=8, kernel=1, stride=2)
    src, dst, weights = 8 * 56 * 56, 8 * 28 * 28, 64
    assert layer.bytes("forward", 1) == src // 4 + weights + dst
    assert layer.bytes("backward-weights", 1) == src // 4 + weights + dst
    assert layer.bytes("backward-data", 1) == src + weights + dst


def test_trailing_pads_that_nothing_reads_do_not_tell_layers_apart():
    # ResNet's first convolution: with stride 2 the last padded row is never read.
    symmetric = Conv2d.of(
        batch=1, in_channels=3, in_size=224, out_channels=64, kernel=7, stride=2, padding=3
    )
    trimmed = Conv2d.of(
        batch=1,
        in_channels=3,
        in_size=224,
        out_channels=64,
        kernel=7,
        stride=2,
        padding=(3, 2, 3, 2),
    )
    assert trimmed == symmetric
    assert (trimmed.pad_bottom, trimmed.pad_right) == (3, 3)


def test_forms_of_size_and_padding():
    layer = Conv2d.of(
        batch=1,
        in_channels=1,
        in_size=(8, 9),
        out_channels=1,
        kernel=(3, 2),
        stride=(1, 2),
        padding=(1, 0),
        dilation=(2, 1),
    )
    assert (layer.in_height, layer.in_width, layer.kernel_height, layer.kernel_width) == (
        8,
        9,
        3,
        2,
    )
    assert (layer.pad_top, layer.pad_bottom, layer.pad_left, layer.pad_right) == (1, 1, 0, 0)
    assert (layer.out_height, layer.out_width) == (6, 4)
    sides = Conv2d.of(
        batch=1, in_channels=1, in_size=8, out_channels=1, kernel=3, padding=(0, 1, 2, 3)
    )
    assert (sides.pad_top, sides.pad_bottom, sides.pad_left, sides.pad_right) == (0, 1, 2, 3)


def test_depthwise_weights_and_work():
    layer = Conv2d.of(batch=2, in_channels=32, in_size=7, out_channels=32, kernel=3, groups=32)
    assert layer.weight_elements == 32 * 9
    assert layer.flops("forward") == 2 * 2 * 32 * 25 * 9


def test_another_batch_leaves_the_rest():
    layer = Conv2d(**SMALL, name="mine")
    assert layer.with_batch(257) == Conv2d(**{**SMALL, "batch": 257}, name="mine")
    with pytest.raises(UsageError, match=r"batch=0: too small; at least 1"):
        layer.with_batch(0)


def test_sizes_of_other_integer_types_become_ints():
    numpy = pytest.importorskip("numpy")
    layer = Conv2d(**{**SMALL, "batch": numpy.int32(2)})
    assert type(layer.batch) is int
    assert layer == Conv2d(**SMALL)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"batch": 0}, "batch=0: too small; at least 1"),
        ({"in_channels": -3}, "in_channels=-3: too small; at least 1"),
        ({"stride_width": 0}, "stride_width=0: too small; at least 1"),
        ({"pad_top": -1}, "pad_top=-1: too small; at least 0"),
        ({"dilation_height": 0}, "dilation_height=0: too small; at least 1"),
        ({"in_height": 6.0}, "in_height=6.0: not a whole number; at least 1"),
        ({"in_height": True}, "in_height=True: not a whole number; at least 1"),
        ({"in_height": "6"}, "in_height='6': not a whole number; at least 1"),
        ({"groups": 3}, "groups=3: does not divide in_channels=4; nearest: 2"),
        ({"groups": 4}, "groups=4: does not divide out_channels=6; nearest: 2"),
        (
            {"kernel_height": 7},
            "kernel height 7 (dilation included): larger than the padded input height 6; at most 6",
        ),
        (
            {"dilation_width": 6, "pad_left": 1},
            "kernel width 7 (dilation included): larger than the padded input width 6; at most 6",
        ),
        (
            {"batch": 2**60},
            "sizes overflow: 9.96e+20 bytes in fp32, most of them in src; at most 2**63 - 1 bytes",
        ),
    ],
)
def test_impossible_layers_are_refused(changes, message):
    with pytest.raises(UsageError) as caught:
        Conv2d(**{**SMALL, **changes})
    assert str(caught.value) == message


def test_the_limit_of_size_is_exact():
    sizes = {**SMALL, "in_height": 1, "in_width": 1, "kernel_height": 1, "kernel_width": 1}
    layer = Conv2d(**{**sizes, "in_channels": 1, "out_channels": 1, "batch": 2**60 - 1})
    assert layer.bytes("forward", 4) == 4 * (2 * (2**60 - 1) + 1) == 2**63 - 4
    with pytest.raises(UsageError, match="sizes overflow"):
        layer.with_batch(2**60)


@pytest.mark.parametrize("method", ["flops", "flops_executed", "operands"])
def test_unknown_passes_are_refused(method):
    with pytest.raises(UsageError, match=r"^bakward-data: no such pass; nearest: backward-data"):
        getattr(Conv2d(**SMALL), method)("bakward-data")


def test_a_wrong_number_of_values_is_refused():
    sizes = {"batch": 1, "in_channels": 1, "in_size": 8, "out_channels": 1}
    with pytest.raises(UsageError, match=r"kernel=\(1, 2, 3\): expected a number or a pair"):
        Conv2d.of(**sizes, kernel=(1, 2, 3))  # type: ignore[arg-type]
    with pytest.raises(UsageError, match=r"padding=\(1, 2, 3\): expected a number, "):
        Conv2d.of(**sizes, kernel=3, padding=(1, 2, 3))  # type: ignore[arg-type]


def test_on_padded_images_the_same_is_computed_and_nothing_left_out():
    layer = Conv2d(**SMALL, pad_top=2, pad_bottom=0, pad_left=0, pad_right=1)
    ready = layer.on_padded_images()
    assert (ready.in_height, ready.in_width) == (8, 6)
    assert ready.shapes()["dst"] == layer.shapes()["dst"]
    assert ready.flops_executed("forward") == ready.flops("forward") == layer.flops("forward")
