"""Operators of PyTorch's step: its own modules, with operands as a step leaves them."""

from __future__ import annotations

import abc
import operator
import time
from dataclasses import dataclass, field
from functools import partial
from typing import TYPE_CHECKING, Any

import torch
from torch import fx, nn
from torch.profiler import ProfilerActivity, profile, record_function

from pydlbench.backends.frameworks.backend import translated
from pydlbench.backends.frameworks.verbose import parse
from pydlbench.backends.torch.operator import compiled
from pydlbench.backends.torch.trace import library_output
from pydlbench.errors import PydlbenchError, UnsupportedError
from pydlbench.steps.definition import definition_of
from pydlbench.steps.inputs import make_batch, make_weights
from pydlbench.steps.operations import OperatorsFacts
from pydlbench.steps.operators import CallCost, OperatorsKernel, TimedCall, summary
from pydlbench.steps.signatures import read_signature, step_of
from pydlbench.steps.torch.own import OwnModel
from pydlbench.steps.torch.step import TorchModel, TorchStep, autocast
from pydlbench.timing.statistics import median

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from pydlbench.backends.frameworks.backend import FrameworkBackend
    from pydlbench.models.graph import Model
    from pydlbench.records.step import StepSpec
    from pydlbench.steps.operations import OperatorRequest
    from pydlbench.steps.operators import TimedOperator
    from pydlbench.steps.torch.net import Net

__all__ = ["prepare", "prepare_allocation", "prepare_log", "prepare_signatures"]


# -----------------------------------------------------------------------------
# Subgraphs cut out of PyTorch's step, and what they read there.


@dataclass(slots=True, kw_only=True)
class Subgraph:
    """Nodes of a step's graph as a module of their own, with what they read in the step.

    Attributes:
        module: of the very modules of the step; returns a tuple of outputs.
        overwritten: positions of inputs that it works on in place.
        reads: nodes of the step's graph whose values come in.
        writes: nodes of the step's graph whose values go out.
        inputs: those values, in their order; :func:`record` fills them in.
        gradients: of the outputs, where they have one; likewise.
    """

    module: fx.GraphModule
    overwritten: frozenset[int] = frozenset()
    reads: list[fx.Node] = field(default_factory=list)
    writes: list[fx.Node] = field(default_factory=list)
    inputs: list[torch.Tensor] = field(default_factory=list)
    gradients: list[torch.Tensor | None] = field(default_factory=list)


def cut_out(net: Net, names: Sequence[str], *, functional: bool = False) -> Subgraph:
    """Return consecutive nodes of the step's graph as a module.

    Args:
        net: the model.
        names: our names of the nodes, in the order of the graph.
        functional: nothing in place, as a compiler sees it.
    """
    own = _nodes_of(net, names)
    inside = set(own)
    graph = fx.Graph()
    reads: list[fx.Node] = []
    overwritten: set[int] = set()
    known: dict[fx.Node, fx.Node] = {}
    for one in (one for node in own for one in node.all_input_nodes):
        if one not in known and one not in inside:
            known[one] = graph.placeholder(f"x{len(reads)}")
            reads.append(one)
    for node in own:
        first = node.args[0] if node.args else None
        if isinstance(first, fx.Node) and first not in inside and _overwrites(net, node):
            overwritten.add(reads.index(first))
        known[node] = graph.node_copy(node, lambda one: known[one])
    writes = [node for node in own if any(user not in inside for user in node.users)]
    graph.output(tuple(known[one] for one in writes))
    module = fx.GraphModule(net.module, graph)
    if functional:
        overwritten.clear()
        _keep_inputs(module)
    return Subgraph(
        module=module,
        overwritten=frozenset(overwritten),
        reads=reads,
        writes=writes,
        inputs=[torch.empty(0)] * len(reads),
        gradients=[None] * len(writes),
    )


def record(step: TorchStep, subgraphs: Sequence[Subgraph]) -> None:
    """Run the model once, untimed, and keep what the subgraphs read.

    Gradients have the strides and the zeros that they have in a step; so have inputs.
    """
    model, definition = step.owner, step.definition
    recorder = _Recorder(model.net.module, subgraphs)
    images, labels = model.resident
    if definition.input_gradient:
        images = images.detach().requires_grad_()
    with torch.set_grad_enabled(definition.backward), autocast(model.case):
        output = recorder.run(images)
        loss = model.loss(definition.loss, output, labels) if definition.backward else None
    if loss is not None:
        loss.backward()
        for one in model.parameters:
            one.grad = None


