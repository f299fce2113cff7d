"""Pooling in float64 on the device, against NumPy sums written window by window."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
import pytest

from pydlbench.ops.table import build_layer

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from pydlbench.ops.op import Layer

    Array = NDArray[np.float64]

POOLS = {
    "plain": {"batch": 2, "channels": 3, "in_size": (6, 5), "kernel": 2, "stride": 2},
    "overlapping": {"batch": 1, "channels": 2, "in_size": (7, 8), "kernel": 3, "stride": 2},
    "padded": {
        "batch": 2,
        "channels": 2,
        "in_size": (5, 6),
        "kernel": 3,
        "stride": 1,
        "padding": 1,
    },
    "uneven pads": {
        "batch": 1,
        "channels": 3,
        "in_size": (6, 7),
        "kernel": (3, 4),
        "stride": (2, 3),
        "padding": (0, 2, 3, 1),
    },
    "gaps": {"batch": 1, "channels": 2, "in_size": (8, 9), "kernel": (2, 1), "stride": (3, 2)},
    "global": {"batch": 2, "channels": 3, "in_size": (4, 3), "kernel": (4, 3)},
}


def pool_sums(numpy_sums: Any, layer: Layer, pass_: str, x: Array, y: Array | None) -> Any:
    """Window by window; of a maximum there are no squares, since nothing is added."""
    backward = pass_ == "backward-data"
    shape = (layer.batch, layer.channels)
    size = (
        (layer.in_size[0], layer.in_size[1]) if backward else (layer.out_size[0], layer.out_size[1])
    )
    sums = numpy_sums.Sums.zeros((*shape, *size))
    windows: dict[tuple[int, int], list[tuple[int, int]]] = {}
    for oh, ow, _, _, ih, iw in numpy_sums.taps(layer):
        windows.setdefault((oh, ow), []).append((ih, iw))
    for (oh, ow), members in windows.items():
        count = len(members)
        if layer.count_include_pad:
            count = layer.kernel[0] * layer.kernel[1]
        rows, columns = np.array(members).T
        if layer.mode == "avg":
            for ih, iw in members:
                if backward:
                    sums.add(np.s_[:, :, ih, iw], y[:, :, oh, ow] / count)
                else:
                    sums.add(np.s_[:, :, oh, ow], x[:, :, ih, iw] / count)
        elif backward:
            first = x[:, :, rows, columns].argmax(-1)
            for n, c in np.ndindex(shape):
                sums.add(np.s_[n, c, *members[first[n, c]]], y[n, c, oh, ow])
        else:
            sums.value[:, :, oh, ow] = x[:, :, rows, columns].max(-1)
    return sums


@pytest.mark.parametrize("mode", ["max", "avg-include-padding", "avg-exclude-padding"])
@pytest.mark.parametrize("pass_", ["forward", "backward-data"])
@pytest.mark.parametrize("name", POOLS)
def test_each_error_of_a_pooling_is_the_one_that_numpy_finds(
    checker, numpy_sums, name, pass_, mode
):
    layer = build_layer(
        "pool",
        **POOLS[name],
        mode="max" if mode == "max" else "avg",
        count_include_pad=mode == "avg-include-padding",
    )
    x = numpy_sums.uniform(1, (layer.batch, layer.channels, layer.in_size[0], layer.in_size[1]))
    # Few different values, so that there are equal maxima.
    x = np.round(4 * x) / 4
    inputs = {"src": x}
    if pass_ == "backward-data":
        inputs["dst"] = numpy_sums.uniform(
            2, (layer.batch, layer.channels, layer.out_size[0], layer.out_size[1])
        )
    y = inputs["dst"].astype(np.float64) if "dst" in inputs else None
    sums = pool_sums(numpy_sums, layer, pass_, x.astype(np.float64), y)
    for kind, format_ in (("plain", "float32"), ("channels-last", "float16"), ("gaps", "bfloat16")):
        stored = numpy_sums.Stored(sums.value, kind, format_)
        given = inputs if mode == "max" or pass_ == "forward" else {"dst": inputs["dst"]}
        result = checker.pool(layer, pass_, given, stored)
        numpy_sums.assert_found(result, sums.errors(stored), stored, sums.value)
    evidence = numpy_sums.evidence(layer, pass_, inputs, sums.value)
    if mode == "max" and pass_ == "forward":
        assert result.max_error == 0
    # The host verifies maxima's gradient as it does operations by element, and counts otherwise.
    if mode != "max" or pass_ == "forward":
        assert evidence.terms <= result.terms
    assert evidence.worst.error < 1e-6


def test_a_maximum_must_be_exact(checker, numpy_sums):
    layer = build_layer("pool", **POOLS["plain"])
    x = numpy_sums.uniform(1, (2, 3, 6, 5))
    wrong = pool_sums(numpy_sums, layer, "forward", x.astype(np.float64), None).value
    wrong[1, 2, 0, 1] = np.nextafter(np.float32(wrong[1, 2, 0, 1]), np.float32(2))
    result = checker.pool(layer, "forward", {"src": x}, numpy_sums.Stored(wrong))
    assert 0 < result.max_error < 1e-5
    assert tuple(result.where[:4]) == (1, 2, 0, 1)
    assert result.terms == 0
