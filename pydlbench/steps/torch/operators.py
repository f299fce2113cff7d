"""Operators of PyTorch's compiled step: subgraphs of its modules, on operands that are made up."""

from __future__ import annotations

import abc
import operator
import time
from dataclasses import dataclass, field
from functools import partial
from typing import TYPE_CHECKING, Any

import torch
from torch import fx, nn

from pydlbench.backends.frameworks.backend import translated
from pydlbench.backends.torch.operator import compiled
from pydlbench.errors import PydlbenchError, UnsupportedError
from pydlbench.steps.definition import definition_of
from pydlbench.steps.inputs import make_batch, make_weights
from pydlbench.steps.operations import OperatorsFacts
from pydlbench.steps.operators import (
    CallCost,
    OperatorsKernel,
    TimedCall,
)
from pydlbench.steps.signatures import read_signature, step_of
from pydlbench.steps.torch.step import TorchModel, TorchStep, autocast

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from pydlbench.backends.frameworks.backend import FrameworkBackend
    from pydlbench.models.graph import Model
    from pydlbench.records.step import StepSpec
    from pydlbench.steps.operators import TimedOperator
    from pydlbench.steps.signatures import OperatorRequest
    from pydlbench.steps.torch.net import Net


# -----------------------------------------------------------------------------
# Subgraphs cut out of PyTorch's step, and what they read.


@dataclass(slots=True, kw_only=True)
class Subgraph:
    """Nodes of a step's graph as a module of their own, with what they read.

    Attributes:
        module: of the very modules of the step; returns a tuple of outputs.
        reads: nodes of the step's graph whose values come in.
        writes: nodes of the step's graph whose values go out.
        inputs: those values, in their order.
        gradients: of the outputs, where they have one; likewise.
    """

    module: fx.GraphModule
    reads: list[fx.Node] = field(default_factory=list)
    writes: list[fx.Node] = field(default_factory=list)
    inputs: list[torch.Tensor] = field(default_factory=list)
    gradients: list[torch.Tensor | None] = field(default_factory=list)


def cut_out(net: Net, names: Sequence[str]) -> Subgraph:
    """Return consecutive nodes of the step's graph as a module; nothing in it works in place.

    Args:
        net: the model.
        names: our names of the nodes, in the order of the graph.
    """
    own = _nodes_of(net, names)
    inside = set(own)
    graph = fx.Graph()
    reads: list[fx.Node] = []
    known: dict[fx.Node, fx.Node] = {}
    for one in (one for node in own for one in node.all_input_nodes):
        if one not in known and one not in inside:
            known[one] = graph.placeholder(f"x{len(reads)}")
            reads.append(one)
    for node in own:
        known[node] = graph.node_copy(node, lambda one: known[one])
    writes = [node for node in own if any(user not in inside for user in node.users)]
    graph.output(tuple(known[one] for one in writes))
    module = fx.GraphModule(net.module, graph)
    _keep_inputs(module)
    return Subgraph(
        module=module,
        reads=reads,
        writes=writes,
    )


def _keep_inputs(module: fx.GraphModule) -> None:
    """Let nothing work in place any more."""
    for node in module.graph.nodes:
        if node.target is operator.iadd:
            node.target = operator.add
    module.recompile()
    for path, one in list(module.named_modules()):
        if getattr(one, "inplace", False):
            parent, _, name = path.rpartition(".")
            setattr(module.get_submodule(parent), name, type(one)())


def copied(tensor: torch.Tensor) -> torch.Tensor:
    """Return a tensor of the same values and strides, without a history."""
    return tensor.detach().clone(memory_format=torch.preserve_format)


def _nodes_of(net: Net, names: Sequence[str]) -> list[fx.Node]:
    """Return the nodes that stand for ours; paddings belong to what follows them."""
    wanted, found, pending = set(names), [], []
    for node in net.module.graph.nodes:
        if node.op in ("placeholder", "output"):
            continue
        pending.append(node)
        if node.name in net.outputs:
            if net.outputs[node.name] in wanted:
                found += pending
            pending = []
    return found


# -----------------------------------------------------------------------------
# Operators of a compiled step, with their operands.


