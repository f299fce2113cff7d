"""What TensorFlow's step says of itself, and the step made ready to be checked and timed."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

from pydlbench.backends.tensorflow.backend import arithmetic, translated
from pydlbench.backends.tensorflow.operator import Clock, to_plain
from pydlbench.backends.tensorflow.runtime import tf
from pydlbench.devices.cpu.facts import read_cpu_facts
from pydlbench.steps.serving import Connection
from pydlbench.steps.tensorflow.step import TensorflowStep

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    import numpy as np
    from numpy.typing import NDArray

    from pydlbench.backends.frameworks.backend import HostClock
    from pydlbench.models.graph import Model
    from pydlbench.records.step import StepCase
    from pydlbench.steps.inputs import Batch

__all__ = ["connect"]


# -----------------------------------------------------------------------------
# What TensorFlow's step says of itself: shapes, parameters, FLOPs, outputs, gradients, loss.

# Where each operator's gradient (or image) and filter are among its inputs; -1 is its output.
_FILTERS = {
    "Conv2D": (-1, 1),
    "Conv2DBackpropInput": (2, 1),
    "Conv2DBackpropFilter": (2, -1),
    "DepthwiseConv2dNative": (-1, 1),
    "DepthwiseConv2dNativeBackpropInput": (2, 1),
    "DepthwiseConv2dNativeBackpropFilter": (2, -1),
}


class Inspection:
    """Looks at a step; see :class:`pydlbench.steps.checks.Subject`.

    Args:
        step: built, and not timed meanwhile.
    """

    def __init__(self, step: TensorflowStep) -> None:
        self._step = step
        self._gradients: Any = None
        self._loss: Any = None

    def shapes(self) -> dict[str, tuple[int, ...]]:
        """Return the shape of each node's output, NCHW or (batch, features)."""
        self._concrete()
        return dict(self._step.net.shapes)

    def parameters(self) -> int:
        """Return the number of trained elements."""
        return sum(math.prod(one.shape.as_list()) for one in self._step.net.trained)

    def flops(self) -> int:
        """Return the FLOPs of all convolutions and products in the step's graph."""
        return sum(_flops(one) for one in _reached(self._concrete().graph))

    def output(self) -> NDArray[np.float32]:
        """Return the output as the phase computes it, dropout off."""
        step = self._step
        forward = step.traced(lambda images, *_: step.net(images, step.ways(dropout=False)))
        array = tf.cast(forward(*step.operands()), tf.float32).numpy()
        return to_plain(array, step.net.data_format) if array.ndim == 4 else array

    def gradients(self) -> Iterator[tuple[str, NDArray[np.float32]]]:
        """Yield the gradient of each trained tensor by name."""
        step = self._step
        if self._gradients is None:
            self._gradients = step.traced(step.gradients)
        found, _ = self._gradients(*step.operands())
        for name, gradient in zip(step.names(), found, strict=True):
            array = tf.cast(gradient, tf.float32).numpy()
            if name != "input":
                yield name, step.net.plain(name, array)

    def loss(self) -> float:
        """Return the loss of the minibatch, dropout off."""
        step = self._step
        if self._loss is None:
            self._loss = step.traced(lambda *tensors: step.loss_of(*tensors, dropout=False))
        return float(self._loss(*step.operands()))

    def descend(self, rate: float) -> None:
        """Train one step at another rate; in the phase without updates, by hand."""
        step = self._step
        if step.case.phase == "training":
            step.set_rate(rate)
            step.function(*step.operands())
            return
        found, _ = step.function(*step.operands())
        for variable, gradient in zip(step.net.trained, found, strict=False):
            variable.assign_sub(tf.cast(rate, variable.dtype) * gradient)

    def reset(self, weights: Mapping[str, NDArray[Any]]) -> None:
        """Go back to the weights, and forget what training has left."""
        self._step.reset(weights)

    def _concrete(self) -> Any:
        return self._step.function.get_concrete_function(*self._step.operands())


def _reached(graph: Any) -> list[Any]:
    """Return the operators that results or updates depend on; the runtime drops all others.

    The gradient of a convolution, say, is written down for its images and its filter, whether
    anybody asks for both or not.
    """
    waiting = [*(one.op for one in graph.outputs), *graph.control_outputs]
    found: dict[str, Any] = {}
    while waiting:
        operation = waiting.pop()
        if operation.name not in found:
            found[operation.name] = operation
            waiting += [one.op for one in operation.inputs]
            waiting += operation.control_inputs
    return list(found.values())


def _flops(operation: Any) -> int:
    """Return an operator's FLOPs, two per multiply-add, padding counted."""
    if operation.type in _FILTERS:
        tensors = [*operation.inputs, operation.outputs[0]]
        image, kernel = (tensors[index].shape.as_list() for index in _FILTERS[operation.type])
        # Filters are (height, width, in, out); depthwise (height, width, channels, multiplier).
        depthwise = operation.type.startswith("Depthwise")
        inner = math.prod(kernel[:2]) * (1 if depthwise else kernel[2])
        return int(2 * math.prod(image) * inner)
    if operation.type == "MatMul":
        left = operation.inputs[0].shape.as_list()
        shared = left[0] if operation.get_attr("transpose_a") else left[1]
        return int(2 * math.prod(operation.outputs[0].shape.as_list()) * shared)
    return 0


# -----------------------------------------------------------------------------
# From a graph to a step of TensorFlow that can be checked and timed.


def connect(
    backend: Any,
    model: Model,
    weights: Mapping[str, NDArray[Any]],
    case: StepCase,
    batch: Batch,
) -> Connection:
    """Build a step in TensorFlow; it has been called once, so it is traced and compiled.

    Args:
        backend: TensorFlow's, which has set threads and devices.
        model: the graph.
        weights: by name.
        case: how it is run.
        batch: images and labels.

    Raises:
        UnsupportedError: TensorFlow has no such precision, layout or operator on this device.
        UsageError: a training phase without an optimizer.
    """
    numbers = arithmetic(case.precision, case.on_gpu, frozenset(read_cpu_facts().isa))
    device = "/GPU:0" if case.on_gpu else "/CPU:0"  # the only visible one
    try:
        step = TensorflowStep(model, weights, case, batch, numbers, device)
        step.settle()
        step.call()
        step.wait()
    except tf.errors.OpError as error:
        raise translated(error, f"{case.model} ({case.mode})") from error
    clock: HostClock = Clock(step, backend.cpus, step.settle)
    return Connection(
        subject=Inspection(step),
        clock=clock,
        library=f"TensorFlow {tf.__version__}",
        gpu=_gpu() if case.on_gpu else None,
    )


def _gpu() -> dict[str, Any]:
    """Return what is known of the only visible GPU."""
    (device,) = tf.config.get_visible_devices("GPU")
    facts = tf.config.experimental.get_device_details(device)
    return {
        "name": facts.get("device_name", "unknown GPU"),
        "capability": ".".join(map(str, facts.get("compute_capability", ()))),
    }
