"""A model in TensorFlow with the steps of published scripts, which share one set of weights."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Self

import numpy as np

from pydlbench.backends.tensorflow.backend import arithmetic, translated
from pydlbench.backends.tensorflow.operator import from_plain
from pydlbench.backends.tensorflow.runtime import tf
from pydlbench.devices.cpu.facts import read_cpu_facts
from pydlbench.errors import UnsupportedError, UsageError
from pydlbench.steps.protocols.protocol import Outcome, StepSpec
from pydlbench.steps.tensorflow.net import Net, Ways
from pydlbench.steps.tensorflow.step import Passes

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping
    from types import TracebackType

    from numpy.typing import NDArray

    from pydlbench.models.graph import Model
    from pydlbench.records.step import StepCase
    from pydlbench.steps.inputs import Batch as Synthetic
    from pydlbench.steps.protocols.protocol import Batch, Step

__all__ = ["TensorflowStepper"]


# -----------------------------------------------------------------------------
# One kind of step of a published script in TensorFlow: a ``tf.function``, what goes in and out.


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
        """Run it once; see :class:`pydlbench.steps.protocols.protocol.Step`."""
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


class TensorflowStepper:
    """See :class:`pydlbench.steps.protocols.protocol.Stepper`; use as a context manager.

    Args:
        model: the graph.
        weights: to start from, by name.
        case: precision, cast, layout, mode, device; the rest is not looked at.
        batch: synthetic images and labels, for steps that are fed nothing.

    Raises:
        UnsupportedError: TensorFlow has no such precision or layout on this device.
    """

    def __init__(
        self,
        model: Model,
        weights: Mapping[str, NDArray[Any]],
        case: StepCase,
        batch: Synthetic,
    ) -> None:
        if case.layout == "nchw" and not case.on_gpu:
            raise UnsupportedError("TensorFlow on a CPU has poolings and gradients in nhwc only")
        chosen = arithmetic(case.precision, case.on_gpu, frozenset(read_cpu_facts().isa))
        self.model, self.case = model, case
        self._weights = dict(weights)
        self._tf32 = chosen.tf32
        self._stored = chosen.dtype if case.cast == "whole" else "float32"
        self._computed = chosen.dtype
        self.device = "/GPU:0" if case.on_gpu else "/CPU:0"  # the only visible one
        self._net: Net | None = None
        self._home = self.device
        self.data_format = case.layout.upper()
        with tf.device(self.device):
            self.resident = tuple(tf.identity(tf.constant(one)) for one in self.arrays(batch))
        self._passes: Passes | None = None
        self._steps: list[ScriptedStep] = []

    def __enter__(self) -> Self:
        """Set the process-wide switch for TF32."""
        if self._tf32 is not None:
            tf.config.experimental.enable_tensor_float_32_execution(self._tf32)
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        """Say in one line what TensorFlow has refused."""
        if isinstance(error, Exception) and isinstance(error, tf.errors.OpError):
            raise translated(error, f"{self.case.model} ({self.case.mode})") from error

    @property
    def net(self) -> Net:
        """The network; its variables are made where the first step wants them."""
        if self._net is None:
            self._net = Net(
                self.model,
                self._weights,
                data_format=self.data_format,
                stored=self._stored,
                computed=self._computed,
                device=self._home,
            )
        return self._net

    def prepare(self, spec: StepSpec) -> Step:
        """Build and trace a step.

        Raises:
            UnsupportedError: TensorFlow cannot do what the script does.
            UsageError: training without an optimizer.
        """
        if spec.zero_fill:
            raise UnsupportedError(
                f"step {spec.name}: TensorFlow keeps no gradients that zeros could be written over"
            )
        self._settle(spec)
        if spec.loss == "output":
            return self._pass(spec)
        step = ScriptedStep(self, spec)
        self._steps.append(step)
        return step

    def initialize(self) -> None:
        """Give all weights their starting values, and forget what training has left."""
        if self._net is not None:  # else they are about to be made with these values
            self._net.load(self._weights)
        for step in self._steps:
            step.reset()

    def synchronize(self) -> None:
        """Wait until the device has finished all steps; a CPU's return with their results."""
        if self.case.on_gpu:
            with tf.device(self.device):
                tf.raw_ops.SyncDevice()

    def arrays(self, batch: Synthetic | Batch) -> tuple[NDArray[Any], ...]:
        """Return images and labels as TensorFlow takes them from the host."""
        images = from_plain(batch.images, self.data_format)
        return (images,) if batch.labels is None else (images, batch.labels.astype(np.int32))

    def traced(self, body: Callable[..., Any]) -> Any:
        """Return a function as the mode has it: a graph, or XLA's."""

        def placed(*tensors: Any) -> Any:
            with tf.device(self.device):
                return body(*tensors)

        # Autograph translates Python's `if` and `for`; here they are the graph's making.
        return tf.function(placed, autograph=False, jit_compile=self.case.mode == "xla")

    def _settle(self, spec: StepSpec) -> None:
        """Choose where variables live."""
        if spec.weights != "host" or not self.case.on_gpu:
            return
        if self.case.mode == "xla":
            raise UnsupportedError(
                f"step {spec.name}: XLA on a GPU does not read variables of the host; nearest: "
                "--quirk variables-on-cpu=off"
            )
        if self._net is None:
            self._home = "/CPU:0"

    def _pass(self, spec: StepSpec) -> Step:
        if self._passes is None:
            self._passes = Passes(self.net, self.resident[0], self.traced)
        function = self._passes.data if spec.phase == "backward-data" else self._passes.weights

        def step(batch: Batch | None = None, rate: float | None = None) -> Outcome:
            del batch, rate
            function()
            return Outcome()

        return step
