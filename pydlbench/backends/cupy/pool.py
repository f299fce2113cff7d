"""Pooling by kernels of our own, since CuPy has none."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import cupy
import numpy as np

from pydlbench.backends.cupy import kernels
from pydlbench.backends.reference import tensor_shapes
from pydlbench.layers.layer import result_role

if TYPE_CHECKING:
    from collections.abc import Callable

    from numpy.typing import NDArray

    from pydlbench.layers import Pool2d

__all__ = ["build"]

_THREADS = 256
_MOST_BLOCKS = 1 << 20
_NOWHERE = np.uint64(0)


def build(
    layer: Pool2d, pass_: str, propagation: str, type_: str, inputs: dict[str, NDArray[Any]]
) -> Callable[[Any], Any]:
    """Return a function that computes a pass into a result, or into a new one.

    Args:
        layer: the pooling.
        pass_: ``forward`` or ``backward-data``.
        propagation: ``training`` keeps where the maxima are.
        type_: of the elements.
        inputs: plain arrays by role.
    """
    shapes = tensor_shapes(layer)
    role = result_role(layer, pass_)
    module = cupy.RawModule(code=kernels.source("pooling", type_))
    sizes = cupy.asarray(np.array(kernels.pooling(layer), np.int32))
    given = {name: cupy.asarray(value.astype(type_)) for name, value in inputs.items()}
    places: Any = _NOWHERE
    if layer.mode == "max" and (pass_ == "backward-data" or propagation == "training"):
        places = cupy.empty(shapes["dst"], np.int32)

    def run(name: str, result: Any, *operands: Any) -> None:
        blocks = min(-(-result.size // _THREADS), _MOST_BLOCKS)
        kernel = module.get_function(name)
        kernel((blocks,), (_THREADS,), (*operands, sizes, np.int64(result.size)))

    if pass_ == "backward-data" and layer.mode == "max":
        maxima = cupy.empty(shapes["dst"], type_)
        run("maximum", maxima, given["src"], maxima, places)

    def compute(result: Any) -> Any:
        if result is None:
            result = cupy.empty(shapes[role], type_)
        if layer.mode == "avg":
            forward = pass_ == "forward"
            name = "average" if forward else "average_backward"
            run(name, result, given["src" if forward else "dst"], result)
        elif pass_ == "forward":
            run("maximum", result, given["src"], result, places)
        else:
            run("maximum_backward", result, given["dst"], places, result)
        return result

    return compute
