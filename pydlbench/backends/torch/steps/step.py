"""A model in PyTorch and its steps, as in the loop of a user's or published script."""

from __future__ import annotations

import abc
import collections
import contextlib
import copy
import dataclasses
import functools
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F  # noqa: N812 - PyTorch calls it so itself
from numpy.typing import NDArray
from torch import fx, nn

from pydlbench.backends import base
from pydlbench.backends.steps.catalogue import CatalogueModel, pass_step, product_flops
from pydlbench.backends.steps.definition import (
    Fetch,
    FrameworkStep,
    LossKind,
    Outcome,
    StepDefinition,
    StepModel,
    check_trainable,
)
from pydlbench.backends.steps.inputs import INPUTS, VALUES, WEIGHTS, Batch, save_results
from pydlbench.backends.steps.trace import StepTracer
from pydlbench.backends.steps.user_model import UserLosses
from pydlbench.backends.torch import settings
from pydlbench.backends.torch.backend import TorchRuntime
from pydlbench.backends.torch.layers.operator import compiled
from pydlbench.backends.torch.settings import DTYPES
from pydlbench.backends.torch.steps import compiled_trace, profiled
from pydlbench.backends.torch.steps.calls_alone import Operands, StepOperands
from pydlbench.backends.torch.steps.net import TorchNet, by_node, fold_normalisations
from pydlbench.backends.torch.steps.recording import (
    Naming,
    RecordedStep,
    Recording,
    record,
)
from pydlbench.backends.torch.steps.swapped import Swap, clock, install, tensors_in
from pydlbench.errors import UnsupportedError
from pydlbench.records.step import StepPreparation, StepSpec
from pydlbench.words import FP8_PRECISIONS


def autocast(spec: StepSpec) -> contextlib.AbstractContextManager[Any]:
    """Return a new context for the forward phase: autocast if the precision needs it."""
    narrow = DTYPES[spec.precision]
    if spec.cast == "whole" or narrow == torch.float32:
        return contextlib.nullcontext()
    context: contextlib.AbstractContextManager[None] = torch.autocast(
        "cuda" if spec.on_gpu else "cpu", narrow
    )
    return context


def _rows(logits: torch.Tensor) -> torch.Tensor:
    """Return logits with classes in the second dimension; sequences have them in the last."""
    return (logits.flatten(0, 1) if logits.ndim == 3 else logits).float()


def _random_labels(logits: torch.Tensor) -> torch.Tensor:
    count, classes, *places = _rows(logits).shape
    stream = torch.Generator().manual_seed(0)
    return torch.randint(0, classes, (count, *places), generator=stream).to(logits.device)


