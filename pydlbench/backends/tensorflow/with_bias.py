"""Convolutions and products with a bias: two operators in one graph, which TensorFlow may fuse.

In graph mode Grappler makes one kernel of ``Conv2D`` or ``MatMul`` and ``BiasAdd``; XLA fuses on
its own. The gradient of the bias is an operator of its own beside that of the weights.
"""

from __future__ import annotations

import dataclasses
from typing import TYPE_CHECKING, Any

from pydlbench.backends.tensorflow.pointwise_parts import unused_plain
from pydlbench.backends.tensorflow.roles import RolesRecipe
from pydlbench.backends.tensorflow.runtime import tf

if TYPE_CHECKING:
    from collections.abc import Mapping

    from numpy.typing import NDArray

    from pydlbench.backends.tensorflow.recipe import Recipe

__all__ = ["bias_sums", "with_bias"]


def bias_sums(mode: str) -> str:
    """Return what ``BiasAddGrad`` sums in, in the words of a recipe.

    Eigen's kernel in graphs sums bfloat16 in bfloat16 (channels last, one row of pixels after the
    other: a gradient over 13 000 pixels is off by a seventh); XLA sums in float32.
    """
    return "float32" if mode == "xla" else "stored"


def with_bias(recipe: Recipe, pass_: str) -> Recipe:
    """Return a recipe that adds a bias, or gives its gradient beside that of the weights.

    Args:
        recipe: of a convolution or a product.
        pass_: ``forward`` or ``backward-weights``.
    """
    return _forward(recipe) if pass_ == "forward" else _gradient(recipe)


def _channels(recipe: Recipe) -> str:
    """Where the channels are, as ``BiasAdd`` wants it; columns of a product are the last."""
    return "NCHW" if recipe.variant == "nchw" else "NHWC"


def _forward(recipe: Recipe) -> Recipe:
    data_format = _channels(recipe)

    def operands(inputs: Mapping[str, NDArray[Any]]) -> tuple[NDArray[Any], ...]:
        return *recipe.operands(inputs), inputs["bias"]

    def function(*tensors: Any) -> Any:
        return tf.nn.bias_add(recipe.function(*tensors[:-1]), tensors[-1], data_format)

    return dataclasses.replace(
        recipe, algorithm=f"{recipe.algorithm}, BiasAdd", operands=operands, function=function
    )


def _gradient(recipe: Recipe) -> Recipe:
    data_format = _channels(recipe)
    # A product with transposed weights has the incoming gradient on its left.
    place = 0 if recipe.variant == "transposed" else 1

    def function(*tensors: Any) -> Any:
        bias = tf.raw_ops.BiasAddGrad(out_backprop=tensors[place], data_format=data_format)
        return recipe.function(*tensors), bias

    def by_role(results: list[NDArray[Any]], _: list[NDArray[Any]]) -> dict[str, NDArray[Any]]:
        weights, bias = results
        return {"weights": recipe.plain(weights), "bias": bias}

    return RolesRecipe(
        algorithm=f"{recipe.algorithm}, BiasAddGrad",
        layout=recipe.layout,
        variant=recipe.variant,
        function=function,
        operands=recipe.operands,
        result=recipe.result,
        plain=unused_plain,
        complete=recipe.complete,
        detail=recipe.detail,
        sums=recipe.sums,
        by_role=by_role,
    )
