"""Memory-bound layers as TensorFlow's operators: activations, normalisations, losses, updates.

What a gradient reads of the forward pass (the result of a ReLU, a mask) is computed beforehand, as
TensorFlow would have kept it.
"""

from __future__ import annotations

import math
import operator
from dataclasses import KW_ONLY, dataclass
from functools import partial
from typing import TYPE_CHECKING, Any, Final, NamedTuple

import numpy as np

from pydlbench.backends.frameworks.layouts import arranged, layout_of_images, plain
from pydlbench.backends.tensorflow.operator import (
    FORMATS,
    InNetwork,
    LayerCalls,
    Recipe,
    as_array,
)
from pydlbench.backends.tensorflow.settings import DTYPES, tf
from pydlbench.backends.verification.inputs import kept_elements
from pydlbench.errors import UnsupportedError
from pydlbench.ops.table import OPS

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from numpy.typing import NDArray

    from pydlbench.backends.tensorflow.operator import Phase
    from pydlbench.ops.op import Layer
    from pydlbench.records.specs import KernelSpec

    Arrays = Mapping[str, NDArray[Any]]

_FLOAT32 = "float32"


class At(NamedTuple):
    """What a function of tensors has to know besides them: the layer, and the images' format."""

    layer: Layer
    data_format: str


@dataclass(frozen=True, slots=True)
class PassCalls:
    """What TensorFlow calls for one pass of an operation.

    Each function takes an :class:`At` first.

    Attributes:
        names: TensorFlow's names of the operators.
        function: what is traced. It takes what the pass reads and returns what it writes, both in
            the order of the layer's roles; results in variables are left out.
        of_result: whether a gradient takes the result of the forward pass in place of its source.
        kept: makes what ``function`` takes of what the pass reads, by operators that TensorFlow has
            run before this pass; None where they are the same, but for ``of_result``.
        narrow: the names where numbers are stored in less than float32; None where they are the
            same.
        sums: see :class:`Recipe`.
        formats: of images, those that there are operators for.
        variables: places of operands that become variables.
        operands: makes the operands, in plain layouts, of the arrays that the pass reads; None
            where they are the same.
        types: of the operands, where they are not what their roles say.
        finish: makes the results, in plain layouts, of what the function returned and of its
            operands; None where they are the same.
        casts_back: whether what it computes in float32 is converted to the storage type.
        steps_back: whether every second call undoes the one before it, by a negative rate.
    """

    names: str
    function: Callable[..., Any]
    _: KW_ONLY
    of_result: bool = False
    kept: Callable[..., Sequence[Any]] | None = None
    narrow: str | None = None
    sums: str = _FLOAT32
    formats: Sequence[str] = FORMATS
    variables: tuple[int, ...] = ()
    operands: Callable[..., Sequence[NDArray[Any]]] | None = None
    types: tuple[str | None, ...] | None = None
    finish: Callable[[At, Sequence[Any], Sequence[Any]], Sequence[Any]] | None = None
    casts_back: bool = False
    steps_back: bool = False


#: What rounds each intermediate result to what is stored.
_rounding = partial(PassCalls, sums="stored")


def _call(function: Callable[..., Any], *names: str) -> Callable[..., Any]:
    """Return a call that needs to know nothing of the layer.

    Args:
        function: TensorFlow's.
        names: of its operands; none where it takes them by their places (raw operators do not).
    """
    if not names:
        return lambda _, *tensors: function(*tensors)
    return lambda _, *tensors: function(**dict(zip(names, tensors, strict=True)))


# -----------------------------------------------------------------------------
# Activations. What Keras has no operator for is a chain, each of which rounds what it writes.

_relu6 = _call(tf.nn.relu6)
_relu_gradient = _call(tf.raw_ops.ReluGrad, "features", "gradients")
_relu6_gradient = _call(tf.raw_ops.Relu6Grad, "features", "gradients")
_elu_gradient = _call(tf.raw_ops.EluGrad, "outputs", "gradients")
_sigmoid_gradient = _call(tf.raw_ops.SigmoidGrad, "y", "dy")
_softplus_gradient = _call(tf.raw_ops.SoftplusGrad, "features", "gradients")
_tanh_gradient = _call(tf.raw_ops.TanhGrad, "y", "dy")


def _hard_sigmoid(_: At, x: Any) -> Any:
    return tf.nn.relu6(x + 3) * (1 / 6)


