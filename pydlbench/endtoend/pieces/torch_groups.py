"""Groups of nodes cut out of PyTorch's step, and what they read there."""

from __future__ import annotations

import operator
from typing import TYPE_CHECKING, Any

import torch
from torch import fx, nn

from pydlbench.endtoend.torch import numbers

if TYPE_CHECKING:
    from collections.abc import Sequence

    from pydlbench.endtoend.pieces.torch_parts import StepParts
    from pydlbench.endtoend.torch.net import Net

__all__ = ["Group", "Operands", "copied", "record"]


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
