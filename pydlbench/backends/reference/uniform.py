"""Uniform random values on the grid of a storage precision."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from pydlbench.backends.reference.rounding import round_to

if TYPE_CHECKING:
    from numpy.typing import NDArray

__all__ = ["fill_uniform"]

#: Elements made at a time, so that they are rounded while they are in the cache.
_CHUNK = 1 << 16


def fill_uniform(flat: NDArray[np.float32], stream: np.random.SFC64, precision: str) -> None:
    """Fill with uniform values in [-1, 1): random significands of numbers in [2, 4), less 3."""
    for first in range(0, flat.size, _CHUNK):
        chunk = flat[first : first + _CHUNK]
        bits = stream.random_raw((chunk.size + 1) // 2).view(np.uint32)[: chunk.size]
        bits >>= np.uint32(9)
        bits |= np.uint32(0x40000000)
        np.subtract(bits.view(np.float32), np.float32(3), out=chunk)
        if precision != "fp32":
            chunk[:] = round_to(precision, chunk)
