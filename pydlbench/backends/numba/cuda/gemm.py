"""Matrix products on a GPU: tiles in shared memory, a small square of sums for each thread."""

from __future__ import annotations

import functools
from typing import TYPE_CHECKING, Any

from numba import float32

from pydlbench.backends.numba.cuda.language import cuda, kernel

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    Array = NDArray[np.float32]

__all__ = ["EACH", "SIDE", "grid", "product"]

#: Threads along each side of a block, sums along each side of a thread's square, terms per step.
SIDE, EACH, DEPTH = 16, 4, 16
_GRID_MOST = 65535


def grid(batch: int, rows: int, columns: int, side: int = SIDE, each: int = EACH) -> Any:
    """Return grid and block of a product: rows first, since only that axis may be long."""
    tile = side * each
    blocks = (-(-rows // tile), min(-(-columns // tile), _GRID_MOST), min(batch, _GRID_MOST))
    return blocks, (side, side)


@functools.cache
def product(  # noqa: C901 - see its kernel
    a_turned: bool, b_turned: bool, side: int = SIDE, each: int = EACH, depth: int = DEPTH
) -> Any:
    """Return the kernel ``(c, a, b)`` that computes ``c[t] = a[t] @ b[t]``.

    The operands are (batch, rows, terms) and (batch, terms, columns) of any strides; neighbouring
    threads read neighbouring elements in memory.

    Args:
        a_turned: The rows of ``a`` are innermost in memory, not its terms.
        b_turned: The terms of ``b`` are innermost in memory, not its columns.
        side: Threads along each side of a block.
        each: Sums along each side of a thread's square.
        depth: Terms in shared memory at a time.
    """
    tile, threads = side * each, side * side
    # A column more: threads that write down a column use different banks.
    pitch = tile + 1

    def compute(c: Array, a: Array, b: Array) -> None:  # noqa: C901 - a kernel is one function
        left = cuda.shared.array((depth, pitch), float32)
        right = cuda.shared.array((depth, pitch), float32)
        total = cuda.local.array((each, each), float32)
        batch, rows, columns = c.shape
        terms = a.shape[2]
        thread = cuda.threadIdx.y * side + cuda.threadIdx.x
        row0 = cuda.blockIdx.x * tile
        for t in range(cuda.blockIdx.z, batch, cuda.gridDim.z):
            for column0 in range(cuda.blockIdx.y * tile, columns, cuda.gridDim.y * tile):
                for i in range(each):
                    for j in range(each):
                        total[i, j] = float32(0)
                for k0 in range(0, terms, depth):
                    for e in range(thread, tile * depth, threads):
                        k, i = (e // tile, e % tile) if a_turned else (e % depth, e // depth)
                        inside = row0 + i < rows and k0 + k < terms
                        left[k, i] = a[t, row0 + i, k0 + k] if inside else float32(0)
                        k, j = (e % depth, e // depth) if b_turned else (e // tile, e % tile)
                        inside = column0 + j < columns and k0 + k < terms
                        right[k, j] = b[t, k0 + k, column0 + j] if inside else float32(0)
                    cuda.syncthreads()
                    for k in range(depth):
                        for i in range(each):
                            x = left[k, cuda.threadIdx.y + i * side]
                            for j in range(each):
                                total[i, j] += x * right[k, cuda.threadIdx.x + j * side]
                    cuda.syncthreads()
                for i in range(each):
                    row = row0 + cuda.threadIdx.y + i * side
                    for j in range(each):
                        column = column0 + cuda.threadIdx.x + j * side
                        if row < rows and column < columns:
                            c[t, row, column] = total[i, j]

    return kernel(compute)
