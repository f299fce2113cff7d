"""A step as a list of native kernels, each with the names of the tensors that it works on.

A :class:`Listing` is made from a recorded step (``backends.torch.links``), or here from the graph
of a catalogue model. The kernels of a graph are those of
:func:`pydlbench.models.passes.step_passes`, in the same order, so that the native sum and
native chain have the same list. A node's output is named after the node, the gradient of a weight
``<node>/weights/gradient``, and so on. Nodes that move nothing (``flatten``, dropout in inference)
and gradients that equal the incoming gradient (those of an addition) have no kernel and no tensor:
they are further names of an existing tensor.
"""

from __future__ import annotations

import json
import math
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, Final, Self

import numpy as np

from pydlbench.backends.steps.inputs import make_batch, make_weights, trained, weight_shapes
from pydlbench.errors import UnsupportedError
from pydlbench.models.graph import INPUT, trained_tensors
from pydlbench.models.passes import LOSS, StepPass, step_passes
from pydlbench.ops.table import read_layer

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping
    from pathlib import Path

    from numpy.typing import NDArray

    from pydlbench.models.graph import Model, Node
    from pydlbench.ops.op import Layer
    from pydlbench.records.step import StepSpec

#: The tensor of labels.
LABELS: Final = "labels"
_ONES: Final = "ones"
_TEXT: Final = "listing.json"


@dataclass(frozen=True, slots=True, kw_only=True)
class Link:
    """A kernel of a step.

    Attributes:
        name: for people: ``conv1/bias backward-weights``.
        work: what is computed.
        reads: names of tensors by role; more than the kernel asks for may stand here.
        writes: names of what is written, by role; of what is updated too.
        workspace: what a forward kernel may leave for the backward one that has the same text
            here; empty where it leaves nothing.
    """

    name: str
    work: StepPass
    reads: dict[str, str]
    writes: dict[str, str]
    workspace: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Listing:
    """The kernels of a step.

    Attributes:
        links: in the order of execution.
        output: the tensor that the step returns.
        output_shape: of it, as the framework has it: images are NCHW.
        given: all tensors that no kernel makes, by name; what is read in another order than it was
            given stands here once more, dense in that order.
        gradients: by trained tensor (``conv1/weights``), the tensor of its gradient; empty in a
            forward phase.
        rate: the learning rate with which trained tensors are updated; None where they are not.
    """

    links: tuple[Link, ...]
    output: str
    output_shape: tuple[int, ...]
    given: Mapping[str, NDArray[np.float32]]
    gradients: dict[str, str]
    rate: float | None = None

    def save(self, folder: Path) -> None:
        """Write it down for another process: a text, and numbered files of what is given.

        Args:
            folder: that there is; nothing else is in it.
        """
        links = [
            {
                "name": one.name,
                "node": one.work.node,
                "layer": one.work.layer.to_dict(),
                "pass_": one.work.pass_,
                "propagation": one.work.propagation,
                "reads": one.reads,
                "writes": one.writes,
                "workspace": one.workspace,
            }
            for one in self.links
        ]
        for number, values in enumerate(self.given.values()):
            np.save(folder / f"{number}.npy", values)
        text = {
            "links": links,
            "output": self.output,
            "output_shape": self.output_shape,
            "given": list(self.given),
            "gradients": self.gradients,
            "rate": self.rate,
        }
        (folder / _TEXT).write_text(json.dumps(text))

    @classmethod
    def load(cls, folder: Path) -> Self:
        """Read what :meth:`save` has written."""
        text = json.loads((folder / _TEXT).read_text())
        names = text.pop("given")
        return cls(
            links=tuple(_read_link(one) for one in text.pop("links")),
            output_shape=tuple(text.pop("output_shape")),
            given={name: np.load(folder / f"{number}.npy") for number, name in enumerate(names)},
            **text,
        )


def _read_link(text: dict[str, Any]) -> Link:
    layer = read_layer(text.pop("layer"))
    own = {name: text.pop(name) for name in ("node", "pass_", "propagation")}
    return Link(work=StepPass(layer=layer, **own), **text)


def problem_text(layer: Layer, pass_: str, propagation: str) -> str:
    """Return a text that kernels of the same problem share, whatever their layers are called.

    Args:
        layer: what is computed.
        pass_: ``forward``, ``backward-data`` or ``backward-weights``.
        propagation: ``inference`` or ``training``, which only a forward pass knows.
    """
    which = f"{pass_} {propagation}" if pass_ == "forward" else pass_
    return f"{layer.kind} {layer.problem} {which}"


def list_step(model: Model, phase: str, *, dropout: bool = True, seed: int = 0) -> Listing:
    """Return a step's kernels with their tensors, and values of those that are given.

    Args:
        model: with its batch.
        phase: ``forward``, ``forward-backward`` or ``training``.
        dropout: whether it drops anything outside the forward phase; without, it keeps all.
        seed: of weights, images and labels.

    Raises:
        UsageError: no such phase.
        UnsupportedError: the model has an operation of which there is no native kernel.
    """
    check_listed(model, phase)
    return _Lister(model, dropout=dropout).listing(phase, seed)