class TorchSubject(StepModel):
    """A model in PyTorch, of the catalogue or the user, with its inputs, loss and optimizer.

    A context manager, which sets the case's precision.

    Args:
        spec: the step.

    Raises:
        UnsupportedError: PyTorch does not support the precision on this device.
    """

    losses = UserLosses(
        number=lambda tensor: tensor.reshape(()),
        total=lambda tensor: tensor.float().sum(),
        mean_square=lambda tensor: tensor.float().square().mean(),
        half_square=lambda tensor: tensor.float().square().sum() / 2,
        cross_entropy=lambda logits, labels: F.cross_entropy(_rows(logits), labels),
        random_labels=_random_labels,
    )
    #: Tensors that are trained, or whose gradients are computed.
    parameters: list[torch.Tensor]
    #: Arguments of the step, on the device.
    resident: tuple[Any, ...]
    #: The module that the step calls.
    module: nn.Module
    #: The user's kernels in it.
    swaps: list[Swap]

    def __init__(self, spec: StepSpec) -> None:
        super().__init__(spec)
        base.check_precision(spec.precision, spec.on_gpu)
        settings.check_precision(spec.precision, spec.on_gpu)
        if spec.precision in FP8_PRECISIONS:
            raise UnsupportedError(f"torch: no whole models in {spec.precision}; nearest: bf16-tc")
        #: Returns the line of the user's code that is running; None if there is none.
        self.line: Callable[[], str | None] = lambda: None
        self._compiled = compiled_trace.count_compiled()
        if spec.mode == "compiled":
            compiled_trace.name_kernels()

    def has_compiled(self) -> bool:
        """Whether a user's code has compiled anything since this was built.

        A recording sees the calls that were compiled, since PyTorch compiles nothing meanwhile.
        """
        own = self.spec.own is not None
        return own and compiled_trace.count_compiled() > self._compiled

    def guards(self) -> tuple[contextlib.AbstractContextManager[Any], ...]:
        """Allow TF32 if that is the precision."""
        return (settings.tf32(self.spec.precision),)

    def swapped_calls(self) -> Callable[[], list[float]] | None:
        """Return the function for seconds and page faults of swapped calls since its last call.

        None on a GPU, and for modules in training: what their gradients take is not known.
        """
        known = self.spec.phase == "forward" or all(swap.operator for swap in self.swaps)
        return clock(self.swaps) if self.swaps and known and not self.spec.on_gpu else None

    def synchronize(self) -> None:
        """Return when the device has done everything that was called."""
        if self.spec.on_gpu:
            torch.cuda.synchronize(self.spec.device)

    def gpu(self) -> dict[str, Any]:
        """Return name, capability and memory of the step's GPU."""
        facts = torch.cuda.get_device_properties(self.spec.device)
        return {
            "name": facts.name,
            "capability": f"{facts.major}.{facts.minor}",
            "memory_bytes": facts.total_memory,
        }

    def tracer(self, run: Callable[[], Any]) -> StepTracer:
        """Return the tracer of the case's step; see ``steps.definition.StepModel``."""
        runtime = TorchRuntime(torch.device(self.spec.device).index) if self.spec.on_gpu else None
        # It has run; without gradients and an optimizer it has nothing more to create.
        recorded = self.record(ran=self.spec.mode == "eager" and not self.spec.backward)
        if self.spec.mode == "compiled" or self.has_compiled():
            return compiled_trace.tracer(recorded.recording, run, runtime, self.batch)
        recording, notes = (recorded.recording, ()) if self.spec.own is None else recorded.twice()
        tracer = profiled.tracer(recording, run, runtime)
        if self.spec.feed != "resident" or self.spec.fetch:
            return tracer
        return dataclasses.replace(tracer, operators=recording.facts(self.batch, notes))

    def change_fusion(self) -> None:
        """Fold the normalisations; see ``steps.definition.StepModel``."""
        if self.spec.backward:
            raise UnsupportedError("statistics of a minibatch cannot be folded into weights")
        self.set_layers(self.definition)
        self.module = fold_normalisations(self.module)

    @abc.abstractmethod
    def set_layers(self, definition: StepDefinition) -> None:
        """Switch dropout and normalisations to the step's mode, if it has changed."""

    @abc.abstractmethod
    def fed(self, batch: Batch | None = None) -> tuple[Any, ...]:
        """Return the step's arguments, copied from the host.

        Args:
            batch: minibatch to copy; None takes the one that the model was built with.
        """

    @abc.abstractmethod
    def computation(self, kind: LossKind, keeps: bool, eager: bool) -> Callable[..., Any]:
        """Return the function from the step's arguments to output and loss, compiled or not.

        Args:
            kind: kind of the loss.
            keeps: whether the output is a result besides the loss.
            eager: compile nothing.
        """

    @abc.abstractmethod
    def make_optimizer(self, weights: list[Any]) -> torch.optim.Optimizer:
        """Return an optimizer of weights.

        Raises:
            UsageError: the model has no optimizer.
        """

    @property
    @abc.abstractmethod
    def names(self) -> dict[torch.Tensor, str]:
        """The modules or nodes of the tensors with gradients, by tensor."""

    @property
    @abc.abstractmethod
    def naming(self) -> Naming:
        """The naming of calls while a step is recorded."""

    def optimizers(self, step: TorchStep) -> list[torch.optim.Optimizer]:
        """Return the optimizers that a step runs."""
        return [] if step.optimizer is None else [step.optimizer]

    def recording(self, step: TorchStep, naming: Naming | None = None) -> Recording:
        """Record a step without advancing the optimizer's count, so that the next one is equal.

        Args:
            step: the step.
            naming: names of its calls; None for the model's.
        """
        states = [
            state
            for optimizer in self.optimizers(step)
            for state in optimizer.state.values()
            if "step" in state
        ]
        counts = [copy.deepcopy(state["step"]) for state in states]
        recording = record(
            lambda: list(tensors_in(step.run())),
            naming=naming or self.naming,
            parameters=self.names,
            optimizer=step.optimizer,
            device=self.spec.device,
            line=self.line,
        )
        for state, count in zip(states, counts, strict=True):
            if isinstance(count, torch.Tensor):
                state["step"].copy_(count)
            else:  # of SparseAdam
                state["step"] = count
        return recording

    def eager_step(self) -> TorchStep:
        """Return a step in eager mode, with an optimizer of its own."""
        return TorchStep(self, self.definition, eager=True)

    def record(self, *, ran: bool = False) -> RecordedStep:
        """Record a step in eager mode that is not the first one.

        Args:
            ran: whether there was a first one that leaves no state.
        """
        step = self.eager_step()
        # The first step creates the state of later ones: gradients to drop, the optimizer's state.
        if not (ran or step.ran):
            step.run()
        again = functools.partial(self.recording, step)
        return RecordedStep(
            step=lambda: list(tensors_in(step.run())), recording=again(), again=again
        )

    def operands(self, signatures: Sequence[str]) -> dict[str, Operands]:
        """Return copies of the operands of calls by signature, from a step that is not the first.

        Args:
            signatures: signatures of the recorded calls; calls that the step does not make are left
                out.
        """
        step = self.eager_step()
        step.run()
        operands = StepOperands(self.spec.device, signatures)
        with operands:
            step.run()
        return operands.copied


