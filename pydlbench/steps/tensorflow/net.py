"""A model's graph as a function of TensorFlow on NHWC images (or NCHW ones on a GPU)."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from pydlbench.backends.tensorflow.layers import padding_of
from pydlbench.backends.tensorflow.operator import spatial
from pydlbench.backends.tensorflow.runtime import tf
from pydlbench.errors import UnsupportedError
from pydlbench.layers.conv import Conv2d
from pydlbench.layers.deconv import Deconv2d
from pydlbench.layers.gemm import Gemm
from pydlbench.layers.pointwise import Pointwise
from pydlbench.layers.pool import Pool2d
from pydlbench.models.graph import INPUT, cropped
from pydlbench.steps.inputs import trained, weight_shapes

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from numpy.typing import NDArray

    from pydlbench.models.graph import Model, Node
    from pydlbench.steps.definition import StepDefinition

__all__ = ["Net", "padded"]


# -----------------------------------------------------------------------------
# The operators that TensorFlow spells in its own way: padding, groups, normalisations.


def is_depthwise(layer: Conv2d | Deconv2d) -> bool:
    """Whether each channel is convolved by itself, which is an operator of its own."""
    return isinstance(layer, Conv2d) and layer.groups == layer.in_channels > 1


def convolution(images: Any, weights: Any, layer: Conv2d, data_format: str) -> Any:
    """Return a convolution; padded first where neither SAME nor VALID says the same.

    Other groups than one per channel are split, convolved and joined, as AlexNet's ports did:
    TensorFlow's gradients know no groups on a CPU.
    """
    word = padding_of(layer).word
    if word == "EXPLICIT":
        images, word = padded(images, layer, data_format, 0), "VALID"
    strides = spatial(data_format, layer.stride_height, layer.stride_width)
    dilations = [layer.dilation_height, layer.dilation_width]
    if is_depthwise(layer):
        if layer.stride_height != layer.stride_width:
            raise UnsupportedError(
                f"{layer.name or layer.problem}: TensorFlow's depthwise convolution has one stride "
                "for both directions"
            )
        return tf.nn.depthwise_conv2d(images, weights, strides, word, data_format, dilations)

    def single(source: Any, kernel: Any) -> Any:
        return tf.nn.conv2d(source, kernel, strides, word, data_format, dilations)

    if layer.groups == 1:
        return single(images, weights)
    axis = 1 if data_format == "NCHW" else 3
    sources = tf.split(images, layer.groups, axis)
    kernels = tf.split(weights, layer.groups, 3)
    return tf.concat([single(*pair) for pair in zip(sources, kernels, strict=True)], axis)


def transposed_convolution(images: Any, weights: Any, layer: Deconv2d, data_format: str) -> Any:
    """Return a transposed convolution, which TensorFlow has without groups."""
    if layer.groups > 1:
        raise UnsupportedError(
            f"{layer.name or layer.problem}: TensorFlow has no transposed convolution with groups"
        )
    sizes = layer.out_height, layer.out_width
    shape = (layer.out_channels, *sizes) if data_format == "NCHW" else (*sizes, layer.out_channels)
    return tf.nn.conv2d_transpose(
        images,
        weights,
        [layer.batch, *shape],
        spatial(data_format, layer.stride_height, layer.stride_width),
        padding_of(layer.convolution).pairs(data_format),
        data_format,
        spatial(data_format, layer.dilation_height, layer.dilation_width),
    )


def pooling(images: Any, layer: Pool2d, data_format: str) -> Any:
    """Return a pooling; padded first where neither SAME nor VALID says the same."""
    word = padding_of(layer).word
    average = layer.mode == "avg"
    scale = None
    if word == "EXPLICIT" or (average and layer.count_include_pad and word == "SAME"):
        images = padded(images, layer, data_format, 0 if average else images.dtype.min)
        if average and not layer.count_include_pad:
            whole = layer.kernel_height * layer.kernel_width
            counts = whole / np.multiply.outer(*layer.elements_inside())
            placed = counts if data_format == "NCHW" else counts[..., None]
            scale = tf.cast(placed.astype(np.float32), images.dtype)
        word = "VALID"
    window = spatial(data_format, layer.kernel_height, layer.kernel_width)
    strides = spatial(data_format, layer.stride_height, layer.stride_width)
    function = tf.nn.avg_pool2d if average else tf.nn.max_pool2d
    result = function(images, window, strides, word, data_format)
    return result if scale is None else result * scale


def local_response(images: Any, layer: Pointwise, data_format: str) -> Any:
    """Return a local response normalisation; TensorFlow's alpha is not divided by the size."""
    if data_format == "NCHW":  # it knows channels as the last dimension only
        images = tf.transpose(images, [0, 2, 3, 1])
    result = tf.nn.local_response_normalization(
        images,
        depth_radius=layer.local_size // 2,
        bias=layer.k,
        alpha=layer.alpha / layer.local_size,
        beta=layer.beta,
    )
    return tf.transpose(result, [0, 3, 1, 2]) if data_format == "NCHW" else result


