"""How frameworks lay out plain tensors of images and filters."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

if TYPE_CHECKING:
    from numpy.typing import NDArray

    Array = NDArray[Any]

# What images and filters are called whose sides lie between, or before, the other axes.
_LAYOUTS = ("nchw", "nhwc", "oihw", "hwio")


def _order(layout: str, dimensions: int) -> tuple[int, ...]:
    """Return where the axes of a plain tensor go: images are plain as N, C and the sides."""
    assert layout in _LAYOUTS, layout
    sides = range(2, dimensions)
    if layout == "nhwc":
        return 0, *sides, 1
    return (*sides, 1, 0) if layout == "hwio" else (0, 1, *sides)


def axes_of(word: str, sides: int, outer: str = "nc") -> str:
    """Return a layout of images, or of filters, with any number of sides: ``ndhwc``, ``ohwi``.

    Args:
        word: ``nchw`` or ``nhwc``.
        sides: how many there are, one to three.
        outer: letters of the first two axes of the plain layout.
    """
    along = "dhw"[-sides:]
    return outer + along if word == "nchw" else outer[0] + along + outer[1]


def turned_to(array: Array, layout: str) -> Array:
    """Return a plain tensor of images or filters in a layout; a view."""
    return array.transpose(_order(layout, array.ndim))


def arranged(array: Array, layout: str) -> Array:
    """Return a plain tensor of images or filters in a layout, contiguous."""
    return np.ascontiguousarray(turned_to(array, layout))


def arranged_shape(shape: tuple[int, ...], layout: str) -> tuple[int, ...]:
    """Return the shape of a plain tensor of images or filters once it is in a layout."""
    return tuple(shape[axis] for axis in _order(layout, len(shape)))


def plain(array: Array, layout: str) -> Array:
    """Return a tensor that lies in a layout as a plain one; a view."""
    return array.transpose(np.argsort(_order(layout, array.ndim)))