class TorchModel(CatalogueModel, TorchSubject):
    """A network of the catalogue with its weights."""

    def _build(self, batch: Batch, *, separate: bool) -> None:
        spec = self.spec
        self.place = torch.device(spec.device)
        self._format: Any = (
            torch.channels_last if spec.layout == "nhwc" else torch.contiguous_format
        )
        self._dtype = DTYPES[spec.precision] if spec.cast == "whole" else torch.float32
        self.net = TorchNet(self.model, overwriting=not separate)
        module: Any = self.net.module.to(self.place, self._dtype)
        module.to(memory_format=self._format)
        self.module = module
        self.net.load(self.weights)
        self.parameters = [weight for weight in module.parameters() if weight.requires_grad]
        self._host = _tensors(batch, pin=spec.on_gpu)
        images, labels = self.fed()
        #: Images and labels on the device, in memory of their own as if left by an earlier step; on
        #: a GPU they are copies anyway.
        self.resident = (images.clone(memory_format=torch.preserve_format), labels)
        self._computations: dict[tuple[LossKind, bool], Callable[..., Any]] = {}
        self._layers: tuple[bool, bool, bool] | None = None
        self._passes: _TorchPasses | None = None
        self.set_layers(self.definition)
        self.swaps = install(spec, module)
        if spec.backward and spec.mode == "compiled":
            self.notes.append("network and loss are compiled as one function, the optimizer is not")

    @property
    def names(self) -> dict[torch.Tensor, str]:
        """The nodes of the trained tensors, by tensor."""
        tensors = self.net.tensors().items()
        return {tensor: name.rpartition("/")[0] for name, tensor in tensors if tensor.requires_grad}

    @property
    def naming(self) -> Naming:
        """The naming of calls after nodes."""
        return by_node(self.net, {})

    def prepare(self, definition: StepDefinition, *, eager: bool = False) -> FrameworkStep:
        """Build a step.

        Args:
            definition: definition of the step.
            eager: compile nothing, whatever the mode is.

        Raises:
            UnsupportedError: PyTorch does not support the step.
            UsageError: training without an optimizer.
        """
        if definition.loss == "output":
            return self._prepare_pass(definition)
        step = TorchStep(self, definition, eager=eager)
        self.steps.append(step)
        return step

    def load(self, weights: Mapping[str, NDArray[Any]]) -> None:
        """Copy weights by name, and drop all gradients."""
        self.net.load(weights)
        for weight in self.parameters:
            weight.grad = None

    def exchange(self, preparation: StepPreparation) -> None:
        """Write weights and images under PyTorch's names, if a user's model takes them."""
        if preparation.save is None or not preparation.values:
            return
        named = {f"{WEIGHTS}{name}": x for name, x in self.net.torch_names().items()}
        named[f"{INPUTS}0"] = self.resident[0]
        arrays = ((name, x.detach().float().cpu().numpy()) for name, x in named.items())
        save_results(Path(preparation.save) / VALUES, arrays)

    def set_layers(self, definition: StepDefinition) -> None:
        """Switch dropout and normalisations to the step's mode, if it has changed."""
        trains = definition.propagation == "training"
        wanted = trains, definition.drops, definition.batch_statistics
        if wanted == self._layers:
            return
        self._layers = wanted
        module = self.net.module
        module.train(trains)
        for layer in module.modules():
            if isinstance(layer, nn.Dropout):
                layer.train(definition.drops)
            elif isinstance(layer, nn.BatchNorm2d):
                layer.train(definition.batch_statistics)

    def fed(self, batch: Batch | None = None) -> tuple[torch.Tensor, torch.Tensor | None]:
        """Return images and labels copied from the host, in the step's type and format.

        Args:
            batch: minibatch to copy; None takes the one that the model was built with.
        """
        images, labels = self._host if batch is None else _tensors(batch)
        images = images.to(self.place, self._dtype, non_blocking=True, memory_format=self._format)
        return images, None if labels is None else labels.to(self.place, non_blocking=True)

    def computation(self, kind: LossKind, keeps: bool, eager: bool) -> Callable[..., Any]:
        """Return the function from images and labels to output and loss, compiled as one."""
        module, loss = self.net.module, self.loss(kind)
        tensors = self.net.tensors()

        def computed(images: torch.Tensor, labels: torch.Tensor | None) -> tuple[Any, Any]:
            output = module(images)
            if kind == "none":
                return output, None
            return (output if keeps else None), loss(output, labels, tensors)

        if eager or self.spec.mode != "compiled":
            return computed
        # Compiling takes minutes: steps with the same computation share it.
        if (kind, keeps) not in self._computations:
            self._computations[kind, keeps] = compiled(computed)
        return self._computations[kind, keeps]

    def make_optimizer(self, weights: list[Any]) -> torch.optim.Optimizer:
        """Return the gradient descent of the model."""
        check_trainable(self.model, "--set optimizer=sgd")
        optimizer = self.model.optimizer
        momentum = optimizer.mu if optimizer.kind == "momentum" else 0.0
        return torch.optim.SGD(weights, lr=optimizer.rate, momentum=momentum)

    def _prepare_pass(self, definition: StepDefinition) -> FrameworkStep:
        """Return a pass through all nodes that computes one kind of gradient."""
        if self.spec.mode != "eager":
            raise UnsupportedError(
                f"{definition.phase}: PyTorch compiles a backward pass as a whole, not one kind of "
                "gradient; nearest: --mode eager"
            )
        self.set_layers(definition)
        if self._passes is None:
            self._passes = _TorchPasses(self.net.module, autocast(self.spec))
        passes = self._passes
        # Activations and the gradients of outputs exist before the timed loop.
        passes.forward(self.resident[0])
        passes.data()
        return pass_step(passes, definition)

    # -------------------------------------------------------------------------
    # Facts of a step for its checks.

    @functools.cached_property
    def _recorded(self) -> tuple[dict[str, tuple[int, ...]], int]:
        """The shapes of nodes' outputs, and the FLOPs, from one run of the eager step."""
        definition = self.gradients_only if self.definition.backward else self.definition
        shapes: dict[str, tuple[int, ...]] = {}
        naming = by_node(self.net, shapes)
        recording = self.recording(TorchStep(self, definition, eager=True), naming)
        return shapes, product_flops(recording.distinct())

    def shapes(self) -> dict[str, tuple[int, ...]]:
        """Return the shape of each node's output in a run, NCHW or (batch, features)."""
        return self._recorded[0]

    def elements(self) -> int:
        """Return the number of trained elements."""
        return sum(weight.numel() for weight in self.parameters)

    def flops(self) -> int:
        """Return the FLOPs of all convolutions and products in the eager step."""
        return self._recorded[1]

    def prepare_forward(self, definition: StepDefinition) -> FrameworkStep:
        """Build a forward step in eager mode: compiling it would take minutes."""
        return self.prepare(definition, eager=True)

    def plain_output(self, array: NDArray[Any]) -> NDArray[Any]:
        """Return a fetched output, which has the layout of the graph."""
        return array

    def plain(self, name: str, array: NDArray[Any]) -> NDArray[Any]:
        """Return a tensor, or its gradient, in the layout of the graph and float32."""
        return self.net.plain(name, torch.from_numpy(array))

    def subtract_gradients(self, rate: float) -> None:
        """Run the step, and subtract its gradients times the rate from the weights."""
        self.step()
        with torch.no_grad():
            for weight in self.parameters:
                weight.sub_(weight.grad, alpha=rate)


