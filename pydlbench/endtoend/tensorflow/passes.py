"""Backward passes of one kind in TensorFlow: data gradients, or weight gradients, of all nodes.

Two graphs that take the activations as they lie there. A graph computes what its results depend on:
asked for a convolution's gradient of data alone, it runs neither the convolution nor the other
gradient. Where a gradient reads the node's own output (ReLU, maxima), it is given the one that is
there, so that nothing is computed forward again.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from pydlbench.backends.tensorflow.padding import padding_of
from pydlbench.backends.tensorflow.recipe import spatial
from pydlbench.backends.tensorflow.runtime import tf
from pydlbench.endtoend.tensorflow.net import Ways
from pydlbench.endtoend.tensorflow.operators import padded
from pydlbench.endtoend.weights import trained
from pydlbench.errors import UnsupportedError
from pydlbench.layers import Pool2d
from pydlbench.models.graph import INPUT

if TYPE_CHECKING:
    from collections.abc import Callable

    from pydlbench.endtoend.tensorflow.net import Net
    from pydlbench.models.graph import Node

__all__ = ["Passes"]

_WAYS = Ways(drop=False, batch_statistics=True)
# Whose gradients read what only their forward pass leaves behind.
_ENTANGLED = ("batchnorm", "lrn")


class Passes:
    """The passes of a network, its activations and gradients kept between them.

    Args:
        net: with its variables.
        images: on the device.
        traced: makes a graph (or XLA's function) of a Python function of tensors.

    Raises:
        UnsupportedError: a node whose gradient cannot be had without its forward pass.
    """

    def __init__(self, net: Net, images: Any, traced: Callable[[Callable[..., Any]], Any]) -> None:
        self._net, self._images = net, images
        for node in net.model:
            if node.op in _ENTANGLED:
                raise UnsupportedError(
                    f"{net.model.name}/{node.name}: TensorFlow has the gradient of {node.op} only "
                    "together with its forward pass; nearest: --framework torch"
                )
        self._tensors = trained(net.model)
        self._behind = self._behind_weights()
        self._activations = traced(self._forward)(images)
        self._data = traced(self._data_gradients)
        self._weights = traced(self._weight_gradients)
        self._sums = [tf.Variable(tf.zeros_like(one), trainable=False) for one in net.trained]
        self._gradients = self._data(self._images, self._activations)

    def data(self) -> None:
        """Compute the gradients of all nodes' outputs, the last one taken as its own."""
        self._gradients = self._data(self._images, self._activations)

    def weights(self) -> None:
        """Add the gradients of all weights to those that are there."""
        self._weights(self._images, self._activations, self._gradients)

    def _behind_weights(self) -> set[str]:
        """Return the nodes whose outputs depend on weights: gradients of others are of no use."""
        owners = {name.rpartition("/")[0] for name in self._tensors}
        found: set[str] = set()
        for node in self._net.model:
            if node.name in owners or found.intersection(node.inputs):
                found.add(node.name)
        return found

    def _forward(self, images: Any) -> dict[str, Any]:
        values = {INPUT: self._net.cast(images)}
        for node in self._net.model:
            inputs = [values[name] for name in node.inputs]
            values[node.name] = self._net.apply(node, inputs, _WAYS)
        del values[INPUT]
        return values

    def _data_gradients(self, images: Any, activations: dict[str, Any]) -> dict[str, Any]:
        values = {INPUT: self._net.cast(images), **activations}
        last = self._net.model.output.name
        found = {last: activations[last]}
        for node in reversed(self._net.model.nodes):
            wanted = [name for name in node.inputs if name in self._behind]
            if not wanted:
                continue
            gradients = self._through(node, values, wanted, found[node.name])
            for name, gradient in zip(wanted, gradients, strict=True):
                found[name] = found[name] + gradient if name in found else gradient
        return found

    def _weight_gradients(
        self, images: Any, activations: dict[str, Any], gradients: dict[str, Any]
    ) -> None:
        values = {INPUT: self._net.cast(images), **activations}
        names = dict(zip(self._tensors, self._sums, strict=True))
        for node in self._net.model:
            own = [name for name in names if name.rpartition("/")[0] == node.name]
            if not own:
                continue
            variables = [self._net.variables[name] for name in own]
            with tf.GradientTape() as tape:
                output = self._net.apply(node, [values[name] for name in node.inputs], _WAYS)
            found = tape.gradient(output, variables, gradients[node.name])
            for name, gradient in zip(own, found, strict=True):
                names[name].assign_add(gradient)

    def _through(self, node: Node, values: dict[str, Any], wanted: list[str], given: Any) -> Any:
        """Return the gradients of a node's inputs from that of its output."""
        inputs = [values[name] for name in node.inputs]
        output = values[node.name]
        if node.op == "relu":
            return [tf.raw_ops.ReluGrad(gradients=given, features=output)]
        if isinstance(node.layer, Pool2d) and node.layer.mode == "max":
            return [_of_maxima(inputs[0], output, given, node.layer, self._net.data_format)]
        sources = [values[name] for name in wanted]
        with tf.GradientTape() as tape:
            for one in sources:
                tape.watch(one)
            again = self._net.apply(node, inputs, _WAYS)
        return tape.gradient(again, sources, given)


def _of_maxima(images: Any, output: Any, given: Any, layer: Pool2d, data_format: str) -> Any:
    """Return the gradient of a maximum pooling's images."""
    word = padding_of(layer).word
    source = images
    if word == "EXPLICIT":
        source = padded(images, layer, data_format, images.dtype.min)
    found = tf.raw_ops.MaxPoolGrad(
        orig_input=source,
        orig_output=output,
        grad=given,
        ksize=spatial(data_format, layer.kernel_height, layer.kernel_width),
        strides=spatial(data_format, layer.stride_height, layer.stride_width),
        padding="VALID" if word == "EXPLICIT" else word,
        data_format=data_format,
    )
    if word != "EXPLICIT":
        return found
    top, left = layer.pad_top, layer.pad_left
    first = [0, 0, top, left] if data_format == "NCHW" else [0, top, left, 0]
    return tf.slice(found, first, images.shape)
