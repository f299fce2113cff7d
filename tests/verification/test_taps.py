"""The table of taps, against known small windows."""

import numpy as np
import pytest

from pydlbench.ops.table import build_layer
from pydlbench.verification.checksums import window_axes

LAYER = build_layer(
    "conv",
    batch=1,
    in_channels=1,
    in_size=(5, 1),
    out_channels=1,
    kernel=(3, 1),
    stride=2,
    padding=(1, 1, 0, 0),
)


def test_forward_and_backward_tables_are_transposes():
    forward, _ = window_axes(LAYER, "forward")
    assert forward.source.tolist() == [[0, 0, 1], [1, 2, 3], [3, 4, 0]]
    assert forward.factor.tolist() == [[0, 1, 1], [1, 1, 1], [1, 1, 0]]
    backward, _ = window_axes(LAYER, "backward-data")
    pairs = {
        (o, k, int(forward.source[o, k])) for o, k in zip(*np.nonzero(forward.factor), strict=True)
    }
    assert pairs == {
        (int(backward.source[i, k]), k, i)
        for i, k in zip(*np.nonzero(backward.factor), strict=True)
    }


def test_spread_moves_weights_from_outputs_to_sources():
    axis, _ = window_axes(LAYER, "forward")
    rng = np.random.default_rng(0)
    weights, source, kernel = rng.random(3), rng.random(5), rng.random(3)
    output = (source[axis.source] * axis.factor) @ kernel
    assert weights @ output == pytest.approx(source @ axis.spread(weights) @ kernel)
    assert axis.energy(weights) == pytest.approx(weights**2 @ axis.factor)


def test_windows_that_slide_over_few_positions_are_added_up_one_by_one():
    axis, _ = window_axes(LAYER, "forward")
    turned = axis.transpose()
    rng = np.random.default_rng(0)
    weights, source = rng.random(3), rng.random((2, 5, 1))
    spread = np.einsum("nic,ik->nkc", source, turned.spread(weights))
    np.testing.assert_allclose(turned.weighted_sum(weights, source, 1), spread)


@pytest.mark.parametrize(("include", "border"), [(False, 1 / 2), (True, 1 / 3)])
def test_averages_divide_by_the_count(include, border):
    layer = build_layer(
        "pool",
        batch=1,
        channels=1,
        in_size=(4, 1),
        kernel=(3, 1),
        padding=(1, 1, 0, 0),
        mode="avg",
        count_include_pad=include,
    )
    axis, _ = window_axes(layer, "forward")
    assert axis.factor.max(axis=1) == pytest.approx([border, 1 / 3, 1 / 3, border])


@pytest.mark.parametrize(("stride", "expected"), [(1, 3), (2, 2), (3, 1), (4, 1)])
def test_terms_are_the_windows_that_hold_a_position(stride, expected):
    layer = build_layer("pool", batch=1, channels=1, in_size=20, kernel=3, stride=stride)
    assert [axis.terms for axis in window_axes(layer, "backward-data")] == [expected] * 2
