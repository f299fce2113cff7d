"""Memory-bound layers against the reference: every element of every result."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Any, Final

import numpy as np

from pydlbench.backends.reference import pointwise_maps as maps
from pydlbench.backends.reference import pointwise_sums as sums
from pydlbench.backends.reference.batchnorm import batchnorm, batchnorm_gradient
from pydlbench.backends.reference.evidence import Deviation, Evidence, larger, worst_of
from pydlbench.backends.reference.expected_piece import EXACT
from pydlbench.backends.reference.lrn import lrn

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping, Sequence

    from numpy.typing import NDArray

    from pydlbench.backends.reference.expected_piece import Piece
    from pydlbench.layers.pointwise import Pointwise

    Inputs = Mapping[str, NDArray[Any]]

__all__ = ["check_pointwise", "expected_pieces"]


def check_pointwise(
    layer: Pointwise,
    pass_: str,
    propagation: str,
    inputs: Inputs,
    results: Mapping[str, NDArray[Any]],
    precision: str = "fp32",
) -> dict[str, Evidence]:
    """Compare the results of a pass with the reference.

    Args:
        layer: What was computed.
        pass_: One of its passes.
        propagation: ``inference`` or ``training``; batch normalisation forward differs.
        inputs: What the kernel read, by role.
        results: What it wrote, by role; what is not given is not compared.
        precision: Storage. Below its smallest normal number results have fewer digits, so what is
            rounded is measured against that number at least. (In float16 it is 6e-5: the gradients
            of a softmax over 1000 classes are smaller.)

    Returns:
        What was found for each of ``results``.
    """
    found: dict[str, Evidence] = {}
    for piece in expected_pieces(layer, pass_, propagation, inputs):
        if piece.role not in results:
            continue
        scale = np.abs(piece.value) + piece.size
        if piece.terms != EXACT:
            stored = "fp32" if layer.in_float32(piece.role) else precision
            scale = np.maximum(scale, _smallest_normal(stored))
        worst = worst_of(results[piece.role][piece.cut], piece.value, scale, _namer(piece))
        before = found.get(piece.role)
        found[piece.role] = Evidence(
            terms=piece.terms,
            points=piece.value.size + (before.points if before else 0),
            checksums=0,
            worst=larger(worst, before.worst if before else _NOTHING),
        )
    return found


def expected_pieces(
    layer: Pointwise, pass_: str, propagation: str, inputs: Inputs
) -> Iterator[Piece]:
    """Yield what a pass should give, piece by piece, until all elements of all results are there.

    Raises:
        KeyError: An input is missing.
    """
    step = layer.op, pass_
    if step == ("batchnorm", "forward"):
        return batchnorm(layer, inputs, propagation)
    if step in _OF_INPUTS:
        return _OF_INPUTS[step](inputs)
    return _OF_LAYER[step](layer, inputs)


_OF_INPUTS: Final[Mapping[tuple[str, str], Callable[[Inputs], Iterator[Piece]]]] = {
    ("bias", "forward"): maps.bias,
    ("relu", "forward"): partial(maps.relu, pass_="forward"),
    ("relu", "backward-data"): partial(maps.relu, pass_="backward-data"),
    ("add", "forward"): maps.add,
}

_OF_LAYER: Final[Mapping[tuple[str, str], Callable[[Pointwise, Inputs], Iterator[Piece]]]] = {
    ("bias", "backward-weights"): sums.bias_gradient,
    ("lrn", "forward"): partial(lrn, pass_="forward"),
    ("lrn", "backward-data"): partial(lrn, pass_="backward-data"),
    ("batchnorm", "backward-data"): batchnorm_gradient,
    ("concat", "forward"): partial(maps.concat, pass_="forward"),
    ("concat", "backward-data"): partial(maps.concat, pass_="backward-data"),
    ("softmax-xent", "forward"): sums.cross_entropy,
    ("softmax-xent", "backward-data"): sums.softmax_gradient,
    ("dropout", "forward"): partial(maps.dropout, pass_="forward"),
    ("dropout", "backward-data"): partial(maps.dropout, pass_="backward-data"),
    ("l2", "forward"): sums.weight_norm,
    ("l2", "backward-weights"): maps.weight_decay,
    ("sgd", "forward"): maps.sgd,
    ("momentum", "forward"): maps.momentum,
}

_NOTHING = Deviation(error=0.0, where="", got=0.0, expected=0.0)


def _smallest_normal(precision: str) -> float:
    return 2.0**-14 if precision.startswith("fp16") else 2.0**-126


def _namer(piece: Piece) -> Callable[[Sequence[int]], str]:
    """Name the elements of a piece by their place in the whole tensor."""
    first = [cut.start or 0 for cut in piece.cut]

    def name(at: Sequence[int]) -> str:
        place = [start + index for start, index in zip(first, at, strict=True)]
        if len(place) == 1:
            return f"{piece.role}{place}"
        image, channel, row, column = place
        return f"{piece.role}[n={image}, c={channel}, h={row}, w={column}]"

    return name
