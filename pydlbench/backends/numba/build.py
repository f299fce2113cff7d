"""From a layer to its compiled kernels with their operands on the CPU."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Any

import numpy as np

from pydlbench.backends.frameworks.backend import Variant
from pydlbench.backends.numba import conv, gemm, pool

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from numpy.typing import NDArray

    from pydlbench.ops.op import Layer
    from pydlbench.records.specs import KernelSpec


# -----------------------------------------------------------------------------
# A compiled kernel with its operands, called as a user's line would call it.


class KeptResults:
    """A compiled kernel alone: its results were allocated, and written to, beforehand.

    Args:
        kernel: takes all of the arguments.
        arguments: results, then operands.
    """

    def __init__(self, kernel: Callable[..., None], arguments: Sequence[Any]) -> None:
        self.kernel = kernel
        self.arguments = tuple(arguments)

    def call(self) -> None:
        """Run it once."""
        self.kernel(*self.arguments)

    def wait(self) -> None:
        """Return at once: calls return when they are done."""

    def outputs(self) -> dict[str, NDArray[Any]]:
        """Return nothing: these results are not read."""
        return {}


class HostOperator:
    """Allocates its results and fills them.

    Args:
        kernel: Takes the results, then the operands.
        operands: All other arguments.
        results: Shape and type of each result; the first one is the main one.
        role: What the main result is.
        plain: Turns the main result into its plain layout.
    """

    def __init__(
        self,
        kernel: Callable[..., None],
        operands: Sequence[Any],
        results: Sequence[tuple[tuple[int, ...], type[np.generic]]],
        role: str,
        plain: Callable[[NDArray[Any]], NDArray[Any]],
    ) -> None:
        self._kernel = kernel
        self._operands = tuple(operands)
        self._results = tuple(results)
        self._role = role
        self._plain = plain
        self.call()  # compiles

    def call(self) -> tuple[NDArray[Any], ...]:
        """Allocate the results and compute them."""
        results = tuple(np.empty(shape, kind) for shape, kind in self._results)
        self._kernel(*results, *self._operands)
        return results

    def wait(self) -> None:
        """Return at once: calls return when they are done."""

    def kept(self) -> KeptResults:
        """Return the same kernel, filling the same results in each call."""
        results = tuple(np.zeros(shape, kind) for shape, kind in self._results)
        return KeptResults(self._kernel, (*results, *self._operands))

    def outputs(self) -> dict[str, NDArray[Any]]:
        """Run it once on a main result full of NaN and return that one."""
        (shape, kind), *others = self._results
        main = np.full(shape, np.nan, kind)
        rest = tuple(np.empty(shape, kind) for shape, kind in others)
        self._kernel(main, *rest, *self._operands)
        return {self._role: self._plain(main)}


# -----------------------------------------------------------------------------
# From a layer to its kernels on the CPU: operands laid out, results described.

if TYPE_CHECKING:
    Array = NDArray[Any]
    Inputs = dict[str, Array]


#: How the weights of a convolution lie with channels innermost, by pass.
_WEIGHTS = {"forward": "hwio", "backward-data": "hwoi", "backward-weights": "hwio"}


def host_variants(case: KernelSpec) -> list[Variant]:
    """Return the ways to compute a case on the CPU; nothing for layers that have none."""
    layer = case.layer
    if layer.op == "conv":
        return [
            Variant(
                algorithm="numba prange: direct convolution",
                layout=f"src nhwc, weights {_WEIGHTS[case.pass_]}, dst nhwc",
                variant="nhwc",
                build=partial(_conv, layer, case.pass_),
            )
        ]
    if layer.op == "gemm":
        return [
            Variant(
                algorithm="numba prange: blocked product",
                layout=f"src mk, weights {matrix}, dst mn",
                variant=name,
                build=partial(_gemm, layer, case.pass_, name == "transposed"),
            )
            for name, matrix in (("plain", "kn"), ("transposed", "nk"))
        ]
    if layer.op == "pool":
        return [
            Variant(
                algorithm=f"numba prange: {layer.mode} pooling",
                layout="src nhwc, dst nhwc",
                variant="nhwc",
                build=partial(_pool, layer, case.pass_, case.propagation),
            )
        ]
    return []


def _conv(layer: Layer, pass_: str, inputs: Inputs) -> HostOperator:
    """Build a convolution; groups get an axis of their own, before the channels."""
    groups = layer.groups
    role = layer.result(pass_)
    shapes = layer.shapes()

    def laid(name: str) -> Array:
        tensor = inputs[name]
        if name != "weights":
            return _split_last(_nhwc(tensor), groups)
        outs, ins, rows, columns = tensor.shape
        five = tensor.reshape(groups, outs // groups, ins, rows, columns)
        order = (0, 3, 4, 2, 1) if pass_ == "forward" else (0, 3, 4, 1, 2)
        return np.ascontiguousarray(five.transpose(order))

    def plain(result: Array) -> Array:
        if role != "weights":
            images, height, width, _, _ = result.shape
            return result.reshape(images, height, width, -1).transpose(0, 3, 1, 2)
        return result.transpose(0, 4, 3, 1, 2).reshape(shapes["weights"])

    if role == "weights":
        outs, ins, rows, columns = shapes["weights"]
        shape: tuple[int, ...] = groups, rows, columns, ins, outs // groups
    else:
        images, channels, height, width = shapes[role]
        shape = images, height, width, groups, channels // groups
    kernel, reads = {
        "forward": (conv.forward, ("src", "weights")),
        "backward-data": (conv.backward_data, ("dst", "weights")),
        "backward-weights": (conv.backward_weights, ("src", "dst")),
    }[pass_]
    operands = [laid(name) for name in reads]
    window = (
        layer.stride,
        layer.pad_before,
        layer.dilation,
    )
    return HostOperator(kernel, [*operands, *window], [(shape, np.float32)], role, plain)


def _gemm(layer: Layer, pass_: str, transposed: bool, inputs: Inputs) -> HostOperator:
    """Build a product whose weights lie as (terms, columns), or the other way round."""
    weights = inputs.get("weights")
    if weights is not None and transposed:
        weights = np.ascontiguousarray(_turned(weights))
    if pass_ == "forward":
        kernel = gemm.product_transposed if transposed else gemm.product
        operands = inputs["src"], weights
    elif pass_ == "backward-data":
        kernel = gemm.product if transposed else gemm.product_transposed
        operands = inputs["dst"], weights
    else:
        kernel = gemm.product
        source, gradient = inputs["src"], inputs["dst"]
        operands = (_turned(gradient), source) if transposed else (_turned(source), gradient)
    role = layer.result(pass_)
    batch, rows, columns = layer.shapes()[role]
    turned = transposed and role == "weights"
    shape = (batch, columns, rows) if turned else (batch, rows, columns)
    return HostOperator(
        kernel, operands, [(shape, np.float32)], role, _turned if turned else _itself
    )


def _pool(layer: Layer, pass_: str, propagation: str, inputs: Inputs) -> HostOperator:
    """Build a pooling; one for training keeps where the maxima are, as its backward pass needs."""
    role = layer.result(pass_)

    def shape(name: str) -> tuple[int, ...]:
        images, channels, height, width = layer.shapes()[name]
        return images, height, width, channels

    window = (
        layer.kernel,
        layer.stride,
        layer.pad_before,
    )
    result: list[tuple[tuple[int, ...], type[np.generic]]] = [(shape(role), np.float32)]
    if layer.mode == "avg":
        kernel = pool.average if pass_ == "forward" else pool.average_backward
        read = _nhwc(inputs["src" if pass_ == "forward" else "dst"])
        return HostOperator(kernel, [read, *window, layer.count_include_pad], result, role, _nchw)
    source = _nhwc(inputs["src"])
    if pass_ == "forward":
        if propagation == "inference":
            return HostOperator(pool.maximum, [source, *window], result, role, _nchw)
        result.append((shape("dst"), np.int32))
        return HostOperator(pool.maximum_where, [source, *window], result, role, _nchw)
    maxima = np.empty(shape("dst"), np.float32)
    where = np.empty(shape("dst"), np.int32)
    pool.maximum_where(maxima, where, source, *window)
    operands = [_nhwc(inputs["dst"]), where, *window]
    return HostOperator(pool.maximum_backward, operands, result, role, _nchw)


def _nhwc(tensor: Array) -> Array:
    return np.ascontiguousarray(tensor.transpose(0, 2, 3, 1))


def _nchw(tensor: Array) -> Array:
    return tensor.transpose(0, 3, 1, 2)


def _split_last(tensor: Array, groups: int) -> Array:
    return tensor.reshape(*tensor.shape[:-1], groups, tensor.shape[-1] // groups)


def _turned(matrices: Array) -> Array:
    return matrices.transpose(0, 2, 1)


def _itself(matrices: Array) -> Array:
    return matrices
