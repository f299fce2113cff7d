"""Convolutions, products and poolings as TensorFlow's operators, with those of their gradients.

Each kind of layer is a class that says what TensorFlow calls for it, tensors in and tensors out. A
layer that is timed alone is made of its passes; a network calls it forward and has a tape
differentiate it, which comes to the same operators.
"""

from __future__ import annotations

import abc
import dataclasses
import math
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

import numpy as np

from pydlbench.backends.frameworks.backend import entry_of
from pydlbench.backends.frameworks.layouts import (
    arranged,
    arranged_matrices,
    arranged_shape,
    plain,
    plain_matrices,
)
from pydlbench.backends.tensorflow.operator import (
    FORMATS,
    InNetwork,
    LayerCalls,
    Recipe,
    only,
    pads_around,
    spatial,
)
from pydlbench.backends.tensorflow.pointwise import POINTWISE
from pydlbench.backends.tensorflow.settings import tf
from pydlbench.errors import UnsupportedError
from pydlbench.ops.axis import Axis, extent
from pydlbench.ops.windows import PASS_OF_CONVOLUTION, on_padded_images

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from numpy.typing import NDArray

    from pydlbench.backends.tensorflow.operator import Phase
    from pydlbench.ops.op import Layer
    from pydlbench.records.specs import KernelSpec


# -----------------------------------------------------------------------------
# What TensorFlow calls for a layer, and what a recipe and a network make of it.


class Calls(InNetwork):
    """What TensorFlow calls for one layer, in one layout.

    Its methods ``forward``, ``backward_data`` and ``backward_weights`` take the tensors that the
    layer's pass reads, in the order of its roles, and return what it writes.

    Args:
        data_format: ``NHWC`` or ``NCHW``; where ``BiasAdd`` finds the channels.
    """

    #: What is special about the problem, for refusals: ``with 2 groups``.
    detail = ""

    def __init__(self, data_format: str) -> None:
        self.data_format = data_format

    @property
    def images(self) -> str:
        """The layout of images, as rows of tables spell it."""
        return self.data_format.lower()

    @property
    def variant(self) -> str:
        """What ``--layout`` chooses by."""
        return self.images

    @property
    @abc.abstractmethod
    def layout(self) -> str:
        """The layouts of all operands, for the reader."""

    @abc.abstractmethod
    def algorithm(self, pass_: str) -> str:
        """Return TensorFlow's names of the operators of a pass."""

    @abc.abstractmethod
    def forward(self, *args: Any, **kwargs: Any) -> Any:
        """Return the layer's output."""

    def arranged(self, role: str, array: NDArray[Any]) -> NDArray[Any]:
        """Return a plain tensor as the operators want it, contiguous."""
        del role
        return arranged(array, self.images)

    def plain(self, role: str, array: NDArray[Any]) -> NDArray[Any]:
        """Return a tensor of the operators' as a plain one."""
        del role
        return plain(array, self.images)

    def recipe(self, layer: Layer, pass_: str) -> Recipe:
        """Return how a pass is computed alone."""
        (result,) = layer.writes(pass_)

        def operands(inputs: Mapping[str, NDArray[Any]]) -> tuple[NDArray[Any], ...]:
            return tuple(self.arranged(role, inputs[role]) for role in layer.reads(pass_))

        return Recipe(
            algorithm=self.algorithm(pass_),
            layout=self.layout,
            variant=self.variant,
            function=getattr(self, pass_.replace("-", "_")),
            operands=operands,
            by_role=only(result, lambda array: self.plain(result, array)),
            detail=self.detail,
        )

    def output(self, inputs: Sequence[Any], own: Mapping[str, Any], phase: Phase) -> Any:
        """Return the layer's output, with a bias where it has one."""
        del phase
        weights = [own["weights"]] if "weights" in own else []
        found = self.forward(*inputs, *weights)
        return tf.nn.bias_add(found, own["bias"], self.data_format) if "bias" in own else found


