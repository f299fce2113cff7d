"""What PyTorch's step says of itself, to be checked before it is timed."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

import torch
from torch import fx
from torch.utils.flop_counter import FlopCounterMode

from pydlbench.backends.steps.checks import Inspection
from pydlbench.backends.torch.step import TorchModel, autocast

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    import numpy as np
    from numpy.typing import NDArray

    from pydlbench.backends.steps.definition import Step, StepDefinition


class TorchInspection(Inspection[TorchModel]):
    """Looks at a step of PyTorch; see ``backends.steps.checks.Inspection``."""

    def shapes(self) -> dict[str, tuple[int, ...]]:
        """Return the shape of each node's output, NCHW or (batch, features), as a run finds it."""
        model = self.model
        recorder = _Shapes(model.net.module, model.net.outputs)
        model.set_layers(self.definition)
        with torch.no_grad(), autocast(model.case):
            recorder.run(model.resident[0])
        return recorder.found

    def parameters(self) -> int:
        """Return the number of trained elements."""
        return sum(one.numel() for one in self.model.parameters)

    def flops(self) -> int:
        """Return the FLOPs of all convolutions and products that the eager step runs."""
        definition = self.gradients_only if self.definition.backward else self.definition
        step = self.model.prepare(definition, eager=True)
        custom = {torch.ops.aten.convolution_backward: _convolution_backward}
        with FlopCounterMode(display=False, custom_mapping=custom) as counter:
            step()
        return int(counter.get_total_flops())

    @property
    def notes(self) -> tuple[str, ...]:
        """What a reader has to know."""
        if self.definition.backward and self.model.case.mode == "compiled":
            return ("network and loss are compiled as one function, the optimizer is not",)
        return ()

    def gpu(self) -> dict[str, Any]:
        """Return name, capability and memory of the step's GPU."""
        facts = torch.cuda.get_device_properties(self.model.place)
        return {
            "name": facts.name,
            "capability": f"{facts.major}.{facts.minor}",
            "memory_bytes": facts.total_memory,
        }

    def _forward(self, definition: StepDefinition) -> Step:
        """Build a step that only looks forward: not worth the minutes of a compiler."""
        return self.model.prepare(definition, eager=True)

    def _plain_output(self, array: NDArray[np.float32]) -> NDArray[np.float32]:
        return array

    def _plain_gradients(
        self, arrays: tuple[NDArray[np.float32], ...]
    ) -> Iterator[tuple[str, NDArray[np.float32]]]:
        net = self.model.net
        trained = [name for name, tensor in net.tensors().items() if tensor.requires_grad]
        for name, array in zip(trained, arrays, strict=True):
            yield name, net.plain(name, torch.from_numpy(array))

    def _move_against_gradients(self, rate: float) -> None:
        self.step()
        with torch.no_grad():
            for one in self.model.parameters:
                one.sub_(one.grad, alpha=rate)


class _Shapes(fx.Interpreter):  # type: ignore[misc]  # an unknown class to mypy
    """Runs a module node by node and keeps the shapes of what stands for nodes of ours."""

    def __init__(self, module: fx.GraphModule, names: Mapping[str, str]) -> None:
        super().__init__(module)
        self._names = names
        self.found: dict[str, tuple[int, ...]] = {}

    def run_node(self, n: fx.Node) -> Any:
        """Run a node and keep its shape."""
        result = super().run_node(n)
        if n.name in self._names:
            self.found[self._names[n.name]] = tuple(result.shape)
        return result


def _convolution_backward(
    gradient: Any,
    source: Any,
    weights: Any,
    bias: Any,
    stride: Any,
    padding: Any,
    dilation: Any,
    transposed: Any,
    output_padding: Any,
    groups: Any,
    mask: Any,
    **rest: Any,
) -> int:
    """Return the FLOPs of a convolution's gradients: each of the two as many as forward.

    PyTorch's own formula counts groups as if every channel met every other.
    """
    del bias, stride, padding, dilation, output_padding, groups, rest
    # Output elements, each a sum over the taps of a filter; transposed, inputs that spread over it.
    elements = math.prod(source if transposed else gradient)
    forward = 2 * elements * math.prod(weights[1:])
    return int(forward * (bool(mask[0]) + bool(mask[1])))
