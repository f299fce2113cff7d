"""The elements that a dropout keeps: those whose index has a small hash.

The hash is the upper half of SplitMix64's output number ``index + 1`` (G. Steele, D. Lea and
C. Flood, "Fast splittable pseudorandom number generators", 2014). It needs no state, so any thread
finds it for any element, and the backward pass finds the same one.
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


def _hash(index: NDArray[np.uint64]) -> NDArray[np.uint64]:
    with np.errstate(over="ignore"):
        mixed = (index + np.uint64(1)) * np.uint64(0x9E3779B97F4A7C15)
        mixed = (mixed ^ (mixed >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
        mixed = (mixed ^ (mixed >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    mixed ^= mixed >> np.uint64(31)
    return mixed >> np.uint64(32)
