"""What TensorFlow's step says of itself, to be checked before it is timed."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

from pydlbench.backends.frameworks.layouts import plain
from pydlbench.backends.steps.checks import Inspection
from pydlbench.backends.steps.inputs import trained
from pydlbench.backends.tensorflow.settings import tf
from pydlbench.backends.tensorflow.step import TensorflowModel, TensorflowStep

if TYPE_CHECKING:
    from collections.abc import Iterator

    import numpy as np
    from numpy.typing import NDArray

# Where each operator's gradient (or image) and filter are among its inputs; -1 is its output.
_FILTERS = {
    "Conv2D": (-1, 1),
    "Conv2DBackpropInput": (2, 1),
    "Conv2DBackpropFilter": (2, -1),
    "DepthwiseConv2dNative": (-1, 1),
    "DepthwiseConv2dNativeBackpropInput": (2, 1),
    "DepthwiseConv2dNativeBackpropFilter": (2, -1),
}


class TensorflowInspection(Inspection[TensorflowModel]):
    """Looks at a step of TensorFlow; see ``backends.steps.checks.Inspection``."""

    def shapes(self) -> dict[str, tuple[int, ...]]:
        """Return the shape of each node's output, NCHW or (batch, features)."""
        self._concrete()
        return dict(self.model.net.shapes)

    def parameters(self) -> int:
        """Return the number of trained elements."""
        return sum(math.prod(one.shape.as_list()) for one in self.model.net.trained)

    def flops(self) -> int:
        """Return the FLOPs of all convolutions and products in the step's graph."""
        return sum(_flops(one) for one in _reached(self._concrete().graph))

    def gpu(self) -> dict[str, Any]:
        """Return what is known of the only visible GPU."""
        (device,) = tf.config.get_visible_devices("GPU")
        facts = tf.config.experimental.get_device_details(device)
        return {
            "name": facts.get("device_name", "unknown GPU"),
            "capability": ".".join(map(str, facts.get("compute_capability", ()))),
        }

    def _plain_output(self, array: NDArray[np.float32]) -> NDArray[np.float32]:
        array = array.astype("float32", copy=False)
        return plain(array, self.model.case.layout) if array.ndim == 4 else array

    def _plain_gradients(
        self, arrays: tuple[NDArray[np.float32], ...]
    ) -> Iterator[tuple[str, NDArray[np.float32]]]:
        for name, array in zip(trained(self.model.model), arrays, strict=True):
            yield name, self.model.net.plain(name, array)

    def _move_against_gradients(self, rate: float) -> None:
        found = self._function()(*self.model.resident)["gradients"]
        for variable, gradient in zip(self.model.net.trained, found, strict=True):
            variable.assign_sub(tf.cast(rate, variable.dtype) * gradient)

    def _function(self) -> Any:
        assert isinstance(self.step, TensorflowStep), "passes of one kind are not checked"
        return self.step.function

    def _concrete(self) -> Any:
        return self._function().get_concrete_function(*self.model.resident)


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
