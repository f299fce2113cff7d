"""Kernels: parallel loops over float32, compiled at their first call.

Images are (image, row, column, channel), so that loops over channels are vectorised. Tables define
the elements under a window's taps: ``rows[tap, row]`` is the row that is read for a written row, or
-1 for padding; ``columns`` is the same for columns. A gradient uses the same kernel with other
tables, and gathers from all results that its element contributed to.
"""

import os
from collections.abc import Callable
from typing import Any, TypeVar, cast

import numba
import numpy as np
from numba import prange
from numpy.typing import NDArray

Array = NDArray[np.float32]
Indices = NDArray[np.integer[Any]]
#: First index, and step.
Walk = tuple[int, int]

_numba: Any = numba  # partly without types
_Function = TypeVar("_Function", bound="Callable[..., Any]")

# Compiled code is cached for later processes if a folder is set, as compilation takes seconds.
_IS_CACHED = "NUMBA_CACHE_DIR" in os.environ

#: A block of a product, rows x columns: 32 KB, half a first-level cache.
ROWS = 32
COLUMNS = 256
#: Number of terms that dot products sum up at a time.
DEPTH = 512
#: Number of input channels per task of a gradient of weights.
CHANNELS = 8
#: Lowest value for maxima; infinity is not allowed with ``fastmath``.
LOWEST_VALUE = np.finfo(np.float32).min


def parallel(function: _Function) -> _Function:
    """Compile a kernel at its first call; its ``prange`` loop runs on all threads.

    ``fastmath`` allows sums to be reordered, and thus vectorised. It assumes that no value is
    infinite or NaN: kernels may overwrite such values, but must not read them.
    """
    return cast("_Function", _numba.njit(parallel=True, fastmath=True, cache=_IS_CACHED)(function))


def inner(function: _Function) -> _Function:
    """Compile a function that is called within a parallel loop."""
    return cast("_Function", _numba.njit(fastmath=True, cache=_IS_CACHED)(function))


# -----------------------------------------------------------------------------
# Products of matrices, and convolutions made of them.


@inner
def _add_product(
    c: Array,
    a: Array,
    b: Array,
    c_rows: Walk,
    a_rows: Walk,
    a_terms: Walk,
    b_terms: Walk,
    sizes: tuple[int, int],
    columns: tuple[int, int],
) -> None:
    """Add ``a @ b`` to ``c``, for some rows, terms and columns of three matrices.

    Four terms are added at a time, with one load and one store for four multiply-adds.

    Args:
        c: Sums, columns innermost.
        a: Factors in any order, which are read as scalars.
        b: Factors, columns innermost.
        c_rows: Rows of ``c``.
        a_rows: Rows of ``a``.
        a_terms: Columns of ``a``.
        b_terms: Rows of ``b``.
        sizes: Numbers of rows and of terms.
        columns: First column of ``b`` and ``c``, and number of columns.
    """
    # Unsigned, as indices that may be negative prevent vectorisation.
    start, width = np.uint64(columns[0]), np.uint64(columns[1])
    count, terms = sizes
    whole = terms // 4 * 4
    step, down = a_terms[1], b_terms[1]
    for term in range(0, whole, 4):
        q, r = a_terms[0] + term * step, b_terms[0] + term * down
        for i in range(count):
            p, row = a_rows[0] + i * a_rows[1], c_rows[0] + i * c_rows[1]
            a0, a1, a2, a3 = a[p, q], a[p, q + step], a[p, q + 2 * step], a[p, q + 3 * step]
            for j in range(width):
                at = start + j
                c[row, at] += (
                    a0 * b[r, at]
                    + a1 * b[r + down, at]
                    + a2 * b[r + 2 * down, at]
                    + a3 * b[r + 3 * down, at]
                )
    for term in range(whole, terms):
        q, r = a_terms[0] + term * step, b_terms[0] + term * down
        for i in range(count):
            p, row = a_rows[0] + i * a_rows[1], c_rows[0] + i * c_rows[1]
            a0 = a[p, q]
            for j in range(width):
                c[row, start + j] += a0 * b[r, start + j]


