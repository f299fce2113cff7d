"""What JAX computes for each op, forward: the one thing that is said of it here.

:data:`FORWARD` has a function of a layer and of how its tensors lie; it returns a function of the
layer's tensors, in the order of the roles that its forward pass reads. Gradients are JAX's own; a
layer of a network is computed the same way.
"""

from __future__ import annotations

import functools
import operator
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final

import numpy as np
from jax import ShapeDtypeStruct, lax, linear_transpose, nn
from jax import numpy as jnp

from pydlbench.backends.frameworks.operands import axes_of, shape_in

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    Function = Callable[..., Any]

#: The layout of filters by that of images.
FILTERS = {"nchw": "oihw", "nhwc": "hwio"}


@dataclass(frozen=True, slots=True)
class JaxForwardOptions:
    """How the tensors of a layer lie, and what the layer is computed for.

    Attributes:
        word: ``nhwc`` or ``nchw`` for images; of products ``transposed`` if the weights are stored
            with their columns as rows.
        training: whether for a training: normalisations take the minibatch's statistics then, and
            return these too.
        statistics: values that statistics have instead of those of the source; their gradient is
            that of the source's.
    """

    word: str = "nhwc"
    training: bool = False
    statistics: Mapping[str, Any] = field(default_factory=dict)

    @property
    def images(self) -> str:
        """The layout of images."""
        return "nhwc" if self.word == "nhwc" else "nchw"

    def channels(self, dimensions: int = 4) -> int:
        """Return where images, or features, have their channels."""
        return 1 if self.images == "nchw" and dimensions > 2 else dimensions - 1

    def around(self, values: Sequence[Any], others: Any) -> tuple[Any, ...]:
        """Return what holds for each side in its place, with ``others`` for images and channels."""
        if self.images == "nhwc":
            return others, *values, others
        return others, others, *values

    def along_channels(self, vector: Any, dimensions: int) -> Any:
        """Return one element per channel, to be combined with images or features."""
        shape = [1] * dimensions
        shape[self.channels(dimensions)] = -1
        return vector.reshape(shape)


def _always(function: Function) -> Callable[[Any, JaxForwardOptions], Function]:
    """Return the entry of what is computed the same way for any layer."""
    return lambda _layer, _options: function


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


def _product(_layer: Any, options: JaxForwardOptions) -> Function:
    weights = "nk" if options.word == "transposed" else "kn"
    return functools.partial(jnp.einsum, f"...mk,...{weights}->...mn")


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
    # JAX has the heads behind the places of a sequence.
    def turned(heads: Any) -> Any:
        return heads.swapaxes(1, 2)

    return lambda query, key, value: turned(
        nn.dot_product_attention(
            turned(query), turned(key), turned(value), is_causal=bool(layer.causal)
        )
    )


def _local_response(layer: Any, options: JaxForwardOptions) -> Function:
    window, pads = [1] * 4, [(0, 0)] * 4
    window[options.channels()] = layer.local_size
    pads[options.channels()] = (layer.local_size // 2,) * 2

    def forward(images: Any) -> Any:
        sums = lax.reduce_window(images * images, 0.0, lax.add, window, [1] * 4, pads)
        return images * (layer.k + layer.alpha / layer.local_size * sums) ** -layer.beta

    return forward


def _statistics(exact: Any, axes: tuple[int, ...], options: JaxForwardOptions) -> tuple[Any, Any]:
    """Return mean and variance over axes, which are kept, by one reading as Flax does."""

    def having(role: str, like: Any) -> Any:
        if role not in options.statistics:
            return like
        return options.statistics[role].reshape(like.shape) + (like - lax.stop_gradient(like))

    mean = having("mean", jnp.mean(exact, axes, keepdims=True))
    square = jnp.mean(exact * exact, axes, keepdims=True)
    return mean, having("variance", square - mean * mean)


def _batch_normalisation(layer: Any, options: JaxForwardOptions) -> Function:
    def forward(x: Any, w: Any, b: Any, *given: Any) -> Any:
        exact = x.astype(jnp.float32)
        w, b, mean, variance = (options.along_channels(each, x.ndim) for each in (w, b, *given))
        batch = []
        if options.training:
            channels = options.channels(x.ndim)
            axes = tuple(axis for axis in range(x.ndim) if axis != channels)
            count = x.size // x.shape[channels]
            mean, variance = _statistics(exact, axes, options)
            unbiased = variance * (count / max(count - 1, 1))
            batch = [each.reshape(-1) for each in (mean, variance, mean, unbiased)]
            for place, running in enumerate(given, 2):
                batch[place] = running + layer.momentum * (batch[place] - running)
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


def _root_mean_square(layer: Any, _options: JaxForwardOptions) -> Function:
    def forward(x: Any, w: Any) -> Any:
        exact = x.astype(jnp.float32)
        squares = jnp.mean(exact * exact, -1, keepdims=True)
        return (exact * lax.rsqrt(squares + layer.epsilon) * w).astype(x.dtype)

    return forward


#: What is computed for a layer, by :func:`~pydlbench.backends.frameworks.backend.op_of` it.
FORWARD: Final[Mapping[str, Callable[[Any, JaxForwardOptions], Function]]] = {
    "conv": _convolution,
    "deconv": _transposed_convolution,
    "gemm": _product,
    "attention": _attention,
    "pool": _pooling,
    "bias": lambda _, options: lambda x, b: x + options.along_channels(b, x.ndim),
    "relu": _always(nn.relu),
    "relu6": _always(nn.relu6),
    "hardsigmoid": _always(nn.hard_sigmoid),
    "hardswish": _always(nn.hard_swish),
    "sigmoid": _always(nn.sigmoid),
    "tanh": _always(jnp.tanh),
    "softplus": _always(nn.softplus),
    "elu": _always(nn.elu),
    "silu": _always(nn.silu),
    "mish": _always(nn.mish),
    "gelu": _always(functools.partial(nn.gelu, approximate=False)),
    "gelu-tanh": _always(nn.gelu),
    "scale": _always(operator.mul),
    "add": _always(operator.add),
    "concat": lambda _, options: lambda *images: jnp.concatenate(images, options.channels()),
    "lrn": _local_response,
    "batchnorm": _batch_normalisation,
    "layernorm": _layer_normalisation,
    "rmsnorm": _root_mean_square,
    "softmax": _always(nn.softmax),
    "log-softmax": _always(nn.log_softmax),
}

#: The source whose result the inputs of a gradient have in its place.
SOURCES: Final[Mapping[str, Function]] = {"softmax": np.log, "log-softmax": lambda result: result}

#: Roles of statistics that the inputs of a gradient have: the reference computes with these.
STATISTICS: Final[tuple[str, ...]] = ("mean", "variance")
