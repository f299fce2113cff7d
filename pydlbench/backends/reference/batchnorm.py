"""Batch normalisation against the definition: inference, training and the gradients."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from pydlbench.backends.reference.expected_piece import F64, TRANSCENDENTAL, Piece, per_channel
from pydlbench.backends.reference.pointwise_sums import channel_sums
from pydlbench.backends.reference.sketch import pieces

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from numpy.typing import NDArray

    from pydlbench.layers.pointwise import Pointwise

    Inputs = Mapping[str, NDArray[Any]]

__all__ = ["batchnorm", "batchnorm_gradient"]

_ALL = (slice(None),)
_SHIFTED = 4


def batchnorm(layer: Pointwise, inputs: Inputs, propagation: str) -> Iterator[Piece]:
    """Normalised images, and in training the statistics.

    A normalised element is the scaled source, the scaled mean and the bias. In training all of them
    hang on sums over a channel, so these count as its terms, and what an error of the variance
    makes of it is one more.
    """
    if propagation == "inference":
        mean, variance = (inputs[role].astype(np.float64) for role in ("mean", "variance"))
        spread = np.zeros_like(variance)
        terms = 3 + TRANSCENDENTAL
    else:
        mean, mean_size, variance, spread = _statistics(layer, inputs["src"])
        terms = _elements(layer) + TRANSCENDENTAL
        for role, value, size in (("mean", mean, mean_size), ("variance", variance, spread)):
            yield Piece(role=role, cut=_ALL, value=value, size=size, terms=terms)
        yield from _running(layer, inputs, mean, mean_size, variance, spread)
    scale = inputs["weights"].astype(np.float64) / np.sqrt(variance + layer.epsilon)
    slope = scale * spread / (variance + layer.epsilon) / 2
    for cut in pieces(inputs["src"]):
        source = inputs["src"][cut].astype(np.float64)
        centre, factor = per_channel(mean, cut[1]), per_channel(scale, cut[1])
        shift = per_channel(inputs["bias"], cut[1])
        squares = (source * factor) ** 2 + (centre * factor) ** 2 + shift**2
        squares += ((source - centre) * per_channel(slope, cut[1])) ** 2
        value = (source - centre) * factor + shift
        yield Piece(role="dst", cut=cut, value=value, size=np.sqrt(squares), terms=terms)


def batchnorm_gradient(layer: Pointwise, inputs: Inputs) -> Iterator[Piece]:
    """The gradients of bias and scale, which are sums over channels, and that of the source."""
    source, gradient = inputs["src"], inputs["dst"]
    mean = inputs["mean"].astype(np.float64)
    inverse = 1 / np.sqrt(inputs["variance"].astype(np.float64) + layer.epsilon)
    count = _elements(layer)
    terms = count + TRANSCENDENTAL
    shift, shift_squares = channel_sums(gradient)
    slope = np.zeros(layer.channels)
    slope_squares = np.zeros(layer.channels)
    for cut in pieces(source):
        given = gradient[cut].astype(np.float64)
        here = source[cut].astype(np.float64)
        slope[cut[1]] += (given * (here - per_channel(mean, cut[1]))).sum(axis=(0, 2, 3))
        slope_squares[cut[1]] += ((given * here) ** 2).sum(axis=(0, 2, 3))
    slope *= inverse
    shift_size = np.sqrt(shift_squares)
    slope_size = inverse * np.sqrt(slope_squares + mean**2 * shift_squares)
    yield Piece(role="weights", cut=_ALL, value=slope, size=slope_size, terms=terms)
    yield Piece(role="bias", cut=_ALL, value=shift, size=shift_size, terms=terms)
    scale = inputs["weights"].astype(np.float64) * inverse
    # The squared terms that are the same all over a channel, and those that grow with the source.
    constant = (shift**2 + shift_squares + (mean * inverse * slope) ** 2) / count**2
    growing = (slope**2 + slope_size**2) * inverse**2 / count**2
    for cut in pieces(source):
        given = gradient[cut].astype(np.float64)
        here = source[cut].astype(np.float64)
        distance = (here - per_channel(mean, cut[1])) * per_channel(inverse, cut[1])
        value = given - (per_channel(shift, cut[1]) + distance * per_channel(slope, cut[1])) / count
        squares = given**2 + per_channel(constant, cut[1])
        squares += here**2 * per_channel(growing, cut[1])
        factor = per_channel(scale, cut[1])
        size = np.abs(factor) * np.sqrt(squares)
        yield Piece(role="src", cut=cut, value=factor * value, size=size, terms=terms)


def _statistics(layer: Pointwise, images: NDArray[Any]) -> tuple[F64, F64, F64, F64]:
    """Return mean and biased variance of each channel, each with the size of its terms.

    Kernels sum differences from some value, by Welford's updates or to keep the digits of the
    variance. Their last few additions round numbers as large as an element, which is sqrt(M) times
    the size of the mean's own terms; counted four times, the tolerance is 12 units of an element.

    Terms of the variance are the squares of the elements and that of the mean: many kernels
    subtract one from the other.
    """
    count = _elements(layer)
    sums, squares = channel_sums(images)
    mean = sums / count
    variance, fourths = np.zeros(layer.channels), np.zeros(layer.channels)
    for cut in pieces(images):
        here = images[cut].astype(np.float64)
        variance[cut[1]] += ((here - per_channel(mean, cut[1])) ** 2).sum(axis=(0, 2, 3))
        here *= here
        fourths[cut[1]] += (here * here).sum(axis=(0, 2, 3))  # a fourth power takes far longer
    spread = np.sqrt(fourths / count**2 + mean**4)
    return mean, _SHIFTED * np.sqrt(squares) / count, variance / count, spread


def _running(
    layer: Pointwise, inputs: Inputs, mean: F64, mean_size: F64, variance: F64, spread: F64
) -> Iterator[Piece]:
    """Yield the running statistics, moved towards those of the batch."""
    count = _elements(layer)
    unbiased = count / max(1, count - 1)
    for role, value, size in (
        ("running_mean", mean, mean_size),
        ("running_variance", variance * unbiased, spread * unbiased),
    ):
        old = (1 - layer.momentum) * inputs[role].astype(np.float64)
        new = layer.momentum * value
        yield Piece(
            role=role,
            cut=_ALL,
            value=old + new,
            size=np.sqrt(old**2 + new**2 + (layer.momentum * size) ** 2),
            terms=count + TRANSCENDENTAL,
        )


def _elements(layer: Pointwise) -> int:
    """Return the elements of a channel."""
    return layer.batch * layer.height * layer.width
