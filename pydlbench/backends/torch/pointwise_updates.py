"""Weight decay and the steps of optimizers, by the operators that ``torch.optim.SGD`` calls.

Its default on a CPU is one operator after the other for each tensor, on a GPU the ``foreach`` ones.
Calls step forth and back in turn, see :class:`~pydlbench.backends.torch.recipe.Made`.
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


def recipes(layer: Pointwise, pass_: str, *, on_gpu: bool, stored: str) -> list[Recipe]:
    """List the one way to run an L2 term or an optimizer.

    Args:
        layer: ``l2``, ``sgd`` or ``momentum``.
        pass_: One of its passes.
        on_gpu: Whether a GPU runs it.
        stored: Data type of the weights, in which each operator of a chain rounds.
    """
    layout = ", ".join(dict.fromkeys(layer.reads(pass_)))
    if (layer.op, pass_) == ("l2", "forward"):
        name = "aten::pow + aten::sum + aten::div"
        return flat_recipe(layer, name, _norm, layout=layout)
    if layer.op == "l2":
        return flat_recipe(layer, "aten::add", _decay, layout=layout)
    if layer.op == "sgd":
        name = "aten::_foreach_add_" if on_gpu else "aten::add_"
        make = _foreach_descent if on_gpu else _descent
        return flat_recipe(layer, name, make, layout=layout)
    name = "aten::mul_ + aten::add_ + aten::add_"
    make = _momentum
    if on_gpu:
        name = "aten::_foreach_mul_ + aten::_foreach_add_ + aten::_foreach_add_"
        make = _foreach_momentum
    return flat_recipe(layer, name, make, layout=layout, accumulate=stored)


def _norm(parts: Parts) -> Made:
    # Summed in float32 whatever is stored; nothing is converted where that is float32.
    def half_of_squares(w: torch.Tensor) -> Any:
        return w.float().pow(2).sum() / 2

    return made(half_of_squares, parts.operand("weights"), plain=lambda result: result.reshape(1))


def _decay(parts: Parts) -> Made:
    decay = parts.layer.decay

    def added(g: torch.Tensor, w: torch.Tensor) -> Any:
        return g.add(w, alpha=decay)

    return made(added, parts.operand("gradient"), parts.operand("weights"))


def _descent(parts: Parts) -> Made:
    def step(w: torch.Tensor, g: torch.Tensor, rate: float) -> Any:
        return w.add_(g, alpha=-rate)

    return _updating(parts, step)


def _foreach_descent(parts: Parts) -> Made:
    def step(w: torch.Tensor, g: torch.Tensor, rate: float) -> Any:
        torch._foreach_add_([w], [g], alpha=-rate)
        return w

    return _updating(parts, step)


def _updating(parts: Parts, step: Any) -> Made:
    rate = parts.layer.rate
    arguments = parts.operand("weights"), parts.operand("gradient")
    return made(step, *arguments, updated=(0,), turns=(rate, -rate))


def _momentum(parts: Parts) -> Made:
    mu = parts.layer.mu

    def step(w: torch.Tensor, v: torch.Tensor, g: torch.Tensor, rate: float) -> Any:
        v.mul_(mu).add_(g, alpha=1)
        w.add_(v, alpha=-rate)
        return w, v

    return _with_velocity(parts, step)


def _foreach_momentum(parts: Parts) -> Made:
    mu = parts.layer.mu

    def step(w: torch.Tensor, v: torch.Tensor, g: torch.Tensor, rate: float) -> Any:
        torch._foreach_mul_([v], mu)
        torch._foreach_add_([v], [g], alpha=1)
        torch._foreach_add_([w], [v], alpha=-rate)
        return w, v

    return _with_velocity(parts, step)


def _with_velocity(parts: Parts, step: Any) -> Made:
    def plain(results: Any) -> Mapping[str, torch.Tensor]:
        return {"weights": results[0], "velocity": results[1]}

    rate = parts.layer.rate
    arguments = (parts.operand(role) for role in ("weights", "velocity", "gradient"))
    return made(step, *arguments, plain=plain, updated=(0, 1), turns=(rate, -rate))
