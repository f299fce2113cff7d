"""Images in another size against the definition: every element of every result."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any, Final

import numpy as np

from pydlbench.backends.verification.arithmetic import EXACT, F64
from pydlbench.backends.verification.checksums import Comparison, Piece
from pydlbench.backends.verification.pointwise import compare
from pydlbench.ops.resize import pairs, taps

if TYPE_CHECKING:
    from collections.abc import Iterator

    from numpy.typing import NDArray

    from pydlbench.backends.verification.checksums import Computed
    from pydlbench.ops.op import Layer

#: Elements of some channels of an image that are compared at a time.
_PIECE: Final = 1 << 18


def check_resize(layer: Layer, computed: Computed) -> dict[str, Comparison]:
    """Compare all elements: weighted sums of pixels, or one of them, exact.

    Where sizes are no powers of two times each other, libraries round the positions of centres, in
    float32, too. A weight is then off by up to three units of roundoff for each pixel of a side,
    whatever its own size; the tolerance has ten units for sums of four terms.
    """
    (role,) = computed.results
    (source,) = computed.inputs.values()
    axes = [_Axis(layer.mode, *side, computed.pass_) for side in pairs(layer)]
    terms = math.prod(axis.source.shape[1] for axis in axes)
    if layer.mode == "nearest" and computed.pass_ == "forward":
        terms = EXACT
    uncertain = sum(size for size, out in pairs(layer) if not _is_binary(size, out)) / 4
    if layer.mode == "nearest":
        uncertain = 0.0
    plane = max(math.prod(sizes) for sizes in zip(*pairs(layer), strict=True))
    step = max(1, _PIECE // plane)

    def expected() -> Iterator[Piece]:
        for image in range(layer.batch):
            for first in range(0, layer.channels, step):
                cut = (slice(image, image + 1), slice(first, min(first + step, layer.channels)))
                given = source[cut].astype(np.float64)
                value, square = given, np.square(given)
                pixels = square
                for number, axis in enumerate(axes, start=2):
                    value = axis.apply(value, number, axis.factor)
                    square = axis.apply(square, number, np.square(axis.factor))
                    if uncertain:
                        pixels = axis.apply(pixels, number, np.sign(axis.factor))
                size = np.sqrt(square + uncertain**2 * pixels) if uncertain else np.sqrt(square)
                whole = (slice(None),) * layer.sides
                yield Piece(role=role, cut=cut + whole, value=value, size=size, terms=terms)

    return compare(layer, computed, expected())


def _is_binary(size: int, out: int) -> bool:
    """Whether the positions of centres are numbers that float32 holds."""
    parts = out // math.gcd(size, out)
    return parts & (parts - 1) == 0


class _Axis:
    """Which positions of one side a pass reads, and what they are multiplied with.

    Attributes:
        source: (outputs, taps) positions.
        factor: (outputs, taps) weights; zero where there are fewer taps.

    Args:
        mode: of the layer.
        size: of its source.
        out: of its result.
        pass_: backward, its result is what is read.
    """

    def __init__(self, mode: str, size: int, out: int, pass_: str) -> None:
        table = np.array(taps(mode, size, out))
        source, second = table[:, :2].astype(np.intp), table[:, 2]
        factor = np.stack([1 - second, second], axis=1)
        if not second.any():
            source, factor = source[:, :1], factor[:, :1]
        if pass_ == "backward-data":
            source, factor = _turned(source, factor, size)
        self.source: NDArray[np.intp] = source
        self.factor: F64 = factor

    def apply(self, images: NDArray[Any], number: int, factor: F64) -> F64:
        """Return the sums over the taps, along one axis of images."""
        along = [-1 if axis == number else 1 for axis in range(images.ndim)]
        shape = list(images.shape)
        shape[number] = len(self.source)
        total = np.zeros(shape)
        for tap in range(self.source.shape[1]):
            picked = np.take(images, self.source[:, tap], axis=number)
            total += picked * factor[:, tap].reshape(along)
        return total


def _turned(source: NDArray[np.intp], factor: F64, size: int) -> tuple[NDArray[np.intp], F64]:
    """Return the tables of the gradient: for each position read, the outputs that it is in."""
    outputs, own = np.nonzero(factor)
    places = source[outputs, own]
    order = np.argsort(places, kind="stable")
    counts = np.bincount(places, minlength=size)
    # The how manieth of its position each one is.
    rank = np.arange(len(order)) - np.repeat(np.cumsum(counts) - counts, counts)
    shape = size, int(counts.max())
    turned, weights = np.zeros(shape, dtype=np.intp), np.zeros(shape)
    at = places[order], rank
    turned[at], weights[at] = outputs[order], factor[outputs, own][order]
    return turned, weights
