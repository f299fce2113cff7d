"""Memory-bound layers as TensorFlow's operators: activations, normalisations, losses, updates.

What a gradient reads of the forward pass (the result of a ReLU, a mask) is computed beforehand, as
TensorFlow would have kept it.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np

from pydlbench.backends.frameworks.layouts import arranged, layout_of_images, plain
from pydlbench.backends.tensorflow.operator import (
    DTYPES,
    FORMATS,
    InNetwork,
    LayerCalls,
    Recipe,
    as_array,
    as_they_are,
)
from pydlbench.backends.tensorflow.runtime import tf
from pydlbench.backends.verification.inputs import kept_elements
from pydlbench.errors import UnsupportedError
from pydlbench.layers.pointwise import Pointwise
from pydlbench.layers.pointwise_ops import OPERATIONS

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from numpy.typing import NDArray

    from pydlbench.backends.tensorflow.operator import Phase
    from pydlbench.layers.layer import Layer
    from pydlbench.records.specs import KernelSpec

    Arrays = Mapping[str, NDArray[Any]]

__all__ = ["POINTWISE"]

_FLOAT32 = "float32"


def _inputs_by_role(layer: Pointwise, roles: Sequence[str], inputs: Arrays) -> list[NDArray[Any]]:
    """Return the operands of most passes: what they read, in the order of the roles."""
    del layer
    return [inputs[role] for role in roles]


@dataclass(frozen=True, slots=True, kw_only=True)
class PassCalls:
    """What TensorFlow calls for one pass of an operation.

    Attributes:
        names: TensorFlow's names of the operators.
        function: makes, for a layer and a format of images, the function that is traced. It takes
            what the pass reads and returns what it writes, both in the order of the layer's roles;
            results in variables are left out.
        kept: makes what the function takes of what the pass reads, by operators that TensorFlow has
            run before this pass: the result of a ReLU instead of its source, say.
        narrow: the names where numbers are stored in less than float32; None where they are the
            same.
        sums: see :class:`Recipe`.
        formats: of images, those that there are operators for.
        variables: places of operands that become variables.
        operands: makes the operands of the layer, the roles that it reads, and plain inputs.
        types: of the operands, where they are not what their roles say.
        finish: makes plain results of the layer, what the function returned, and its operands;
            None where the two are the same.
        casts_back: whether what it computes in float32 is converted to the storage type.
        steps_back: whether every second call undoes the one before it, by a negative rate.
    """

    names: str
    function: Callable[[Pointwise, str], Callable[..., Any]]
    kept: Callable[[Pointwise, Sequence[Any]], Sequence[Any]] | None = None
    narrow: str | None = None
    sums: str = _FLOAT32
    formats: Sequence[str] = FORMATS
    variables: tuple[int, ...] = ()
    operands: Callable[[Pointwise, Sequence[str], Arrays], Sequence[NDArray[Any]]] = _inputs_by_role
    types: tuple[str | None, ...] | None = None
    finish: Callable[[Pointwise, Sequence[Any], Sequence[Any]], Sequence[Any]] | None = None
    casts_back: bool = False
    steps_back: bool = False


def on_elements(function: Callable[..., Any]) -> Callable[[Pointwise, str], Callable[..., Any]]:
    """Return a function of elements, which asks for neither the layer nor the format."""
    return lambda _layer, _data_format: function


# -----------------------------------------------------------------------------
# Activations. What Keras has no operator for is a chain, each of which rounds what it writes.


def _hard_sigmoid(x: Any) -> Any:
    return tf.nn.relu6(x + 3) * (1 / 6)


def _hard_sigmoid_gradient(y: Any, g: Any) -> Any:
    return tf.raw_ops.Relu6Grad(gradients=g * (1 / 6), features=y)


def _hard_swish(x: Any) -> Any:
    return x * _hard_sigmoid(x)


def _hard_swish_gradient(x: Any, y: Any, g: Any) -> Any:
    through = tf.raw_ops.Relu6Grad(gradients=g * x * (1 / 6), features=y)
    return tf.add_n([g * (y * (1 / 6)), through])


def _relu_gradient(y: Any, g: Any) -> Any:
    return tf.raw_ops.ReluGrad(gradients=g, features=y)


def _relu6_gradient(y: Any, g: Any) -> Any:
    return tf.raw_ops.Relu6Grad(gradients=g, features=y)


# -----------------------------------------------------------------------------
# Biases, factors and sums; maps that are joined and taken apart; dropout.

# From so many sources on, the gradient of a concatenation is one Split, else a Slice for each.
_MOST_SLICES = 16


def _bias(layer: Pointwise, data_format: str) -> Callable[..., Any]:
    del layer
    return lambda x, b: tf.nn.bias_add(x, b, data_format)


def _bias_gradient(layer: Pointwise, data_format: str) -> Callable[..., Any]:
    del layer
    return lambda g: tf.raw_ops.BiasAddGrad(out_backprop=g, data_format=data_format)


def _scale_gradients(layer: Pointwise, data_format: str) -> Callable[..., Any]:
    del layer
    axes = [data_format.index("H"), data_format.index("W")]
    return lambda x, s, g: (g * s, tf.reduce_sum(g * x, axes, keepdims=True))


def _joined(layer: Pointwise, data_format: str) -> Callable[..., Any]:
    del layer
    axis = data_format.index("C")
    return lambda *sources: tf.concat(sources, axis)


def _split(layer: Pointwise, data_format: str) -> Callable[..., Any]:
    return lambda g: tf.split(g, layer.sources, data_format.index("C"))


def _slices(layer: Pointwise, data_format: str) -> Callable[..., Any]:
    axis = data_format.index("C")

    def slices(g: Any) -> Any:
        found = []
        for place, size in enumerate(layer.sources):
            begin, extent = [0] * 4, [-1] * 4
            begin[axis], extent[axis] = sum(layer.sources[:place]), size
            found.append(tf.slice(g, begin, extent))
        return found

    return slices


def _dropped(layer: Pointwise, data_format: str) -> Callable[..., Any]:
    del data_format
    return lambda x: tf.nn.dropout(x, rate=1 - layer.keep)


def _masked(layer: Pointwise, data_format: str) -> Callable[..., Any]:
    del data_format

    def masked(g: Any, mask: Any) -> Any:
        return tf.where(mask, g, tf.zeros((), g.dtype)) * tf.cast(1 / layer.keep, g.dtype)

    return masked


def _gradient_and_mask(
    layer: Pointwise, roles: Sequence[str], inputs: Arrays
) -> Sequence[NDArray[Any]]:
    shape = layer.dims("src")
    kept = kept_elements(shape, tuple(slice(0, size) for size in shape), layer.keep)
    return *_inputs_by_role(layer, roles, inputs), kept.astype(np.float32)


# -----------------------------------------------------------------------------
# Normalisations: ``LRN`` and ``FusedBatchNormV3`` with their gradients.
#
# There is no LRN in bfloat16, and none but with channels as the last dimension: what is stored
# in a narrow type is converted to float32, and converted back.


def _neighbourhood(layer: Pointwise) -> dict[str, Any]:
    """Return TensorFlow's words; its alpha applies to the sum of what is around, not the mean."""
    return {
        "depth_radius": layer.local_size // 2,
        "bias": layer.k,
        "alpha": layer.alpha / layer.local_size,
        "beta": layer.beta,
    }


