"""The loss: softmax and cross entropy, which PyTorch computes as logarithms of probabilities.

Logits in a half precision are converted to float32 first and their gradient back, as automatic
mixed precision does.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch

from pydlbench.backends.torch.pointwise_parts import Parts, flat_recipe, made

if TYPE_CHECKING:
    from collections.abc import Mapping

    from pydlbench.backends.torch.recipe import Made, Recipe
    from pydlbench.layers import Pointwise

__all__ = ["recipes"]

_MEAN = 1  # ATen's number of that reduction
_IGNORED = -100  # a label that counts for nothing; the default


def recipes(layer: Pointwise, pass_: str) -> list[Recipe]:
    """List the one way to run a pass of a softmax with cross entropy."""
    if pass_ == "forward":
        name = "aten::_log_softmax + aten::nll_loss"
        return flat_recipe(layer, name, _forward, layout="src nc, dst nc")
    name = "aten::nll_loss_backward + aten::_log_softmax_backward_data"
    return flat_recipe(layer, name, _backward, layout="src nc, dst nc")


def _forward(parts: Parts) -> Made:
    # What torch.nn.functional.cross_entropy does; autograd keeps the logarithms.
    def loss(x: torch.Tensor, labels: torch.Tensor) -> Any:
        logarithms = torch.log_softmax(x.float(), 1)
        return torch.nn.functional.nll_loss(logarithms, labels), logarithms

    shape = parts.layer.dims("dst")

    def plain(results: Any) -> Mapping[str, torch.Tensor]:
        mean, logarithms = results
        return {"dst": logarithms.exp().reshape(shape), "loss": mean.reshape(1)}

    return made(loss, parts.operand("src").flatten(1), parts.operand("labels"), plain=plain)


def _backward(parts: Parts) -> Made:
    loss_backward = torch.ops.aten.nll_loss_backward.default
    softmax_backward = torch.ops.aten._log_softmax_backward_data.default  # noqa: SLF001 - its name
    stored = parts.place.dtype

    def gradient(
        outer: torch.Tensor, logarithms: torch.Tensor, labels: torch.Tensor, count: torch.Tensor
    ) -> Any:
        found = loss_backward(outer, logarithms, labels, None, _MEAN, _IGNORED, count)
        return softmax_backward(found, logarithms, 1, torch.float32).to(stored)

    shape = parts.layer.dims("src")

    def plain(result: Any) -> torch.Tensor:
        found: torch.Tensor = result.reshape(shape)
        return found

    logarithms = parts.operand("dst").flatten(1).float().log()
    one = torch.ones((), device=parts.place.device)
    count = one * parts.layer.batch
    return made(gradient, one, logarithms, parts.operand("labels"), count, plain=plain)
