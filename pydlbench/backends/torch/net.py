"""A model's graph as a module of PyTorch: straight-line code as its users write it.

``torch.fx`` turns the graph into a ``forward`` of one line per node, which drops each
activation after its last reader, as code written by hand does by using a name again. ReLU, ReLU6,
hardswish and addition work in place where nobody else reads their input, as in torchvision's
models. What is called for a node's layer is said where it is also timed alone, in
:mod:`pydlbench.backends.torch.layers`.
"""

from __future__ import annotations

import contextlib
from typing import TYPE_CHECKING, Any

import torch
import torch.nn.functional as F  # noqa: N812 - PyTorch calls it so itself
from torch import fx, nn

from pydlbench.backends.steps.inputs import weight_shapes
from pydlbench.backends.torch.layers import in_network, overwritable
from pydlbench.backends.torch.operator import NodeSite
from pydlbench.models.graph import INPUT, cropped

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from numpy.typing import NDArray

    from pydlbench.backends.torch.recording import Naming, Recorder
    from pydlbench.models.graph import Model, Node

# Our roles by PyTorch's names.
_ROLES = {
    "weights": "weight",
    "bias": "bias",
    "running_mean": "running_mean",
    "running_variance": "running_var",
}


class Net:
    """A model as a module, its nodes known by name.

    Args:
        model: the graph.
        overwriting: whether nodes may work in place; if not, each output is there until the next
            step.
    """

    def __init__(self, model: Model, *, overwriting: bool = True) -> None:
        self.model = model
        self._overwriting = overwriting
        self._modules: dict[str, nn.Module] = {}
        self._paths: dict[str, str] = {}
        self._graph = fx.Graph()
        self._readers = model.readers()
        #: The node of ours by the name of each node of fx that holds its output.
        self.outputs: dict[str, str] = {}
        values: dict[str, fx.Node] = {INPUT: self._graph.placeholder("images")}
        for node in model:
            values[node.name] = self._add(node, tuple(values[name] for name in node.inputs))
            self.outputs[values[node.name].name] = node.name
        self._graph.output(values[model.output.name])
        self.module = fx.GraphModule(self._modules, self._graph, class_name="Net")

    def tensors(self) -> dict[str, torch.Tensor]:
        """Return parameters and running statistics by ``<node>/<role>``."""
        found = {}
        for node in self.model:
            for role in weight_shapes(node):
                module = self.module.get_submodule(self._paths[node.name])
                found[f"{node.name}/{role}"] = getattr(module, _ROLES[role])
        return found

    def load(self, weights: Mapping[str, NDArray[Any]]) -> None:
        """Take over weights by name; products' are stored transposed."""
        with torch.no_grad():
            for name, tensor in self.tensors().items():
                array = weights[name]
                tensor.copy_(torch.from_numpy(array.T if array.ndim == 2 else array))

    def plain(self, name: str, tensor: torch.Tensor) -> NDArray[Any]:
        """Return a tensor's (or its gradient's) values as they are by name, in float32."""
        array: NDArray[Any] = tensor.detach().to("cpu", torch.float32).contiguous().numpy()
        return array.T if array.ndim == 2 and name.endswith("/weights") else array

    def _add(self, node: Node, inputs: tuple[fx.Node, ...]) -> fx.Node:
        """Add what is called for a node, and return what stands for its output."""
        if node.layer is None:
            return self._moved(node, inputs[0])
        call = in_network(node.layer, NodeSite(node, inputs, self._may_overwrite(node)))
        if not isinstance(call.target, nn.Module):
            return self._graph.call_function(call.target, call.arguments)
        # Names of modules have neither slashes nor dots, and may not begin with a digit.
        path = f"n{len(self._paths)}_" + "".join(c if c.isalnum() else "_" for c in node.name)
        self._paths[node.name] = path
        self._modules[path] = call.target
        return self._graph.call_module(path, call.arguments)

    def _moved(self, node: Node, image: fx.Node) -> fx.Node:
        """Add a node without a layer, which computes nothing."""
        if node.op == "flatten":
            return self._graph.call_function(torch.flatten, (image, 1))
        assert node.op in ("shift", "crop"), node.op
        dropped = (1, -1, 1, -1) if node.op == "shift" else cropped(self.model, node)
        return self._pad(image, tuple(-side for side in dropped), 0.0)

    def _may_overwrite(self, node: Node) -> bool:
        """Whether a node may overwrite its first input, which nobody else reads, nor a gradient."""
        first = node.inputs[0]
        if not self._overwriting or first == INPUT or len(self._readers[first]) > 1:
            return False
        layer = self.model[first].layer
        return layer is not None and overwritable(layer)

    def _pad(self, image: fx.Node, sides: tuple[int, ...], value: float) -> fx.Node:
        return self._graph.call_function(F.pad, (image, sides, "constant", value))


# -----------------------------------------------------------------------------
# What calls of a network are named after.


def by_node(net: Net) -> Naming:
    """Name calls after nodes of ours: the network is run node by node meanwhile."""

    @contextlib.contextmanager
    def naming(recorder: Recorder) -> Iterator[None]:
        following = _Following(net, recorder)
        plain = net.module.forward
        net.module.forward = following.run
        try:
            yield
        finally:
            net.module.forward = plain

    return naming


class _Following(fx.Interpreter):  # type: ignore[misc]  # an unknown class to mypy
    """Runs a network as its module does, and tells a recorder which node of ours it is at.

    Args:
        net: the network.
        recorder: that is told.
    """

    def __init__(self, net: Net, recorder: Recorder) -> None:
        super().__init__(net.module)
        self._recorder = recorder
        # Paddings belong to what follows them.
        self._names: dict[fx.Node, str] = {}
        waiting: list[fx.Node] = []
        for node in net.module.graph.nodes:
            waiting.append(node)
            if node.name in net.outputs:
                self._names |= dict.fromkeys(waiting, net.outputs[node.name])
                waiting.clear()

    def run_node(self, n: fx.Node) -> Any:
        """Run a node under its name; behind the last one comes the loss."""
        last = n.op == "output"
        if last:
            self._recorder.at("loss", "loss")
        else:
            self._recorder.at(self._names.get(n, ""), "forward")
        return super().run_node(n)
