"""Checksums that cover every element, and the points that are recomputed exactly, in float64."""

from __future__ import annotations

import itertools
import math
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from pydlbench.ops.resize import pairs, taps

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterator, Mapping, Sequence

    from pydlbench.ops.axis import Axis
    from pydlbench.ops.op import Layer


# -----------------------------------------------------------------------------
# Multiplying small matrices into the axes of a large tensor, in one pass and in float64.
#
# A checksum of a result and the sums over the inputs that predict it are both of this kind: every
# axis that is summed gets a matrix. The tensor is converted to float64 piece by piece, along
# its own order in memory, so NCHW, NHWC and any other strided view cost the same single pass.

#: Elements converted at a time: two such pieces in float64 fit into a second-level cache.
_SKETCH_PIECE = 1 << 16


def memory_order(array: NDArray[Any]) -> tuple[int, ...]:
    """Return the axes from the largest stride to the smallest; axes of one element come first."""
    keys = [
        (1, -abs(stride)) if size > 1 else (0, 0)
        for size, stride in zip(array.shape, array.strides, strict=True)
    ]
    return tuple(sorted(range(array.ndim), key=lambda axis: keys[axis]))


def pieces(
    array: NDArray[Any], elements: int = _SKETCH_PIECE, whole: Collection[int] = ()
) -> Iterator[tuple[slice, ...]]:
    """Cut an array, along its order in memory, into pieces of at most about ``elements``.

    Args:
        array: Of any shape and strides.
        elements: Of a piece, unless those along the axes that are not cut are more.
        whole: The axes that are not cut.

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
    """Multiply a matrix into each of some axes of ``array``, and likewise of its squares.

    Args:
        array: Tensor of any float type, shape and strides; not copied.
        factors: By axis, a matrix (length of the axis, columns); the axis then has ``columns``.
        squares: The same for the elementwise square of the tensor.

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
            kept = tuple(slice(None) if axis in by else cut[axis] for axis in range(array.ndim))
            result[kept] += part.transpose(inverse)
    return first, second


def _contract_piece(
    piece: NDArray[np.float64],
    by: list[tuple[NDArray[np.float64] | None, slice]],
) -> NDArray[np.float64]:
    """Contract a contiguous piece, the innermost axis first, which leaves least for the others."""
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
# A piece of what a memory-bound layer should give, and how tensors are cut into such pieces.

F64 = NDArray[np.float64]


@dataclass(frozen=True, slots=True, kw_only=True)
class Piece:
    """Some elements of one result.

    Attributes:
        role: Of the tensor that is written.
        cut: Where the elements are in it.
        value: What they should be.
        size: Root of the sum of the squared terms ``s``; the error of an element is relative to
            ``|value| + s``.
        terms: Length of the sums; :data:`EXACT` where nothing is rounded.
    """

    role: str
    cut: tuple[slice, ...]
    value: NDArray[Any]
    size: NDArray[Any]
    terms: int


# -----------------------------------------------------------------------------
# Output pixels that are recomputed exactly, and the patches of the source that they see.


