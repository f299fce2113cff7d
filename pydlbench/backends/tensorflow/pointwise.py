"""Memory-bound layers on images: TensorFlow's operators and those of their gradients.

What a gradient reads from the forward pass (a result of a ReLU, a mask) is computed beforehand, as
TensorFlow would have kept it.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from pydlbench.backends.reference.dropout_mask import kept_elements
from pydlbench.backends.tensorflow import pointwise_flat, pointwise_norms
from pydlbench.backends.tensorflow.pointwise_parts import image_recipes
from pydlbench.backends.tensorflow.runtime import tf
from pydlbench.backends.tensorflow.with_bias import bias_sums

if TYPE_CHECKING:
    from collections.abc import Callable

    from pydlbench.backends.tensorflow.recipe import Recipe
    from pydlbench.layers import Pointwise

__all__ = ["pointwise_recipes"]

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
        return pointwise_flat.flat_recipes(layer, pass_, stored)
    if layer.op == "lrn":
        return pointwise_norms.local_response(layer, pass_, stored)
    if layer.op == "batchnorm":
        return pointwise_norms.batch(layer, pass_, training=training)
    if (layer.op, pass_) == ("bias", "backward-weights"):
        return _bias_gradient(layer, mode)
    step: Callable[[Pointwise], list[Recipe]] = {
        ("bias", "forward"): _bias,
        ("relu", "forward"): _relu,
        ("relu", "backward-data"): _relu_gradient,
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
