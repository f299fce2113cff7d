"""What PyTorch's step says of itself, and the step made ready to be checked and timed."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

import torch
from torch import fx
from torch.utils.flop_counter import FlopCounterMode

from pydlbench.backends.frameworks.backend import HostClock
from pydlbench.steps.serving import Connection
from pydlbench.steps.torch import step as numbers
from pydlbench.steps.torch.net import Net
from pydlbench.steps.torch.step import TorchStep

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    import numpy as np
    from numpy.typing import NDArray

    from pydlbench.models.graph import Model
    from pydlbench.records.step import StepCase
    from pydlbench.steps.inputs import Batch
    from pydlbench.timing.chunk import Chunk, Request

__all__ = ["connect"]


# -----------------------------------------------------------------------------
# What PyTorch's step says of itself: shapes, parameters, FLOPs, outputs, gradients, loss.


class Inspection:
    """Looks at a step; see :class:`pydlbench.steps.checks.Subject`.

    Args:
        step: built, and not timed meanwhile.
    """

    def __init__(self, step: TorchStep) -> None:
        self._step = step

    def shapes(self) -> dict[str, tuple[int, ...]]:
        """Return the shape of each node's output, NCHW or (batch, features), as a run finds it."""
        step = self._step
        recorder = _Shapes(step.net.module, step.net.outputs)
        with torch.no_grad(), numbers.mixed(step.case):
            recorder.run(step.images())
        return recorder.found

    def parameters(self) -> int:
        """Return the number of trained elements."""
        return sum(one.numel() for one in self._step.parameters)

    def flops(self) -> int:
        """Return the FLOPs of all convolutions and products that the eager step runs."""
        custom = {torch.ops.aten.convolution_backward: _convolution_backward}
        with FlopCounterMode(display=False, custom_mapping=custom) as counter:
            self._step.eager()
        return int(counter.get_total_flops())

    def output(self) -> NDArray[np.float32]:
        """Return the output as the phase computes it, dropout off."""
        step = self._step
        step.set_layers(dropout=False)
        try:
            with torch.no_grad(), numbers.mixed(step.case):
                output = step.net.module(step.images())
        finally:
            step.set_layers()
        array: NDArray[np.float32] = output.to("cpu", torch.float32).contiguous().numpy()
        return array

    def gradients(self) -> Iterator[tuple[str, NDArray[np.float32]]]:
        """Yield the gradient of each trained tensor by name."""
        self._step.gradients()
        for name, tensor in self._step.net.tensors().items():
            if tensor.requires_grad:
                if tensor.grad is None:
                    raise RuntimeError(f"{name} has no gradient")
                yield name, self._step.net.plain(name, tensor.grad)

    def loss(self) -> float:
        """Return the loss of the minibatch, dropout off."""
        self._step.set_layers(dropout=False)
        try:
            return self._step.loss()
        finally:
            self._step.set_layers()

    def descend(self, rate: float) -> None:
        """Train one step at another rate."""
        for group in self._step.optimizer.param_groups:
            group["lr"] = rate
        self._step.train()

    def reset(self, weights: Mapping[str, NDArray[Any]]) -> None:
        """Go back to the weights, and forget what training has left."""
        step = self._step
        step.net.load(weights)
        step.optimizer.state.clear()
        for group in step.optimizer.param_groups:
            group["lr"] = step.model.optimizer.rate
        for one in step.parameters:
            one.grad = None


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
    del source, bias, stride, padding, dilation, transposed, output_padding, groups, rest
    # Output elements, each a sum over the taps of a filter.
    forward = 2 * math.prod(gradient) * math.prod(weights[1:])
    return int(forward * (bool(mask[0]) + bool(mask[1])))


# -----------------------------------------------------------------------------
# From a graph to a step of PyTorch that can be checked and timed.


class _Clock(HostClock):
    """The host's clock, with the step's switches set around its samples."""

    def __init__(self, step: TorchStep, cpus: Any) -> None:
        operator: Any = step  # it has no outputs by role, which the clock never asks for
        super().__init__(operator, cpus)
        self._case = step.case

    def sample(self, request: Request) -> Chunk:
        """Time the requested samples."""
        with numbers.tensor_float(self._case):
            return super().sample(request)


def connect(
    backend: Any,
    model: Model,
    weights: Mapping[str, NDArray[Any]],
    case: StepCase,
    batch: Batch,
) -> Connection:
    """Build a step in PyTorch; it has been called once, so it is compiled.

    Args:
        backend: PyTorch's, which has set threads and arithmetic.
        model: the graph.
        weights: by name.
        case: how it is run.
        batch: images and labels.

    Raises:
        UnsupportedError: PyTorch has no such precision on this device.
        UsageError: a training phase without an optimizer.
    """
    numbers.check(case)
    net = Net(model)
    net.load(weights)
    step = TorchStep(net, case, batch)
    step.call()
    step.wait()
    notes = []
    if case.backward and case.mode == "compiled":
        notes.append("network and loss are compiled as one function, the optimizer is not")
    return Connection(
        subject=Inspection(step),
        clock=_Clock(step, backend.cpus),
        library=f"torch {torch.__version__}",
        notes=tuple(notes),
        gpu=_gpu(step.place) if case.on_gpu else None,
    )


def _gpu(place: torch.device) -> dict[str, Any]:
    facts = torch.cuda.get_device_properties(place)
    return {
        "name": facts.name,
        "capability": f"{facts.major}.{facts.minor}",
        "memory_bytes": facts.total_memory,
    }