@dataclass(frozen=True, slots=True, kw_only=True)
class Pixels:
    """Positions of an output, all channels of which are compared.

    Attributes:
        image: Index of the image, per pixel.
        place: Index along each side, outermost first, per pixel.
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
        """Return the window of each pixel, zero on padding, and the squares of what rounding sees.

        Args:
            source: (images, groups, channels, sides...).
            axes: The tables of the windows, of each side.
            uncertain: What a factor may be off by whatever its size.

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
        rng: Draws the random ones.
        images: Their number.
        sizes: Of their sides.
        count: Of the pixels.
    """
    shape = (images, *sizes)
    total = math.prod(shape)
    if count >= total:
        flat = np.arange(total)
    else:
        # Padding and tails of blocked loops go wrong at the borders first.
        ends = itertools.product(*({0, size - 1} for size in shape))
        corners = np.ravel_multi_index(tuple(zip(*ends, strict=True)), shape)
        flat = rng.integers(0, total, count)
        kept = min(len(corners), count // 2)
        flat[:kept] = corners[:kept]
        flat = np.unique(flat)
    image, *place = np.unravel_index(flat, shape)
    return Pixels(image=image, place=tuple(place))


# -----------------------------------------------------------------------------
# One spatial axis of a window as a table: which source position each tap of an output reads.
#
# Forward, output ``o`` reads input ``o * stride + k * dilation - pad`` at tap ``k``. Backward, the
# "output" is an input position ``i`` and reads the gradient at ``(i + pad - k * dilation) /
# stride`` where that is a whole number. With the table in hand both are the same computation.


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

    @property
    def terms(self) -> int:
        """The most taps of an output that are not on padding."""
        return int(np.count_nonzero(self.factor, axis=1).max())

    def turned(self) -> TapAxis:
        """Return the table whose outputs are the taps of this one, and vice versa."""
        return TapAxis(source=self.source.T, factor=self.factor.T, source_size=self.source_size)

    def spread(self, weights: NDArray[np.float64]) -> NDArray[np.float64]:
        """Return the (source_size, taps) matrix that a weighted sum over the outputs becomes.

        ``sum_o weights[o] * y[o] = sum_k sum_i x[i] * spread[i, k]`` for
        ``y[o] = sum_k factor[o, k] * x[source[o, k]]``.
        """
        matrix = np.zeros((self.source_size, self.source.shape[1]))
        taps = np.broadcast_to(np.arange(self.source.shape[1]), self.source.shape)
        np.add.at(matrix, (self.source, taps), self.factor * weights[:, None])
        return matrix

    def add_up(self, weights: F64, values: F64, number: int) -> F64:
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
    """Return the tables of all sides; those of average pooling divide by the count."""
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
    """Return the tables of a resizing, and what a factor may be off by in units of a rounding.

    Where sizes are no powers of two times each other, libraries round the positions of centres, in
    float32, too. A weight is then off by up to three units of roundoff for each pixel of a side,
    whatever its own size; the tolerance has ten units for sums of four terms.
    """
    axes = [_resized(layer.mode, *side, pass_) for side in pairs(layer)]
    rounded = [size for size, out in pairs(layer) if not _is_binary(size, out)]
    return tuple(axes), sum(rounded) / 4 if layer.mode == "linear" else 0.0


def _is_binary(size: int, out: int) -> bool:
    """Whether the positions of centres are numbers that float32 holds."""
    parts = out // math.gcd(size, out)
    return parts & (parts - 1) == 0


def _resized(mode: str, size: int, out: int, pass_: str) -> TapAxis:
    table = np.array(taps(mode, size, out))
    source, second = table[:, :2].astype(np.intp), table[:, 2]
    factor = np.stack([1 - second, second], axis=1)
    if pass_ == "forward":
        return TapAxis(source=source, factor=factor, source_size=size)
    # For each position read, the outputs that it is in.
    outputs, tap = np.nonzero(factor)
    places = source[outputs, tap]
    order = np.argsort(places, kind="stable")
    counts = np.bincount(places, minlength=size)
    # The how manieth of its position each one is.
    rank = np.arange(len(order)) - np.repeat(np.cumsum(counts) - counts, counts)
    read, weights = (
        np.zeros((size, int(counts.max())), np.intp),
        np.zeros((size, int(counts.max()))),
    )
    read[places[order], rank] = outputs[order]
    weights[places[order], rank] = factor[outputs, tap][order]
    return TapAxis(source=read, factor=weights, source_size=out)


# -----------------------------------------------------------------------------
# What a comparison found: its worst deviation, where that was, and how much was compared.

#: A checksum adds up errors with random signs, so their root sum of squares is its standard
#: deviation. It is measured in units of three of them: a rounding error of ``u`` at most, and of
#: 0.3 ``u`` in the root mean square of ``(|ref|**2 + s**2)**0.5``, would have to be at ten standard
#: deviations to reach the tolerance ``u`` that holds for single elements.
CHECKSUM_UNIT = 3.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Deviation:
    """One place where the result was compared with the reference.

    Attributes:
        error: Relative error; infinite or NaN where the result is not finite.
        where: Name of the element or of the checksum, in words.
        got: What the kernel computed.
        expected: What the reference computed.
    """

    error: float
    where: str
    got: float
    expected: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Computed:
    """What a kernel was given and what it wrote, in plain layouts of any strides.

    Attributes:
        pass_: Of the layer.
        propagation: Of a forward pass: ``inference`` or ``training``.
        precision: Storage and arithmetic.
        inputs: What it read, by role.
        results: What it wrote, by role; what is not there is not compared.
        rng: Chooses points and checksum weights.
    """

    pass_: str
    propagation: str
    precision: str
    inputs: Mapping[str, NDArray[Any]]
    results: Mapping[str, NDArray[Any]]
    rng: np.random.Generator


@dataclass(frozen=True, slots=True, kw_only=True)
class Comparison:
    """Everything that was compared for one result.

    Attributes:
        terms: Length of the sums that the result consists of; 0 where it must be exact.
        points: Elements recomputed exactly.
        checksums: Checksums over all elements; 0 where every element was recomputed.
        worst: The largest deviation of any of them.
    """

    terms: int
    points: int
    checksums: int
    worst: Deviation


def checksum_weights(rng: np.random.Generator, count: int) -> NDArray[np.float64]:
    """Return random weights, all different: sizes from 0.5 to 1.5, and random signs."""
    signs = 2.0 * rng.integers(0, 2, count) - 1.0
    return signs * rng.uniform(0.5, 1.5, count)


def worst_of(
    got: NDArray[Any],
    expected: NDArray[Any],
    scale: NDArray[Any],
    where: Callable[[Sequence[int]], str],
) -> Deviation:
    """Return the largest ``|got - expected| / scale``; zero over zero is zero, NaN the largest.

    Args:
        got: Computed values.
        expected: Reference values of the same shape.
        scale: What one is measured against, of the same shape.
        where: Names the place of an index into these arrays.
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
    """Return the sums of a tensor over some axes, which keep one element, and of its squares."""
    ones = {axis: np.ones((array.shape[axis], 1)) for axis in axes}
    return contract(array, ones, ones)


def larger(first: Deviation, second: Deviation) -> Deviation:
    """Return the worse of two deviations; one that is not a number is worse than any number."""
    if math.isnan(first.error) or first.error >= second.error:
        return first
    return second
