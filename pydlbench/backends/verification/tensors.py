"""Layers on tensors of any shape against their definitions: every element of every result."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any, Final

import numpy as np

from pydlbench.backends.verification.checksums import (
    EXACT,
    F64,
    TRANSCENDENTAL,
    Comparison,
    Piece,
    pieces,
    sums_over,
)
from pydlbench.backends.verification.pointwise import compare

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping

    from pydlbench.backends.verification.checksums import Computed
    from pydlbench.ops.op import Layer


# -----------------------------------------------------------------------------
# Element-wise arithmetic: values are the table's, errors those of one term unless said otherwise.


#: How much more than a root a logarithm may be off: what oneDNN's own test allows its
#: (tests/benchdnn/eltwise/eltwise.cpp: 4e-5, and 4e-6).
_LOGARITHM: Final = 10

#: How many terms a value is rounded as a sum of.
_TERMS: Final[Mapping[str, int]] = {
    **dict.fromkeys(("abs", "neg", "max", "min", "clamp"), EXACT),
    **dict.fromkeys(("sqrt", "rsqrt", "exp", "log", "power"), TRANSCENDENTAL),
    **dict.fromkeys(("add", "add-square", "addcmul", "addcdiv"), 2),
    "lerp": 3,
}


def _other_term(value: F64, x: F64, *_: Any) -> F64:
    """Return the size of ``x`` and of what was added to it."""
    size: F64 = np.hypot(x, value - x)
    return size


#: The size of terms, by value, operands and number, where it is not that of the value.
_SIZES: Final[Mapping[str, Callable[..., F64]]] = {
    # Near one a logarithm is a difference from that of one.
    "log": lambda value, _x, _: np.hypot(value, _LOGARITHM * np.hypot(value, 1)),
    # The exponential of a product: the logarithm's error is multiplied by the exponent.
    "power": lambda value, _x, a: value * math.hypot(1, max(1.0, abs(a))),
    **dict.fromkeys(("add", "add-square", "addcmul", "addcdiv"), _other_term),
    "lerp": lambda _value, x, y, z, _: np.sqrt(x**2 + (z * y) ** 2 + (z * x) ** 2),
}


def check_elementwise(layer: Layer, computed: Computed) -> dict[str, Comparison]:
    """Compare all elements of the result."""
    operands, terms = layer.reads(computed.pass_), _TERMS.get(layer.op, 1)

    def expected() -> Iterator[Piece]:
        for cut in pieces(computed.results["dst"]):
            values = {}
            for role in operands:
                array = computed.inputs[role]
                along = [
                    slice(None) if n == 1 else at for n, at in zip(array.shape, cut, strict=True)
                ]
                values[role] = array[tuple(along)]
            value = layer.reference(values)["dst"]
            size = np.abs(value)
            if layer.op in _SIZES:
                exact = (one.astype(np.float64) for one in values.values())
                size = _SIZES[layer.op](value, *exact, layer.number)
            yield Piece(role="dst", cut=cut, value=value, size=size, terms=terms)

    return compare(layer, computed, expected())


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
