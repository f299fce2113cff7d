"""Transposed convolutions: what they count, how they are written, and what cannot be."""

import dataclasses

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pydlbench.errors import UsageError
from pydlbench.layers.conv import Conv2d
from pydlbench.layers.deconv import Deconv2d
from pydlbench.layers.descriptor import looks_like_problem, parse_problem

# The first up-convolution of U-Net: each of 28 x 28 elements fills a window of its own.
UP = Deconv2d.of(batch=1, in_channels=1024, in_size=28, out_channels=512, kernel=2, stride=2)


def transposed(layer: Conv2d) -> Deconv2d:
    """The layer whose forward pass is a convolution's backward-data pass."""
    return Deconv2d(
        batch=layer.batch,
        in_channels=layer.out_channels,
        in_height=layer.out_height,
        in_width=layer.out_width,
        out_channels=layer.in_channels,
        out_height=layer.in_height,
        out_width=layer.in_width,
        kernel_height=layer.kernel_height,
        kernel_width=layer.kernel_width,
        stride_height=layer.stride_height,
        stride_width=layer.stride_width,
        pad_top=layer.pad_top,
        pad_left=layer.pad_left,
        dilation_height=layer.dilation_height,
        dilation_width=layer.dilation_width,
        groups=layer.groups,
    )


def test_a_window_for_each_element():
    macs = 28 * 28 * 2 * 2 * 1024 * 512
    for pass_ in UP.passes:
        assert UP.flops(pass_) == UP.flops_executed(pass_) == 2 * macs
    src, weights, dst = 1024 * 28 * 28, 1024 * 512 * 4, 512 * 56 * 56
    assert UP.operands("forward") == {"src": src, "weights": weights, "dst": dst}
    assert UP.shapes()["weights"] == (1024, 512, 2, 2)
    assert UP.weight_elements == weights
    for pass_ in UP.passes:
        # Every element is read or written once, whoever reads and writes it.
        assert UP.bytes(pass_, 4) == 4 * (src + weights + dst)


def test_what_padding_cuts_off_is_not_executed():
    layer = parse_problem("deconv:mb1ic1ih3oc1oh3kh3ph1")
    assert layer.flops("forward") == 2 * 3 * 3 * 9
    # Along one side the three windows lose one tap, none and one.
    assert layer.flops_executed("forward") == 2 * 7 * 7


@given(st.from_type(Conv2d))
def test_it_is_a_convolutions_gradient(conv):
    layer = transposed(conv)
    assert layer.convolution == dataclasses.replace(
        conv, pad_bottom=layer.convolution.pad_bottom, pad_right=layer.convolution.pad_right
    )
    shapes, others = layer.shapes(), conv.shapes()
    assert (shapes["src"], shapes["dst"]) == (others["dst"], others["src"])
    for pass_, same in (
        ("forward", "backward-data"),
        ("backward-data", "forward"),
        ("backward-weights", "backward-weights"),
    ):
        assert layer.flops(pass_) == conv.flops(same)
        assert layer.flops_executed(pass_) == conv.flops_executed(same)
        assert layer.bytes(pass_, 2) == conv.bytes(same, 2)


@given(st.from_type(Conv2d))
def test_layers_survive_being_written_and_read(conv):
    layer = transposed(conv)
    assert looks_like_problem(layer.problem)
    assert parse_problem(layer.problem) == layer


@pytest.mark.parametrize(
    ("text", "canonical"),
    [
        # benchdnn's own shape, inputs/deconv: the output's size is what gives the padding.
        ("deconv:mb1ic64ih14oc32oh28kh2sh2", "deconv:mb1ic64ih14oc32oh28kh2sh2"),
        ("deconv:ic64ih14oc32kh2sh2", "deconv:mb1ic64ih14oc32oh28kh2sh2"),
        ("deconv:mb2ic8ih5oc6kh3sh2ph1", "deconv:mb2ic8ih5oc6oh9kh3sh2ph1"),
        ("deconv:mb2ic8ih5oc6oh10kh3sh2ph1", "deconv:mb2ic8ih5oc6oh10kh3sh2ph1"),
        ("deconv:g2ic4ih5iw7oc6kh3kw2", "deconv:g2mb1ic4ih5iw7oc6oh7ow8kh3kw2"),
        ("deconv:ic4ih5oc6kh3dh1", "deconv:mb1ic4ih5oc6oh9kh3dh1"),
    ],
)
def test_descriptors(text, canonical):
    layer = parse_problem(text)
    assert layer.kind == "deconv2d"
    assert layer.problem == canonical


@pytest.mark.parametrize(
    ("text", "column"),
    [
        ("deconv:", "column 8: expected ic"),
        ("deconv:ic3ih4kh2", "column 17: expected oc"),
        ("deconv:ic3ih4oc2kh2rh1", "column 20: expected a field"),
    ],
)
def test_malformed_descriptors_name_the_position(text, column):
    with pytest.raises(UsageError) as caught:
        parse_problem(text)
    assert column in str(caught.value)


def test_sizes_that_do_not_follow_are_refused():
    with pytest.raises(UsageError, match=r"out_height=9: does not follow .*nearest: 7$"):
        parse_problem("deconv:ic3ih5oc4oh9kh3")
    with pytest.raises(UsageError, match=r"groups=2: does not divide in_channels=3"):
        parse_problem("deconv:g2ic3ih5oc4kh3")
