"""Layers as functions of JAX, with their gradients: linear maps transposed, maxima differentiated.

A convolution is linear in its source and in its weights, a product in either matrix, an average in
its source: what a backward pass computes is the transpose of that map, and nothing of the forward
pass is computed beside it.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
from jax import ShapeDtypeStruct, lax, linear_transpose, vjp

from pydlbench.layers.conv import Conv2d
from pydlbench.layers.gemm import Gemm
from pydlbench.layers.layer import result_role
from pydlbench.layers.pool import Pool2d

if TYPE_CHECKING:
    from collections.abc import Callable

    from numpy.typing import NDArray

    from pydlbench.layers.layer import Layer

    Array = NDArray[Any]

__all__ = ["Recipe", "recipes"]

# Axes of a plain tensor in the order of a layout, and back: (N, C, H, W), (O, I, H, W).
_ORDERS = {"nchw": (0, 1, 2, 3), "oihw": (0, 1, 2, 3), "nhwc": (0, 2, 3, 1), "hwio": (2, 3, 1, 0)}
_FILTERS = {"nchw": "oihw", "nhwc": "hwio"}
_READS = {
    "forward": ("src", "weights"),
    "backward-data": ("weights", "dst"),
    "backward-weights": ("src", "dst"),
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Recipe:
    """One way to compute a pass of a layer.

    Attributes:
        algorithm: the function, by JAX's name.
        layout: the layouts of its operands.
        variant: what ``--layout`` chooses by.
        function: what is compiled; takes the operands.
        reads: roles of the operands, in their order.
        role: of the result.
        arrange: brings a role's plain array into its layout.
        plain: brings the result back.
    """

    algorithm: str
    layout: str
    variant: str
    function: Callable[..., Any]
    reads: tuple[str, ...]
    role: str
    arrange: Callable[[str, Array], Array]
    plain: Callable[[Array], Array]


def recipes(layer: Layer, pass_: str) -> list[Recipe]:
    """Return the ways to compute a pass of a layer; nothing for layers that have none.

    Args:
        layer: the problem.
        pass_: one of the layer's passes.
    """
    if isinstance(layer, Conv2d):
        return [_conv(layer, pass_, images) for images in _FILTERS]
    if isinstance(layer, Gemm):
        return [_gemm(layer, pass_, transposed) for transposed in (False, True)]
    if isinstance(layer, Pool2d):
        return [_pool(layer, pass_, images) for images in _FILTERS]
    return []


def _conv(layer: Conv2d, pass_: str, images: str) -> Recipe:
    filters = _FILTERS[images]
    orders = {"src": images, "weights": filters, "dst": images}

    def convolve(source: Any, weights: Any) -> Any:
        return lax.conv_general_dilated(
            source,
            weights,
            window_strides=(layer.stride_height, layer.stride_width),
            padding=((layer.pad_top, layer.pad_bottom), (layer.pad_left, layer.pad_right)),
            rhs_dilation=(layer.dilation_height, layer.dilation_width),
            dimension_numbers=(images.upper(), filters.upper(), images.upper()),
            feature_group_count=layer.groups,
        )

    shapes = {role: _arranged_shape(layer, role, order) for role, order in orders.items()}
    return Recipe(
        algorithm=_name("lax.conv_general_dilated", pass_),
        layout=f"src {images}, weights {filters}, dst {images}",
        variant=images,
        function=_of_pass(convolve, pass_, shapes),
        reads=_READS[pass_],
        role=result_role(layer, pass_),
        arrange=lambda role, array: _arranged(array, orders[role]),
        plain=lambda result: _plain(result, orders[result_role(layer, pass_)]),
    )


def _gemm(layer: Gemm, pass_: str, transposed: bool) -> Recipe:
    matrix = "nk" if transposed else "kn"
    single = layer.batch_count == 1
    batch = "" if single else "b"
    equation = f"{batch}mk,{batch}{matrix}->{batch}mn"
    role = result_role(layer, pass_)

    def arrange(name: str, array: Array) -> Array:
        array = array.swapaxes(1, 2) if transposed and name == "weights" else array
        return np.ascontiguousarray(array[0] if single else array)

    def plain(result: Array) -> Array:
        result = result[None] if single else result
        return result.swapaxes(1, 2) if transposed and role == "weights" else result

    def multiply(source: Any, weights: Any) -> Any:
        from jax.numpy import einsum

        return einsum(equation, source, weights)

    shapes = {
        name: arrange(name, np.broadcast_to(np.float32(0), shape)).shape
        for name, shape in layer.shapes().items()
    }
    return Recipe(
        algorithm=_name("lax.dot_general", pass_),
        layout=f"src mk, weights {matrix}, dst mn",
        variant="transposed" if transposed else "plain",
        function=_of_pass(multiply, pass_, shapes),
        reads=_READS[pass_],
        role=role,
        arrange=arrange,
        plain=plain,
    )


def _pool(layer: Pool2d, pass_: str, images: str) -> Recipe:
    spatial = slice(1, 3) if images == "nhwc" else slice(2, 4)

    def around(pair: tuple[Any, Any], others: Any) -> tuple[Any, ...]:
        """Return what holds for rows and columns in their places, with ``others`` elsewhere."""
        found = [others] * 4
        found[spatial] = pair
        return tuple(found)

    window = around((layer.kernel_height, layer.kernel_width), 1)
    strides = around((layer.stride_height, layer.stride_width), 1)
    pads = ((layer.pad_top, layer.pad_bottom), (layer.pad_left, layer.pad_right))
    padding = around(pads, (0, 0))
    sizes = _inside(layer)[(slice(None), slice(None), None) if images == "nhwc" else ...]

    def pool(source: Any) -> Any:
        if layer.mode == "max":
            return lax.reduce_window(source, -np.inf, lax.max, window, strides, padding)
        return lax.reduce_window(source, 0.0, lax.add, window, strides, padding) / sizes

    shape = _arranged_shape(layer, "src", images)
    function: Callable[..., Any] = pool
    reads: tuple[str, ...] = ("src",)
    if pass_ != "forward" and layer.mode == "max":
        reads = ("src", "dst")

        def function(source: Any, gradient: Any) -> Any:
            return vjp(pool, source)[1](gradient)[0]

    elif pass_ != "forward":
        reads = ("dst",)

        def function(gradient: Any) -> Any:
            return linear_transpose(pool, ShapeDtypeStruct(shape, np.float32))(gradient)[0]

    return Recipe(
        algorithm=_name("lax.reduce_window", pass_),
        layout=f"src {images}, dst {images}",
        variant=images,
        function=function,
        reads=reads,
        role=result_role(layer, pass_),
        arrange=lambda _, array: _arranged(array, images),
        plain=lambda result: _plain(result, images),
    )


def _of_pass(
    forward: Callable[[Any, Any], Any], pass_: str, shapes: dict[str, tuple[int, ...]]
) -> Callable[..., Any]:
    """Return the function of a pass of what is linear in its source and in its weights.

    Args:
        forward: takes source and weights.
        pass_: which one.
        shapes: of the arranged tensors, by role.
    """
    if pass_ == "forward":
        return forward
    if pass_ == "backward-data":
        source = ShapeDtypeStruct(shapes["src"], np.float32)
        return lambda weights, gradient: linear_transpose(
            lambda one: forward(one, weights), source
        )(gradient)[0]
    filters = ShapeDtypeStruct(shapes["weights"], np.float32)
    return lambda source, gradient: linear_transpose(lambda one: forward(source, one), filters)(
        gradient
    )[0]


def _name(function: str, pass_: str) -> str:
    return function if pass_ == "forward" else f"gradient of {function}"


def _inside(layer: Pool2d) -> NDArray[np.float32]:
    """Return how many elements each average is over, by output row and column."""

    def along(size: int, out: int, window: int, stride: int, lead: int) -> Array:
        start = np.arange(out) * stride - lead
        inside = np.minimum(start + window, size) - np.maximum(start, 0)
        return np.full(out, window) if layer.count_include_pad else inside

    height, width = layer.in_height, layer.in_width
    rows = along(height, layer.out_height, layer.kernel_height, layer.stride_height, layer.pad_top)
    columns = along(width, layer.out_width, layer.kernel_width, layer.stride_width, layer.pad_left)
    counts: Array = np.multiply.outer(rows, columns)
    return counts.astype(np.float32)


def _arranged(array: Array, layout: str) -> Array:
    return np.ascontiguousarray(array.transpose(_ORDERS[layout]))


def _plain(array: Array, layout: str) -> Array:
    return array.transpose(np.argsort(_ORDERS[layout]))


def _arranged_shape(layer: Layer, role: str, layout: str) -> tuple[int, ...]:
    shape = layer.shapes()[role]
    return tuple(shape[axis] for axis in _ORDERS[layout])
