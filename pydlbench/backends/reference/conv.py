r"""Convolution forward and backward-data against the reference.

Both passes are ``y[n, o, p] = sum_{c, k} w[o, c, k] x[n, c, source(p, k)]`` with the tables of
:mod:`~pydlbench.backends.reference.taps`. With random weights ``b[p] = b_h b_w`` the checksum of
a channel of an image is, exchanging the sums::

    sum_p b[p] y[n, o, p] = sum_{c, k} w[o, c, k] S[n, c, k]
    S[n, c, k] = sum_p b[p] x[n, c, source(p, k)]

``S`` is one pass over the source, and small. Where recomputing one checksum per image would still
be expensive (large weights and small images), images are first added up with random weights.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from pydlbench.backends.reference.evidence import (
    CHECKSUM_UNIT,
    Evidence,
    checksum_weights,
    larger,
    worst_of,
)
from pydlbench.backends.reference.pixels import choose_pixels
from pydlbench.backends.reference.shapes import RESULT_ROLE
from pydlbench.backends.reference.sketch import contract
from pydlbench.backends.reference.taps import window_axes

if TYPE_CHECKING:
    from pydlbench.layers.conv import Conv2d

__all__ = ["check_conv"]

#: Multiply-adds spent on single points, and on the checksums' side of the weights.
_POINT_MACS = 50_000_000
_CHECKSUM_MACS = 100_000_000
#: Source elements gathered for the points.
_PATCH_ELEMENTS = 1_000_000
#: Weights converted to float64 at a time.
_WEIGHT_BLOCK = 1 << 20

_F64 = NDArray[np.float64]


def check_conv(
    layer: Conv2d,
    pass_: str,
    source: NDArray[Any],
    weights: NDArray[Any],
    output: NDArray[Any],
    rng: np.random.Generator,
) -> Evidence:
    """Compare the result of ``forward`` or ``backward-data`` with the reference.

    Args:
        layer: The convolution.
        pass_: ``forward`` or ``backward-data``.
        source: What the pass reads, NCHW: the images, or the gradient of the result.
        weights: ``(out_channels, in_channels / groups, kernel_height, kernel_width)``.
        output: What the kernel wrote, NCHW.
        rng: Chooses weights and points.
    """
    height, width = window_axes(layer, pass_)
    images, groups = layer.batch, layer.groups
    grouped = weights.reshape(groups, -1, *weights.shape[1:])
    if pass_ == "backward-data":
        grouped = grouped.swapaxes(1, 2)
    _, outs, ins, *kernel = grouped.shape
    taps = kernel[0] * kernel[1]
    macs = groups * outs * ins * taps

    by_row = checksum_weights(rng, height.outputs)
    by_column = checksum_weights(rng, width.outputs)
    got, got_energy = contract(
        output,
        {2: by_row[:, None], 3: by_column[:, None]},
        {2: by_row[:, None] ** 2, 3: by_column[:, None] ** 2},
    )
    sums, squares = contract(
        source,
        {2: height.spread(by_row), 3: width.spread(by_column)},
        {2: np.ones((source.shape[2], 1)), 3: np.ones((source.shape[3], 1))},
    )
    # The mean square of a channel stands for that of each window in it.
    mean_square = squares / (source.shape[2] * source.shape[3])
    energy = mean_square * np.outer(height.energy(by_row), width.energy(by_column))

    fold = _fold(rng, images, max(1, _CHECKSUM_MACS // macs))
    got, got_energy = fold @ got[:, :, 0, 0], fold**2 @ got_energy[:, :, 0, 0]
    buckets = len(fold)

    per_pixel = groups * ins * taps
    count = max(1, min(_POINT_MACS // macs, _PATCH_ELEMENTS // per_pixel))
    pixels = choose_pixels(rng, images, height.outputs, width.outputs, count)
    patches = pixels.patches(source, height, width)

    def rows(folded: _F64, patch: _F64) -> _F64:
        stacked = np.concatenate([folded, patch.reshape(len(patch), -1)])
        by_group = stacked.reshape(len(stacked), groups, ins * taps).swapaxes(0, 1)
        return np.ascontiguousarray(by_group)

    expected, variance = _mix(
        rows(fold @ sums.reshape(images, -1), patches),
        rows(fold**2 @ energy.reshape(images, -1), patches**2),
        grouped,
    )
    checksum = worst_of(
        got,
        expected[:buckets],
        CHECKSUM_UNIT * np.sqrt(got_energy + variance[:buckets]),
        lambda at: f"checksum of channel {at[1]}" + _image(at[0], images, buckets),
    )
    point = worst_of(
        pixels.values(output),
        expected[buckets:],
        np.abs(expected[buckets:]) + np.sqrt(variance[buckets:]),
        lambda at: pixels.name(RESULT_ROLE[pass_], at[0], at[1]),
    )
    return Evidence(
        terms=ins * taps,
        points=expected[buckets:].size,
        checksums=got.size,
        worst=larger(point, checksum),
    )


def _fold(rng: np.random.Generator, images: int, buckets: int) -> _F64:
    """Return the (buckets, images) matrix that adds images up; the identity where it need not."""
    if buckets >= images:
        return np.eye(images)
    matrix = np.zeros((buckets, images))
    matrix[np.arange(images) % buckets, np.arange(images)] = checksum_weights(rng, images)
    return matrix


def _image(bucket: int, images: int, buckets: int) -> str:
    if buckets == images:
        return f" of image {bucket}"
    members = ", ".join(str(n) for n in range(bucket, images, buckets)[:4])
    return f" of images {members}" + (", ..." if images > 4 * buckets else "")


def _mix(rows: _F64, squared: _F64, weights: NDArray[Any]) -> tuple[_F64, _F64]:
    """Multiply rows with the weights, and squared rows with the squared weights.

    Args:
        rows: (groups, rows, inputs * taps).
        squared: The same.
        weights: (groups, outputs, inputs, taps, taps), of any strides; converted block by block.

    Returns:
        Two arrays of (rows, groups * outputs).
    """
    groups, count, terms = rows.shape
    outs = weights.shape[1]
    result = np.empty((count, groups, outs)), np.empty((count, groups, outs))
    some_outs = max(1, min(outs, _WEIGHT_BLOCK // terms))
    some_groups = max(1, min(groups, _WEIGHT_BLOCK // (terms * some_outs)))
    for group in range(0, groups, some_groups):
        g = slice(group, group + some_groups)
        for out in range(0, outs, some_outs):
            o = slice(out, out + some_outs)
            block = weights[g, o].astype(np.float64, order="C")
            block = block.reshape(*block.shape[:2], terms).swapaxes(1, 2)
            result[0][:, g, o] = np.matmul(rows[g], block).swapaxes(0, 1)
            result[1][:, g, o] = np.matmul(squared[g], block**2).swapaxes(0, 1)
    return result[0].reshape(count, -1), result[1].reshape(count, -1)
