"""What a subgraph of a model is called, whatever model it is from, and the subgraph of such a name.

Frameworks that run several nodes of a graph as one have no calls to be recorded; there an operator
is a subgraph of ours. Its signature is canonical JSON of all that changes its time: the nodes'
layers, what they read and which of that has a gradient, and how the step runs them. From it a model
can be built that has these nodes and nothing else to be run: what they read comes from stubs, nodes
that hold a shape and are never executed.
"""

from __future__ import annotations

import dataclasses
import json
from typing import TYPE_CHECKING, Any, Final, Literal, TypeAlias

import msgspec

from pydlbench.models.graph import INPUT, Decay, Loss, Model, Node, Optimizer, trained_tensors
from pydlbench.ops.table import read_layer
from pydlbench.records.record import Record

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from pydlbench.records.step import StepSpec

OperatorKind: TypeAlias = Literal["layer", "pointwise", "gradient sum", "loss", "optimizer", "feed"]

# PyTorch's gradients that come back through these lie in memory in another way than others.
_MARKED: Final = ("concat", "flatten")
# Most gradients that come back through a pooling are zero, and TensorFlow's gradient of a local
#: response normalisation passes over these.
_SPARSE: Final = ("pool",)


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class OperatorRequest:
    """An operator of a step: nodes of a graph that the framework runs as one, or none of them.

    Attributes:
        name: unique.
        kind: ``layer`` (a convolution, product or pooling is in it), ``pointwise``, ``gradient
            sum``, ``loss``, ``optimizer`` or ``feed`` (images and labels come from the host).
        nodes: of the graph, in its order; of a gradient sum the node whose output was read more
            than once; none of the others.
        differentiated: nodes that it reads and that have a gradient.
        outputs: nodes whose values others read.
    """

    name: str
    kind: OperatorKind
    nodes: tuple[str, ...] = ()
    differentiated: tuple[str, ...] = ()
    outputs: tuple[str, ...] = ()

    @property
    def is_subgraph(self) -> bool:
        """Whether it is nodes of the graph, run forwards and backwards."""
        return self.kind in ("layer", "pointwise")


class Subgraph(Record, frozen=True, kw_only=True):
    """An operator of a step without names: what a signature says.

    Values are counted: first what comes in from outside, then the nodes in their order.

    Attributes:
        kind: see :class:`OperatorRequest`.
        phase: of the step: ``forward`` or ``forward-backward``; ``training`` where that matters.
        batch: images per step.
        layout: of images: ``nhwc`` or ``nchw``.
        cast: below float32: ``mixed`` or ``whole``.
        dropout: whether it drops anything outside the forward phase.
        running_statistics: normalise with the running statistics in every phase.
        reads: for one image, the shapes of what comes in.
        differentiated: numbers of those that have a gradient.
        nodes: op, layer, shape, bias, scale and the numbers of the inputs of each.
        outputs: numbers of the nodes whose values others read.
        marks: for each output, which of its readers give it another gradient than usual; empty
            where none does.
        image: of ``feed``: the shape of an image; else it is not looked at.
        loss: of ``loss`` and ``feed``: kind of loss.
        classes: of the labels.
        decays: L2 terms: number of the node, tensor, factor.
        optimizer: of ``optimizer``: its kind.
    """

    kind: OperatorKind
    phase: str
    batch: int
    layout: str = "nhwc"
    cast: str = "mixed"
    dropout: bool = True
    running_statistics: bool = False
    reads: tuple[tuple[int, ...], ...] = ()
    differentiated: tuple[int, ...] = ()
    nodes: tuple[dict[str, Any], ...] = ()
    outputs: tuple[int, ...] = ()
    marks: tuple[tuple[str, ...], ...] = ()
    image: tuple[int, int, int] = (1, 1, 1)
    loss: str = "sum"
    classes: int = 0
    decays: tuple[tuple[int, str, float], ...] = ()
    optimizer: str = "none"

    @property
    def text(self) -> str:
        """The signature: its JSON without what is as usual, names in alphabetical order."""
        usual = {one.name: one.default for one in msgspec.structs.fields(self) if not one.required}
        given = {
            name: value
            for name, value in msgspec.to_builtins(self).items()
            if name not in usual or getattr(self, name) != usual[name]
        }
        return json.dumps(given, sort_keys=True, separators=(",", ":"))


