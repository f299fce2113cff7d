"""A model in PyTorch with the steps of published scripts; all of them share one set of weights."""

from __future__ import annotations

import contextlib
from typing import TYPE_CHECKING, Any, Self

import torch
from torch import nn

from pydlbench.endtoend.protocols import Outcome, StepSpec
from pydlbench.endtoend.torch import numbers
from pydlbench.endtoend.torch.net import Net
from pydlbench.endtoend.torch.passes import Passes, SeparateNet
from pydlbench.endtoend.torch.scripted import ScriptedStep
from pydlbench.errors import UnsupportedError

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence
    from types import TracebackType

    from numpy.typing import NDArray

    from pydlbench.endtoend.inputs import Batch as Synthetic
    from pydlbench.endtoend.protocols import Batch, Step
    from pydlbench.endtoend.step import StepCase
    from pydlbench.models.graph import Model

__all__ = ["TorchStepper"]


class TorchStepper:
    """See :class:`pydlbench.endtoend.protocols.Stepper`; use as a context manager.

    Args:
        model: the graph.
        weights: to start from, by name.
        case: precision, cast, layout, mode, device; the rest is not looked at.
        batch: synthetic images and labels, for steps that are fed nothing.
        specs: the steps that will be asked for.

    Raises:
        UnsupportedError: PyTorch has no such precision on this device.
    """

    def __init__(
        self,
        model: Model,
        weights: Mapping[str, NDArray[Any]],
        case: StepCase,
        batch: Synthetic,
        specs: Sequence[StepSpec],
    ) -> None:
        numbers.check(case)
        self.model, self.case = model, case
        self._weights = dict(weights)
        self.place = torch.device(case.device)
        self._format: Any = (
            torch.channels_last if case.layout == "nhwc" else torch.contiguous_format
        )
        self._dtype = numbers.stored(case)
        single = any(spec.loss == "output" for spec in specs)
        self.net = SeparateNet(model) if single else Net(model)
        module: Any = self.net.module.to(self.place, self._dtype)
        module.to(memory_format=self._format)
        self.net.load(weights)
        self.parameters = [one for one in module.parameters() if one.requires_grad]
        self.resident = self.moved(batch)
        self._ways: tuple[str, bool] | None = None
        self._passes: Passes | None = None
        self._steps: list[ScriptedStep] = []
        self._tf32 = contextlib.ExitStack()

    def __enter__(self) -> Self:
        """Switch TF32 on where that is the precision."""
        self._tf32.enter_context(numbers.tensor_float(self.case))
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        """Switch it off again."""
        self._tf32.close()

    def prepare(self, spec: StepSpec) -> Step:
        """Build a step.

        Raises:
            UnsupportedError: PyTorch cannot do what the script does.
            UsageError: training without an optimizer.
        """
        if spec.loss == "output":
            return self._pass(spec)
        step = ScriptedStep(self, spec)
        self._steps.append(step)
        return step

    def initialize(self) -> None:
        """Give all weights their starting values, and forget what training has left."""
        self.net.load(self._weights)
        for one in self.parameters:
            one.grad = None
        for step in self._steps:
            step.reset()

    def synchronize(self) -> None:
        """Wait until the device has finished all steps."""
        if self.case.on_gpu:
            torch.cuda.synchronize(self.place)

    def set_layers(self, spec: StepSpec) -> None:
        """Let dropout and normalisations work as a step has them, unless they do already."""
        ways = spec.propagation, spec.dropout
        if ways == self._ways:
            return
        self._ways = ways
        trains = spec.propagation == "training"
        module = self.net.module
        module.train(trains)
        for one in module.modules():
            if isinstance(one, nn.Dropout):
                one.train(trains and spec.dropout)

    def moved(self, batch: Synthetic | Batch) -> tuple[torch.Tensor, torch.Tensor | None]:
        """Return arrays of the host's on the device, in its type and format."""
        images = torch.from_numpy(batch.images)
        labels = None if batch.labels is None else torch.from_numpy(batch.labels)
        moved = images.to(self.place, self._dtype, memory_format=self._format)
        return moved, None if labels is None else labels.to(self.place)

    def _pass(self, spec: StepSpec) -> Step:
        """Return a pass through all nodes of one kind of gradient."""
        if self.case.mode != "eager":
            raise UnsupportedError(
                f"{spec.phase}: PyTorch compiles a backward pass as a whole, not one kind of "
                "gradient; nearest: --mode eager"
            )
        self.set_layers(spec)
        if self._passes is None:
            self._passes = Passes(self.net, numbers.mixed(self.case))
        passes, images = self._passes, self.resident[0]
        # Activations are there before the loop, gradients of outputs before that of weights.
        passes.forward(images)
        passes.data()
        chosen: Callable[[], None] = (
            passes.data if spec.phase == "backward-data" else passes.weights
        )

        def step(batch: Batch | None = None, rate: float | None = None) -> Outcome:
            del batch, rate
            chosen()
            return Outcome()

        return step