class _Recorder(fx.Interpreter):  # type: ignore[misc]  # an unknown class to mypy
    """Runs a module, keeping each value before anybody can overwrite it, and each gradient."""

    def __init__(self, module: fx.GraphModule, subgraphs: Sequence[Subgraph]) -> None:
        super().__init__(module)
        self._readers: dict[fx.Node, list[Subgraph]] = {}
        self._writers: dict[fx.Node, list[Subgraph]] = {}
        for subgraph in subgraphs:
            for node in subgraph.reads:
                self._readers.setdefault(node, []).append(subgraph)
            for node in subgraph.writes:
                self._writers.setdefault(node, []).append(subgraph)

    def run_node(self, n: fx.Node) -> Any:
        """Run a node; keep its value, and its gradient once it is there."""
        value = super().run_node(n)
        for subgraph in self._readers.get(n, ()):
            kept = copied(value).requires_grad_(value.requires_grad)
            subgraph.inputs[subgraph.reads.index(n)] = kept
        if n in self._writers and value.requires_grad:

            def keep(gradient: torch.Tensor) -> None:
                for subgraph in self._writers[n]:
                    subgraph.gradients[subgraph.writes.index(n)] = copied(gradient)

            value.register_hook(keep)
        return value


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


def _overwrites(net: Net, node: fx.Node) -> bool:
    if node.op == "call_module":
        made = net.module.get_submodule(str(node.target))
        return bool(getattr(made, "inplace", False))
    return node.target is operator.iadd


# -----------------------------------------------------------------------------
# Operators of PyTorch's step, with operands as a step leaves them.


class BothWays(abc.ABC):
    """An operator that runs forward, and where it has gradients, backward at once.

    Args:
        differentiates: whether gradients are computed.
        inputs: what it reads.
        cost: of a call, which is taken off; None leaves it in.
    """

    executions = 1

    def __init__(
        self, differentiates: bool, inputs: list[torch.Tensor], cost: CallCost | None
    ) -> None:
        self.differentiates = differentiates
        self.inputs = inputs
        self._cost = cost

    def ready(self) -> list[torch.Tensor]:
        """Return operands for one run."""
        return self.inputs

    @abc.abstractmethod
    def forward(self, tensors: Sequence[torch.Tensor]) -> tuple[torch.Tensor, ...]:
        """Run it forwards."""

    @abc.abstractmethod
    def backward(self, outputs: tuple[torch.Tensor, ...]) -> tuple[Any, ...]:
        """Return gradients of inputs and parameters; nothing where there are none."""

    def run(self) -> float:
        """Run it once; see :class:`pydlbench.steps.operators.TimedOperator`."""
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
        self._overwritten = subgraph.overwritten
        self.parameters = [one for one in subgraph.module.parameters() if one.requires_grad]
        self.sources = [*(one for one in self.inputs if one.requires_grad), *self.parameters]
        self.gradients = subgraph.gradients
        module = subgraph.module
        self._call: Callable[..., Any] = module
        if self._case.mode == "compiled":

            def run(*tensors: torch.Tensor) -> Any:
                return module(*tensors)

            self._call = compiled(run)

    def ready(self) -> list[torch.Tensor]:
        """Return operands of which those that will be overwritten are copies."""
        return [
            one.clone(memory_format=torch.preserve_format) if index in self._overwritten else one
            for index, one in enumerate(self.inputs)
        ]

    def forward(self, tensors: Sequence[torch.Tensor]) -> tuple[torch.Tensor, ...]:
        """Run it forwards."""
        with autocast(self._case):
            outputs: tuple[torch.Tensor, ...] = self._call(*tensors)
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

    def forward(self, tensors: Sequence[torch.Tensor]) -> tuple[torch.Tensor, ...]:
        """Return the loss."""
        with autocast(self._model.case):
            return (self._model.loss(self._kind, tensors[0], self._labels),)

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

    executions = 1

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
# The blocks that an operator of PyTorch's step allocates, as PyTorch's profiler reports them.

# Tells spans of ours from the profiler's.
_MARK = "pydlbench|"


