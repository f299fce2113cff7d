"""Shapes of a layer's tensors in plain layouts, by role."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from pydlbench.errors import UsageError
from pydlbench.layers.conv import Conv2d
from pydlbench.layers.gemm import Gemm
from pydlbench.layers.pointwise import Pointwise
from pydlbench.layers.pool import Pool2d

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from pydlbench.layers.layer import Layer

__all__ = ["RESULT_ROLE", "check_shape", "tensor_shapes"]

#: The role of the tensor that each pass writes; gradients go by the name of their tensor.
RESULT_ROLE = {"forward": "dst", "backward-data": "src", "backward-weights": "weights"}


def tensor_shapes(layer: Layer) -> dict[str, tuple[int, ...]]:
    """Return the shape of each tensor by role (``src``, ``weights``, ``dst``).

    Images are NCHW, convolution weights ``(out_channels, in_channels / groups, kernel_height,
    kernel_width)``, and matrices carry their batch in front: ``(batch_count, rows, columns)``.
    Those of memory-bound layers are all that any of the passes reads or writes.
    """
    if isinstance(layer, Pointwise):
        return {
            role: layer.dims(role)
            for pass_ in layer.passes
            for propagation in ("inference", "training")
            for role in (*layer.reads(pass_, propagation), *layer.writes(pass_, propagation))
        }
    if isinstance(layer, Gemm):
        return {
            "src": (layer.batch_count, layer.m, layer.k),
            "weights": (layer.batch_count, layer.k, layer.n),
            "dst": (layer.batch_count, layer.m, layer.n),
        }
    if isinstance(layer, Pool2d):
        return {
            "src": (layer.batch, layer.channels, layer.in_height, layer.in_width),
            "dst": (layer.batch, layer.channels, layer.out_height, layer.out_width),
        }
    return {
        "src": (layer.batch, layer.in_channels, layer.in_height, layer.in_width),
        "weights": (
            layer.out_channels,
            layer.in_channels // layer.groups,
            layer.kernel_height,
            layer.kernel_width,
        ),
        "dst": (layer.batch, layer.out_channels, layer.out_height, layer.out_width),
    }


def check_shape(layer: Layer, role: str, tensor: NDArray[Any]) -> NDArray[Any]:
    """Return ``tensor`` in its plain shape; grouped weights may also come with five axes.

    Raises:
        UsageError: The tensor does not have the layer's shape.
    """
    expected = tensor_shapes(layer)[role]
    if tensor.shape == expected:
        return tensor
    if role == "weights" and isinstance(layer, Conv2d):
        grouped = (layer.groups, layer.out_channels // layer.groups, *expected[1:])
        if tensor.shape == grouped:
            return tensor.reshape(expected)
    if isinstance(layer, Gemm) and layer.batch_count == 1 and tensor.shape == expected[1:]:
        return tensor[None]
    raise UsageError(f"{role}: has shape {tensor.shape}; expected {expected}")
