"""A layer's gradient as PyTorch has it: the calls of ATen that autograd makes, as one function.

A forward pass is run once, autograd asked for the gradients, and its calls are recorded while it
makes them. What they read of the forward pass (a result, indices, statistics) are operands then, as
autograd keeps it. So a gradient is timed without autograd's bookkeeping, and can be compiled.
"""

from __future__ import annotations

import operator
import re
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

import torch
from torch import fx
from torch.fx.node import map_aggregate
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

_ATEN: Final = torch.ops.aten
# Calls that make room, or look, and compute nothing.
_SILENT: Final = ("empty", "empty_like", "empty_strided", "new_empty", "new_empty_strided")


@dataclass(frozen=True, slots=True)
class GradientProgram:
    """Calls of ATen as one function.

    Attributes:
        function: of tensors; returns a tuple.
        arguments: what the calls read that none of them has made.
        finish: brings what the function returns into the shapes of the gradients, by views that
            nothing but these results needs: no call waits for them.
        names: of the calls that compute, each once: ``aten::mul``.
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
    """Return the (first) result of a forward pass as a program: what it chooses is chosen here."""
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
        tensors: what it takes.
        wanted: those of them whose gradients are wanted.
        incoming: the gradient of the result; None of a number is one.
    """
    for each in wanted:
        each.requires_grad_()
    with torch.enable_grad():
        result = function(*tensors)
    result = result[0] if isinstance(result, tuple) else result

    def recorded(*, views: bool) -> GradientProgram:
        with _Recorder(views=views) as recorder:
            gradients = torch.autograd.grad(result, wanted, incoming, retain_graph=True)
        made: GradientProgram = recorder.program(gradients)
        return made

    program = recorded(views=False)
    if not program.names:  # nothing but views of the incoming gradient: these are its calls
        program = recorded(views=True)
    for each in wanted:
        each.requires_grad_(False)
    return program


class _Recorder(TorchDispatchMode):  # type: ignore[misc]  # an unknown class to mypy
    """Records calls as a graph.

    Args:
        views: whether views of what was there before are calls too; if not, they are there as well.
    """

    def __init__(self, *, views: bool = False) -> None:
        super().__init__()
        self.graph = fx.Graph()
        self._views = views
        self._nodes: dict[int, fx.Node] = {}
        self._arguments: list[torch.Tensor] = []
        self._last: fx.Node | None = None  # that stands for an argument
        # A tensor that is gone would leave its identity to another one.
        self._alive: list[Any] = []

    @classmethod
    def _should_skip_dynamo(cls) -> bool:
        """Return False; see ``recording.DispatchRecorder``."""
        return False

    def __torch_dispatch__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Any = None
    ) -> Any:
        """Record a call and make it."""
        del types
        words = kwargs or {}
        result = func(*args, **words)
        tensors = [x for x in tree_leaves((args, words)) if isinstance(x, torch.Tensor)]
        made = any(id(each) in self._nodes for each in tensors)
        if func.namespace != "aten" or (func.is_view and not (made or self._views)):
            return result
        self._alive += [tensors, result]
        node = self.graph.call_function(
            func, map_aggregate(args, self._read), map_aggregate(words, self._read)
        )
        if isinstance(result, torch.Tensor):
            self._nodes[id(result)] = node
            return result
        for place, each in enumerate(result):
            if isinstance(each, torch.Tensor):
                self._nodes[id(each)] = self.graph.call_function(operator.getitem, (node, place))
        return result

    def program(self, results: Sequence[torch.Tensor]) -> GradientProgram:
        """Return the recorded calls as a function of what they read."""
        graph = self.graph
        outputs, views = [], []
        for each in results:
            node, steps = self._read(each), []
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
        arguments = tuple(each.detach() for each in self._arguments)
        return GradientProgram(_function(graph), arguments, finish, names)

    def _read(self, value: Any) -> Any:
        """Return what stands for a value; a tensor that no call has made is an argument."""
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
    names = [each.target.overloadpacket.__name__ for each in calls if views or not _is_view(each)]
    return tuple(dict.fromkeys(f"aten::{each}" for each in names if each not in _SILENT))


def _add_in_place(graph: fx.Graph) -> None:
    """Let sums of gradients overwrite the first of them, as autograd does where nobody records."""
    for node in graph.nodes:
        if node.target is not _ATEN.add.Tensor or not isinstance(node.args[1], fx.Node):
            continue
        first = node.args[0]
        if first.op == "call_function" and not _is_view(first) and len(first.users) == 1:
            node.target = _ATEN.add_.Tensor


def _function(graph: fx.Graph) -> Callable[..., Any]:
    """Return a graph as a function: a line for each call, which frees what is read no more."""
    code = graph.python_code("")
    # Operators by names of their own: looking them up takes longer than a short call's share.
    names = {name: name.replace(".", "_") for name in re.findall(r"torch\.ops\.[\w.]+", code.src)}
    source = re.sub(r"torch\.ops\.[\w.]+", lambda match: names[match.group()], code.src)
    known: dict[str, Any] = {**code.globals, "torch": torch, "__name__": __name__}
    known |= {short: operator.attrgetter(name[6:])(torch) for name, short in names.items()}
    exec(compile(re.sub(r"\(self,? ?", "(", source), "<calls of ATen>", "exec"), known)  # noqa: S102 - fx wrote it
    function: Callable[..., Any] = known["forward"]
    return function
