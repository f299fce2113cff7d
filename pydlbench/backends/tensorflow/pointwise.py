"""Memory-bound layers as TensorFlow's operators: activations, normalisations, losses, updates."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from pydlbench.backends.tensorflow.layers import bias_sums
from pydlbench.backends.tensorflow.operator import RolesRecipe, image_recipes, unused_plain
from pydlbench.backends.tensorflow.runtime import tf
from pydlbench.backends.verification.inputs import kept_elements

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from numpy.typing import NDArray

    from pydlbench.backends.tensorflow.operator import Recipe
    from pydlbench.layers.pointwise import Pointwise

__all__ = ["pointwise_recipes"]


# -----------------------------------------------------------------------------
# Normalisations: ``LRN`` and ``FusedBatchNormV3`` with their gradients.

_FLOAT32 = "float32"


def local_response(layer: Pointwise, pass_: str, stored: str) -> list[Recipe]:
    """Return the one way to compute a local response normalisation: channels last, in float32.

    There is no kernel in bfloat16: what is stored in that is converted, and converted back.
    """
    # TensorFlow's alpha applies to the sum, not to the mean, of what is around.
    words = {
        "depth_radius": layer.local_size // 2,
        "bias": layer.k,
        "alpha": layer.alpha / layer.local_size,
        "beta": layer.beta,
    }
    converts = stored != _FLOAT32

    def exact(tensor: Any) -> Any:
        return tf.cast(tensor, _FLOAT32) if converts else tensor

    def forward(x: Any) -> Any:
        found = tf.nn.local_response_normalization(exact(x), **words)
        return tf.cast(found, stored) if converts else found

    def backward(g: Any, x: Any, y: Any) -> Any:
        found = tf.raw_ops.LRNGrad(input_grads=exact(g), input_image=x, output_image=y, **words)
        return tf.cast(found, stored) if converts else found

    def with_result(tensors: Sequence[Any]) -> Sequence[Any]:
        gradient, source = tensors[0], exact(tensors[1])
        return gradient, source, tf.nn.local_response_normalization(source, **words)

    name = "LRN" if pass_ == "forward" else "LRNGrad"
    name = f"Cast, {name}, Cast" if converts else name
    if pass_ == "forward":
        return image_recipes(
            layer, pass_, name, lambda _: forward, ("src",), ("dst",), formats=("NHWC",)
        )
    return image_recipes(
        layer,
        pass_,
        name,
        lambda _: backward,
        ("dst", "src"),
        ("src",),
        formats=("NHWC",),
        complete=with_result,
    )


def batch(layer: Pointwise, pass_: str, *, training: bool) -> list[Recipe]:
    """Return the ways to compute a batch normalisation."""
    if pass_ != "forward":
        return _batch_gradient(layer)
    return _statistics(layer) if training else _inference(layer)


def _inference(layer: Pointwise) -> list[Recipe]:
    def function(data_format: str) -> Callable[..., Any]:
        return lambda x, w, b, m, v: (
            tf.raw_ops.FusedBatchNormV3(
                x=x,
                scale=w,
                offset=b,
                mean=m,
                variance=v,
                epsilon=layer.epsilon,
                data_format=data_format,
                is_training=False,
            ).y
        )

    return image_recipes(
        layer,
        "forward",
        "FusedBatchNormV3",
        function,
        ("src", "weights", "bias", "mean", "variance"),
        ("dst",),
        types=(None, *[_FLOAT32] * 4),
    )


def _statistics(layer: Pointwise) -> list[Recipe]:
    """The operator moves the running statistics; their variables are assigned, as Keras does."""

    def function(data_format: str) -> Callable[..., Any]:
        def normalized(x: Any, w: Any, b: Any, mean: Any, variance: Any) -> Any:
            found = tf.raw_ops.FusedBatchNormV3(
                x=x,
                scale=w,
                offset=b,
                mean=mean,
                variance=variance,
                epsilon=layer.epsilon,
                exponential_avg_factor=layer.momentum,
                data_format=data_format,
                is_training=True,
            )
            mean.assign(found.batch_mean)
            variance.assign(found.batch_variance)
            return found.y, found.reserve_space_1, found.reserve_space_2

        return normalized

    return image_recipes(
        layer,
        "forward",
        "FusedBatchNormV3",
        function,
        ("src", "weights", "bias", "running_mean", "running_variance"),
        ("dst", "mean", "variance", "running_mean", "running_variance"),
        types=(None, *[_FLOAT32] * 4),
        variables=(3, 4),
    )


def _batch_gradient(layer: Pointwise) -> list[Recipe]:
    def function(data_format: str) -> Callable[..., Any]:
        def gradient(g: Any, x: Any, w: Any, m: Any, v: Any) -> Any:
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

        return gradient

    return image_recipes(
        layer,
        "backward-data",
        "FusedBatchNormGradV3",
        function,
        ("dst", "src", "weights", "mean", "variance"),
        ("src", "weights", "bias"),
        types=(None, None, *[_FLOAT32] * 3),
    )


# -----------------------------------------------------------------------------
# The loss on rows of logits; weight decay and optimizers on weight tensors.
#
# Optimizers are the operators that update a variable in one kernel. Calls step forth and back in
# turn, see :class:`~pydlbench.backends.tensorflow.operator.RolesRecipe`.


def flat_recipes(layer: Pointwise, pass_: str, stored: str) -> list[Recipe]:
    """Return the one way to compute a pass.

    Args:
        layer: ``softmax-xent``, ``l2``, ``sgd`` or ``momentum``.
        pass_: one of its passes.
        stored: TensorFlow's name of the storage type.
    """
    step: Callable[[Pointwise, str], RolesRecipe] = {
        ("softmax-xent", "forward"): _loss,
        ("softmax-xent", "backward-data"): _loss_gradient,
        ("l2", "forward"): _norm,
        ("l2", "backward-weights"): _decay,
        ("sgd", "forward"): _descent,
        ("momentum", "forward"): _momentum,
    }[layer.op, pass_]
    return [step(layer, stored)]


def _in_order(*roles: str) -> Callable[[Mapping[str, NDArray[Any]]], tuple[NDArray[Any], ...]]:
    return lambda inputs: tuple(inputs[role] for role in roles)


def _one_hot(labels: NDArray[Any], classes: int) -> NDArray[Any]:
    chosen: NDArray[Any] = labels.astype(np.int64)[:, None] == np.arange(classes)
    return chosen.astype(np.float32)


def _loss(layer: Pointwise, stored: str) -> RolesRecipe:
    """Half precisions are converted to float32 first, as Keras's mixed precision wants it.

    The operator gives the loss of each row and, at once, the gradient of the logits: probabilities,
    less one at the label.
    """
    labels: list[NDArray[Any]] = []

    def operands(inputs: Mapping[str, NDArray[Any]]) -> tuple[NDArray[Any], ...]:
        labels[:] = [inputs["labels"]]
        return inputs["src"].reshape(layer.batch, layer.channels), inputs["labels"]

    def function(x: Any, y: Any) -> Any:
        logits = tf.cast(x, _FLOAT32) if stored != _FLOAT32 else x
        found = tf.raw_ops.SparseSoftmaxCrossEntropyWithLogits(features=logits, labels=y)
        return tf.reduce_mean(found.loss), found.loss, found.backprop

    def by_role(results: list[NDArray[Any]], _: list[NDArray[Any]]) -> dict[str, NDArray[Any]]:
        mean, rows, gradient = results
        # At the label, adding the one again would lose the digits of a small probability.
        chosen = _one_hot(labels[0], layer.channels)
        found = np.where(chosen, np.exp(-rows)[:, None], gradient)
        return {"dst": found.reshape(layer.dims("dst")), "loss": mean.reshape(1)}

    return RolesRecipe(
        algorithm="SparseSoftmaxCrossEntropyWithLogits, Mean",
        layout="src nc, dst nc",
        variant="plain",
        function=function,
        operands=operands,
        result="dst",
        plain=unused_plain,
        sums="float32",
        by_role=by_role,
        types=(None, "int32"),
    )


def _loss_gradient(layer: Pointwise, stored: str) -> RolesRecipe:
    """The forward operator has computed the gradient: what is left is to scale it."""

    def operands(inputs: Mapping[str, NDArray[Any]]) -> tuple[NDArray[Any], ...]:
        rows = inputs["dst"].reshape(layer.batch, layer.channels)
        gradient = rows - _one_hot(inputs["labels"], layer.channels)
        return np.full(layer.batch, 1 / layer.batch, np.float32), gradient

    def function(outer: Any, gradient: Any) -> Any:
        found = tf.expand_dims(outer, -1) * gradient
        return tf.cast(found, stored) if stored != _FLOAT32 else found

    def by_role(results: list[NDArray[Any]], _: list[NDArray[Any]]) -> dict[str, NDArray[Any]]:
        return {"src": results[0].reshape(layer.dims("src"))}

    return RolesRecipe(
        algorithm="Mul" if stored == _FLOAT32 else "Mul, Cast",
        layout="src nc, dst nc",
        variant="plain",
        function=function,
        operands=operands,
        result="src",
        plain=unused_plain,
        sums="float32",
        by_role=by_role,
        types=(_FLOAT32, _FLOAT32),
    )


def _norm(layer: Pointwise, stored: str) -> RolesRecipe:
    del layer

    def function(w: Any) -> Any:
        return tf.nn.l2_loss(tf.cast(w, _FLOAT32) if stored != _FLOAT32 else w)

    return RolesRecipe(
        algorithm="L2Loss" if stored == _FLOAT32 else "Cast, L2Loss",
        layout="weights",
        variant="plain",
        function=function,
        operands=_in_order("weights"),
        result="dst",
        plain=unused_plain,
        sums="float32",
        by_role=lambda results, _: {"dst": results[0].reshape(1)},
    )


def _decay(layer: Pointwise, stored: str) -> RolesRecipe:
    """The gradient of an L2 loss and the sum of gradients, as TensorFlow's gradients have them."""

    def function(g: Any, w: Any) -> Any:
        return tf.add_n([g, w * tf.cast(layer.decay, stored)])

    return RolesRecipe(
        algorithm="Mul, AddN",
        layout="weights, gradient",
        variant="plain",
        function=function,
        operands=_in_order("gradient", "weights"),
        result="gradient",
        plain=unused_plain,
        sums="stored",
        by_role=lambda results, _: {"gradient": results[0]},
    )


