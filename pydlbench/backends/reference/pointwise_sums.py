"""Layers that sum over a whole tensor: gradients of biases, weight norms, softmax and its loss."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from pydlbench.backends.reference.expected_piece import (
    TRANSCENDENTAL,
    Piece,
    whole_columns,
)
from pydlbench.backends.reference.sketch import contract, pieces

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from numpy.typing import NDArray

    from pydlbench.layers.pointwise import Pointwise

    Inputs = Mapping[str, NDArray[Any]]

__all__ = ["bias_gradient", "channel_sums", "cross_entropy", "softmax_gradient", "weight_norm"]

_ALL = (slice(None),)


def channel_sums(images: NDArray[Any]) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """Return the sum over each channel of NCHW images, and that of the squares."""
    first, second = (
        {axis: np.ones((images.shape[axis], 1)) for axis in (0, 2, 3)} for _ in range(2)
    )
    sums, squares = contract(images, first, second)
    return sums[0, :, 0, 0], squares[0, :, 0, 0]


def bias_gradient(layer: Pointwise, inputs: Inputs) -> Iterator[Piece]:
    """The sum over a channel, of as many terms as it has elements."""
    sums, squares = channel_sums(inputs["dst"])
    terms = layer.batch * layer.height * layer.width
    yield Piece(role="bias", cut=_ALL, value=sums, size=np.sqrt(squares), terms=terms)


def weight_norm(layer: Pointwise, inputs: Inputs) -> Iterator[Piece]:
    """Half the sum of all squares."""
    total = fourths = 0.0
    for cut in pieces(inputs["weights"]):
        squares = np.square(inputs["weights"][cut].astype(np.float64)) / 2
        total += float(squares.sum())
        fourths += float(np.square(squares).sum())
    yield Piece(
        role="dst",
        cut=_ALL,
        value=np.array([total]),
        size=np.sqrt([fourths]),
        terms=layer.channels,
    )


def cross_entropy(layer: Pointwise, inputs: Inputs) -> Iterator[Piece]:
    """Probabilities, each one term over a sum of all classes; and the mean over the rows.

    The loss of a row is the logarithm of a sum, less the logit of its label, both relative to the
    largest logit.
    """
    labels = inputs["labels"].astype(np.int64)
    loss = squares = 0.0
    for cut in whole_columns(inputs["src"].shape):
        logits = inputs["src"][cut].astype(np.float64)
        shifted = logits - logits.max(axis=1, keepdims=True)
        powers = np.exp(shifted)
        sums = powers.sum(axis=1, keepdims=True)
        value = powers / sums
        terms = layer.channels + TRANSCENDENTAL
        yield Piece(role="dst", cut=cut, value=value, size=value, terms=terms)
        rows = np.arange(len(shifted))
        chosen = shifted[rows, labels[cut[0]], 0, 0]
        logarithms = np.log(sums[:, 0, 0, 0])
        loss += float(np.sum(logarithms - chosen))
        squares += float(np.sum(logarithms**2 + chosen**2))
    yield Piece(
        role="loss",
        cut=_ALL,
        value=np.array([loss / layer.batch]),
        size=np.sqrt([squares]) / layer.batch,
        terms=layer.batch + layer.channels + TRANSCENDENTAL,
    )


def softmax_gradient(layer: Pointwise, inputs: Inputs) -> Iterator[Piece]:
    """The probability, less one at the label, over the batch: two terms."""
    labels = inputs["labels"].astype(np.int64)
    for cut in whole_columns(inputs["dst"].shape):
        probabilities = inputs["dst"][cut].astype(np.float64)
        chosen = np.zeros_like(probabilities)
        chosen[np.arange(len(chosen)), labels[cut[0]]] = 1
        value = (probabilities - chosen) / layer.batch
        size = np.hypot(probabilities, chosen) / layer.batch
        yield Piece(role="src", cut=cut, value=value, size=size, terms=2)
