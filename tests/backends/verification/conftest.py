"""An independent implementation of all layers, to make right results (and planted wrong ones)."""

from __future__ import annotations

from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
from hypothesis import strategies as st

from pydlbench.ops.table import build_layer

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from numpy.typing import NDArray

    from pydlbench.ops.op import Layer

    Array = NDArray[np.float32]

RESULT = {"forward": "dst", "backward-data": "src", "backward-weights": "weights"}


def windows(layer: Layer) -> Iterator[tuple[int, int, int, int, int, int]]:
    """Yield (oh, ow, kh, kw, ih, iw) for every tap that is not on padding."""
    dilations = (layer.dilation[0], layer.dilation[1]) if layer.kind == "conv2d" else (1, 1)
    for oh in range(layer.out_size[0]):
        for ow in range(layer.out_size[1]):
            for kh in range(layer.kernel[0]):
                for kw in range(layer.kernel[1]):
                    ih = oh * layer.stride[0] + kh * dilations[0] - layer.pad_before[0]
                    iw = ow * layer.stride[1] + kw * dilations[1] - layer.pad_before[1]
                    if 0 <= ih < layer.in_size[0] and 0 <= iw < layer.in_size[1]:
                        yield oh, ow, kh, kw, ih, iw


def conv(
    layer: Layer,
    pass_: str,
    inputs: dict[str, Array],
    rounded: Callable[[Array], Array] = lambda partial: partial,
) -> Array:
    """Compute a convolution term by term in float32; ``rounded`` is applied to partial sums."""
    ins, outs = layer.in_channels // layer.groups, layer.out_channels // layer.groups
    shapes = {
        "src": (layer.batch, layer.in_channels, layer.in_size[0], layer.in_size[1]),
        "weights": (layer.out_channels, ins, layer.kernel[0], layer.kernel[1]),
        "dst": (layer.batch, layer.out_channels, layer.out_size[0], layer.out_size[1]),
    }
    result = np.zeros(shapes[RESULT[pass_]], np.float32)
    x, w, y = (inputs.get(role) for role in ("src", "weights", "dst"))
    for oh, ow, kh, kw, ih, iw in windows(layer):
        for c in range(ins):
            for o in range(layer.out_channels):
                i = o // outs * ins + c
                if pass_ == "forward":
                    at, term = (slice(None), o, oh, ow), x[:, i, ih, iw] * w[o, c, kh, kw]
                elif pass_ == "backward-data":
                    at, term = (slice(None), i, ih, iw), y[:, o, oh, ow] * w[o, c, kh, kw]
                else:
                    at, term = (o, c, kh, kw), np.dot(x[:, i, ih, iw], y[:, o, oh, ow])
                result[at] = rounded(result[at] + term)
    return result


def gemm(pass_: str, inputs: dict[str, Array]) -> Array:
    """Compute a matrix product in float32."""
    equation = {
        "forward": "bmk,bkn->bmn",
        "backward-data": "bmn,bkn->bmk",
        "backward-weights": "bmk,bmn->bkn",
    }[pass_]
    return np.einsum(equation, *(inputs[r] for r in ("src", "dst", "weights") if r in inputs))


def pool(layer: Layer, pass_: str, inputs: dict[str, Array]) -> Array:
    """Compute a pooling window by window in float32."""
    planes = (layer.batch, layer.channels)
    members: dict[tuple[int, int], list[tuple[int, int]]] = {}
    for oh, ow, _, _, ih, iw in windows(layer):
        members.setdefault((oh, ow), []).append((ih, iw))
    backward = pass_ == "backward-data"
    size = (
        (layer.in_size[0], layer.in_size[1]) if backward else (layer.out_size[0], layer.out_size[1])
    )
    result = np.zeros((*planes, *size), np.float32)
    for (oh, ow), taps in members.items():
        count = len(taps)
        if layer.count_include_pad:
            count = layer.kernel[0] * layer.kernel[1]
        rows, columns = np.array(taps).T
        if layer.mode == "avg" and backward:
            share = inputs["dst"][:, :, oh, ow] / np.float32(count)
            result[:, :, rows, columns] += share[..., None]
        elif layer.mode == "avg":
            result[:, :, oh, ow] = inputs["src"][:, :, rows, columns].sum(-1) / np.float32(count)
        elif backward:
            first = inputs["src"][:, :, rows, columns].argmax(-1)
            for n, c in np.ndindex(planes):
                h, w = taps[first[n, c]]
                result[n, c, h, w] += inputs["dst"][n, c, oh, ow]
        else:
            result[:, :, oh, ow] = inputs["src"][:, :, rows, columns].max(-1)
    return result


@st.composite
def axes(draw: Any, pooling: bool) -> dict[str, int]:
    """Draw sizes of one spatial axis whose window fits."""
    kernel = draw(st.integers(1, 4))
    dilation = 1 if pooling else draw(st.integers(1, 3))
    most = kernel - 1 if pooling else 3
    leading, trailing = draw(st.integers(0, most)), draw(st.integers(0, most))
    least = max(1, (kernel - 1) * dilation + 1 - leading - trailing)
    return {
        "in": draw(st.integers(least, least + 5)),
        "kernel": kernel,
        "stride": draw(st.integers(1, 3)),
        "dilation": dilation,
        "leading": leading,
        "trailing": trailing,
    }


@st.composite
def convs(draw: Any) -> Layer:
    """Draw a small convolution: groups, depthwise, dilation, uneven pads, strides, non-square."""
    height, width = draw(axes(pooling=False)), draw(axes(pooling=False))
    groups = draw(st.sampled_from([1, 1, 2, 3]))
    return build_layer(
        "conv",
        batch=draw(st.integers(1, 3)),
        in_channels=groups * draw(st.integers(1, 3)),
        in_size=(height["in"], width["in"]),
        out_channels=groups * draw(st.integers(1, 3)),
        kernel=(height["kernel"], width["kernel"]),
        stride=(height["stride"], width["stride"]),
        padding=(height["leading"], height["trailing"], width["leading"], width["trailing"]),
        dilation=(height["dilation"], width["dilation"]),
        groups=groups,
    )


@st.composite
def pools(draw: Any) -> Layer:
    """Draw a small pooling of either kind."""
    height, width = draw(axes(pooling=True)), draw(axes(pooling=True))
    mode = draw(st.sampled_from(["max", "avg"]))
    return build_layer(
        "pool",
        batch=draw(st.integers(1, 3)),
        channels=draw(st.integers(1, 5)),
        in_size=(height["in"], width["in"]),
        kernel=(height["kernel"], width["kernel"]),
        stride=(height["stride"], width["stride"]),
        padding=(height["leading"], height["trailing"], width["leading"], width["trailing"]),
        mode=mode,
        count_include_pad=mode == "avg" and draw(st.booleans()),
    )


@pytest.fixture(scope="session")
def naive():
    """Return ``conv`` and ``pool`` of (layer, pass_, inputs), and ``gemm`` of (pass_, inputs)."""
    return SimpleNamespace(conv=conv, gemm=gemm, pool=pool)


@pytest.fixture(scope="session")
def drawn():
    """Return strategies of small layers, for ``data.draw``."""
    return SimpleNamespace(convs=convs(), pools=pools())
