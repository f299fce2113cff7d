"""A step of a model in PyTorch, as the loop of a user's script runs it."""

from __future__ import annotations

import contextlib
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch
import torch.nn.functional as F  # noqa: N812 - PyTorch calls it so itself
from torch import fx, nn

from pydlbench.backends.torch.operator import compiled
from pydlbench.backends.torch.settings import DTYPES, emulated
from pydlbench.errors import UnsupportedError, UsageError
from pydlbench.records.specs import CPU_PRECISIONS, GPU_PRECISIONS
from pydlbench.steps.torch.net import Net

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from pydlbench.models.graph import Model, Node
    from pydlbench.records.step import StepCase
    from pydlbench.steps.inputs import Batch

__all__ = [
    "Passes",
    "SeparateNet",
    "TorchStep",
    "check",
    "fetched",
    "mixed",
    "stored",
    "tensor_float",
]


# -----------------------------------------------------------------------------
# Backward passes of one kind only in PyTorch: data gradients, or weight gradients, of all nodes.
#
# Each node has a small autograd graph of its own, from detached inputs to its output, which is
# kept:
# asked for the inputs' gradient PyTorch computes nothing of the weights', and the other way
# round.


class SeparateNet(Net):
    """A model whose nodes overwrite nothing: each output is there until the next step."""

    def _free(self, node: Node) -> bool:
        del node
        return False


@dataclass(frozen=True, slots=True)
class _Record:
    """A node that has been run: what it read, its parameters, and its output."""

    node: fx.Node
    sources: tuple[fx.Node, ...]
    leaves: tuple[torch.Tensor, ...]
    parameters: tuple[torch.Tensor, ...]
    output: torch.Tensor


class Passes:
    """The passes of a network.

    Args:
        net: with its weights, overwriting nothing.
        mixed: in which the forward phase runs.
    """

    def __init__(self, net: Net, mixed: contextlib.AbstractContextManager[Any]) -> None:
        self._module = net.module
        self._mixed = mixed
        self._records: list[_Record] = []
        self._gradients: dict[fx.Node, torch.Tensor] = {}

    def forward(self, images: torch.Tensor) -> None:
        """Run all nodes and keep what they read and return."""
        values: dict[fx.Node, torch.Tensor] = {}
        # What lies behind a weight: only there is the gradient of data of any use.
        behind: set[fx.Node] = set()
        self._records = []
        with torch.enable_grad(), self._mixed:
            for node in self._module.graph.nodes:
                if node.op == "placeholder":
                    values[node] = images
                elif node.op != "output":
                    record = self._run(node, values, behind)
                    values[node] = record.output.detach()
                    if record.parameters or behind.intersection(record.sources):
                        behind.add(node)
                    self._records.append(record)

    def data(self) -> None:
        """Compute the gradients of all nodes' inputs, the output taken as its own gradient."""
        last = self._records[-1]
        found = {last.node: last.output.detach()}
        for record in reversed(self._records):
            wanted = [leaf for leaf in record.leaves if leaf.requires_grad]
            if not wanted:
                continue
            gradients = torch.autograd.grad(
                record.output, wanted, found[record.node], retain_graph=True
            )
            sources = [
                source
                for source, leaf in zip(record.sources, record.leaves, strict=True)
                if leaf.requires_grad
            ]
            for source, gradient in zip(sources, gradients, strict=True):
                present = found.get(source)
                found[source] = gradient if present is None else present + gradient
        self._gradients = found

    def weights(self) -> None:
        """Add the gradients of all weights to those that are there."""
        for record in self._records:
            if not record.parameters:
                continue
            gradients = torch.autograd.grad(
                record.output, record.parameters, self._gradients[record.node], retain_graph=True
            )
            for parameter, gradient in zip(record.parameters, gradients, strict=True):
                if parameter.grad is None:
                    parameter.grad = torch.zeros_like(parameter)
                parameter.grad += gradient

    def _run(
        self, node: fx.Node, values: dict[fx.Node, torch.Tensor], behind: set[fx.Node]
    ) -> _Record:
        leaves = {
            source: values[source].detach().requires_grad_(source in behind)
            for source in node.all_input_nodes
        }
        arguments = fx.node.map_arg(node.args, lambda source: leaves[source])
        parameters: tuple[torch.Tensor, ...] = ()
        function: Any = node.target
        if node.op == "call_module":
            function = self._module.get_submodule(str(node.target))
            parameters = tuple(one for one in function.parameters() if one.requires_grad)
        return _Record(
            node, tuple(leaves), tuple(leaves.values()), parameters, function(*arguments)
        )


# -----------------------------------------------------------------------------
# Which numbers a step of PyTorch computes with: type, autocast, TF32; what a device refuses.


def check(case: StepCase) -> None:
    """Make sure that PyTorch has a step's precision on its device.

    Raises:
        UnsupportedError: It has not.
    """
    there = GPU_PRECISIONS if case.on_gpu else CPU_PRECISIONS
    if case.precision not in there:
        raise UnsupportedError(
            f"{case.precision} is a mode of {'CPUs' if case.on_gpu else 'GPUs'}; here there is: "
            f"{', '.join(there)}"
        )
    if case.on_gpu and case.precision == "fp16":
        raise UnsupportedError("torch cannot keep fp16 off the tensor cores; fp16-tc uses them")
    if case.precision == "fp8-tc":
        raise UnsupportedError("torch runs no whole models in fp8-tc; nearest: bf16-tc")
    if not case.on_gpu and (lacking := emulated(case.precision)):
        raise UnsupportedError(
            f"this CPU has no {case.precision}: it lacks {' and '.join(lacking)}"
        )


def stored(case: StepCase) -> torch.dtype:
    """Return the type of weights and images."""
    return DTYPES[case.precision] if case.cast == "whole" else torch.float32


def mixed(case: StepCase) -> contextlib.AbstractContextManager[Any]:
    """Return a new context in which the forward phase runs: autocast, or none."""
    narrow = DTYPES[case.precision]
    if case.cast == "whole" or narrow == torch.float32:
        return contextlib.nullcontext()
    context: contextlib.AbstractContextManager[None] = torch.autocast(
        "cuda" if case.on_gpu else "cpu", narrow
    )
    return context


@contextlib.contextmanager
def tensor_float(case: StepCase) -> Iterator[None]:
    """Let a GPU round float32 to TF32 meanwhile, where that is the precision."""
    if case.precision != "tf32":
        yield
        return
    switches: tuple[Any, ...] = (torch.backends.cudnn, torch.backends.cuda.matmul)
    for switch in switches:
        switch.allow_tf32 = True
    try:
        yield
    finally:
        for switch in switches:
            switch.allow_tf32 = False


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
        self._dtype = stored(case)
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
        with mixed(self.case):
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
        with torch.no_grad(), mixed(self.case):
            output: torch.Tensor = self._run(images)
        return output

    def gradients(self) -> torch.Tensor:
        """Compute all gradients, into the parameters; return the loss."""
        images, labels = self._fed()
        for one in self.parameters:
            one.grad = None
        if self.model.input_gradient:
            images = images.detach().requires_grad_()
        with mixed(self.case):
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
        with torch.no_grad(), mixed(self.case):
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
