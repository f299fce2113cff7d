"""Normalisations: local response (a chain of operators) and batch (one operator).

There is no operator of its own for the gradient of ``torch.nn.functional.local_response_norm``:
what runs is the chain that autograd makes of its forward pass. It is written out here as it is
recorded from autograd, so that it can be compiled, and timed without autograd's bookkeeping as
convolutions are.
"""

from __future__ import annotations

import functools
from typing import TYPE_CHECKING, Any

import torch
import torch.nn.functional as F  # noqa: N812 - its name everywhere

from pydlbench.backends.torch.pointwise_parts import Parts, image_recipes, made

if TYPE_CHECKING:
    from collections.abc import Mapping

    from pydlbench.backends.torch.recipe import Made, Recipe
    from pydlbench.layers import Pointwise

__all__ = ["batch", "local_response"]

_LRN = {
    "forward": "aten::mul + aten::constant_pad_nd + aten::avg_pool3d + aten::pow + aten::div",
    "backward-data": "aten::div + aten::pow + aten::avg_pool3d_backward + aten::mul + aten::add",
}
_BATCH = {
    "forward": "aten::native_batch_norm",
    "backward-data": "aten::native_batch_norm_backward",
}


def local_response(layer: Pointwise, pass_: str, *, on_gpu: bool, stored: str) -> list[Recipe]:
    """List the ways to run a pass of a local response normalisation.

    Args:
        layer: The layer.
        pass_: One of its passes.
        on_gpu: Whether a GPU runs it; CPUs have the chain in float32 only.
        stored: Data type of what is stored: each operator of the chain rounds to it.
    """
    converts = stored != "float32" and not on_gpu
    name = f"aten::_to_copy + {_LRN[pass_]} + aten::_to_copy" if converts else _LRN[pass_]
    make = _lrn if pass_ == "forward" else _lrn_gradient
    notes = ["a chain of operators, each reading and writing memory; torch has no kernel for it"]
    if converts:
        notes.append(f"torch has no avg_pool3d in {stored} on CPUs: converted to float32 and back")
    return image_recipes(
        layer,
        pass_,
        name,
        functools.partial(make, converts=converts),
        accumulate="float32" if converts else stored,
        notes=tuple(notes),
    )


def batch(layer: Pointwise, pass_: str, *, training: bool) -> list[Recipe]:
    """List the ways to run a pass of a batch normalisation.

    Args:
        layer: The layer.
        pass_: One of its passes.
        training: Whether a forward pass takes the statistics of its batch.
    """
    make = _statistics if training else _inference
    if pass_ != "forward":
        make = _batch_gradient
    return image_recipes(layer, pass_, _BATCH[pass_], make, training=training)


def _lrn(parts: Parts, converts: bool) -> Made:
    layer, stored = parts.layer, parts.place.dtype
    words = layer.local_size, layer.alpha, layer.beta, layer.k

    def normalized(x: torch.Tensor) -> Any:
        return F.local_response_norm(x, *words)

    def converted(x: torch.Tensor) -> Any:
        return F.local_response_norm(x.float(), *words).to(stored)

    return made(converted if converts else normalized, parts.operand("src"))


def _lrn_gradient(parts: Parts, converts: bool) -> Made:
    layer, stored = parts.layer, parts.place.dtype
    size, alpha, beta, k = layer.local_size, layer.alpha, layer.beta, layer.k
    sides = [0, 0, 0, 0, size // 2, (size - 1) // 2]
    cut = [-side for side in sides]
    window = ([size, 1, 1], [1, 1, 1], [0, 0, 0], False, True, None)
    pool_backward = torch.ops.aten.avg_pool3d_backward.default

    # What autograd keeps, computed as the forward pass does.
    source = parts.operand("src")
    source = source.float() if converts else source
    count, channels, height, width = source.shape
    padded = F.pad((source * source).view(count, 1, channels, height, width), sides)
    means = F.avg_pool3d(padded, (size, 1, 1), stride=1).squeeze(1).view(source.shape)
    base = means.mul(alpha).add(k)
    power = base.pow(beta)

    def gradient(
        g: torch.Tensor,
        x: torch.Tensor,
        divisor: torch.Tensor,
        root: torch.Tensor,
        squares: torch.Tensor,
    ) -> Any:
        direct = g / divisor
        inner = -g * ((x / divisor) / divisor)
        inner = inner * (beta * root.pow(beta - 1)) * alpha
        inner = pool_backward(inner.unsqueeze(1), squares, *window)
        inner = F.pad(inner, cut).view(x.shape)
        return direct.add_((inner * x).add_(inner * x))

    def converted(
        g: torch.Tensor,
        x: torch.Tensor,
        divisor: torch.Tensor,
        root: torch.Tensor,
        squares: torch.Tensor,
    ) -> Any:
        return gradient(g.float(), x, divisor, root, squares).to(stored)

    operands = parts.operand("dst"), source, power, base, padded
    return made(converted if converts else gradient, *operands)


def _inference(parts: Parts) -> Made:
    normalize = torch.ops.aten.native_batch_norm.default
    momentum, epsilon = parts.layer.momentum, parts.layer.epsilon

    def normalized(
        x: torch.Tensor, w: torch.Tensor, b: torch.Tensor, m: torch.Tensor, v: torch.Tensor
    ) -> Any:
        return normalize(x, w, b, m, v, False, momentum, epsilon)[0]

    return made(normalized, *map(parts.operand, ("src", "weights", "bias", "mean", "variance")))


def _statistics(parts: Parts) -> Made:
    normalize = torch.ops.aten.native_batch_norm.default
    momentum, epsilon = parts.layer.momentum, parts.layer.epsilon

    def normalized(
        x: torch.Tensor, w: torch.Tensor, b: torch.Tensor, m: torch.Tensor, v: torch.Tensor
    ) -> Any:
        return normalize(x, w, b, m, v, True, momentum, epsilon)

    roles = ("src", "weights", "bias", "running_mean", "running_variance")
    operands = [parts.operand(role) for role in roles]

    def plain(results: Any) -> Mapping[str, torch.Tensor]:
        image, mean, inverse = results
        found = {"dst": image, "running_mean": operands[3], "running_variance": operands[4]}
        # The compiler hands out those of half-precision images in their type: rounded, not wrong.
        if mean.dtype == torch.float32:
            found |= {"mean": mean, "variance": inverse.double().pow(-2) - epsilon}
        return found

    # However often they are moved, the running statistics come closer to the batch's.
    return made(normalized, *operands, plain=plain, updated=(3, 4))


def _batch_gradient(parts: Parts) -> Made:
    backward = torch.ops.aten.native_batch_norm_backward.default
    epsilon = parts.layer.epsilon

    def gradient(
        g: torch.Tensor, x: torch.Tensor, w: torch.Tensor, m: torch.Tensor, inverse: torch.Tensor
    ) -> Any:
        # The running statistics, which autograd hands on, are not read in training.
        return backward(g, x, w, m, inverse, m, inverse, True, epsilon, [True, True, True])

    def plain(results: Any) -> Mapping[str, torch.Tensor]:
        return dict(zip(("src", "weights", "bias"), results, strict=True))

    inverse = parts.operand("variance").double().add(epsilon).rsqrt().float()
    operands = [parts.operand(role) for role in ("dst", "src", "weights", "mean")]
    return made(gradient, *operands, inverse, plain=plain)