def _local_response(layer: Pointwise, data_format: str) -> Callable[..., Any]:
    del data_format

    words = _neighbourhood(layer)
    return lambda x: tf.nn.local_response_normalization(tf.cast(x, _FLOAT32), **words)


def _local_response_gradient(layer: Pointwise, data_format: str) -> Callable[..., Any]:
    del data_format

    words = _neighbourhood(layer)
    return lambda x, y, g: tf.raw_ops.LRNGrad(
        input_grads=tf.cast(g, _FLOAT32), input_image=x, output_image=y, **words
    )


def _kept_of_local_response(layer: Pointwise, tensors: Sequence[Any]) -> Sequence[Any]:
    source, gradient = tf.cast(tensors[0], _FLOAT32), tensors[1]
    result = tf.nn.local_response_normalization(source, **_neighbourhood(layer))
    return source, result, gradient


def _normalised(
    layer: Pointwise, data_format: str, *operands: Any, training: bool, share: float = 1.0
) -> Any:
    """Return all that the operator of a batch normalisation gives.

    Args:
        layer: its epsilon.
        data_format: of the images.
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
        epsilon=layer.epsilon,
        exponential_avg_factor=share,
        data_format=data_format,
        is_training=training,
    )


def _given_statistics(layer: Pointwise, data_format: str) -> Callable[..., Any]:
    return lambda *operands: _normalised(layer, data_format, *operands, training=False).y


def _batch_statistics(layer: Pointwise, data_format: str) -> Callable[..., Any]:
    """The operator moves the running statistics; their variables are assigned, as Keras does."""

    def normalized(x: Any, w: Any, b: Any, mean: Any, variance: Any) -> Any:
        found = _normalised(
            layer, data_format, x, w, b, mean, variance, training=True, share=layer.momentum
        )
        mean.assign(found.batch_mean)
        variance.assign(found.batch_variance)
        return found.y, found.reserve_space_1, found.reserve_space_2

    return normalized


def _batch_gradients(layer: Pointwise, data_format: str) -> Callable[..., Any]:
    def gradients(x: Any, g: Any, w: Any, m: Any, v: Any) -> Any:
        found = tf.raw_ops.FusedBatchNormGradV3(
            y_backprop=g,
            x=x,
            scale=w,
            reserve_space_1=m,
            reserve_space_2=v,
            reserve_space_3=m,  # of cuDNN; nobody reads it on a CPU
            epsilon=layer.epsilon,
            data_format=data_format,
            is_training=True,
        )
        return found.x_backprop, found.scale_backprop, found.offset_backprop

    return gradients


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


def _loss(x: Any, labels: Any) -> Any:
    found = tf.raw_ops.SparseSoftmaxCrossEntropyWithLogits(
        features=tf.cast(x, _FLOAT32), labels=labels
    )
    return tf.reduce_mean(found.loss), found.loss, found.backprop


def _rows_and_labels(
    layer: Pointwise, roles: Sequence[str], inputs: Arrays
) -> Sequence[NDArray[Any]]:
    rows, labels = _inputs_by_role(layer, roles, inputs)
    return rows.reshape(layer.batch, layer.channels), labels


def _probabilities_and_loss(
    layer: Pointwise, results: Sequence[Any], operands: Sequence[Any]
) -> Sequence[Any]:
    mean, rows, gradient = results
    # At the label, adding the one again would lose the digits of a small probability.
    chosen = _one_hot(operands[1].numpy(), layer.channels)
    return np.where(chosen, np.exp(-rows)[:, None], gradient), mean


def _loss_gradient(outer: Any, gradient: Any) -> Any:
    return tf.expand_dims(outer, -1) * gradient


def _kept_of_loss(layer: Pointwise, roles: Sequence[str], inputs: Arrays) -> Sequence[NDArray[Any]]:
    probabilities, labels = _rows_and_labels(layer, roles, inputs)
    gradient = probabilities - _one_hot(labels, layer.channels)
    return np.full(layer.batch, 1 / layer.batch, np.float32), gradient


def _norm(w: Any) -> Any:
    return tf.nn.l2_loss(tf.cast(w, _FLOAT32))


def _decay(layer: Pointwise, data_format: str) -> Callable[..., Any]:
    """The gradient of an L2 loss and the sum of gradients, as TensorFlow's gradients have them."""
    del data_format
    return lambda w, g: tf.add_n([g, w * tf.cast(layer.decay, w.dtype)])


