"""Which operators a step has in a framework and mode, and from their times to a prediction."""

from __future__ import annotations

import dataclasses
from typing import TYPE_CHECKING, Any, Final

from pydlbench.models.graph import INPUT, trained_tensors
from pydlbench.steps.operations import OperatorRequest
from pydlbench.timing.statistics import median
from pydlbench.workers.environment import FRESH_FROM

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from pydlbench.models.graph import Model, Node
    from pydlbench.steps.operations import OperatorKind

__all__ = [
    "LAYERS",
    "StepOperator",
    "blocks",
    "by_operator",
    "predict",
    "singles",
    "step_operators",
    "subgraphs",
    "with_gradient",
]


# -----------------------------------------------------------------------------
# Which nodes of a model a framework and mode runs as one.
#
# PyTorch's eager mode runs one node after the other. TensorFlow's graphs may join a node with the
# ReLU that follows it, and in inference a convolution with its batch normalisation. A compiler
# joins whatever stands between two layers that libraries compute, so an operator reaches there from
# one convolution, product or pooling to the next.

#: What libraries compute; all other nodes are pointwise.
LAYERS: Final = ("conv", "deconv", "linear", "pool")
_TAKES_RELU: Final = ("conv", "linear", "batchnorm", "add")


def subgraphs(model: Model, phase: str, framework: str, mode: str) -> list[tuple[str, ...]]:
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
    readers = model.readers()
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
            joins = node.op in ("relu", "relu6") and last.op in _TAKES_RELU
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


# -----------------------------------------------------------------------------
# Which operators a step has in a framework and mode: each distinct one once, with its number.

# Gradients that come back through these have other strides than others.
_MARKED: Final = ("flatten", "concat", "shift", "crop")
# Most gradients that come back through a pooling are zero, and TensorFlow's gradient of a local
# response normalisation passes over these.
_SPARSE: Final = ("pool",)


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class StepOperator:
    """An operator of a step.

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
    kind: OperatorKind
    nodes: tuple[str, ...] = ()
    count: int = 1
    occurrences: tuple[tuple[str, ...], ...] = ((),)
    differentiated: tuple[str, ...] = ()
    outputs: tuple[str, ...] = ()

    def request(self) -> OperatorRequest:
        """Return what a worker has to know of it."""
        return OperatorRequest(
            name=self.name,
            kind=self.kind,
            nodes=self.nodes,
            count=self.count,
            differentiated=self.differentiated,
            outputs=self.outputs,
        )


def step_operators(
    model: Model, phase: str, framework: str, mode: str, feed: str = "resident"
) -> tuple[StepOperator, ...]:
    """Return the distinct operators of a step, in the order in which they first occur.

    Args:
        model: the graph.
        phase: ``forward``, ``forward-backward`` or ``training``.
        framework: ``torch`` or ``tensorflow``.
        mode: one of the framework's.
        feed: ``resident`` or ``host``.
    """
    backward = phase != "forward"
    wanted = with_gradient(model) if backward else frozenset()
    together = subgraphs(model, phase, framework, mode)
    result = [StepOperator(name="feed", kind="feed")] if feed == "host" else []
    result += _distinct(model, together, model.readers(), wanted)
    if backward:
        result += _gradient_sums(model, together, wanted)
        result.append(StepOperator(name="loss", kind="loss"))
    if phase == "training" and model.optimizer.kind != "none":
        result.append(StepOperator(name="optimizer", kind="optimizer"))
    return tuple(result)


def singles(model: Model, phase: str, found: Sequence[StepOperator]) -> tuple[StepOperator, ...]:
    """Return the nodes of joined operators one by one; none of them is in a prediction.

    Args:
        model: the graph.
        phase: ``forward``, ``forward-backward`` or ``training``.
        found: the operators.
    """
    wanted = with_gradient(model) if phase != "forward" else frozenset()
    joined = [nodes for one in found if len(one.nodes) > 1 for nodes in one.occurrences]
    alone = [(name,) for nodes in joined for name in nodes]
    return tuple(
        dataclasses.replace(one, name=f"{one.name} alone")
        for one in _distinct(model, alone, model.readers(), wanted)
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
) -> list[StepOperator]:
    found: dict[Any, list[tuple[str, ...]]] = {}
    for group in every:
        found.setdefault(_key(model, group, readers, wanted), []).append(group)
    result = []
    for same in found.values():
        first = same[0]
        layer = any(model[name].op in LAYERS for name in first)
        result.append(
            StepOperator(
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
    alone = free if node.op in ("relu", "relu6", "hardswish", "add") else None
    places = tuple(index[name] for name in node.inputs)
    return node.op, layer, node.shape, node.bias, node.scale, places, alone


def _gradient_sums(
    model: Model, together: Sequence[tuple[str, ...]], wanted: frozenset[str]
) -> list[StepOperator]:
    """Return the sums of gradients that come back to what several groups read.

    Those of readers inside one group, its own included, are summed in its backward pass.
    """
    place = {name: group for group in together for name in group}
    found: dict[tuple[int, ...], list[str]] = {}
    for name, readers in model.readers().items():
        outside = {place.get(one) for one in readers} - {place.get(name, ())}
        if name in wanted and len(outside) > 1:
            shape = model.image if name == INPUT else model[name].shape
            found.setdefault(shape, []).extend([name] * (len(outside) - 1))
    return [
        StepOperator(
            name=f"{names[0]}/gradient-sum",
            kind="gradient sum",
            nodes=() if names[0] == INPUT else (names[0],),
            count=len(names),
            occurrences=tuple((name,) for name in names),
        )
        for names in found.values()
    ]


# -----------------------------------------------------------------------------
# From the times of operators to a step: sums, and nothing of the step itself.


def by_operator(seconds: Sequence[float], found: Sequence[StepOperator]) -> dict[str, float]:
    """Return the seconds of each operator; the median over the rounds.

    Args:
        seconds: of a chunk: all operators of the first round, all of the second and so on.
        found: the operators, in the same order.

    Raises:
        ValueError: the times do not divide into rounds.
    """
    count = len(found)
    if not seconds or len(seconds) % count:
        raise ValueError(f"{len(seconds)} times of {count} operators")
    return {one.name: median(seconds[i::count]) for i, one in enumerate(found)}


def predict(times: Mapping[str, float], found: Sequence[StepOperator], once_s: float) -> float:
    """Return the seconds of a step without page faults: each operator as often as it occurs.

    Args:
        times: by operator.
        found: the operators.
        once_s: of starting a call, which operators have taken off and a step has once.
    """
    return sum(one.count * times[one.name] for one in found) + once_s


# -----------------------------------------------------------------------------
# What a step allocates: the blocks from whose fresh pages the cost of a page fault is taken.
#
# That cost hangs on how large the blocks are (each is asked for and given back in calls of its own)
# and on the threads that touch them, not on who frees a block when: how many pages a step finds
# fresh, which does hang on that, is counted and not replayed.

# The single block where all of a step's own are too small to be given back to the system.
_SMALL: Final = 1 << 20


def blocks(found: Sequence[StepOperator], traces: Mapping[str, Sequence[int]]) -> list[int]:
    """Return the sizes in bytes of blocks that stand for a step's.

    Only such as the allocator gives back when they are freed: others find their pages again.

    Args:
        found: the operators.
        traces: by operator, the sizes of the blocks that it allocates.
    """
    sizes = [
        size
        for one in found
        for _ in range(one.count)
        for size in traces.get(one.name, ())
        if size >= FRESH_FROM
    ]
    return sizes or [_SMALL]
