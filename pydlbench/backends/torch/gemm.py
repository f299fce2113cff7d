"""Matrix products: as ``torch.nn.Linear`` keeps its weights (``nk``), and with plain ones (``kn``).

Views of transposed operands are made beforehand: a product takes any strides.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch

from pydlbench.backends.torch.recipe import Made, Place, Recipe
from pydlbench.errors import UnsupportedError

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from numpy.typing import NDArray

    from pydlbench.layers import Gemm

__all__ = ["recipes", "scaled_recipes"]

# FP8 kernels read both factors along the summed dimension, 16 elements at a time.
_FP8_MULTIPLE = 16
_FP8_LAYOUTS = {
    "forward": "src mk, weights nk, dst mn",
    "backward-data": "src mk, weights kn, dst mn",
    "backward-weights": "src km, weights kn, dst nm",
}


def recipes(layer: Gemm, pass_: str, *, bias: bool = False) -> list[Recipe]:
    """List the ways to run a pass of a product: transposed and plain weights.

    Args:
        layer: The product.
        pass_: ``forward``, ``backward-data`` or ``backward-weights``.
        bias: Whether a bias is added in the same operator, or its gradient summed in the same call.
    """
    many = layer.batch_count > 1
    letter = "g" if many else ""

    def recipe(variant: str) -> Recipe:
        transposed = variant == "transposed"
        weights = "nk" if transposed else "kn"
        name = "aten::bmm" if many else "aten::mm"
        if transposed and pass_ == "forward" and not many:
            name = "aten::linear"
        if bias and pass_ == "forward":
            name = {"aten::mm": "aten::addmm", "aten::bmm": "aten::baddbmm"}.get(name, name)
            name += " with bias"
        elif bias:
            name += " + aten::sum"

        def make(inputs: Mapping[str, NDArray[Any]], place: Place) -> Made:
            if bias and pass_ == "forward":
                return _with_bias(inputs, place, transposed=transposed, many=many)
            product = _make(pass_, inputs, place, transposed=transposed, many=many)
            return _with_bias_gradient(product, transposed=transposed) if bias else product

        return Recipe(
            algorithm=name,
            layout=f"src {letter}mk, weights {letter}{weights}, dst {letter}mn",
            variant=variant,
            make=make,
        )

    return [recipe("transposed"), recipe("plain")]


def _make(
    pass_: str,
    inputs: Mapping[str, NDArray[Any]],
    place: Place,
    *,
    transposed: bool,
    many: bool,
) -> Made:
    def operand(role: str) -> torch.Tensor:
        array = inputs[role]
        if role == "weights" and transposed:
            array = array.swapaxes(1, 2)
        tensor = place.tensor(array)
        return tensor if many else tensor[0]

    multiply: Callable[..., Any] = torch.bmm if many else torch.mm
    if pass_ == "forward":
        source, weights = operand("src"), operand("weights")
        if transposed and not many:
            return _made(torch.nn.functional.linear, source, weights)
        return _made(multiply, source, weights.mT if transposed else weights)
    if pass_ == "backward-data":
        gradient, weights = operand("dst"), operand("weights")
        return _made(multiply, gradient, weights if transposed else weights.mT)
    source, gradient = operand("src"), operand("dst")
    if transposed:  # the gradient lies as the weights do
        return _made(multiply, gradient.mT, source, turned=True)
    return _made(multiply, source.mT, gradient)


def _with_bias(
    inputs: Mapping[str, NDArray[Any]], place: Place, *, transposed: bool, many: bool
) -> Made:
    """A forward pass whose operator adds the bias as well."""
    alone = _make("forward", inputs, place, transposed=transposed, many=many)
    source, weights = alone.arguments
    linear = transposed and not many
    add_multiply: Callable[..., Any] = torch.baddbmm if many else torch.addmm

    def product(a: torch.Tensor, b: torch.Tensor, c: torch.Tensor) -> Any:
        return torch.nn.functional.linear(a, b, c) if linear else add_multiply(c, a, b)

    bias = place.tensor(inputs["bias"])
    return Made(function=product, arguments=(source, weights, bias), plain=alone.plain)


def _with_bias_gradient(alone: Made, *, transposed: bool) -> Made:
    """The gradient of the weights, and that of the bias by the operator behind it."""
    multiply = alone.function

    def both(a: torch.Tensor, b: torch.Tensor) -> Any:
        gradient = a.mT if transposed else b
        return multiply(a, b), gradient.sum(tuple(range(gradient.dim() - 1)))

    def plain(results: Any) -> Mapping[str, torch.Tensor]:
        weights = alone.plain(results[0])
        assert isinstance(weights, torch.Tensor)
        return {"weights": weights, "bias": results[1]}

    return Made(function=both, arguments=alone.arguments, plain=plain)


def _made(
    multiply: Callable[..., Any], left: torch.Tensor, right: torch.Tensor, turned: bool = False
) -> Made:
    def product(a: torch.Tensor, b: torch.Tensor) -> Any:
        return multiply(a, b)

    def plain(result: torch.Tensor) -> torch.Tensor:
        found = result.mT if turned else result
        return found if found.dim() == 3 else found[None]

    return Made(function=product, arguments=(left, right), plain=plain)


def scaled_recipes(layer: Gemm, pass_: str) -> list[Recipe]:
    """List the one way to run a pass of a product in FP8: ``torch._scaled_mm``, scales of one.

    Raises:
        UnsupportedError: Several products at once, or sizes that are no multiples of 16.
    """
    if layer.batch_count > 1:
        raise UnsupportedError("torch has no batched product in fp8-tc")
    if any(size % _FP8_MULTIPLE for size in (layer.m, layer.k, layer.n)):
        raise UnsupportedError(
            f"fp8-tc needs sizes that are multiples of 16, and {layer.problem} has others"
        )

    def make(inputs: Mapping[str, NDArray[Any]], place: Place) -> Made:
        return _make_scaled(pass_, inputs, place)

    return [
        Recipe(
            algorithm="aten::_scaled_mm",
            layout=_FP8_LAYOUTS[pass_],
            variant="transposed",
            make=make,
            notes=(
                "fp8-tc: scales of one, no fast accumulation; the result is stored in bfloat16",
            ),
        )
    ]


def _make_scaled(pass_: str, inputs: Mapping[str, NDArray[Any]], place: Place) -> Made:
    # The second factor is given as a view: its columns lie in a row.
    def operand(role: str, turned: bool) -> torch.Tensor:
        array = inputs[role][0]
        return place.tensor(array.T if turned else array)

    if pass_ == "forward":
        left, right = operand("src", turned=False), operand("weights", turned=True)
    elif pass_ == "backward-data":
        left, right = operand("dst", turned=False), operand("weights", turned=False)
    else:
        left, right = operand("src", turned=True), operand("dst", turned=True)
    one = torch.ones((), dtype=torch.float32, device=place.device)

    def product(
        a: torch.Tensor, b: torch.Tensor, scale_a: torch.Tensor, scale_b: torch.Tensor
    ) -> Any:
        return torch._scaled_mm(  # noqa: SLF001 - the one way to FP8
            a, b, scale_a, scale_b, out_dtype=torch.bfloat16, use_fast_accum=False
        )

    def plain(result: torch.Tensor) -> torch.Tensor:
        return result[None]

    return Made(function=product, arguments=(left, right.t(), one, one.clone()), plain=plain)