# -----------------------------------------------------------------------------
# Convolutions and products with a bias: two operators in one graph, which TensorFlow may fuse.
#
# In graph mode Grappler makes one kernel of ``Conv2D`` or ``MatMul`` and ``BiasAdd``; XLA fuses on
# its own. The gradient of the bias is an operator of its own beside that of the weights.


def product_recipes(layer: Layer, case: KernelSpec, ways: Iterable[Calls]) -> list[Recipe]:
    """Return how a pass is computed alone, with a bias where the case fuses one."""
    found = [one.recipe(layer, case.pass_) for one in ways]
    return [with_bias(one, case.pass_) for one in found] if case.fuse == "bias" else found


def with_bias(recipe: Recipe, pass_: str) -> Recipe:
    """Return a recipe that adds a bias, or gives its gradient beside that of the weights.

    Args:
        recipe: of a convolution or a product.
        pass_: ``forward`` or ``backward-weights``.
    """
    # Columns of a product are its last dimension.
    data_format = "NCHW" if recipe.variant == "nchw" else "NHWC"

    def operands(inputs: Mapping[str, NDArray[Any]]) -> tuple[NDArray[Any], ...]:
        return *recipe.operands(inputs), inputs["bias"]

    def forward(*tensors: Any) -> Any:
        return tf.nn.bias_add(recipe.function(*tensors[:-1]), tensors[-1], data_format)

    def gradients(source: Any, gradient: Any) -> Any:
        bias = tf.raw_ops.BiasAddGrad(out_backprop=gradient, data_format=data_format)
        return recipe.function(source, gradient), bias

    def by_role(results: Sequence[NDArray[Any]], tensors: Sequence[Any]) -> dict[str, NDArray[Any]]:
        weights, bias = results
        return {**recipe.by_role([weights], tensors), "bias": bias}

    if pass_ == "forward":
        algorithm = f"{recipe.algorithm}, BiasAdd"
        return dataclasses.replace(recipe, algorithm=algorithm, operands=operands, function=forward)
    algorithm = f"{recipe.algorithm}, BiasAddGrad"
    return dataclasses.replace(recipe, algorithm=algorithm, function=gradients, by_role=by_role)


# -----------------------------------------------------------------------------
# Products of matrices: ``tf.linalg.matmul``, with weights as they are or stored transposed.


class Product(Calls):
    """A product of matrices, or several of the same size.

    Args:
        layer: the product.
        transposed: whether the weights are stored with their columns as rows.
    """

    def __init__(self, layer: Layer, *, transposed: bool = False) -> None:
        super().__init__("NHWC")
        self._layer, self._transposed = layer, transposed

    @property
    def variant(self) -> str:
        """How the weights are stored."""
        return "transposed" if self._transposed else "plain"

    @property
    def layout(self) -> str:
        """The layouts of all operands."""
        return f"src mk, weights {'nk' if self._transposed else 'kn'}, dst mn"

    def algorithm(self, pass_: str) -> str:
        """Return the operator of every pass: TensorFlow has one for matrices, one for several."""
        del pass_
        return "MatMul" if self._layer.batch_count == 1 else "BatchMatMulV2"

    def forward(self, source: Any, weights: Any) -> Any:
        """Return the product."""
        return tf.linalg.matmul(source, weights, transpose_b=self._transposed)

    def backward_data(self, weights: Any, gradient: Any) -> Any:
        """Return the gradient of the source."""
        return tf.linalg.matmul(gradient, weights, transpose_b=not self._transposed)

    def backward_weights(self, source: Any, gradient: Any) -> Any:
        """Return the gradient of the weights, stored as they are."""
        left, right = (gradient, source) if self._transposed else (source, gradient)
        return tf.linalg.matmul(left, right, transpose_a=True)

    def arranged(self, role: str, array: NDArray[Any]) -> NDArray[Any]:
        """Return an operand's matrix, or its matrices."""
        return arranged_matrices(self._layer, role, array, transposed=self._transposed)

    def plain(self, role: str, array: NDArray[Any]) -> NDArray[Any]:
        """Return the result's matrices."""
        return plain_matrices(self._layer, role, array, transposed=self._transposed)