class TorchStep:
    """A step as its author would write it in PyTorch; see ``steps.definition.FrameworkStep``.

    Args:
        owner: the model and its weights.
        definition: definition of the step.
        eager: compile nothing.

    Raises:
        UsageError: training without an optimizer.
    """

    def __init__(
        self, owner: TorchSubject, definition: StepDefinition, *, eager: bool = False
    ) -> None:
        self.owner, self.definition = owner, definition
        #: Whether it has run.
        self.ran = False
        # If the output were not a result, a compiler need not write it.
        keeps = bool({"output", "predictions"}.intersection(definition.fetch))
        #: Maps the arguments of the step to output and loss.
        self.computed = owner.computation(definition.loss, keeps, eager)
        #: Whether weights are kept on the host, and copied to the device in each step.
        self._crosses = definition.weights == "host" and owner.spec.on_gpu
        self._masters: list[Any] = (
            [weight.detach().cpu().clone() for weight in owner.parameters]
            if self._crosses
            else list(owner.parameters)
        )
        averaged = self._masters if definition.averages is not None else []
        self._averages = [weight.detach().clone() for weight in averaged]
        self.optimizer: torch.optim.Optimizer | None = None
        self._rates: list[float] = []
        #: The optimizer of a captured step on a GPU; it may have a copy of the counts there.
        self._captured: torch.optim.Optimizer | None = None
        if definition.optimizer == "model":
            self.optimizer = owner.make_optimizer(self._masters)
            self._rates = [group["lr"] for group in self.optimizer.param_groups]

    def __call__(self, batch: Batch | None = None, rate: float | None = None) -> Outcome:
        """Run it once; may return before the device has finished unless something is fetched."""
        return self._outcome(*self.run(batch, rate))

    def run(
        self, batch: Batch | None = None, rate: float | None = None
    ) -> tuple[Any, torch.Tensor | None]:
        """Run it once and return output and loss, as in the loop of a script."""
        owner, definition = self.owner, self.definition
        self.ran = True
        owner.set_layers(definition)
        operands = owner.fed(batch) if definition.feed == "host" else owner.resident
        if not definition.backward:
            with torch.no_grad(), autocast(owner.spec):
                output, loss = self.computed(*operands)
            return output, loss
        if self._crosses:
            for weight, master in zip(owner.parameters, self._masters, strict=True):
                weight.data.copy_(master, non_blocking=True)
        self._clear()
        if definition.input_gradient:
            images, *others = operands
            operands = images.detach().requires_grad_(), *others
        with autocast(owner.spec):
            output, loss = self.computed(*operands)
        loss.backward()
        if self.optimizer is not None:
            self._update(self.optimizer, rate)
        return output, loss

    def reset(self) -> None:
        """Reset the state of training: velocities, rates, averages, weights on the host."""
        if self._crosses:
            for master, weight in zip(self._masters, self.owner.parameters, strict=True):
                master.copy_(weight.detach())
        if self.optimizer is not None:
            self.optimizer.state.clear()
            self._captured = None
            for group, rate in zip(self.optimizer.param_groups, self._rates, strict=True):
                group["lr"] = rate
        for average, master in zip(self._averages, self._masters, strict=False):
            average.copy_(master.detach())

    def _clear(self) -> None:
        gradients = [weight.grad for weight in self.owner.parameters]
        if self.definition.zero_fill and all(gradient is not None for gradient in gradients):
            torch._foreach_zero_(gradients)
            return
        for weight in self.owner.parameters:
            weight.grad = None

    def _update(self, optimizer: torch.optim.Optimizer, rate: float | None) -> None:
        if self._crosses:
            for master, weight in zip(self._masters, self.owner.parameters, strict=True):
                master.grad = None if weight.grad is None else weight.grad.cpu()
        for group in optimizer.param_groups if rate is not None else ():
            group["lr"] = rate
        if self._captured is not None and torch.cuda.is_current_stream_capturing():
            self._captured.step()
        else:
            optimizer.step()
            if self._captured is None and self.owner.spec.on_gpu and not self._crosses:
                self._captured = capturable(optimizer) or optimizer
        if self._averages:
            decay = self.definition.averages or 0.0
            with torch.no_grad():
                torch._foreach_lerp_(self._averages, self._masters, 1 - decay)

    def _outcome(self, output: Any, loss: Any) -> Outcome:
        """Copy the results that the definition fetches to the host."""
        results: dict[Fetch, Callable[[], list[Any]]] = {
            "output": lambda: [output],
            "predictions": lambda: [torch.softmax(output.detach().float(), 1)],
            "loss": lambda: [loss],
            "gradients": lambda: [x.grad for x in self.owner.parameters if x.grad is not None],
        }
        return Outcome.fetched(
            {name: list(map(_fetched, results[name]())) for name in self.definition.fetch}
        )