def trace_all(operators: Mapping[str, Any]) -> dict[str, list[int]]:
    """Run each operator once under the profiler.

    Args:
        operators: by name; those that do not run both ways work in place.

    Returns:
        By operator, the bytes of each block that it allocates, in their order.
    """
    both_ways = {name: one for name, one in operators.items() if isinstance(one, BothWays)}
    with profile(activities=[ProfilerActivity.CPU], profile_memory=True) as profiler:
        for name, one in both_ways.items():
            _run(name, one)
    spans, events = _collected(profiler)
    found: dict[str, list[int]] = {name: [] for name in operators}
    for name, (begin, end) in spans.items():
        found[name] = [size for moment, size in events if begin <= moment <= end]
    return found


def _run(name: str, timed: BothWays) -> None:
    """Run an operator; copies of operands that it overwrites are not its own."""
    with torch.set_grad_enabled(timed.differentiates):
        tensors = timed.ready()
        with record_function(f"{_MARK}{name}"):
            outputs = timed.forward(tensors)
            wanted = any(one.requires_grad for one in outputs)
            gradients = timed.backward(outputs) if wanted else ()
        del outputs, gradients


def _collected(
    profiler: Any,
) -> tuple[dict[str, tuple[int, int]], list[tuple[int, int]]]:
    """Return spans in nanoseconds by operator, and (time, bytes) of all that is allocated."""
    spans: dict[str, tuple[int, int]] = {}
    events: list[tuple[int, int]] = []
    waiting = list(profiler.profiler.kineto_results.experimental_event_tree())
    while waiting:
        event = waiting.pop()
        kind, fields = event.typed
        if kind.name == "Allocation":
            if fields.alloc_size > 0:
                events.append((event.start_time_ns, fields.alloc_size))
        elif event.name.startswith(_MARK):
            spans[event.name.removeprefix(_MARK)] = event.start_time_ns, event.end_time_ns
        waiting += event.children
    return spans, sorted(events)


# -----------------------------------------------------------------------------
# PyTorch's operators, prepared: built, run once, calibrated, and traced where that is wanted.

# Operators in a chain that computes nothing, and how often it is run.
_CHAIN = 64
_REPEATS = 25
_HOW = (
    f"{_CHAIN} operators on one element in a chain, against the same {_CHAIN} run one by one; "
    "calls of one taken off each part, right after it"
)
# A chain becomes one loop there, so that operators cannot be told from their call.
_HOW_COMPILED = "a compiled function of one operator on one element, called after each part"


def prepare(
    backend: FrameworkBackend,
    model: Model,
    case: StepSpec,
    wanted: Sequence[OperatorRequest],
    *,
    traces: bool,
) -> OperatorsKernel:
    """Make operators ready; see :func:`pydlbench.steps.operations.prepare_operators`."""
    begin = time.perf_counter()
    step = _step(model, case)
    single = _trivial(step, 1)
    start, repeated = _calibrated(step, single)
    dispatch = median(repeated)
    cost = CallCost(single.run, start / max(start + dispatch, 1e-9))
    made = _operators(step, wanted, cost)
    for one in made.values():
        one.run()
    found = trace_all(made) if traces else {}
    facts = OperatorsFacts(
        names=tuple(made),
        once_s=cost.latest,
        dispatch_s=dispatch,
        dispatch_samples=repeated,
        how=_HOW_COMPILED if case.mode == "compiled" else _HOW,
        setup_s=time.perf_counter() - begin,
        traces=found,
        library=backend.library,
    )
    return OperatorsKernel(list(made.values()), facts, backend.cpus, [one.count for one in wanted])


def prepare_log(
    backend: FrameworkBackend, model: Model | None, case: StepSpec, calls: int
) -> OperatorsKernel:
    """Run whole steps; see :func:`pydlbench.steps.operations.prepare_log`.

    Args:
        backend: of the worker.
        model: the graph; None of a model of the user's own.
        case: the step.
        calls: steps that are logged.
    """
    step: Callable[[], Any] = OwnModel(case).step if model is None else _step(model, case)
    step()
    logs = [parse(library_output(step)) for _ in range(calls)]
    facts = OperatorsFacts(log=summary(logs), library=backend.library)
    return OperatorsKernel([], facts, backend.cpus)


