"""Matrix products against the reference.

All three passes are ``c = a @ b`` of views. With random row weights ``r`` the checksums of the
columns are ``r @ c = (r @ a) @ b``: one pass over each matrix.
"""

from __future__ import annotations

import math
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


def check_gemm(layer: Layer, computed: Computed) -> dict[str, Comparison]:  # noqa: ARG001 - the matrices say it all
    """Compare the result of a matrix product with the reference; all are (batch, rows, columns)."""
    ((role, output),) = computed.results.items()
    factors = _factors(computed.pass_, computed.inputs)
    least = smallest_normal(computed.precision)
    return {role: _check(*factors, output, computed.rng, role, least)}


def _check(
    left: NDArray[Any],
    right: NDArray[Any],
    output: NDArray[Any],
    rng: np.random.Generator,
    role: str,
    least: float,
) -> Comparison:
    batches, rows, terms = left.shape
    columns = right.shape[2]
    by_row = checksum_weights(rng, rows)[:, None]
    got, got_energy = contract(output, {1: by_row}, {1: by_row**2})
    got_energy += least**2 * np.sum(by_row**2)
    summed, squared = contract(left, {1: by_row}, {1: by_row**2})
    expected, variance = np.empty_like(got), np.empty_like(got)
    for batch in range(batches):
        expected[batch], variance[batch] = contract(
            right[batch], {0: summed[batch].T}, {0: squared[batch].T}
        )
    worst = worst_of(
        got,
        expected,
        CHECKSUM_UNIT * np.sqrt(got_energy + variance),
        lambda at: f"checksum of column {at[2]}" + (f" of matrix {at[0]}" if batches > 1 else ""),
    )

    affordable = _POINT_MACS // terms
    sides = batches, rows, columns
    if math.prod(sides) > affordable:
        side = max(_MIN_SIDE, math.isqrt(affordable // min(batches, _MOST_BATCHES)))
        sides = min(batches, _MOST_BATCHES), min(rows, side), min(columns, side)
    some = [_some(rng, count, most) for count, most in zip(output.shape, sides, strict=True)]
    a = left[some[0][:, None], some[1]].astype(np.float64)
    b = right[some[0][:, None], :, some[2]].astype(np.float64).swapaxes(1, 2)
    reference = a @ b

    def name(at: Sequence[int]) -> str:
        place = [int(chosen[i]) for chosen, i in zip(some, at, strict=True)]
        return f"{role}{place[1:] if batches == 1 else place}"

    scale = np.maximum(np.abs(reference) + np.sqrt(a**2 @ b**2), least)
    found = worst_of(output[np.ix_(*some)], reference, scale, name)
    return Comparison(
        terms=terms, points=reference.size, checksums=got.size, worst=larger(found, worst)
    )


def _factors(pass_: str, inputs: Mapping[str, NDArray[Any]]) -> tuple[NDArray[Any], NDArray[Any]]:
    """Return views of the left and the right matrix of the product."""
    if pass_ == "forward":
        return inputs["src"], inputs["weights"]
    if pass_ == "backward-data":
        return inputs["dst"], inputs["weights"].swapaxes(1, 2)
    return inputs["src"].swapaxes(1, 2), inputs["dst"]


def _some(rng: np.random.Generator, count: int, most: int) -> NDArray[np.intp]:
    """Choose up to ``most`` indices, the first and the last always among them, where tails are."""
    if count <= most:
        return np.arange(count)
    inner = rng.choice(count - 2, max(0, most - 2), replace=False) + 1
    return np.sort(np.concatenate([inner, [0, count - 1]])).astype(np.intp)
