"""A step as a list of native kernels, each with the names of the tensors that it works on.

The list of the graph of a catalogue model. The kernels are those of
:func:`pydlbench.models.passes.step_passes`, so that native sum and native chain have
the same list. A node's output is named after the node, the gradient of a weight
``<node>/weights/gradient``, and so on. Nodes that move nothing (``flatten``, dropout in inference)
and gradients that equal the incoming gradient (those of an addition) have no kernel and no tensor:
they are further names of an existing tensor.
"""

from __future__ import annotations

import math
from dataclasses import replace
from typing import TYPE_CHECKING, Final

import numpy as np

from pydlbench.backends.native.gradients import Differentiation
from pydlbench.backends.native.listing import LEAVING, UPDATES, Link, Listing
from pydlbench.backends.steps.inputs import make_batch, make_weights, trained, weight_shapes
from pydlbench.errors import UnsupportedError
from pydlbench.models.graph import INPUT, trained_tensors
from pydlbench.models.passes import LOSS, StepPass, step_passes

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from pydlbench.models.graph import Model, Node

#: The tensor of labels.
LABELS: Final = "labels"


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
        self._constants: dict[str, NDArray[np.float32]] = {}
        # The tensor of each node's output.
        self._values = {INPUT: INPUT}
        # The tensor of each trained tensor's gradient.
        self._gradients: dict[str, str] = {}

    def listing(self, phase: str, seed: int) -> Listing:
        """Return all kernels of a phase."""
        items = step_passes(self._model, phase)
        terms = [item for item in items if item.node != LOSS and item.layer.op == "l2"]
        for item in items:
            if item.pass_ == "forward" and item not in terms:
                self._add_forward(item)
        if phase != "forward":
            self._differentiate()
        for item in (*terms, *(item for item in items if item.layer.op in UPDATES)):
            self._add_of_weights(item)
        return Listing(
            links=tuple(self._links),
            output=self._value(self._model.output.name),
            output_shape=(self._model.batch, *self._model.output.shape),
            given=self._given(seed),
            gradients={
                name: self._gradients[name] for name in trained(self._model) if phase != "forward"
            },
            rate=self._model.optimizer.rate if phase == "training" else None,
        )

    def _given(self, seed: int) -> dict[str, NDArray[np.float32]]:
        """Return all tensors that no kernel makes."""
        batch = make_batch(self._model, seed)
        tensors = {INPUT: batch.images, **make_weights(self._model, seed)}
        if batch.labels is not None:
            # The native module stores them as integers.
            tensors[LABELS] = batch.labels.reshape(-1).astype(np.float32)
        return tensors | self._constants

    def _add_forward(self, item: StepPass) -> None:
        """Add a forward kernel: of the loss, of a node, or of its bias."""
        if item.node == LOSS:
            self._add_loss(item)
        elif item.node != INPUT and item.layer is self._model[item.node].layer:
            self._add_node(item, self._model[item.node])
        elif item.layer.op == "bias":
            name = item.node
            without, self._values[name] = self._values[name], f"{name}/biased"
            reads = {"src": without, "bias": f"{name}/bias"}
            self._link(item, f"{name}/bias", reads, {"dst": self._values[name]})

    def _add_node(self, item: StepPass, node: Node) -> None:
        sources = ["src", *(f"src{number}" for number in range(2, len(node.inputs) + 1))]
        reads = self._own(node, item) | dict(
            zip(sources, map(self._value, node.inputs), strict=True)
        )
        writes = {"dst": node.name}
        if node.op == "batchnorm":
            if not node.scale:
                self._constants[f"{node.name}/weights"] = np.ones(node.shape[:1], np.float32)
            if item.propagation == "training":
                roles = ("mean", "variance", "running_mean", "running_variance")
                writes |= {role: f"{node.name}/{role}" for role in roles}
        self._values[node.name] = node.name
        self._link(item, node.name, reads, writes, node)

    def _add_loss(self, item: StepPass) -> None:
        output = self._value(self._model.output.name)
        if self._model.loss.kind == "l2":
            self._link(item, LOSS, {"weights": output}, {"dst": LOSS})
        else:
            reads = {"src": output, "labels": LABELS}
            self._link(item, LOSS, reads, {"dst": "probabilities", "loss": LOSS})

    def _differentiate(self) -> None:
        """Add the kernels of all gradients."""
        wanted = [*trained(self._model), *([INPUT] if self._model.input_gradient else [])]
        gradients = Differentiation(self._links, wanted)
        sums = self._model.loss.kind not in ("cross-entropy", "l2")
        self._gradients = gradients.run(self._value(self._model.output.name) if sums else LOSS)
        self._links += gradients.links
        self._constants |= gradients.constants

    def _add_of_weights(self, item: StepPass) -> None:
        """Add an L2 term, its gradient, or an update."""
        _, _, path = (item.layer.name or "").partition("/")
        tensor, _, part = path.rpartition("/")
        names = {"weights": tensor, "velocity": f"{tensor}/velocity"}
        if tensor in self._gradients:
            names["gradient"] = self._gradients[tensor]
        if part == "l2":
            forward = item.pass_ == "forward"
            writes = {"dst": f"{tensor}/l2"} if forward else {"gradient": names["gradient"]}
            self._link(item, f"{tensor}/l2", names, writes)
            return
        writes = {"weights": tensor}
        if self._model.optimizer.kind == "momentum":
            node, _, role = tensor.rpartition("/")
            writes["velocity"] = names["velocity"]
            shape = trained_tensors(self._model[node])[role]
            self._constants[names["velocity"]] = np.zeros(shape, np.float32)
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
        leaves = item.propagation == "training" and item.layer.op in LEAVING
        self._links.append(
            Link(
                name=f"{name} {item.pass_}",
                step_pass=item,
                reads=reads,
                writes=writes,
                workspace=f"{name}/workspace" if leaves else "",
            )
        )

    def _own(self, node: Node, item: StepPass) -> dict[str, str]:
        """Return the tensors that a node holds, by role."""
        tensors = {role: f"{node.name}/{role}" for role in weight_shapes(node)}
        if node.op == "batchnorm":
            tensors.setdefault("weights", f"{node.name}/weights")
            kept = "running_" if item.propagation == "inference" else ""
            tensors |= {role: f"{node.name}/{kept}{role}" for role in ("mean", "variance")}
        return tensors

    def _value(self, name: str) -> str:
        """Return the tensor of a node's output; of one without a kernel that of its input."""
        if name not in self._values:
            self._values[name] = self._value(self._model[name].inputs[0])
        return self._values[name]
