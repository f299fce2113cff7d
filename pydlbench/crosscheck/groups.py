"""Which nodes of a model a framework and mode runs as one.

PyTorch's eager mode runs one node after the other. TensorFlow's graphs may join a node with the
ReLU that follows it, and in inference a convolution with its batch normalisation. A compiler joins
whatever stands between two layers that libraries compute, so a part reaches there from one
convolution, product or pooling to the next.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from pydlbench.models.graph import INPUT

if TYPE_CHECKING:
    from pydlbench.models.graph import Model

__all__ = ["LAYERS", "groups", "readers_of"]

#: What libraries compute; all other nodes are pointwise.
LAYERS: Final = ("conv", "linear", "pool")
_TAKES_RELU: Final = ("conv", "linear", "batchnorm", "add")


def groups(model: Model, phase: str, framework: str, mode: str) -> list[tuple[str, ...]]:
    """Return the names of all nodes, those together that are run as one, in their order.

    Args:
        model: the graph.
        phase: ``forward``, ``forward-backward`` or ``training``.
        framework: ``torch`` or ``tensorflow``.
        mode: ``eager``, ``compiled``, ``graph`` or ``xla``.
    """
    if mode in ("compiled", "xla"):
        return _between_layers(model)
    return _joined(model, phase) if framework == "tensorflow" else [(one.name,) for one in model]


def _joined(model: Model, phase: str) -> list[tuple[str, ...]]:
    readers = readers_of(model)
    found: list[list[str]] = []
    place: dict[str, list[str]] = {}
    for node in model:
        before = place.get(node.inputs[0])
        last = model[node.inputs[0]] if before is not None else None
        if before is None or last is None or len(readers[last.name]) > 1:
            joins = False
        elif node.op == "batchnorm":
            joins = phase == "forward" and last.op == "conv" and not last.bias
        else:
            joins = node.op == "relu" and last.op in _TAKES_RELU
        if joins and before is not None:
            before.append(node.name)
        else:
            before = [node.name]
            found.append(before)
        place[node.name] = before
    return [tuple(one) for one in found]


def _between_layers(model: Model) -> list[tuple[str, ...]]:
    found: list[list[str]] = []
    for node in model:
        if node.op in LAYERS or not found:
            found.append([])
        found[-1].append(node.name)
    return [tuple(one) for one in found]


def readers_of(model: Model) -> dict[str, list[str]]:
    """Return who reads each value, by name; the loss, which has none, reads the last."""
    found: dict[str, list[str]] = {INPUT: []}
    for node in model:
        found[node.name] = []
        for name in node.inputs:
            found[name].append(node.name)
    found[model.output.name].append("")
    return found
