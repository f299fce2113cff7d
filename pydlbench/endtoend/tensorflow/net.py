"""A model's graph as a function of TensorFlow on NHWC images (or NCHW ones on a GPU)."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from pydlbench.backends.tensorflow.runtime import tf
from pydlbench.endtoend.tensorflow import operators
from pydlbench.endtoend.weights import trained, weight_shapes
from pydlbench.layers import Conv2d, Gemm, Pointwise, Pool2d
from pydlbench.models.graph import INPUT

if TYPE_CHECKING:
    from collections.abc import Mapping

    from numpy.typing import NDArray

    from pydlbench.models.graph import Model, Node

__all__ = ["Net", "Ways"]


class Ways:
    """How layers work that have two ways.

    Args:
        drop: whether dropout drops.
        batch_statistics: whether normalisations take the minibatch's and move the running ones.
    """

    def __init__(self, *, drop: bool, batch_statistics: bool) -> None:
        self.drop = drop
        self.batch_statistics = batch_statistics


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
        if not isinstance(node.layer, Conv2d) or array.ndim != 4:
            return array
        if operators.is_depthwise(node.layer):
            return array.transpose(2, 3, 0, 1).reshape(node.layer.out_channels, 1, *array.shape[:2])
        return array.transpose(3, 2, 0, 1)

    def __call__(self, images: Any, ways: Ways) -> Any:
        """Return the output for images, in the type of activations."""
        values = {INPUT: self.cast(images)}
        for node in self.model:
            inputs = [values[name] for name in node.inputs]
            values[node.name] = self.apply(node, inputs, ways)
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
        if not isinstance(layer, Conv2d) or array.ndim != 4:
            return array
        if operators.is_depthwise(layer):  # (height, width, channels, outputs per channel)
            array = array.reshape(layer.in_channels, -1, *array.shape[2:])
            return np.ascontiguousarray(array.transpose(2, 3, 0, 1))
        return np.ascontiguousarray(array.transpose(2, 3, 1, 0))

    def _weight(self, node: Node, role: str) -> Any:
        return tf.cast(self.variables[f"{node.name}/{role}"], self.computed)

    def cast(self, images: Any) -> Any:
        """Return images in the type of activations."""
        return tf.cast(images, self.computed)

    def apply(self, node: Node, inputs: list[Any], ways: Ways) -> Any:
        """Return a node's output."""
        layer, first = node.layer, inputs[0]
        if isinstance(layer, (Conv2d, Gemm)):
            return self._product(node, layer, first)
        if isinstance(layer, Pool2d):
            return operators.pooling(first, layer, self.data_format)
        if node.op == "relu":
            return tf.nn.relu(first)
        if node.op == "add":
            return tf.add(first, inputs[1])
        if node.op == "concat":
            return tf.concat(inputs, 1 if self.data_format == "NCHW" else -1)
        if node.op == "flatten":
            return operators.flattened(first, self.data_format)
        if node.op == "shift":
            return operators.shifted(first, self.data_format)
        assert isinstance(layer, Pointwise)
        return self._changed(node, layer, first, ways)

    def _product(self, node: Node, layer: Conv2d | Gemm, first: Any) -> Any:
        weights = self._weight(node, "weights")
        if isinstance(layer, Conv2d):
            made = operators.convolution(first, weights, layer, self.data_format)
        else:
            made = tf.linalg.matmul(first, weights)
        if not node.bias:
            return made
        place = self.data_format if isinstance(layer, Conv2d) else None
        return tf.nn.bias_add(made, self._weight(node, "bias"), place)

    def _changed(self, node: Node, layer: Pointwise, first: Any, ways: Ways) -> Any:
        if node.op == "lrn":
            return operators.local_response(first, layer, self.data_format)
        if node.op == "dropout":
            return tf.nn.dropout(first, 1 - layer.keep) if ways.drop else first
        assert node.op == "batchnorm", node.op
        own = {role: self.variables[f"{node.name}/{role}"] for role in weight_shapes(node)}
        return operators.normalised(first, layer, own, self.data_format, ways.batch_statistics)