@parallel
def product(c: Array, a: Array, b: Array) -> None:
    """Compute ``c[t] = a[t] @ b[t]``.

    Args:
        c: Result, (batch, rows, columns), the last one innermost.
        a: (batch, rows, terms) of any strides.
        b: (batch, terms, columns), the last one innermost.
    """
    batch, rows, columns = c.shape
    down, across = (rows + ROWS - 1) // ROWS, (columns + COLUMNS - 1) // COLUMNS
    for task in prange(batch * down * across):
        t = task // across // down
        i, j = task // across % down * ROWS, task % across * COLUMNS
        count, width = min(ROWS, rows - i), min(COLUMNS, columns - j)
        c[t, i : i + count, j : j + width] = 0
        sizes = (count, a.shape[2])
        _add_product(c[t], a[t], b[t], (i, 1), (i, 1), (0, 1), (0, 1), sizes, (j, width))


@parallel
def product_of_rows(c: Array, a: Array, b: Array) -> None:
    """Compute ``c[t] = a[t] @ b[t].T``: a row of ``a`` times four rows of ``b`` at a time.

    Args:
        c: Result, (batch, rows, columns).
        a: (batch, rows, terms), the last one innermost.
        b: (batch, columns, terms), the last one innermost.
    """
    batch, rows, columns = c.shape
    terms = a.shape[2]
    down, across = (rows + ROWS - 1) // ROWS, (columns + ROWS - 1) // ROWS
    for task in prange(batch * down * across):
        t = task // across // down
        top, first = task // across % down * ROWS, task % across * ROWS
        bottom, last = min(top + ROWS, rows), min(first + ROWS, columns)
        c[t, top:bottom, first:last] = 0
        for first_term in range(0, terms, DEPTH):
            start, count = np.uint64(first_term), np.uint64(min(DEPTH, terms - first_term))
            for j in range(first, last, 4):
                # After the last row, it is repeated.
                j1, j2, j3 = min(j + 1, last - 1), min(j + 2, last - 1), min(j + 3, last - 1)
                for i in range(top, bottom):
                    s0 = s1 = s2 = s3 = np.float32(0)
                    for k in range(count):
                        x = a[t, i, start + k]
                        s0 += x * b[t, j, start + k]
                        s1 += x * b[t, j1, start + k]
                        s2 += x * b[t, j2, start + k]
                        s3 += x * b[t, j3, start + k]
                    c[t, i, j] += s0
                    if j + 1 < last:
                        c[t, i, j1] += s1
                    if j + 2 < last:
                        c[t, i, j2] += s2
                    if j + 3 < last:
                        c[t, i, j3] += s3


@parallel
def convolve(
    to: Array,
    given: Array,
    weights: Array,
    rows: Indices,
    spans: Indices,
    to_step: int,
    given_step: int,
) -> None:
    """Convolve, or compute the gradient of the source.

    Args:
        to: Result, (image, row, column and group, channel).
        given: Source, or gradient of the result; (image, row, column and group, channel).
        weights: (group, kernel row, kernel column, channel read, channel written).
        rows: Row that is read, by kernel row and row written.
        spans: By part of a row and kernel column: first column written, first column read, and
            number of columns. A part stays in the cache while all taps are added to it.
        to_step: Distance of written columns.
        given_step: Distance of read columns.
    """
    images, height = to.shape[:2]
    groups, kernel_height, kernel_width, channels, results = weights.shape
    for task in prange(images * height * groups):
        image, row, group = task // groups // height, task // groups % height, task % groups
        target = to[image, row]
        target[group::groups] = 0
        for part in range(spans.shape[0]):
            for kh in range(kernel_height):
                from_row = rows[kh, row]
                if from_row < 0:
                    continue
                for kw in range(kernel_width):
                    column, from_column, count = spans[part, kw]
                    _add_product(
                        target,
                        given[image, from_row],
                        weights[group, kh, kw],
                        (column * groups + group, to_step * groups),
                        (from_column * groups + group, given_step * groups),
                        (0, 1),
                        (0, 1),
                        (count, channels),
                        (0, results),
                    )


