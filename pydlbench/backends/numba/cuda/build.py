"""From a layer to its kernel on a GPU: operands uploaded, grids chosen."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Any

import numpy as np

from pydlbench.backends.frameworks.backend import Variant
from pydlbench.backends.numba.cuda import conv, gemm, pool
from pydlbench.backends.numba.cuda.language import cuda
from pydlbench.backends.numba.cuda.operator import DeviceOperator
from pydlbench.layers.conv import Conv2d
from pydlbench.layers.gemm import Gemm
from pydlbench.layers.layer import result_role
from pydlbench.layers.pool import Pool2d

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from pydlbench.records.specs import Case

    Array = NDArray[Any]
    Inputs = dict[str, Array]

__all__ = ["device_variants"]

_NOTES = ("results are allocated once: Numba has no pool of device memory",)


def device_variants(case: Case, stream: Any) -> list[Variant]:
    """Return the ways to compute a case on a GPU; nothing for layers that have none."""
    layer = case.layer
    if isinstance(layer, Conv2d):
        return [
            Variant(
                algorithm="numba.cuda: direct convolution",
                layout="src nchw, weights oihw, dst nchw",
                variant="nchw",
                build=partial(_conv, layer, case.pass_, stream),
                notes=_NOTES,
            )
        ]
    if isinstance(layer, Gemm):
        return [
            Variant(
                algorithm="numba.cuda: product tiled in shared memory",
                layout=f"src mk, weights {matrix}, dst mn",
                variant=name,
                build=partial(_gemm, layer, case.pass_, name == "transposed", stream),
                notes=_NOTES,
            )
            for name, matrix in (("plain", "kn"), ("transposed", "nk"))
        ]
    if isinstance(layer, Pool2d):
        return [
            Variant(
                algorithm=f"numba.cuda: {layer.mode} pooling",
                layout="src nchw, dst nchw",
                variant="nchw",
                build=partial(_pool, layer, case.pass_, case.propagation, stream),
                notes=_NOTES,
            )
        ]
    return []


def _conv(layer: Conv2d, pass_: str, stream: Any, inputs: Inputs) -> DeviceOperator:
    """Build a convolution; groups get an axis of their own."""
    groups = layer.groups
    shapes = layer.shapes()

    def split(role: str) -> tuple[int, ...]:
        first, second, *rest = shapes[role]
        if role == "weights":
            return groups, first // groups, second, *rest
        return first, groups, second // groups, *rest

    role = result_role(layer, pass_)
    shape = split(role)
    kernel, reads = {
        "forward": (conv.forward, ("src", "weights")),
        "backward-data": (conv.backward_data, ("dst", "weights")),
        "backward-weights": (conv.backward_weights, ("src", "dst")),
    }[pass_]
    if pass_ == "backward-weights":
        launch = conv.weights_grid(shape[0], shape[1], shape[2])
    else:
        images, outer, channels, height, width = shape
        launch = conv.grid(images, outer, channels, height * width)
    operands = [_upload(inputs[name].reshape(split(name))) for name in reads]
    numbers = (
        (layer.stride_height, layer.stride_width),
        (layer.pad_top, layer.pad_left),
        (layer.dilation_height, layer.dilation_width),
    )
    return DeviceOperator(
        kernel(),
        launch,
        [*operands, *numbers],
        [(shape, np.float32)],
        role,
        lambda result: result.reshape(shapes[role]),
        stream,
    )


def _gemm(layer: Gemm, pass_: str, transposed: bool, stream: Any, inputs: Inputs) -> DeviceOperator:
    """Build a product; what is read the other way round is a view, and the kernel is told so."""
    turn = (0, 2, 1)
    sources = {name: _upload(tensor) for name, tensor in inputs.items()}
    if transposed and "weights" in inputs:
        # Stored as (columns, terms), and seen as (terms, columns).
        sources["weights"] = _upload(inputs["weights"].transpose(turn)).transpose(turn)
    a_turned, b_turned = False, transposed
    if pass_ == "forward":
        a, b = sources["src"], sources["weights"]
    elif pass_ == "backward-data":
        a, b, b_turned = sources["dst"], sources["weights"].transpose(turn), not transposed
    else:
        a, b, a_turned, b_turned = sources["src"].transpose(turn), sources["dst"], True, False
        if transposed:  # the gradient is stored as the weights are
            a, b = sources["dst"].transpose(turn), sources["src"]
    role = result_role(layer, pass_)
    shape = layer.shapes()[role]
    turned = transposed and role == "weights"
    if turned:
        shape = shape[0], shape[2], shape[1]
    return DeviceOperator(
        gemm.product(a_turned, b_turned),
        gemm.grid(shape[0], shape[1], shape[2]),
        (a, b),
        [(shape, np.float32)],
        role,
        lambda result: result.transpose(turn) if turned else result,
        stream,
    )


def _pool(
    layer: Pool2d, pass_: str, propagation: str, stream: Any, inputs: Inputs
) -> DeviceOperator:
    """Build a pooling; one for training keeps where the maxima are."""
    role = result_role(layer, pass_)
    plain = layer.shapes()

    def shape(name: str) -> tuple[int, ...]:
        images, channels, height, width = plain[name]
        return images * channels, height, width

    tensors = {name: _upload(tensor.reshape(shape(name))) for name, tensor in inputs.items()}
    window = (
        (layer.kernel_height, layer.kernel_width),
        (layer.stride_height, layer.stride_width),
        (layer.pad_top, layer.pad_left),
    )
    results: list[tuple[tuple[int, ...], type[np.generic]]] = [(shape(role), np.float32)]
    operands: list[Any]
    if layer.mode == "avg":
        forward = pass_ == "forward"
        kernel = pool.average if forward else pool.average_backward
        operands = [tensors["src" if forward else "dst"], *window, layer.count_include_pad]
    elif pass_ == "forward" and propagation == "inference":
        kernel, operands = pool.maximum, [tensors["src"], *window]
    elif pass_ == "forward":
        kernel, operands = pool.maximum_where, [tensors["src"], *window]
        results.append((shape("dst"), np.int32))
    else:
        maxima = cuda.device_array(shape("dst"), np.float32)
        where = cuda.device_array(shape("dst"), np.int32)
        launch = pool.grid(int(np.prod(shape("dst"))))
        pool.maximum_where[(*launch, stream)](maxima, where, tensors["src"], *window)
        stream.synchronize()
        kernel, operands = pool.maximum_backward, [tensors["dst"], where, *window]
    return DeviceOperator(
        kernel,
        pool.grid(int(np.prod(shape(role)))),
        operands,
        results,
        role,
        lambda result: result.reshape(plain[role]),
        stream,
    )


def _upload(tensor: Array) -> Any:
    return cuda.to_device(np.ascontiguousarray(tensor))
