"""Forward functions of JAX for each op.

:data:`FORWARD` maps each op to a factory. Given a layer and options, it returns a function that
computes the layer; its arguments are the tensors that the forward pass reads, in the order of their
roles. JAX derives the gradients. Networks use the same functions.
"""

import functools
import operator
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, Final

import numpy as np
from jax import ShapeDtypeStruct, lax, linear_transpose, nn
from jax import numpy as jnp

from pydlbench.backends.frameworks.operands import ForwardOptions, always, axes_of, shape_in

Function = Callable[..., Any]

#: The layout of filters, by the layout of images.
FILTERS = {"nchw": "oihw", "nhwc": "hwio"}


@dataclass(frozen=True, slots=True, kw_only=True)
class JaxForwardOptions(ForwardOptions):
    """How a layer is called, besides its sizes.

    Attributes:
        statistics: values that replace the statistics of the source, by role; their gradient is
            the gradient of the source's statistics.
    """

    statistics: Mapping[str, Any] = field(default_factory=dict)

    def channels(self, dimensions: int = 4) -> int:
        """Return the axis of the channels of images, or of features."""
        return 1 if self.images == "nchw" and dimensions > 2 else dimensions - 1

    def along_channels(self, vector: Any, dimensions: int) -> Any:
        """Return one element per channel, in a shape that broadcasts to images or features."""
        shape = [1] * dimensions
        shape[self.channels(dimensions)] = -1
        return vector.reshape(shape)


def _convolution(layer: Any, options: JaxForwardOptions) -> Function:
    images = axes_of(options.images, layer.sides).upper()
    sides = axes_of("nchw", layer.sides)[2:].upper()
    filters = f"OI{sides}" if options.images == "nchw" else f"{sides}IO"
    return functools.partial(
        lax.conv_general_dilated,
        window_strides=layer.stride,
        padding=tuple(zip(layer.pad_before, layer.pad_after, strict=True)),
        rhs_dilation=layer.dilation,
        dimension_numbers=(images, filters, images),
        feature_group_count=layer.groups,
    )


def _transposed_convolution(layer: Any, options: JaxForwardOptions) -> Function:
    forward = _convolution(layer.convolution, options)
    result = shape_in(layer.shapes()["dst"], options.images)

    def transposed(source: Any, weights: Any) -> Any:
        like = ShapeDtypeStruct(result, source.dtype)
        return linear_transpose(lambda images: forward(images, weights), like)(source)[0]

    return transposed


def _pooling(layer: Any, options: JaxForwardOptions) -> Function:
    window = {
        "window_dimensions": options.around(layer.kernel, 1),
        "window_strides": options.around(layer.stride, 1),
        "padding": options.around(
            tuple(zip(layer.pad_before, layer.pad_after, strict=True)), (0, 0)
        ),
        "window_dilation": options.around(layer.dilation, 1),
    }
    if layer.mode == "max":
        return lambda source: lax.reduce_window(source, -np.inf, lax.max, **window)
    inside = layer.elements_inside
    if layer.count_include_pad:
        inside = [[taps] * out for taps, out in zip(layer.kernel, layer.out_size, strict=True)]
    sizes = functools.reduce(np.multiply.outer, inside)
    sizes = np.asarray(sizes, np.float32).reshape(options.around(layer.out_size, 1)[1:])

    def average(source: Any) -> Any:
        sums = lax.reduce_window(source, 0.0, lax.add, **window)
        return sums / jnp.asarray(sizes, source.dtype)

    return average


def _attention(layer: Any, _options: JaxForwardOptions) -> Function:
    # JAX has the heads after the positions of a sequence.
    def forward(*operands: Any) -> Any:
        swapped = (operand.swapaxes(1, 2) for operand in operands)
        return nn.dot_product_attention(*swapped, is_causal=bool(layer.causal)).swapaxes(1, 2)

    return forward


