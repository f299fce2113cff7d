"""The operators that TensorFlow spells in its own way: padding, groups, normalisations."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from pydlbench.backends.tensorflow.padding import padding_of
from pydlbench.backends.tensorflow.recipe import spatial
from pydlbench.backends.tensorflow.runtime import tf
from pydlbench.endtoend.counting import inside
from pydlbench.errors import UnsupportedError

if TYPE_CHECKING:
    from collections.abc import Mapping

    from pydlbench.layers import Conv2d, Pointwise, Pool2d

__all__ = [
    "convolution",
    "flattened",
    "is_depthwise",
    "local_response",
    "normalised",
    "padded",
    "pooling",
    "shifted",
]


def is_depthwise(layer: Conv2d) -> bool:
    """Whether each channel is convolved by itself, which is an operator of its own."""
    return layer.groups == layer.in_channels > 1


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


def pooling(images: Any, layer: Pool2d, data_format: str) -> Any:
    """Return a pooling; padded first where neither SAME nor VALID says the same."""
    word = padding_of(layer).word
    average = layer.mode == "avg"
    scale = None
    if word == "EXPLICIT" or (average and layer.count_include_pad and word == "SAME"):
        images = padded(images, layer, data_format, 0 if average else images.dtype.min)
        if average and not layer.count_include_pad:
            whole = layer.kernel_height * layer.kernel_width
            counts = (whole / inside(layer)).astype(np.float32)
            placed = counts if data_format == "NCHW" else counts[..., None]
            scale = tf.cast(placed, images.dtype)
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


def padded(images: Any, layer: Conv2d | Pool2d, data_format: str, value: float) -> Any:
    """Return images with the layer's padding around them."""
    sides = [[layer.pad_top, layer.pad_bottom], [layer.pad_left, layer.pad_right]]
    none = [0, 0]
    pads = [none, none, *sides] if data_format == "NCHW" else [none, *sides, none]
    return tf.pad(images, pads, constant_values=value)
