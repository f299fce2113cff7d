"""Pooling on the CPU with channels innermost; rows of images run in parallel.

Images are (image, row, column, channel). A window is its rows and columns (``kernel``), its strides
down and across, and the padding at the top and on the left.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
from numba import prange

from pydlbench.backends.numba.conv import first_output, inner, last_output, parallel

if TYPE_CHECKING:
    from numpy.typing import NDArray

if TYPE_CHECKING:
    Array = NDArray[np.float32]
    Indices = NDArray[np.int32]
    Pair = tuple[int, int]

#: Less than whatever is pooled; fast mathematics knows no infinity.
LEAST = np.finfo(np.float32).min


@inner
def inside(output: int, stride: int, pad: int, kernel: int, size: int) -> int:
    """Return how many taps of an output's window are on the input, along one axis."""
    start = output * stride - pad
    return min(start + kernel, size) - max(start, 0)


@parallel
def maximum(y: Array, x: Array, kernel: Pair, stride: Pair, pad: Pair) -> None:
    """Write the maximum of each window of ``x`` to ``y``."""
    images, height, width, channels = y.shape
    for task in prange(images * height):
        image, oh = task // height, task % height
        top = oh * stride[0] - pad[0]
        y[image, oh] = LEAST
        for ow in range(width):
            left = ow * stride[1] - pad[1]
            for ih in range(max(top, 0), min(top + kernel[0], x.shape[1])):
                for iw in range(max(left, 0), min(left + kernel[1], x.shape[2])):
                    for c in range(channels):
                        y[image, oh, ow, c] = max(y[image, oh, ow, c], x[image, ih, iw, c])


@parallel
def maximum_where(
    y: Array, where: Indices, x: Array, kernel: Pair, stride: Pair, pad: Pair
) -> None:
    """Write the maximum of each window and the number of the first tap that has it."""
    images, height, width, channels = y.shape
    for task in prange(images * height):
        image, oh = task // height, task % height
        top = oh * stride[0] - pad[0]
        y[image, oh] = LEAST
        where[image, oh] = 0
        for ow in range(width):
            left = ow * stride[1] - pad[1]
            for ih in range(max(top, 0), min(top + kernel[0], x.shape[1])):
                for iw in range(max(left, 0), min(left + kernel[1], x.shape[2])):
                    tap = np.int32((ih - top) * kernel[1] + iw - left)
                    for c in range(channels):
                        larger = x[image, ih, iw, c] > y[image, oh, ow, c]
                        if larger:
                            y[image, oh, ow, c] = x[image, ih, iw, c]
                            where[image, oh, ow, c] = tap


@parallel
def maximum_backward(
    dx: Array, dy: Array, where: Indices, kernel: Pair, stride: Pair, pad: Pair
) -> None:
    """Gather, for each row of the source, the gradients whose maximum is there."""
    images, height, width, channels = dx.shape
    for task in prange(images * height):
        image, ih = task // height, task % height
        dx[image, ih] = 0
        for kh in range(kernel[0]):
            down = ih + pad[0] - kh
            oh = down // stride[0]
            if down < 0 or oh * stride[0] != down or oh >= dy.shape[1]:
                continue
            for kw in range(kernel[1]):
                offset = kw - pad[1]
                tap = np.int32(kh * kernel[1] + kw)
                high = last_output(offset, stride[1], width, dy.shape[2])
                for ow in range(first_output(offset, stride[1]), high):
                    iw = ow * stride[1] + offset
                    for c in range(channels):
                        if where[image, oh, ow, c] == tap:
                            dx[image, ih, iw, c] += dy[image, oh, ow, c]


@parallel
def average(y: Array, x: Array, kernel: Pair, stride: Pair, pad: Pair, whole: bool) -> None:
    """Write the mean of each window of ``x`` to ``y``.

    With ``whole`` the sum is divided by the size of the whole window, else by what of it is on the
    input.
    """
    images, height, width, channels = y.shape
    for task in prange(images * height):
        image, oh = task // height, task % height
        top = oh * stride[0] - pad[0]
        y[image, oh] = 0
        rows = kernel[0] if whole else inside(oh, stride[0], pad[0], kernel[0], x.shape[1])
        for ow in range(width):
            left = ow * stride[1] - pad[1]
            for ih in range(max(top, 0), min(top + kernel[0], x.shape[1])):
                for iw in range(max(left, 0), min(left + kernel[1], x.shape[2])):
                    for c in range(channels):
                        y[image, oh, ow, c] += x[image, ih, iw, c]
            across = inside(ow, stride[1], pad[1], kernel[1], x.shape[2])
            count = np.float32(rows * (kernel[1] if whole else across))
            for c in range(channels):
                y[image, oh, ow, c] /= count


@parallel
def average_backward(
    dx: Array, dy: Array, kernel: Pair, stride: Pair, pad: Pair, whole: bool
) -> None:
    """Gather, for each row of the source, its shares of the gradients."""
    images, height, width, channels = dx.shape
    for task in prange(images * height):
        image, ih = task // height, task % height
        dx[image, ih] = 0
        for kh in range(kernel[0]):
            down = ih + pad[0] - kh
            oh = down // stride[0]
            if down < 0 or oh * stride[0] != down or oh >= dy.shape[1]:
                continue
            rows = kernel[0] if whole else inside(oh, stride[0], pad[0], kernel[0], height)
            for kw in range(kernel[1]):
                offset = kw - pad[1]
                high = last_output(offset, stride[1], width, dy.shape[2])
                for ow in range(first_output(offset, stride[1]), high):
                    across = inside(ow, stride[1], pad[1], kernel[1], width)
                    part = np.float32(1) / np.float32(rows * (kernel[1] if whole else across))
                    for c in range(channels):
                        dx[image, ih, ow * stride[1] + offset, c] += dy[image, oh, ow, c] * part
