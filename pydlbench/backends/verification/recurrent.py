"""Recurrent layers against the reference, forward and backward.

Each step computes with the errors of all steps before. They are carried along; sequences may be as
long as they like: what a gate forgets is forgotten of the errors, too.
"""

from __future__ import annotations

from types import SimpleNamespace
from typing import TYPE_CHECKING, Any, Final

from pydlbench.backends.verification.arithmetic import Rounded
from pydlbench.backends.verification.checksums import Comparison, Piece
from pydlbench.backends.verification.pointwise import compare, forward, gradient

if TYPE_CHECKING:
    from collections.abc import Mapping

    from numpy.typing import NDArray

    from pydlbench.backends.verification.checksums import Computed
    from pydlbench.ops.op import Layer

#: How much larger than elsewhere errors may be: of thousands of roundings in a row the largest are
#: four standard deviations off.
_TAIL: Final = 2.5


def check_recurrent(layer: Layer, computed: Computed) -> dict[str, Comparison]:
    """Compare all elements; the tolerance is that of the longest sum, in each of the steps."""
    expected = (
        Piece(
            role=role,
            cut=(slice(None),) * numbers.value.ndim,
            value=numbers.value,
            size=_TAIL * numbers.size,
            terms=numbers.terms,
        )
        for role, numbers in results(layer, computed.pass_, computed.inputs).items()
    )
    return compare(layer, computed, expected)


def results(layer: Layer, pass_: str, inputs: Mapping[str, NDArray[Any]]) -> dict[str, Rounded]:
    """Return what a pass gives, by role."""
    t = SimpleNamespace(**{role: Rounded(array) for role, array in inputs.items()})
    return forward(layer, t) if pass_ == "forward" else gradient(layer, t)
