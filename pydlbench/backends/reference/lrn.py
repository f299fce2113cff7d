"""Local response normalisation against the definition."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from pydlbench.backends.reference.expected_piece import (
    F64,
    TRANSCENDENTAL,
    Piece,
    whole_columns,
)

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from numpy.typing import NDArray

    from pydlbench.layers.pointwise import Pointwise

__all__ = ["lrn"]


def lrn(layer: Pointwise, inputs: Mapping[str, NDArray[Any]], pass_: str) -> Iterator[Piece]:
    """Images over a power of their neighbourhood, and the gradient.

    Forward is one term, whose power hides a sum over the neighbourhood. Backward is that of the
    gradient and one of each neighbour.
    """
    terms = layer.local_size + TRANSCENDENTAL
    for cut in whole_columns(inputs["src"].shape):
        source = inputs["src"][cut].astype(np.float64)
        scale = layer.alpha / layer.local_size
        base = layer.k + scale * _neighbours(source**2, layer.local_size)
        power = base**-layer.beta
        if pass_ == "forward":
            value = source * power
            yield Piece(role="dst", cut=cut, value=value, size=np.abs(value), terms=terms)
            continue
        gradient = inputs["dst"][cut].astype(np.float64)
        ratio = gradient * source * power / base
        factor = 2 * layer.beta * scale * source
        size = np.hypot(gradient * power, factor * np.sqrt(_neighbours(ratio**2, layer.local_size)))
        value = gradient * power - factor * _neighbours(ratio, layer.local_size)
        yield Piece(role="src", cut=cut, value=value, size=size, terms=terms)


def _neighbours(images: F64, count: int) -> F64:
    """Sum over ``count`` channels around each one; there is nothing beyond the first and last."""
    channels = images.shape[1]
    half = count // 2
    result = images.copy()
    for distance in range(1, min(half, channels - 1) + 1):
        result[:, distance:] += images[:, :-distance]
        result[:, :-distance] += images[:, distance:]
    return result
