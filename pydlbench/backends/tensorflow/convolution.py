"""Convolutions: ``tf.nn.conv2d`` and the operators that its gradients are made of."""

from __future__ import annotations

import dataclasses
from typing import TYPE_CHECKING, Any

import numpy as np

from pydlbench.backends.tensorflow.padding import padding_of
from pydlbench.backends.tensorflow.recipe import FORMATS, Recipe, from_plain, spatial, to_plain
from pydlbench.backends.tensorflow.runtime import tf

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from numpy.typing import NDArray

    from pydlbench.layers.conv import Conv2d

__all__ = ["convolutions"]

_NAMES = {
    "forward": "Conv2D",
    "backward-data": "Conv2DBackpropInput",
    "backward-weights": "Conv2DBackpropFilter",
}
_DEPTHWISE_NAMES = {
    "forward": "DepthwiseConv2dNative",
    "backward-data": "DepthwiseConv2dNativeBackpropInput",
    "backward-weights": "DepthwiseConv2dNativeBackpropFilter",
}
_READS = {
    "forward": ("src", "weights"),
    "backward-data": ("weights", "dst"),
    "backward-weights": ("src", "dst"),
}
_WRITES = {"forward": "dst", "backward-data": "src", "backward-weights": "weights"}


def convolutions(layer: Conv2d, pass_: str) -> list[Recipe]:
    """Return the ways to compute a pass of a convolution.

    Where no word describes the padding, the images may also be padded first, as models written for
    TensorFlow do: its gradients with explicit padding are not oneDNN's, sum bfloat16 in bfloat16,
    and know neither groups nor dilation.

    A convolution with one group per channel also goes through TensorFlow's operators for just that;
    these have one stride for both directions and, on CPUs, no dilation.
    """
    found = [_recipe(layer, pass_, data_format, "dense") for data_format in FORMATS]
    if padding_of(layer).word == "EXPLICIT":
        found += [_recipe(layer, pass_, data_format, "padded") for data_format in FORMATS]
    dense = layer.dilation_height == layer.dilation_width == 1
    even = layer.stride_height == layer.stride_width
    if layer.groups == layer.in_channels > 1 and dense and even:
        found += [_recipe(layer, pass_, data_format, "depthwise") for data_format in FORMATS]
    return found


def _recipe(layer: Conv2d, pass_: str, data_format: str, way: str) -> Recipe:
    depthwise = way == "depthwise"

    def arranged(role: str, array: NDArray[Any]) -> NDArray[Any]:
        if role != "weights":
            return from_plain(array, data_format)
        if depthwise:  # (height, width, channels, outputs per channel)
            array = array.reshape(layer.in_channels, -1, *array.shape[2:])
            return np.ascontiguousarray(array.transpose(2, 3, 0, 1))
        return np.ascontiguousarray(array.transpose(2, 3, 1, 0))

    def operands(inputs: Mapping[str, NDArray[Any]]) -> tuple[NDArray[Any], ...]:
        return tuple(arranged(role, inputs[role]) for role in _READS[pass_])

    def plain(result: NDArray[Any]) -> NDArray[Any]:
        if pass_ != "backward-weights":
            return to_plain(result, data_format)
        if depthwise:
            return result.transpose(2, 3, 0, 1).reshape(layer.out_channels, 1, *result.shape[:2])
        return result.transpose(3, 2, 0, 1)

    filters = "hwcm" if depthwise else "hwio"
    images = data_format.lower()
    functions = {"dense": _dense, "padded": _padded, "depthwise": _depthwise}
    name = (_DEPTHWISE_NAMES if depthwise else _NAMES)[pass_]
    details = [f"{layer.groups} groups"] if layer.groups > 1 else []
    if max(layer.dilation_height, layer.dilation_width) > 1:
        details.append("dilation")
    return Recipe(
        algorithm=f"Pad, {name}" if way == "padded" else name,
        layout=f"src {images}, weights {filters}, dst {images}",
        variant=images,
        function=functions[way](layer, pass_, data_format),
        operands=operands,
        result=_WRITES[pass_],
        plain=plain,
        detail=f"with {' and '.join(details)}" if details else "",
    )


