"""One kind of step of a published script in TensorFlow: a ``tf.function``, what goes in and out."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from pydlbench.backends.tensorflow.runtime import tf
from pydlbench.endtoend.protocols import Outcome, StepSpec
from pydlbench.endtoend.tensorflow.net import Ways
from pydlbench.errors import UsageError

if TYPE_CHECKING:
    from pydlbench.endtoend.protocols import Batch
    from pydlbench.endtoend.tensorflow.stepper import TensorflowStepper

__all__ = ["ScriptedStep"]


class ScriptedStep:
    """A step of a script, traced.

    Args:
        owner: the model and its variables.
        spec: the step.

    Raises:
        UsageError: training without an optimizer.
    """

    def __init__(self, owner: TensorflowStepper, spec: StepSpec) -> None:
        self._owner, self._spec = owner, spec
        self._net = owner.net
        optimizer = owner.model.optimizer
        if spec.optimizer == "model" and optimizer.kind == "none":
            raise UsageError(
                f"{owner.model.name}: has no optimizer to train with; nearest: "
                "--option optimizer=sgd"
            )
        trained = self._net.trained
        updates = spec.optimizer == "model"
        self._velocity = [
            self._beside(one, tf.zeros_like(one))
            for one in trained
            if updates and optimizer.kind == "momentum"
        ]
        self._averages = [self._beside(one, one) for one in trained if spec.averages is not None]
        with tf.device(owner.device):
            self._rate = tf.Variable(optimizer.rate, dtype="float32", trainable=False)
        self._last_rate = optimizer.rate
        self._ways = Ways(
            drop=spec.propagation == "training" and spec.dropout,
            batch_statistics=spec.propagation == "training",
        )
        function = owner.traced(self._body)
        # Scripts have built their graph before they look at the clock.
        function.get_concrete_function(
            *(tf.TensorSpec(one.shape, one.dtype) for one in owner.resident)
        )
        self._function = function

    def __call__(self, batch: Batch | None = None, rate: float | None = None) -> Outcome:
        """Run it once; see :class:`pydlbench.endtoend.protocols.Step`."""
        owner, fetch = self._owner, self._spec.fetch
        if rate is not None and rate != self._last_rate:
            self._rate.assign(rate)
            self._last_rate = rate
        operands = owner.resident if batch is None else owner.arrays(batch)
        found = self._function(*operands)
        # A copy, as session.run made one: a result of a CPU's would be a view.
        there = {name: [np.array(one) for one in tf.nest.flatten(found[name])] for name in fetch}
        return Outcome(
            loss=float(there["loss"][0]) if "loss" in there else None,
            predictions=there["predictions"][0] if "predictions" in there else None,
        )

    def reset(self) -> None:
        """Forget what training has left: velocities, averages, the rate."""
        for one in self._velocity:
            one.assign(tf.zeros_like(one))
        for average, variable in zip(self._averages, self._net.trained, strict=False):
            average.assign(variable)
        self._last_rate = self._owner.model.optimizer.rate
        self._rate.assign(self._last_rate)

    def _beside(self, variable: Any, value: Any) -> Any:
        """Return another variable in the same place."""
        with tf.device(variable.device):
            return tf.Variable(value, trainable=False)

    def _body(self, images: Any, labels: Any = None) -> dict[str, Any]:
        """Return what must be computed, by what the script calls it."""
        spec = self._spec
        if spec.phase == "forward":
            output = self._net(images, self._ways)
            return self._wanted(output, labels, {"output": output})
        sources = list(self._net.trained)
        with tf.GradientTape() as tape:
            if spec.input_gradient:
                tape.watch(images)
                sources.append(images)
            output = self._net(images, self._ways)
            loss = self._loss(output, labels)
        gradients = tape.gradient(loss, sources)
        trained = len(self._net.trained)
        # The images' gradient too has to be returned, or the graph would drop it.
        rest: dict[str, Any] = {"images": gradients[trained:]}
        if spec.optimizer == "model":
            self._update(gradients[:trained])
        else:
            rest["gradients"] = gradients[:trained]
        return self._wanted(output, labels, rest, loss)

    def _wanted(
        self, output: Any, labels: Any, found: dict[str, Any], loss: Any = None
    ) -> dict[str, Any]:
        """Add what is fetched; what nobody asks for, the graph drops, as session.run did."""
        fetch = self._spec.fetch
        if "output" in fetch:
            found["output"] = output
        if "loss" in fetch:
            found["loss"] = self._loss(output, labels) if loss is None else loss
        if "predictions" in fetch:
            found["predictions"] = tf.nn.softmax(tf.cast(output, tf.float32))
        return found

    def _loss(self, output: Any, labels: Any) -> Any:
        """Return the loss in float32; the model's own with its L2 terms."""
        kind, model = self._spec.loss, self._owner.model
        output = tf.cast(output, tf.float32)
        if kind == "model":
            kind = "l2" if model.loss.kind == "l2" else "sum"
            if labels is not None:
                each = tf.nn.sparse_softmax_cross_entropy_with_logits(labels=labels, logits=output)
                total = tf.reduce_mean(each)
            else:
                total = tf.nn.l2_loss(output) if kind == "l2" else tf.reduce_sum(output)
            for one in model.decays:
                tensor = self._net.variables[f"{one.node}/{one.tensor}"]
                total += one.factor * tf.nn.l2_loss(tf.cast(tensor, tf.float32))
            return total
        return tf.nn.l2_loss(output) if kind == "l2" else tf.reduce_sum(output)

    def _update(self, gradients: list[Any]) -> None:
        """Apply the gradients as the optimizers of version 1 did."""
        mu = self._owner.model.optimizer.mu
        for number, (variable, gradient) in enumerate(
            zip(self._net.trained, gradients, strict=True)
        ):
            rate = tf.cast(self._rate, variable.dtype)
            if self._velocity:
                tf.raw_ops.ResourceApplyMomentum(
                    var=variable.handle,
                    accum=self._velocity[number].handle,
                    lr=rate,
                    grad=gradient,
                    momentum=tf.constant(mu, variable.dtype),
                )
            else:
                tf.raw_ops.ResourceApplyGradientDescent(
                    var=variable.handle, alpha=rate, delta=gradient
                )
        share = 1 - (self._spec.averages or 0.0)
        for average, variable in zip(self._averages, self._net.trained, strict=False):
            average.assign_sub((average - variable) * tf.cast(share, variable.dtype))
