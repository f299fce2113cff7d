"""One kind of step of a published script in PyTorch."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch
import torch.nn.functional as F  # noqa: N812 - its name everywhere

from pydlbench.backends.torch.compiled import compiled
from pydlbench.endtoend.protocols import Outcome, StepSpec
from pydlbench.endtoend.torch import numbers
from pydlbench.endtoend.torch.steps import fetched
from pydlbench.errors import UsageError

if TYPE_CHECKING:
    from collections.abc import Callable

    from pydlbench.endtoend.protocols import Batch
    from pydlbench.endtoend.torch.stepper import TorchStepper

__all__ = ["ScriptedStep"]


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
        """Run it once; see :class:`pydlbench.endtoend.protocols.Step`."""
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
