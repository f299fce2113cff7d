"""One spatial axis of a window as a table: which source position each tap of an output reads.

Forward, output ``o`` reads input ``o * stride + k * dilation - pad`` at tap ``k``. Backward, the
"output" is an input position ``i`` and reads the gradient at ``(i + pad - k * dilation) / stride``
where that is a whole number. With the table in hand both are the same computation.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from pydlbench.layers.conv import Conv2d
from pydlbench.layers.pool import Pool2d

if TYPE_CHECKING:
    from numpy.typing import NDArray

__all__ = ["TapAxis", "overlap", "window_axes"]


@dataclass(frozen=True, slots=True, kw_only=True)
class TapAxis:
    """Sources and factors of all (output, tap) pairs along one axis.

    Attributes:
        source: (outputs, taps) positions read, zero where the tap falls on padding.
        factor: (outputs, taps) what the element read is multiplied with; zero on padding.
        source_size: Positions of the tensor that is read.
    """

    source: NDArray[np.intp]
    factor: NDArray[np.float64]
    source_size: int

    @property
    def outputs(self) -> int:
        """Positions of the tensor that is written."""
        return len(self.source)

    def spread(self, weights: NDArray[np.float64]) -> NDArray[np.float64]:
        """Return the (source_size, taps) matrix that a weighted sum over the outputs becomes.

        ``sum_o weights[o] * y[o] = sum_k sum_i x[i] * spread[i, k]`` for
        ``y[o] = sum_k factor[o, k] * x[source[o, k]]``.
        """
        matrix = np.zeros((self.source_size, self.source.shape[1]))
        taps = np.broadcast_to(np.arange(self.source.shape[1]), self.source.shape)
        np.add.at(matrix, (self.source, taps), self.factor * weights[:, None])
        return matrix

    def energy(self, weights: NDArray[np.float64]) -> NDArray[np.float64]:
        """Return per tap ``sum_o (weights[o] * factor[o, k])**2``."""
        result: NDArray[np.float64] = np.square(self.factor * weights[:, None]).sum(axis=0)
        return result

    def slices(self, tap: int) -> tuple[slice, slice]:
        """Return the outputs whose tap is not on padding, and the positions that they read.

        Only for forward tables, whose positions are ``stride`` apart.
        """
        outputs = np.flatnonzero(self.factor[:, tap])
        if outputs.size == 0:
            return slice(0, 0), slice(0, 0)
        first, last = int(outputs[0]), int(outputs[-1])
        low, high = int(self.source[first, tap]), int(self.source[last, tap])
        step = (high - low) // max(1, last - first) or 1
        return slice(first, last + 1), slice(low, high + 1, step)


def window_axes(layer: Conv2d | Pool2d, pass_: str) -> tuple[TapAxis, TapAxis]:
    """Return the tables for height and width; those of average pooling divide by the count."""
    average = isinstance(layer, Pool2d) and layer.mode == "avg"
    whole = isinstance(layer, Pool2d) and layer.count_include_pad
    dilations = (1, 1)
    if isinstance(layer, Conv2d):
        dilations = (layer.dilation_height, layer.dilation_width)
    numbers = (
        (
            layer.in_height,
            layer.out_height,
            layer.kernel_height,
            layer.stride_height,
            layer.pad_top,
            dilations[0],
        ),
        (
            layer.in_width,
            layer.out_width,
            layer.kernel_width,
            layer.stride_width,
            layer.pad_left,
            dilations[1],
        ),
    )
    height, width = (_axis(pass_, average, whole, *one) for one in numbers)
    return height, width


def overlap(layer: Conv2d | Pool2d) -> int:
    """Return how many windows can hold one input position."""
    rows = min(layer.out_height, -(-layer.kernel_height // layer.stride_height))
    columns = min(layer.out_width, -(-layer.kernel_width // layer.stride_width))
    return rows * columns


def _axis(
    pass_: str,
    average: bool,
    whole: bool,
    size: int,
    out: int,
    kernel: int,
    stride: int,
    pad: int,
    dilation: int,
) -> TapAxis:
    taps = np.arange(kernel)
    source = np.arange(out)[:, None] * stride - pad + taps * dilation
    valid = (source >= 0) & (source < size)
    counts = np.full(out, float(kernel)) if whole else np.maximum(valid.sum(axis=1), 1.0)
    if not average:
        counts = np.ones(out)
    if pass_ == "backward-data":
        scaled = np.arange(size)[:, None] + pad - taps * dilation
        source, rest = np.divmod(scaled, stride)
        valid = (rest == 0) & (source >= 0) & (source < out)
        source = np.where(valid, source, 0)
        return TapAxis(source=source, factor=valid / counts[source], source_size=out)
    source = np.where(valid, source, 0)
    return TapAxis(source=source, factor=valid / counts[:, None], source_size=size)
