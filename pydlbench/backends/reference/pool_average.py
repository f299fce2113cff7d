"""Average pooling against the reference: a convolution that does not mix channels."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from pydlbench.backends.reference.evidence import (
    CHECKSUM_UNIT,
    Evidence,
    checksum_weights,
    larger,
    worst_of,
)
from pydlbench.backends.reference.pixels import choose_pixels
from pydlbench.backends.reference.shapes import RESULT_ROLE
from pydlbench.backends.reference.sketch import contract
from pydlbench.backends.reference.taps import overlap, window_axes

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from pydlbench.layers.pool import Pool2d

__all__ = ["check_average_pool"]

#: Source elements gathered for single points.
_PATCH_ELEMENTS = 1_000_000


def check_average_pool(
    layer: Pool2d,
    pass_: str,
    source: NDArray[Any],
    output: NDArray[Any],
    rng: np.random.Generator,
) -> Evidence:
    """Compare the result of average pooling, forward or backward, with the reference.

    Args:
        layer: The pooling.
        pass_: ``forward`` or ``backward-data``.
        source: What the pass reads, NCHW: the images, or the gradient of the result.
        output: What the kernel wrote, NCHW.
        rng: Chooses weights and points.
    """
    height, width = window_axes(layer, pass_)
    by_row = checksum_weights(rng, height.outputs)
    by_column = checksum_weights(rng, width.outputs)
    got, got_energy = contract(
        output,
        {2: by_row[:, None], 3: by_column[:, None]},
        {2: by_row[:, None] ** 2, 3: by_column[:, None] ** 2},
    )
    expected, squares = contract(
        source,
        {
            2: height.spread(by_row).sum(axis=1, keepdims=True),
            3: width.spread(by_column).sum(axis=1, keepdims=True),
        },
        {2: np.ones((source.shape[2], 1)), 3: np.ones((source.shape[3], 1))},
    )
    mean_square = squares / (source.shape[2] * source.shape[3])
    variance = mean_square * height.energy(by_row).sum() * width.energy(by_column).sum()
    checksum = worst_of(
        got,
        expected,
        CHECKSUM_UNIT * np.sqrt(got_energy + variance),
        lambda at: f"checksum of channel {at[1]} of image {at[0]}",
    )
    taps = height.source.shape[1] * width.source.shape[1]
    count = max(1, _PATCH_ELEMENTS // (layer.channels * taps))
    pixels = choose_pixels(rng, layer.batch, height.outputs, width.outputs, count)
    patches = pixels.patches(source, height, width)
    reference = patches.sum(axis=(2, 3))
    point = worst_of(
        pixels.values(output),
        reference,
        np.abs(reference) + np.sqrt(np.square(patches).sum(axis=(2, 3))),
        lambda at: pixels.name(RESULT_ROLE[pass_], at[0], at[1]),
    )
    terms = taps if pass_ == "forward" else overlap(layer)
    return Evidence(
        terms=terms, points=reference.size, checksums=got.size, worst=larger(point, checksum)
    )
