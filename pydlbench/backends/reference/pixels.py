"""Output pixels that are recomputed exactly, and the patches of the source that they see."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from pydlbench.backends.reference.taps import TapAxis

__all__ = ["Pixels", "choose_pixels"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Pixels:
    """Positions of an output, all channels of which are compared.

    Attributes:
        image: Index of the image, per pixel.
        row: Row of the output.
        column: Column of the output.
    """

    image: NDArray[np.intp]
    row: NDArray[np.intp]
    column: NDArray[np.intp]

    def values(self, output: NDArray[Any]) -> NDArray[Any]:
        """Return the (pixels, channels) values of an NCHW tensor."""
        picked: NDArray[Any] = output[self.image, :, self.row, self.column]
        return picked

    def patches(self, source: NDArray[Any], height: TapAxis, width: TapAxis) -> NDArray[np.float64]:
        """Return the (pixels, channels, taps, taps) window of each pixel, zero on padding."""
        rows, columns = height.source[self.row], width.source[self.column]
        picked = source[self.image[:, None, None], :, rows[:, :, None], columns[:, None, :]]
        factor = height.factor[self.row][:, :, None] * width.factor[self.column][:, None, :]
        result: NDArray[np.float64] = (picked * factor[..., None]).transpose(0, 3, 1, 2)
        return result

    def name(self, role: str, pixel: int, channel: int) -> str:
        """Name an element: ``dst[n=0, c=17, h=3, w=5]``."""
        at = self.image[pixel], self.row[pixel], self.column[pixel]
        return f"{role}[n={at[0]}, c={channel}, h={at[1]}, w={at[2]}]"


def choose_pixels(
    rng: np.random.Generator, images: int, height: int, width: int, count: int
) -> Pixels:
    """Choose ``count`` pixels: all if there are no more, else corners first, then random ones."""
    total = images * height * width
    if count >= total:
        flat = np.arange(total)
    else:
        # Padding and tails of blocked loops go wrong at the borders first.
        corners = [
            (n * height + h) * width + w
            for n in {0, images - 1}
            for h in {0, height - 1}
            for w in {0, width - 1}
        ]
        flat = rng.integers(0, total, count)
        kept = min(len(corners), count // 2)
        flat[:kept] = corners[:kept]
        flat = np.unique(flat)
    image, row, column = np.unravel_index(flat, (images, height, width))
    return Pixels(image=image, row=row, column=column)
