"""The loss on rows of logits; weight decay and optimizers on weight tensors.

Optimizers are the operators that update a variable in one kernel. Calls step forth and back in
turn, see :class:`~pydlbench.backends.tensorflow.roles.RolesRecipe`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from pydlbench.backends.tensorflow.pointwise_parts import unused_plain
from pydlbench.backends.tensorflow.roles import RolesRecipe
from pydlbench.backends.tensorflow.runtime import tf

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from numpy.typing import NDArray

    from pydlbench.backends.tensorflow.recipe import Recipe
    from pydlbench.layers import Pointwise

__all__ = ["flat_recipes"]

_FLOAT32 = "float32"


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