def _hard_sigmoid_gradient(at: At, y: Any, g: Any) -> Any:
    return _relu6_gradient(at, y, g * (1 / 6))


def _hard_swish(at: At, x: Any) -> Any:
    return x * _hard_sigmoid(at, x)


def _hard_swish_gradient(at: At, x: Any, y: Any, g: Any) -> Any:
    through = _relu6_gradient(at, y, g * x * (1 / 6))
    return tf.add_n([g * (y * (1 / 6)), through])


def _silu_gradient(_: At, x: Any, g: Any) -> Any:
    share = tf.sigmoid(x)
    return g * (share * (1 + x * (1 - share)))


def _mish_kept(_: At, x: Any, g: Any) -> Sequence[Any]:
    return x, tf.tanh(tf.nn.softplus(x)), g


def _mish_gradient(at: At, x: Any, t: Any, g: Any) -> Any:
    inner = _tanh_gradient(at, t, g * x)
    return tf.add_n([g * t, _softplus_gradient(at, x, inner)])


def _kept_of_gelu(_: At, x: Any, g: Any) -> Sequence[Any]:
    scaled = x / tf.cast(math.sqrt(2), x.dtype)
    return 0.5 * x, scaled, 1 + tf.math.erf(scaled), g


def _gelu_gradient(_: At, half: Any, scaled: Any, factor: Any, g: Any) -> Any:
    root = tf.cast(math.sqrt(2), g.dtype)
    density = tf.cast(2 / math.sqrt(math.pi), g.dtype) * tf.exp(-tf.square(scaled))
    return tf.add_n([g * factor * 0.5, g * half * density / root])


_TANH_FACTOR: Final = math.sqrt(2 / math.pi)


def _kept_of_gelu_tanh(_: At, x: Any, g: Any) -> Sequence[Any]:
    return x, tf.tanh(_TANH_FACTOR * (x + 0.044715 * tf.pow(x, 3))), g


def _gelu_tanh_gradient(at: At, x: Any, t: Any, g: Any) -> Any:
    inner = _tanh_gradient(at, t, g * (0.5 * x))
    slope = _TANH_FACTOR * (1 + 3 * 0.044715 * tf.pow(x, 2))
    return tf.add_n([0.5 * g * (1 + t), inner * slope])


# -----------------------------------------------------------------------------
# What works along the last axis: softmax, its logarithm, and layer normalisation.

_LAYER_NORM = "Mean, SquaredDifference, Mean, AddV2, Rsqrt, Mul, Mul, Mul, Sub, AddV2"
_CAST_LAYER_NORM = f"Cast, {_LAYER_NORM}, Cast"


def _softmax_gradient(_: At, y: Any, g: Any) -> Any:
    return (g - tf.reduce_sum(g * y, -1, keepdims=True)) * y


def _log_softmax_gradient(_: At, y: Any, g: Any) -> Any:
    return g - tf.exp(y) * tf.reduce_sum(g, -1, keepdims=True)


def _row_statistics(at: At, x: Any, w: Any, b: Any) -> Any:
    exact = tf.cast(x, _FLOAT32)
    mean, variance = tf.nn.moments(exact, [-1], keepdims=True)
    found = tf.nn.batch_normalization(exact, mean, variance, b, w, at.layer.epsilon)
    return tf.cast(found, x.dtype), tf.reshape(mean, [-1]), tf.reshape(variance, [-1])


# In closed form, as a function with a gradient of its own has it: what differentiation makes of the
# operators above is longer.
_LAYER_GRADIENT = "AddV2, Rsqrt, Sub, Mul, Mul, Mul, Mean, Mean, Mul, Sub, Sub, Mul, Mul, Sum, Sum"


def _layer_gradients(at: At, x: Any, g: Any, w: Any, m: Any, v: Any) -> Any:
    of_rows = [*at.layer.shapes()["src"][:-1], 1]
    inverse = tf.math.rsqrt(tf.reshape(v, of_rows) + at.layer.epsilon)
    distance = (tf.cast(x, _FLOAT32) - tf.reshape(m, of_rows)) * inverse
    given = tf.cast(g, _FLOAT32)
    inner, slopes = given * w, given * distance
    shift = tf.reduce_mean(inner, -1, keepdims=True)
    slope = tf.reduce_mean(slopes * w, -1, keepdims=True)
    gradient = (inner - shift - distance * slope) * inverse
    return (
        tf.cast(gradient, x.dtype),
        tf.reduce_sum(slopes, [0, 1, 2]),
        tf.reduce_sum(given, [0, 1, 2]),
    )


