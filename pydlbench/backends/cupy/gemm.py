"""Products by ``cupy.matmul``, which calls cuBLAS."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import cupy
import numpy as np

if TYPE_CHECKING:
    from collections.abc import Callable

    from numpy.typing import NDArray

    from pydlbench.layers import Gemm

__all__ = ["build"]


def build(
    layer: Gemm, pass_: str, type_: str, transposed: bool, inputs: dict[str, NDArray[Any]]
) -> Callable[[Any], Any]:
    """Return a function that computes a pass into a result, or into a new one.

    A single product is one of plain matrices, whose transposes cuBLAS reads in place. CuPy copies
    the transposes of a batch before each product.

    Args:
        layer: the product.
        pass_: ``forward``, ``backward-data`` or ``backward-weights``.
        type_: of the elements.
        transposed: weights, and their gradient, are stored as (columns, terms).
        inputs: plain arrays by role.
    """
    one = layer.batch_count == 1

    def upload(name: str) -> Any:
        value = inputs[name]
        if name == "weights" and transposed:
            value = value.transpose(0, 2, 1)
        array = cupy.asarray(np.ascontiguousarray(value, type_))
        return array[0] if one else array

    if pass_ == "backward-weights":
        source, gradient = upload("src"), upload("dst")
        a, b = (_turned(gradient), source) if transposed else (_turned(source), gradient)
    else:
        weights = upload("weights")
        a = upload("src" if pass_ == "forward" else "dst")
        b = _turned(weights) if transposed == (pass_ == "forward") else weights

    def compute(result: Any) -> Any:
        return cupy.matmul(a, b) if result is None else cupy.matmul(a, b, out=result)

    return compute


def _turned(array: Any) -> Any:
    return array.swapaxes(-1, -2)
