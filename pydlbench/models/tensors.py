"""What a node holds between steps: trained tensors and running statistics, by name."""

from __future__ import annotations

from typing import TYPE_CHECKING

from pydlbench.layers import Conv2d, Gemm

if TYPE_CHECKING:
    from pydlbench.models.graph import Node

__all__ = ["buffers", "trained_tensors"]


def trained_tensors(node: Node) -> dict[str, tuple[int, ...]]:
    """Return the shapes of what is trained.

    Convolution ``weights`` are ``(out, in / groups, height, width)``, those of products
    ``(inputs, outputs)``; ``bias`` and a batch normalisation's ``weights`` have the channels.
    """
    layer = node.layer
    shapes: dict[str, tuple[int, ...]] = {}
    if node.op == "batchnorm":
        shapes = {"weights": node.shape[:1], "bias": node.shape[:1]}
        return shapes if node.scale else {"bias": shapes["bias"]}
    if isinstance(layer, Conv2d):
        inputs = layer.in_channels // layer.groups
        shapes["weights"] = layer.out_channels, inputs, layer.kernel_height, layer.kernel_width
    elif isinstance(layer, Gemm):
        shapes["weights"] = layer.k, layer.n
    if node.bias:
        shapes["bias"] = node.shape[:1]
    return shapes


def buffers(node: Node) -> dict[str, tuple[int, ...]]:
    """Return the shapes of what is kept but not trained."""
    if node.op != "batchnorm":
        return {}
    return {"running_mean": node.shape[:1], "running_variance": node.shape[:1]}