# -----------------------------------------------------------------------------
# Biases, factors and sums; maps that are joined and taken apart; dropout.

# From so many sources on, the gradient of a concatenation is one Split, else a Slice for each.
_MOST_SLICES = 16


def _bias(at: At, x: Any, b: Any) -> Any:
    return tf.nn.bias_add(x, b, at.data_format)


def _bias_gradient(at: At, g: Any) -> Any:
    return tf.raw_ops.BiasAddGrad(out_backprop=g, data_format=at.data_format)


def _scale_gradients(at: At, x: Any, s: Any, g: Any) -> Any:
    axes = [at.data_format.index("H"), at.data_format.index("W")]
    return g * s, tf.reduce_sum(g * x, axes, keepdims=True)


def _joined(at: At, *sources: Any) -> Any:
    return tf.concat(sources, at.data_format.index("C"))


def _split(at: At, g: Any) -> Any:
    return tf.split(g, at.layer.sources, at.data_format.index("C"))


def _slices(at: At, g: Any) -> Any:
    axis, sizes = at.data_format.index("C"), at.layer.sources
    found = []
    for place, size in enumerate(sizes):
        begin, extent = [0] * 4, [-1] * 4
        begin[axis], extent[axis] = sum(sizes[:place]), size
        found.append(tf.slice(g, begin, extent))
    return found


def _dropped(at: At, x: Any) -> Any:
    return tf.nn.dropout(x, rate=1 - at.layer.keep)


def _masked(at: At, g: Any, mask: Any) -> Any:
    return tf.where(mask, g, tf.zeros((), g.dtype)) * tf.cast(1 / at.layer.keep, g.dtype)


def _gradient_and_mask(at: At, gradient: NDArray[Any]) -> Sequence[NDArray[Any]]:
    whole = tuple(slice(0, size) for size in gradient.shape)
    return gradient, kept_elements(gradient.shape, whole, at.layer.keep).astype(np.float32)


# -----------------------------------------------------------------------------
# Normalisations: ``LRN`` and ``FusedBatchNormV3`` with their gradients.
#
# There is no LRN in bfloat16, and none but with channels as the last dimension: what is stored
# in a narrow type is converted to float32, and converted back.


def _neighbourhood(layer: Layer) -> dict[str, Any]:
    """Return TensorFlow's words; its alpha applies to the sum of what is around, not the mean."""
    return {
        "depth_radius": layer.local_size // 2,
        "bias": layer.k,
        "alpha": layer.alpha / layer.local_size,
        "beta": layer.beta,
    }


def _local_response(at: At, x: Any) -> Any:
    return tf.nn.local_response_normalization(tf.cast(x, _FLOAT32), **_neighbourhood(at.layer))


def _kept_of_local_response(at: At, x: Any, g: Any) -> Sequence[Any]:
    return tf.cast(x, _FLOAT32), _local_response(at, x), g


def _local_response_gradient(at: At, x: Any, y: Any, g: Any) -> Any:
    words = _neighbourhood(at.layer)
    exact = tf.cast(g, _FLOAT32)
    return tf.raw_ops.LRNGrad(input_grads=exact, input_image=x, output_image=y, **words)


def _normalised(at: At, *operands: Any, training: bool, share: float = 1.0) -> Any:
    """Return all that the operator of a batch normalisation gives.

    Args:
        at: the layer has the epsilon.
        operands: images, factor, offset, and mean and variance: those to normalise by, or the
            running ones.
        training: whether the minibatch's own statistics are taken.
        share: how far the statistics that it returns are from the running ones to those of the
            minibatch, in training.
    """
    x, scale, offset, mean, variance = operands
    return tf.raw_ops.FusedBatchNormV3(
        x=x,
        scale=scale,
        offset=offset,
        mean=mean,
        variance=variance,
        epsilon=at.layer.epsilon,
        exponential_avg_factor=share,
        data_format=at.data_format,
        is_training=training,
    )


def _given_statistics(at: At, *operands: Any) -> Any:
    return _normalised(at, *operands, training=False).y


def _batch_statistics(at: At, *operands: Any) -> Any:
    """The operator moves the running statistics; their variables are assigned, as Keras does."""
    found = _normalised(at, *operands, training=True, share=at.layer.momentum)
    mean, variance = operands[-2:]
    mean.assign(found.batch_mean)
    variance.assign(found.batch_variance)
    return found.y, found.reserve_space_1, found.reserve_space_2


