"""A model in PyTorch with the steps of published scripts; all of them share one set of weights."""

from __future__ import annotations

import contextlib
from typing import TYPE_CHECKING, Any, Self

import torch
import torch.nn.functional as F  # noqa: N812 - PyTorch calls it so itself
from torch import nn

from pydlbench.backends.torch.operator import compiled
from pydlbench.errors import UnsupportedError, UsageError
from pydlbench.steps.protocols.protocol import Outcome, StepSpec
from pydlbench.steps.torch import step as numbers
from pydlbench.steps.torch.net import Net
from pydlbench.steps.torch.step import Passes, SeparateNet, fetched

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence
    from types import TracebackType

    from numpy.typing import NDArray

    from pydlbench.models.graph import Model
    from pydlbench.records.step import StepCase
    from pydlbench.steps.inputs import Batch as Synthetic
    from pydlbench.steps.protocols.protocol import Batch, Step

__all__ = ["TorchStepper"]


# -----------------------------------------------------------------------------
# One kind of step of a published script in PyTorch.


class ScriptedStep:
    """A step as a script's author would write it in PyTorch.

    Args:
        owner: the model and its weights.
        spec: the step.

    Raises:
        UsageError: training without an optimizer.
    """

    def __init__(self, owner: TorchStepper, spec: StepSpec) -> None:
        self._owner, self._spec = owner, spec
        self._computed = self._computation()
        on_host = spec.weights == "host" and owner.case.on_gpu
        #: Where the weights live: on the device itself, or on the host and crossing each time.
        self._masters: list[Any] = (
            [one.detach().cpu().clone() for one in owner.parameters]
            if on_host
            else list(owner.parameters)
        )
        self._crosses = on_host
        self._averages = (
            [] if spec.averages is None else [one.detach().clone() for one in self._masters]
        )
        self._optimizer = self._made_optimizer()

    def __call__(self, batch: Batch | None = None, rate: float | None = None) -> Outcome:
        """Run it once; see :class:`pydlbench.steps.protocols.protocol.Step`."""
        owner, spec = self._owner, self._spec
        owner.set_layers(spec)
        images, labels = owner.resident if batch is None else owner.moved(batch)
        if spec.phase == "forward":
            with torch.no_grad(), numbers.mixed(owner.case):
                output, loss = self._computed(images, labels)
            return self._outcome(output, loss)
        if self._crosses:
            for one, master in zip(owner.parameters, self._masters, strict=True):
                one.data.copy_(master, non_blocking=True)
        self._clear()
        if spec.input_gradient:
            images = images.detach().requires_grad_()
        with numbers.mixed(owner.case):
            output, loss = self._computed(images, labels)
        loss.backward()
        if self._optimizer is not None:
            self._update(self._optimizer, rate)
        return self._outcome(output, loss)

    def reset(self) -> None:
        """Forget what training has left: velocities, averages, weights that live on the host."""
        if self._crosses:
            for master, one in zip(self._masters, self._owner.parameters, strict=True):
                master.copy_(one.detach())
        if self._optimizer is not None:
            self._optimizer.state.clear()
        for average, master in zip(self._averages, self._masters, strict=False):
            average.copy_(master.detach())

    def _computation(self) -> Callable[..., Any]:
        """Return the function of images and labels to output and loss."""
        owner, kind = self._owner, self._spec.loss
        module, model = owner.net.module, owner.model
        tensors = owner.net.tensors()
        terms = model.decays if kind == "model" else ()
        decays = [(tensors[f"{one.node}/{one.tensor}"], one.factor) for one in terms]
        own = kind == "model"
        nothing = kind == "none"
        squares = (model.loss.kind if own else kind) == "l2"

        def computed(images: torch.Tensor, labels: torch.Tensor | None) -> tuple[Any, Any]:
            output = module(images)
            if nothing:
                return output, None
            wide = output.float()
            if own and labels is not None:
                loss = F.cross_entropy(wide, labels)
            else:
                loss = wide.square().sum() / 2 if squares else wide.sum()
            for tensor, factor in decays:
                loss = loss + factor * (tensor.float().square().sum() / 2)
            return output, loss

        return compiled(computed) if owner.case.mode == "compiled" else computed

    def _clear(self) -> None:
        gradients = [one.grad for one in self._owner.parameters]
        if self._spec.zero_fill and all(one is not None for one in gradients):
            torch._foreach_zero_(gradients)
            return
        for one in self._owner.parameters:
            one.grad = None

    def _update(self, optimizer: torch.optim.Optimizer, rate: float | None) -> None:
        if self._crosses:
            for master, one in zip(self._masters, self._owner.parameters, strict=True):
                master.grad = None if one.grad is None else one.grad.cpu()
        if rate is not None:
            for group in optimizer.param_groups:
                group["lr"] = rate
        optimizer.step()
        if self._averages:
            decay = self._spec.averages or 0.0
            with torch.no_grad():
                torch._foreach_lerp_(self._averages, self._masters, 1 - decay)

    def _outcome(self, output: torch.Tensor, loss: torch.Tensor | None) -> Outcome:
        """Bring to the host what the script brings there."""
        fetch = self._spec.fetch
        if "output" in fetch:
            fetched(output)
        if "gradients" in fetch:
            for one in self._owner.parameters:
                if one.grad is not None:
                    fetched(one.grad)
        return Outcome(
            loss=float(loss) if "loss" in fetch and loss is not None else None,
            predictions=fetched(torch.softmax(output.detach().float(), 1))
            if "predictions" in fetch
            else None,
        )

    def _made_optimizer(self) -> torch.optim.Optimizer | None:
        if self._spec.optimizer == "none":
            return None
        chosen = self._owner.model.optimizer
        if chosen.kind == "none":
            raise UsageError(
                f"{self._owner.model.name}: has no optimizer to train with; nearest: "
                "--option optimizer=sgd"
            )
        momentum = chosen.mu if chosen.kind == "momentum" else 0.0
        return torch.optim.SGD(self._masters, lr=chosen.rate, momentum=momentum)


class TorchStepper:
    """See :class:`pydlbench.steps.protocols.protocol.Stepper`; use as a context manager.

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
