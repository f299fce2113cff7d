r"""Convolution backward-weights against the reference.

``dw[o, c, k] = sum_{n, p} dy[n, o, p] x[n, c, source(p, k)]`` has few elements and long sums. With
random weights ``a[c]`` and ``d[k] = d_h d_w`` the checksum of an output channel is::

    sum_{c, k} a[c] d[k] dw[o, c, k] = sum_{n, p} dy[n, o, p] Z[n, p]
    Z[n, p] = sum_k d[k] X[n, source(p, k)],  X[n, i] = sum_c a[c] x[n, c, i]

which takes one pass over ``x`` and one over ``dy``, a few images at a time.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from pydlbench.backends.reference.evidence import (
    CHECKSUM_UNIT,
    Deviation,
    Evidence,
    checksum_weights,
    larger,
    worst_of,
)
from pydlbench.backends.reference.sketch import contract, pieces
from pydlbench.backends.reference.taps import TapAxis, window_axes

if TYPE_CHECKING:
    from collections.abc import Sequence

    from pydlbench.layers.conv import Conv2d

__all__ = ["check_conv_weights"]

_POINT_MACS = 50_000_000
_MIN_POINTS = 8
#: Elements that a block of images may have per float64 temporary.
_BLOCK = 1 << 18

_F64 = NDArray[np.float64]


def check_conv_weights(
    layer: Conv2d,
    source: NDArray[Any],
    gradient: NDArray[Any],
    output: NDArray[Any],
    rng: np.random.Generator,
) -> Evidence:
    """Compare the result of ``backward-weights`` with the reference.

    Args:
        layer: The convolution.
        source: Its input, NCHW.
        gradient: The gradient of its result, NCHW.
        output: The gradient of the weights that the kernel wrote,
            ``(out_channels, in_channels / groups, kernel_height, kernel_width)``.
        rng: Chooses weights and points.
    """
    axes = window_axes(layer, "forward")
    # Splitting the channels into groups never copies, whatever the strides.
    x = source.reshape(layer.batch, layer.groups, -1, *source.shape[2:])
    dy = gradient.reshape(layer.batch, layer.groups, -1, *gradient.shape[2:])
    dw = output.reshape(layer.groups, -1, *output.shape[1:])
    checksum = _checksum(x, dy, dw, axes, rng)
    point, points = _points(x, dy, dw, axes, rng)
    return Evidence(
        terms=layer.batch * layer.out_height * layer.out_width,
        points=points,
        checksums=layer.out_channels,
        worst=larger(point, checksum),
    )


def _checksum(
    x: NDArray[Any],
    dy: NDArray[Any],
    dw: NDArray[Any],
    axes: tuple[TapAxis, TapAxis],
    rng: np.random.Generator,
) -> Deviation:
    images, groups, ins, *image = x.shape
    outs = dy.shape[2]
    vectors = {2 + i: checksum_weights(rng, size) for i, size in enumerate(dw.shape[2:])}
    factors = {axis: vector[:, None] for axis, vector in vectors.items()}
    got, got_energy = contract(dw, factors, {axis: one**2 for axis, one in factors.items()})

    expected, energy = np.zeros((groups, outs)), np.zeros((groups, outs))
    squares = np.zeros(groups)
    step = max(1, _BLOCK // (groups * max(image[0] * image[1], dy.shape[3] * dy.shape[4])))
    whole = {axis: np.ones((x.shape[axis], 1)) for axis in (2, 3, 4)}
    for first in range(0, images, step):
        block = slice(first, first + step)
        summed, squared = contract(x[block], {2: vectors[2][:, None]}, whole)
        squares += squared.sum(axis=(0, 2, 3, 4))
        seen = _combine_taps(summed[:, :, 0], axes, vectors[3], vectors[4])
        gradient = dy[block]
        for cut in pieces(gradient):
            piece = gradient[cut].astype(np.float64)
            n, g, o, h, w = cut
            expected[g, o] += np.einsum("ngohw,nghw->go", piece, seen[n, g, h, w])
            energy[g, o] += np.einsum("ngohw,ngohw->go", piece, piece)

    # Per weight the variance is sum_{n, p} dy**2 x**2; the mean square of x stands for each x,
    # and the share of a tap's positions that are not padding for those that meet it.
    mean_square = squares / (images * ins * image[0] * image[1])
    share = axes[0].factor.mean(axis=0) @ vectors[3] ** 2
    share *= axes[1].factor.mean(axis=0) @ vectors[4] ** 2
    variance = energy * mean_square[:, None] * (vectors[2] ** 2).sum() * share
    return worst_of(
        got.reshape(-1),
        expected.reshape(-1),
        CHECKSUM_UNIT * np.sqrt(got_energy.reshape(-1) + variance.reshape(-1)),
        lambda at: f"checksum of output channel {at[0]}",
    )


def _combine_taps(
    summed: _F64, axes: tuple[TapAxis, TapAxis], by_row: _F64, by_column: _F64
) -> _F64:
    """Return Z from X: (images, groups, inputs) to (images, groups, outputs), both axes."""
    height, width = axes
    rows = np.zeros((*summed.shape[:2], height.outputs, summed.shape[3]))
    for tap, weight in enumerate(by_row):
        to, of = height.slices(tap)
        rows[:, :, to] += weight * summed[:, :, of]
    result = np.zeros((*summed.shape[:2], height.outputs, width.outputs))
    for tap, weight in enumerate(by_column):
        to, of = width.slices(tap)
        result[..., to] += weight * rows[..., of]
    return result


def _points(
    x: NDArray[Any],
    dy: NDArray[Any],
    dw: NDArray[Any],
    axes: tuple[TapAxis, TapAxis],
    rng: np.random.Generator,
) -> tuple[Deviation, int]:
    """Recompute the weights of some groups, output channels, input channels and taps."""
    images, _, _, rows, columns = dy.shape
    *channels, kernel_height, kernel_width = dw.shape
    outs = channels[1]
    limits = (*channels, kernel_height * kernel_width)
    sizes = _grow(max(_MIN_POINTS, _POINT_MACS // (images * rows * columns)), limits)
    some = [
        np.sort(rng.choice(limit, size, replace=False))
        for limit, size in zip(limits, sizes, strict=True)
    ]
    # One matrix per group and tap: (output channels) x (input channels).
    expected, variance = np.zeros((2, sizes[3], *sizes[:3]))
    per_image = sizes[0] * max(sizes[1] * rows * columns, sizes[2] * x.shape[3] * x.shape[4])
    step = max(1, _BLOCK // per_image)
    for first in range(0, images, step):
        block = slice(first, first + step)
        read = x[block][:, some[0][:, None], some[2]].astype(np.float64)
        given = dy[block][:, some[0][:, None], some[1]].astype(np.float64)
        given = given.transpose(1, 2, 0, 3, 4).reshape(*sizes[:2], -1)
        for at, tap in enumerate(some[3]):
            row, column = divmod(int(tap), kernel_width)
            seen = read[:, :, :, axes[0].source[:, row]][..., axes[1].source[:, column]]
            seen *= np.outer(axes[0].factor[:, row], axes[1].factor[:, column])
            seen = seen.transpose(1, 0, 3, 4, 2).reshape(sizes[0], -1, sizes[2])
            expected[at] += given @ seen
            variance[at] += given**2 @ seen**2
    expected, variance = np.moveaxis(expected, 0, 3), np.moveaxis(variance, 0, 3)
    flat = dw.reshape(*dw.shape[:3], -1)

    def name(at: Sequence[int]) -> str:
        group, out, into, tap = (int(chosen[i]) for chosen, i in zip(some, at, strict=True))
        row, column = divmod(tap, kernel_width)
        return f"weights[oc={group * outs + out}, ic={into}, kh={row}, kw={column}]"

    scale = np.abs(expected) + np.sqrt(variance)
    return worst_of(flat[np.ix_(*some)], expected, scale, name), expected.size


def _grow(wanted: int, limits: tuple[int, ...]) -> tuple[int, ...]:
    """Return sizes within ``limits`` whose product is about ``wanted``, none left behind."""
    sizes = [1] * len(limits)
    while np.prod(sizes) < wanted:
        growing = [i for i, limit in enumerate(limits) if sizes[i] < limit]
        if not growing:
            break
        smallest = min(growing, key=lambda i: sizes[i])
        sizes[smallest] = min(limits[smallest], 2 * sizes[smallest])
    return tuple(sizes)