def check_chained(case: StepSpec) -> None:
    """Refuse steps that have no native chain, whatever they compute.

    Raises:
        UnsupportedError: another precision than float32, or normalisations that train with the
            running statistics.
    """
    if case.precision != "fp32":
        raise UnsupportedError(f"native chains are in fp32 so far, not in {case.precision}")
    if case.running_statistics and case.backward:
        raise UnsupportedError("native kernels train normalisations with the batch's statistics")


def check_listed(model: Model, phase: str) -> None:
    """Refuse a step of whose graph there is no list.

    Raises:
        UnsupportedError: the model has an operation of which there is no native kernel.
    """
    for node in model:
        if node.layer is None and node.op != "flatten":
            raise UnsupportedError(
                f"{model.name}/{node.name}: there is no native kernel of {node.op}, so there is "
                "no native chain"
            )
    maps = math.prod(model.output.shape[1:]) > 1
    if phase != "forward" and model.loss.kind == "cross-entropy" and maps:
        raise UnsupportedError(
            f"{model.name}/{LOSS}: there is no native kernel of a cross entropy over maps, so "
            "there is no native chain"
        )


class _Lister:
    """Goes through a step's work once, in its order."""

    def __init__(self, model: Model, *, dropout: bool) -> None:
        self._model = model
        self._dropout = dropout
        self._links: list[Link] = []
        self._constants: dict[str, tuple[tuple[int, ...], float]] = {}
        # The tensor of each node's output.
        self._values = {INPUT: INPUT}
        # Gradients of a node's output by who sent them: a node, and which of its inputs it is.
        self._sent: dict[tuple[str, int], str] = {}
        # The same by node, summed up as far as the list has come.
        self._summed: dict[str, list[str]] = {}

    def listing(self, phase: str, seed: int) -> Listing:
        """Return all kernels of a phase."""
        for item in step_passes(self._model, phase):
            self._add(item)
        backward = phase != "forward"
        gradients = {name: f"{name}/gradient" for name in trained(self._model) if backward}
        return Listing(
            links=tuple(self._links),
            output=self._value(self._model.output.name),
            output_shape=(self._model.batch, *self._model.output.shape),
            given=self._given(seed),
            gradients=gradients,
            rate=self._model.optimizer.rate if phase == "training" else None,
        )

    def _given(self, seed: int) -> dict[str, NDArray[np.float32]]:
        """Return all tensors that no kernel makes."""
        batch = make_batch(self._model, seed)
        found = {INPUT: batch.images, **make_weights(self._model, seed)}
        if batch.labels is not None:
            # The native module stores them as integers.
            found[LABELS] = batch.labels.reshape(-1).astype(np.float32)
        for name, (shape, value) in self._constants.items():
            found[name] = np.full(shape, value, np.float32)
        return found

    def _add(self, item: StepPass) -> None:
        """Add a kernel: of the loss, of a node, or of what belongs to a node besides."""
        if item.node == LOSS:
            self._add_loss(item)
            return
        part = (item.layer.name or "").rpartition("/")[2]
        if item.node != INPUT and item.layer is self._model[item.node].layer:
            forward = item.pass_ == "forward"
            (self._add_forward if forward else self._add_backward)(item, self._model[item.node])
        elif part == "bias":
            self._add_bias(item)
        elif part == "gradient-sum":
            self._add_sum(item)
        else:
            self._add_of_weights(item)

    def _add_forward(self, item: StepPass, node: Node) -> None:
        inputs = self._by_source(node, self._value)
        reads, writes = self._own(node, item), {"dst": node.name}
        if node.op == "batchnorm":
            if not node.scale:
                self._constants[f"{node.name}/weights"] = (node.shape[:1], 1.0)
            if item.propagation == "training":
                roles = ("mean", "variance", "running_mean", "running_variance")
                writes |= {role: f"{node.name}/{role}" for role in roles}
        self._values[node.name] = node.name
        self._link(item, node.name, reads | inputs, writes, node)

    def _add_backward(self, item: StepPass, node: Node) -> None:
        reads = self._own(node, item) | self._by_source(node, self._value)
        reads["dst"] = self._gradient(node.name)
        if item.pass_ == "backward-weights":
            writes = {"weights": f"{node.name}/weights/gradient"}
            self._link(item, node.name, reads, writes, node)
            return
        writes = {}
        for number, role in enumerate(_sources(node)):
            writes[role] = f"{node.name}/{role}/gradient"
            self._sent[node.name, number] = writes[role]
        if node.op == "batchnorm":
            writes |= {role: f"{node.name}/{role}/gradient" for role in ("weights", "bias")}
        self._link(item, node.name, reads, writes, node)

    def _add_bias(self, item: StepPass) -> None:
        name = item.node
        bias = f"{name}/bias"
        if item.pass_ == "forward":
            without, self._values[name] = self._values[name], f"{name}/biased"
            reads, writes = {"src": without, "bias": bias}, {"dst": self._values[name]}
        else:
            reads, writes = {"dst": self._gradient(name)}, {"bias": f"{bias}/gradient"}
        self._link(item, bias, reads, writes)

    def _add_sum(self, item: StepPass) -> None:
        """Add the first two gradients of an output that have not been added up yet."""
        found = self._gradients(item.node)
        left = len(found)
        total = f"{item.node}/gradient-sum{left}"
        reads = {"src": found[0], "src2": found[1]}
        self._link(item, f"{item.node}/gradient-sum", reads, {"dst": total})
        self._summed[item.node] = [total, *found[2:]]

    def _add_loss(self, item: StepPass) -> None:
        output = self._value(self._model.output.name)
        if self._model.loss.kind == "l2":
            self._link(item, LOSS, {"weights": output}, {"dst": LOSS})
        elif item.pass_ == "forward":
            reads = {"src": output, "labels": LABELS}
            self._link(item, LOSS, reads, {"dst": "probabilities", "loss": LOSS})
        else:
            reads = {"dst": "probabilities", "labels": LABELS}
            self._link(item, LOSS, reads, {"src": f"{LOSS}/gradient"})

    def _add_of_weights(self, item: StepPass) -> None:
        """Add an L2 term, its gradient, or an update."""
        _, _, path = (item.layer.name or "").partition("/")
        tensor, _, part = path.rpartition("/")
        names = {role: f"{tensor}/{role}" for role in ("gradient", "velocity")}
        names["weights"] = tensor
        if part == "l2":
            forward = item.pass_ == "forward"
            writes = {"dst": f"{tensor}/l2"} if forward else {"gradient": names["gradient"]}
            self._link(item, f"{tensor}/l2", names, writes)
            return
        writes = {"weights": tensor}
        if self._model.optimizer.kind == "momentum":
            node, _, role = tensor.rpartition("/")
            writes["velocity"] = names["velocity"]
            self._constants[names["velocity"]] = (trained_tensors(self._model[node])[role], 0.0)
        self._link(item, f"{tensor}/update", names, writes)

    def _link(
        self,
        item: StepPass,
        name: str,
        reads: dict[str, str],
        writes: dict[str, str],
        node: Node | None = None,
    ) -> None:
        if node is not None and node.op == "dropout" and not self._dropout:
            assert item.layer.kind == "pointwise"
            item = replace(item, layer=item.layer.replace(keep=1.0))
        leaves = item.propagation == "training" and node is not None and node.op in _LEAVING
        self._links.append(
            Link(
                name=f"{name} {item.pass_}",
                work=item,
                reads=reads,
                writes=writes,
                workspace=f"{name}/workspace" if leaves else "",
            )
        )

    def _own(self, node: Node, item: StepPass) -> dict[str, str]:
        """Return the tensors that a node holds, by role."""
        found = {role: f"{node.name}/{role}" for role in weight_shapes(node)}
        if node.op == "batchnorm":
            found.setdefault("weights", f"{node.name}/weights")
            kept = "running_" if item.propagation == "inference" else ""
            found |= {role: f"{node.name}/{kept}{role}" for role in ("mean", "variance")}
        return found

    def _by_source(self, node: Node, of: Callable[[str], str]) -> dict[str, str]:
        return {role: of(one) for role, one in zip(_sources(node), node.inputs, strict=True)}

    def _value(self, name: str) -> str:
        """Return the tensor of a node's output; of one without a kernel that of its input."""
        if name not in self._values:
            self._values[name] = self._value(self._model[name].inputs[0])
        return self._values[name]

    def _gradient(self, name: str) -> str:
        """Return the tensor of the gradient of a node's output, all sums being made."""
        (found,) = self._gradients(name)
        return found

    def _gradients(self, name: str) -> list[str]:
        """Return what arrives at a node's output, in the order of the readers."""
        if name not in self._summed:
            found = [
                self._sent_by(reader, number)
                for reader in self._model
                for number, one in enumerate(reader.inputs)
                if one == name
            ]
            self._summed[name] = found or [self._of_output()]
        return self._summed[name]

    def _sent_by(self, reader: Node, number: int) -> str:
        """Return what a node sends back; where it has no kernel, that is what it has received."""
        sent = self._sent.get((reader.name, number))
        return self._gradient(reader.name) if sent is None else sent

    def _of_output(self) -> str:
        """Return the gradient of the last node's output."""
        kind = self._model.loss.kind
        if kind == "cross-entropy":
            return f"{LOSS}/gradient"
        if kind == "l2":
            return self._value(self._model.output.name)
        self._constants[_ONES] = ((self._model.batch, *self._model.output.shape), 1.0)
        return _ONES


#: What may leave something for its gradient: which element was the largest, intermediate sums.
_LEAVING: Final = ("pool", "lrn")


def _sources(node: Node) -> list[str]:
    """Return the roles of a node's inputs."""
    return ["src", *(f"src{number}" for number in range(2, len(node.inputs) + 1))]
