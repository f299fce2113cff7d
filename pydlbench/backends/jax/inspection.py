"""What JAX's step says of itself, to be checked before it is timed."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

import jax
from jax.extend.core import jaxprs_in_params

from pydlbench.backends.frameworks.layouts import plain
from pydlbench.backends.jax.step import JaxModel, JaxStep
from pydlbench.backends.steps.checks import Inspection
from pydlbench.backends.steps.inputs import trained

if TYPE_CHECKING:
    from collections.abc import Iterator

    import numpy as np
    from numpy.typing import NDArray


class JaxInspection(Inspection[JaxModel]):
    """Looks at a step of JAX; see ``backends.steps.checks.Inspection``."""

    def shapes(self) -> dict[str, tuple[int, ...]]:
        """Return the shape of each node's output, NCHW or (batch, features)."""
        return dict(self.model.net.shapes)

    def parameters(self) -> int:
        """Return the number of trained elements."""
        return sum(int(one.size) for one in self.model.state["trained"].values())

    def flops(self) -> int:
        """Return the FLOPs of all convolutions and products in the traced step."""
        step = self._step
        traced = jax.make_jaxpr(step.body)(*step.operands())
        return _flops(traced.jaxpr, self.model.net.images)

    @property
    def notes(self) -> tuple[str, ...]:
        """What a reader has to know."""
        backward = self.definition.backward
        return ("the whole step is one program of XLA's, updates included",) if backward else ()

    def gpu(self) -> dict[str, Any]:
        """Return what JAX tells of its GPU."""
        device = self.model.place.device
        return {
            "name": device.device_kind,
            "capability": str(getattr(device, "compute_capability", "")),
        }

    def _plain_output(self, array: NDArray[np.float32]) -> NDArray[np.float32]:
        return plain(array, self.model.case.layout) if array.ndim == 4 else array

    def _plain_gradients(
        self, arrays: tuple[NDArray[np.float32], ...]
    ) -> Iterator[tuple[str, NDArray[np.float32]]]:
        for name, array in zip(trained(self.model.model), arrays, strict=True):
            yield name, self.model.net.plain(name, array)

    def _move_against_gradients(self, rate: float) -> None:
        gradients = self._step.run()["gradients"]
        state = self.model.state
        state["trained"] = {
            name: (one - rate * gradients[name]).astype(one.dtype)
            for name, one in state["trained"].items()
        }

    @property
    def _step(self) -> JaxStep:
        assert isinstance(self.step, JaxStep)
        return self.step


def _flops(program: Any, images: str) -> int:
    """Return the FLOPs of a traced function, two per multiply-add, padding counted.

    Args:
        program: what JAX has traced; functions within it count as well.
        images: the layout of images.
    """
    total = 0
    for equation in program.eqns:
        if equation.primitive.name == "conv_general_dilated":
            total += _of_convolution(equation, images)
        elif equation.primitive.name == "dot_general":
            ((contracted, _), _) = equation.params["dimension_numbers"]
            source, result = equation.invars[0].aval.shape, equation.outvars[0].aval.shape
            total += 2 * math.prod(result) * math.prod(source[axis] for axis in contracted)
        for inner in jaxprs_in_params(equation.params):
            total += _flops(inner, images)
    return total


def _of_convolution(equation: Any, images: str) -> int:
    """Return a convolution's FLOPs, or those of a gradient: as many as forward.

    Each element of what the convolution writes meets the taps of a filter. JAX's gradients are
    convolutions as well, told by which axis stands for what: that of the weights reads images with
    their channels in the place of the batch, that of the images reads filters with inputs and
    outputs exchanged. A transposed convolution is a gradient of the images itself.
    """
    shapes: list[tuple[int, ...]] = [
        one.aval.shape for one in (*equation.invars, *equation.outvars)
    ]
    left, right, result = shapes
    orders: list[tuple[int, ...]] = list(equation.params["dimension_numbers"])
    source, filters, written = orders
    outputs, inputs = (3, 2) if images == "nhwc" else (0, 1)
    if source[0] != 0:  # of the weights; their channels have taken the place of the batch
        transposed = written[:2] == (outputs, inputs)
        gradient, channels = (left, left[source[0]]) if transposed else (right, result[outputs])
        return 2 * math.prod(gradient) * math.prod(result) // channels
    if filters[:2] != (outputs, inputs):  # of the images; what is left is the gradient
        return 2 * math.prod(left) * math.prod(right) // left[source[1]]
    return 2 * math.prod(result) * math.prod(right) // right[outputs]
