"""Pooling against the reference."""

from __future__ import annotations

import itertools
import math
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import numpy as np

from pydlbench.backends.verification.checksums import (
    CHECKSUM_UNIT,
    Comparison,
    Deviation,
    TapAxis,
    contract,
    image_element,
    larger,
    overlap,
    sums_over,
    window_axes,
    worst_of,
)
from pydlbench.backends.verification.conv import check_images
from pydlbench.backends.verification.inputs import largest, smallest_normal

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from numpy.typing import NDArray

    from pydlbench.backends.verification.checksums import Computed
    from pydlbench.ops.op import Layer


def check_pool(layer: Layer, computed: Computed) -> dict[str, Comparison]:
    """Compare the result of a pooling's pass with the reference."""
    inputs, forward = computed.inputs, computed.pass_ == "forward"
    ((role, output),) = computed.results.items()
    if layer.mode == "avg":
        source = inputs["src" if forward else "dst"]
        least = smallest_normal(computed.precision)
        return {role: _check_average(layer, computed.pass_, source, output, computed.rng, least)}
    if forward:
        return {role: _check_max(layer, inputs["src"], output, computed.precision)}
    gradient = inputs["dst"]
    return {role: _check_max_gradient(layer, inputs["src"], gradient, output, computed.rng)}


# -----------------------------------------------------------------------------
# Average pooling against the reference: a convolution that does not mix channels.


def _check_average(
    layer: Layer,
    pass_: str,
    source: NDArray[Any],
    output: NDArray[Any],
    rng: np.random.Generator,
    least: float,
) -> Comparison:
    """Compare the result of average pooling, forward or backward, with the reference.

    Args:
        layer: The pooling.
        pass_: ``forward`` or ``backward-data``.
        source: What the pass reads: the images, or the gradient of the result.
        output: What the kernel wrote: images.
        rng: Chooses weights and points.
        least: The least that the error of an element is measured against.
    """
    ones = np.ones((layer.channels, 1, 1, *layer.kernel), dtype=np.float32)
    role = "dst" if pass_ == "forward" else "src"
    axes = window_axes(layer, pass_)
    found = check_images(axes, source, ones, output, rng, role, least)
    return found if pass_ == "forward" else replace(found, terms=overlap(layer))


# -----------------------------------------------------------------------------
# Max pooling against the reference: every element, since no checksum can follow a maximum.

#: Elements of a piece (some channels of an image), and the fewest channels in it: in NHWC sixteen
#: float32 are a cache line.
_PIECE = 1 << 17
_MIN_CHANNELS = 16
#: Comparisons spent on the backward pass before only some images are compared.
_COMPARISONS = 120_000_000


def _check_max(
    layer: Layer, source: NDArray[Any], output: NDArray[Any], precision: str
) -> Comparison:
    """Compare max pooling with the reference: equality, since a maximum is one of its inputs.

    Over padding alone it is minus infinity, or the least finite number in its place.

    Args:
        layer: The pooling.
        source: Its input.
        output: What the kernel wrote.
        precision: Whose least number stands where a window holds padding alone.
    """
    axes = window_axes(layer, "forward")
    padding_alone = any(axis.used_outputs() < axis.out for axis in layer.axes)
    least = -largest(precision)
    worst = _nothing("dst")
    for image, channels in _planes(layer, range(layer.batch)):
        expected = _maxima(source[image, channels], axes)
        got = output[image, channels]
        if padding_alone:
            nothing = np.isneginf(expected)
            expected = np.where(nothing, least, expected)
            got = np.where(nothing & (got <= least), least, got)
        if not np.array_equal(got, expected):
            found = worst_of(got, expected, np.abs(expected), _namer("dst", image, channels))
            worst = larger(found, worst)
    return Comparison(terms=0, points=output.size, checksums=0, worst=worst)