def _batch_gradients(at: At, x: Any, g: Any, w: Any, m: Any, v: Any) -> Any:
    found = tf.raw_ops.FusedBatchNormGradV3(
        y_backprop=g,
        x=x,
        scale=w,
        reserve_space_1=m,
        reserve_space_2=v,
        reserve_space_3=m,  # of cuDNN; nobody reads it on a CPU
        epsilon=at.layer.epsilon,
        data_format=at.data_format,
        is_training=True,
    )
    return found.x_backprop, found.scale_backprop, found.offset_backprop


# -----------------------------------------------------------------------------
# The loss on rows of logits; weight decay and optimizers on weight tensors.
#
# Half precisions are converted to float32 for the loss, as Keras's mixed precision wants it. The
# operator gives the loss of each row and, at once, the gradient of the logits: probabilities, less
# one at the label. What is left for the backward pass is to scale it.
#
# Optimizers are the operators that update a variable in one kernel.


def _one_hot(labels: NDArray[Any], classes: int) -> NDArray[Any]:
    chosen: NDArray[Any] = labels.astype(np.int64)[:, None] == np.arange(classes)
    return chosen.astype(np.float32)


def _loss(_: At, x: Any, labels: Any) -> Any:
    logits = tf.cast(x, _FLOAT32)
    found = tf.raw_ops.SparseSoftmaxCrossEntropyWithLogits(features=logits, labels=labels)
    return tf.reduce_mean(found.loss), found.loss, found.backprop


def _probabilities_and_loss(
    at: At, results: Sequence[Any], operands: Sequence[Any]
) -> Sequence[Any]:
    mean, rows, gradient = results
    # At the label, adding the one again would lose the digits of a small probability.
    chosen = _one_hot(operands[1].numpy(), at.layer.channels)
    return np.where(chosen, np.exp(-rows)[:, None], gradient), mean


def _scale_and_gradient(
    at: At, probabilities: NDArray[Any], labels: NDArray[Any]
) -> Sequence[NDArray[Any]]:
    classes = at.layer.channels
    gradient = probabilities.reshape(-1, classes) - _one_hot(labels, classes)
    return np.full(at.layer.batch, 1 / at.layer.batch, np.float32), gradient


def _loss_gradient(_: At, outer: Any, gradient: Any) -> Any:
    return tf.expand_dims(outer, -1) * gradient


def _norm(_: At, w: Any) -> Any:
    return tf.nn.l2_loss(tf.cast(w, _FLOAT32))


def _decay(at: At, w: Any, g: Any) -> Any:
    """The gradient of an L2 loss and the sum of gradients, as TensorFlow's gradients have them."""
    return tf.add_n([g, w * tf.cast(at.layer.decay, w.dtype)])


def descend(weights: Any, gradient: Any, rate: Any) -> None:
    """Move weights, a variable, against their gradient."""
    tf.raw_ops.ResourceApplyGradientDescent(var=weights.handle, alpha=rate, delta=gradient)


def descend_with_momentum(
    weights: Any, velocity: Any, gradient: Any, rate: Any, *, mu: float
) -> None:
    """Move weights by their velocity, both variables, after the gradient has been added to that."""
    tf.raw_ops.ResourceApplyMomentum(
        var=weights.handle,
        accum=velocity.handle,
        lr=rate,
        grad=gradient,
        momentum=tf.constant(mu, weights.dtype),
    )


# -----------------------------------------------------------------------------
# All operations with their passes.

