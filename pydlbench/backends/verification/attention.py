"""Scaled dot-product attention against its definition, some rows of its scores at a time."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any, Final

import numpy as np

from pydlbench.backends.verification.arithmetic import TRANSCENDENTAL
from pydlbench.backends.verification.checksums import (
    Comparison,
    Computed,
    Deviation,
    Piece,
    larger,
    pieces,
    size_of_miss,
)
from pydlbench.backends.verification.inputs import UNIT_ROUNDOFF, round_to, significand_bits
from pydlbench.backends.verification.pointwise import compare
from pydlbench.backends.verification.scores import as_is, blocks, weigh

if TYPE_CHECKING:
    from collections.abc import Iterator

    from numpy.typing import NDArray

    from pydlbench.backends.verification.scores import Rounding, Tensors
    from pydlbench.ops.op import Layer


#: Multiply-adds that are spent; with more, only some heads are compared.
_MULTIPLY_ADDS: Final = 4_000_000_000
#: How many roots of its mean square an error may be: frameworks round scores, weights and their
#: gradients to the storage format, in several steps.
_TAIL: Final = 5.0


def check_attention(layer: Layer, computed: Computed) -> dict[str, Comparison]:
    """Compare the results of a pass with the reference.

    Heads of queries that share keys and values are compared together: all of them, or some, the
    first and the last among them, where these are many. What is measured against is what the
    formula misses by where it rounds to the storage format all that lies between its products.
    """
    groups = _groups(layer, computed.pass_, computed.rng)
    compared = compare(layer, computed, _expected(layer, computed, groups))
    if len(groups) == layer.batch * layer.kv_heads:
        return compared
    return {
        role: Comparison(
            terms=one.terms,
            points=one.points,
            checksums=0,
            worst=larger(one.worst, _unwritten(role, computed.results[role])),
        )
        for role, one in compared.items()
    }


def _groups(layer: Layer, pass_: str, rng: np.random.Generator) -> list[tuple[int, int]]:
    """Choose (image, head of keys) that are compared."""
    shape = layer.batch, layer.kv_heads
    count = math.prod(shape)
    affordable = max(2, _MULTIPLY_ADDS * count // layer.flops(pass_))
    chosen = np.arange(count)
    if affordable < count:
        inner = rng.permutation(np.arange(1, count - 1))[: affordable - 2]
        chosen = np.sort(np.concatenate([[0, count - 1], inner]))
    return [(int(at) // layer.kv_heads, int(at) % layer.kv_heads) for at in chosen]


def _expected(layer: Layer, computed: Computed, groups: list[tuple[int, int]]) -> Iterator[Piece]:
    precision = computed.precision
    unit = max(2.0 ** -significand_bits(precision), UNIT_ROUNDOFF["float32"])

    def rounding(values: NDArray[Any]) -> NDArray[Any]:
        return round_to(precision, values)

    formula = _forward if computed.pass_ == "forward" else _backward
    terms = max(layer.size, layer.value_size, layer.keys)
    if computed.pass_ != "forward":
        terms = max(terms, layer.queries * (layer.heads // layer.kv_heads))
    for group in groups:
        exact = formula(layer, computed.inputs, group, np.float64, as_is)
        narrow = formula(layer, computed.inputs, group, np.float32, rounding)
        for (role, cut, value), (_, _, other) in zip(exact, narrow, strict=True):
            yield Piece(
                role=role,
                cut=cut,
                value=value,
                size=_TAIL * size_of_miss(other, value, unit),
                terms=terms + TRANSCENDENTAL,
            )


_ALL: Final = slice(None)
_Result = tuple[str, tuple[slice, ...], Any]


def _forward(
    layer: Layer, inputs: Tensors, group: tuple[int, int], dtype: Any, rounding: Rounding
) -> Iterator[_Result]:
    """Yield results by role and place."""
    image = slice(group[0], group[0] + 1)
    for head, rows, t in blocks(layer, inputs, group, dtype):
        value = weigh(layer, t, rows, rounding) @ t["value"]
        yield "dst", (image, slice(head, head + 1), rows, _ALL), value[None, None]


def _backward(
    layer: Layer, inputs: Tensors, group: tuple[int, int], dtype: Any, rounding: Rounding
) -> Iterator[_Result]:
    """Yield the gradients by role and place."""
    shapes = layer.shapes()
    image, shared = slice(group[0], group[0] + 1), slice(group[1], group[1] + 1)
    of_key, of_value = (np.zeros(shapes[role][2:], dtype) for role in ("key", "value"))
    scale = dtype(1 / math.sqrt(layer.size))
    for head, rows, t in blocks(layer, inputs, group, dtype):
        weights = weigh(layer, t, rows, rounding)
        of_weights = rounding(t["dst"] @ t["value"].T)
        mean = (weights * of_weights).sum(axis=-1, keepdims=True)
        of_scores = rounding(weights * (of_weights - mean))
        of_value += weights.T @ t["dst"]
        of_key += scale * (of_scores.T @ t["query"])
        of_query = scale * (of_scores @ t["key"])
        yield "query", (image, slice(head, head + 1), rows, _ALL), of_query[None, None]
    yield "key", (image, shared, _ALL, _ALL), of_key[None, None]
    yield "value", (image, shared, _ALL, _ALL), of_value[None, None]


def _unwritten(role: str, output: NDArray[Any]) -> Deviation:
    """Return whether there is an element that is no number, where not all are compared."""
    finite = all(bool(np.isfinite(output[cut]).all()) for cut in pieces(output))
    error = 0.0 if finite else math.nan
    return Deviation(error=error, where=role, got=error, expected=0.0)