def capturable(optimizer: torch.optim.Optimizer) -> torch.optim.Optimizer | None:
    """Return an optimizer that a CUDA graph can hold, with the weights and moments of another.

    Adam and AdamW count their steps on the host by default, which ends a capture. The copy has
    counts on the device; the counts and the settings of the given optimizer stay as they are.

    Args:
        optimizer: optimizer after its first step.

    Returns:
        None if the given optimizer can be captured itself.
    """
    if not all("capturable" in group for group in optimizer.param_groups):
        return None
    if all(state["step"].is_cuda for state in optimizer.state.values()):
        return None
    made = copy.copy(optimizer)
    made.param_groups = [{**group, "capturable": True} for group in optimizer.param_groups]
    made.state = collections.defaultdict(dict)
    for weight, state in optimizer.state.items():
        made.state[weight] = {**state, "step": state["step"].to(weight.device, copy=True)}
    return made


def _tensors(batch: Batch, *, pin: bool = False) -> tuple[torch.Tensor, torch.Tensor | None]:
    """Return the host's arrays as tensors; a GPU reads pinned ones directly."""
    images = torch.from_numpy(batch.images)
    labels = None if batch.labels is None else torch.from_numpy(batch.labels)
    if pin:
        images = images.pin_memory()
        labels = None if labels is None else labels.pin_memory()
    return images, labels