def normalised(
    images: Any,
    layer: Pointwise,
    own: Mapping[str, Any],
    data_format: str,
    batch_statistics: bool,
) -> Any:
    """Return a batch normalisation, and move its running statistics in training.

    Args:
        images: what is normalised.
        layer: its epsilon and momentum.
        own: its variables by role; without ``weights`` the factor is one.
        data_format: of the images.
        batch_statistics: take the minibatch's, not the running ones.
    """
    factor = own.get("weights")
    if factor is None:
        factor = tf.ones([layer.channels])
    mean, variance = own["running_mean"], own["running_variance"]
    nothing = tf.constant([], tf.float32)
    result, new_mean, new_variance, *_ = tf.raw_ops.FusedBatchNormV3(
        x=images,
        scale=factor,
        offset=own["bias"],
        mean=nothing if batch_statistics else mean,
        variance=nothing if batch_statistics else variance,
        epsilon=layer.epsilon,
        data_format=data_format,
        is_training=batch_statistics,
    )
    if batch_statistics:
        # The operator's variance is unbiased already.
        mean.assign_sub(layer.momentum * (mean - new_mean))
        variance.assign_sub(layer.momentum * (variance - new_variance))
    return result


def flattened(images: Any, data_format: str) -> Any:
    """Return images as features in the order channel, row, column."""
    batch, *sizes = images.shape.as_list()
    if data_format == "NHWC" and len(sizes) == 3 and sizes[0] * sizes[1] > 1:
        images = tf.transpose(images, [0, 3, 1, 2])
    return tf.reshape(images, [batch, int(np.prod(sizes))])


def shifted(images: Any, data_format: str) -> Any:
    """Return images without their first row and column, with zeros behind the last ones."""
    if data_format == "NCHW":
        return tf.pad(images[:, :, 1:, 1:], [[0, 0], [0, 0], [0, 1], [0, 1]])
    return tf.pad(images[:, 1:, 1:, :], [[0, 0], [0, 1], [0, 1], [0, 0]])


def middle(images: Any, sides: tuple[int, int, int, int], data_format: str) -> Any:
    """Return images without so many columns on the left and right, and rows above and below."""
    left, right, above, below = sides
    first = 2 if data_format == "NCHW" else 1
    height, width = images.shape[first : first + 2]
    rows, columns = slice(above, height - below), slice(left, width - right)
    return images[:, :, rows, columns] if data_format == "NCHW" else images[:, rows, columns, :]


def padded(images: Any, layer: Conv2d | Pool2d, data_format: str, value: float) -> Any:
    """Return images with the layer's padding around them."""
    sides = [[layer.pad_top, layer.pad_bottom], [layer.pad_left, layer.pad_right]]
    none = [0, 0]
    pads = [none, none, *sides] if data_format == "NCHW" else [none, *sides, none]
    return tf.pad(images, pads, constant_values=value)


def hard_sigmoid(images: Any) -> Any:
    """Return ``relu6(images + 3) / 6``, by the operators that Keras takes for it."""
    return tf.nn.relu6(images + 3) * (1 / 6)


def hard_swish(images: Any) -> Any:
    """Return images times their :func:`hard_sigmoid`, as Keras does."""
    return images * hard_sigmoid(images)


# What TensorFlow computes on each element of its inputs alike, whatever their format.
_OF_ELEMENTS: Mapping[str, Callable[..., Any]] = {
    "relu": tf.nn.relu,
    "relu6": tf.nn.relu6,
    "hardsigmoid": hard_sigmoid,
    "hardswish": hard_swish,
    "add": tf.add,
    "scale": tf.multiply,
}


