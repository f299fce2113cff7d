import itertools
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pydlbench.errors import UnsupportedError, UsageError
from pydlbench.layers.pool import Pool2d


def taps(layer: Pool2d) -> list[tuple[tuple[int, int], tuple[int, int]]]:
    """Every (output, input element) of one plane that meet, once per tap."""
    found = []
    for oh, ow, kh, kw in itertools.product(
        range(layer.out_height),
        range(layer.out_width),
        range(layer.kernel_height),
        range(layer.kernel_width),
    ):
        ih = oh * layer.stride_height - layer.pad_top + kh
        iw = ow * layer.stride_width - layer.pad_left + kw
        if 0 <= ih < layer.in_height and 0 <= iw < layer.in_width:
            found.append(((oh, ow), (ih, iw)))
    return found


@given(st.from_type(Pool2d))
def test_work_and_bytes_agree_with_brute_force(layer):
    met = taps(layer)
    planes = layer.batch * layer.channels
    outputs = layer.out_height * layer.out_width
    whole = layer.operands("forward")
    assert whole["dst"] == planes * outputs
    assert whole["src"] == planes * layer.in_height * layer.in_width
    for pass_ in layer.passes:
        window = layer.kernel_height * layer.kernel_width
        assert layer.flops(pass_) == planes * outputs * window
        assert layer.flops_executed(pass_) == planes * len(met)
    assert layer.bytes("forward", 2) == 2 * planes * (len({i for _, i in met}) + outputs)
    assert layer.bytes("backward-data", 2) == 2 * (whole["src"] + whole["dst"])


@given(st.from_type(Pool2d))
def test_no_window_holds_only_padding(layer):
    assert len({output for output, _ in taps(layer)}) == layer.out_height * layer.out_width


def test_alexnet_pool1_reads_all_but_the_last_row_and_column():
    pool1 = Pool2d.of(batch=128, channels=64, in_size=56, kernel=3, stride=2)
    assert pool1.problem == "mb128ic64ih56oh27kh3sh2"
    assert pool1.weight_elements == 0
    assert pool1.bytes("forward", 4) == 4 * 128 * 64 * (55 * 55 + 27 * 27)


def test_pooling_has_no_weights_to_differentiate():
    layer = Pool2d.of(batch=1, channels=1, in_size=4, kernel=2)
    with pytest.raises(UnsupportedError, match="backward-weights: pool2d has no such pass"):
        layer.flops("backward-weights")
    with pytest.raises(UsageError, match="forwards: no such pass; nearest: forward"):
        layer.bytes("forwards", 4)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"mode": "mean"}, "mode='mean': no such pooling; nearest: max, avg"),
        (
            {"count_include_pad": True},
            "count_include_pad=True: a maximum counts nothing; nearest: mode avg",
        ),
        (
            {"padding": 3},
            "pad_top=3: not smaller than the pooling kernel 3; at most 2",
        ),
        (
            {"padding": (0, 0, 0, 5)},
            "pad_right=5: not smaller than the pooling kernel 3; at most 2",
        ),
        (
            {"in_size": 2},
            "kernel height 3 (dilation included): larger than the padded input height 2; at most 2",
        ),
        ({"channels": 0}, "channels=0: too small; at least 1"),
        ({"kernel": (3, 0)}, "kernel_width=0: too small; at least 1"),
    ],
)
def test_impossible_poolings_are_refused(changes, message):
    sizes: dict[str, Any] = {"batch": 1, "channels": 2, "in_size": 8, "kernel": 3}
    with pytest.raises(UsageError) as caught:
        Pool2d.of(**{**sizes, **changes})
    assert str(caught.value) == message
