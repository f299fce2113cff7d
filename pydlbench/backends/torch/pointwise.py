"""Memory-bound layers through ATen's operators, as a model's step runs them one after the other.

What a pass reads from the forward pass (a result of a ReLU, a mask, statistics) is computed
beforehand, as autograd would have kept it.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

import torch

from pydlbench.backends.torch import pointwise_loss, pointwise_norms, pointwise_updates
from pydlbench.backends.torch.pointwise_parts import Parts, image_recipes, made

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from pydlbench.backends.torch.recipe import Made, Recipe
    from pydlbench.layers import Pointwise

__all__ = ["recipes"]


def recipes(
    layer: Pointwise, pass_: str, *, training: bool, on_gpu: bool, stored: str
) -> list[Recipe]:
    """List the ways to run a pass: one per memory format for images, else one.

    Args:
        layer: The layer.
        pass_: One of its passes.
        training: Whether a forward pass is that of a training.
        on_gpu: Whether a GPU runs it: optimizers take their ``foreach`` operators there.
        stored: Data type of what is stored, in which chains of operators round each step.
    """
    if layer.op in ("l2", "sgd", "momentum"):
        return pointwise_updates.recipes(layer, pass_, on_gpu=on_gpu, stored=stored)
    if layer.op == "softmax-xent":
        return pointwise_loss.recipes(layer, pass_)
    if layer.op == "lrn":
        return pointwise_norms.local_response(layer, pass_, on_gpu=on_gpu, stored=stored)
    if layer.op == "batchnorm":
        return pointwise_norms.batch(layer, pass_, training=training)
    if (layer.op, pass_) == ("concat", "backward-data"):
        return _apart(layer)
    name, make = _MAPS[layer.op, pass_]
    return image_recipes(layer, pass_, name, make)


def _bias(parts: Parts) -> Made:
    def add(x: torch.Tensor, b: torch.Tensor) -> Any:
        return x + b

    offset = parts.operand("bias").view(1, -1, 1, 1)
    return made(add, parts.operand("src"), offset)


def _bias_gradient(parts: Parts) -> Made:
    def summed(g: torch.Tensor) -> Any:
        return g.sum((0, 2, 3))

    return made(summed, parts.operand("dst"))


def _relu(parts: Parts) -> Made:
    def forward(x: torch.Tensor) -> Any:
        return torch.relu(x)

    return made(forward, parts.operand("src"))


def _relu_gradient(parts: Parts) -> Made:
    backward = torch.ops.aten.threshold_backward.default

    def gradient(g: torch.Tensor, y: torch.Tensor) -> Any:
        return backward(g, y, 0)

    return made(gradient, parts.operand("dst"), torch.relu(parts.operand("src")))


def _add(parts: Parts) -> Made:
    def add(x: torch.Tensor, y: torch.Tensor) -> Any:
        return x + y

    return made(add, parts.operand("src"), parts.operand("src2"))


def _concat(parts: Parts) -> Made:
    def joined(*sources: torch.Tensor) -> Any:
        return torch.cat(sources, 1)

    return made(joined, *(parts.operand(role) for role in parts.layer.reads("forward")))


def _dropout(parts: Parts) -> Made:
    rate = 1 - parts.layer.keep

    def dropped(x: torch.Tensor) -> Any:
        return torch.dropout(x, rate, True)

    return made(dropped, parts.operand("src"))


def _dropout_gradient(parts: Parts) -> Made:
    def masked(g: torch.Tensor, noise: torch.Tensor) -> Any:
        return g * noise

    # The forward pass keeps its mask divided by the probability, in the type of the images.
    noise = parts.mask().div_(parts.layer.keep)
    return made(masked, parts.operand("dst"), noise)


def _apart(layer: Pointwise) -> list[Recipe]:
    """Views, as autograd hands them out; and copies, as a convolution behind makes of them."""
    sizes = [layer.dims(role)[1] for role in layer.reads("forward")]
    spans = [(sum(sizes[:place]), size) for place, size in enumerate(sizes)]

    def views(parts: Parts) -> Made:
        def narrowed(g: torch.Tensor) -> Any:
            return [g.narrow(1, *span) for span in spans]

        return made(narrowed, parts.operand("dst"), plain=by_role)

    def copies(parts: Parts) -> Made:
        like = parts.like

        def copied(g: torch.Tensor) -> Any:
            return [g.narrow(1, *span).contiguous(memory_format=like) for span in spans]

        return made(copied, parts.operand("dst"), plain=by_role)

    def by_role(results: Any) -> Mapping[str, torch.Tensor]:
        return dict(zip(layer.writes("backward-data"), results, strict=True))

    note = (
        "autograd hands out views of the incoming gradient, and moves nothing; what reads them in "
        "place (a ReLU) pays nothing, a convolution copies its part first"
    )
    return [
        *image_recipes(layer, "backward-data", "aten::narrow", views, notes=(note,)),
        *image_recipes(layer, "backward-data", "aten::narrow + aten::contiguous", copies),
    ]


_MAPS: Final[Mapping[tuple[str, str], tuple[str, Callable[[Parts], Made]]]] = {
    ("bias", "forward"): ("aten::add", _bias),
    ("bias", "backward-weights"): ("aten::sum", _bias_gradient),
    ("relu", "forward"): ("aten::relu", _relu),
    ("relu", "backward-data"): ("aten::threshold_backward", _relu_gradient),
    ("add", "forward"): ("aten::add", _add),
    ("concat", "forward"): ("aten::cat", _concat),
    ("dropout", "forward"): ("aten::dropout", _dropout),
    ("dropout", "backward-data"): ("aten::mul", _dropout_gradient),
}
