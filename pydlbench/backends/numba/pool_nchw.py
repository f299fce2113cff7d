"""Pooling on the CPU with the width innermost; planes run in parallel.

Images are (plane, row, column), a plane for each channel of each image.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
from numba import prange

from pydlbench.backends.numba.conv import first_output, inner, last_output, parallel

if TYPE_CHECKING:
    from numpy.typing import NDArray

    Array = NDArray[np.float32]
    Indices = NDArray[np.int32]
    Pair = tuple[int, int]

__all__ = ["average", "average_backward", "inside", "maximum", "maximum_backward", "maximum_where"]

#: Less than whatever is pooled; fast mathematics knows no infinity.
LEAST = np.finfo(np.float32).min


@inner
def inside(output: int, stride: int, pad: int, kernel: int, size: int) -> int:
    """Return how many taps of an output's window are on the input, along one axis."""
    start = output * stride - pad
    return min(start + kernel, size) - max(start, 0)


@parallel
def maximum(y: Array, x: Array, kernel: Pair, stride: Pair, pad: Pair) -> None:
    """Write the maximum of each window.

    Args:
        y: Result, (plane, row, column).
        x: Source, (plane, row, column).
        kernel: Rows and columns of the window.
        stride: Down and across.
        pad: At the top and on the left.
    """
    planes, height, width = y.shape
    for p in prange(planes):
        for oh in range(height):
            row = y[p, oh]
            row[:] = LEAST
            for kh in range(kernel[0]):
                ih = oh * stride[0] + kh - pad[0]
                if ih < 0 or ih >= x.shape[1]:
                    continue
                source = x[p, ih]
                for kw in range(kernel[1]):
                    low = first_output(kw - pad[1], stride[1])
                    for ow in range(low, last_output(kw - pad[1], stride[1], x.shape[2], width)):
                        row[ow] = max(row[ow], source[ow * stride[1] + kw - pad[1]])


@parallel
def maximum_where(
    y: Array, where: Indices, x: Array, kernel: Pair, stride: Pair, pad: Pair
) -> None:
    """Write the maximum of each window and the first place in its plane that has it."""
    planes, height, width = y.shape
    for p in prange(planes):
        for oh in range(height):
            top = oh * stride[0] - pad[0]
            for ow in range(width):
                left = ow * stride[1] - pad[1]
                best, place = LEAST, max(top, 0) * x.shape[2] + max(left, 0)
                for ih in range(max(top, 0), min(top + kernel[0], x.shape[1])):
                    for iw in range(max(left, 0), min(left + kernel[1], x.shape[2])):
                        if x[p, ih, iw] > best:
                            best, place = x[p, ih, iw], ih * x.shape[2] + iw
                y[p, oh, ow] = best
                where[p, oh, ow] = place


@parallel
def maximum_backward(dx: Array, dy: Array, where: Indices) -> None:
    """Add each gradient to the place of its maximum."""
    planes, height, width = dy.shape
    for p in prange(planes):
        dx[p] = 0
        for oh in range(height):
            for ow in range(width):
                place = where[p, oh, ow]
                dx[p, place // dx.shape[2], place % dx.shape[2]] += dy[p, oh, ow]


@parallel
def average(y: Array, x: Array, kernel: Pair, stride: Pair, pad: Pair, whole: bool) -> None:
    """Write the mean of each window.

    Args:
        y: Result, (plane, row, column).
        x: Source, (plane, row, column).
        kernel: Rows and columns of the window.
        stride: Down and across.
        pad: At the top and on the left.
        whole: Divide by the whole window, not only by what of it is on the input.
    """
    planes, height, width = y.shape
    for p in prange(planes):
        for oh in range(height):
            row = y[p, oh]
            row[:] = 0
            for kh in range(kernel[0]):
                ih = oh * stride[0] + kh - pad[0]
                if ih < 0 or ih >= x.shape[1]:
                    continue
                source = x[p, ih]
                for kw in range(kernel[1]):
                    low = first_output(kw - pad[1], stride[1])
                    for ow in range(low, last_output(kw - pad[1], stride[1], x.shape[2], width)):
                        row[ow] += source[ow * stride[1] + kw - pad[1]]
            rows = kernel[0] if whole else inside(oh, stride[0], pad[0], kernel[0], x.shape[1])
            for ow in range(width):
                across = inside(ow, stride[1], pad[1], kernel[1], x.shape[2])
                row[ow] /= np.float32(rows * (kernel[1] if whole else across))


@parallel
def average_backward(
    dx: Array, dy: Array, kernel: Pair, stride: Pair, pad: Pair, whole: bool
) -> None:
    """Spread each gradient over its window; arguments as in :func:`average`."""
    planes, height, width = dy.shape
    for p in prange(planes):
        dx[p] = 0
        for oh in range(height):
            rows = kernel[0] if whole else inside(oh, stride[0], pad[0], kernel[0], dx.shape[1])
            for ow in range(width):
                across = inside(ow, stride[1], pad[1], kernel[1], dx.shape[2])
                share = dy[p, oh, ow] / np.float32(rows * (kernel[1] if whole else across))
                top, left = oh * stride[0] - pad[0], ow * stride[1] - pad[1]
                for ih in range(max(top, 0), min(top + kernel[0], dx.shape[1])):
                    for iw in range(max(left, 0), min(left + kernel[1], dx.shape[2])):
                        dx[p, ih, iw] += share