def _check_max_gradient(
    layer: Layer,
    source: NDArray[Any],
    gradient: NDArray[Any],
    output: NDArray[Any],
    rng: np.random.Generator,
) -> Comparison:
    """Compare the backward pass of max pooling with the reference.

    The first maximum of a window, row by row, gets its gradient. In large layers single elements
    are compared in some images, the first and the last among them, and the sum over each channel
    in all of them.

    Args:
        layer: The pooling.
        source: Its input; the maxima are found in it.
        gradient: The gradient of its result.
        output: The gradient of the source that the kernel wrote.
        rng: Chooses the images.
    """
    axes = window_axes(layer, "forward")
    taps = math.prod(layer.kernel)
    affordable = max(1, _COMPARISONS // (gradient[0].size * taps))
    images = list(range(layer.batch))
    if affordable < layer.batch:
        # A kernel that starts late or stops early goes wrong in the first image or in the last.
        others = rng.permutation(np.arange(1, layer.batch - 1))[: max(0, affordable - 2)]
        images = sorted({0, layer.batch - 1, *(int(n) for n in others)})
    worst = _sums(gradient, output, axes)
    terms = overlap(layer)
    points = 0
    for image, channels in _planes(layer, images):
        got = output[image, channels]
        expected, scale = _scatter(source[image, channels], gradient[image, channels], axes, terms)
        if terms > 1 or not np.array_equal(got, expected):
            found = worst_of(got, expected, scale, _namer("src", image, channels))
            worst = larger(found, worst)
        points += expected.size
    checksums = output.shape[0] * output.shape[1]
    return Comparison(terms=terms, points=points, checksums=checksums, worst=worst)


def _sums(gradient: NDArray[Any], output: NDArray[Any], axes: tuple[TapAxis, ...]) -> Deviation:
    """Compare the sum over each channel of each image: no gradient is lost or counted twice.

    That of a window of padding alone goes nowhere.
    """
    got, got_energy = sums_over(output, range(2, output.ndim))
    used = {
        number: np.asarray(axis.factor.any(axis=1, keepdims=True), dtype=np.float64)
        for number, axis in enumerate(axes, start=2)
    }
    expected, energy = contract(gradient, used, used)
    return worst_of(
        got,
        expected,
        CHECKSUM_UNIT * np.sqrt(got_energy + energy),
        lambda at: f"sum of channel {at[1]} of image {at[0]}",
    )


def _maxima(planes: NDArray[Any], axes: tuple[TapAxis, ...]) -> NDArray[Any]:
    """Pool (channels, sides...), along one side after the other."""
    for number, axis in enumerate(axes, start=1):
        shape = list(planes.shape)
        shape[number] = axis.outputs
        # In the memory order of the source, so that all loops run along it.
        result = np.empty_like(planes, shape=shape)
        result[...] = -np.inf
        before = (slice(None),) * number
        for tap in range(axis.source.shape[1]):
            to, of = axis.slices(tap)
            there = (*before, to)
            np.maximum(result[there], planes[(*before, of)], out=result[there])
        planes = result
    return planes


def _scatter(
    planes: NDArray[Any], gradient: NDArray[Any], axes: tuple[TapAxis, ...], terms: int
) -> tuple[NDArray[Any], NDArray[Any]]:
    """Return the gradient of the planes, and what its errors are measured against.

    Where windows do not overlap nothing is added, so float32 is exact.
    """
    maxima = _maxima(planes, axes)
    free = np.ones_like(maxima, dtype=np.bool_)
    result = np.zeros_like(planes, dtype=np.float64 if terms > 1 else gradient.dtype)
    squares = np.zeros_like(result)
    for taps in itertools.product(*(range(axis.source.shape[1]) for axis in axes)):
        met = [axis.slices(tap) for axis, tap in zip(axes, taps, strict=True)]
        to = (slice(None), *(one for one, _ in met))
        of = (slice(None), *(other for _, other in met))
        first = (planes[of] == maxima[to]) & free[to]
        free[to] &= ~first
        given = gradient[to] * first
        result[of] += given
        if terms > 1:
            squares[of] += given * given
    return result, np.abs(result) + np.sqrt(squares) if terms > 1 else np.abs(result)


def _planes(layer: Layer, images: list[int] | range) -> Iterator[tuple[int, slice]]:
    plane = max(math.prod(layer.in_size), math.prod(layer.out_size))
    step = max(_MIN_CHANNELS, _PIECE // plane)
    for image in images:
        for first in range(0, layer.channels, step):
            yield image, slice(first, min(first + step, layer.channels))


def _namer(role: str, image: int, channels: slice) -> Callable[[Sequence[int]], str]:
    """Name the elements of a piece by their place in the whole tensor."""
    return lambda at: image_element(role, (image, channels.start + at[0], *at[1:]))


def _nothing(role: str) -> Deviation:
    return Deviation(error=0.0, where=role, got=0.0, expected=0.0)