def _dense(layer: Conv2d, pass_: str, data_format: str) -> Callable[..., Any]:
    padding = padding_of(layer)
    strides = spatial(data_format, layer.stride_height, layer.stride_width)
    dilations = spatial(data_format, layer.dilation_height, layer.dilation_width)
    if pass_ == "forward":

        def forward(source: Any, weights: Any) -> Any:
            pads = padding.pairs(data_format)
            return tf.nn.conv2d(source, weights, strides, pads, data_format, dilations)

        return forward
    rest = {
        "strides": strides,
        "padding": padding.word,
        "explicit_paddings": padding.explicit(data_format),
        "data_format": data_format,
        "dilations": dilations,
    }
    if pass_ == "backward-data":
        shape = _image_shape(layer, data_format)

        def backward_data(weights: Any, gradient: Any) -> Any:
            return tf.raw_ops.Conv2DBackpropInput(
                input_sizes=shape, filter=weights, out_backprop=gradient, **rest
            )

        return backward_data
    taps = layer.kernel_height, layer.kernel_width
    sizes = [*taps, layer.in_channels // layer.groups, layer.out_channels]

    def backward_weights(source: Any, gradient: Any) -> Any:
        return tf.raw_ops.Conv2DBackpropFilter(
            input=source, filter_sizes=sizes, out_backprop=gradient, **rest
        )

    return backward_weights


def _padded(layer: Conv2d, pass_: str, data_format: str) -> Callable[..., Any]:
    """Pad the source in an operator of its own; its gradient is cut out of the padded one's."""
    whole = dataclasses.replace(
        layer,
        in_height=layer.in_height + layer.pad_top + layer.pad_bottom,
        in_width=layer.in_width + layer.pad_left + layer.pad_right,
        pad_top=0,
        pad_bottom=0,
        pad_left=0,
        pad_right=0,
    )
    inner = _dense(whole, pass_, data_format)
    if pass_ != "backward-data":
        pads = padding_of(layer).pairs(data_format)
        return lambda source, other: inner(tf.pad(source, pads), other)
    begin = [extent - 1 for extent in spatial(data_format, layer.pad_top + 1, layer.pad_left + 1)]
    shape = _image_shape(layer, data_format)
    return lambda weights, gradient: tf.slice(inner(weights, gradient), begin, shape)


def _depthwise(layer: Conv2d, pass_: str, data_format: str) -> Callable[..., Any]:
    padding = padding_of(layer)
    rest = {
        "strides": spatial(data_format, layer.stride_height, layer.stride_width),
        "padding": padding.word,
        "explicit_paddings": padding.explicit(data_format),
        "data_format": data_format,
    }
    if pass_ == "forward":

        def forward(source: Any, weights: Any) -> Any:
            return tf.raw_ops.DepthwiseConv2dNative(input=source, filter=weights, **rest)

        return forward
    if pass_ == "backward-data":
        shape = _image_shape(layer, data_format)

        def backward_data(weights: Any, gradient: Any) -> Any:
            return tf.raw_ops.DepthwiseConv2dNativeBackpropInput(
                input_sizes=shape, filter=weights, out_backprop=gradient, **rest
            )

        return backward_data
    taps = layer.kernel_height, layer.kernel_width
    sizes = [*taps, layer.in_channels, layer.out_channels // layer.in_channels]

    def backward_weights(source: Any, gradient: Any) -> Any:
        return tf.raw_ops.DepthwiseConv2dNativeBackpropFilter(
            input=source, filter_sizes=sizes, out_backprop=gradient, **rest
        )

    return backward_weights


def _image_shape(layer: Conv2d, data_format: str) -> list[int]:
    if data_format == "NHWC":
        return [layer.batch, layer.in_height, layer.in_width, layer.in_channels]
    return [layer.batch, layer.in_channels, layer.in_height, layer.in_width]
