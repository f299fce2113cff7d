"""Convolution against the reference, all three passes."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from pydlbench.backends.verification.checksums import (
    CHECKSUM_UNIT,
    Comparison,
    Computed,
    Deviation,
    TapAxis,
    checksum_weights,
    choose_pixels,
    contract,
    image_checksums,
    larger,
    pieces,
    window_axes,
    worst_of,
)
from pydlbench.backends.verification.inputs import smallest_normal
from pydlbench.ops.fields import SIDES
from pydlbench.ops.windows import PASS_OF_CONVOLUTION

if TYPE_CHECKING:
    from collections.abc import Sequence

    from pydlbench.ops.op import Layer


def check_conv(layer: Layer, computed: Computed) -> dict[str, Comparison]:
    """Compare the result of a convolution's pass with the reference."""
    return _check_pass(layer, computed.pass_, computed, image="src", result="dst")


# -----------------------------------------------------------------------------
# Convolution forward and backward-data against the reference.
#
# Both passes are ``y[n, o, p] = sum_{c, k} w[o, c, k] x[n, c, source(p, k)]`` with the tables of
# :mod:`~pydlbench.backends.verification.checksums`. The checksum of a channel of an image is,
# exchanging the sums, ``sum_{c, k} w[o, c, k] S[n, c, k]`` with the ``S`` of ``image_checksums``,
# which is one pass over the source, and small. Where recomputing one checksum per image would
# still be expensive (large weights and small images), images are first added up with random
# weights.

#: Multiply-adds spent on single points, and on the checksums' side of the weights.
_POINT_MACS = 50_000_000
_CHECKSUM_MACS = 100_000_000
#: Source elements gathered for the points.
_PATCH_ELEMENTS = 1_000_000
#: Weights converted to float64 at a time.
_WEIGHT_BLOCK = 1 << 20

_F64 = NDArray[np.float64]


def check_deconv(layer: Layer, computed: Computed) -> dict[str, Comparison]:
    """Compare the result of a transposed convolution's pass with the reference.

    It is that of a pass of the convolution whose source is its result.
    """
    pass_ = PASS_OF_CONVOLUTION[computed.pass_]
    return _check_pass(layer.convolution, pass_, computed, image="dst", result="src")


def _check_pass(
    layer: Layer, pass_: str, computed: Computed, *, image: str, result: str
) -> dict[str, Comparison]:
    """Compare what was computed with the reference of a convolution's pass.

    Args:
        layer: The convolution.
        pass_: Of the convolution.
        computed: What is compared.
        image: Role of the convolution's source.
        result: Role of its result.
    """
    inputs, rng = computed.inputs, computed.rng
    ((role, output),) = computed.results.items()
    least = smallest_normal(computed.precision)
    if pass_ == "backward-weights":
        return {role: _check_weights(layer, inputs[image], inputs[result], output, rng, least)}
    source = inputs[image if pass_ == "forward" else result]
    weights = inputs["weights"]
    grouped = weights.reshape(layer.groups, -1, *weights.shape[1:])
    if pass_ == "backward-data":
        grouped = grouped.swapaxes(1, 2)
    axes = window_axes(layer, pass_)
    return {role: check_images(axes, source, grouped, output, rng, role, least)}