def _descent(layer: Pointwise, stored: str) -> RolesRecipe:
    del stored

    def function(w: Any, g: Any, rate: Any) -> None:
        tf.raw_ops.ResourceApplyGradientDescent(var=w.handle, alpha=rate, delta=g)

    return RolesRecipe(
        algorithm="ResourceApplyGradientDescent",
        layout="weights, gradient",
        variant="plain",
        function=function,
        operands=_in_order("weights", "gradient"),
        result="weights",
        plain=unused_plain,
        sums="stored",
        by_role=lambda _, variables: {"weights": variables[0]},
        variables=(0,),
        turns=(layer.rate, -layer.rate),
    )


def _momentum(layer: Pointwise, stored: str) -> RolesRecipe:
    def function(w: Any, v: Any, g: Any, rate: Any) -> None:
        tf.raw_ops.ResourceApplyMomentum(
            var=w.handle, accum=v.handle, lr=rate, grad=g, momentum=tf.cast(layer.mu, stored)
        )

    return RolesRecipe(
        algorithm="ResourceApplyMomentum",
        layout="weights, velocity, gradient",
        variant="plain",
        function=function,
        operands=_in_order("weights", "velocity", "gradient"),
        result="weights",
        plain=unused_plain,
        sums="stored",
        by_role=lambda _, variables: {"weights": variables[0], "velocity": variables[1]},
        variables=(0, 1),
        turns=(layer.rate, -layer.rate),
    )