def _descent(w: Any, g: Any, rate: Any) -> None:
    tf.raw_ops.ResourceApplyGradientDescent(var=w.handle, alpha=rate, delta=g)


def _momentum(layer: Pointwise, data_format: str) -> Callable[..., Any]:
    del data_format

    def update(w: Any, v: Any, g: Any, rate: Any) -> None:
        tf.raw_ops.ResourceApplyMomentum(
            var=w.handle, accum=v.handle, lr=rate, grad=g, momentum=tf.cast(layer.mu, w.dtype)
        )

    return update


# -----------------------------------------------------------------------------
# All operations with their passes.

_PASSES: Mapping[str, Mapping[str, PassCalls]] = {
    "bias": {
        "forward": PassCalls(names="BiasAdd", function=_bias),
        "backward-weights": PassCalls(
            names="BiasAddGrad", function=_bias_gradient, sums="BiasAddGrad"
        ),
    },
    "relu": {
        "forward": PassCalls(names="Relu", function=on_elements(tf.nn.relu)),
        "backward-data": PassCalls(
            names="ReluGrad",
            function=on_elements(_relu_gradient),
            kept=lambda _, tensors: (tf.nn.relu(tensors[0]), tensors[1]),
        ),
    },
    "relu6": {
        "forward": PassCalls(names="Relu6", function=on_elements(tf.nn.relu6)),
        "backward-data": PassCalls(
            names="Relu6Grad",
            function=on_elements(_relu6_gradient),
            kept=lambda _, tensors: (tf.nn.relu6(tensors[0]), tensors[1]),
        ),
    },
    "hardsigmoid": {
        "forward": PassCalls(
            names="AddV2, Relu6, Mul", function=on_elements(_hard_sigmoid), sums="stored"
        ),
        "backward-data": PassCalls(
            names="Mul, Relu6Grad",
            function=on_elements(_hard_sigmoid_gradient),
            kept=lambda _, tensors: (tf.nn.relu6(tensors[0] + 3), tensors[1]),
            sums="stored",
        ),
    },
    "hardswish": {
        "forward": PassCalls(
            names="AddV2, Relu6, Mul, Mul", function=on_elements(_hard_swish), sums="stored"
        ),
        "backward-data": PassCalls(
            names="Mul, Mul, Mul, Relu6Grad, Mul, AddN",
            function=on_elements(_hard_swish_gradient),
            kept=lambda _, tensors: (tensors[0], tf.nn.relu6(tensors[0] + 3), tensors[1]),
            sums="stored",
        ),
    },
    "scale": {
        "forward": PassCalls(names="Mul", function=on_elements(tf.multiply)),
        "backward-data": PassCalls(names="Mul, Mul, Sum", function=_scale_gradients, sums="stored"),
    },
    "add": {"forward": PassCalls(names="AddV2", function=on_elements(tf.add))},
    "concat": {
        "forward": PassCalls(names="ConcatV2", function=_joined),
        "backward-data": PassCalls(names="Slice", function=_slices),
    },
    "dropout": {
        "forward": PassCalls(names="RandomUniform, GreaterEqual, Mul, SelectV2", function=_dropped),
        "backward-data": PassCalls(
            names="SelectV2, Mul",
            function=_masked,
            operands=_gradient_and_mask,
            types=(None, "bool"),
        ),
    },
    "lrn": {
        "forward": PassCalls(
            names="LRN",
            narrow="Cast, LRN, Cast",
            function=_local_response,
            formats=("NHWC",),
            casts_back=True,
        ),
        "backward-data": PassCalls(
            names="LRNGrad",
            narrow="Cast, LRNGrad, Cast",
            function=_local_response_gradient,
            kept=_kept_of_local_response,
            formats=("NHWC",),
            casts_back=True,
        ),
    },
    "batchnorm": {
        "forward": PassCalls(names="FusedBatchNormV3", function=_given_statistics),
        "backward-data": PassCalls(names="FusedBatchNormGradV3", function=_batch_gradients),
    },
    "softmax-xent": {
        "forward": PassCalls(
            names="SparseSoftmaxCrossEntropyWithLogits, Mean",
            function=on_elements(_loss),
            operands=_rows_and_labels,
            types=(None, "int32"),
            finish=_probabilities_and_loss,
        ),
        "backward-data": PassCalls(
            names="Mul",
            narrow="Mul, Cast",
            function=on_elements(_loss_gradient),
            operands=_kept_of_loss,
            types=(_FLOAT32, _FLOAT32),
            casts_back=True,
        ),
    },
    "l2": {
        "forward": PassCalls(names="L2Loss", narrow="Cast, L2Loss", function=on_elements(_norm)),
        "backward-weights": PassCalls(names="Mul, AddN", function=_decay, sums="stored"),
    },
    "sgd": {
        "forward": PassCalls(
            names="ResourceApplyGradientDescent",
            function=on_elements(_descent),
            sums="stored",
            variables=(0,),
            steps_back=True,
        )
    },
    "momentum": {
        "forward": PassCalls(
            names="ResourceApplyMomentum",
            function=_momentum,
            sums="stored",
            variables=(0, 1),
            steps_back=True,
        )
    },
}
#: Of batch normalisations in training.
_BATCH_STATISTICS = PassCalls(
    names="FusedBatchNormV3", function=_batch_statistics, variables=(3, 4)
)
#: Of concatenations of many sources.
_SPLIT = PassCalls(names="SplitV", function=_split)