class BothWays(abc.ABC):
    """An operator that runs forward, and where it has gradients, backward at once.

    Args:
        differentiates: whether gradients are computed.
        inputs: what it reads.
        cost: of a call, which is taken off; None leaves it in.
    """

    def __init__(
        self, differentiates: bool, inputs: Sequence[torch.Tensor], cost: CallCost | None
    ) -> None:
        self.differentiates = differentiates
        self.inputs = inputs
        self._cost = cost

    @abc.abstractmethod
    def forward(self) -> tuple[torch.Tensor, ...]:
        """Run it forwards."""

    @abc.abstractmethod
    def backward(self, outputs: tuple[torch.Tensor, ...]) -> tuple[Any, ...]:
        """Return gradients of inputs and parameters; nothing where there are none."""

    def run(self) -> float:
        """Run it once; see :class:`pydlbench.steps.operators.TimedOperator`."""
        with torch.set_grad_enabled(self.differentiates):
            if not self.differentiates:
                _read(self.inputs)
            start = time.perf_counter()
            outputs = self.forward()
            # Named, so that they are not freed inside the measured time.
            found = self.backward(outputs) if self.differentiates else ()
            end = time.perf_counter()
            del outputs, found
        return end - start - (self._cost.seconds() if self._cost else 0.0)


class SubgraphOperator(BothWays):
    """A subgraph with its operands.

    Args:
        step: that it is cut out of.
        subgraph: what is run.
        cost: of a call, which is taken off; None leaves it in.
    """

    def __init__(self, step: TorchStep, subgraph: Subgraph, cost: CallCost | None = None) -> None:
        super().__init__(step.definition.backward, subgraph.inputs, cost)
        self._case = step.owner.case
        self.parameters = [one for one in subgraph.module.parameters() if one.requires_grad]
        self.sources = [*(one for one in self.inputs if one.requires_grad), *self.parameters]
        self.gradients = subgraph.gradients
        module = subgraph.module

        def run(*tensors: torch.Tensor) -> Any:
            return module(*tensors)

        self._call: Callable[..., Any] = compiled(run)

    def forward(self) -> tuple[torch.Tensor, ...]:
        """Run it forwards."""
        with autocast(self._case):
            outputs: tuple[torch.Tensor, ...] = self._call(*self.inputs)
        return outputs

    def backward(self, outputs: tuple[torch.Tensor, ...]) -> tuple[Any, ...]:
        """Return gradients of inputs and parameters; nothing where there are none."""
        pairs = [
            (output, gradient)
            for output, gradient in zip(outputs, self.gradients, strict=True)
            if gradient is not None and output.requires_grad
        ]
        if not pairs or not self.sources:
            return ()
        found: tuple[Any, ...] = torch.autograd.grad(
            [one for one, _ in pairs],
            self.sources,
            [one for _, one in pairs],
            allow_unused=True,
        )
        return found


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


class LossOperator(BothWays):
    """The loss with its L2 terms, forward and backward, and the sums of those terms' gradients.

    Args:
        step: whose loss it is.
        output: of the network, or one like it.
        cost: of a call, which is taken off.
    """

    def __init__(self, step: TorchStep, output: torch.Tensor, cost: CallCost) -> None:
        super().__init__(True, [copied(output).requires_grad_()], cost)
        self._model, self._kind = step.owner, step.definition.loss
        _, self._labels = self._model.resident
        decayed = [one for one, _ in self._model.decays(self._kind) if one.requires_grad]
        self.parameters = list({id(one): one for one in decayed}.values())
        self._sums = [GradientSum(copied(one)) for one in self.parameters]

    def forward(self) -> tuple[torch.Tensor, ...]:
        """Return the loss."""
        with autocast(self._model.case):
            return (self._model.loss(self._kind, self.inputs[0], self._labels),)

    def backward(self, outputs: tuple[torch.Tensor, ...]) -> tuple[Any, ...]:
        """Return the gradients of the output, and of what the L2 terms name."""
        wanted = [*self.inputs, *self.parameters]
        found: tuple[Any, ...] = torch.autograd.grad(outputs[0], wanted)
        return found

    def run(self) -> float:
        """Run it once."""
        return super().run() + sum(one.run() for one in self._sums)


class OptimizerOperator:
    """The update of all weights at once, with random gradients.

    Args:
        optimizer: of the step.
        parameters: that it updates.
    """

    def __init__(
        self, optimizer: torch.optim.Optimizer, parameters: Sequence[torch.Tensor]
    ) -> None:
        self._optimizer, self._parameters = optimizer, parameters
        self._gradients = [torch.randn_like(one) * 1e-6 for one in parameters]

    def run(self) -> float:
        """Run it once."""
        for one, gradient in zip(self._parameters, self._gradients, strict=True):
            one.grad = gradient
        try:
            start = time.perf_counter()
            self._optimizer.step()
            return time.perf_counter() - start
        finally:
            for one in self._parameters:
                one.grad = None


# -----------------------------------------------------------------------------
# What a worker is asked for.

_HOW = "a compiled function of one operator on one element, called after each part and taken off"


