"""A step of a model in TensorFlow: one ``tf.function`` from images to gradients or new weights."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from pydlbench.backends.tensorflow.layers import padding_of
from pydlbench.backends.tensorflow.operator import from_plain, spatial
from pydlbench.backends.tensorflow.runtime import tf
from pydlbench.errors import UnsupportedError, UsageError
from pydlbench.layers.pool import Pool2d
from pydlbench.models.graph import INPUT
from pydlbench.steps.inputs import trained
from pydlbench.steps.tensorflow.net import Net, Ways, padded

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from numpy.typing import NDArray

    from pydlbench.backends.tensorflow.backend import Arithmetic
    from pydlbench.models.graph import Model, Node
    from pydlbench.records.step import StepCase
    from pydlbench.steps.inputs import Batch

__all__ = ["Passes", "TensorflowStep"]


class TensorflowStep:
    """One step with its model, its optimizer and its minibatch.

    Args:
        model: the graph.
        weights: to start from, by name.
        case: what is to be run, and how.
        batch: images and labels.
        numbers: how TensorFlow computes in the case's precision on its device.
        device: TensorFlow's name of that.

    Raises:
        UsageError: a training phase without an optimizer.
        UnsupportedError: a layout that the device has not.
    """

    def __init__(
        self,
        model: Model,
        weights: Mapping[str, NDArray[Any]],
        case: StepCase,
        batch: Batch,
        numbers: Arithmetic,
        device: str,
    ) -> None:
        if case.layout == "nchw" and not case.on_gpu:
            raise UnsupportedError("TensorFlow on a CPU has poolings and gradients in nhwc only")
        if model.optimizer.kind == "none" and case.phase == "training":
            raise UsageError(
                f"{model.name}: has no optimizer to train with; nearest: --phase forward-backward"
            )
        self.case = case
        self.model = model
        self._device = device
        self._tf32 = numbers.tf32
        self.net = Net(
            model,
            weights,
            data_format=case.layout.upper(),
            stored=numbers.dtype if case.cast == "whole" else "float32",
            computed=numbers.dtype,
            device=device,
        )
        images = from_plain(batch.images, self.net.data_format)
        labels = None if batch.labels is None else batch.labels.astype(np.int32)
        self._host = (images,) if labels is None else (images, labels)
        with tf.device(device):
            self._resident = tuple(tf.identity(tf.constant(one)) for one in self._host)
            self._rate = tf.Variable(model.optimizer.rate, dtype="float32", trainable=False)
            self._velocity = [
                tf.Variable(tf.zeros_like(one), trainable=False)
                for one in self.net.trained
                if model.optimizer.kind == "momentum" and case.phase == "training"
            ]
        bodies = {"forward": self._forward, "forward-backward": self.gradients}
        self.function = self.traced(bodies.get(case.phase, self._train))
        self.call: Callable[[], Any] = self._chosen()

    def ways(self, dropout: bool | None = None) -> Ways:
        """Return how layers work that have two ways; ``dropout`` overrides the case's."""
        case = self.case
        drops = case.dropout if dropout is None else dropout
        return Ways(
            drop=case.backward and drops,
            batch_statistics=case.backward and not case.running_statistics,
        )

    def traced(self, body: Callable[..., Any]) -> Any:
        """Return a function of images (and labels) as the mode has it: a graph, or XLA's."""

        def placed(*tensors: Any) -> Any:
            with tf.device(self._device):
                return body(*tensors)

        # Autograph translates Python's `if` and `for`; here they are the graph's making.
        return tf.function(placed, autograph=False, jit_compile=self.case.mode == "xla")

    def wait(self) -> None:
        """Return when all calls are done; on a CPU each returns with its results."""
        if self.case.on_gpu:
            with tf.device(self._device):
                tf.raw_ops.SyncDevice()

    def settle(self) -> None:
        """Set the process-wide switch for TF32 as this step needs it."""
        if self._tf32 is not None:
            tf.config.experimental.enable_tensor_float_32_execution(self._tf32)

    def operands(self) -> tuple[Any, ...]:
        """Return what the step reads: what lies there, or the host's arrays."""
        return self._host if self.case.feed == "host" else self._resident

    def set_rate(self, rate: float) -> None:
        """Change the learning rate."""
        self._rate.assign(rate)

    def reset(self, weights: Mapping[str, NDArray[Any]]) -> None:
        """Take over weights, and forget what training has left: velocities and the rate."""
        self.net.load(weights)
        for one in self._velocity:
            one.assign(tf.zeros_like(one))
        self._rate.assign(self.model.optimizer.rate)

    def loss_of(self, images: Any, labels: Any = None, *, dropout: bool | None = None) -> Any:
        """Return the loss as part of a graph, in float32; in training with its L2 terms."""
        output = tf.cast(self.net(images, self.ways(dropout)), tf.float32)
        if labels is not None:
            each = tf.nn.sparse_softmax_cross_entropy_with_logits(labels=labels, logits=output)
            total = tf.reduce_mean(each)
        elif self.model.loss.kind == "l2":
            total = tf.nn.l2_loss(output)
        else:
            total = tf.reduce_sum(output)
        for one in self.model.decays if self.case.phase == "training" else ():
            tensor = self.net.variables[f"{one.node}/{one.tensor}"]
            total += one.factor * tf.nn.l2_loss(tf.cast(tensor, tf.float32))
        return total

    def _forward(self, images: Any, labels: Any = None) -> Any:
        del labels
        return self.net(images, self.ways())

    def gradients(self, images: Any, labels: Any = None) -> Any:
        """Return the gradients of trained weights in their order, the images', and the loss.

        Those of a sum do not depend on it: the graph would drop the last layer's forward pass.
        """
        loss, gradients = self._differentiated(images, labels)
        return gradients, loss

    def _train(self, images: Any, labels: Any = None) -> Any:
        loss, gradients = self._differentiated(images, labels)
        variables = self.net.trained
        for number, (variable, gradient) in enumerate(
            zip(variables, gradients[: len(variables)], strict=True)
        ):
            rate = tf.cast(self._rate, variable.dtype)
            # What the optimizers of version 1 run.
            if self._velocity:
                tf.raw_ops.ResourceApplyMomentum(
                    var=variable.handle,
                    accum=self._velocity[number].handle,
                    lr=rate,
                    grad=gradient,
                    momentum=tf.constant(self.model.optimizer.mu, variable.dtype),
                )
            else:
                tf.raw_ops.ResourceApplyGradientDescent(
                    var=variable.handle, alpha=rate, delta=gradient
                )
        # Else nobody would ask for the images' gradient, and the graph would drop it.
        return (loss, *gradients[len(variables) :])

    def _differentiated(self, images: Any, labels: Any) -> tuple[Any, list[Any]]:
        sources = list(self.net.trained)
        with tf.GradientTape() as tape:
            if self.model.input_gradient:
                tape.watch(images)
                sources.append(images)
            loss = self.loss_of(images, labels)
        return loss, tape.gradient(loss, sources)

    def _chosen(self) -> Callable[[], Any]:
        """Return the step, with the feed and the fetch if there are any."""
        function, operands = self.function, self.operands()
        if not self.case.fetch:
            return lambda: function(*operands)

        def fetched() -> list[NDArray[Any]]:
            found = function(*operands)
            # Of gradients and loss the first, of loss and images' gradient too.
            wanted = found[0] if isinstance(found, tuple) else found
            # A copy, as session.run made one: a result of a CPU's would be a view.
            return [np.array(one) for one in tf.nest.flatten(wanted)]

        return fetched

    def names(self) -> list[str]:
        """Return the names of the gradients that a forward-backward step returns."""
        return [*trained(self.model), *(["input"] if self.model.input_gradient else [])]


# -----------------------------------------------------------------------------
# Backward passes of one kind in TensorFlow: data gradients, or weight gradients, of all nodes.
#
# Two graphs that take the activations as they lie there. A graph computes what its results depend
# on:
# asked for a convolution's gradient of data alone, it runs neither the convolution nor the other
# gradient. Where a gradient reads the node's own output (ReLU, maxima), it is given the one that
# is
# there, so that nothing is computed forward again.

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
