"""Direct convolution on the CPU, as compiled parallel loops."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, TypeVar, cast

import numba
from numba import prange

if TYPE_CHECKING:
    from collections.abc import Callable

    import numpy as np
    from numpy.typing import NDArray


# -----------------------------------------------------------------------------
# How the kernels of this package are compiled: parallel loops, vectorised, sums reordered.

_numba: Any = numba  # partly without types

_Function = TypeVar("_Function", bound="Callable[..., Any]")


def parallel(function: _Function) -> _Function:
    """Compile a kernel when it is first called; its ``prange`` loop runs on all threads.

    ``fastmath`` lets sums be reordered, so that they are vectorised. It also promises that nothing
    is infinite or NaN, so kernels may write over such values but never read them.
    """
    return cast("_Function", _numba.njit(parallel=True, fastmath=True, cache=False)(function))


def inner(function: _Function) -> _Function:
    """Compile what runs inside of a parallel loop."""
    return cast("_Function", _numba.njit(fastmath=True, cache=False)(function))


# -----------------------------------------------------------------------------
# Which outputs have a tap on the input, along one axis: loops without branches for the padding.


@inner
def first_output(offset: int, stride: int) -> int:
    """Return the least output that a tap leads to an input of at least zero.

    Args:
        offset: Input position of the tap for output zero: tap x dilation - padding.
        stride: Input positions from one output to the next.
    """
    return 0 if offset >= 0 else (stride - 1 - offset) // stride


@inner
def last_output(offset: int, stride: int, inputs: int, outputs: int) -> int:
    """Return one more than the last output that the tap leads to an input inside.

    It is less than :func:`first_output` where there is none.
    """
    if offset >= inputs:
        return 0
    return min(outputs, (inputs - 1 - offset) // stride + 1)


# -----------------------------------------------------------------------------
# Direct convolution on the CPU with channels innermost: vectors of channels, rows in parallel.
#
# Channels are split into groups: images are (image, row, column, group, channel). Weights lie as
# each pass reads them. Four input channels are added at a time to a row of outputs, which stays in
# the cache: one load and one store of a sum for four multiply-adds.

if TYPE_CHECKING:
    Array = NDArray[np.float32]
    Pair = tuple[int, int]


#: Outputs of a row that are summed up together, and input channels per task of backward-weights.
TILE = 28
CHANNELS = 8


@inner
def _add_tap(
    to: Array, there: Any, to_step: int, given: Array, here: Any, step: int, count: int, taps: Array
) -> None:
    """Add to some pixels of a row what one tap makes of the pixels of another.

    Args:
        to: What is added to.
        there: Its image, row, first column and group.
        to_step: Columns from one pixel to the next.
        given: What is read.
        here: Its image, row and first column.
        step: Columns from one pixel to the next.
        count: Pixels.
        taps: Weights of this tap and group: (channels read, channels written).
    """
    image, row, column, group = there
    _, from_row, from_column = here
    channels, results = taps.shape
    whole = channels // 4 * 4
    for c in range(0, whole, 4):
        for pixel in range(count):
            at = column + pixel * to_step
            of = from_column + pixel * step
            x0 = given[image, from_row, of, group, c]
            x1 = given[image, from_row, of, group, c + 1]
            x2 = given[image, from_row, of, group, c + 2]
            x3 = given[image, from_row, of, group, c + 3]
            for o in range(results):
                to[image, row, at, group, o] += (
                    x0 * taps[c, o]
                    + x1 * taps[c + 1, o]
                    + x2 * taps[c + 2, o]
                    + x3 * taps[c + 3, o]
                )
    for c in range(whole, channels):
        for pixel in range(count):
            at = column + pixel * to_step
            x0 = given[image, from_row, from_column + pixel * step, group, c]
            for o in range(results):
                to[image, row, at, group, o] += x0 * taps[c, o]


@parallel
def forward(y: Array, x: Array, w: Array, stride: Pair, pad: Pair, dilation: Pair) -> None:
    """Convolve.

    Args:
        y: Result, (image, row, column, group, output channel).
        x: Source, (image, row, column, group, input channel).
        w: Weights, (group, kernel row, kernel column, input channel, output channel).
        stride: Down and across.
        pad: At the top and on the left.
        dilation: Down and across.
    """
    images, height, width, groups, _ = y.shape
    for task in prange(images * height * groups):
        image, oh, group = task // groups // height, task // groups % height, task % groups
        y[image, oh, :, group, :] = 0
        for start in range(0, width, TILE):
            for kh in range(w.shape[1]):
                ih = oh * stride[0] + kh * dilation[0] - pad[0]
                if ih < 0 or ih >= x.shape[1]:
                    continue
                for kw in range(w.shape[2]):
                    offset = kw * dilation[1] - pad[1]
                    low = max(start, first_output(offset, stride[1]))
                    high = last_output(offset, stride[1], x.shape[2], width)
                    _add_tap(
                        y,
                        (image, oh, low, group),
                        1,
                        x,
                        (image, ih, low * stride[1] + offset),
                        stride[1],
                        min(high, start + TILE) - low,
                        w[group, kh, kw],
                    )


@parallel
def backward_data(dx: Array, dy: Array, w: Array, stride: Pair, pad: Pair, dilation: Pair) -> None:
    """Compute the gradient of the source: each row gathers from the rows that it had a part in.

    Weights are (group, kernel row, kernel column, output channel, input channel); the rest is as in
    :func:`forward`.
    """
    images, height, width, groups, _ = dx.shape
    for task in prange(images * height * groups):
        image, ih, group = task // groups // height, task // groups % height, task % groups
        dx[image, ih, :, group, :] = 0
        for start in range(0, dy.shape[2], TILE):
            for kh in range(w.shape[1]):
                down = ih + pad[0] - kh * dilation[0]
                oh = down // stride[0]
                if down < 0 or oh * stride[0] != down or oh >= dy.shape[1]:
                    continue
                for kw in range(w.shape[2]):
                    offset = kw * dilation[1] - pad[1]
                    low = max(start, first_output(offset, stride[1]))
                    high = last_output(offset, stride[1], width, dy.shape[2])
                    _add_tap(
                        dx,
                        (image, ih, low * stride[1] + offset, group),
                        stride[1],
                        dy,
                        (image, oh, low),
                        1,
                        min(high, start + TILE) - low,
                        w[group, kh, kw],
                    )


@inner
def _add_pixels(
    dw: Array, some: Any, x: Array, at: Any, step: int, dy: Array, of: Any, count: int
) -> None:
    """Add to some rows of one tap's weights the products of pixels, four at a time.

    Args:
        dw: Gradients of one tap: (input channel, output channel).
        some: First input channel, and one more than the last.
        x: Source.
        at: Its image, row, first column and group.
        step: Columns from one pixel of the source to the next.
        dy: Gradient of the result.
        of: Its row and first column.
        count: Pixels.
    """
    image, ih, iw, group = at
    oh, ow = of
    whole = max(count, 0) // 4 * 4
    for p in range(0, whole, 4):
        for c in range(some[0], some[1]):
            x0 = x[image, ih, iw + p * step, group, c]
            x1 = x[image, ih, iw + (p + 1) * step, group, c]
            x2 = x[image, ih, iw + (p + 2) * step, group, c]
            x3 = x[image, ih, iw + (p + 3) * step, group, c]
            for o in range(dw.shape[1]):
                dw[c, o] += (
                    x0 * dy[image, oh, ow + p, group, o]
                    + x1 * dy[image, oh, ow + p + 1, group, o]
                    + x2 * dy[image, oh, ow + p + 2, group, o]
                    + x3 * dy[image, oh, ow + p + 3, group, o]
                )
    for p in range(whole, count):
        for c in range(some[0], some[1]):
            x0 = x[image, ih, iw + p * step, group, c]
            for o in range(dw.shape[1]):
                dw[c, o] += x0 * dy[image, oh, ow + p, group, o]


@parallel
def backward_weights(
    dw: Array, x: Array, dy: Array, stride: Pair, pad: Pair, dilation: Pair
) -> None:
    """Compute the gradient of the weights, in the layout of :func:`forward`.

    A task has one tap and some input channels, so no two tasks add to the same weight.
    """
    groups, rows, columns, channels, _ = dw.shape
    blocks = (channels + CHANNELS - 1) // CHANNELS
    for task in prange(groups * rows * columns * blocks):
        start = task % blocks * CHANNELS
        some = (start, min(start + CHANNELS, channels))
        tap = task // blocks
        kh, kw, group = tap // columns % rows, tap % columns, tap // columns // rows
        own = dw[group, kh, kw]
        own[some[0] : some[1]] = 0
        offset = kw * dilation[1] - pad[1]
        low = first_output(offset, stride[1])
        high = last_output(offset, stride[1], x.shape[2], dy.shape[2])
        left = low * stride[1] + offset
        for image in range(dy.shape[0]):
            for oh in range(dy.shape[1]):
                ih = oh * stride[0] + kh * dilation[0] - pad[0]
                if ih >= 0 and ih < x.shape[1]:
                    at = (image, ih, left, group)
                    _add_pixels(own, some, x, at, stride[1], dy, (oh, low), high - low)
