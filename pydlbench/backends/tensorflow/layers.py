"""Convolutions, products and poolings as TensorFlow's operators, with those of their gradients."""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from pydlbench.backends.tensorflow.operator import (
    FORMATS,
    Recipe,
    RolesRecipe,
    as_they_are,
    from_plain,
    spatial,
    to_plain,
    unused_plain,
)
from pydlbench.backends.tensorflow.runtime import tf
from pydlbench.errors import UnsupportedError
from pydlbench.layers.conv import Conv2d
from pydlbench.layers.window import extent

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from numpy.typing import NDArray

    from pydlbench.layers.deconv import Deconv2d
    from pydlbench.layers.gemm import Gemm
    from pydlbench.layers.pool import Pool2d

__all__ = [
    "bias_sums",
    "convolutions",
    "padding_of",
    "poolings",
    "products",
    "transposed_convolutions",
    "with_bias",
]


# -----------------------------------------------------------------------------
# Convolutions and products with a bias: two operators in one graph, which TensorFlow may fuse.
#
# In graph mode Grappler makes one kernel of ``Conv2D`` or ``MatMul`` and ``BiasAdd``; XLA fuses on
# its own. The gradient of the bias is an operator of its own beside that of the weights.


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


# -----------------------------------------------------------------------------
# Products of matrices: ``tf.linalg.matmul``, with weights as they are or stored transposed.


def products(layer: Gemm, pass_: str) -> list[Recipe]:
    """Return the ways to compute a pass of a product: its weights lie one way or the other."""
    return [_product_recipe(layer, pass_, transposed) for transposed in (False, True)]


def _product_recipe(layer: Gemm, pass_: str, transposed: bool) -> Recipe:
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


# -----------------------------------------------------------------------------
# Padding in TensorFlow's words: ``VALID``, ``SAME``, or four numbers.


@dataclass(frozen=True, slots=True, kw_only=True)
class Padding:
    """Padding of one layer.

    Attributes:
        word: ``VALID``, ``SAME`` or ``EXPLICIT``: a word means what the numbers say, exactly.
        rows: padding above and below.
        columns: padding left and right.
    """

    word: str
    rows: tuple[int, int]
    columns: tuple[int, int]

    def explicit(self, data_format: str) -> list[int]:
        """Return the pads of all four dimensions one after the other; empty with a word."""
        if self.word != "EXPLICIT":
            return []
        if data_format == "NHWC":
            return [0, 0, *self.rows, *self.columns, 0, 0]
        return [0, 0, 0, 0, *self.rows, *self.columns]

    def pairs(self, data_format: str) -> str | list[list[int]]:
        """Return what ``tf.nn.conv2d`` takes: the word, or a pair for each dimension."""
        flat = self.explicit(data_format)
        return [flat[i : i + 2] for i in range(0, 8, 2)] if flat else self.word

    def __str__(self) -> str:
        """Return the four numbers in words."""
        (top, bottom), (left, right) = self.rows, self.columns
        return f"{top} above, {bottom} below, {left} left and {right} right"


def padding_of(layer: Conv2d | Pool2d) -> Padding:
    """Return a layer's padding, by a word where one says the same."""
    dilations = (1, 1)
    if isinstance(layer, Conv2d):
        dilations = layer.dilation_height, layer.dilation_width
    rows = _words(
        layer.in_height,
        layer.out_height,
        extent(layer.kernel_height, dilations[0]),
        layer.stride_height,
        layer.pad_top,
    )
    columns = _words(
        layer.in_width,
        layer.out_width,
        extent(layer.kernel_width, dilations[1]),
        layer.stride_width,
        layer.pad_left,
    )
    common = [word for word in rows if word in columns]
    return Padding(
        word=common[0] if common else "EXPLICIT",
        rows=(layer.pad_top, layer.pad_bottom),
        columns=(layer.pad_left, layer.pad_right),
    )


