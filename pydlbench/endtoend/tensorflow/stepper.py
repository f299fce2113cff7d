"""A model in TensorFlow with the steps of published scripts, which share one set of weights."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Self

import numpy as np

from pydlbench.backends.tensorflow.arithmetic import arithmetic
from pydlbench.backends.tensorflow.recipe import from_plain
from pydlbench.backends.tensorflow.refusals import translated
from pydlbench.backends.tensorflow.runtime import tf
from pydlbench.devices.cpu.read import read_cpu_facts
from pydlbench.endtoend.protocols import Outcome, StepSpec
from pydlbench.endtoend.tensorflow.net import Net
from pydlbench.endtoend.tensorflow.passes import Passes
from pydlbench.endtoend.tensorflow.scripted import ScriptedStep
from pydlbench.errors import UnsupportedError

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping
    from types import TracebackType

    from numpy.typing import NDArray

    from pydlbench.endtoend.inputs import Batch as Synthetic
    from pydlbench.endtoend.protocols import Batch, Step
    from pydlbench.endtoend.step import StepCase
    from pydlbench.models.graph import Model

__all__ = ["TensorflowStepper"]


class TensorflowStepper:
    """See :class:`pydlbench.endtoend.protocols.Stepper`; use as a context manager.

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
