"""Multiplying small matrices into the axes of a large tensor, in one pass and in float64.

A checksum of a result and the sums over the inputs that predict it are both of this kind: every
axis that is summed gets a matrix. The tensor is converted to float64 piece by piece, along
its own order in memory, so NCHW, NHWC and any other strided view cost the same single pass.
"""

from __future__ import annotations

import itertools
import math
from typing import TYPE_CHECKING, Any

import numpy as np

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from numpy.typing import NDArray

__all__ = ["contract", "memory_order", "pieces"]

#: Elements converted at a time: two such pieces in float64 fit into a second-level cache.
_PIECE = 1 << 16


def memory_order(array: NDArray[Any]) -> tuple[int, ...]:
    """Return the axes from the largest stride to the smallest; axes of one element come first."""
    keys = [
        (1, -abs(stride)) if size > 1 else (0, 0)
        for size, stride in zip(array.shape, array.strides, strict=True)
    ]
    return tuple(sorted(range(array.ndim), key=lambda axis: keys[axis]))


def pieces(array: NDArray[Any], elements: int = _PIECE) -> Iterator[tuple[slice, ...]]:
    """Cut an array, along its order in memory, into pieces of at most about ``elements``.

    Yields:
        One slice per axis of ``array``; together they cover every element once.
    """
    if array.size == 0:
        return
    order = memory_order(array)
    steps = list(array.shape)
    inner = 1
    for axis in reversed(order):
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
        for by, result in ((factors, first), (squares, second)):
            part = piece if by is factors else np.multiply(piece, piece, out=piece)
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
