"""The gradient of a layer as one function: the calls of ATen that autograd makes.

The forward pass runs once, and the calls of autograd's backward pass are recorded. Tensors that
they read of the forward pass (a result, indices, statistics) become operands, as autograd saves
them. A gradient is thus timed without autograd's bookkeeping, and can be compiled.
"""

import operator
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Final

import torch
from torch import fx
from torch.fx.node import map_aggregate
from torch.utils._pytree import tree_leaves

from pydlbench.backends.torch.dispatch import DispatchMode

_ATEN: Final = torch.ops.aten
# Calls that allocate memory and compute nothing.
_ALLOCATIONS: Final = ("empty", "empty_like", "empty_strided", "new_empty", "new_empty_strided")


@dataclass(frozen=True, slots=True)
class GradientProgram:
    """Calls of ATen as one function.

    Attributes:
        function: function that takes tensors and returns a tuple.
        arguments: the tensors that the calls read and none of them creates.
        finish: gives the results of the function the shapes of the gradients, by final views that
            no call reads.
        names: names of the calls that compute, each once: ``aten::mul``.
    """

    function: Callable[..., Any]
    arguments: tuple[torch.Tensor, ...]
    finish: Callable[[Any], tuple[torch.Tensor, ...]]
    names: tuple[str, ...]


def forward_names(function: Callable[..., Any], tensors: Sequence[torch.Tensor]) -> tuple[str, ...]:
    """Return the names of the calls of a forward pass that compute, each once."""
    with torch.no_grad(), _Recorder() as recorder:
        function(*tensors)
    return _names(recorder.graph)


def forward_program(
    function: Callable[..., Any], tensors: Sequence[torch.Tensor]
) -> GradientProgram:
    """Return a forward pass as a program of its (first) result, with PyTorch's choices fixed."""
    with torch.no_grad(), _Recorder() as recorder:
        result = function(*tensors)
        program: GradientProgram = recorder.program(
            [result[0] if isinstance(result, tuple) else result]
        )
    return program


def gradient(
    function: Callable[..., Any],
    tensors: Sequence[torch.Tensor],
    wanted: Sequence[torch.Tensor],
    incoming: torch.Tensor | None,
) -> GradientProgram:
    """Return the gradients of a function's (first) result as a program.

    Args:
        function: the forward pass.
        tensors: arguments of the function.
        wanted: arguments whose gradients are computed.
        incoming: the gradient of the result; None if the result is a number, whose gradient is one.
    """
    for tensor in wanted:
        tensor.requires_grad_()
    with torch.enable_grad():
        result = function(*tensors)
    result = result[0] if isinstance(result, tuple) else result

    for views in (False, True):
        with _Recorder(views=views) as recorder:
            gradients = torch.autograd.grad(result, wanted, incoming, retain_graph=True)
        program: GradientProgram = recorder.program(gradients)
        if program.names:  # else all its calls are views of the incoming gradient
            break
    for tensor in wanted:
        tensor.requires_grad_(False)
    return program


class _Recorder(DispatchMode):
    """Records calls as a graph.

    Args:
        views: whether to record views of existing tensors as calls; otherwise they are arguments.
    """

    def __init__(self, *, views: bool = False) -> None:
        super().__init__()
        self.graph = fx.Graph()
        self._views = views
        self._nodes: dict[int, fx.Node] = {}
        self._arguments: list[torch.Tensor] = []
        self._last: fx.Node | None = None  # last node of the arguments
        # Tensors are known by id, which must not be reused.
        self._alive: list[Any] = []

    def __torch_dispatch__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Any = None
    ) -> Any:
        """Record a call and make it."""
        words = kwargs or {}
        result = func(*args, **words)
        tensors = [x for x in tree_leaves((args, words)) if isinstance(x, torch.Tensor)]
        known = any(id(tensor) in self._nodes for tensor in tensors)
        if func.namespace != "aten" or (func.is_view and not (known or self._views)):
            return result
        self._alive += [tensors, result]
        node = self.graph.call_function(
            func, map_aggregate(args, self._read), map_aggregate(words, self._read)
        )
        if isinstance(result, torch.Tensor):
            self._nodes[id(result)] = node
            return result
        for place, part in enumerate(result or ()):  # an update of a list in place returns None
            if isinstance(part, torch.Tensor):
                self._nodes[id(part)] = self.graph.call_function(operator.getitem, (node, place))
        return result

    def program(self, results: Sequence[torch.Tensor]) -> GradientProgram:
        """Return the recorded calls as a function of the tensors that they read."""
        graph = self.graph
        outputs, views = [], []
        for result in results:
            node, steps = self._read(result), []
            while not self._views and _is_view(node):
                steps.append(node)
                node = node.args[0]
            outputs.append(node)
            views.append(tuple((step.target, step.args[1:]) for step in reversed(steps)))
        graph.output(tuple(outputs))
        graph.eliminate_dead_code()
        _add_in_place(graph)

        def finish(results: Any) -> tuple[torch.Tensor, ...]:
            return tuple(_viewed(*pair) for pair in zip(results, views, strict=True))

        names = _names(graph, views=self._views)
        arguments = tuple(argument.detach() for argument in self._arguments)
        return GradientProgram(_function(graph), arguments, finish, names)

    def _read(self, value: Any) -> Any:
        """Return the node of a value; a tensor that no call has created becomes an argument."""
        if not isinstance(value, torch.Tensor):
            return value
        if id(value) not in self._nodes:
            with self.graph.inserting_after(self._last):
                self._last = self.graph.placeholder(f"x{len(self._arguments)}")
            self._nodes[id(value)] = self._last
            self._arguments.append(value)
            self._alive.append(value)
        return self._nodes[id(value)]


def _is_view(node: fx.Node) -> bool:
    return bool(getattr(node.target, "is_view", False))


def _viewed(tensor: torch.Tensor, views: Sequence[tuple[Any, Any]]) -> torch.Tensor:
    for function, arguments in views:
        tensor = function(tensor, *arguments)
    return tensor


def _names(graph: fx.Graph, *, views: bool = False) -> tuple[str, ...]:
    calls = [node for node in graph.nodes if hasattr(node.target, "overloadpacket")]
    names = [call.target.overloadpacket.__name__ for call in calls if views or not _is_view(call)]
    return tuple(dict.fromkeys(f"aten::{name}" for name in names if name not in _ALLOCATIONS))


def _add_in_place(graph: fx.Graph) -> None:
    """Make sums of gradients in place, as autograd does unless a dispatch mode is active."""
    for node in graph.nodes:
        if node.target is not _ATEN.add.Tensor or not isinstance(node.args[1], fx.Node):
            continue
        first = node.args[0]
        if first.op == "call_function" and not _is_view(first) and len(first.users) == 1:
            node.target = _ATEN.add_.Tensor


def _function(graph: fx.Graph) -> Callable[..., Any]:
    """Return a graph as a function: a line for each call, which frees tensors after last use."""
    code = graph.python_code("")
    # Operators get names of their own, because looking up attributes takes longer than short calls.
    names = {name: name.replace(".", "_") for name in re.findall(r"torch\.ops\.[\w.]+", code.src)}
    source = re.sub(r"torch\.ops\.[\w.]+", lambda match: names[match.group()], code.src)
    known: dict[str, Any] = {**code.globals, "torch": torch, "__name__": __name__}
    known |= {short: operator.attrgetter(name[6:])(torch) for name, short in names.items()}
    exec(compile(re.sub(r"\(self,? ?", "(", source), "<calls of ATen>", "exec"), known)  # noqa: S102 - fx wrote it
    function: Callable[..., Any] = known["forward"]
    return function
