"""Convolutions and poolings as PyTorch has them: what pads unevenly is padded beforehand."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch import nn
from torch.nn.utils import skip_init

from pydlbench.endtoend.counting import inside

if TYPE_CHECKING:
    from pydlbench.layers import Conv2d, Pool2d

__all__ = ["ScaledAverage", "convolution", "padding_before", "pooling"]


def padding_before(layer: Conv2d | Pool2d) -> tuple[int, int, int, int] | None:
    """Return what must be padded first: (left, right, top, bottom); None where nothing must.

    PyTorch pads both ends of an axis alike, and poolings by half a window at the most.
    """
    sides = (layer.pad_left, layer.pad_right, layer.pad_top, layer.pad_bottom)
    even = layer.pad_left == layer.pad_right and layer.pad_top == layer.pad_bottom
    if even and layer.kind == "pool2d":
        even = 2 * layer.pad_top <= layer.kernel_height and 2 * layer.pad_left <= layer.kernel_width
    return None if even else sides


def convolution(layer: Conv2d, bias: bool) -> nn.Module:
    """Return the module of a convolution; what :func:`padding_before` says has been padded."""
    padded = padding_before(layer) is not None
    # PyTorch's own initialisation takes time, and nobody would read it.
    make: Any = skip_init
    made: nn.Module = make(
        nn.Conv2d,
        layer.in_channels,
        layer.out_channels,
        (layer.kernel_height, layer.kernel_width),
        (layer.stride_height, layer.stride_width),
        (0, 0) if padded else (layer.pad_top, layer.pad_left),
        (layer.dilation_height, layer.dilation_width),
        layer.groups,
        bias=bias,
    )
    return made


def pooling(layer: Pool2d) -> nn.Module:
    """Return the module of a pooling; what :func:`padding_before` says has been padded."""
    padded = padding_before(layer) is not None
    kernel = (layer.kernel_height, layer.kernel_width)
    stride = (layer.stride_height, layer.stride_width)
    padding = (0, 0) if padded else (layer.pad_top, layer.pad_left)
    if layer.mode == "max":
        return nn.MaxPool2d(kernel, stride, padding)
    if padded and not layer.count_include_pad:
        return ScaledAverage(layer)
    return nn.AvgPool2d(kernel, stride, padding, count_include_pad=layer.count_include_pad)


class ScaledAverage(nn.Module):  # type: ignore[misc]  # an unknown class to mypy
    """An average over what was padded beforehand, scaled so that padding does not count.

    Args:
        layer: the pooling.
    """

    def __init__(self, layer: Pool2d) -> None:
        super().__init__()
        self._kernel = (layer.kernel_height, layer.kernel_width)
        self._stride = (layer.stride_height, layer.stride_width)
        whole = layer.kernel_height * layer.kernel_width
        scale = torch.from_numpy((whole / inside(layer)).astype(np.float32))
        self.register_buffer("scale", scale)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Return the averages over the elements inside the image."""
        scale: Any = self.scale
        average: torch.Tensor = nn.functional.avg_pool2d(x, self._kernel, self._stride)
        return average.mul(scale.to(x.dtype))
