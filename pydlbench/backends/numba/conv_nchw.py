"""Direct convolution on the CPU with the width innermost: vectors along a row.

Channels are split into groups: images are (image, group, channel, row, column), weights (group,
output channel, input channel, kernel row, kernel column). A task owns one plane of its result. Four
channels are added at a time to a row, which stays in the cache.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
from numba import prange

from pydlbench.backends.numba.conv import first_output, inner, last_output, parallel

if TYPE_CHECKING:
    from numpy.typing import NDArray

    Array = NDArray[np.float32]
    Pair = tuple[int, int]

__all__ = ["backward_data", "backward_weights", "forward"]


@inner
def _add_rows(to: Array, at: Any, given: Array, c: int, row: int, of: Any, n: int, w: Any) -> None:
    """Add four channels' rows to a row.

    Args:
        to: The row that is added to.
        at: Its first column, and the columns from one pixel to the next.
        given: Planes, (channel, row, column).
        c: The first of the channels.
        row: Row of each plane.
        of: Its first column, and the columns from one pixel to the next.
        n: Pixels; none if negative.
        w: The weight of each channel.
    """
    # Unsigned: an index that might count from the end keeps the loop from being vectorised.
    first, begin, count = np.uint64(at[0]), np.uint64(of[0]), np.uint64(max(n, 0))
    if at[1] == 1 and of[1] == 1:
        for i in range(count):
            to[first + i] += (
                w[0] * given[c, row, begin + i]
                + w[1] * given[c + 1, row, begin + i]
                + w[2] * given[c + 2, row, begin + i]
                + w[3] * given[c + 3, row, begin + i]
            )
        return
    step, to_step = np.uint64(of[1]), np.uint64(at[1])
    for i in range(count):
        column = begin + i * step
        to[first + i * to_step] += (
            w[0] * given[c, row, column]
            + w[1] * given[c + 1, row, column]
            + w[2] * given[c + 2, row, column]
            + w[3] * given[c + 3, row, column]
        )


@inner
def _add_row(to: Array, at: Any, given: Array, c: int, row: int, of: Any, n: int, w: Any) -> None:
    """Add the row of a single channel; see :func:`_add_rows`."""
    first, begin, count = np.uint64(at[0]), np.uint64(of[0]), np.uint64(max(n, 0))
    step, to_step = np.uint64(of[1]), np.uint64(at[1])
    if at[1] == 1 and of[1] == 1:
        for i in range(count):
            to[first + i] += w * given[c, row, begin + i]
        return
    for i in range(count):
        to[first + i * to_step] += w * given[c, row, begin + i * step]


@inner
def _forward_row(
    to: Array, x: Array, w: Array, kh: int, ih: int, stride: int, pad: int, dilation: int
) -> None:
    """Add to a row of outputs what one row of the kernel makes of all channels of the group."""
    channels = x.shape[0]
    whole = channels // 4 * 4
    for kw in range(w.shape[2]):
        offset = kw * dilation - pad
        low = first_output(offset, stride)
        count = last_output(offset, stride, x.shape[2], to.size) - low
        of = low * stride + offset
        for c in range(0, whole, 4):
            four = (w[c, kh, kw], w[c + 1, kh, kw], w[c + 2, kh, kw], w[c + 3, kh, kw])
            _add_rows(to, (low, 1), x, c, ih, (of, stride), count, four)
        for c in range(whole, channels):
            _add_row(to, (low, 1), x, c, ih, (of, stride), count, w[c, kh, kw])


@parallel
def forward(y: Array, x: Array, w: Array, stride: Pair, pad: Pair, dilation: Pair) -> None:
    """Convolve.

    Args:
        y: Result, (image, group, output channel, row, column).
        x: Source, (image, group, input channel, row, column).
        w: Weights.
        stride: Down and across.
        pad: At the top and on the left.
        dilation: Down and across.
    """
    images, groups, channels, height, _ = y.shape
    for task in prange(images * groups * channels):
        o, group = task % channels, task // channels % groups
        image = task // channels // groups
        for oh in range(height):
            row = y[image, group, o, oh]
            row[:] = 0
            for kh in range(w.shape[3]):
                ih = oh * stride[0] + kh * dilation[0] - pad[0]
                if ih >= 0 and ih < x.shape[3]:
                    of = x[image, group]
                    _forward_row(row, of, w[group, o], kh, ih, stride[1], pad[1], dilation[1])


@inner
def _backward_row(
    to: Array, dy: Array, w: Array, kh: int, oh: int, stride: int, pad: int, dilation: int
) -> None:
    """Add to a row of the source's gradient what one row of the kernel makes of all outputs."""
    channels = dy.shape[0]
    whole = channels // 4 * 4
    for kw in range(w.shape[2]):
        offset = kw * dilation - pad
        low = first_output(offset, stride)
        count = last_output(offset, stride, to.size, dy.shape[2]) - low
        at = low * stride + offset
        for o in range(0, whole, 4):
            four = (w[o, kh, kw], w[o + 1, kh, kw], w[o + 2, kh, kw], w[o + 3, kh, kw])
            _add_rows(to, (at, stride), dy, o, oh, (low, 1), count, four)
        for o in range(whole, channels):
            _add_row(to, (at, stride), dy, o, oh, (low, 1), count, w[o, kh, kw])


