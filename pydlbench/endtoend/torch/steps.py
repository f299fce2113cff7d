"""A step of a model in PyTorch, as the loop of a user's script runs it."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch
import torch.nn.functional as F  # noqa: N812 - its name everywhere
from torch import nn

from pydlbench.backends.torch.compiled import compiled
from pydlbench.endtoend.torch import numbers
from pydlbench.errors import UsageError

if TYPE_CHECKING:
    from collections.abc import Callable

    from pydlbench.endtoend.inputs import Batch
    from pydlbench.endtoend.step import StepCase
    from pydlbench.endtoend.torch.net import Net
    from pydlbench.models.graph import Model

__all__ = ["TorchStep", "fetched"]


class TorchStep:
    """One step with its model, its optimizer and its minibatch.

    Args:
        net: the model with its weights, float32 on the CPU; becomes the step's own.
        case: what is to be run, and how.
        batch: images and labels.

    Raises:
        UsageError: a training phase without an optimizer.
    """

    def __init__(self, net: Net, case: StepCase, batch: Batch) -> None:
        self.net = net
        self.case = case
        self.model: Model = net.model
        self.place = torch.device(case.device)
        self._format: Any = (
            torch.channels_last if case.layout == "nhwc" else torch.contiguous_format
        )
        self._dtype = numbers.stored(case)
        module = net.module.to(self.place, self._dtype)
        anyhow: Any = module  # its types do not know of memory formats
        anyhow.to(memory_format=self._format)
        self.set_layers()
        self.parameters = [one for one in module.parameters() if one.requires_grad]
        self.optimizer = self._optimizer()
        self._pinned = _pinned(batch, case.on_gpu)
        images, labels = self._moved()
        # Of its own, as what a step before this one has left; a GPU's are copies anyway.
        self._images = images.clone(memory_format=torch.preserve_format)
        self._labels = labels
        self._loss = self._loss_of(module)
        self._run: Callable[..., Any] = module
        if case.mode == "compiled":
            self._run = torch.compile(module, fullgraph=True, dynamic=False)
            self._loss = compiled(self._loss)
        self.call: Callable[[], Any] = self._chosen()

    def set_layers(self, dropout: bool | None = None) -> None:
        """Switch layers between their two ways of working.

        Args:
            dropout: whether it drops anything outside the forward phase; None is what the case
                says.
        """
        case, module = self.case, self.net.module
        module.train(case.backward)
        drops = case.dropout if dropout is None else dropout
        for one in module.modules():
            if isinstance(one, nn.Dropout):
                one.train(case.backward and drops)
            elif isinstance(one, nn.BatchNorm2d):
                one.train(case.backward and not case.running_statistics)

    def wait(self) -> None:
        """Return when the device has done everything that was called."""
        if self.case.on_gpu:
            torch.cuda.synchronize(self.place)

    def settle(self) -> None:
        """Do nothing: switches are set around samples."""

    def images(self) -> torch.Tensor:
        """Return the images that the step reads."""
        return self._fed()[0]

    def eager(self) -> None:
        """Run the phase once without compiling anything; an update of the weights left out."""
        images, labels = self._fed()
        with numbers.mixed(self.case):
            if not self.case.backward:
                with torch.no_grad():
                    self.net.module(images)
                return
            if self.model.input_gradient:
                images = images.detach().requires_grad_()
            loss = self._loss_of(self.net.module)(images, labels)
        loss.backward()

    def forward(self) -> torch.Tensor:
        """Return the output for the minibatch."""
        images, _ = self._fed()
        with torch.no_grad(), numbers.mixed(self.case):
            output: torch.Tensor = self._run(images)
        return output

    def gradients(self) -> torch.Tensor:
        """Compute all gradients, into the parameters; return the loss."""
        images, labels = self._fed()
        for one in self.parameters:
            one.grad = None
        if self.model.input_gradient:
            images = images.detach().requires_grad_()
        with numbers.mixed(self.case):
            loss: torch.Tensor = self._loss(images, labels)
        loss.backward()
        return loss.detach()

    def train(self) -> torch.Tensor:
        """Compute all gradients and update the weights; return the loss."""
        loss = self.gradients()
        self.optimizer.step()
        return loss

    def loss(self) -> float:
        """Return the loss for the minibatch, without gradients."""
        images, labels = self._fed()
        with torch.no_grad(), numbers.mixed(self.case):
            return float(self._loss_of(self.net.module)(images, labels))

    def _chosen(self) -> Callable[[], Any]:
        """Return the step of the phase, with the fetch if there is one."""
        phase = self.case.phase
        if not self.case.fetch:
            steps = {"forward": self.forward, "forward-backward": self.gradients}
            return steps.get(phase, self.train)
        if phase == "forward":
            return lambda: fetched(self.forward())
        if phase == "training":
            return lambda: fetched(self.train())

        def all_gradients() -> list[Any]:
            self.gradients()
            return [fetched(one.grad) for one in self.parameters if one.grad is not None]

        return all_gradients

    def _fed(self) -> tuple[torch.Tensor, torch.Tensor | None]:
        """Return what the step reads: what lies there, or a new copy of the host's arrays."""
        if self.case.feed == "host":
            return self._moved()
        return self._images, self._labels

    def _moved(self) -> tuple[torch.Tensor, torch.Tensor | None]:
        images, labels = self._pinned
        moved = images.to(self.place, self._dtype, non_blocking=True, memory_format=self._format)
        return moved, None if labels is None else labels.to(self.place, non_blocking=True)

    def _loss_of(self, module: nn.Module) -> Callable[..., torch.Tensor]:
        """Return the loss as a function of images and labels."""
        kind = self.model.loss.kind
        tensors = self.net.tensors()
        terms = self.model.decays if self.case.phase == "training" else ()
        decays = [(tensors[f"{one.node}/{one.tensor}"], one.factor) for one in terms]

        def loss(images: torch.Tensor, labels: torch.Tensor | None) -> torch.Tensor:
            output = module(images).float()
            if labels is not None:
                total = F.cross_entropy(output, labels)
            else:
                total = output.square().sum() / 2 if kind == "l2" else output.sum()
            for tensor, factor in decays:
                total = total + factor * (tensor.float().square().sum() / 2)
            return total

        return loss

    def _optimizer(self) -> torch.optim.Optimizer:
        chosen = self.model.optimizer
        if chosen.kind == "none" and self.case.phase == "training":
            raise UsageError(
                f"{self.model.name}: has no optimizer to train with; nearest: "
                "--phase forward-backward"
            )
        momentum = chosen.mu if chosen.kind == "momentum" else 0.0
        return torch.optim.SGD(self.parameters, lr=chosen.rate, momentum=momentum)


def _pinned(batch: Batch, on_gpu: bool) -> tuple[torch.Tensor, torch.Tensor | None]:
    """Return the host's arrays as tensors, in memory that a GPU can read by itself."""
    images = torch.from_numpy(batch.images)
    labels = None if batch.labels is None else torch.from_numpy(batch.labels)
    if on_gpu:
        images = images.pin_memory()
        labels = None if labels is None else labels.pin_memory()
    return images, labels


def fetched(tensor: torch.Tensor) -> Any:
    """Return a NumPy array of the host's own, as ``session.run`` would: never a view."""
    tensor = tensor.detach()
    if tensor.dtype == torch.bfloat16:  # NumPy has no such type
        tensor = tensor.float()
    return tensor.to("cpu", copy=True).numpy()
