"""Layers whose results depend on a few elements each: biases, activations, copies, updates."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from pydlbench.backends.reference.dropout_mask import kept_elements
from pydlbench.backends.reference.expected_piece import EXACT, F64, Piece, per_channel
from pydlbench.backends.reference.sketch import pieces

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from numpy.typing import NDArray

    from pydlbench.layers.pointwise import Pointwise

    Inputs = Mapping[str, NDArray[Any]]

__all__ = ["add", "bias", "concat", "dropout", "momentum", "relu", "sgd", "weight_decay"]


def bias(inputs: Inputs) -> Iterator[Piece]:
    """``src + bias[c]``: two terms."""
    for cut in pieces(inputs["src"]):
        terms = _exact(inputs["src"][cut]), per_channel(inputs["bias"], cut[1])
        yield Piece(role="dst", cut=cut, value=terms[0] + terms[1], size=np.hypot(*terms), terms=2)


def relu(inputs: Inputs, pass_: str) -> Iterator[Piece]:
    """``max(src, 0)``, and the gradient where the source is positive: exact."""
    for cut in pieces(inputs["src"]):
        source = inputs["src"][cut]
        given = source if pass_ == "forward" else inputs["dst"][cut]
        value = np.where(source > 0, given, given.dtype.type(0))
        role = "dst" if pass_ == "forward" else "src"
        yield Piece(role=role, cut=cut, value=value, size=np.abs(value), terms=EXACT)


def add(inputs: Inputs) -> Iterator[Piece]:
    """``src + src2``: two terms."""
    for cut in pieces(inputs["src"]):
        terms = _exact(inputs["src"][cut]), _exact(inputs["src2"][cut])
        yield Piece(role="dst", cut=cut, value=terms[0] + terms[1], size=np.hypot(*terms), terms=2)


def concat(layer: Pointwise, inputs: Inputs, pass_: str) -> Iterator[Piece]:
    """Images behind one another, or taken apart: exact."""
    first = 0
    for role in layer.reads("forward"):
        joined = slice(first, first + layer.dims(role)[1])
        first = joined.stop
        given = inputs[role] if pass_ == "forward" else inputs["dst"][:, joined]
        for cut in pieces(given):
            value = given[cut]
            to = cut
            if pass_ == "forward":
                channels = slice(cut[1].start + joined.start, cut[1].stop + joined.start)
                to = cut[0], channels, *cut[2:]
            yield Piece(
                role="dst" if pass_ == "forward" else role,
                cut=to,
                value=value,
                size=np.abs(value),
                terms=EXACT,
            )


def dropout(layer: Pointwise, inputs: Inputs, pass_: str) -> Iterator[Piece]:
    """``src / keep`` or zero, and the same of the gradient: one term."""
    given, role = (inputs["src"], "dst") if pass_ == "forward" else (inputs["dst"], "src")
    for cut in pieces(given):
        kept = kept_elements(layer.dims("src"), cut, layer.keep)
        value = np.where(kept, _exact(given[cut]) / layer.keep, 0.0)
        yield Piece(role=role, cut=cut, value=value, size=np.abs(value), terms=1)


def weight_decay(layer: Pointwise, inputs: Inputs) -> Iterator[Piece]:
    """``gradient + decay * weights``: two terms."""
    for cut in pieces(inputs["weights"]):
        terms = _exact(inputs["gradient"][cut]), layer.decay * _exact(inputs["weights"][cut])
        value = terms[0] + terms[1]
        yield Piece(role="gradient", cut=cut, value=value, size=np.hypot(*terms), terms=2)


def sgd(layer: Pointwise, inputs: Inputs) -> Iterator[Piece]:
    """``weights - rate * gradient``: two terms."""
    for cut in pieces(inputs["weights"]):
        terms = _exact(inputs["weights"][cut]), -layer.rate * _exact(inputs["gradient"][cut])
        value = terms[0] + terms[1]
        yield Piece(role="weights", cut=cut, value=value, size=np.hypot(*terms), terms=2)


def momentum(layer: Pointwise, inputs: Inputs) -> Iterator[Piece]:
    """``mu * velocity + gradient`` (two terms), of which ``rate`` parts go off the weights."""
    for cut in pieces(inputs["weights"]):
        terms = layer.mu * _exact(inputs["velocity"][cut]), _exact(inputs["gradient"][cut])
        velocity, size = terms[0] + terms[1], np.hypot(*terms)
        weights = _exact(inputs["weights"][cut])
        yield Piece(role="velocity", cut=cut, value=velocity, size=size, terms=2)
        yield Piece(
            role="weights",
            cut=cut,
            value=weights - layer.rate * velocity,
            size=np.hypot(weights, layer.rate * size),
            terms=3,
        )


def _exact(values: NDArray[Any]) -> F64:
    return values.astype(np.float64)
