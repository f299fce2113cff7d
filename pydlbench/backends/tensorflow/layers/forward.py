"""Forward functions of TensorFlow for each op.

:data:`FORWARD` maps each op to a factory. Given a layer and options, it returns a function that
computes the layer; its arguments are the tensors that the forward pass reads, in the order of their
roles. TensorFlow derives the gradients
(:mod:`pydlbench.backends.tensorflow.layers.layer_pass`). Networks use the same functions.
"""

from __future__ import annotations

import operator
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial, reduce
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from pydlbench.backends.frameworks.operands import ForwardOptions, always, axes_of, shape_in
from pydlbench.backends.tensorflow.settings import tf
from pydlbench.ops.axis import extent
from pydlbench.ops.pointwise import SELU
from pydlbench.verification.inputs import kept_elements

Function = Callable[..., Any]

_FLOAT32: Final = "float32"


@dataclass(frozen=True, slots=True, kw_only=True)
class TensorFlowForwardOptions(ForwardOptions):
    """How a layer is called, besides its sizes.

    Attributes:
        padded: whether a separate operator pads the images, instead of the layer's operator.
        depthwise: whether to use the operator for one group per channel.
        split: whether groups are split, convolved and concatenated, as AlexNet's ports did;
            otherwise one operator computes all groups.
    """

    padded: bool = False
    depthwise: bool = False
    split: bool = False

    def data_format(self, sides: int = 2) -> str:
        """Return the layout in TensorFlow's notation."""
        return axes_of(self.images, sides).upper()

    @property
    def channels(self) -> int:
        """The axis of the channels of images with two sides."""
        return self.data_format().index("C")

    def along_channels(self, vector: Any) -> Any:
        """Return one element per channel, in a shape that broadcasts to images."""
        shape = [1, 1, 1, 1]
        shape[self.channels] = -1
        return tf.reshape(vector, shape)


# -----------------------------------------------------------------------------
# Padding in TensorFlow's terms: ``VALID``, ``SAME``, or numbers.


@dataclass(frozen=True, slots=True)
class Padding:
    """Padding of one layer.

    Attributes:
        word: ``VALID`` or ``SAME`` if it has the same effect as the pads, else ``EXPLICIT``.
        pairs: padding before and after, for each side.
    """

    word: str
    pairs: tuple[tuple[int, int], ...]

    def explicit(self, options: TensorFlowForwardOptions) -> list[int]:
        """Return the pads of all axes in one list; empty unless padding is explicit."""
        if self.word != "EXPLICIT":
            return []
        return [pad for pair in options.around(self.pairs, (0, 0)) for pad in pair]

    def argument(self, options: TensorFlowForwardOptions) -> str | list[tuple[int, int]]:
        """Return the argument of ``tf.nn.conv2d``: the word, or the pairs of all axes."""
        return list(options.around(self.pairs, (0, 0))) if self.word == "EXPLICIT" else self.word


