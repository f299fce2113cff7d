"""Recurrent layers against float64: every element of every result."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import numpy as np

from pydlbench.backends.verification.cells import backward, forward
from pydlbench.backends.verification.checksums import TRANSCENDENTAL, Comparison, Piece
from pydlbench.backends.verification.pointwise import compare

if TYPE_CHECKING:
    from pydlbench.backends.verification.checksums import Computed
    from pydlbench.layers.recurrent import Recurrent

__all__ = ["check_recurrent"]

#: How many roots of a sum of squared roundings its largest errors reach. One rounding is off by at
#: most a unit and by 0.43 in the root mean square, so that this is 4.7 standard deviations.
_TAIL: Final = 2.0


def check_recurrent(layer: Recurrent, computed: Computed) -> dict[str, Comparison]:
    """Compare all elements; the tolerance is that of the longest sum, in each of the steps."""
    terms = layer.in_size + layer.hidden + 2
    if computed.pass_ == "forward":
        found = {"dst": forward(layer, computed.inputs)[0]}
    else:
        found = backward(layer, computed.inputs)
        terms = max(terms, layer.gates * layer.hidden, layer.steps * layer.batch)
    expected = (
        Piece(
            role=role,
            cut=tuple(slice(None) for _ in one.value.shape),
            value=one.value,
            size=_TAIL * np.sqrt(one.square),
            terms=terms + TRANSCENDENTAL,
        )
        for role, one in found.items()
    )
    return compare(layer, computed, expected)
