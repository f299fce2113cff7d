"""Operators of PyTorch's step: its own modules, with operands as a step leaves them."""

from __future__ import annotations

import contextlib
import operator
import time
from typing import TYPE_CHECKING, Any

import torch
from torch import fx, nn
from torch.profiler import ProfilerActivity, profile, record_function

from pydlbench.backends.frameworks.verbose import library_output, parse
from pydlbench.backends.torch.operator import compiled
from pydlbench.steps.inputs import make_batch, make_weights
from pydlbench.steps.operators import CallCost, PartsFacts, PartsKernel, summary
from pydlbench.steps.torch import step as numbers
from pydlbench.steps.torch.net import Net
from pydlbench.steps.torch.step import TorchStep
from pydlbench.timing.statistics import median

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping, Sequence

    from pydlbench.models.graph import Model
    from pydlbench.records.step import StepCase

__all__ = ["prepare"]


# -----------------------------------------------------------------------------
# Groups of nodes cut out of PyTorch's step, and what they read there.


class Group:
    """Consecutive nodes of the step's graph as a module of their own.

    Args:
        net: the model.
        names: our names of the nodes, in the order of the graph.
        functional: nothing in place, as a compiler sees it.
    """

    def __init__(self, net: Net, names: Sequence[str], *, functional: bool = False) -> None:
        own = _nodes_of(net, names)
        inside = set(own)
        graph = fx.Graph()
        #: Nodes of the step's graph whose values come in, and whose values go out.
        self.inputs: list[fx.Node] = []
        self.outputs: list[fx.Node] = []
        self.overwritten: set[int] = set()
        known: dict[fx.Node, fx.Node] = {}
        for one in (one for node in own for one in node.all_input_nodes):
            if one not in known and one not in inside:
                known[one] = graph.placeholder(f"x{len(self.inputs)}")
                self.inputs.append(one)
        for node in own:
            first = node.args[0] if node.args else None
            if isinstance(first, fx.Node) and first not in inside and _overwrites(net, node):
                self.overwritten.add(self.inputs.index(first))
            known[node] = graph.node_copy(node, lambda one: known[one])
            if any(user not in inside for user in node.users):
                self.outputs.append(node)
        graph.output(tuple(known[one] for one in self.outputs))
        self.module = fx.GraphModule(net.module, graph)
        if functional:
            self.overwritten.clear()
            _keep_inputs(self.module)


class Operands:
    """What a group reads: its inputs, and the gradients of its outputs."""

    def __init__(self, group: Group) -> None:
        self.inputs: list[torch.Tensor | None] = [None] * len(group.inputs)
        self.gradients: list[torch.Tensor | None] = [None] * len(group.outputs)


def record(parts: StepParts, groups: Sequence[Group]) -> list[Operands]:
    """Run the model once, untimed, and keep what the groups read.

    Gradients have the strides and the zeros that they have in a step; so have inputs.
    """
    found = [Operands(one) for one in groups]
    backward = parts.case.backward
    recorder = _Recorder(parts.net.module, groups, found)
    images, labels = parts.batch()
    if backward and parts.model.input_gradient:
        images = images.detach().requires_grad_()
    with torch.set_grad_enabled(backward), numbers.mixed(parts.case):
        output = recorder.run(images)
        if not backward:
            return found
        loss = parts.loss_of_output(output, labels)
    loss.backward()
    for one in parts.parameters:
        one.grad = None
    return found


class _Recorder(fx.Interpreter):  # type: ignore[misc]  # an unknown class to mypy
    def __init__(
        self, module: fx.GraphModule, groups: Sequence[Group], found: Sequence[Operands]
    ) -> None:
        super().__init__(module)
        self._read: dict[fx.Node, list[tuple[Operands, int]]] = {}
        self._written: dict[fx.Node, list[tuple[Operands, int]]] = {}
        for group, operands in zip(groups, found, strict=True):
            for number, node in enumerate(group.inputs):
                self._read.setdefault(node, []).append((operands, number))
            for number, node in enumerate(group.outputs):
                self._written.setdefault(node, []).append((operands, number))

    def run_node(self, n: fx.Node) -> Any:
        """Run a node; keep its value before anybody can overwrite it, and its gradient."""
        value = super().run_node(n)
        for operands, number in self._read.get(n, ()):
            operands.inputs[number] = copied(value).requires_grad_(value.requires_grad)
        if n in self._written and value.requires_grad:
            places = self._written[n]

            def keep(gradient: torch.Tensor) -> None:
                for operands, number in places:
                    operands.gradients[number] = copied(gradient)

            value.register_hook(keep)
        return value