class Net:
    """A model as a function, with its variables.

    Args:
        model: the graph.
        weights: float32 arrays by ``<node>/<role>``.
        data_format: ``NHWC`` or ``NCHW``.
        stored: type of the variables; those of normalisations are float32.
        computed: type of activations.
        device: TensorFlow's name of it.
    """

    def __init__(
        self,
        model: Model,
        weights: Mapping[str, NDArray[Any]],
        *,
        data_format: str,
        stored: str,
        computed: str,
        device: str,
    ) -> None:
        self.model = model
        self.data_format = data_format
        self.computed = tf.as_dtype(computed)
        self.variables: dict[str, Any] = {}
        to_train = set(trained(model))
        with tf.device(device):
            for node in model:
                for role in weight_shapes(node):
                    name = f"{node.name}/{role}"
                    kept = "float32" if node.op == "batchnorm" else stored
                    self.variables[name] = tf.Variable(
                        self._arranged(node, weights[name]),
                        dtype=kept,
                        trainable=name in to_train,
                    )
        self.trained = [self.variables[name] for name in trained(model)]
        #: Static shapes of the nodes' outputs, as the last tracing found them, NCHW.
        self.shapes: dict[str, tuple[int, ...]] = {}

    def load(self, weights: Mapping[str, NDArray[Any]]) -> None:
        """Take over weights by name."""
        for node in self.model:
            for role in weight_shapes(node):
                name = f"{node.name}/{role}"
                variable = self.variables[name]
                variable.assign(tf.cast(self._arranged(node, weights[name]), variable.dtype))

    def plain(self, name: str, array: NDArray[Any]) -> NDArray[Any]:
        """Return a variable's (or its gradient's) values arranged as they are by name."""
        node = self.model[name.rpartition("/")[0]]
        array = np.asarray(array, np.float32)
        if not isinstance(node.layer, Conv2d | Deconv2d) or array.ndim != 4:
            return array
        if is_depthwise(node.layer):
            return array.transpose(2, 3, 0, 1).reshape(node.layer.out_channels, 1, *array.shape[:2])
        return array.transpose(3, 2, 0, 1)

    def __call__(self, images: Any, definition: StepDefinition) -> Any:
        """Return the output for images, in the type of activations."""
        values = {INPUT: self.cast(images)}
        for node in self.model:
            inputs = [values[name] for name in node.inputs]
            values[node.name] = self.apply(node, inputs, definition)
            self.shapes[node.name] = self._logical(values[node.name].shape)
        return values[self.model.output.name]

    def _logical(self, shape: Any) -> tuple[int, ...]:
        sizes = tuple(shape.as_list())
        if len(sizes) == 4 and self.data_format == "NHWC":
            return sizes[0], sizes[3], sizes[1], sizes[2]
        return sizes

    def _arranged(self, node: Node, array: NDArray[Any]) -> NDArray[Any]:
        """Return weights as TensorFlow has them: (height, width, in, out) for convolutions."""
        layer = node.layer
        if not isinstance(layer, Conv2d | Deconv2d) or array.ndim != 4:
            return array
        if is_depthwise(layer):  # (height, width, channels, outputs per channel)
            array = array.reshape(layer.in_channels, -1, *array.shape[2:])
            return np.ascontiguousarray(array.transpose(2, 3, 0, 1))
        return np.ascontiguousarray(array.transpose(2, 3, 1, 0))

    def _weight(self, node: Node, role: str) -> Any:
        return tf.cast(self.variables[f"{node.name}/{role}"], self.computed)

    def cast(self, images: Any) -> Any:
        """Return images in the type of activations."""
        return tf.cast(images, self.computed)

    def apply(self, node: Node, inputs: list[Any], definition: StepDefinition) -> Any:
        """Return a node's output."""
        layer, first = node.layer, inputs[0]
        if isinstance(layer, Conv2d | Deconv2d | Gemm):
            return self._product(node, layer, first)
        if isinstance(layer, Pool2d):
            return pooling(first, layer, self.data_format)
        if node.op in _OF_ELEMENTS:
            return _OF_ELEMENTS[node.op](*inputs)
        if node.op == "concat":
            return tf.concat(inputs, 1 if self.data_format == "NCHW" else -1)
        if node.op == "flatten":
            return flattened(first, self.data_format)
        if node.op == "shift":
            return shifted(first, self.data_format)
        if node.op == "crop":
            return middle(first, cropped(self.model, node), self.data_format)
        assert isinstance(layer, Pointwise)
        return self._changed(node, layer, first, definition)

    def _product(self, node: Node, layer: Conv2d | Deconv2d | Gemm, first: Any) -> Any:
        weights = self._weight(node, "weights")
        if isinstance(layer, Conv2d):
            made = convolution(first, weights, layer, self.data_format)
        elif isinstance(layer, Deconv2d):
            made = transposed_convolution(first, weights, layer, self.data_format)
        else:
            made = tf.linalg.matmul(first, weights)
        if not node.bias:
            return made
        place = None if isinstance(layer, Gemm) else self.data_format
        return tf.nn.bias_add(made, self._weight(node, "bias"), place)

    def _changed(self, node: Node, layer: Pointwise, first: Any, definition: StepDefinition) -> Any:
        if node.op == "lrn":
            return local_response(first, layer, self.data_format)
        if node.op == "dropout":
            return tf.nn.dropout(first, 1 - layer.keep) if definition.drops else first
        assert node.op == "batchnorm", node.op
        own = {role: self.variables[f"{node.name}/{role}"] for role in weight_shapes(node)}
        return normalised(first, layer, own, self.data_format, definition.batch_statistics)
