"""Check scaled dot-product attention, some rows of its scores at a time."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import replace
from types import SimpleNamespace
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from pydlbench.ops.op import Layer
from pydlbench.verification.arithmetic import Rounded
from pydlbench.verification.checksums import (
    Deviation,
    ElementComparison,
    KernelRun,
    Piece,
    pieces,
    worse,
)
from pydlbench.verification.elements import TAIL_FACTOR, compare, forward, gradient, make_piece
from pydlbench.verification.inputs import query_blocks
from pydlbench.verification.tensors import choose

#: Errors may be this many times as large as elsewhere: kernels round scores, weights, their
#: gradients, and the result that the backward pass reads, to the storage format.
_TAIL_FACTOR: Final = 1.5 * TAIL_FACTOR
#: Maximum number of multiply-adds of the reference; of a larger layer only some heads are compared.
_COMPARED_MACS: Final = 1_000_000_000


def check_attention(layer: Layer, run: KernelRun) -> dict[str, ElementComparison]:
    """Compare the results of a pass with the reference.

    The heads of queries that share keys and values are compared together. Of a large layer only
    some such groups are compared, always with the first and the last; the other elements are only
    checked to be finite.
    """
    count = layer.batch * layer.kv_heads
    groups = choose(run.rng, count, _COMPARED_MACS * count // layer.flops(run.pass_))
    compared = compare(layer, run, _expected(layer, run, groups))
    if len(groups) == count:
        return compared
    return {
        role: replace(found, worst=worse(found.worst, _unwritten(role, run.results[role])))
        for role, found in compared.items()
    }


def _expected(layer: Layer, run: KernelRun, groups: NDArray[np.intp]) -> Iterator[Piece]:
    formula = forward if run.pass_ == "forward" else gradient
    for image, shared in zip(*np.unravel_index(groups, (layer.batch, layer.kv_heads)), strict=True):
        totals: dict[str, Rounded] = {}
        for head, rows, t in query_blocks(layer, run.inputs, int(image), int(shared)):
            tensors = {role: Rounded(array) for role, array in t.items()}
            results = formula(layer, SimpleNamespace(**tensors, first=rows.start))
            for role, numbers in results.items():
                if role in ("dst", "query"):
                    yield make_piece(
                        role, (*_at(image, head), rows, slice(None)), numbers, _TAIL_FACTOR
                    )
                else:
                    totals[role] = totals[role] + numbers if role in totals else numbers
        for role, numbers in totals.items():
            yield make_piece(
                role, (*_at(image, shared), slice(None), slice(None)), numbers, _TAIL_FACTOR
            )


def _at(*places: int) -> tuple[slice, ...]:
    return tuple(slice(int(place), int(place) + 1) for place in places)


def _unwritten(role: str, output: NDArray[Any]) -> Deviation:
    """Return an error of NaN if any element is not finite, else of zero."""
    finite = all(bool(np.isfinite(output[cut]).all()) for cut in pieces(output))
    error = 0.0 if finite else math.nan
    return Deviation(error=error, where=role, got=error, expected=0.0)