def _keep_inputs(module: fx.GraphModule) -> None:
    """Let nothing work in place any more."""
    for node in module.graph.nodes:
        if node.target is operator.iadd:
            node.target = operator.add
    module.recompile()
    for path, one in list(module.named_modules()):
        if isinstance(one, nn.ReLU):
            parent, _, name = path.rpartition(".")
            setattr(module.get_submodule(parent), name, nn.ReLU())


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
        return isinstance(made, nn.ReLU) and made.inplace
    return node.target is operator.iadd


# -----------------------------------------------------------------------------
# Parts of PyTorch's step: the very modules of the step, with operands as a step leaves them.


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
        """Run it once; see :class:`pydlbench.steps.operators.Part`."""
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


# -----------------------------------------------------------------------------
# The blocks that a part of PyTorch's step allocates, as PyTorch's profiler reports them.

# Tells spans of ours from the profiler's.
_MARK = "pydlbench|"


def trace_all(parts: Mapping[str, Any]) -> dict[str, list[int]]:
    """Run each part once under the profiler.

    Args:
        parts: by name; those without ``forward`` and ``backward`` work in place.

    Returns:
        By part, the bytes of each block that it allocates, in their order.
    """
    both_ways = {name: part for name, part in parts.items() if hasattr(part, "forward")}
    with profile(activities=[ProfilerActivity.CPU], profile_memory=True) as profiler:
        for name, part in both_ways.items():
            _run(name, part)
    spans, events = _collected(profiler)
    found: dict[str, list[int]] = {name: [] for name in parts}
    for name, (begin, end) in spans.items():
        found[name] = [size for moment, size in events if begin <= moment <= end]
    return found


def _run(name: str, part: Any) -> None:
    """Run a part; copies of operands that it overwrites are not its own."""
    with torch.set_grad_enabled(getattr(part, "differentiates", True)):
        tensors = part.ready()
        with record_function(f"{_MARK}{name}"):
            outputs = part.forward(tensors)
            wanted = any(one.requires_grad for one in outputs)
            gradients = part.backward(outputs) if wanted else ()
        del outputs, gradients


def _collected(
    profiler: Any,
) -> tuple[dict[str, tuple[int, int]], list[tuple[int, int]]]:
    """Return spans in nanoseconds by part, and (time, bytes) of all that is allocated."""
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
# PyTorch's parts, prepared: built, run once, calibrated, and traced where that is wanted.

# Operators in a chain that computes nothing, and how often it is run.
_CHAIN = 64
_REPEATS = 25
_HOW = (
    f"{_CHAIN} operators on one element in a chain, against the same {_CHAIN} run one by one; "
    "calls of one taken off each part, right after it"
)
# A chain becomes one loop there, so that operators cannot be told from their call.
_HOW_COMPILED = "a compiled function of one operator on one element, called after each part"


def prepare(backend: Any, model: Model, case: StepCase, wanted: Mapping[str, Any]) -> PartsKernel:
    """Make parts ready; see :func:`pydlbench.steps.operators.prepare_parts`."""
    begin = time.perf_counter()
    if wanted["kind"] == "faults":
        return PartsKernel(
            [_Allocation(wanted["bytes"])], PartsFacts(names=("call",)), backend.cpus
        )
    numbers.check(case)
    net = Net(model)
    net.load(make_weights(model, case.seed))
    parts = StepParts(net, case, make_batch(model, case.seed))
    library = f"torch {torch.__version__}"
    if wanted["kind"] == "log":
        parts.call()
        logs = [parse(library_output(parts.call)) for _ in range(wanted["calls"])]
        facts = PartsFacts(log=summary(logs), library=library)
        return PartsKernel([], facts, backend.cpus)
    single = _trivial(parts, 1)
    start, dispatch = _calibrated(parts, single)
    cost = CallCost(single.run, start / max(start + dispatch, 1e-9))
    made = _parts(parts, wanted["parts"], cost)
    for one in made.values():
        one.run()
    traces = trace_all(made) if wanted.get("traces") else {}
    facts = PartsFacts(
        names=tuple(made),
        once_s=cost.latest,
        dispatch_s=dispatch,
        how=_HOW_COMPILED if case.mode == "compiled" else _HOW,
        setup_s=time.perf_counter() - begin,
        traces=traces,
        library=library,
    )
    counts = [one["count"] for one in wanted["parts"]]
    return PartsKernel(list(made.values()), facts, backend.cpus, counts)