# -----------------------------------------------------------------------------
# From an operator of a model's step to its signature.


def signature_of(
    model: Model, case: StepSpec, found: OperatorRequest, wanted: frozenset[str] = frozenset()
) -> Subgraph:
    """Return what of an operator changes its time.

    Args:
        model: that it is from.
        case: how the step runs.
        found: the operator.
        wanted: nodes that have a gradient.
    """
    phase = "forward-backward" if case.backward else "forward"
    how: dict[str, Any] = {
        "kind": found.kind,
        "phase": phase,
        "batch": model.batch,
        "layout": case.layout,
    }
    if case.precision != "fp32":
        how["cast"] = case.cast
    if found.is_subgraph:
        how |= {"dropout": case.dropout, "running_statistics": case.running_statistics}
        marked: tuple[str, ...] = _MARKED if case.framework == "torch" else ()
        if case.framework == "tensorflow" and any(model[one].op == "lrn" for one in found.nodes):
            marked = _SPARSE
        return Subgraph(
            **how, **_nodes(model, found, wanted, frozenset(marked if case.backward else ()))
        )
    if found.kind == "gradient sum":
        shape = model[found.nodes[0]].shape if found.nodes else model.image
        return Subgraph(**how, reads=(shape,))
    if found.kind == "feed":
        loss = model.loss.kind
        return Subgraph(
            **how, image=model.image, reads=(model.output.shape,), loss=loss, classes=model.classes
        )
    if found.kind == "loss":
        decays = model.decays if case.phase == "training" else ()
        owners = list(dict.fromkeys(one.node for one in decays))
        return Subgraph(
            **how | {"phase": case.phase},
            **_weights(model, owners, before=(model.output.shape,)),
            loss=model.loss.kind,
            classes=model.classes,
            decays=tuple(
                (1 + len(owners) + owners.index(one.node), one.tensor, one.factor) for one in decays
            ),
        )
    owners = [node.name for node in model if trained_tensors(node)]
    own = _weights(model, owners, before=())
    return Subgraph(**how | {"phase": case.phase}, **own, optimizer=model.optimizer.kind)


def operator_of(model: Model, found: OperatorRequest) -> str:
    """Return the name of an operator in words that no model has chosen: ``conv+relu``."""
    if not found.is_subgraph:
        return found.kind
    ops = [model[name].op for name in found.nodes]
    return "+".join(ops) if len(ops) < 5 else f"{ops[0]}+{len(ops) - 1} more"


def _nodes(
    model: Model, found: OperatorRequest, wanted: frozenset[str], marked: frozenset[str]
) -> dict[str, Any]:
    inside = set(found.nodes)
    outside = list(
        dict.fromkeys(
            one for name in found.nodes for one in model[name].inputs if one not in inside
        )
    )
    number = {name: place for place, name in enumerate((*outside, *found.nodes))}
    readers = model.readers()
    marks = tuple(_marks(model, readers[name], inside, marked) for name in found.outputs)
    return {
        "reads": tuple(_shape(model, name) for name in outside),
        "differentiated": tuple(number[name] for name in outside if name in wanted),
        "nodes": tuple(_of_node(model[name], number) for name in found.nodes),
        "outputs": tuple(number[name] for name in found.outputs),
        "marks": marks if any(marks) else (),
    }


def _marks(
    model: Model, readers: Sequence[str], inside: set[str], marked: frozenset[str]
) -> tuple[str, ...]:
    ops = {model[one].op for one in readers if one and one not in inside}
    return tuple(sorted(ops & marked))


