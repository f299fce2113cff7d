"""Matrix products on the CPU, blocked for the cache; blocks of the result run in parallel."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
from numba import prange

from pydlbench.backends.numba.conv import inner, parallel

if TYPE_CHECKING:
    from numpy.typing import NDArray

    Array = NDArray[np.float32]

#: A block of the result, rows x columns: 32 KB, half a first-level cache.
ROWS = 32
COLUMNS = 256
#: Terms summed up at a time by dot products.
DEPTH = 512


@inner
def _block(c: Array, a: Array, b: Array, rows: Any, columns: Any) -> None:
    """Compute a block of ``c = a @ b``, four rows of ``b`` at a time along the rows of ``c``.

    Args:
        c: Result, (rows, columns).
        a: (rows, terms).
        b: (terms, columns).
        rows: First row of the block, and one more than the last.
        columns: Likewise.
    """
    # Unsigned: an index that might count from the end keeps the loop from being vectorised.
    start, count = np.uint64(columns[0]), np.uint64(columns[1] - columns[0])
    terms = a.shape[1]
    for i in range(rows[0], rows[1]):
        for j in range(count):
            c[i, start + j] = 0
    whole = terms // 4 * 4
    for k in range(0, whole, 4):
        for i in range(rows[0], rows[1]):
            a0, a1, a2, a3 = a[i, k], a[i, k + 1], a[i, k + 2], a[i, k + 3]
            for j in range(count):
                at = start + j
                c[i, at] += (
                    a0 * b[k, at] + a1 * b[k + 1, at] + a2 * b[k + 2, at] + a3 * b[k + 3, at]
                )
    for k in range(whole, terms):
        for i in range(rows[0], rows[1]):
            a0 = a[i, k]
            for j in range(count):
                c[i, start + j] += a0 * b[k, start + j]


@parallel
def product(c: Array, a: Array, b: Array) -> None:
    """Compute ``c[t] = a[t] @ b[t]``.

    Args:
        c: Result, (batch, rows, columns), the last one innermost.
        a: (batch, rows, terms) of any strides: its elements are read one by one.
        b: (batch, terms, columns), the last one innermost.
    """
    batch, rows, columns = c.shape
    down, across = (rows + ROWS - 1) // ROWS, (columns + COLUMNS - 1) // COLUMNS
    for task in prange(batch * down * across):
        t = task // across // down
        i, j = task // across % down * ROWS, task % across * COLUMNS
        down_to, across_to = min(i + ROWS, rows), min(j + COLUMNS, columns)
        _block(c[t], a[t], b[t], (i, down_to), (j, across_to))


@inner
def _dots(c: Array, a: Array, b: Array, rows: Any, columns: Any) -> None:
    """Compute a block of ``c = a @ b.T``: a row of ``a`` times four rows of ``b`` at a time.

    Arguments are as in :func:`_block`, with ``b`` as (columns, terms).
    """
    terms = a.shape[1]
    for i in range(rows[0], rows[1]):
        c[i, columns[0] : columns[1]] = 0
    fours = columns[0] + (columns[1] - columns[0]) // 4 * 4
    for first in range(0, terms, DEPTH):
        start, count = np.uint64(first), np.uint64(min(DEPTH, terms - first))
        for j in range(columns[0], fours, 4):
            for i in range(rows[0], rows[1]):
                s0 = s1 = s2 = s3 = np.float32(0)
                for k in range(count):
                    x = a[i, start + k]
                    s0 += x * b[j, start + k]
                    s1 += x * b[j + 1, start + k]
                    s2 += x * b[j + 2, start + k]
                    s3 += x * b[j + 3, start + k]
                c[i, j] += s0
                c[i, j + 1] += s1
                c[i, j + 2] += s2
                c[i, j + 3] += s3
        for j in range(fours, columns[1]):
            for i in range(rows[0], rows[1]):
                s0 = np.float32(0)
                for k in range(count):
                    s0 += a[i, start + k] * b[j, start + k]
                c[i, j] += s0


@parallel
def product_transposed(c: Array, a: Array, b: Array) -> None:
    """Compute ``c[t] = a[t] @ b[t].T``, all with their last axis innermost.

    Args:
        c: Result, (batch, rows, columns).
        a: (batch, rows, terms).
        b: (batch, columns, terms).
    """
    batch, rows, columns = c.shape
    down, across = (rows + ROWS - 1) // ROWS, (columns + ROWS - 1) // ROWS
    for task in prange(batch * down * across):
        t = task // across // down
        i, j = task // across % down * ROWS, task % across * ROWS
        down_to, across_to = min(i + ROWS, rows), min(j + ROWS, columns)
        _dots(c[t], a[t], b[t], (i, down_to), (j, across_to))