def _parts(parts: StepParts, wanted: list[dict[str, Any]], cost: CallCost) -> dict[str, Any]:
    compile_it = parts.case.mode == "compiled"
    needed = [one for one in wanted if one["nodes"]]
    groups = [Group(parts.net, one["nodes"], functional=compile_it) for one in needed]
    operands = dict(
        zip(
            (one["name"] for one in needed),
            zip(groups, record(parts, groups), strict=True),
            strict=True,
        )
    )
    found: dict[str, Any] = {}
    for one in wanted:
        name, kind = one["name"], one["kind"]
        if kind == "feed":
            found[name] = FeedPart(parts)
        elif kind == "optimizer":
            found[name] = OptimizerPart(parts)
        elif kind == "loss":
            shape = (parts.model.batch, *parts.model.output.shape)
            output = torch.randn(shape)
            if output.ndim == 4 and parts.case.layout == "nhwc":
                output = output.contiguous(memory_format=torch.channels_last)
            found[name] = LossPart(parts, output, cost)
        elif kind == "gradient sum":
            found[name] = GradientSum(_gradient(operands.get(name), parts))
        else:
            group, own = operands[name]
            found[name] = GroupPart(parts, group, own, cost, compile_it=compile_it)
    return found


def _gradient(found: tuple[Group, Operands] | None, parts: StepParts) -> torch.Tensor:
    """Return the gradient of a node's output, or something of the images' shape."""
    known = () if found is None else found[1].gradients
    return next((one for one in known if one is not None), parts.batch()[0])


class _Allocation:
    """A call whose result is so large that the C library may ask the system for it."""

    executions = 1

    def __init__(self, size: int) -> None:
        self._source = torch.ones(size // 4)

    def run(self) -> float:
        """Allocate, write and drop it."""
        start = time.perf_counter()
        torch.add(self._source, 1.0)
        return time.perf_counter() - start


def _calibrated(parts: StepParts, single: GroupPart) -> tuple[float, float]:
    """Return what is in each part's time but once in a step, and what an operator costs.

    Args:
        parts: the step.
        single: a call of one operator.
    """
    chain = _trivial(parts, _CHAIN)
    together, alone = [], []
    for _ in range(_REPEATS):
        together.append(chain.run())
        alone.append(sum(single.run() for _ in range(_CHAIN)))
    if parts.case.mode == "compiled":
        return median(alone) / _CHAIN, 0.0
    fixed = (median(alone) - median(together)) / (_CHAIN - 1)
    return max(0.0, fixed), max(0.0, (median(together) - fixed) / _CHAIN)


def _trivial(parts: StepParts, length: int) -> GroupPart:
    """Return a chain of operators on one element, run exactly as the parts are."""
    root = nn.Module()
    graph = fx.Graph()
    value = graph.placeholder("x")
    for number in range(length):
        root.add_module(f"n{number}", nn.ReLU())
        value = graph.call_module(f"n{number}", (value,))
    graph.output((value,))
    group: Any = Group.__new__(Group)
    group.inputs, group.outputs, group.overwritten = [value], [value], set()
    group.module = fx.GraphModule(root, graph)
    operands = Operands(group)
    operands.inputs = [torch.ones(1, 1, 1, 1).requires_grad_(parts.case.backward)]
    operands.gradients = [torch.ones(1, 1, 1, 1)]
    part = GroupPart(parts, group, operands, compile_it=parts.case.mode == "compiled")
    part.run()
    return part