def _passes(layer: Pointwise, pass_: str, propagation: str) -> PassCalls:
    """Return what TensorFlow calls for a pass of a layer."""
    if (layer.op, pass_, propagation) == ("batchnorm", "forward", "training"):
        return _BATCH_STATISTICS
    if (layer.op, pass_) == ("concat", "backward-data") and len(layer.sources) > _MOST_SLICES:
        return _SPLIT
    return _PASSES[layer.op][pass_]


def pointwise_recipes(layer: Layer, case: KernelSpec) -> list[Recipe]:
    """Return the ways to compute a pass of a memory-bound layer.

    Raises:
        UnsupportedError: on a GPU.
    """
    assert isinstance(layer, Pointwise)
    if case.on_gpu:
        raise UnsupportedError("tensorflow: memory-bound layers are run on CPUs so far")
    calls = _passes(layer, case.pass_, case.propagation)
    formats = calls.formats[:1] if OPERATIONS[layer.op].flat else calls.formats
    return [_recipe(layer, case, calls, data_format) for data_format in formats]


def _recipe(layer: Pointwise, case: KernelSpec, calls: PassCalls, data_format: str) -> Recipe:
    operation, images = OPERATIONS[layer.op], data_format.lower()
    reads = layer.reads(case.pass_, case.propagation)
    writes = layer.writes(case.pass_, case.propagation)
    narrow = DTYPES[case.precision] if DTYPES[case.precision] != _FLOAT32 else None
    function = calls.function(layer, data_format)

    def stored(*tensors: Any) -> Any:
        return tf.cast(function(*tensors), narrow)

    def operands(inputs: Arrays) -> tuple[NDArray[Any], ...]:
        found = calls.operands(layer, reads, inputs)
        return tuple(arranged(one, images) if one.ndim == 4 else one for one in found)

    def by_role(results: Sequence[NDArray[Any]], tensors: Sequence[Any]) -> dict[str, NDArray[Any]]:
        found = calls.finish(layer, results, tensors) if calls.finish else results
        variables = (as_array(tensors[place]) for place in calls.variables)
        return {
            role: plain(one, images) if one.ndim == 4 else one.reshape(layer.dims(role))
            for role, one in zip(writes, (*found, *variables), strict=True)
        }

    if operation.of_weights:
        layout = ", ".join(reads)
    else:
        layout = layout_of_images(layer, case.pass_, "nc" if operation.flat else images)
    kept = calls.kept
    return Recipe(
        algorithm=calls.narrow if calls.narrow and narrow else calls.names,
        layout=layout,
        variant="plain" if operation.flat else images,
        function=stored if calls.casts_back and narrow else function,
        operands=operands,
        by_role=by_role,
        complete=(lambda tensors: kept(layer, tensors)) if kept else as_they_are,
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

    # Gradients that read the layer's result in place of its source.
    _of_result: ClassVar = {"relu": _relu_gradient, "relu6": _relu6_gradient}

    def __init__(self, layer: Layer, data_format: str) -> None:
        assert isinstance(layer, Pointwise)
        self._layer, self._data_format = layer, data_format

    def output(self, inputs: Sequence[Any], own: Mapping[str, Any], phase: Phase) -> Any:
        """Return the layer's output."""
        del own, phase
        forward = _passes(self._layer, "forward", "inference")
        return forward.function(self._layer, self._data_format)(*inputs)

    def gradient(self, source: Any, result: Any, incoming: Any) -> Any:
        """Return the gradient of the source where it is made of the result."""
        del source
        of_result = self._of_result.get(self._layer.op)
        return of_result(result, incoming) if of_result else None


class LocalResponseInNetwork(OperationInNetwork):
    """A local response normalisation, in the type of the images; channels are brought behind."""

    def output(self, inputs: Sequence[Any], own: Mapping[str, Any], phase: Phase) -> Any:
        """Return the normalised images."""
        del own, phase
        (images,) = inputs
        if self._data_format == "NCHW":
            images = tf.transpose(images, [0, 2, 3, 1])
        result = tf.nn.local_response_normalization(images, **_neighbourhood(self._layer))
        return tf.transpose(result, [0, 3, 1, 2]) if self._data_format == "NCHW" else result


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

    def output(self, inputs: Sequence[Any], own: Mapping[str, Any], phase: Phase) -> Any:
        """Return the normalised images."""
        layer, (images,) = self._layer, inputs
        factor = own["weights"] if "weights" in own else tf.ones([layer.channels])
        running = own["running_mean"], own["running_variance"]
        nothing = tf.constant([], tf.float32)
        given = (nothing, nothing) if phase.batch_statistics else running
        result, *batch, _, _, _ = _normalised(
            layer,
            self._data_format,
            *(images, factor, own["bias"], *given),
            training=phase.batch_statistics,
        )
        if phase.batch_statistics:
            # The operator's variance is unbiased already.
            for variable, new in zip(running, batch, strict=True):
                variable.assign_sub(layer.momentum * (variable - new))
        return result


#: What TensorFlow calls for memory-bound layers, by operation.
POINTWISE: Mapping[str, LayerCalls] = {
    **dict.fromkeys(
        ("bias", "relu", "relu6", "hardsigmoid", "hardswish", "scale", "add", "concat"),
        LayerCalls(recipes=pointwise_recipes, in_network=OperationInNetwork),
    ),
    "lrn": LayerCalls(recipes=pointwise_recipes, in_network=LocalResponseInNetwork),
    "dropout": LayerCalls(recipes=pointwise_recipes, in_network=DropoutInNetwork),
    "batchnorm": LayerCalls(recipes=pointwise_recipes, in_network=BatchNormalisationInNetwork),
    **{
        op: LayerCalls(recipes=pointwise_recipes)
        for op in ("softmax-xent", "l2", "sgd", "momentum")
    },
}
