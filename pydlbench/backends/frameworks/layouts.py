"""How frameworks lay out plain tensors: images, filters, and the matrices of products."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from pydlbench.ops.op import Layer

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


def arranged(array: Array, layout: str) -> Array:
    """Return a plain tensor of images or filters in a layout, contiguous."""
    return np.ascontiguousarray(array.transpose(_order(layout, array.ndim)))


def arranged_shape(shape: tuple[int, ...], layout: str) -> tuple[int, ...]:
    """Return the shape of a plain tensor of images or filters once it is in a layout."""
    return tuple(shape[axis] for axis in _order(layout, len(shape)))


def plain(array: Array, layout: str) -> Array:
    """Return a tensor that lies in a layout as a plain one; a view."""
    return array.transpose(np.argsort(_order(layout, array.ndim)))


def arranged_matrices(layer: Layer, role: str, array: Array, *, transposed: bool) -> Array:
    """Return a tensor of a product, contiguous, as frameworks want it.

    A product alone is a matter of matrices, without the dimension that counts products.

    Args:
        layer: the product.
        role: of the tensor.
        array: plain, ``(batch_count, rows, columns)``.
        transposed: whether weights are stored with their columns as rows.
    """
    array = array.swapaxes(1, 2) if transposed and role == "weights" else array
    return np.ascontiguousarray(array[0] if layer.batch_count == 1 else array)


def plain_matrices(layer: Layer, role: str, array: Array, *, transposed: bool) -> Array:
    """Return what :func:`arranged_matrices` made as a plain tensor; a view."""
    array = array[None] if layer.batch_count == 1 else array
    return array.swapaxes(1, 2) if transposed and role == "weights" else array


def layout_of_images(layer: Layer, pass_: str, word: str) -> str:
    """Return the layouts of the images of a pass in words: ``src nhwc, src2 nhwc, dst nhwc``."""
    roles = dict.fromkeys((*layer.reads(pass_), *layer.writes(pass_)))
    images = [role for role in roles if role.startswith(("src", "dst"))]
    images.sort(key=lambda role: (role == "dst", int(role[3:] or 1)))
    return ", ".join(f"{role} {word}" for role in images)
