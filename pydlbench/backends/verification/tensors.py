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
# Element-wise arithmetic. Each formula gives the values and the terms whose sum they are.


def _sum(*terms: F64) -> tuple[F64, F64, int]:
    """Return a sum, its size and the number of its terms."""
    squares = sum(np.square(term) for term in terms)
    return np.asarray(sum(terms)), np.sqrt(squares), len(terms)


def _one(value: F64, terms: int = 1, size: Any = 0.0) -> tuple[F64, F64, int]:
    """Return a single term, rounded as a sum of so many is.

    Args:
        value: Of the term.
        terms: As many.
        size: Of another one that it is the difference of, or 0.
    """
    return value, np.hypot(value, size), terms


#: How much more than a root a logarithm may be off: what oneDNN's own test allows its
#: (tests/benchdnn/eltwise/eltwise.cpp: 4e-5, and 4e-6).
_LOGARITHM: Final = 10

#: From the operands and the number to values, sizes, and terms; see :class:`Piece`.
_FORMULAS: Final[Mapping[str, Callable[..., tuple[F64, F64, int]]]] = {
    "abs": lambda x, _: _one(np.abs(x), EXACT),
    "neg": lambda x, _: _one(-x, EXACT),
    "square": lambda x, _: _one(np.square(x)),
    "sqrt": lambda x, _: _one(np.sqrt(x), TRANSCENDENTAL),
    "rsqrt": lambda x, _: _one(1 / np.sqrt(x), TRANSCENDENTAL),
    "exp": lambda x, _: _one(np.exp(x), TRANSCENDENTAL),
    # Near one a logarithm is a difference from that of one.
    "log": lambda x, _: _one(np.log(x), TRANSCENDENTAL, _LOGARITHM * np.hypot(np.log(x), 1)),
    # The exponential of a product: the logarithm's error is multiplied by the exponent.
    "power": lambda x, a: _one(x**a, TRANSCENDENTAL, max(1.0, abs(a)) * x**a),
    "add": lambda x, y, a: _sum(x, a * y),
    "mul": lambda x, y, _: _one(x * y),
    "div": lambda x, y, _: _one(x / y),
    "max": lambda x, y, _: _one(np.maximum(x, y), EXACT),
    "min": lambda x, y, _: _one(np.minimum(x, y), EXACT),
    "leaky-relu": lambda x, y, _: _one(np.where(x > 0, x, x * y)),
    "add-square": lambda x, y, a: _sum(x, a * y * y),
    "lerp": lambda x, y, z, _: _sum(x, z * y, -z * x),
    "addcmul": lambda x, y, z, a: _sum(x, a * y * z),
    "addcdiv": lambda x, y, z, a: _sum(x, a * y / z),
    "clamp": lambda x, y, z, _: _one(np.minimum(np.maximum(x, y), z), EXACT),
    "leaky-relu-gradient": lambda x, y, z, _: _one(np.where(y > 0, x, x * z)),
}


def check_elementwise(layer: Layer, computed: Computed) -> dict[str, Comparison]:
    """Compare all elements of the result."""
    formula, operands = _FORMULAS[layer.op], layer.reads(computed.pass_)

    def expected() -> Iterator[Piece]:
        for cut in pieces(computed.results["dst"]):
            values = []
            for role in operands:
                array = computed.inputs[role]
                along = [
                    slice(None) if n == 1 else at for n, at in zip(array.shape, cut, strict=True)
                ]
                values.append(array[tuple(along)].astype(np.float64))
            value, size, terms = formula(*values, layer.number)
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
