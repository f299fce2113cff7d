"""Parts of PyTorch's step: the very modules of the step, with operands as a step leaves them."""

from __future__ import annotations

import contextlib
import time
from typing import TYPE_CHECKING, Any

import torch
from torch import nn

from pydlbench.backends.torch.compiled import compiled
from pydlbench.endtoend.pieces.torch_groups import copied
from pydlbench.endtoend.torch import numbers
from pydlbench.endtoend.torch.steps import TorchStep

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from pydlbench.endtoend.pieces.call_cost import CallCost
    from pydlbench.endtoend.pieces.torch_groups import Group, Operands

__all__ = ["FeedPart", "GradientSum", "GroupPart", "LossPart", "OptimizerPart", "StepParts"]


class StepParts(TorchStep):
    """A step that is never run, with its loss and its optimizer within reach."""

    def loss_of_output(self, output: torch.Tensor, labels: torch.Tensor | None) -> torch.Tensor:
        """Return the loss for a given output of the network, L2 terms included."""
        return self._loss_of(nn.Identity())(output, labels)

    def batch(self) -> tuple[torch.Tensor, torch.Tensor | None]:
        """Return images and labels."""
        return self._images, self._labels

    def fed(self) -> tuple[torch.Tensor, torch.Tensor | None]:
        """Return images and labels as they come from the host."""
        return self._moved()


class FeedPart:
    """Images and labels from the host's arrays, in the step's type and layout."""

    executions = 1

    def __init__(self, parts: StepParts) -> None:
        self._parts = parts

    def run(self) -> float:
        """Bring them over once."""
        start = time.perf_counter()
        found = self._parts.fed()
        seconds = time.perf_counter() - start
        del found
        return seconds


class GroupPart:
    """A group with its operands: forward, and where it has gradients, backward at once.

    Args:
        parts: the step.
        group: what is run.
        operands: as :func:`record` left them.
        cost: of a call, which is taken off; None leaves it in.
        compile_it: through ``torch.compile``.
    """

    executions = 1

    def __init__(
        self,
        parts: StepParts,
        group: Group,
        operands: Operands,
        cost: CallCost | None = None,
        *,
        compile_it: bool = False,
    ) -> None:
        self._case = parts.case
        self._cost = cost
        #: Whether gradients are computed.
        self.differentiates = parts.case.backward
        self._overwritten = group.overwritten
        self.inputs = [one for one in operands.inputs if one is not None]
        self.parameters = [one for one in group.module.parameters() if one.requires_grad]
        self.sources = [*(one for one in self.inputs if one.requires_grad), *self.parameters]
        self.gradients = operands.gradients
        module = group.module
        self._call: Callable[..., Any] = module
        if compile_it:

            def run(*tensors: torch.Tensor) -> Any:
                return module(*tensors)

            self._call = compiled(run)

    def ready(self) -> list[torch.Tensor]:
        """Return operands of which those that will be overwritten are copies."""
        return [
            one.clone(memory_format=torch.preserve_format) if index in self._overwritten else one
            for index, one in enumerate(self.inputs)
        ]

    def forward(self, tensors: Sequence[torch.Tensor]) -> Any:
        """Run it forwards; returns a tuple of outputs."""
        with numbers.mixed(self._case):
            return self._call(*tensors)

    def backward(self, outputs: Any) -> Any:
        """Return gradients of inputs and parameters; nothing where there are none."""
        pairs = [
            (output, gradient)
            for output, gradient in zip(outputs, self.gradients, strict=True)
            if gradient is not None and output.requires_grad
        ]
        if not pairs or not self.sources:
            return ()
        return torch.autograd.grad(
            [one for one, _ in pairs],
            self.sources,
            [one for _, one in pairs],
            allow_unused=True,
        )

    def run(self) -> float:
        """Run it once; see :class:`pydlbench.endtoend.pieces.kernel.Part`."""
        with torch.set_grad_enabled(self.differentiates):
            tensors = self.ready()
            if not self.differentiates:
                _read(tensors)
            start = time.perf_counter()
            outputs = self.forward(tensors)
            # Named, so that they are not freed inside the measured time.
            found = self.backward(outputs) if self.differentiates else ()
            end = time.perf_counter()
            del outputs, found
        return end - start - (self._cost.seconds() if self._cost else 0.0)


def _read(tensors: Sequence[torch.Tensor]) -> None:
    """Bring tensors into the caches, where the operator before would have left them.

    Not where gradients are computed: the backward pass of a step finds them in memory again.
    """
    for one in tensors:
        one.sum()


class GradientSum:
    """The sum of two gradients of one output, as autograd makes it: in place.

    Args:
        gradient: one of them.
    """

    executions = 1

    def __init__(self, gradient: torch.Tensor) -> None:
        self._gradient = gradient
        self._other = copied(gradient)

    def run(self) -> float:
        """Add one to the other."""
        total = self._other.clone(memory_format=torch.preserve_format)
        start = time.perf_counter()
        with torch.no_grad():
            total.add_(self._gradient)
        return time.perf_counter() - start


class LossPart:
    """The loss with its L2 terms, forward and backward, and the sums of those terms' gradients.

    Args:
        parts: the step.
        output: of the network, or one like it.
        cost: of a call, which is taken off.
    """

    executions = 1

    def __init__(self, parts: StepParts, output: torch.Tensor, cost: CallCost) -> None:
        self._parts = parts
        self._cost = cost
        self.inputs = [copied(output).requires_grad_()]
        _, self._labels = parts.batch()
        terms = parts.model.decays if parts.case.phase == "training" else ()
        tensors = parts.net.tensors()
        self.parameters = list({id(t): t for t in _decayed(terms, tensors)}.values())
        self._sums = [GradientSum(copied(one)) for one in self.parameters]

    def ready(self) -> list[torch.Tensor]:
        """Return the output that the loss takes."""
        return self.inputs

    def forward(self, tensors: Sequence[torch.Tensor]) -> Any:
        """Return the loss."""
        with numbers.mixed(self._parts.case):
            return (self._parts.loss_of_output(tensors[0], self._labels),)

    def backward(self, outputs: Any) -> Any:
        """Return the gradients of the output, and of what the L2 terms name."""
        return torch.autograd.grad(outputs[0], [*self.inputs, *self.parameters])

    def run(self) -> float:
        """Run it once."""
        start = time.perf_counter()
        found = self.backward(self.forward(self.inputs))
        seconds = time.perf_counter() - start - self._cost.seconds()
        del found
        return seconds + sum(one.run() for one in self._sums)


class OptimizerPart:
    """The update of all weights at once, with random gradients; weights are put back before."""

    executions = 1

    def __init__(self, parts: StepParts) -> None:
        self._parts = parts
        self._gradients = [torch.randn_like(one) * 1e-6 for one in parts.parameters]

    def run(self) -> float:
        """Run it once."""
        with self._with_gradients():
            start = time.perf_counter()
            self._parts.optimizer.step()
            return time.perf_counter() - start

    @contextlib.contextmanager
    def _with_gradients(self) -> Iterator[None]:
        for one, gradient in zip(self._parts.parameters, self._gradients, strict=True):
            one.grad = gradient
        try:
            yield
        finally:
            for one in self._parts.parameters:
                one.grad = None


def _decayed(terms: Any, tensors: dict[str, torch.Tensor]) -> list[torch.Tensor]:
    found = [tensors[f"{one.node}/{one.tensor}"] for one in terms]
    return [one for one in found if one.requires_grad]