def padding_of(layer: Any) -> Padding:
    """Return a layer's padding.

    A word is used if outputs and leading pads are equal: these define which element meets which
    tap, and the rest at the end is padding in any case.
    """
    words = []
    windows = [extent(*pair) for pair in zip(layer.kernel, layer.dilation, strict=True)]
    for size, out, window, stride, pad in zip(
        *(layer.in_size, layer.out_size, windows, layer.stride, layer.pad_before), strict=True
    ):
        total = max(0, (out - 1) * stride + window - size)
        same = out == -(-size // stride) and pad == total // 2
        valid = pad == 0 and out == (size - window) // stride + 1
        words.append({"VALID": valid, "SAME": same})
    common = [word for word in ("VALID", "SAME") if all(each[word] for each in words)]
    pairs = tuple(zip(layer.pad_before, layer.pad_after, strict=True))
    return Padding(common[0] if common else "EXPLICIT", pairs)


@dataclass(frozen=True, slots=True)
class _Windows:
    """Padding of a layer with windows: by the layer's operator, or beforehand.

    Attributes:
        padding: padding by the operator.
        pads: padding beforehand, for each axis; empty if the operator pads.
        shape: shape of the images, in their layout.
    """

    padding: Padding
    pads: tuple[tuple[int, int], ...]
    shape: tuple[int, ...]

    @classmethod
    def for_layer(cls, layer: Any, options: TensorFlowForwardOptions) -> _Windows:
        padding, pads = padding_of(layer), ()
        if options.padded:
            pads = options.around(padding.pairs, (0, 0))
            padding = Padding("VALID", ((0, 0),) * len(padding.pairs))
        shape = shape_in(layer.shapes()["src"], options.images)
        return cls(padding, pads, shape)

    def pad(self, images: Any, value: Any = 0) -> Any:
        """Return images with the padding that the operator does not add."""
        return tf.pad(images, self.pads, constant_values=value) if self.pads else images

    @property
    def padded_shape(self) -> list[int]:
        """The shape of padded images."""
        pads = self.pads or ((0, 0),) * len(self.shape)
        return [size + sum(pair) for size, pair in zip(self.shape, pads, strict=True)]


# -----------------------------------------------------------------------------
# Convolutions, products, poolings, resizing.


# Values of an additional first side of height one.
_UNIT_SIDE: Final = {
    **dict.fromkeys(("in_size", "out_size", "kernel", "stride", "dilation"), 1),
    **dict.fromkeys(("pad_before", "pad_after"), 0),
}


def _of_one_side_too(
    entry: Callable[[Any, TensorFlowForwardOptions], Function],
) -> Callable[[Any, TensorFlowForwardOptions], Function]:
    """Return an entry that also takes images of one side, as images of height one.

    ``tf.nn.conv1d`` does the same.
    """

    def any_sides(layer: Any, options: TensorFlowForwardOptions) -> Function:
        if layer.sides > 1:
            return entry(layer, options)
        fields = layer.independent_fields.items()
        wide = {name: (_UNIT_SIDE[name], *value) for name, value in fields if name in _UNIT_SIDE}
        function, axis = entry(layer.replace(**wide), options), 1 if options.images == "nhwc" else 2

        def forward(source: Any, *weights: Any) -> Any:
            filters = [tf.expand_dims(tensor, 0) for tensor in weights]
            return tf.squeeze(function(tf.expand_dims(source, axis), *filters), [axis])

        return forward

    return any_sides


def is_depthwise(layer: Any) -> bool:
    """Whether each channel is convolved by itself, as TensorFlow's depthwise operators do."""
    return bool(layer.groups == layer.in_channels > 1)


def _convolution(layer: Any, options: TensorFlowForwardOptions) -> Function:
    windows, format_ = _Windows.for_layer(layer, options), options.data_format(layer.sides)
    stride, dilation = layer.stride, layer.dilation
    strides, pads = options.around(stride, 1), windows.padding.argument(options)

    def convolve(source: Any, weights: Any) -> Any:
        if options.depthwise:
            return tf.nn.depthwise_conv2d(source, weights, strides, pads, format_, dilation)
        convolution = tf.nn.conv3d if layer.sides == 3 else tf.nn.conv2d
        return convolution(source, weights, strides, pads, format_, options.around(dilation, 1))

    def forward(source: Any, weights: Any) -> Any:
        source = windows.pad(source)
        if not options.split:
            return convolve(source, weights)
        sources = tf.split(source, layer.groups, options.channels)
        filters = tf.split(weights, layer.groups, 3)
        pieces = [convolve(*pair) for pair in zip(sources, filters, strict=True)]
        return tf.concat(pieces, options.channels)

    return forward


def _transposed_convolution(layer: Any, options: TensorFlowForwardOptions) -> Function:
    # As tf.nn.conv2d_transpose does, call the gradient of a convolution of the result.
    convolution = layer.convolution
    windows = _Windows.for_layer(convolution, options)
    words = {
        "strides": options.around(convolution.stride, 1),
        "padding": windows.padding.word,
        "explicit_paddings": windows.padding.explicit(options),
        "data_format": options.data_format(layer.sides),
        "dilations": options.around(convolution.dilation, 1),
    }

    name = "DepthwiseConv2dNativeBackpropInput" if options.depthwise else "Conv2DBackpropInput"
    if layer.sides == 3:
        name = "Conv3DBackpropInputV2"
        del words["explicit_paddings"]
    transposed = getattr(tf.raw_ops, name)

    def forward(source: Any, weights: Any) -> Any:
        images = transposed(
            input_sizes=windows.padded_shape, filter=weights, out_backprop=source, **words
        )
        if not windows.pads:
            return images
        return tf.slice(images, [before for before, _ in windows.pads], windows.shape)

    return forward


def _attention(layer: Any, _options: TensorFlowForwardOptions) -> Function:
    # TensorFlow has no operator for this layer; Keras's layers are written like this.
    shared = layer.heads // layer.kv_heads
    mask = np.arange(layer.keys) <= np.arange(layer.queries)[:, None]

    def forward(query: Any, key: Any, value: Any) -> Any:
        if shared > 1:
            key, value = (tf.repeat(tensor, shared, 1) for tensor in (key, value))
        scores = tf.matmul(query * layer.size**-0.5, key, transpose_b=True)
        scores = tf.where(mask, scores, scores.dtype.min) if layer.causal else scores
        return tf.matmul(tf.nn.softmax(scores), value)

    return forward


def _pooling(layer: Any, options: TensorFlowForwardOptions) -> Function:
    windows = _Windows.for_layer(layer, options)
    words: dict[str, Any] = {
        "ksize": options.around(layer.kernel, 1),
        "strides": options.around(layer.stride, 1),
        "padding": windows.padding.word,
        "data_format": options.data_format(layer.sides),
    }
    name, is_3d = {"max": "MaxPool", "avg": "AvgPool"}[layer.mode], layer.sides == 3
    pool = getattr(tf.raw_ops, f"{name}3D" if is_3d else name)
    if layer.mode == "max":
        if not is_3d:
            words["explicit_paddings"] = windows.padding.explicit(options)
        return lambda source: pool(input=windows.pad(source, source.dtype.min), **words)

    def average(source: Any) -> Any:
        result = pool(**{"input" if is_3d else "value": windows.pad(source)}, **words)
        if not windows.pads or layer.count_include_pad:
            return result
        scale = np.prod(layer.kernel) / reduce(np.multiply.outer, layer.elements_inside)
        scale = scale if options.images == "nchw" else scale[..., None]
        return result * tf.cast(scale.astype(np.float32), source.dtype)

    return average


def _resizing(layer: Any, _options: TensorFlowForwardOptions) -> Function:
    name = {"nearest": "ResizeNearestNeighbor", "linear": "ResizeBilinear"}[layer.mode]
    resize, size = getattr(tf.raw_ops, name), list(layer.out_size)
    return lambda images: resize(images=images, size=size, half_pixel_centers=True)


# -----------------------------------------------------------------------------
# Normalisations: narrow types are converted to float32 and back.


def _local_response(layer: Any, options: TensorFlowForwardOptions) -> Function:
    # TensorFlow's alpha is a factor of the sum, not of the mean.
    words = {
        "depth_radius": layer.local_size // 2,
        "bias": layer.k,
        "alpha": layer.alpha / layer.local_size,
        "beta": layer.beta,
    }

    def forward(images: Any) -> Any:
        exact = tf.cast(images, _FLOAT32)
        transposed = options.images == "nchw"  # the operator supports nhwc only
        exact = tf.transpose(exact, [0, 2, 3, 1]) if transposed else exact
        result = tf.nn.local_response_normalization(exact, **words)
        result = tf.transpose(result, [0, 3, 1, 2]) if transposed else result
        return tf.cast(result, images.dtype)

    return forward


def normalised(
    layer: Any, options: TensorFlowForwardOptions, *operands: Any, share: float = 1.0
) -> Any:
    """Return all results of the operator of a batch normalisation.

    Args:
        layer: the normalisation.
        options: training uses the statistics of the batch.
        operands: images, factor, offset, and running mean and variance.
        share: weight of the batch's statistics in the running statistics that training returns.
    """
    names = ("x", "scale", "offset", "mean", "variance")
    return tf.raw_ops.FusedBatchNormV3(
        **dict(zip(names, operands, strict=True)),
        epsilon=layer.epsilon,
        exponential_avg_factor=share,
        data_format=options.data_format(),
        is_training=options.training,
    )


def _batch_normalisation(layer: Any, options: TensorFlowForwardOptions) -> Function:
    def forward(*operands: Any) -> Any:
        if not options.training:
            return normalised(layer, options, *operands).y
        result = normalised(layer, options, *operands, share=layer.momentum)
        # The operator returns the updated running statistics; assign them to the variables, as
        # Keras does.
        for running, updated in zip(operands[-2:], result[1:3], strict=True):
            if isinstance(running, tf.Variable):
                running.assign(updated)
        return result.y, result.reserve_space_1, result.reserve_space_2

    return forward


def _layer_normalisation(layer: Any, options: TensorFlowForwardOptions) -> Function:
    def forward(x: Any, w: Any, b: Any) -> Any:
        exact = tf.cast(x, _FLOAT32)
        mean, variance = tf.nn.moments(exact, [-1], keepdims=True)
        result = tf.nn.batch_normalization(exact, mean, variance, b, w, layer.epsilon)
        result = tf.cast(result, x.dtype)
        return (result, mean, variance) if options.training else result

    return forward


def _group_normalisation(layer: Any, options: TensorFlowForwardOptions) -> Function:
    # As in Keras, the channels of a group have an axis of their own.
    channels = options.channels
    axes = [2, 3, 4] if channels == 1 else [1, 2, 4]

    def forward(x: Any, *factors: Any) -> Any:
        sizes = [*x.shape[:channels], layer.groups, -1, *x.shape[channels + 1 :]]
        exact = tf.reshape(tf.cast(x, _FLOAT32), sizes)
        mean, variance = tf.nn.moments(exact, axes, keepdims=True)
        normal = tf.nn.batch_normalization(exact, mean, variance, None, None, layer.epsilon)
        normal = tf.reshape(normal, x.shape)
        if factors:
            w, b = (options.along_channels(vector) for vector in factors)
            normal = normal * w + b
        result = tf.cast(normal, x.dtype)
        return (result, mean, variance) if options.training else result

    return forward


def _root_mean_square(layer: Any, _options: TensorFlowForwardOptions) -> Function:
    def forward(x: Any, w: Any) -> Any:
        exact = tf.cast(x, _FLOAT32)
        squares = tf.reduce_mean(tf.square(exact), -1, keepdims=True)
        return tf.cast(
            exact * tf.math.rsqrt(squares + layer.epsilon) * tf.cast(w, _FLOAT32), x.dtype
        )

    return forward


# -----------------------------------------------------------------------------
# The loss, whose operator returns the loss of each row and the gradient of the logits; and
# optimizers, with operators that update a variable in one kernel.


def _loss(_layer: Any, _options: TensorFlowForwardOptions) -> Function:
    # Half precisions are converted to float32, as in Keras's mixed precision.
    def forward(x: Any, labels: Any) -> Any:
        logits = tf.cast(x, _FLOAT32)
        loss = tf.raw_ops.SparseSoftmaxCrossEntropyWithLogits(features=logits, labels=labels)
        return tf.reduce_mean(loss.loss), loss.loss, loss.backprop

    return forward


def _exponential_linear(layer: Any, _options: Any) -> Function:
    alpha, factor = layer.alpha, layer.factor
    whole: Function | None = {(1, 1): tf.nn.elu, SELU: tf.nn.selu}.get((alpha, factor))
    return whole or (lambda x: factor * tf.where(x > 0, x, alpha * tf.nn.elu(x)))


def descend(weights: Any, gradient: Any, rate: Any) -> None:
    """Update weights, a variable, by gradient descent."""
    tf.raw_ops.ResourceApplyGradientDescent(var=weights.handle, alpha=rate, delta=gradient)


def descend_with_momentum(
    weights: Any, velocity: Any, gradient: Any, rate: Any, *, mu: float
) -> None:
    """Update weights and velocity, both variables, by gradient descent with momentum."""
    tf.raw_ops.ResourceApplyMomentum(
        var=weights.handle,
        accum=velocity.handle,
        lr=rate,
        grad=gradient,
        momentum=tf.constant(mu, weights.dtype),
    )


# -----------------------------------------------------------------------------
# The table. Ops without an operator are chains of operators, each of which rounds its result.


def _hard_sigmoid(x: Any) -> Any:
    return tf.nn.relu6(x + 3) * (1 / 6)


def _turned(x: Any, cosines: Any, sines: Any) -> Any:
    first, second = tf.split(x, 2, -1)
    return x * cosines + tf.concat((-second, first), -1) * sines


def _added_and_normalised(layer: Any, options: TensorFlowForwardOptions) -> Function:
    norm = _root_mean_square(layer, options)
    return lambda x, y, w: (norm(x + y, w), x + y)


def _mean_of(loss: Function) -> Callable[[Any, TensorFlowForwardOptions], Function]:
    """Return the mean of a loss of each element, in float32."""
    return always(lambda x, y: tf.reduce_mean(loss(tf.cast(x, _FLOAT32), tf.cast(y, _FLOAT32))))


def _smooth(x: tf.Tensor, y: tf.Tensor, beta: float) -> tf.Tensor:
    distance = tf.abs(x - y)
    return tf.where(distance > beta, distance - beta / 2, distance * distance * (0.5 / beta))


def _label_loss(x: tf.Tensor, labels: tf.Tensor) -> tf.Tensor:
    return -tf.reduce_mean(tf.gather(tf.cast(x, _FLOAT32), labels, batch_dims=1))


#: Forward functions by :func:`~pydlbench.backends.frameworks.backend.op_of` a layer.
FORWARD: Final[Mapping[str, Callable[[Any, TensorFlowForwardOptions], Function]]] = {
    "conv": _of_one_side_too(_convolution),
    "deconv": _of_one_side_too(_transposed_convolution),
    "gemm": lambda _layer, options: partial(
        tf.linalg.matmul, transpose_b=options.layout == "transposed"
    ),
    "attention": _attention,
    "pool": _of_one_side_too(_pooling),
    "resize": _of_one_side_too(_resizing),
    "bias": lambda _, options: partial(tf.nn.bias_add, data_format=options.data_format()),
    "relu": always(tf.nn.relu),
    "relu6": always(tf.nn.relu6),
    "hardsigmoid": always(_hard_sigmoid),
    "hardswish": always(lambda x: x * _hard_sigmoid(x)),
    "sigmoid": always(tf.sigmoid),
    "tanh": always(tf.tanh),
    "softplus": always(tf.nn.softplus),
    "logsigmoid": always(tf.math.log_sigmoid),
    "elu": _exponential_linear,
    "silu": always(tf.nn.silu),
    "mish": always(lambda x: x * tf.tanh(tf.nn.softplus(x))),
    "gelu": always(tf.nn.gelu),
    "gelu-tanh": always(partial(tf.nn.gelu, approximate=True)),
    "hardtanh": lambda layer, _: partial(
        tf.clip_by_value, clip_value_min=layer.low, clip_value_max=layer.high
    ),
    "prelu": lambda _, options: lambda x, w: tf.where(x > 0, x, x * options.along_channels(w)),
    "scale": always(operator.mul),
    "add": always(operator.add),
    "swiglu": always(lambda gate, x: tf.nn.silu(gate) * x),
    "rope": always(_turned),
    "add-rmsnorm": _added_and_normalised,
    "concat": lambda _, options: lambda *images: tf.concat(images, options.channels),
    "dropout": lambda layer, _: partial(tf.nn.dropout, rate=1 - layer.keep),
    "lrn": _local_response,
    "batchnorm": _batch_normalisation,
    "layernorm": _layer_normalisation,
    "groupnorm": _group_normalisation,
    "rmsnorm": _root_mean_square,
    "softmax": lambda layer, _: partial(tf.nn.softmax, axis=layer.axis),
    "log-softmax": lambda layer, _: partial(tf.nn.log_softmax, axis=layer.axis),
    "cumsum": lambda layer, _: partial(tf.cumsum, axis=layer.axis),
    "cumprod": lambda layer, _: partial(tf.math.cumprod, axis=layer.axis),
    "mse": _mean_of(tf.math.squared_difference),
    "l1": _mean_of(lambda x, y: tf.abs(x - y)),
    "smooth-l1": lambda layer, options: _mean_of(partial(_smooth, beta=layer.beta))(layer, options),
    "bce-logits": _mean_of(
        lambda x, y: tf.nn.sigmoid_cross_entropy_with_logits(labels=y, logits=x)
    ),
    "nll": always(_label_loss),
    "softmax-xent": _loss,
    "l2": always(lambda w: tf.nn.l2_loss(tf.cast(w, _FLOAT32))),
    "sgd": always(descend),
    "momentum": lambda layer, _: partial(descend_with_momentum, mu=layer.mu),
}

#: Gradients that cannot be derived from the forward pass.
GRADIENT: Final[Mapping[str, Callable[[Any], Function]]] = {
    # The gradient of an L2 loss, and the sum of gradients, as TensorFlow derives them.
    "l2": lambda layer: lambda w, g: tf.add_n([g, w * tf.cast(layer.decay, w.dtype)])
}


# -----------------------------------------------------------------------------
# Tensors of the forward pass that gradients read, and that the inputs of a case define, so that the
# reference uses the same values.


def _mask(layer: Any, _inputs: Mapping[str, NDArray[Any]]) -> NDArray[Any]:
    shape = layer.shapes()["src"]
    return kept_elements(shape, tuple(slice(0, size) for size in shape), layer.keep)


def _one_hot(layer: Any, labels: NDArray[Any]) -> NDArray[Any]:
    chosen: NDArray[Any] = labels.astype(np.int64)[:, None] == np.arange(layer.channels)
    return chosen.astype(np.float32)


def _gradient_of_logits(layer: Any, inputs: Mapping[str, NDArray[Any]]) -> NDArray[Any]:
    probabilities = inputs["dst"].reshape(-1, layer.channels)
    gradient: NDArray[Any] = probabilities - _one_hot(layer, inputs["labels"])
    return gradient


def _input(role: str) -> Callable[[Any, Mapping[str, NDArray[Any]]], NDArray[Any]]:
    return lambda _, inputs: inputs[role]


def _rows(role: str) -> Callable[[Any, Mapping[str, NDArray[Any]]], NDArray[Any]]:
    return lambda layer, inputs: inputs[role].reshape(*layer.shapes()["src"][:-1], 1)


def _axis_last(role: str) -> Callable[[Any, Mapping[str, NDArray[Any]]], NDArray[Any]]:
    return lambda layer, inputs: inputs[role].swapaxes(layer.axis, -1)


#: By op and name of the tensor: functions of the layer and its inputs that return the values.
KEPT: Final[Mapping[str, Mapping[str, Callable[[Any, Any], NDArray[Any]]]]] = {
    # TensorFlow computes along the last axis, and transposes others.
    "softmax": {"Softmax:0": _axis_last("result")},
    "log-softmax": {"LogSoftmax:0": _axis_last("result")},
    "softmax-xent": {"SparseSoftmaxCrossEntropyWithLogits:1": _gradient_of_logits},
    "dropout": {"dropout/GreaterEqual:0": _mask},
    "batchnorm": {
        "FusedBatchNormV3:3": _input("mean"),
        "FusedBatchNormV3:4": _input("variance"),
    },
    "layernorm": {"moments/mean:0": _rows("mean"), "moments/variance:0": _rows("variance")},
    "groupnorm": {"moments/mean:0": _input("mean"), "moments/variance:0": _input("variance")},
}


# -----------------------------------------------------------------------------
# Results of the layer, for functions that return other results.


def _probabilities_and_loss(
    layer: Any, results: Sequence[NDArray[Any]], operands: Sequence[Any]
) -> Sequence[NDArray[Any]]:
    mean, rows, gradient = results
    # Adding one to the gradient at the label would lose digits of a small probability.
    chosen = _one_hot(layer, operands[1].numpy())
    return np.where(chosen, np.exp(-rows)[:, None], gradient), mean


#: By op: functions of the layer, the returned results and the operands.
RESULTS: Final[Mapping[str, Callable[..., Sequence[NDArray[Any]]]]] = {
    "softmax-xent": _probabilities_and_loss,
}
