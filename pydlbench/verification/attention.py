"""Scaled dot-product attention against the table, some rows of its scores at a time."""

from __future__ import annotations

import math
from dataclasses import replace
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any, Final

import numpy as np

from pydlbench.verification.arithmetic import Rounded
from pydlbench.verification.checksums import (
    Comparison,
    Computed,
    Deviation,
    larger,
    pieces,
)
from pydlbench.verification.elements import TAIL, compare, forward, gradient, piece
from pydlbench.verification.inputs import query_blocks
from pydlbench.verification.tensors import choose

if TYPE_CHECKING:
    from collections.abc import Iterator

    from numpy.typing import NDArray

    from pydlbench.ops.op import Layer
    from pydlbench.verification.checksums import Piece

#: How much larger than elsewhere errors may be: kernels round scores, weights and gradients of both
#: to the storage format, and the result that they read again.
_TAIL: Final = 1.5 * TAIL
#: Multiply-adds that are spent; with more, only some heads are compared.
_MULTIPLY_ADDS: Final = 1_000_000_000


def check_attention(layer: Layer, computed: Computed) -> dict[str, Comparison]:
    """Compare the results of a pass with the reference.

    Heads of queries that share keys and values are compared together: all of them, or some, the
    first and the last among them, where these are many; then all elements have to be numbers.
    """
    count = layer.batch * layer.kv_heads
    groups = choose(computed.rng, count, _MULTIPLY_ADDS * count // layer.flops(computed.pass_))
    compared = compare(layer, computed, _expected(layer, computed, groups))
    if len(groups) == count:
        return compared
    return {
        role: replace(each, worst=larger(each.worst, _unwritten(role, computed.results[role])))
        for role, each in compared.items()
    }


def _expected(layer: Layer, computed: Computed, groups: NDArray[np.intp]) -> Iterator[Piece]:
    formula = forward if computed.pass_ == "forward" else gradient
    for image, shared in zip(*np.unravel_index(groups, (layer.batch, layer.kv_heads)), strict=True):
        totals: dict[str, Rounded] = {}
        for head, rows, t in query_blocks(layer, computed.inputs, int(image), int(shared)):
            tensors = {role: Rounded(array) for role, array in t.items()}
            results = formula(layer, SimpleNamespace(**tensors, first=rows.start))
            for role, numbers in results.items():
                if role in ("dst", "query"):
                    yield piece(role, (*_at(image, head), rows, slice(None)), numbers, _TAIL)
                else:
                    totals[role] = totals[role] + numbers if role in totals else numbers
        for role, numbers in totals.items():
            yield piece(role, (*_at(image, shared), slice(None), slice(None)), numbers, _TAIL)


def _at(*places: int) -> tuple[slice, ...]:
    return tuple(slice(int(place), int(place) + 1) for place in places)


def _unwritten(role: str, output: NDArray[Any]) -> Deviation:
    """Return whether there is an element that is no number, where not all are compared."""
    finite = all(bool(np.isfinite(output[cut]).all()) for cut in pieces(output))
    error = 0.0 if finite else math.nan
    return Deviation(error=error, where=role, got=error, expected=0.0)
