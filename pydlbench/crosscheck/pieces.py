"""Which parts a step has in a framework and mode: each distinct one once, with its number."""

from __future__ import annotations

import dataclasses
from typing import TYPE_CHECKING, Any, Final

from pydlbench.crosscheck.groups import LAYERS, groups, readers_of
from pydlbench.models.graph import INPUT
from pydlbench.models.tensors import trained_tensors

if TYPE_CHECKING:
    from collections.abc import Sequence

    from pydlbench.models.graph import Model, Node

__all__ = ["Piece", "pieces", "singles", "with_gradient"]

# Gradients that come back through these have other strides than others.
_MARKED: Final = ("flatten", "concat", "shift")
# Most gradients that come back through a pooling are zero, and TensorFlow's gradient of a local
# response normalisation passes over these.
_SPARSE: Final = ("pool",)


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Piece:
    """A part of a step.

    Attributes:
        name: of its first occurrence; unique.
        kind: ``layer`` (a convolution, product or pooling is in it), ``pointwise``, ``gradient
            sum``, ``loss``, ``optimizer`` or ``feed`` (images and labels come from the host).
        nodes: of its first occurrence, in the order of the graph; of a gradient sum the node whose
            output was read more than once; none of the others.
        count: how often it is in the step.
        occurrences: the nodes of each; one, empty, where there are none.
        differentiated: of the first occurrence, what it reads that has a gradient.
        outputs: of the first occurrence, the nodes whose values others read.
    """

    name: str
    kind: str
    nodes: tuple[str, ...] = ()
    count: int = 1
    occurrences: tuple[tuple[str, ...], ...] = ((),)
    differentiated: tuple[str, ...] = ()
    outputs: tuple[str, ...] = ()

    def to_dict(self) -> dict[str, Any]:
        """Return what a worker has to know of it."""
        return {
            "name": self.name,
            "kind": self.kind,
            "nodes": list(self.nodes),
            "count": self.count,
            "differentiated": list(self.differentiated),
            "outputs": list(self.outputs),
        }


def pieces(
    model: Model, phase: str, framework: str, mode: str, feed: str = "resident"
) -> tuple[Piece, ...]:
    """Return the distinct parts of a step, in the order in which they first occur.

    Args:
        model: the graph.
        phase: ``forward``, ``forward-backward`` or ``training``.
        framework: ``torch`` or ``tensorflow``.
        mode: one of the framework's.
        feed: ``resident`` or ``host``.
    """
    backward = phase != "forward"
    wanted = with_gradient(model) if backward else frozenset()
    together = groups(model, phase, framework, mode)
    result = [Piece(name="feed", kind="feed")] if feed == "host" else []
    result += _distinct(model, together, readers_of(model), wanted)
    if backward:
        result += _gradient_sums(model, together, wanted)
        result.append(Piece(name="loss", kind="loss"))
    if phase == "training" and model.optimizer.kind != "none":
        result.append(Piece(name="optimizer", kind="optimizer"))
    return tuple(result)


def singles(model: Model, phase: str, found: Sequence[Piece]) -> tuple[Piece, ...]:
    """Return the nodes of joined parts one by one; none of them is in a prediction.

    Args:
        model: the graph.
        phase: ``forward``, ``forward-backward`` or ``training``.
        found: the parts.
    """
    wanted = with_gradient(model) if phase != "forward" else frozenset()
    joined = [nodes for one in found if len(one.nodes) > 1 for nodes in one.occurrences]
    alone = [(name,) for nodes in joined for name in nodes]
    return tuple(
        dataclasses.replace(one, name=f"{one.name} alone")
        for one in _distinct(model, alone, readers_of(model), wanted)
    )


def with_gradient(model: Model) -> frozenset[str]:
    """Return whose gradients are computed: of what stands behind a trained tensor."""
    found = {INPUT} if model.input_gradient else set()
    for node in model:
        if trained_tensors(node) or not found.isdisjoint(node.inputs):
            found.add(node.name)
    return frozenset(found)


def _distinct(
    model: Model,
    every: Sequence[tuple[str, ...]],
    readers: dict[str, list[str]],
    wanted: frozenset[str],
) -> list[Piece]:
    found: dict[Any, list[tuple[str, ...]]] = {}
    for group in every:
        found.setdefault(_key(model, group, readers, wanted), []).append(group)
    result = []
    for same in found.values():
        first = same[0]
        layer = any(model[name].op in LAYERS for name in first)
        result.append(
            Piece(
                name=first[0] if len(first) == 1 else f"{first[0]}..{first[-1]}",
                kind="layer" if layer else "pointwise",
                nodes=first,
                count=len(same),
                occurrences=tuple(same),
                differentiated=tuple(one for one in _outside(model, first) if one in wanted),
                outputs=_outputs(first, readers),
            )
        )
    return result


def _outside(model: Model, group: Sequence[str]) -> tuple[str, ...]:
    """Return what a group reads that it has not made."""
    inside = set(group)
    read = (name for one in group for name in model[one].inputs if name not in inside)
    return tuple(dict.fromkeys(read))


def _outputs(group: Sequence[str], readers: dict[str, list[str]]) -> tuple[str, ...]:
    inside = set(group)
    return tuple(one for one in group if any(reader not in inside for reader in readers[one]))


def _key(
    model: Model, group: Sequence[str], readers: dict[str, list[str]], wanted: frozenset[str]
) -> Any:
    """Return what two groups have in common that take the same time."""
    outside = _outside(model, group)
    index = {name: number for number, name in enumerate((*outside, *group))}
    inputs = tuple(
        (model.image if name == INPUT else model[name].shape, name in wanted) for name in outside
    )
    outputs = _outputs(group, readers)
    marked = {*_MARKED, *(_SPARSE if any(model[one].op == "lrn" for one in group) else ())}
    marks = tuple(
        tuple(sorted({model[one].op for one in readers[name] if one} & marked)) for name in outputs
    )
    return inputs, marks, tuple(_of_node(model, model[one], index, readers) for one in group)


def _of_node(model: Model, node: Node, index: dict[str, int], readers: dict[str, list[str]]) -> Any:
    layer = None if node.layer is None else dataclasses.replace(node.layer, name=None)
    before = node.inputs[0]
    # Whether it may overwrite what it reads, see the frameworks' builders.
    free = before != INPUT and len(readers[before]) == 1 and model[before].op
    alone = free if node.op in ("relu", "add") else None
    places = tuple(index[name] for name in node.inputs)
    return node.op, layer, node.shape, node.bias, node.scale, places, alone


def _gradient_sums(
    model: Model, together: Sequence[tuple[str, ...]], wanted: frozenset[str]
) -> list[Piece]:
    """Return the sums of gradients that come back to what several groups read.

    Those of readers inside one group, its own included, are summed in its backward pass.
    """
    place = {name: group for group in together for name in group}
    found: dict[tuple[int, ...], list[str]] = {}
    for name, readers in readers_of(model).items():
        outside = {place.get(one) for one in readers} - {place.get(name, ())}
        if name in wanted and len(outside) > 1:
            shape = model.image if name == INPUT else model[name].shape
            found.setdefault(shape, []).extend([name] * (len(outside) - 1))
    return [
        Piece(
            name=f"{names[0]}/gradient-sum",
            kind="gradient sum",
            nodes=() if names[0] == INPUT else (names[0],),
            count=len(names),
            occurrences=tuple((name,) for name in names),
        )
        for names in found.values()
    ]
