"""A piece of what a memory-bound layer should give, and how tensors are cut into such pieces."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

if TYPE_CHECKING:
    from collections.abc import Iterator

__all__ = ["EXACT", "F64", "TRANSCENDENTAL", "Piece", "per_channel", "whole_columns"]

F64 = NDArray[np.float64]

#: Terms of a result that must be right to the last bit.
EXACT = 0
#: Further terms where a root, a power, an exponential or a logarithm is part of the result: three
#: roots of 16 are 12 units, which leaves room for the fast versions of these functions.
TRANSCENDENTAL = 16

#: Elements of a piece with all channels.
_PIECE = 1 << 17


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


def whole_columns(shape: tuple[int, ...]) -> Iterator[tuple[slice, ...]]:
    """Cut NCHW images into pieces that have all channels of their pixels."""
    images, channels, height, width = shape
    image = channels * height * width
    some_images = max(1, _PIECE // image)
    some_rows = height if image <= _PIECE else max(1, _PIECE // (channels * width))
    for first in range(0, images, some_images):
        for row in range(0, height, some_rows):
            yield (
                slice(first, min(first + some_images, images)),
                slice(0, channels),
                slice(row, min(row + some_rows, height)),
                slice(0, width),
            )


def per_channel(values: NDArray[Any], cut: slice = slice(None)) -> F64:
    """Return values of channels, or of some of them, so that they apply to NCHW images."""
    return values[cut].astype(np.float64)[:, None, None]
