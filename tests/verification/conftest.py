"""An independent implementation of all layers, to make right results (and planted wrong ones)."""

from __future__ import annotations

import itertools
import math
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


def windows(layer: Layer) -> Iterator[tuple[tuple[int, ...], tuple[int, ...], tuple[int, ...]]]:
    """Yield (output, tap, input position) of every tap that is not on padding."""
    for out in np.ndindex(*layer.out_size):
        for tap in np.ndindex(*layer.kernel):
            place = tuple(
                o * s + k * d - p
                for o, s, k, d, p in zip(
                    out, layer.stride, tap, layer.dilation, layer.pad_before, strict=True
                )
            )
            if all(0 <= at < size for at, size in zip(place, layer.in_size, strict=True)):
                yield out, tap, place


def conv(
    layer: Layer,
    pass_: str,
    inputs: dict[str, Array],
    rounded: Callable[[Array], Array] = lambda partial: partial,
) -> Array:
    """Compute a convolution term by term in float32; ``rounded`` is applied to partial sums."""
    ins, outs = layer.in_channels // layer.groups, layer.out_channels // layer.groups
    result = np.zeros(layer.shapes()[RESULT[pass_]], np.float32)
    x, w, y = (inputs.get(role) for role in ("src", "weights", "dst"))
    every = slice(None)
    for out, tap, place in windows(layer):
        for c in range(ins):
            for o in range(layer.out_channels):
                i = o // outs * ins + c
                if pass_ == "forward":
                    at, term = (every, o, *out), x[(every, i, *place)] * w[(o, c, *tap)]
                elif pass_ == "backward-data":
                    at, term = (every, i, *place), y[(every, o, *out)] * w[(o, c, *tap)]
                else:
                    at = (o, c, *tap)
                    term = np.dot(x[(every, i, *place)], y[(every, o, *out)])
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
    members: dict[tuple[int, ...], list[tuple[int, ...]]] = {}
    for out, _, place in windows(layer):
        members.setdefault(out, []).append(place)
    backward = pass_ == "backward-data"
    largest = layer.mode == "max"
    start = -np.inf if largest and not backward else 0
    result = np.full(layer.shapes()["src" if backward else "dst"], start, np.float32)
    for out, places in members.items():
        count = len(places)
        if layer.count_include_pad:
            count = math.prod(layer.kernel)
        at = (slice(None), slice(None), *out)
        seen = (slice(None), slice(None), *np.array(places).T)
        if layer.mode == "avg" and backward:
            share = inputs["dst"][at] / np.float32(count)
            result[seen] += share[..., None]
        elif layer.mode == "avg":
            result[at] = inputs["src"][seen].sum(-1) / np.float32(count)
        elif backward:
            first = inputs["src"][seen].argmax(-1)
            for n, c in np.ndindex(planes):
                result[(n, c, *places[first[n, c]])] += inputs["dst"][(n, c, *out)]
        else:
            result[at] = inputs["src"][seen].max(-1)
    return result


@st.composite
def sides(draw: Any, covered: bool = False) -> dict[str, Any]:
    """Draw fields with a value for each of one to three sides.

    Args:
        draw: From other strategies.
        covered: Whether each window has to meet an element.
    """
    count = draw(st.integers(1, 3))
    most = {1: 5, 2: 4, 3: 2}[count]
    rows = []
    for _ in range(count):
        kernel, dilation = draw(st.integers(1, most)), draw(st.integers(1, most - 1))
        pad = 0 if covered else most - 1
        leading, trailing = draw(st.integers(0, pad)), draw(st.integers(0, pad))
        least = max(1, (kernel - 1) * dilation + 1 - leading - trailing)
        size = draw(st.integers(least, least + most + 1))
        rows.append((size, kernel, draw(st.integers(1, 3)), dilation, leading, trailing))
    size, kernel, stride, dilation, leading, trailing = zip(*rows, strict=True)
    return {
        "in_size": size,
        "kernel": kernel,
        "stride": stride,
        "dilation": dilation,
        "padding": tuple(itertools.chain(*zip(leading, trailing, strict=True))),
    }


@st.composite
def convs(draw: Any) -> Layer:
    """Draw a small convolution: groups, depthwise, dilation, uneven pads, strides."""
    groups = draw(st.sampled_from([1, 1, 2, 3]))
    return build_layer(
        "conv",
        batch=draw(st.integers(1, 3)),
        in_channels=groups * draw(st.integers(1, 3)),
        out_channels=groups * draw(st.integers(1, 3)),
        groups=groups,
        **draw(sides()),
    )


@st.composite
def pools(draw: Any) -> Layer:
    """Draw a small pooling of either kind."""
    mode = draw(st.sampled_from(["max", "avg"]))
    whole = mode == "avg" and draw(st.booleans())
    return build_layer(
        "pool",
        batch=draw(st.integers(1, 3)),
        channels=draw(st.integers(1, 5)),
        mode=mode,
        count_include_pad=whole,
        **draw(sides(covered=mode == "avg" and not whole)),
    )


@pytest.fixture(scope="session")
def naive():
    """Return ``conv`` and ``pool`` of (layer, pass_, inputs), and ``gemm`` of (pass_, inputs)."""
    return SimpleNamespace(conv=conv, gemm=gemm, pool=pool)


@pytest.fixture(scope="session")
def drawn():
    """Return strategies of small layers, for ``data.draw``."""
    return SimpleNamespace(convs=convs(), pools=pools())
