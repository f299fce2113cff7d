"""Reductions, moves and gathers against their definitions: every element of every result."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Final

import numpy as np

from pydlbench.backends.verification.arithmetic import EXACT, F64, TRANSCENDENTAL
from pydlbench.backends.verification.checksums import (
    Comparison,
    Piece,
    pieces,
    sums_over,
)
from pydlbench.backends.verification.pointwise import compare

if TYPE_CHECKING:
    from collections.abc import Iterator

    from pydlbench.backends.verification.checksums import Computed
    from pydlbench.ops.op import Layer


# -----------------------------------------------------------------------------
# Reductions, moves and gathers.


def check_reduction(layer: Layer, computed: Computed) -> dict[str, Comparison]:
    """Compare all elements: sums of as many terms as are reduced, or one of the elements."""
    source = computed.inputs["src"]
    axes = tuple(
        i for i, (n, kept) in enumerate(zip(layer.src, layer.dst, strict=True)) if n != kept
    )
    count = math.prod(layer.src) // math.prod(layer.dst)
    value: F64
    if layer.op in ("max", "min"):
        extreme = np.max if layer.op == "max" else np.min
        value = extreme(source, axis=axes, keepdims=True).astype(np.float64)
        size, terms = np.abs(value), EXACT
    else:
        sums, squares = sums_over(source, axes)
        value, size, terms = sums, np.sqrt(squares), count
        if layer.op == "mean":
            value, size = sums / count, size / count
        elif layer.op == "norm":
            value = size = np.sqrt(squares)
            terms = count + TRANSCENDENTAL
    whole = tuple(slice(None) for _ in layer.dst)
    return compare(
        layer, computed, [Piece(role="dst", cut=whole, value=value, size=size, terms=terms)]
    )


def check_move(layer: Layer, computed: Computed) -> dict[str, Comparison]:
    """Compare all elements: exact."""
    result = computed.results["dst"]
    if layer.op == "fill":
        expected = np.broadcast_to(np.float32(0), result.shape)
    else:
        source = computed.inputs["src"]
        expected = source.transpose(layer.order) if layer.order else source
    found = (
        Piece(role="dst", cut=cut, value=expected[cut], size=np.abs(expected[cut]), terms=EXACT)
        for cut in pieces(result)
    )
    return compare(layer, computed, found)


def check_gather(layer: Layer, computed: Computed) -> dict[str, Comparison]:
    """Compare all rows: those that are named, exact, or sums of those that name one."""
    source, indices = computed.inputs["src"], computed.inputs["indices"].astype(np.intp)

    def expected() -> Iterator[Piece]:
        for first in range(0, layer.width, _COLUMNS):
            columns = slice(first, min(first + _COLUMNS, layer.width))
            if layer.op == "rows":
                value = source[indices, columns].astype(np.float64)
                size, terms = np.abs(value), EXACT
            else:
                value = np.zeros((layer.rows, columns.stop - first))
                squares = np.zeros_like(value)
                given = source[:, columns].astype(np.float64)
                np.add.at(value, indices, given)
                np.add.at(squares, indices, np.square(given))
                size, terms = np.sqrt(squares), int(np.bincount(indices).max())
            yield Piece(role="dst", cut=(slice(None), columns), value=value, size=size, terms=terms)

    return compare(layer, computed, expected())


#: Columns of a table that are compared at a time.
_COLUMNS: Final = 64