_PASSES: Final[Mapping[str, Mapping[str, PassCalls]]] = {
    "bias": {
        "forward": PassCalls("BiasAdd", _bias),
        "backward-weights": PassCalls("BiasAddGrad", _bias_gradient, sums="BiasAddGrad"),
    },
    "relu": {
        "forward": PassCalls("Relu", _call(tf.nn.relu)),
        "backward-data": PassCalls("ReluGrad", _relu_gradient, of_result=True),
    },
    "relu6": {
        "forward": PassCalls("Relu6", _relu6),
        "backward-data": PassCalls("Relu6Grad", _relu6_gradient, of_result=True),
    },
    "hardsigmoid": {
        "forward": _rounding("AddV2, Relu6, Mul", _hard_sigmoid),
        "backward-data": _rounding(
            "Mul, Relu6Grad", _hard_sigmoid_gradient, kept=lambda at, x, g: (_relu6(at, x + 3), g)
        ),
    },
    "hardswish": {
        "forward": _rounding("AddV2, Relu6, Mul, Mul", _hard_swish),
        "backward-data": _rounding(
            "Mul, Mul, Mul, Relu6Grad, Mul, AddN",
            _hard_swish_gradient,
            kept=lambda at, x, g: (x, _relu6(at, x + 3), g),
        ),
    },
    "sigmoid": {
        "forward": PassCalls("Sigmoid", _call(tf.sigmoid)),
        "backward-data": _rounding("SigmoidGrad", _sigmoid_gradient, of_result=True),
    },
    "tanh": {
        "forward": PassCalls("Tanh", _call(tf.tanh)),
        "backward-data": _rounding("TanhGrad", _tanh_gradient, of_result=True),
    },
    "softplus": {
        "forward": _rounding("Softplus", _call(tf.nn.softplus)),
        "backward-data": _rounding("SoftplusGrad", _softplus_gradient),
    },
    "elu": {
        "forward": PassCalls("Elu", _call(tf.nn.elu)),
        "backward-data": _rounding("EluGrad", _elu_gradient, of_result=True),
    },
    "silu": {
        "forward": _rounding("Sigmoid, Mul", _call(tf.nn.silu)),
        "backward-data": _rounding("Sigmoid, Sub, Mul, AddV2, Mul, Mul", _silu_gradient),
    },
    "mish": {
        "forward": _rounding(
            "Softplus, Tanh, Mul", _call(lambda x: x * tf.tanh(tf.nn.softplus(x)))
        ),
        "backward-data": _rounding(
            "Mul, Mul, TanhGrad, SoftplusGrad, AddN", _mish_gradient, kept=_mish_kept
        ),
    },
    "gelu": {
        "forward": _rounding("Neg, Mul, Erfc, Mul, Mul", _call(tf.nn.gelu)),
        "backward-data": _rounding(
            "Mul, Mul, Mul, Square, Neg, Exp, Mul, RealDiv, AddN",
            _gelu_gradient,
            kept=_kept_of_gelu,
        ),
    },
    "gelu-tanh": {
        "forward": _rounding(
            "Pow, Mul, AddV2, Mul, Tanh, AddV2, Mul, Mul",
            _call(partial(tf.nn.gelu, approximate=True)),
        ),
        "backward-data": _rounding(
            "Mul, Mul, TanhGrad, Mul, Pow, Mul, AddV2, Mul, AddN",
            _gelu_tanh_gradient,
            kept=_kept_of_gelu_tanh,
        ),
    },
    "scale": {
        "forward": PassCalls("Mul", _call(operator.mul)),
        "backward-data": _rounding("Mul, Mul, Sum", _scale_gradients),
    },
    "add": {"forward": PassCalls("AddV2", _call(operator.add))},
    "concat": {
        "forward": PassCalls("ConcatV2", _joined),
        "backward-data": PassCalls("Slice", _slices),
    },
    "dropout": {
        "forward": PassCalls("RandomUniform, GreaterEqual, Mul, SelectV2", _dropped),
        "backward-data": PassCalls(
            "SelectV2, Mul", _masked, operands=_gradient_and_mask, types=(None, "bool")
        ),
    },
    "lrn": {
        "forward": PassCalls(
            "LRN", _local_response, narrow="Cast, LRN, Cast", formats=("NHWC",), casts_back=True
        ),
        "backward-data": PassCalls(
            "LRNGrad",
            _local_response_gradient,
            narrow="Cast, LRNGrad, Cast",
            kept=_kept_of_local_response,
            formats=("NHWC",),
            casts_back=True,
        ),
    },
    "batchnorm": {
        "forward": PassCalls("FusedBatchNormV3", _given_statistics),
        "backward-data": PassCalls("FusedBatchNormGradV3", _batch_gradients),
    },
    "softmax-xent": {
        "forward": PassCalls(
            "SparseSoftmaxCrossEntropyWithLogits, Mean",
            _loss,
            operands=lambda at, x, labels: (x.reshape(-1, at.layer.channels), labels),
            types=(None, "int32"),
            finish=_probabilities_and_loss,
        ),
        "backward-data": PassCalls(
            "Mul",
            _loss_gradient,
            narrow="Mul, Cast",
            operands=_scale_and_gradient,
            types=(_FLOAT32, _FLOAT32),
            casts_back=True,
        ),
    },
    "softmax": {
        # XLA adds a row's powers up in their own type.
        "forward": _rounding("Softmax", _call(tf.nn.softmax)),
        "backward-data": _rounding("Mul, Sum, Sub, Mul", _softmax_gradient),
    },
    "log-softmax": {
        "forward": _rounding("LogSoftmax", _call(tf.nn.log_softmax)),
        "backward-data": _rounding("Exp, Sum, Mul, Sub", _log_softmax_gradient),
    },
    "layernorm": {
        "forward": PassCalls(
            _LAYER_NORM,
            lambda at, *operands: _row_statistics(at, *operands)[0],
            narrow=_CAST_LAYER_NORM,
        ),
        "backward-data": PassCalls(
            _LAYER_GRADIENT, _layer_gradients, narrow=f"Cast, Cast, {_LAYER_GRADIENT}, Cast"
        ),
    },
    "l2": {
        "forward": PassCalls("L2Loss", _norm, narrow="Cast, L2Loss"),
        "backward-weights": _rounding("Mul, AddN", _decay),
    },
    "sgd": {
        "forward": _rounding(
            "ResourceApplyGradientDescent", _call(descend), variables=(0,), steps_back=True
        )
    },
    "momentum": {
        "forward": _rounding(
            "ResourceApplyMomentum",
            lambda at, w, v, g, rate: descend_with_momentum(w, v, g, rate, mu=at.layer.mu),
            variables=(0, 1),
            steps_back=True,
        )
    },
}
#: Of normalisations in training, which keep their statistics.
_KEEPING: Final[Mapping[str, PassCalls]] = {
    "batchnorm": PassCalls("FusedBatchNormV3", _batch_statistics, variables=(3, 4)),
    "layernorm": PassCalls(_LAYER_NORM, _row_statistics, narrow=_CAST_LAYER_NORM),
}
#: Of concatenations of many sources.
_SPLIT = PassCalls("SplitV", _split)


