"""A recipe: which function of TensorFlow computes a pass, on operands in which layout."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from numpy.typing import NDArray

__all__ = ["FORMATS", "Recipe", "as_they_are", "from_plain", "spatial", "to_plain"]

#: Layouts of images, in the order of preference: CPUs often have the first one only.
FORMATS = ("NHWC", "NCHW")


def as_they_are(tensors: Sequence[Any]) -> Sequence[Any]:
    """Return the operands themselves: nothing has to be computed from them beforehand."""
    return tensors


@dataclass(frozen=True, slots=True, kw_only=True)
class Recipe:
    """How TensorFlow computes one pass of one layer.

    Attributes:
        algorithm: TensorFlow's name of the operator.
        layout: layouts of the operands, for the reader.
        variant: ``nhwc``, ``nchw``, ``plain`` or ``transposed``.
        function: what is traced; takes the operands as tensors, so that none becomes a constant
            that could be folded away.
        operands: makes arrays in the function's layouts from the plain inputs, by role.
        result: role of what the function returns.
        plain: brings the function's result back to the plain layout.
        complete: computes further operands, on the device and outside the timed function.
        detail: what is special about the problem, for refusals: ``with 2 groups``.
        sums: what it sums in: ``products`` as the arithmetic says, ``float32``, or ``stored``: in
            the storage type.
    """

    algorithm: str
    layout: str
    variant: str
    function: Callable[..., Any]
    operands: Callable[[Mapping[str, NDArray[Any]]], tuple[NDArray[Any], ...]]
    result: str
    plain: Callable[[NDArray[Any]], NDArray[Any]]
    complete: Callable[[Sequence[Any]], Sequence[Any]] = as_they_are
    detail: str = ""
    sums: str = "products"


def from_plain(image: NDArray[Any], data_format: str) -> NDArray[Any]:
    """Return an NCHW image in TensorFlow's format, contiguous."""
    moved = image.transpose(0, 2, 3, 1) if data_format == "NHWC" else image
    return np.ascontiguousarray(moved)


def to_plain(image: NDArray[Any], data_format: str) -> NDArray[Any]:
    """Return an image of TensorFlow's as NCHW."""
    return image.transpose(0, 3, 1, 2) if data_format == "NHWC" else image


def spatial(data_format: str, height: int, width: int) -> list[int]:
    """Return what TensorFlow wants per dimension: 1 for images and channels."""
    return [1, height, width, 1] if data_format == "NHWC" else [1, 1, height, width]