def gemm_recipes(layer: Layer, case: KernelSpec) -> list[Recipe]:
    """Return the ways to compute a pass of a product: its weights lie one way or the other."""
    ways = [Product(layer, transposed=transposed) for transposed in (False, True)]
    return product_recipes(layer, case, ways)


def gemm_in_network(layer: Layer, data_format: str) -> Product:
    """Return the product as models have it: matrices lie one way whatever that of images."""
    del data_format
    return Product(layer)


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

    def pairs(self, data_format: str) -> list[tuple[int, int]]:
        """Return the pads before and behind each of the four dimensions."""
        return pads_around(data_format, self.rows, self.columns)

    def explicit(self, data_format: str) -> list[int]:
        """Return the pads of all four dimensions one after the other; empty with a word."""
        if self.word != "EXPLICIT":
            return []
        return [pad for pair in self.pairs(data_format) for pad in pair]

    def spoken(self, data_format: str) -> str | list[tuple[int, int]]:
        """Return what ``tf.nn.conv2d`` takes: the word, or the pairs where there is none."""
        return self.pairs(data_format) if self.word == "EXPLICIT" else self.word

    def __str__(self) -> str:
        """Return the four numbers in words."""
        (top, bottom), (left, right) = self.rows, self.columns
        return f"{top} above, {bottom} below, {left} left and {right} right"


def padding_of(layer: Layer) -> Padding:
    """Return a layer's padding, by a word where one says the same."""
    rows, columns = (_words(axis) for axis in layer.axes)
    common = [word for word in rows if word in columns]
    return Padding(
        word=common[0] if common else "EXPLICIT",
        rows=(layer.pad_before[0], layer.pad_after[0]),
        columns=(layer.pad_before[1], layer.pad_after[1]),
    )


