"""Matrix products against the reference.

All three passes are ``c = a @ b`` of views. With random row weights ``r`` the checksums of the
columns are ``r @ c = (r @ a) @ b``: one pass over each matrix.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from pydlbench.backends.verification.checksums import (
    CHECKSUM_UNIT,
    Comparison,
    checksum_weights,
    contract,
    larger,
    worst_of,
)
from pydlbench.backends.verification.inputs import smallest_normal

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from numpy.typing import NDArray

    from pydlbench.backends.verification.checksums import Computed
    from pydlbench.ops.op import Layer

_POINT_MACS = 20_000_000
_MIN_SIDE = 3
_MOST_BATCHES = 4


def check_gemm(layer: Layer, computed: Computed) -> dict[str, Comparison]:
    """Compare the result of a matrix product with the reference.

    All are (batch..., rows, columns). Where a batch has one matrix for several of another it stands
    for all of them, and the gradient of one that does is the sum over them.
    """
    ((role, output),) = computed.results.items()
    left, right = _factors(computed.pass_, computed.inputs)
    batch = layer.shapes()["dst"][:-2]
    products = _Products(
        left=left.reshape(-1, *left.shape[-2:]),
        right=right.reshape(-1, *right.shape[-2:]),
        output=output.reshape(-1, *output.shape[-2:]),
        numbers=[_numbers(one.shape[:-2], batch) for one in (left, right, output)],
    )
    least = smallest_normal(computed.precision)
    return {role: _check(products, output.shape[:-2], computed.rng, role, least)}


@dataclass(frozen=True, slots=True, kw_only=True)
class _Products:
    """Products of some matrices, those of one result added up.

    Attributes:
        left: (matrices, rows, terms).
        right: (matrices, terms, columns).
        output: (matrices, rows, columns).
        numbers: Of each product, the numbers of its left and right matrix and of its result.
    """

    left: NDArray[Any]
    right: NDArray[Any]
    output: NDArray[Any]
    numbers: Sequence[NDArray[np.intp]]


def _numbers(own: tuple[int, ...], batch: tuple[int, ...]) -> NDArray[np.intp]:
    """Return which matrix of a tensor each one of the batch means."""
    numbers = np.arange(math.prod(own)).reshape(own)
    return np.broadcast_to(numbers, batch).ravel()


def _check(
    products: _Products,
    batch: tuple[int, ...],
    rng: np.random.Generator,
    role: str,
    least: float,
) -> Comparison:
    left, right, output = products.left, products.right, products.output
    lefts, rights, outputs = products.numbers
    count, rows, columns = output.shape
    terms = left.shape[2] * (len(outputs) // count)
    by_row = checksum_weights(rng, rows)[:, None]
    got, got_energy = contract(output, {1: by_row}, {1: by_row**2})
    got_energy += least**2 * np.sum(by_row**2)
    summed, squared = contract(left, {1: by_row}, {1: by_row**2})
    expected, variance = np.zeros_like(got), np.zeros_like(got)
    for number, matrix in enumerate(right):
        members = np.flatnonzero(rights == number)
        factors = ({0: one[lefts[members], 0].T} for one in (summed, squared))
        for total, part in zip((expected, variance), contract(matrix, *factors), strict=True):
            np.add.at(total[:, 0], outputs[members], part)
    worst = worst_of(
        got,
        expected,
        CHECKSUM_UNIT * np.sqrt(got_energy + variance),
        lambda at: f"checksum of column {at[2]}" + (f" of matrix {at[0]}" if count > 1 else ""),
    )

    affordable = _POINT_MACS // terms
    sides = count, rows, columns
    if math.prod(sides) > affordable:
        side = max(_MIN_SIDE, math.isqrt(affordable // min(count, _MOST_BATCHES)))
        sides = min(count, _MOST_BATCHES), min(rows, side), min(columns, side)
    some = [_some(rng, size, most) for size, most in zip(output.shape, sides, strict=True)]
    # The products of each chosen result.
    members = np.argsort(outputs, kind="stable").reshape(count, -1)[some[0]]
    a = left[lefts[members][..., None], some[1]].astype(np.float64)
    b = right[rights[members][..., None], :, some[2]].astype(np.float64).swapaxes(-1, -2)
    reference = (a @ b).sum(axis=1)

    def name(at: Sequence[int]) -> str:
        number, *place = (int(chosen[i]) for chosen, i in zip(some, at, strict=True))
        matrix = [int(one) for one in np.unravel_index(number, batch)] if count > 1 else []
        return f"{role}{[*matrix, *place]}"

    scale = np.maximum(np.abs(reference) + np.sqrt((a**2 @ b**2).sum(axis=1)), least)
    point = worst_of(output[np.ix_(*some)], reference, scale, name)
    return Comparison(
        terms=terms, points=reference.size, checksums=got.size, worst=larger(point, worst)
    )


def _factors(pass_: str, inputs: Mapping[str, NDArray[Any]]) -> tuple[NDArray[Any], NDArray[Any]]:
    """Return views of the left and the right matrix of the product."""
    if pass_ == "forward":
        return inputs["src"], inputs["weights"]
    if pass_ == "backward-data":
        return inputs["dst"], inputs["weights"].swapaxes(-1, -2)
    return inputs["src"].swapaxes(-1, -2), inputs["dst"]


def _some(rng: np.random.Generator, count: int, most: int) -> NDArray[np.intp]:
    """Choose up to ``most`` indices, the first and the last always among them, where tails are."""
    if count <= most:
        return np.arange(count)
    inner = rng.choice(count - 2, max(0, most - 2), replace=False) + 1
    return np.sort(np.concatenate([inner, [0, count - 1]])).astype(np.intp)