def check_images(
    axes: Sequence[TapAxis],
    source: NDArray[Any],
    grouped: NDArray[Any],
    output: NDArray[Any],
    rng: np.random.Generator,
    role: str,
    least: float,
) -> Comparison:
    """Compare images that are weighted sums of others with the reference.

    Args:
        axes: The tables of the windows, of each side.
        source: What is read: images, or the gradient of the result.
        grouped: Weights: ``(groups, outputs, inputs, kernel...)``.
        output: What the kernel wrote: images.
        rng: Chooses weights and points.
        role: What messages call the output.
        least: The least that the error of an element is measured against.
    """
    images = len(source)
    groups, outs, ins, *kernel = grouped.shape
    taps = math.prod(kernel)
    macs = groups * outs * ins * taps

    got, got_energy, sums, energy = image_checksums(output, source, axes, rng, least=least)
    fold = _fold(rng, images, max(1, _CHECKSUM_MACS // macs))
    got, got_energy = fold @ got, fold**2 @ got_energy
    buckets = len(fold)

    per_pixel = groups * ins * taps
    count = max(1, min(_POINT_MACS // macs, _PATCH_ELEMENTS // per_pixel))
    pixels = choose_pixels(rng, images, [axis.outputs for axis in axes], count)
    patches = pixels.patches(source, axes)

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
        np.maximum(np.abs(expected[buckets:]) + np.sqrt(variance[buckets:]), least),
        lambda at: pixels.name(role, at[0], at[1]),
    )
    return Comparison(
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
        weights: (groups, outputs, inputs, taps...), of any strides; converted block by block.

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


# -----------------------------------------------------------------------------
# Convolution backward-weights against the reference.
#
# ``dw[o, c, k] = sum_{n, p} dy[n, o, p] x[n, c, source(p, k)]`` has few elements and long sums.
# With random weights ``a[c]`` and ``d[k]``, products of one for each side, the checksum of
# an output channel is::
#
#     sum_{c, k} a[c] d[k] dw[o, c, k] = sum_{n, p} dy[n, o, p] Z[n, p]
#     Z[n, p] = sum_k d[k] X[n, source(p, k)],  X[n, i] = sum_c a[c] x[n, c, i]
#
# which takes one pass over ``x`` and one over ``dy``, a few images at a time.

_MIN_POINTS = 8
#: Elements that a block of images may have per float64 temporary.
_BLOCK = 1 << 18


def _check_weights(
    layer: Layer,
    source: NDArray[Any],
    gradient: NDArray[Any],
    output: NDArray[Any],
    rng: np.random.Generator,
    least: float,
) -> Comparison:
    """Compare the result of ``backward-weights`` with the reference.

    Args:
        layer: The convolution.
        source: Its input.
        gradient: The gradient of its result.
        output: The gradient of the weights that the kernel wrote,
            ``(out_channels, in_channels / groups, kernel...)``.
        rng: Chooses weights and points.
        least: The least that the error of an element is measured against.
    """
    axes = window_axes(layer, "forward")
    # Splitting the channels into groups never copies, whatever the strides.
    x = source.reshape(layer.batch, layer.groups, -1, *source.shape[2:])
    dy = gradient.reshape(layer.batch, layer.groups, -1, *gradient.shape[2:])
    dw = output.reshape(layer.groups, -1, *output.shape[1:])
    checksum = _checksum(x, dy, dw, axes, rng, least)
    point, points = _points(x, dy, dw, axes, rng, least)
    return Comparison(
        terms=layer.batch * math.prod(layer.out_size),
        points=points,
        checksums=layer.out_channels,
        worst=larger(point, checksum),
    )


def _checksum(
    x: NDArray[Any],
    dy: NDArray[Any],
    dw: NDArray[Any],
    axes: Sequence[TapAxis],
    rng: np.random.Generator,
    least: float,
) -> Deviation:
    images, groups, ins, *image = x.shape
    outs = dy.shape[2]
    vectors = {2 + i: checksum_weights(rng, size) for i, size in enumerate(dw.shape[2:])}
    factors = {axis: vector[:, None] for axis, vector in vectors.items()}
    got, got_energy = contract(dw, factors, {axis: one**2 for axis, one in factors.items()})
    got_energy += least**2 * math.prod(float(np.sum(vector**2)) for vector in vectors.values())

    expected, energy = np.zeros((groups, outs)), np.zeros((groups, outs))
    squares = np.zeros(groups)
    step = max(1, _BLOCK // (groups * max(math.prod(image), math.prod(dy.shape[3:]))))
    whole = {axis: np.ones((x.shape[axis], 1)) for axis in range(2, x.ndim)}
    by_side = [vectors[axis] for axis in range(3, dw.ndim)]
    for first in range(0, images, step):
        block = slice(first, first + step)
        summed, squared = contract(x[block], {2: vectors[2][:, None]}, whole)
        squares += squared.sum(axis=(0, *range(2, x.ndim)))
        seen = _combine_taps(summed[:, :, 0], axes, by_side)
        gradient = dy[block]
        for cut in pieces(gradient):
            n, g, o, *place = cut
            piece = gradient[cut].astype(np.float64)
            piece = piece.reshape(*piece.shape[:3], -1)
            met = seen[(n, g, *place)].reshape(piece.shape[0], piece.shape[1], -1)
            expected[g, o] += np.einsum("ngop,ngp->go", piece, met)
            energy[g, o] += np.einsum("ngop,ngop->go", piece, piece)

    # Per weight the variance is sum_{n, p} dy**2 x**2; the mean square of x stands for each x,
    # and the share of a tap's positions that are not padding for those that meet it.
    mean_square = squares / (images * ins * math.prod(image))
    share = math.prod(
        float(axis.factor.mean(axis=0) @ vector**2)
        for axis, vector in zip(axes, by_side, strict=True)
    )
    variance = energy * mean_square[:, None] * (vectors[2] ** 2).sum() * share
    return worst_of(
        got.reshape(-1),
        expected.reshape(-1),
        CHECKSUM_UNIT * np.sqrt(got_energy.reshape(-1) + variance.reshape(-1)),
        lambda at: f"checksum of weights[{at[0]}]",
    )


def _combine_taps(
    summed: _F64, axes: Sequence[TapAxis], weights: Sequence[NDArray[np.float64]]
) -> _F64:
    """Return Z from X: (images, groups, inputs...) to (images, groups, outputs...).

    Args:
        summed: X.
        axes: Of all sides.
        weights: Of the taps, for each side.
    """
    for number, (axis, by_tap) in enumerate(zip(axes, weights, strict=True), start=2):
        shape = list(summed.shape)
        shape[number] = axis.outputs
        result = np.zeros(shape)
        before = (slice(None),) * number
        for tap, weight in enumerate(by_tap):
            to, of = axis.slices(tap)
            result[(*before, to)] += weight * summed[(*before, of)]
        summed = result
    return summed


def _points(
    x: NDArray[Any],
    dy: NDArray[Any],
    dw: NDArray[Any],
    axes: Sequence[TapAxis],
    rng: np.random.Generator,
    least: float,
) -> tuple[Deviation, int]:
    """Recompute the weights of some groups, output channels, input channels and taps."""
    images, places = dy.shape[0], math.prod(dy.shape[3:])
    channels, kernel = dw.shape[:3], dw.shape[3:]
    outs = channels[1]
    limits = (*channels, math.prod(kernel))
    sizes = _grow(max(_MIN_POINTS, _POINT_MACS // (images * places)), limits)
    some = [
        np.sort(rng.choice(limit, size, replace=False))
        for limit, size in zip(limits, sizes, strict=True)
    ]
    # One matrix per group and tap: (output channels) x (input channels).
    expected, variance = np.zeros((2, sizes[3], *sizes[:3]))
    per_image = sizes[0] * max(sizes[1] * places, sizes[2] * math.prod(x.shape[3:]))
    step = max(1, _BLOCK // per_image)
    for first in range(0, images, step):
        block = slice(first, first + step)
        read = x[block][:, some[0][:, None], some[2]].astype(np.float64)
        given = dy[block][:, some[0][:, None], some[1]].astype(np.float64)
        given = np.moveaxis(given, 0, 2).reshape(*sizes[:2], -1)
        for at, flat_tap in enumerate(some[3]):
            seen = read
            for number, (axis, tap) in enumerate(
                zip(axes, np.unravel_index(flat_tap, kernel), strict=True), start=3
            ):
                factor = axis.factor[:, tap].reshape(-1, *[1] * (read.ndim - 1 - number))
                seen = np.take(seen, axis.source[:, tap], axis=number) * factor
            seen = np.moveaxis(seen, (1, 2), (0, -1)).reshape(sizes[0], -1, sizes[2])
            expected[at] += given @ seen
            variance[at] += given**2 @ seen**2
    expected, variance = np.moveaxis(expected, 0, 3), np.moveaxis(variance, 0, 3)
    flat = dw.reshape(*dw.shape[:3], -1)

    def name(at: Sequence[int]) -> str:
        group, out, into, flat_tap = (int(chosen[i]) for chosen, i in zip(some, at, strict=True))
        places = zip(SIDES[-len(kernel) :], np.unravel_index(flat_tap, kernel), strict=True)
        taps = ", ".join(f"k{side}={tap}" for side, tap in places)
        return f"weights[{group * outs + out}, {into}, {taps}]"

    scale = np.maximum(np.abs(expected) + np.sqrt(variance), least)
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