def _fetched(tensor: torch.Tensor) -> Any:
    """Return a tensor as a NumPy array, as ``session.run`` would: a copy, never a view."""
    tensor = tensor.detach()
    if tensor.dtype == torch.bfloat16:  # NumPy has no such type
        tensor = tensor.float()
    return tensor.to("cpu", copy=True).numpy()


# -----------------------------------------------------------------------------
# Backward passes of one kind: data gradients, or weight gradients, of all nodes.


class _TorchPasses:
    """The backward passes of a network, with saved activations and gradients.

    Autograd computes only the requested gradients: the gradients of outputs without the gradients
    of weights, or the gradients of a node's weights without the gradients of its inputs.

    Args:
        module: the network, which overwrites nothing.
        context: context of the forward phase.
    """

    def __init__(
        self, module: fx.GraphModule, context: contextlib.AbstractContextManager[Any]
    ) -> None:
        self._module, self._context = module, context
        self._outputs: dict[fx.Node, torch.Tensor] = {}
        self._gradients: dict[fx.Node, torch.Tensor] = {}

    def forward(self, images: torch.Tensor) -> None:
        """Run all nodes and save the outputs that have gradients because they depend on weights."""
        interpreter = fx.Interpreter(self._module, garbage_collect_values=False)
        with torch.enable_grad(), self._context:
            interpreter.run(images)
        self._outputs = {
            node: output
            for node, output in interpreter.env.items()
            if node.op.startswith("call") and output.requires_grad
        }

    def data(self) -> None:
        """Compute the gradients of all nodes' outputs; the last output is its own gradient."""
        *_, last = outputs = tuple(self._outputs.values())
        gradients = torch.autograd.grad(last, outputs, last.detach(), retain_graph=True)
        self._gradients = dict(zip(self._outputs, gradients, strict=True))

    def weights(self) -> None:
        """Add the gradients of all weights to the existing ones."""
        for node, output in self._outputs.items():
            if node.op == "call_module":
                parameters = [*self._module.get_submodule(str(node.target)).parameters()]
                trained = [parameter for parameter in parameters if parameter.requires_grad]
                gradient = self._gradients[node]
                if trained:
                    torch.autograd.backward(output, gradient, retain_graph=True, inputs=trained)
