"""A step of a model in TensorFlow: one ``tf.function`` from images to gradients or new weights."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from pydlbench.backends.tensorflow.recipe import from_plain
from pydlbench.backends.tensorflow.runtime import tf
from pydlbench.endtoend.tensorflow.net import Net, Ways
from pydlbench.endtoend.weights import trained
from pydlbench.errors import UnsupportedError, UsageError

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from numpy.typing import NDArray

    from pydlbench.backends.tensorflow.arithmetic import Arithmetic
    from pydlbench.endtoend.inputs import Batch
    from pydlbench.endtoend.step import StepCase
    from pydlbench.models.graph import Model

__all__ = ["TensorflowStep"]


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
