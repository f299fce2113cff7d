"""Pooling on a GPU: a thread for each element of the result, which gathers what belongs to it.

Images are (plane, row, column). The place of a maximum is its index in its plane.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from numba import float32

from pydlbench.backends.numba.cuda.language import cuda, kernel, larger, smaller

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    Array = NDArray[np.float32]
    Indices = NDArray[np.int32]
    Pair = tuple[int, int]

__all__ = [
    "average",
    "average_backward",
    "grid",
    "maximum",
    "maximum_backward",
    "maximum_where",
]

THREADS = 256
_GRID_MOST = 2**31 - 1


def grid(elements: int, threads: int = THREADS) -> Any:
    """Return grid and block for so many elements."""
    return min(-(-elements // threads), _GRID_MOST), threads


@kernel
def maximum(y: Array, x: Array, window: Pair, stride: Pair, pad: Pair) -> None:
    """Write the maximum of each window; pairs are down and across."""
    _, height, width = y.shape
    for i in range(cuda.grid(1), y.size, cuda.gridsize(1)):
        p, oh, ow = i // width // height, i // width % height, i % width
        top, left = oh * stride[0] - pad[0], ow * stride[1] - pad[1]
        best = x[p, larger(top, 0), larger(left, 0)]
        for ih in range(larger(top, 0), smaller(top + window[0], x.shape[1])):
            for iw in range(larger(left, 0), smaller(left + window[1], x.shape[2])):
                best = larger(best, x[p, ih, iw])
        y[p, oh, ow] = best


@kernel
def maximum_where(
    y: Array, where: Indices, x: Array, window: Pair, stride: Pair, pad: Pair
) -> None:
    """Write the maximum of each window and the first place that has it."""
    _, height, width = y.shape
    for i in range(cuda.grid(1), y.size, cuda.gridsize(1)):
        p, oh, ow = i // width // height, i // width % height, i % width
        top, left = oh * stride[0] - pad[0], ow * stride[1] - pad[1]
        best, place = (
            x[p, larger(top, 0), larger(left, 0)],
            larger(top, 0) * x.shape[2] + larger(left, 0),
        )
        for ih in range(larger(top, 0), smaller(top + window[0], x.shape[1])):
            for iw in range(larger(left, 0), smaller(left + window[1], x.shape[2])):
                if x[p, ih, iw] > best:
                    best, place = x[p, ih, iw], ih * x.shape[2] + iw
        y[p, oh, ow] = best
        where[p, oh, ow] = place


@kernel
def maximum_backward(
    dx: Array, dy: Array, where: Indices, window: Pair, stride: Pair, pad: Pair
) -> None:
    """Gather the gradients of the windows whose maximum is here."""
    _, height, width = dx.shape
    for i in range(cuda.grid(1), dx.size, cuda.gridsize(1)):
        p, ih, iw = i // width // height, i // width % height, i % width
        bottom, right = ih + pad[0], iw + pad[1]
        total = float32(0)
        first = larger(0, (bottom - window[0]) // stride[0] + 1)
        begin = larger(0, (right - window[1]) // stride[1] + 1)
        for oh in range(first, smaller(bottom // stride[0] + 1, dy.shape[1])):
            for ow in range(begin, smaller(right // stride[1] + 1, dy.shape[2])):
                if where[p, oh, ow] == ih * width + iw:
                    total += dy[p, oh, ow]
        dx[p, ih, iw] = total


@kernel
def average(y: Array, x: Array, window: Pair, stride: Pair, pad: Pair, whole: bool) -> None:
    """Write the mean of each window; ``whole`` divides by all of it, padding included."""
    _, height, width = y.shape
    for i in range(cuda.grid(1), y.size, cuda.gridsize(1)):
        p, oh, ow = i // width // height, i // width % height, i % width
        top, left = oh * stride[0] - pad[0], ow * stride[1] - pad[1]
        rows = smaller(top + window[0], x.shape[1]) - larger(top, 0)
        columns = smaller(left + window[1], x.shape[2]) - larger(left, 0)
        total = float32(0)
        for ih in range(larger(top, 0), larger(top, 0) + rows):
            for iw in range(larger(left, 0), larger(left, 0) + columns):
                total += x[p, ih, iw]
        count = window[0] * window[1] if whole else rows * columns
        y[p, oh, ow] = total / float32(count)


@kernel
def average_backward(
    dx: Array, dy: Array, window: Pair, stride: Pair, pad: Pair, whole: bool
) -> None:
    """Gather each pixel's shares of the gradients."""
    _, height, width = dx.shape
    for i in range(cuda.grid(1), dx.size, cuda.gridsize(1)):
        p, ih, iw = i // width // height, i // width % height, i % width
        bottom, right = ih + pad[0], iw + pad[1]
        total = float32(0)
        first = larger(0, (bottom - window[0]) // stride[0] + 1)
        begin = larger(0, (right - window[1]) // stride[1] + 1)
        for oh in range(first, smaller(bottom // stride[0] + 1, dy.shape[1])):
            top = oh * stride[0] - pad[0]
            rows = smaller(top + window[0], height) - larger(top, 0)
            for ow in range(begin, smaller(right // stride[1] + 1, dy.shape[2])):
                left = ow * stride[1] - pad[1]
                columns = smaller(left + window[1], width) - larger(left, 0)
                count = window[0] * window[1] if whole else rows * columns
                total += dy[p, oh, ow] / float32(count)
        dx[p, ih, iw] = total