def _passes(layer: Layer, pass_: str, propagation: str) -> PassCalls:
    """Return what TensorFlow calls for a pass of a layer."""
    if (pass_, propagation) == ("forward", "training") and layer.op in _KEEPING:
        return _KEEPING[layer.op]
    if (layer.op, pass_) == ("concat", "backward-data") and len(layer.sources) > _MOST_SLICES:
        return _SPLIT
    return _PASSES[layer.op][pass_]


def pointwise_recipes(layer: Layer, case: KernelSpec) -> list[Recipe]:
    """Return the ways to compute a pass of a memory-bound layer.

    Raises:
        UnsupportedError: on a GPU.
    """
    if case.on_gpu:
        raise UnsupportedError("tensorflow: memory-bound layers are run on CPUs so far")
    calls = _passes(layer, case.pass_, case.propagation)
    operation = OPS[layer.op]
    formats = (
        ("NCHW",)
        if operation.form == "rows"
        else calls.formats[: 1 if operation.in_one_order else None]
    )
    return [_recipe(layer, case, calls, data_format) for data_format in formats]


def _recipe(layer: Layer, case: KernelSpec, calls: PassCalls, data_format: str) -> Recipe:
    operation, images = OPS[layer.op], data_format.lower()
    reads = layer.reads(case.pass_, case.propagation)
    writes = layer.writes(case.pass_, case.propagation)
    stored = DTYPES[case.precision]
    at = At(layer, data_format)

    def function(*tensors: Any) -> Any:
        found = calls.function(at, *tensors)
        return tf.cast(found, stored) if calls.casts_back else found

    def operands(inputs: Arrays) -> tuple[NDArray[Any], ...]:
        found: Sequence[NDArray[Any]] = [inputs[role] for role in reads]
        if calls.operands is not None:
            found = calls.operands(at, *found)
        return tuple(arranged(one, images) if one.ndim == 4 else one for one in found)

    def complete(tensors: Sequence[Any]) -> Sequence[Any]:
        if calls.of_result:
            source, *others = tensors
            return _PASSES[layer.op]["forward"].function(at, source), *others
        return tensors if calls.kept is None else calls.kept(at, *tensors)

    def by_role(results: Sequence[NDArray[Any]], tensors: Sequence[Any]) -> dict[str, NDArray[Any]]:
        found = results if calls.finish is None else calls.finish(at, results, tensors)
        variables = (as_array(tensors[place]) for place in calls.variables)
        return {
            role: plain(one, images) if one.ndim == 4 else one.reshape(layer.shapes()[role])
            for role, one in zip(writes, (*found, *variables), strict=True)
        }

    layout = layout_of_images(
        layer, case.pass_, "nc" if operation.form in ("flat", "weights") else images
    )
    return Recipe(
        algorithm=calls.narrow if calls.narrow and stored != _FLOAT32 else calls.names,
        layout=", ".join(reads) if operation.form == "weights" else layout,
        variant="plain" if operation.in_one_order else images,
        function=function,
        operands=operands,
        by_role=by_role,
        complete=complete,
        sums=calls.sums,
        types=calls.types or tuple(_FLOAT32 if layer.in_float32(one) else None for one in reads),
        variables=calls.variables,
        turns=(layer.rate, -layer.rate) if calls.steps_back else (),
    )