# -----------------------------------------------------------------------------
# Memory-bound layers on images: TensorFlow's operators and those of their gradients.
#
# What a gradient reads from the forward pass (a result of a ReLU, a mask) is computed beforehand,
# as TensorFlow would have kept it.

# From so many sources on, the gradient of a concatenation is one Split, else a Slice for each.
_MOST_SLICES = 16


def pointwise_recipes(
    layer: Pointwise, pass_: str, *, training: bool, stored: str, mode: str
) -> list[Recipe]:
    """Return the ways to compute a pass of a memory-bound layer.

    Args:
        layer: the layer.
        pass_: one of its passes.
        training: whether a forward pass is that of a training.
        stored: TensorFlow's name of the storage type.
        mode: ``graph`` or ``xla``.
    """
    if layer.op in ("l2", "sgd", "momentum", "softmax-xent"):
        return flat_recipes(layer, pass_, stored)
    if layer.op == "lrn":
        return local_response(layer, pass_, stored)
    if layer.op == "batchnorm":
        return batch(layer, pass_, training=training)
    if (layer.op, pass_) == ("bias", "backward-weights"):
        return _bias_gradient(layer, mode)
    step: Callable[[Pointwise], list[Recipe]] = {
        ("bias", "forward"): _bias,
        ("relu", "forward"): _relu,
        ("relu", "backward-data"): _relu_gradient,
        ("relu6", "forward"): _relu6,
        ("relu6", "backward-data"): _relu6_gradient,
        ("hardswish", "forward"): _hardswish,
        ("hardswish", "backward-data"): _hardswish_gradient,
        ("hardsigmoid", "forward"): _hardsigmoid,
        ("hardsigmoid", "backward-data"): _hardsigmoid_gradient,
        ("scale", "forward"): _scale,
        ("scale", "backward-data"): _scale_gradient,
        ("add", "forward"): _add,
        ("concat", "forward"): _concat,
        ("concat", "backward-data"): _concat_gradient,
        ("dropout", "forward"): _dropout,
        ("dropout", "backward-data"): _dropout_gradient,
    }[layer.op, pass_]
    return step(layer)