def prepare_signatures(
    backend: FrameworkBackend, case: StepSpec, signatures: Sequence[str]
) -> OperatorsKernel:
    """Make compiled subgraphs ready; see :func:`pydlbench.steps.operations.prepare_calls`.

    Raises:
        UnsupportedError: a precision in which types of operands depend on what came before.
    """
    if case.precision != "fp32":
        raise UnsupportedError(
            f"{case.precision}: compiled subgraphs are timed by signature in fp32; nearest: "
            "--mode eager"
        )
    begin = time.perf_counter()
    made: dict[str, TimedOperator] = {}
    refused: dict[str, str] = {}
    cost: CallCost | None = None
    for signature in signatures:
        said, model, asked = read_signature(signature)
        try:
            with translated(asked.kind):
                step = _step(model, step_of(said, case))
                cost = cost or CallCost(_trivial(step).run)
                made[signature] = _made_up(step, asked, said.marks, cost)
                made[signature].run()
        except PydlbenchError as error:
            made.pop(signature, None)
            refused[signature] = str(error)
    facts = OperatorsFacts(
        names=tuple(made),
        once_s=cost.latest if cost else 0.0,
        how=_HOW,
        setup_s=time.perf_counter() - begin,
        library=backend.library,
        refused=refused,
    )
    return OperatorsKernel(list(made.values()), facts, backend.cpus)


def _made_up(
    step: TorchStep, asked: OperatorRequest, marks: Sequence[Sequence[str]], cost: CallCost
) -> TimedOperator:
    """Return an operator of which only its signature is known, with operands for it."""
    model = step.owner
    if asked.kind == "feed":
        return TimedCall(model.fed)
    if asked.kind == "gradient sum":
        return GradientSum(_like(model, asked.nodes[0]))
    if asked.kind == "loss":
        return LossOperator(step, _like(model, model.model.output.name), cost)
    if asked.kind == "optimizer":
        assert step.optimizer is not None, "a step that is trained has one"
        return OptimizerOperator(step.optimizer, model.parameters)
    subgraph = cut_out(model.net, asked.nodes)
    wanted = set(asked.differentiated)
    for node in subgraph.reads:
        name = model.net.outputs[node.name]
        subgraph.inputs.append(_like(model, name).requires_grad_(name in wanted))
    known = dict(zip(asked.outputs, marks, strict=False))  # none of all is no list of none
    for node in subgraph.writes:
        name = model.net.outputs[node.name]
        backward = step.definition.backward
        subgraph.gradients.append(_like(model, name, known.get(name, ())) if backward else None)
    return SubgraphOperator(step, subgraph, cost)


def fed_operator(signature: str, case: StepSpec) -> TimedCall:
    """Return what brings images and labels from the host, in any mode.

    Args:
        signature: of kind ``feed``; see :mod:`pydlbench.steps.signatures`.
        case: how the step runs.
    """
    said, model, _ = read_signature(signature)
    return TimedCall(_step(model, step_of(said, case)).owner.fed)


def _like(model: TorchModel, name: str, mark: Sequence[str] = ()) -> torch.Tensor:
    """Return random values of a node's shape, as they lie in a step.

    Args:
        model: that has the node.
        name: of the node.
        mark: of a gradient, the readers that let it lie otherwise: one that comes back through a
            concatenation is a part of a larger one, one through a flattening lies as NCHW.
    """
    shape = model.model[name].shape
    joined = "concat" in mark and len(shape) == 3
    channels = 2 * shape[0] if joined else shape[0]
    made = torch.randn(model.model.batch, channels, *shape[1:])
    if made.ndim == 4 and model.case.layout == "nhwc" and "flatten" not in mark:
        made = made.contiguous(memory_format=torch.channels_last)
    return made[:, : shape[0]] if joined else made


def prepare_allocation(backend: FrameworkBackend, size: int) -> OperatorsKernel:
    """Make a call ready; see :func:`pydlbench.steps.operations.prepare_allocation`."""
    call = TimedCall(partial(torch.add, torch.ones(size // 4), 1.0))
    return OperatorsKernel([call], OperatorsFacts(names=("call",)), backend.cpus)


def _step(model: Model, case: StepSpec) -> TorchStep:
    """Return the step whose operators are run, its layers working as in that step."""
    made = TorchModel(model, make_weights(model, case.seed), case, make_batch(model, case.seed))
    definition = definition_of(case, model)
    made.set_layers(definition)
    return TorchStep(made, definition)


def _trivial(step: TorchStep) -> SubgraphOperator:
    """Return an operator on one element, run exactly as the step's are."""
    graph = fx.Graph()
    graph.output((graph.call_module("relu", (graph.placeholder("x"),)),))
    root = nn.Module()
    root.add_module("relu", nn.ReLU())
    one = torch.ones(1, 1, 1, 1)
    subgraph = Subgraph(
        module=fx.GraphModule(root, graph),
        inputs=[one.clone().requires_grad_(step.definition.backward)],
        gradients=[one],
    )
    made = SubgraphOperator(step, subgraph)
    made.run()
    return made