# -----------------------------------------------------------------------------
# The same operations within a network.


class OperationInNetwork(InNetwork):
    """An operation that is called as it is alone.

    Args:
        layer: the memory-bound layer.
        data_format: of the images.
    """

    def __init__(self, layer: Layer, data_format: str) -> None:
        self._at = At(layer, data_format)

    def output(self, inputs: Sequence[Any], own: Mapping[str, Any], phase: Phase) -> Any:
        """Return the layer's output."""
        del own, phase
        return _PASSES[self._at.layer.op]["forward"].function(self._at, *inputs)

    def gradient(self, source: Any, result: Any, incoming: Any) -> Any:
        """Return the gradient of the source where it is made of the result."""
        del source
        calls = _PASSES[self._at.layer.op].get("backward-data")
        return calls.function(self._at, result, incoming) if calls and calls.of_result else None


class LocalResponseInNetwork(OperationInNetwork):
    """A local response normalisation, in the type of the images; channels are brought behind."""

    entangled = True

    def output(self, inputs: Sequence[Any], own: Mapping[str, Any], phase: Phase) -> Any:
        """Return the normalised images."""
        del own, phase
        (images,) = inputs
        outside = self._at.data_format == "NCHW"
        if outside:
            images = tf.transpose(images, [0, 2, 3, 1])
        result = tf.nn.local_response_normalization(images, **_neighbourhood(self._at.layer))
        return tf.transpose(result, [0, 3, 1, 2]) if outside else result


class DropoutInNetwork(OperationInNetwork):
    """A dropout, which drops nothing but in training."""

    def output(self, inputs: Sequence[Any], own: Mapping[str, Any], phase: Phase) -> Any:
        """Return the images, some of their elements dropped."""
        return super().output(inputs, own, phase) if phase.drops else inputs[0]


class BatchNormalisationInNetwork(OperationInNetwork):
    """A batch normalisation; without trained ``weights`` its factor is one.

    In training the running statistics are moved as the scripts of version 1 did, by operators of
    their own.
    """

    entangled = True

    def output(self, inputs: Sequence[Any], own: Mapping[str, Any], phase: Phase) -> Any:
        """Return the normalised images."""
        layer, (images,) = self._at.layer, inputs
        factor = own["weights"] if "weights" in own else tf.ones([layer.channels])
        running = own["running_mean"], own["running_variance"]
        nothing = tf.constant([], tf.float32)
        given = (nothing, nothing) if phase.batch_statistics else running
        operands = images, factor, own["bias"], *given
        result, *batch, _, _, _ = _normalised(self._at, *operands, training=phase.batch_statistics)
        if phase.batch_statistics:
            # The operator's variance is unbiased already.
            for variable, new in zip(running, batch, strict=True):
                variable.assign_sub(layer.momentum * (variable - new))
        return result


# Operations that a network calls in another way than one that is timed alone.
_IN_NETWORK: Final[Mapping[str, type[OperationInNetwork]]] = {
    "lrn": LocalResponseInNetwork,
    "dropout": DropoutInNetwork,
    "batchnorm": BatchNormalisationInNetwork,
}

#: What TensorFlow calls for memory-bound layers, by operation. Losses and updates are no nodes.
POINTWISE: Final[Mapping[str, LayerCalls]] = {
    op: LayerCalls(
        recipes=pointwise_recipes,
        in_network=None if OPS[op].in_one_order else _IN_NETWORK.get(op, OperationInNetwork),
    )
    for op in _PASSES
}
