"""Products of matrices: ``tf.linalg.matmul``, with weights as they are or stored transposed."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from pydlbench.backends.tensorflow.recipe import Recipe
from pydlbench.backends.tensorflow.runtime import tf

if TYPE_CHECKING:
    from collections.abc import Mapping

    from numpy.typing import NDArray

    from pydlbench.layers.gemm import Gemm

__all__ = ["products"]


def products(layer: Gemm, pass_: str) -> list[Recipe]:
    """Return the ways to compute a pass of a product: its weights lie one way or the other."""
    return [_recipe(layer, pass_, transposed) for transposed in (False, True)]


def _recipe(layer: Gemm, pass_: str, transposed: bool) -> Recipe:
    single = layer.batch_count == 1
    # (left, right, whether left and right are read transposed)
    left, right, flags = {
        "forward": ("src", "weights", (False, transposed)),
        "backward-data": ("dst", "weights", (False, not transposed)),
        "backward-weights": (
            ("dst", "src", (True, False)) if transposed else ("src", "dst", (True, False))
        ),
    }[pass_]
    result = {"forward": "dst", "backward-data": "src", "backward-weights": "weights"}[pass_]

    def arranged(role: str, array: NDArray[Any]) -> NDArray[Any]:
        if role == "weights" and transposed:
            array = array.transpose(0, 2, 1)
        # One product is a matter of matrices; TensorFlow has another operator for several.
        return np.ascontiguousarray(array[0] if single else array)

    def operands(inputs: Mapping[str, NDArray[Any]]) -> tuple[NDArray[Any], ...]:
        return arranged(left, inputs[left]), arranged(right, inputs[right])

    def plain(product: NDArray[Any]) -> NDArray[Any]:
        product = product[None] if single else product
        return product.transpose(0, 2, 1) if result == "weights" and transposed else product

    def function(one: Any, other: Any) -> Any:
        return tf.linalg.matmul(one, other, transpose_a=flags[0], transpose_b=flags[1])

    return Recipe(
        algorithm="MatMul" if single else "BatchMatMulV2",
        layout=f"src mk, weights {'nk' if transposed else 'kn'}, dst mn",
        variant="transposed" if transposed else "plain",
        function=function,
        operands=operands,
        result=result,
        plain=plain,
    )
