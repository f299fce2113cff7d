"""Layers as functions of JAX, with their gradients: linear maps transposed, maxima differentiated.

The functions themselves (:func:`convolution`, :func:`product`, :func:`pooling`) are a network's
too.

A convolution is linear in its source and in its weights, a product in either matrix, an average in
its source: what a backward pass computes is the transpose of that map, and nothing of the forward
pass is computed beside it.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
from jax import ShapeDtypeStruct, lax, linear_transpose, vjp
from jax import numpy as jnp

from pydlbench.backends.frameworks.backend import Variant, entry_of
from pydlbench.backends.frameworks.layouts import (
    arranged,
    arranged_matrices,
    arranged_shape,
    plain,
    plain_matrices,
)
from pydlbench.backends.jax.operator import JaxOperator

if TYPE_CHECKING:
    from collections.abc import Callable

    from numpy.typing import NDArray

    from pydlbench.backends.jax.settings import Place
    from pydlbench.ops.op import Layer

    Array = NDArray[Any]

#: The layout of filters by that of images.
FILTERS = {"nchw": "oihw", "nhwc": "hwio"}


# -----------------------------------------------------------------------------
# What JAX computes for a layer.


def convolution(layer: Layer, images: str) -> Callable[[Any, Any], Any]:
    """Return a convolution, transposed or not, as a function of images and filters.

    Args:
        layer: the convolution.
        images: their layout, ``nhwc`` or ``nchw``.
    """
    if layer.op == "deconv":
        forward = convolution(layer.convolution, images)
        result = arranged_shape(layer.shapes()["dst"], images)

        def transposed(source: Any, weights: Any) -> Any:
            like = ShapeDtypeStruct(result, source.dtype)
            return linear_transpose(lambda one: forward(one, weights), like)(source)[0]

        return transposed

    def convolve(source: Any, weights: Any) -> Any:
        return lax.conv_general_dilated(
            source,
            weights,
            window_strides=layer.stride,
            padding=(
                (layer.pad_before[0], layer.pad_after[0]),
                (layer.pad_before[1], layer.pad_after[1]),
            ),
            rhs_dilation=layer.dilation,
            dimension_numbers=(images.upper(), FILTERS[images].upper(), images.upper()),
            feature_group_count=layer.groups,
        )

    return convolve


def product(layer: Layer, *, transposed: bool = False) -> Callable[[Any, Any], Any]:
    """Return a product, or several, as a function of both factors.

    Args:
        layer: the product.
        transposed: whether weights are stored with their columns as rows.
    """
    batch = "" if layer.batch_count == 1 else "b"
    equation = f"{batch}mk,{batch}{'nk' if transposed else 'kn'}->{batch}mn"
    return lambda source, weights: jnp.einsum(equation, source, weights)


def pooling(layer: Layer, images: str) -> Callable[[Any], Any]:
    """Return a pooling as a function of images.

    Args:
        layer: the pooling.
        images: their layout, ``nhwc`` or ``nchw``.
    """
    spatial = slice(1, 3) if images == "nhwc" else slice(2, 4)

    def around(pair: tuple[Any, Any], others: Any) -> tuple[Any, ...]:
        """Return what holds for rows and columns in their places, with ``others`` elsewhere."""
        found = [others] * 4
        found[spatial] = pair
        return tuple(found)

    window = around(layer.kernel, 1)
    strides = around(layer.stride, 1)
    pads = ((layer.pad_before[0], layer.pad_after[0]), (layer.pad_before[1], layer.pad_after[1]))
    padding = around(pads, (0, 0))
    rows, columns = layer.elements_inside
    if layer.count_include_pad:
        rows = [layer.kernel[0]] * layer.out_size[0]
        columns = [layer.kernel[1]] * layer.out_size[1]
    sizes = np.multiply.outer(rows, columns).astype(np.float32)
    sizes = sizes[..., None] if images == "nhwc" else sizes

    def pool(source: Any) -> Any:
        if layer.mode == "max":
            return lax.reduce_window(source, -np.inf, lax.max, window, strides, padding)
        sums = lax.reduce_window(source, 0.0, lax.add, window, strides, padding)
        return sums / jnp.asarray(sizes, source.dtype)

    return pool


# -----------------------------------------------------------------------------
# The ways to compute a pass of a layer alone.


def conv_variant(layer: Layer, pass_: str, images: str, place: Place) -> Variant:
    """Return a pass of a convolution on images in a layout."""
    assert layer.op == "conv"
    filters = FILTERS[images]
    orders = {"src": images, "weights": filters, "dst": images}
    role = layer.result(pass_)
    shapes = {one: arranged_shape(shape, orders[one]) for one, shape in layer.shapes().items()}
    return _variant(
        place,
        algorithm=_name("lax.conv_general_dilated", pass_),
        layout=f"src {images}, weights {filters}, dst {images}",
        variant=images,
        function=_of_pass(convolution(layer, images), pass_, shapes, place),
        reads=layer.reads(pass_),
        role=role,
        arrange=lambda one, array: arranged(array, orders[one]),
        plain=lambda result: plain(result, orders[role]),
    )


def gemm_variant(layer: Layer, pass_: str, variant: str, place: Place) -> Variant:
    """Return a pass of a product, with weights ``plain`` or ``transposed``."""
    assert layer.op == "gemm"
    transposed = variant == "transposed"
    role = layer.result(pass_)

    def arrange(name: str, array: Array) -> Array:
        return arranged_matrices(layer, name, array, transposed=transposed)

    shapes = {
        name: arrange(name, np.broadcast_to(np.float32(0), shape)).shape
        for name, shape in layer.shapes().items()
    }
    return _variant(
        place,
        algorithm=_name("lax.dot_general", pass_),
        layout=f"src mk, weights {'nk' if transposed else 'kn'}, dst mn",
        variant=variant,
        function=_of_pass(product(layer, transposed=transposed), pass_, shapes, place),
        reads=layer.reads(pass_),
        role=role,
        arrange=arrange,
        plain=lambda result: plain_matrices(layer, role, result, transposed=transposed),
    )


def pool_variant(layer: Layer, pass_: str, images: str, place: Place) -> Variant:
    """Return a pass of a pooling on images in a layout; sums are kept in the storage type."""
    assert layer.op == "pool"
    pool = pooling(layer, images)
    shape = arranged_shape(layer.shapes()["src"], images)
    function: Callable[..., Any] = pool
    if pass_ != "forward" and layer.mode == "max":

        def function(source: Any, gradient: Any) -> Any:
            return vjp(pool, source)[1](gradient)[0]

    elif pass_ != "forward":

        def function(gradient: Any) -> Any:
            return linear_transpose(pool, _like(shape, place))(gradient)[0]

    return _variant(
        place,
        algorithm=_name("lax.reduce_window", pass_),
        layout=f"src {images}, dst {images}",
        variant=images,
        function=function,
        reads=layer.reads(pass_),
        role=layer.result(pass_),
        arrange=lambda _, array: arranged(array, images),
        plain=lambda result: plain(result, images),
        accumulate=place.numbers.dtype,
    )


def _variant(
    place: Place,
    *,
    algorithm: str,
    layout: str,
    variant: str,
    function: Callable[..., Any],
    reads: tuple[str, ...],
    role: str,
    arrange: Callable[[str, Array], Array],
    plain: Callable[[Array], Array],
    accumulate: str = "",
) -> Variant:
    """Return a way to compute a pass of a layer.

    Args:
        place: where it is computed, and in what.
        algorithm: the function, by JAX's name.
        layout: the layouts of its operands.
        variant: what ``--layout`` chooses by.
        function: what is compiled; takes the operands.
        reads: roles of the operands, in their order.
        role: of the result.
        arrange: brings a role's plain array into its layout.
        plain: brings the result back.
        accumulate: format of sums; empty is that of sums of products.
    """

    def build(inputs: dict[str, Array]) -> JaxOperator:
        operands = [arrange(one, inputs[one]) for one in reads]
        return JaxOperator(function, operands, role, plain, place)

    return Variant(
        algorithm=algorithm,
        layout=layout,
        variant=variant,
        build=build,
        accumulate=accumulate or place.numbers.accumulate,
    )


def _like(shape: tuple[int, ...], place: Place) -> Any:
    return ShapeDtypeStruct(shape, jnp.dtype(place.numbers.dtype))


def _of_pass(
    forward: Callable[[Any, Any], Any],
    pass_: str,
    shapes: dict[str, tuple[int, ...]],
    place: Place,
) -> Callable[..., Any]:
    """Return the function of a pass of what is linear in its source and in its weights.

    Args:
        forward: takes source and weights.
        pass_: which one.
        shapes: of the arranged tensors, by role.
        place: for their type.
    """
    if pass_ == "forward":
        return forward
    if pass_ == "backward-data":
        source = _like(shapes["src"], place)
        return lambda weights, gradient: linear_transpose(
            lambda one: forward(one, weights), source
        )(gradient)[0]
    filters = _like(shapes["weights"], place)
    return lambda source, gradient: linear_transpose(lambda one: forward(source, one), filters)(
        gradient
    )[0]


def _name(function: str, pass_: str) -> str:
    return function if pass_ == "forward" else f"gradient of {function}"


#: What makes a variant of a layer's pass from its word, and the words there are, by kind of layer.
LAYERS: dict[str, tuple[Callable[[Layer, str, str, Place], Variant], tuple[str, ...]]] = {
    "conv": (conv_variant, ("nchw", "nhwc")),
    "gemm": (gemm_variant, ("plain", "transposed")),
    "pool": (pool_variant, ("nchw", "nhwc")),
}


def variants_of(layer: Layer, pass_: str, place: Place) -> list[Variant]:
    """Return the ways to compute a pass of a layer.

    Args:
        layer: the layer.
        pass_: which one.
        place: where it is computed, and in what.

    Raises:
        UnsupportedError: JAX has no such layers here.
    """
    make, words = entry_of("jax", LAYERS, layer)
    return [make(layer, pass_, word, place) for word in words]