@parallel
def convolve_for_weights(
    dw: Array, x: Array, dy: Array, rows: Indices, spans: Indices, stride: int
) -> None:
    """Compute the gradient of the weights.

    A task has one tap and some input channels, so that no two tasks add to the same weight.

    Args:
        dw: Result, (group, kernel row, kernel column, input channel, output channel).
        x: Source, (image, row, column and group, channel).
        dy: Gradient of the result, (image, row, column and group, channel).
        rows: Row of the source by kernel row and row of the result.
        spans: As in :func:`convolve`, from the source to the result.
        stride: Distance of the columns of the source that are read.
    """
    groups, kernel_height, kernel_width, channels, results = dw.shape
    blocks = (channels + CHANNELS - 1) // CHANNELS
    for task in prange(groups * kernel_height * kernel_width * blocks):
        start, tap = task % blocks * CHANNELS, task // blocks
        kw, kh = tap % kernel_width, tap // kernel_width % kernel_height
        group = tap // kernel_width // kernel_height
        target = dw[group, kh, kw]
        width = min(CHANNELS, channels - start)
        target[start : start + width] = 0
        for image in range(dy.shape[0]):
            for row in range(dy.shape[1]):
                from_row = rows[kh, row]
                if from_row < 0:
                    continue
                for part in range(spans.shape[0]):
                    column, from_column, count = spans[part, kw]
                    _add_product(
                        target,
                        x[image, from_row].T,
                        dy[image, row],
                        (start, 1),
                        (start, 1),
                        (from_column * groups + group, stride * groups),
                        (column * groups + group, groups),
                        (width, count),
                        (0, results),
                    )


# -----------------------------------------------------------------------------
# Pooling.


@parallel
def maximum(y: Array, places: Indices, x: Array, rows: Indices, columns: Indices) -> None:
    """Write the maximum of each window, and its position.

    Args:
        y: Maxima.
        places: Index of the first tap with the maximum; empty if positions are not needed.
        x: Source.
        rows: Row of the source by tap and row of the result.
        columns: Column of the source, by tap and column of the result.
    """
    images, height, width, channels = y.shape
    for task in prange(images * height):
        image, row = task // height, task % height
        y[image, row] = LOWEST_VALUE
        for column in range(width):
            for kh in range(rows.shape[0]):
                for kw in range(columns.shape[0]):
                    down, across = rows[kh, row], columns[kw, column]
                    if down < 0 or across < 0:
                        continue
                    tap = np.int32(kh * columns.shape[0] + kw)
                    if not places.size:
                        for c in range(channels):
                            y[image, row, column, c] = max(
                                y[image, row, column, c], x[image, down, across, c]
                            )
                        continue
                    for c in range(channels):
                        larger = x[image, down, across, c] > y[image, row, column, c]
                        if larger:
                            y[image, row, column, c] = x[image, down, across, c]
                            places[image, row, column, c] = tap


@parallel
def maximum_backward(
    dx: Array, dy: Array, places: Indices, rows: Indices, columns: Indices
) -> None:
    """Gather gradients from the windows that have their maximum at an element.

    Args:
        dx: Gradient of the source.
        dy: Gradient of the result.
        places: Index of the first tap with the maximum, as written by :func:`maximum`.
        rows: Row of the result by tap and row of the source.
        columns: Column of the result, by tap and column of the source.
    """
    images, height, width, channels = dx.shape
    for task in prange(images * height):
        image, row = task // height, task % height
        dx[image, row] = 0
        for kh in range(rows.shape[0]):
            down = rows[kh, row]
            if down < 0:
                continue
            for column in range(width):
                for kw in range(columns.shape[0]):
                    across = columns[kw, column]
                    if across < 0:
                        continue
                    tap = np.int32(kh * columns.shape[0] + kw)
                    for c in range(channels):
                        if places[image, down, across, c] == tap:
                            dx[image, row, column, c] += dy[image, down, across, c]


@parallel
def average(
    to: Array,
    given: Array,
    rows: Indices,
    columns: Indices,
    to_shares: Array,
    given_shares: Array,
) -> None:
    """Average over windows, or compute the gradient of averages.

    Args:
        to: Result.
        given: Source, or gradient of the result.
        rows: Row that is read, by tap and row written.
        columns: Column that is read, by tap and column written.
        to_shares: Factor by row and column written.
        given_shares: Factor by row and column read.
    """
    images, height, width, channels = to.shape
    for task in prange(images * height):
        image, row = task // height, task % height
        to[image, row] = 0
        for kh in range(rows.shape[0]):
            down = rows[kh, row]
            if down < 0:
                continue
            for column in range(width):
                for kw in range(columns.shape[0]):
                    across = columns[kw, column]
                    if across < 0:
                        continue
                    share = to_shares[row, column] * given_shares[down, across]
                    for c in range(channels):
                        to[image, row, column, c] += given[image, down, across, c] * share