def _local_response(layer: Any, options: JaxForwardOptions) -> Function:
    window, pads = [1] * 4, [(0, 0)] * 4
    window[options.channels()] = layer.local_size
    pads[options.channels()] = (layer.local_size // 2,) * 2

    def forward(images: Any) -> Any:
        sums = lax.reduce_window(images * images, 0.0, lax.add, window, [1] * 4, pads)
        return images * (layer.k + layer.alpha / layer.local_size * sums) ** -layer.beta

    return forward


def _statistics(exact: Any, axes: tuple[int, ...], options: JaxForwardOptions) -> tuple[Any, Any]:
    """Return mean and variance over axes, which are kept, in one pass as Flax does."""

    def replace(role: str, like: Any) -> Any:
        if role not in options.statistics:
            return like
        return options.statistics[role].reshape(like.shape) + (like - lax.stop_gradient(like))

    mean = replace("mean", jnp.mean(exact, axes, keepdims=True))
    square = jnp.mean(exact * exact, axes, keepdims=True)
    return mean, replace("variance", square - mean * mean)


def _batch_normalisation(layer: Any, options: JaxForwardOptions) -> Function:
    def forward(x: Any, w: Any, b: Any, *given: Any) -> Any:
        exact = x.astype(jnp.float32)
        w, b, mean, variance = (options.along_channels(vector, x.ndim) for vector in (w, b, *given))
        batch = []
        if options.training:
            channels = options.channels(x.ndim)
            axes = tuple(axis for axis in range(x.ndim) if axis != channels)
            count = x.size // x.shape[channels]
            mean, variance = _statistics(exact, axes, options)
            unbiased = variance * (count / max(count - 1, 1))
            batch = [vector.reshape(-1) for vector in (mean, variance, mean, unbiased)]
            for index, running in enumerate(given, 2):
                batch[index] = running + layer.momentum * (batch[index] - running)
        factor = lax.rsqrt(variance + layer.epsilon) * w
        result = ((exact - mean) * factor + b).astype(x.dtype)
        return (result, *batch) if options.training else result

    return forward


def _layer_normalisation(layer: Any, options: JaxForwardOptions) -> Function:
    def forward(x: Any, w: Any, b: Any) -> Any:
        exact = x.astype(jnp.float32)
        mean, variance = _statistics(exact, (x.ndim - 1,), options)
        factor = lax.rsqrt(variance + layer.epsilon) * w
        result = ((exact - mean) * factor + b).astype(x.dtype)
        return (result, mean, variance) if options.training else result

    return forward


def _group_normalisation(layer: Any, options: JaxForwardOptions) -> Function:
    channels = options.channels()
    axes = (2, 3, 4) if channels == 1 else (1, 2, 4)

    def forward(x: Any, *factors: Any) -> Any:
        sizes = *x.shape[:channels], layer.groups, -1, *x.shape[channels + 1 :]
        exact = x.astype(jnp.float32).reshape(sizes)
        mean, variance = _statistics(exact, axes, options)
        normal = ((exact - mean) * lax.rsqrt(variance + layer.epsilon)).reshape(x.shape)
        if factors:
            w, b = (options.along_channels(vector, x.ndim) for vector in factors)
            normal = normal * w + b
        result = normal.astype(x.dtype)
        return (result, mean, variance) if options.training else result

    return forward


def _root_mean_square(layer: Any, _options: JaxForwardOptions) -> Function:
    def forward(x: Any, w: Any) -> Any:
        exact = x.astype(jnp.float32)
        squares = jnp.mean(exact * exact, -1, keepdims=True)
        return (exact * lax.rsqrt(squares + layer.epsilon) * w).astype(x.dtype)

    return forward


def _parametric_relu(_layer: Any, options: JaxForwardOptions) -> Function:
    return lambda x, w: jnp.where(x > 0, x, x * options.along_channels(w, x.ndim))


def _turned(x: Any, cosines: Any, sines: Any) -> Any:
    first, second = jnp.split(x, 2, -1)
    return x * cosines + jnp.concatenate((-second, first), -1) * sines


def _added_and_normalised(layer: Any, options: JaxForwardOptions) -> Function:
    norm = _root_mean_square(layer, options)
    return lambda x, y, w: (norm(x + y, w), x + y)


#: Forward functions by :func:`~pydlbench.backends.frameworks.backend.op_of` a layer.
FORWARD: Final[Mapping[str, Callable[[Any, JaxForwardOptions], Function]]] = {
    "conv": _convolution,
    "deconv": _transposed_convolution,
    "gemm": lambda _layer, options: functools.partial(
        jnp.einsum, f"...mk,...{'nk' if options.layout == 'transposed' else 'kn'}->...mn"
    ),
    "attention": _attention,
    "pool": _pooling,
    "bias": lambda _, options: lambda x, b: x + options.along_channels(b, x.ndim),
    "relu": always(nn.relu),
    "relu6": always(nn.relu6),
    "hardsigmoid": always(nn.hard_sigmoid),
    "hardswish": always(nn.hard_swish),
    "sigmoid": always(nn.sigmoid),
    "tanh": always(jnp.tanh),
    "softplus": always(nn.softplus),
    "logsigmoid": always(nn.log_sigmoid),
    "elu": lambda layer, _: lambda x: layer.factor * nn.elu(x, layer.alpha),
    "silu": always(nn.silu),
    "mish": always(nn.mish),
    "gelu": always(functools.partial(nn.gelu, approximate=False)),
    "gelu-tanh": always(nn.gelu),
    "hardtanh": lambda layer, _: functools.partial(jnp.clip, min=layer.low, max=layer.high),
    "prelu": _parametric_relu,
    "scale": always(operator.mul),
    "add": always(operator.add),
    "swiglu": always(lambda gate, x: nn.silu(gate) * x),
    "rope": always(_turned),
    "add-rmsnorm": _added_and_normalised,
    "concat": lambda _, options: lambda *images: jnp.concatenate(images, options.channels()),
    "lrn": _local_response,
    "batchnorm": _batch_normalisation,
    "layernorm": _layer_normalisation,
    "groupnorm": _group_normalisation,
    "rmsnorm": _root_mean_square,
    "softmax": lambda layer, _: functools.partial(nn.softmax, axis=layer.axis),
    "log-softmax": lambda layer, _: functools.partial(nn.log_softmax, axis=layer.axis),
    "cumsum": lambda layer, _: functools.partial(jnp.cumsum, axis=layer.axis),
}

#: Sources computed from results, for gradients whose inputs have the result only.
SOURCES: Final[Mapping[str, Function]] = {"softmax": np.log, "log-softmax": lambda result: result}

#: Roles of statistics among the inputs of a gradient, which the reference uses.
STATISTICS: Final[tuple[str, ...]] = ("mean", "variance")