@parallel
def backward_data(dx: Array, dy: Array, w: Array, stride: Pair, pad: Pair, dilation: Pair) -> None:
    """Compute the gradient of the source: a plane gathers from all outputs; see :func:`forward`."""
    images, groups, channels, height, _ = dx.shape
    for task in prange(images * groups * channels):
        c, group = task % channels, task // channels % groups
        image = task // channels // groups
        for ih in range(height):
            row = dx[image, group, c, ih]
            row[:] = 0
            for kh in range(w.shape[3]):
                down = ih + pad[0] - kh * dilation[0]
                oh = down // stride[0]
                if down >= 0 and oh * stride[0] == down and oh < dy.shape[3]:
                    of = dy[image, group]
                    taps = w[group, :, c]
                    _backward_row(row, of, taps, kh, oh, stride[1], pad[1], dilation[1])


@inner
def _dot(x: Array, row: int, at: Any, dy: Array, other: int, of: int, n: int) -> Any:
    """Return the sum of the products of two rows.

    Args:
        x: A plane of the source.
        row: Its row.
        at: Its first column, and the columns from one pixel to the next.
        dy: A plane of the gradient.
        other: Its row.
        of: Its first column.
        n: Pixels; none if negative.
    """
    first, step, begin = np.uint64(at[0]), np.uint64(at[1]), np.uint64(of)
    total = np.float32(0)
    if at[1] == 1:
        for i in range(np.uint64(max(n, 0))):
            total += x[row, first + i] * dy[other, begin + i]
        return total
    for i in range(np.uint64(max(n, 0))):
        total += x[row, first + i * step] * dy[other, begin + i]
    return total


@parallel
def backward_weights(
    dw: Array, x: Array, dy: Array, stride: Pair, pad: Pair, dilation: Pair
) -> None:
    """Compute the gradient of the weights: a task has one pair of channels; see :func:`forward`."""
    groups, outs, channels, rows, columns = dw.shape
    for task in prange(groups * outs * channels):
        c, o = task % channels, task // channels % outs
        group = task // channels // outs
        own = dw[group, o, c]
        own[:] = 0
        for image in range(dy.shape[0]):
            source, given = x[image, group, c], dy[image, group, o]
            for oh in range(dy.shape[3]):
                for kh in range(rows):
                    ih = oh * stride[0] + kh * dilation[0] - pad[0]
                    if ih < 0 or ih >= x.shape[3]:
                        continue
                    for kw in range(columns):
                        offset = kw * dilation[1] - pad[1]
                        low = first_output(offset, stride[1])
                        count = last_output(offset, stride[1], x.shape[4], dy.shape[4]) - low
                        at = (low * stride[1] + offset, stride[1])
                        own[kh, kw] += _dot(source, ih, at, given, oh, low, count)