def _words(size: int, out: int, window: int, stride: int, leading: int) -> list[str]:
    """Return the words that give these outputs and this leading pad along one axis.

    The outputs and the leading pad decide which element meets which tap; what is left over at the
    end is padding in either case.
    """
    words = []
    if leading == 0 and out == (size - window) // stride + 1:
        words.append("VALID")
    total = max(0, (out - 1) * stride + window - size)
    if out == -(-size // stride) and leading == total // 2:
        words.append("SAME")
    return words


# -----------------------------------------------------------------------------
# Convolutions: ``tf.nn.conv2d`` and the operators that its gradients are made of.

_CONV_NAMES = {
    "forward": "Conv2D",
    "backward-data": "Conv2DBackpropInput",
    "backward-weights": "Conv2DBackpropFilter",
}
_DEPTHWISE_NAMES = {
    "forward": "DepthwiseConv2dNative",
    "backward-data": "DepthwiseConv2dNativeBackpropInput",
    "backward-weights": "DepthwiseConv2dNativeBackpropFilter",
}
_CONV_READS = {
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
    found = [_conv_recipe(layer, pass_, data_format, "dense") for data_format in FORMATS]
    if padding_of(layer).word == "EXPLICIT":
        found += [_conv_recipe(layer, pass_, data_format, "padded") for data_format in FORMATS]
    dense = layer.dilation_height == layer.dilation_width == 1
    even = layer.stride_height == layer.stride_width
    if layer.groups == layer.in_channels > 1 and dense and even:
        found += [_conv_recipe(layer, pass_, data_format, "depthwise") for data_format in FORMATS]
    return found


def transposed_convolutions(layer: Deconv2d, pass_: str) -> list[Recipe]:
    """Return the ways to compute a pass of a transposed convolution.

    What ``tf.nn.conv2d_transpose`` calls is the gradient of a convolution, and its gradients are
    the convolution and that of its weights: the same operators, with the images exchanged.
    """
    return [
        _exchanged(one) for one in convolutions(layer.convolution, layer.pass_of_convolution(pass_))
    ]


def _exchanged(recipe: Recipe) -> Recipe:
    """Return a recipe that calls what it reads and writes ``src`` where it was ``dst``."""
    other = {"src": "dst", "dst": "src", "weights": "weights"}

    def operands(inputs: Mapping[str, NDArray[Any]]) -> tuple[NDArray[Any], ...]:
        return recipe.operands({other[role]: array for role, array in inputs.items()})

    return dataclasses.replace(recipe, operands=operands, result=other[recipe.result])


def _conv_recipe(layer: Conv2d, pass_: str, data_format: str, way: str) -> Recipe:
    depthwise = way == "depthwise"

    def arranged(role: str, array: NDArray[Any]) -> NDArray[Any]:
        if role != "weights":
            return from_plain(array, data_format)
        if depthwise:  # (height, width, channels, outputs per channel)
            array = array.reshape(layer.in_channels, -1, *array.shape[2:])
            return np.ascontiguousarray(array.transpose(2, 3, 0, 1))
        return np.ascontiguousarray(array.transpose(2, 3, 1, 0))

    def operands(inputs: Mapping[str, NDArray[Any]]) -> tuple[NDArray[Any], ...]:
        return tuple(arranged(role, inputs[role]) for role in _CONV_READS[pass_])

    def plain(result: NDArray[Any]) -> NDArray[Any]:
        if pass_ != "backward-weights":
            return to_plain(result, data_format)
        if depthwise:
            return result.transpose(2, 3, 0, 1).reshape(layer.out_channels, 1, *result.shape[:2])
        return result.transpose(3, 2, 0, 1)

    filters = "hwcm" if depthwise else "hwio"
    images = data_format.lower()
    functions = {"dense": _dense, "padded": _padded, "depthwise": _depthwise}
    name = (_DEPTHWISE_NAMES if depthwise else _CONV_NAMES)[pass_]
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


# -----------------------------------------------------------------------------
# Pooling: ``MaxPool`` and ``AvgPool`` with their gradients.

_POOL_NAMES = {
    ("max", "forward"): "MaxPool",
    ("max", "backward-data"): "MaxPoolGrad",
    ("avg", "forward"): "AvgPool",
    ("avg", "backward-data"): "AvgPoolGrad",
}
_POOL_READS = {
    ("max", "forward"): ("src",),
    ("max", "backward-data"): ("src", "dst"),
    ("avg", "forward"): ("src",),
    ("avg", "backward-data"): ("dst",),
}


def poolings(layer: Pool2d, pass_: str) -> list[Recipe]:
    """Return the ways to compute a pass of a pooling.

    Raises:
        UnsupportedError: an average that TensorFlow has not: over padding, or padded in a way that
            neither of its two words describes.
    """
    padding = padding_of(layer)
    if layer.mode == "avg" and padding.word != "VALID":
        if layer.count_include_pad:
            raise UnsupportedError("TensorFlow's averages leave padding out of the count")
        if padding.word == "EXPLICIT":
            raise UnsupportedError(
                f"TensorFlow's averages are padded as SAME or VALID, not {padding}"
            )
    return [_pool_recipe(layer, pass_, data_format) for data_format in FORMATS]


def _pool_recipe(layer: Pool2d, pass_: str, data_format: str) -> Recipe:
    which = layer.mode, pass_

    def operands(inputs: Mapping[str, NDArray[Any]]) -> tuple[NDArray[Any], ...]:
        return tuple(from_plain(inputs[role], data_format) for role in _POOL_READS[which])

    def plain(result: NDArray[Any]) -> NDArray[Any]:
        return to_plain(result, data_format)

    images = data_format.lower()
    maxima = which == ("max", "backward-data")
    return Recipe(
        algorithm=_POOL_NAMES[which],
        layout=f"src {images}, dst {images}",
        variant=images,
        function=_function(layer, pass_, data_format),
        operands=operands,
        result="dst" if pass_ == "forward" else "src",
        plain=plain,
        complete=_with_maxima(layer, data_format) if maxima else as_they_are,
        # Overlapping windows' gradients are added up in the gradient itself.
        sums="stored" if maxima else "float32",
    )


def _function(layer: Pool2d, pass_: str, data_format: str) -> Callable[..., Any]:
    window = _window(layer, data_format)
    if layer.mode == "max":
        window["explicit_paddings"] = padding_of(layer).explicit(data_format)
        if pass_ == "forward":
            return lambda source: tf.raw_ops.MaxPool(input=source, **window)
        return lambda source, maxima, gradient: tf.raw_ops.MaxPoolGrad(
            orig_input=source, orig_output=maxima, grad=gradient, **window
        )
    if pass_ == "forward":
        return lambda source: tf.raw_ops.AvgPool(value=source, **window)
    shape = [layer.batch, layer.channels, layer.in_height, layer.in_width]
    if data_format == "NHWC":
        shape = [shape[0], *shape[2:], shape[1]]
    return lambda gradient: tf.raw_ops.AvgPoolGrad(orig_input_shape=shape, grad=gradient, **window)


def _window(layer: Pool2d, data_format: str) -> dict[str, Any]:
    return {
        "ksize": spatial(data_format, layer.kernel_height, layer.kernel_width),
        "strides": spatial(data_format, layer.stride_height, layer.stride_width),
        "padding": padding_of(layer).word,
        "data_format": data_format,
    }


def _with_maxima(layer: Pool2d, data_format: str) -> Callable[[Sequence[Any]], Sequence[Any]]:
    """Add the result of the forward pass, which TensorFlow's backward pass reads as well."""

    def complete(tensors: Sequence[Any]) -> Sequence[Any]:
        source, gradient = tensors
        # In NHWC, which every device has.
        moved = source if data_format == "NHWC" else tf.transpose(source, [0, 2, 3, 1])
        maxima = _function(layer, "forward", "NHWC")(moved)
        if data_format != "NHWC":
            maxima = tf.transpose(maxima, [0, 3, 1, 2])
        return source, maxima, gradient

    return complete