def prepare_signatures(
    backend: FrameworkBackend, case: StepSpec, signatures: Sequence[str]
) -> OperatorsKernel:
    """Make compiled subgraphs ready; see :func:`pydlbench.steps.operations.prepare_calls`.

    Raises:
        UnsupportedError: a precision in which types of operands hang on what came before.
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
                cost = cost or CallCost(_trivial(step, 1).run)
                made[signature] = _made_up(step, asked, said.marks, cost)
                made[signature].run()
        except PydlbenchError as error:
            made.pop(signature, None)
            refused[signature] = str(error)
    facts = OperatorsFacts(
        names=tuple(made),
        how=_HOW_COMPILED,
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
    if asked.kind == "gradient sum":
        return GradientSum(_like(model, asked.nodes[0]))
    if not asked.is_subgraph:
        return _operators(step, [asked], cost)[asked.name]
    subgraph = cut_out(model.net, asked.nodes, functional=True)
    wanted = set(asked.differentiated)
    for place, node in enumerate(subgraph.reads):
        name = model.net.outputs[node.name]
        subgraph.inputs[place] = _like(model, name).requires_grad_(name in wanted)
    known = dict(zip(asked.outputs, marks, strict=False))  # none of all is no list of none
    for place, node in enumerate(subgraph.writes):
        name = model.net.outputs[node.name]
        if step.definition.backward:
            subgraph.gradients[place] = _like(model, name, known.get(name, ()))
    return SubgraphOperator(step, subgraph, cost)


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


def _operators(
    step: TorchStep, wanted: Sequence[OperatorRequest], cost: CallCost
) -> dict[str, TimedOperator]:
    model = step.owner
    functional = model.case.mode == "compiled"
    subgraphs = {
        one.name: cut_out(model.net, one.nodes, functional=functional)
        for one in wanted
        if one.nodes
    }
    record(step, list(subgraphs.values()))
    found: dict[str, TimedOperator] = {}
    for one in wanted:
        if one.kind == "feed":
            found[one.name] = TimedCall(model.fed)
        elif one.kind == "optimizer":
            assert step.optimizer is not None, "a step that is trained has one"
            found[one.name] = OptimizerOperator(step.optimizer, model.parameters)
        elif one.kind == "loss":
            output = torch.randn((model.model.batch, *model.model.output.shape))
            if output.ndim == 4 and model.case.layout == "nhwc":
                output = output.contiguous(memory_format=torch.channels_last)
            found[one.name] = LossOperator(step, output, cost)
        elif one.kind == "gradient sum":
            # Of something of the images' shape where no node's output has a gradient.
            known = subgraphs[one.name].gradients if one.nodes else []
            summed = [gradient for gradient in known if gradient is not None]
            found[one.name] = GradientSum((*summed, model.resident[0])[0])
        else:
            found[one.name] = SubgraphOperator(step, subgraphs[one.name], cost)
    return found


def _calibrated(step: TorchStep, single: SubgraphOperator) -> tuple[float, tuple[float, ...]]:
    """Return what is in each operator's time but once in a step, and what an operator costs.

    The latter by repetition.

    Args:
        step: as it is run.
        single: a call of one operator.
    """
    chain = _trivial(step, _CHAIN)
    together, alone = [], []
    for _ in range(_REPEATS):
        together.append(chain.run())
        alone.append(sum(single.run() for _ in range(_CHAIN)))
    if step.owner.case.mode == "compiled":
        return median(alone) / _CHAIN, (0.0,)
    fixed = (median(alone) - median(together)) / (_CHAIN - 1)
    return max(0.0, fixed), tuple(max(0.0, (one - fixed) / _CHAIN) for one in together)


def _trivial(step: TorchStep, length: int) -> SubgraphOperator:
    """Return a chain of operators on one element, run exactly as the step's are."""
    root = nn.Module()
    graph = fx.Graph()
    value = graph.placeholder("x")
    for number in range(length):
        root.add_module(f"n{number}", nn.ReLU())
        value = graph.call_module(f"n{number}", (value,))
    graph.output((value,))
    one = torch.ones(1, 1, 1, 1)
    subgraph = Subgraph(
        module=fx.GraphModule(root, graph),
        inputs=[one.clone().requires_grad_(step.definition.backward)],
        gradients=[one],
    )
    made = SubgraphOperator(step, subgraph)
    made.run()
    return made
