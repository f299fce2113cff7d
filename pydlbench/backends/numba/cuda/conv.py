"""Direct convolution on a GPU: a thread has one pixel and a few channels of the result.

Images are (image, group, channel, row, column), weights (group, output channel, input channel,
kernel row, kernel column). The weights that a block needs next lie in shared memory; neighbouring
threads have neighbouring pixels.
"""

from __future__ import annotations

import functools
from typing import TYPE_CHECKING, Any

from numba import float32

from pydlbench.backends.numba.cuda.language import cuda, kernel, smaller

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    Array = NDArray[np.float32]
    Pair = tuple[int, int]

__all__ = ["backward_data", "backward_weights", "forward", "grid", "weights_grid"]

#: Threads of a block; channels of a thread; taps in shared memory at a time.
THREADS, FEW, TAPS = 128, 4, 64
_GRID_MOST = 65535


def grid(
    images: int, groups: int, channels: int, pixels: int, threads: int = THREADS, few: int = FEW
) -> Any:
    """Return grid and block of a forward or backward-data kernel."""
    planes = groups * -(-channels // few)
    return (-(-pixels // threads), min(planes, _GRID_MOST), min(images, _GRID_MOST)), threads


def weights_grid(groups: int, outs: int, channels: int, threads: int = THREADS) -> Any:
    """Return grid and block of a backward-weights kernel: a block for each pair of channels."""
    return (groups * outs * channels,), threads


@functools.cache
def forward(threads: int = THREADS, few: int = FEW) -> Any:  # noqa: C901 - see its kernel
    """Return the kernel ``(y, x, w, stride, pad, dilation)``; pairs are down and across."""

    def compute(y: Array, x: Array, w: Array, stride: Pair, pad: Pair, dilation: Pair) -> None:  # noqa: C901 - a kernel is one function
        near = cuda.shared.array((few, TAPS), float32)
        total = cuda.local.array(few, float32)
        images, groups, outs, height, width = y.shape
        taps, blocks = w.shape[3] * w.shape[4], (outs + few - 1) // few
        pixel = cuda.blockIdx.x * threads + cuda.threadIdx.x
        top = pixel // width * stride[0] - pad[0]
        left = pixel % width * stride[1] - pad[1]
        for image in range(cuda.blockIdx.z, images, cuda.gridDim.z):
            for plane in range(cuda.blockIdx.y, groups * blocks, cuda.gridDim.y):
                group, o0 = plane // blocks, plane % blocks * few
                for i in range(few):
                    total[i] = float32(0)
                for c in range(x.shape[2]):
                    for first in range(0, taps, TAPS):
                        for e in range(cuda.threadIdx.x, few * TAPS, threads):
                            o, tap = o0 + e // TAPS, first + e % TAPS
                            if o < outs and tap < taps:
                                kh, kw = tap // w.shape[4], tap % w.shape[4]
                                near[e // TAPS, e % TAPS] = w[group, o, c, kh, kw]
                        cuda.syncthreads()
                        for tap in range(first, smaller(first + TAPS, taps)):
                            ih = top + tap // w.shape[4] * dilation[0]
                            iw = left + tap % w.shape[4] * dilation[1]
                            inside = ih >= 0 and ih < x.shape[3] and iw >= 0 and iw < x.shape[4]
                            if inside and pixel < height * width:
                                value = x[image, group, c, ih, iw]
                                for i in range(few):
                                    total[i] += value * near[i, tap - first]
                        cuda.syncthreads()
                if pixel < height * width:
                    for i in range(few):
                        if o0 + i < outs:
                            y[image, group, o0 + i, pixel // width, pixel % width] = total[i]

    return kernel(compute)


@functools.cache
def backward_data(threads: int = THREADS, few: int = FEW) -> Any:  # noqa: C901 - see its kernel
    """Return the kernel ``(dx, dy, w, stride, pad, dilation)``: each pixel gathers."""

    def compute(dx: Array, dy: Array, w: Array, stride: Pair, pad: Pair, dilation: Pair) -> None:  # noqa: C901 - a kernel is one function
        near = cuda.shared.array((few, TAPS), float32)
        total = cuda.local.array(few, float32)
        images, groups, channels, height, width = dx.shape
        taps, blocks = w.shape[3] * w.shape[4], (channels + few - 1) // few
        pixel = cuda.blockIdx.x * threads + cuda.threadIdx.x
        bottom, right = pixel // width + pad[0], pixel % width + pad[1]
        for image in range(cuda.blockIdx.z, images, cuda.gridDim.z):
            for plane in range(cuda.blockIdx.y, groups * blocks, cuda.gridDim.y):
                group, c0 = plane // blocks, plane % blocks * few
                for i in range(few):
                    total[i] = float32(0)
                for o in range(dy.shape[2]):
                    for first in range(0, taps, TAPS):
                        for e in range(cuda.threadIdx.x, few * TAPS, threads):
                            c, tap = c0 + e // TAPS, first + e % TAPS
                            if c < channels and tap < taps:
                                kh, kw = tap // w.shape[4], tap % w.shape[4]
                                near[e // TAPS, e % TAPS] = w[group, o, c, kh, kw]
                        cuda.syncthreads()
                        for tap in range(first, smaller(first + TAPS, taps)):
                            down = bottom - tap // w.shape[4] * dilation[0]
                            across = right - tap % w.shape[4] * dilation[1]
                            oh, ow = down // stride[0], across // stride[1]
                            reached = oh * stride[0] == down and ow * stride[1] == across
                            inside = oh >= 0 and oh < dy.shape[3] and ow >= 0 and ow < dy.shape[4]
                            if reached and inside and pixel < height * width:
                                value = dy[image, group, o, oh, ow]
                                for i in range(few):
                                    total[i] += value * near[i, tap - first]
                        cuda.syncthreads()
                if pixel < height * width:
                    for i in range(few):
                        if c0 + i < channels:
                            dx[image, group, c0 + i, pixel // width, pixel % width] = total[i]

    return kernel(compute)


@functools.cache
def backward_weights(threads: int = THREADS) -> Any:
    """Return the kernel ``(dw, x, dy, stride, pad, dilation)``: a block sums over all pixels."""

    def compute(dw: Array, x: Array, dy: Array, stride: Pair, pad: Pair, dilation: Pair) -> None:
        parts = cuda.shared.array(threads, float32)
        outs, channels = dw.shape[1], dw.shape[2]
        group = cuda.blockIdx.x // channels // outs
        o, c = cuda.blockIdx.x // channels % outs, cuda.blockIdx.x % channels
        width = dy.shape[4]
        plane = dy.shape[3] * width
        thread = cuda.threadIdx.x
        for tap in range(dw.shape[3] * dw.shape[4]):
            kh, kw = tap // dw.shape[4], tap % dw.shape[4]
            total = float32(0)
            for image in range(dy.shape[0]):
                for pixel in range(thread, plane, threads):
                    oh, ow = pixel // width, pixel % width
                    ih = oh * stride[0] + kh * dilation[0] - pad[0]
                    iw = ow * stride[1] + kw * dilation[1] - pad[1]
                    if ih >= 0 and ih < x.shape[3] and iw >= 0 and iw < x.shape[4]:
                        total += x[image, group, c, ih, iw] * dy[image, group, o, oh, ow]
            parts[thread] = total
            cuda.syncthreads()
            half = threads // 2
            while half > 0:
                if thread < half:
                    parts[thread] += parts[thread + half]
                cuda.syncthreads()
                half //= 2
            if thread == 0:
                dw[group, o, c, kh, kw] = parts[0]
            cuda.syncthreads()

    return kernel(compute)