def _words(axis: Axis) -> list[str]:
    """Return the words that give these outputs and this leading pad along one axis.

    The outputs and the leading pad decide which element meets which tap; what is left over at the
    end is padding in either case.
    """
    window = extent(axis.kernel, axis.dilation)
    words = []
    if axis.pad == 0 and axis.out == (axis.size - window) // axis.stride + 1:
        words.append("VALID")
    total = max(0, (axis.out - 1) * axis.stride + window - axis.size)
    if axis.out == -(-axis.size // axis.stride) and axis.pad == total // 2:
        words.append("SAME")
    return words


class Windows(Calls):
    """Windows that move over padded images: what convolutions and poolings have in common.

    Args:
        layer: the convolution or pooling.
        data_format: of the images.
        padded: whether the source is padded in an operator of its own, from which the gradient is
            cut out again; else the operator pads.
    """

    def __init__(self, layer: Layer, data_format: str, *, padded: bool) -> None:
        super().__init__(data_format)
        self._image = arranged_shape(layer.shapes()["src"], self.images)
        self._around = padding_of(layer) if padded else None
        if padded:
            layer = on_padded_images(layer)
        self._padding = padding_of(layer)
        self._padded_image = arranged_shape(layer.shapes()["src"], self.images)
        self._strides = spatial(data_format, layer.stride[0], layer.stride[1])

    def _pad(self, images: Any, value: float = 0) -> Any:
        """Return images with the padding that the operator does not add."""
        if self._around is None:
            return images
        return tf.pad(images, self._around.pairs(self.data_format), constant_values=value)

    def _cut(self, images: Any) -> Any:
        """Return images without what :meth:`_pad` adds."""
        if self._around is None:
            return images
        begin = [before for before, _ in self._around.pairs(self.data_format)]
        return tf.slice(images, begin, self._image)


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


def is_depthwise(layer: Layer) -> bool:
    """Whether each channel is convolved by itself, which TensorFlow has operators for."""
    return bool(layer.groups == layer.in_channels > 1)


class Convolution(Windows):
    """A convolution.

    Args:
        layer: the convolution.
        data_format: of the images.
        padded: see :class:`Windows`.
        depthwise: through the operators for one group per channel.
        split: forward, groups are split, convolved and joined, as AlexNet's ports did; else the
            operator knows groups.
    """

    def __init__(
        self,
        layer: Layer,
        data_format: str,
        *,
        padded: bool = False,
        depthwise: bool = False,
        split: bool = False,
    ) -> None:
        super().__init__(layer, data_format, padded=padded)
        self._layer, self._depthwise, self._split = layer, depthwise, split
        self._names = _DEPTHWISE_NAMES if depthwise else _CONV_NAMES
        details = [f"{layer.groups} groups"] if layer.groups > 1 else []
        if max(layer.dilation) > 1:
            details.append("dilation")
        self.detail = f"with {' and '.join(details)}" if details else ""
        self._words = {
            "strides": self._strides,
            "padding": self._padding.word,
            "explicit_paddings": self._padding.explicit(data_format),
            "data_format": data_format,
            "dilations": spatial(data_format, *layer.dilation),
        }

    @property
    def layout(self) -> str:
        """The layouts of all operands."""
        filters = "hwcm" if self._depthwise else "hwio"
        return f"src {self.images}, weights {filters}, dst {self.images}"

    def algorithm(self, pass_: str) -> str:
        """Return the operators of a pass."""
        name = self._names[pass_]
        return name if self._around is None else f"Pad, {name}"

    def forward(self, source: Any, weights: Any) -> Any:
        """Return the convolution."""
        source = self._pad(source)
        if not self._split:
            return self._convolved(source, weights)
        axis = self.data_format.index("C")
        sources = tf.split(source, self._layer.groups, axis)
        filters = tf.split(weights, self._layer.groups, 3)
        found = [self._convolved(*pair) for pair in zip(sources, filters, strict=True)]
        return tf.concat(found, axis)

    def _convolved(self, source: Any, weights: Any) -> Any:
        pads = self._padding.spoken(self.data_format)
        if self._depthwise:
            return tf.nn.depthwise_conv2d(
                source, weights, self._strides, pads, self.data_format, self._layer.dilation
            )
        return tf.nn.conv2d(
            source, weights, self._strides, pads, self.data_format, self._words["dilations"]
        )

    def backward_data(self, weights: Any, gradient: Any) -> Any:
        """Return the gradient of the source."""
        operator = getattr(tf.raw_ops, self._names["backward-data"])
        sizes = self._padded_image
        return self._cut(
            operator(input_sizes=sizes, filter=weights, out_backprop=gradient, **self._words)
        )

    def backward_weights(self, source: Any, gradient: Any) -> Any:
        """Return the gradient of the weights."""
        operator = getattr(tf.raw_ops, self._names["backward-weights"])
        layer = self._layer
        channels = layer.in_channels // layer.groups, layer.out_channels
        if self._depthwise:
            channels = layer.in_channels, layer.out_channels // layer.in_channels
        sizes = [layer.kernel[0], layer.kernel[1], *channels]
        source = self._pad(source)
        return operator(input=source, filter_sizes=sizes, out_backprop=gradient, **self._words)

    def arranged(self, role: str, array: NDArray[Any]) -> NDArray[Any]:
        """Return images in their format; filters with their taps outside, outputs inside."""
        if role != "weights":
            return super().arranged(role, array)
        if self._depthwise:  # (rows, columns, channels, outputs per channel)
            grouped = array.reshape(self._layer.in_channels, -1, *array.shape[2:])
            return np.ascontiguousarray(grouped.transpose(2, 3, 0, 1))
        return arranged(array, "hwio")

    def plain(self, role: str, array: NDArray[Any]) -> NDArray[Any]:
        """Return images as NCHW, filters as (outputs, inputs, rows, columns)."""
        if role != "weights":
            return super().plain(role, array)
        if self._depthwise:
            return array.transpose(2, 3, 0, 1).reshape(-1, 1, *array.shape[:2])
        return plain(array, "hwio")


class TransposedConvolution(Convolution):
    """A transposed convolution, by a convolution's operators with the images exchanged.

    What ``tf.nn.conv2d_transpose`` calls is the gradient of a convolution, and its gradients are
    the convolution and that of its weights.

    Args:
        layer: the transposed convolution.
        data_format: of the images.
        ways: see :class:`Convolution`.
    """

    def __init__(self, layer: Layer, data_format: str, **ways: bool) -> None:
        super().__init__(layer.convolution, data_format, **ways)

    def algorithm(self, pass_: str) -> str:
        """Return the operators of a pass."""
        return super().algorithm(PASS_OF_CONVOLUTION[pass_])

    def forward(self, source: Any, weights: Any) -> Any:
        """Return the transposed convolution."""
        return super().backward_data(weights, source)

    def backward_data(self, weights: Any, gradient: Any) -> Any:
        """Return the gradient of the source."""
        return super().forward(gradient, weights)

    def backward_weights(self, source: Any, gradient: Any) -> Any:
        """Return the gradient of the weights."""
        return super().backward_weights(gradient, source)


def conv_recipes(layer: Layer, case: KernelSpec) -> list[Recipe]:
    """Return the ways to compute a pass of a convolution."""
    ways = [Convolution(layer, one, **way) for way in _ways(layer) for one in FORMATS]
    return product_recipes(layer, case, ways)


def deconv_recipes(layer: Layer, case: KernelSpec) -> list[Recipe]:
    """Return the ways to compute a pass of a transposed convolution."""
    every = _ways(layer.convolution)
    ways = [TransposedConvolution(layer, one, **way) for way in every for one in FORMATS]
    return product_recipes(layer, case, ways)


def _ways(layer: Layer) -> list[dict[str, bool]]:
    """Return how a convolution can be called.

    Where no word describes the padding, the images may also be padded first, as models written for
    TensorFlow do: its gradients with explicit padding are not oneDNN's, sum bfloat16 in bfloat16,
    and know neither groups nor dilation.

    A convolution with one group per channel also goes through TensorFlow's operators for just that;
    these have one stride for both directions and, on CPUs, no dilation.
    """
    ways: list[dict[str, bool]] = [{}]
    if padding_of(layer).word == "EXPLICIT":
        ways.append({"padded": True})
    dense = layer.dilation == (1, 1)
    if is_depthwise(layer) and dense and layer.stride[0] == layer.stride[1]:
        ways.append({"depthwise": True})
    return ways


def conv_in_network(layer: Layer, data_format: str) -> Convolution:
    """Return a convolution as models call it: padded first where no word says the same.

    Other groups than one per channel are split: TensorFlow's gradients know none on a CPU.

    Raises:
        UnsupportedError: channel by channel with two strides.
    """
    depthwise = is_depthwise(layer)
    if depthwise and layer.stride[0] != layer.stride[1]:
        raise UnsupportedError(
            f"{layer.name or layer.problem}: TensorFlow's depthwise convolution has one stride "
            "for both directions"
        )
    return Convolution(
        layer,
        data_format,
        padded=padding_of(layer).word == "EXPLICIT",
        depthwise=depthwise,
        split=layer.groups > 1 and not depthwise,
    )


def deconv_in_network(layer: Layer, data_format: str) -> TransposedConvolution:
    """Return a transposed convolution as models call it.

    Raises:
        UnsupportedError: it has groups.
    """
    if layer.groups > 1:
        raise UnsupportedError(
            f"{layer.name or layer.problem}: TensorFlow has no transposed convolution with groups"
        )
    return TransposedConvolution(layer, data_format)


# -----------------------------------------------------------------------------
# Pooling: ``MaxPool`` and ``AvgPool`` with their gradients.


class Pooling(Windows):
    """A pooling: maxima or averages.

    Args:
        layer: the pooling.
        data_format: of the images.
        padded: see :class:`Windows`; the padding never is a maximum. An average that leaves it out
            is scaled by what is inside.
    """

    def __init__(self, layer: Layer, data_format: str, *, padded: bool = False) -> None:
        super().__init__(layer, data_format, padded=padded)
        self._layer = layer
        self._window = {
            "ksize": spatial(data_format, layer.kernel[0], layer.kernel[1]),
            "strides": self._strides,
            "padding": self._padding.word,
            "data_format": data_format,
        }
        self._average = layer.mode == "avg"
        if not self._average:
            self._window["explicit_paddings"] = self._padding.explicit(data_format)

    @property
    def layout(self) -> str:
        """The layouts of both operands."""
        return f"src {self.images}, dst {self.images}"

    def algorithm(self, pass_: str) -> str:
        """Return the operator of a pass."""
        name = "AvgPool" if self._average else "MaxPool"
        return name if pass_ == "forward" else f"{name}Grad"

    def forward(self, source: Any) -> Any:
        """Return maxima or averages."""
        if not self._average:
            return tf.raw_ops.MaxPool(input=self._pad(source, source.dtype.min), **self._window)
        found = tf.raw_ops.AvgPool(value=self._pad(source), **self._window)
        if self._around is None or self._layer.count_include_pad:
            return found
        inside = np.multiply.outer(*self._layer.elements_inside)
        scale = math.prod(self._layer.kernel) / inside
        placed = scale if self.data_format == "NCHW" else scale[..., None]
        return found * tf.cast(placed.astype(np.float32), source.dtype)

    def backward_data(self, *tensors: Any) -> Any:
        """Return the gradient of the source.

        Args:
            tensors: of an average its gradient; of maxima the source, their gradient and
                themselves, which TensorFlow reads as well.
        """
        if self._average:
            (gradient,) = tensors
            shape = self._image
            return tf.raw_ops.AvgPoolGrad(orig_input_shape=shape, grad=gradient, **self._window)
        source, gradient, maxima = tensors
        source = self._pad(source, source.dtype.min)
        words = {"orig_input": source, "orig_output": maxima, "grad": gradient, **self._window}
        return self._cut(tf.raw_ops.MaxPoolGrad(**words))

    def gradient(self, source: Any, result: Any, incoming: Any) -> Any:
        """Return the gradient of the source of maxima; an average's needs nothing of its output."""
        return None if self._average else self.backward_data(source, incoming, result)

    def with_maxima(self, tensors: Sequence[Any]) -> Sequence[Any]:
        """Add the result of the forward pass to source and gradient."""
        source, gradient = tensors
        if self.data_format == "NHWC":
            return source, gradient, self.forward(source)
        # In NHWC, which every device has.
        moved = tf.transpose(source, [0, 2, 3, 1])
        maxima = Pooling(self._layer, "NHWC").forward(moved)
        return source, gradient, tf.transpose(maxima, [0, 3, 1, 2])


def pool_recipes(layer: Layer, case: KernelSpec) -> list[Recipe]:
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

    def recipe(data_format: str) -> Recipe:
        calls = Pooling(layer, data_format)
        alone = calls.recipe(layer, case.pass_)
        if (layer.mode, case.pass_) != ("max", "backward-data"):
            return dataclasses.replace(alone, sums="float32")
        # Overlapping windows' gradients are added up in the gradient itself.
        return dataclasses.replace(alone, complete=calls.with_maxima, sums="stored")

    return [recipe(data_format) for data_format in FORMATS]


def pool_in_network(layer: Layer, data_format: str) -> Pooling:
    """Return a pooling as models call it: padded first where no word says the same."""
    word = padding_of(layer).word
    counts_padding = layer.count_include_pad and word == "SAME"
    return Pooling(layer, data_format, padded=word == "EXPLICIT" or counts_padding)


# -----------------------------------------------------------------------------
# Images in another size: in NHWC only.


class Resizing(Calls):
    """What TensorFlow calls for images in another size.

    Args:
        layer: the layer.
    """

    def __init__(self, layer: Layer) -> None:
        super().__init__("NHWC")
        self._size = [layer.out_size[0], layer.out_size[1]]
        self._image = [layer.batch, layer.in_size[0], layer.in_size[1], layer.channels]
        self._linear = layer.mode == "linear"

    @property
    def layout(self) -> str:
        """The layouts of both operands."""
        return "src nhwc, dst nhwc"

    def algorithm(self, pass_: str) -> str:
        """Return the operator of a pass."""
        name = "ResizeBilinear" if self._linear else "ResizeNearestNeighbor"
        return name if pass_ == "forward" else f"{name}Grad"

    def forward(self, source: Any) -> Any:
        """Return the images in the size of the result."""
        resize = getattr(tf.raw_ops, self.algorithm("forward"))
        return resize(images=source, size=self._size, half_pixel_centers=True)

    def backward_data(self, gradient: Any, image: Any = None) -> Any:
        """Return the gradient of the source, of which the linear one wants to see the shape."""
        resize = getattr(tf.raw_ops, self.algorithm("backward-data"))
        source = {"original_image": image} if self._linear else {"size": self._image[1:3]}
        return resize(grads=gradient, half_pixel_centers=True, **source)

    def with_image(self, tensors: Sequence[Any]) -> Sequence[Any]:
        """Add images of the source's shape to the gradient."""
        return (*tensors, tf.zeros(self._image))


def resize_recipes(layer: Layer, case: KernelSpec) -> list[Recipe]:
    """Return the one way to compute a pass of a resize.

    Raises:
        UnsupportedError: in XLA, or a linear one of other numbers than float32.
    """
    if case.mode == "xla":
        raise UnsupportedError(
            "XLA's ResizeBilinear gives other values, and ResizeNearestNeighborGrad does not "
            "compile; nearest: --mode graph"
        )
    if layer.mode == "linear" and case.precision != "fp32":
        raise UnsupportedError("TensorFlow's ResizeBilinear gives float32 only; nearest: fp32")
    calls = Resizing(layer)
    alone = calls.recipe(layer, case.pass_)
    if case.pass_ == "forward":
        return [dataclasses.replace(alone, sums="float32")]
    complete = calls.with_image if layer.mode == "linear" else alone.complete
    return [dataclasses.replace(alone, complete=complete, sums="stored")]


# -----------------------------------------------------------------------------
# All layers: what a kind of layer is for this backend stands in one entry.

#: What TensorFlow calls for a layer, by its kind; of a memory-bound layer by its operation.
LAYERS: Final[Mapping[str, LayerCalls]] = {
    "conv2d": LayerCalls(recipes=conv_recipes, in_network=conv_in_network),
    "deconv2d": LayerCalls(recipes=deconv_recipes, in_network=deconv_in_network),
    "gemm": LayerCalls(recipes=gemm_recipes, in_network=gemm_in_network),
    "pool2d": LayerCalls(recipes=pool_recipes, in_network=pool_in_network),
    "resize": LayerCalls(recipes=resize_recipes),
    **POINTWISE,
}


def calls_of(layer: Layer) -> LayerCalls:
    """Return what TensorFlow calls for a layer, alone and in a network.

    Raises:
        UnsupportedError: it has no such layers.
    """
    return entry_of("tensorflow", LAYERS, layer)