def _weights(
    model: Model, owners: Sequence[str], before: tuple[tuple[int, ...], ...]
) -> dict[str, Any]:
    """Return nodes for the sake of their weights, each with a stub in front of it."""
    inputs = [_shape(model, model[name].inputs[0]) for name in owners]
    first = len(before)
    places = {name: first + place for place, name in enumerate(owners)}
    nodes = tuple(_of_node(model[name], {model[name].inputs[0]: places[name]}) for name in owners)
    return {"reads": (*before, *inputs), "nodes": nodes}


def _of_node(node: Node, number: Mapping[str, int]) -> dict[str, Any]:
    layer = None
    if node.layer is not None:
        layer = node.layer.to_dict()
        del layer["name"]
    return {
        "op": node.op,
        "layer": layer,
        "shape": list(node.shape),
        "bias": node.bias,
        "scale": node.scale,
        "inputs": [number[name] for name in node.inputs],
    }


def _shape(model: Model, name: str) -> tuple[int, ...]:
    return model.image if name == INPUT else model[name].shape


# -----------------------------------------------------------------------------
# From a signature to a model that holds the operator.


def step_of(found: Subgraph, case: StepSpec) -> StepSpec:
    """Return a case with all that a signature says of how its step runs.

    Args:
        found: of :func:`read_signature`.
        case: for the rest.
    """
    return msgspec.structs.replace(
        case,
        phase=found.phase,
        layout=found.layout,
        cast=found.cast,
        dropout=found.dropout,
        running_statistics=found.running_statistics,
    )


def read_signature(text: str) -> tuple[Subgraph, Model, OperatorRequest]:
    """Return what a signature says, a model that has the operator, and what to ask of it.

    Args:
        text: of :attr:`Subgraph.text`.

    Raises:
        ValueError: it is none.
    """
    found = Subgraph.from_dict(json.loads(text))
    first = len(found.reads)
    names = [f"x{place}" for place in range(first)]
    names += [f"n{place}" for place in range(first, first + len(found.nodes))]
    nodes = [_stub(name, shape) for name, shape in zip(names, found.reads, strict=False)]
    nodes += [_node(names[first + at], one, names) for at, one in enumerate(found.nodes)]
    if found.kind in ("loss", "feed"):  # the first of what comes in is the network's output
        nodes.append(_stub("output", found.reads[0]))
    loss: Any = found.loss  # a word that the writer took from a model's
    model = Model(
        name="signature",
        title="",
        source="",
        batch=found.batch,
        image=found.image,
        classes=found.classes,
        nodes=tuple(nodes),
        loss=Loss(kind=loss),
        decays=tuple(
            Decay(
                node=names[place], tensor="bias" if tensor == "bias" else "weights", factor=factor
            )
            for place, tensor, factor in found.decays
        ),
        optimizer=Optimizer(kind=_optimizer(found)),
    )
    own: tuple[str, ...] = ()
    if found.kind in ("layer", "pointwise"):
        own = tuple(names[first:])
    elif found.kind == "gradient sum":
        own = ("x0",)
    request = OperatorRequest(
        name=text,
        kind=found.kind,
        nodes=own,
        differentiated=tuple(names[one] for one in found.differentiated),
        outputs=tuple(names[one] for one in found.outputs),
    )
    return found, model, request


def _optimizer(found: Subgraph) -> Any:
    # A loss of a training step asks for some optimizer; which one does not change it.
    needs = found.phase == "training" and found.optimizer == "none"
    return "sgd" if needs else found.optimizer


def _stub(name: str, shape: tuple[int, ...]) -> Node:
    """Return a node that is never run: one that turns maps into features has no weights."""
    return Node(name=name, op="flatten", inputs=(INPUT,), shape=shape)


def _node(name: str, one: Mapping[str, Any], names: Sequence[str]) -> Node:
    layer = None
    if one["layer"] is not None:
        layer = read_layer(one["layer"])
    return Node(
        name=name,
        op=one["op"],
        inputs=tuple(names[place] for place in one["inputs"]),
        shape=tuple(one["shape"]),
        layer=layer,
        bias=one["bias"],
        scale=one["scale"],
    )


def _plain(value: Any) -> Any:
    return tuple(value) if isinstance(value, list) else value
