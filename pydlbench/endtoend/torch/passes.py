"""Backward passes of one kind only in PyTorch: data gradients, or weight gradients, of all nodes.

Each node has a small autograd graph of its own, from detached inputs to its output, which is kept:
asked for the inputs' gradient PyTorch computes nothing of the weights', and the other way round.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch
from torch import fx

from pydlbench.endtoend.torch.net import Net

if TYPE_CHECKING:
    import contextlib

    from pydlbench.models.graph import Node

__all__ = ["Passes", "SeparateNet"]


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
