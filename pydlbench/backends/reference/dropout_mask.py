"""The elements that a dropout keeps: those whose index has a small hash.

The hash is C. Wellons' of 32 bits ("Prospecting for hash functions", 2018; "lowbias32") without its
last step, which leaves the upper half of the result as it is. What is hashed is the lower half of
the index, xor the upper half times 0x9E3779B9 plus 0x85EBCA6B. It needs no state, so any thread
finds it for any element, and the backward pass finds the same one; and it is short enough for a GPU
to be done with it before memory is with the elements.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    from numpy.typing import NDArray

__all__ = ["kept_elements"]


def kept_elements(shape: tuple[int, ...], cut: tuple[slice, ...], keep: float) -> NDArray[np.bool_]:
    """Return which elements of a piece of a tensor stay.

    Args:
        shape: Of the whole tensor; elements are numbered in this order, wherever they lie.
        cut: The piece.
        keep: Probability to stay.
    """
    index = np.zeros((), dtype=np.uint64)
    stride = 1
    for axis in reversed(range(len(shape))):
        along = np.arange(shape[axis], dtype=np.uint64)[cut[axis]] * np.uint64(stride)
        index = index + along.reshape(-1, *[1] * (len(shape) - 1 - axis))
        stride *= shape[axis]
    kept: NDArray[np.bool_] = _hash(index) < np.uint64(int(keep * 2.0**32))
    return kept


def _hash(index: NDArray[np.uint64]) -> NDArray[np.uint32]:
    with np.errstate(over="ignore"):
        upper = (index >> np.uint64(32)).astype(np.uint32) * np.uint32(0x9E3779B9)
        mixed = index.astype(np.uint32) ^ (upper + np.uint32(0x85EBCA6B))
        mixed = (mixed ^ (mixed >> np.uint32(16))) * np.uint32(0x7FEB352D)
        mixed = (mixed ^ (mixed >> np.uint32(15))) * np.uint32(0x846CA68B)
    return np.asarray(mixed)
