"""Checksums over all elements, and single elements to recompute exactly, in float64."""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from pydlbench.ops.axis import Axis
from pydlbench.ops.op import Layer
from pydlbench.ops.windows import positions_read, side_sizes
from pydlbench.words import MIXED_TYPES

# -----------------------------------------------------------------------------
# Multiplication of small matrices into the axes of a large tensor, in one pass and in float64.
#
# It computes both the checksum of a result and the sums over the inputs that predict it: every axis
# that is summed gets a matrix. The tensor is converted to float64 piece by piece in the order of
# its memory, so that NCHW, NHWC and any other strided view cost the same single pass.

#: Number of elements converted at a time: two such pieces in float64 fit into a second-level cache.
_PIECE_ELEMENTS = 1 << 16


def memory_order(array: NDArray[Any]) -> tuple[int, ...]:
    """Return the axes from the largest stride to the smallest; axes of one element come first."""
    keys = [
        (1, -abs(stride)) if size > 1 else (0, 0)
        for size, stride in zip(array.shape, array.strides, strict=True)
    ]
    return tuple(sorted(range(array.ndim), key=lambda axis: keys[axis]))


def pieces(
    array: NDArray[Any], elements: int = _PIECE_ELEMENTS, whole: Collection[int] = ()
) -> Iterator[tuple[slice, ...]]:
    """Cut an array, along its order in memory, into pieces of at most about ``elements``.

    Args:
        array: Tensor of any shape and strides.
        elements: Size of a piece, unless the axes that are not cut have more elements.
        whole: Axes that are not cut.

    Yields:
        One slice per axis of ``array``; together they cover every element once.
    """
    if array.size == 0:
        return
    order = memory_order(array)
    steps = list(array.shape)
    inner = math.prod(array.shape[axis] for axis in whole)
    for axis in reversed([axis for axis in order if axis not in whole]):
        steps[axis] = max(1, min(array.shape[axis], elements // inner))
        inner *= array.shape[axis]
    ranges = [
        [slice(low, min(low + steps[axis], array.shape[axis])) for low in starts]
        for axis in order
        for starts in [range(0, array.shape[axis], steps[axis])]
    ]
    position = {axis: place for place, axis in enumerate(order)}
    for cut in itertools.product(*ranges):
        yield tuple(cut[position[axis]] for axis in range(array.ndim))


def contract(
    array: NDArray[Any],
    factors: Mapping[int, NDArray[np.float64]],
    squares: Mapping[int, NDArray[np.float64]],
) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """Multiply matrices into axes of ``array``, and others into axes of its elementwise square.

    Args:
        array: Tensor of any float type, shape and strides; not copied.
        factors: By axis, a matrix (length of the axis, columns); the axis then has ``columns``.
        squares: By axis, a matrix to multiply into the elementwise square.

    Returns:
        The two float64 tensors, with the axes in the order of ``array``.
    """
    order = memory_order(array)
    inverse = np.argsort(order)
    shapes = [
        tuple(by[axis].shape[1] if axis in by else array.shape[axis] for axis in range(array.ndim))
        for by in (factors, squares)
    ]
    first, second = (np.zeros(shape) for shape in shapes)
    for cut in pieces(array):
        piece = array[cut].transpose(order).astype(np.float64, order="C")
        for by, result, squared in ((factors, first, False), (squares, second, True)):
            part = np.multiply(piece, piece, out=piece) if squared else piece
            part = _contract_piece(part, [(by.get(axis), cut[axis]) for axis in order])
            place = tuple(slice(None) if axis in by else cut[axis] for axis in range(array.ndim))
            result[place] += part.transpose(inverse)
    return first, second


def _contract_piece(
    piece: NDArray[np.float64],
    by: list[tuple[NDArray[np.float64] | None, slice]],
) -> NDArray[np.float64]:
    """Contract a contiguous piece, the innermost axis first: that is the largest reduction."""
    shape = list(piece.shape)
    for axis in reversed(range(len(shape))):
        matrix, rows = by[axis]
        if matrix is None:
            continue
        matrix = matrix[rows]
        before, after = math.prod(shape[:axis]), math.prod(shape[axis + 1 :])
        if after == 1:
            piece = piece.reshape(before, shape[axis]) @ matrix
        else:
            piece = np.matmul(matrix.T, piece.reshape(before, shape[axis], after))
        shape[axis] = matrix.shape[1]
    return piece.reshape(shape)


# -----------------------------------------------------------------------------
# Expected elements of a result.

F64 = NDArray[np.float64]


@dataclass(frozen=True, slots=True, kw_only=True)
class Piece:
    """Expected values of some elements of one result.

    Attributes:
        role: Role of the tensor that is written.
        cut: Slices of the tensor.
        value: Exact values.
        size: Root of the sum of the squared terms ``s``; the error of an element is relative to
            ``|value| + s``.
        terms: Number of terms of the sums; :data:`EXACT` where nothing is rounded.
    """

    role: str
    cut: tuple[slice, ...]
    value: NDArray[Any]
    size: NDArray[Any]
    terms: int


# -----------------------------------------------------------------------------
# Output pixels that are recomputed exactly, and the windows of the source that they read.


@dataclass(frozen=True, slots=True, kw_only=True)
class Pixels:
    """Positions of an output, all channels of which are compared.

    Attributes:
        image: Index of the image, per pixel.
        place: Index along each side, outermost side first, per pixel.
    """

    image: NDArray[np.intp]
    place: tuple[NDArray[np.intp], ...]

    def values(self, output: NDArray[Any]) -> NDArray[Any]:
        """Return the (pixels, groups, outputs) values of a tensor of images."""
        at: tuple[Any, ...] = (self.image, slice(None), slice(None), *self.place)
        picked: NDArray[Any] = output[at]
        return picked

    def patches(
        self, source: NDArray[Any], axes: Sequence[TapAxis], uncertain: float = 0.0
    ) -> tuple[F64, F64]:
        """Gather the window of each pixel, zero on padding, and the squares that errors scale with.

        Args:
            source: (images, groups, channels, sides...).
            axes: Table of the windows along each side.
            uncertain: Absolute error of a factor.

        Returns:
            Two arrays of (pixels, groups, channels, taps...).
        """
        sides = len(axes)
        image = self.image.reshape(-1, *[1] * sides)
        read: list[NDArray[np.intp]] = []
        factor = np.ones(image.shape)
        for side, (axis, place) in enumerate(zip(axes, self.place, strict=True)):
            along = [len(place), *[1] * sides]
            along[1 + side] = -1
            read.append(axis.source[place].reshape(along))
            factor = factor * axis.factor[place].reshape(along)
        at: tuple[Any, ...] = (image, slice(None), slice(None), *read)
        picked = np.moveaxis(source[at].astype(np.float64), (-2, -1), (1, 2))
        factor = factor[:, None, None]
        square = np.square(factor) + uncertain**2 * (factor != 0)
        return picked * factor, np.square(picked) * square


def element_name(role: str, place: Sequence[Any]) -> str:
    """Name an element: ``dst[0, 17, 3, 5]``."""
    return f"{role}[{', '.join(map(str, place))}]"


def choose_pixels(
    rng: np.random.Generator, images: int, sizes: Sequence[int], count: int
) -> Pixels:
    """Choose ``count`` pixels: all if there are no more, else corners first, then random ones.

    Args:
        rng: Random generator.
        images: Number of images.
        sizes: Sizes of an image.
        count: Number of pixels to choose.
    """
    shape = (images, *sizes)
    total = math.prod(shape)
    if count >= total:
        flat = np.arange(total)
    else:
        # Errors in padding and in remainders of blocked loops show at the borders.
        ends = itertools.product(*({0, size - 1} for size in shape))
        corners = np.ravel_multi_index(tuple(zip(*ends, strict=True)), shape)
        flat = rng.integers(0, total, count)
        chosen = min(len(corners), count // 2)
        flat[:chosen] = corners[:chosen]
        flat = np.array(sorted(set(flat.tolist())))  # unique() would load masked arrays
    image, *place = np.unravel_index(flat, shape)
    return Pixels(image=image, place=tuple(place))


# -----------------------------------------------------------------------------
# One spatial axis of a window as a table: which source position each tap of an output reads.
#
# Forward, output ``o`` reads input ``o * stride + k * dilation - pad`` at tap ``k``. Backward, the
# "output" is an input position ``i`` and reads the gradient at ``(i + pad - k * dilation) /
# stride`` where that is a whole number. With such a table, both passes are the same computation.


@dataclass(frozen=True, slots=True, kw_only=True)
class TapAxis:
    """Sources and factors of all (output, tap) pairs along one axis.

    Attributes:
        source: Positions that are read, shape (outputs, taps); zero where the tap falls on padding.
        factor: Factors of the elements read, shape (outputs, taps); zero on padding.
        source_size: Number of positions of the tensor that is read.
    """

    source: NDArray[np.intp]
    factor: NDArray[np.float64]
    source_size: int

    @property
    def outputs(self) -> int:
        """Number of positions of the tensor that is written."""
        return len(self.source)

    @property
    def terms(self) -> int:
        """Largest number of taps of an output that are not on padding."""
        return int(np.count_nonzero(self.factor, axis=1).max())

    def transpose(self) -> TapAxis:
        """Return the table whose outputs are the taps of this one, and vice versa."""
        return TapAxis(source=self.source.T, factor=self.factor.T, source_size=self.source_size)

    def spread(self, weights: NDArray[np.float64]) -> NDArray[np.float64]:
        """Return the (source_size, taps) matrix equivalent to a weighted sum over the outputs.

        ``sum_o weights[o] * y[o] = sum_k sum_i x[i] * spread[i, k]`` for
        ``y[o] = sum_k factor[o, k] * x[source[o, k]]``.
        """
        matrix = np.zeros((self.source_size, self.source.shape[1]))
        taps = np.broadcast_to(np.arange(self.source.shape[1]), self.source.shape)
        np.add.at(matrix, (self.source, taps), self.factor * weights[:, None])
        return matrix

    def weighted_sum(self, weights: F64, values: F64, number: int) -> F64:
        """Return ``sum_o weights[o] * factor[o, k] * values[source[o, k]]`` along an axis."""
        behind = [1] * (values.ndim - 1 - number)
        total = np.zeros(())
        for source, factor in zip(self.source, weights[:, None] * self.factor, strict=True):
            total = total + np.take(values, source, number) * factor.reshape(-1, *behind)
        return total

    def energy(self, weights: NDArray[np.float64]) -> NDArray[np.float64]:
        """Return per tap ``sum_o (weights[o] * factor[o, k])**2``."""
        result: NDArray[np.float64] = np.square(self.factor * weights[:, None]).sum(axis=0)
        return result


def window_axes(layer: Layer, pass_: str) -> tuple[TapAxis, ...]:
    """Return the table of each side; average pooling divides by the count."""
    average = layer.op == "pool" and layer.mode == "avg"
    whole = layer.op == "pool" and layer.count_include_pad
    return tuple(_tap_axis(axis, pass_, average, whole) for axis in layer.axes)


def _tap_axis(axis: Axis, pass_: str, average: bool, whole: bool) -> TapAxis:
    offsets = np.arange(axis.kernel) * axis.dilation
    source = np.arange(axis.out)[:, None] * axis.stride - axis.pad + offsets
    valid = (source >= 0) & (source < axis.size)
    counts = np.ones(axis.out)
    if average:
        inside = np.maximum(valid.sum(axis=1), 1.0)
        counts = np.full(axis.out, float(axis.kernel)) if whole else inside
    if pass_ == "backward-data":
        scaled = np.arange(axis.size)[:, None] + axis.pad - offsets
        source, rest = np.divmod(scaled, axis.stride)
        valid = (rest == 0) & (source >= 0) & (source < axis.out)
        source = np.where(valid, source, 0)
        return TapAxis(source=source, factor=valid / counts[source], source_size=axis.out)
    source = np.where(valid, source, 0)
    return TapAxis(source=source, factor=valid / counts[:, None], source_size=axis.size)


def resize_axes(layer: Layer, pass_: str) -> tuple[tuple[TapAxis, ...], float]:
    """Return the table of each side of a resizing, and the absolute error of a weight in roundoffs.

    Unless the ratio of sizes is a power of two, libraries also round the positions of centres, in
    float32. A weight is then off by up to three units of roundoff per pixel of a side, whatever its
    own size; the tolerance has ten units for sums of four terms.
    """
    axes = [_resize_axis(layer.mode, *side, pass_) for side in side_sizes(layer)]
    if not layer.mode.startswith(("linear", "cubic")):
        return tuple(axes), 0.0
    ends = int(layer.mode.endswith("-aligned"))
    rounded = [size for size, out in side_sizes(layer) if not _is_binary(size - ends, out - ends)]
    return tuple(axes), sum(rounded) / 4


def _is_binary(size: int, out: int) -> bool:
    """Whether float32 represents the positions of centres exactly."""
    parts = out // max(1, math.gcd(size, out))
    return parts & (parts - 1) == 0


def _resize_axis(mode: str, size: int, out: int, pass_: str) -> TapAxis:
    read = positions_read(mode, size, out)
    most = max(map(len, read))
    table = np.array([taps + [(0, 0.0)] * (most - len(taps)) for taps in read])
    source, factor = table[..., 0].astype(np.intp), table[..., 1]
    if pass_ == "forward":
        return TapAxis(source=source, factor=factor, source_size=size)
    # Invert the table: list the outputs that each position contributes to.
    outputs, tap = np.nonzero(factor)
    places = source[outputs, tap]
    order = np.argsort(places, kind="stable")
    counts = np.bincount(places, minlength=size)
    # Index of each entry among the entries of the same position.
    rank = np.arange(len(order)) - np.repeat(np.cumsum(counts) - counts, counts)
    inverse, weights = (
        np.zeros((size, int(counts.max())), np.intp),
        np.zeros((size, int(counts.max()))),
    )
    inverse[places[order], rank] = outputs[order]
    weights[places[order], rank] = factor[outputs, tap][order]
    return TapAxis(source=inverse, factor=weights, source_size=out)


# -----------------------------------------------------------------------------
# The outcome of a comparison: the worst deviation, its index, and how much was compared.

#: A checksum adds up errors with random signs, so its standard deviation is the root of the sum of
#: their squares. Its error is given in units of three standard deviations. With roundings of at
#: most ``u``, and 0.3 ``u`` of ``(|ref|**2 + s**2)**0.5`` in the root mean square, only ten
#: standard deviations reach the tolerance ``u`` of single elements.
CHECKSUM_UNIT = 3.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Deviation:
    """One element or checksum of the result that was compared with the reference.

    Attributes:
        error: Relative error; infinite or NaN where the result is not finite.
        where: Name of the element or of the checksum, in words.
        got: Value that the kernel computed.
        expected: Value that the reference computed.
    """

    error: float
    where: str
    got: float
    expected: float


@dataclass(frozen=True, slots=True, kw_only=True)
class KernelRun:
    """Inputs and results of one execution of a kernel, in plain layouts of any strides.

    Attributes:
        pass_: Pass of the layer that was executed.
        propagation: ``inference`` or ``training``; matters for a forward pass.
        precision: Storage and arithmetic.
        inputs: Tensors read, by role.
        results: Tensors written, by role; missing ones are not compared.
        rng: Random generator for the choice of points and the checksum weights.
        points: About how many elements of an element-wise result are recomputed; None: all.
    """

    pass_: str
    propagation: str
    precision: str
    inputs: Mapping[str, NDArray[Any]]
    results: Mapping[str, NDArray[Any]]
    rng: np.random.Generator
    points: int | None = None

    @property
    def whole(self) -> bool:
        """Whether its main result is the exact sum of products of integers."""
        return MIXED_TYPES.get(self.precision, ("",))[-1] == "s32"


@dataclass(frozen=True, slots=True, kw_only=True)
class ElementComparison:
    """Outcome of the comparison of one result with the reference.

    Attributes:
        terms: Length of the sums that the result consists of; 0 where it must be exact.
        points: Number of elements recomputed exactly.
        checksums: Number of checksums over all elements; 0 where every element was recomputed.
        worst: Largest deviation of any point or checksum.
    """

    terms: int
    points: int
    checksums: int
    worst: Deviation


def checksum_weights(
    rng: np.random.Generator, count: int, *, whole: bool = False
) -> NDArray[np.float64]:
    """Draw weights of random sign with magnitudes from 0.5 to 1.5, or of 1 or 2 if ``whole``.

    Whole weights of whole numbers have exact sums in float64.
    """
    signs = 2.0 * rng.integers(0, 2, count) - 1.0
    sizes = rng.integers(1, 3, count) if whole else rng.uniform(0.5, 1.5, count)
    weights: NDArray[np.float64] = signs * sizes
    return weights


def worst_of(
    got: NDArray[Any],
    expected: NDArray[Any],
    scale: NDArray[Any],
    where: Callable[[Sequence[int]], str],
) -> Deviation:
    """Return the largest ``|got - expected| / scale``; zero over zero is zero, NaN the largest.

    Args:
        got: Values of the kernel.
        expected: Reference values of the same shape.
        scale: Divisors of the differences, of the same shape.
        where: Function from an index into these arrays to the name of the element.
    """
    with np.errstate(all="ignore"):
        error = np.subtract(got, expected, dtype=np.float64)
        np.abs(error, out=error)
        error /= scale
    error[got == expected] = 0.0
    flat = int(np.argmax(error))
    index = [int(place) for place in np.unravel_index(flat, error.shape)]
    return Deviation(
        error=float(error.flat[flat]),
        where=where(index),
        got=float(got.flat[flat]),
        expected=float(expected.flat[flat]),
    )


def sums_over(array: NDArray[Any], axes: Sequence[int]) -> tuple[F64, F64]:
    """Sum a tensor and its squares over some axes, which keep one element."""
    ones = {axis: np.ones((array.shape[axis], 1)) for axis in axes}
    return contract(array, ones, ones)


def worse(first: Deviation, second: Deviation) -> Deviation:
    """Return the larger of two deviations; NaN counts as the largest."""
    return first if math.isnan(first.error) or first.error >= second.error else second