def _bias(layer: Pointwise) -> list[Recipe]:
    return image_recipes(
        layer,
        "forward",
        "BiasAdd",
        lambda data_format: lambda x, b: tf.nn.bias_add(x, b, data_format),
        ("src", "bias"),
        ("dst",),
    )


def _bias_gradient(layer: Pointwise, mode: str) -> list[Recipe]:
    def function(data_format: str) -> Callable[..., Any]:
        return lambda g: tf.raw_ops.BiasAddGrad(out_backprop=g, data_format=data_format)

    return image_recipes(
        layer,
        "backward-weights",
        "BiasAddGrad",
        function,
        ("dst",),
        ("bias",),
        sums=bias_sums(mode),
    )


def _relu(layer: Pointwise) -> list[Recipe]:
    return image_recipes(layer, "forward", "Relu", lambda _: tf.nn.relu, ("src",), ("dst",))


def _relu_gradient(layer: Pointwise) -> list[Recipe]:
    def function(_: str) -> Callable[..., Any]:
        return lambda g, y: tf.raw_ops.ReluGrad(gradients=g, features=y)

    return image_recipes(
        layer,
        "backward-data",
        "ReluGrad",
        function,
        ("dst", "src"),
        ("src",),
        # The result of the forward pass is what TensorFlow keeps, not its source.
        complete=lambda tensors: (tensors[0], tf.nn.relu(tensors[1])),
    )


def _of_source(
    layer: Pointwise, name: str, function: Callable[[Any], Any], sums: str = "float32"
) -> list[Recipe]:
    """Return the ways to apply a function to images; ``sums``: see :class:`Recipe`."""
    return image_recipes(layer, "forward", name, lambda _: function, ("src",), ("dst",), sums=sums)


def _of_gradient(
    layer: Pointwise,
    name: str,
    function: Callable[..., Any],
    kept: Callable[[Any], tuple[Any, ...]],
    sums: str = "float32",
) -> list[Recipe]:
    """Return the ways to compute a gradient from the incoming one and what ``kept`` gives.

    ``kept`` makes of the source what TensorFlow keeps of the forward pass.
    """
    return image_recipes(
        layer,
        "backward-data",
        name,
        lambda _: function,
        ("dst", "src"),
        ("src",),
        complete=lambda tensors: (tensors[0], *kept(tensors[1])),
        sums=sums,
    )


def _relu6(layer: Pointwise) -> list[Recipe]:
    return _of_source(layer, "Relu6", tf.nn.relu6)


def _relu6_gradient(layer: Pointwise) -> list[Recipe]:
    def gradient(g: Any, y: Any) -> Any:
        return tf.raw_ops.Relu6Grad(gradients=g, features=y)

    return _of_gradient(layer, "Relu6Grad", gradient, lambda x: (tf.nn.relu6(x),))


# Keras has no operator of its own for these two either; each of a chain rounds what it writes.


def _hardsigmoid(layer: Pointwise) -> list[Recipe]:
    def function(x: Any) -> Any:
        return tf.nn.relu6(x + 3) * (1 / 6)

    return _of_source(layer, "AddV2, Relu6, Mul", function, "stored")


def _hardsigmoid_gradient(layer: Pointwise) -> list[Recipe]:
    def gradient(g: Any, y: Any) -> Any:
        return tf.raw_ops.Relu6Grad(gradients=g * (1 / 6), features=y)

    def kept(x: Any) -> tuple[Any, ...]:
        return (tf.nn.relu6(x + 3),)

    return _of_gradient(layer, "Mul, Relu6Grad", gradient, kept, "stored")


def _hardswish(layer: Pointwise) -> list[Recipe]:
    def function(x: Any) -> Any:
        return x * (tf.nn.relu6(x + 3) * (1 / 6))

    return _of_source(layer, "AddV2, Relu6, Mul, Mul", function, "stored")


def _hardswish_gradient(layer: Pointwise) -> list[Recipe]:
    def gradient(g: Any, x: Any, y: Any) -> Any:
        through = tf.raw_ops.Relu6Grad(gradients=g * x * (1 / 6), features=y)
        return tf.add_n([g * (y * (1 / 6)), through])

    def kept(x: Any) -> tuple[Any, ...]:
        return x, tf.nn.relu6(x + 3)

    name = "Mul, Mul, Mul, Relu6Grad, Mul, AddN"
    return _of_gradient(layer, name, gradient, kept, "stored")


def _scale(layer: Pointwise) -> list[Recipe]:
    return image_recipes(
        layer, "forward", "Mul", lambda _: lambda x, s: x * s, ("src", "src2"), ("dst",)
    )


def _scale_gradient(layer: Pointwise) -> list[Recipe]:
    def function(data_format: str) -> Callable[..., Any]:
        axes = [data_format.index("H"), data_format.index("W")]
        return lambda g, x, s: (g * s, tf.reduce_sum(g * x, axes, keepdims=True))

    roles = layer.writes("backward-data")
    return image_recipes(
        layer,
        "backward-data",
        "Mul, Mul, Sum",
        function,
        ("dst", "src", "src2"),
        roles,
        sums="stored",
    )


def _add(layer: Pointwise) -> list[Recipe]:
    return image_recipes(
        layer, "forward", "AddV2", lambda _: lambda x, y: x + y, ("src", "src2"), ("dst",)
    )


def _concat(layer: Pointwise) -> list[Recipe]:
    def function(data_format: str) -> Callable[..., Any]:
        axis = data_format.index("C")
        return lambda *sources: tf.concat(sources, axis)

    return image_recipes(layer, "forward", "ConcatV2", function, layer.reads("forward"), ("dst",))


def _concat_gradient(layer: Pointwise) -> list[Recipe]:
    sizes = [layer.dims(role)[1] for role in layer.reads("forward")]

    def function(data_format: str) -> Callable[..., Any]:
        axis = data_format.index("C")
        if len(sizes) > _MOST_SLICES:
            return lambda g: tf.split(g, sizes, axis)

        def slices(g: Any) -> Any:
            found = []
            for place, size in enumerate(sizes):
                begin, extent = [0] * 4, [-1] * 4
                begin[axis], extent[axis] = sum(sizes[:place]), size
                found.append(tf.slice(g, begin, extent))
            return found

        return slices

    name = "SplitV" if len(sizes) > _MOST_SLICES else "Slice"
    roles = layer.writes("backward-data")
    return image_recipes(layer, "backward-data", name, function, ("dst",), roles)


def _dropout(layer: Pointwise) -> list[Recipe]:
    def function(_: str) -> Callable[..., Any]:
        return lambda x: tf.nn.dropout(x, rate=1 - layer.keep)

    name = "RandomUniform, GreaterEqual, Mul, SelectV2"
    return image_recipes(layer, "forward", name, function, ("src",), ("dst",))


def _dropout_gradient(layer: Pointwise) -> list[Recipe]:
    shape = layer.dims("src")
    kept = kept_elements(shape, tuple(slice(0, size) for size in shape), layer.keep)

    def function(_: str) -> Callable[..., Any]:
        def masked(g: Any, mask: Any) -> Any:
            return tf.where(mask, g, tf.zeros((), g.dtype)) * tf.cast(1 / layer.keep, g.dtype)

        return masked

    return image_recipes(
        layer,
        "backward-data",
        "SelectV2, Mul",
        function,
        ("dst",),
        ("src",),
        further=(kept.astype(np.float32),),
        types=(None, "bool"),
    )
