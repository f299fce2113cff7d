"""Which operators a step has: the calls that a framework records, or subgraphs that it runs as one.

PyTorch's eager mode is recorded in its own process: its dispatcher tells each call; of a model of
the user's own TensorFlow tells the nodes of the graph that it runs, and of an ONNX file
onnxruntime's profile tells them. Elsewhere the framework runs nodes of our graph as one, and an
operator is such a subgraph; its signature is that of :mod:`pydlbench.steps.signatures`, under which
equal ones are one.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Final

import msgspec

from pydlbench.errors import UnsupportedError
from pydlbench.models import build_model
from pydlbench.models.graph import INPUT, trained_tensors
from pydlbench.ops.seen.tensorflow import LIBRARY_NODES, Node, is_node
from pydlbench.records.operator import RecordedCall
from pydlbench.steps import operations
from pydlbench.steps.operations import OperatorsFacts
from pydlbench.steps.signatures import OperatorRequest, operator_of, signature_of
from pydlbench.words import FRAMEWORK_MODES, ONNX_FRAMEWORK

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from pydlbench.models.graph import Model
    from pydlbench.records.step import StepSpec
    from pydlbench.runner.session import Session
    from pydlbench.steps.signatures import Subgraph

#: What the operators of a graph that libraries compute are called; all others are pointwise.
LAYERS: Final = ("conv", "deconv", "linear", "pool")
# And those of PyTorch, without the ends that say how: a backward pass, a device.
_CALLS: Final = (
    *("convolution", "mm", "bmm", "addmm", "addbmm", "baddbmm", "linear", "mv", "dot"),
    *("max_pool2d_with_indices", "avg_pool2d", "_adaptive_avg_pool2d", "adaptive_max_pool2d"),
    *("max_pool3d_with_indices", "avg_pool3d", "_adaptive_avg_pool3d", "mkldnn_rnn_layer"),
    *("_scaled_dot_product_flash_attention", "_scaled_dot_product_attention_math"),
    *("_scaled_dot_product_efficient_attention", "_scaled_dot_product_cudnn_attention"),
    *("_native_multi_head_attention", "_transformer_encoder_layer_fwd", "_grouped_mm"),
)
# And those of ONNX files.
_NODES: Final = (
    *("Conv", "ConvTranspose", "FusedConv", "Gemm", "FusedGemm", "MatMul", "FusedMatMul"),
    *("MaxPool", "AveragePool", "GlobalMaxPool", "GlobalAveragePool", "LSTM", "GRU", "RNN"),
    *("Attention", "MultiHeadAttention", "GroupQueryAttention", "Einsum", "MatMulNBits"),
    *("QLinearConv", "ConvInteger", "QLinearMatMul", "MatMulInteger", "DynamicQuantizeMatMul"),
    *("MatMulIntegerToFloat", "QGemm"),
)


def recorded(case: StepSpec) -> bool:
    """Whether the calls of a step are told by its framework one by one, and are no subgraphs."""
    ways = (("torch", "eager"), ("tensorflow", "graph"))[: 1 if case.own is None else None]
    return (case.framework, case.mode) in ways or case.framework == ONNX_FRAMEWORK


def listed(case: StepSpec, session: Session, *, nodes: bool = False) -> OperatorsFacts:
    """Return the distinct calls of a step that is not timed, its blocks of memory, and its batch.

    Where images come from the host, that is a call of its own, of kind ``feed``.

    Args:
        case: the step.
        session: whose worker records where there is something to be recorded, each step once.
        nodes: record a step of the catalogue in TensorFlow too, as those of users' models are.

    Raises:
        UnsupportedError: a model of the user's own in a mode whose calls are not recorded.
    """
    if not (nodes or recorded(case)):
        if case.own is not None:
            mode = FRAMEWORK_MODES[case.framework][0]
            raise UnsupportedError(
                f"{case.framework} {case.mode}: the calls of a model of one's own are recorded in "
                f"mode {mode} only; nearest: --mode {mode}"
            )
        batch = build_model(case.model, case.batch, **case.options).batch
        return OperatorsFacts(calls=cut(case), batch=batch)
    resident = msgspec.structs.replace(case, feed="resident")
    key = msgspec.json.encode(resident, order="sorted")
    if key not in session.recorded:
        worker = session.worker(case.framework, case.device)
        kernel = worker.build(operations.record_calls, OperatorsFacts, case=resident.to_dict())
        kernel.release()
        session.recorded[key] = kernel.facts
    found: OperatorsFacts = session.recorded[key]
    fed = _fed(case)
    order = (*range(len(fed)), *(len(fed) + place for place in found.order))
    return msgspec.structs.replace(found, calls=(*fed, *found.calls), order=order)


def kind_of(call: RecordedCall) -> str:
    """Return what a call stands for.

    ``layer`` (what libraries compute is in it), ``pointwise``, ``gradient sum``, ``loss`` (forwards
    and backwards), ``optimizer`` or ``feed`` (images and labels come from the host).
    """
    if call.operator in ("gradient sum", "feed"):
        return call.operator
    if call.direction == "optimizer":
        return "optimizer"
    if call.direction == "loss" or call.names == ("loss",):
        return "loss"
    if is_node(call.signature):
        return "layer" if Node.read(call.signature).operator in LIBRARY_NODES else "pointwise"
    name = call.operator.rpartition(".")[2].removesuffix("_backward").removesuffix("_for_cpu")
    layer = name in (*_CALLS, *_NODES) or not set(LAYERS).isdisjoint(name.split("+"))
    return "layer" if layer else "pointwise"


# -----------------------------------------------------------------------------
# Which nodes of a model a mode runs as one.
#
# TensorFlow's graphs may join a node with the ReLU that follows it, and in inference a convolution
# with its batch normalisation. A compiler joins whatever stands between two layers that libraries
# compute, so an operator reaches there from one convolution, product or pooling to the next.

_TAKES_RELU: Final = ("conv", "linear", "batchnorm", "add")


def subgraphs(model: Model, phase: str, mode: str) -> list[tuple[str, ...]]:
    """Return the names of all nodes, those together that are run as one, in their order.

    Args:
        model: the graph.
        phase: ``forward``, ``forward-backward`` or ``training``.
        mode: ``compiled``, ``graph`` or ``xla``.
    """
    return _joined(model, phase) if mode == "graph" else _between_layers(model)


def group_name(nodes: Sequence[str]) -> str:
    """Return what nodes that run as one are called: the first and the last."""
    return nodes[0] if len(nodes) == 1 else f"{nodes[0]}..{nodes[-1]}"


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
# From a graph to operators: each distinct one once, with its number.


def cut(case: StepSpec) -> tuple[RecordedCall, ...]:
    """Return the distinct operators of a step's graph, in the order in which they first occur.

    They are named after their nodes. Gradients of what several of them read are summed in operators
    of their own, each named after that node.

    Args:
        case: the step, in a mode that runs nodes of the graph as one.
    """
    model = build_model(case.model, case.batch, **case.options)
    return (*_fed(case), *_distinct(model, case, requests_of(model, case)))


def requests_of(model: Model, case: StepSpec) -> list[OperatorRequest]:
    """Return every operator of a step's graph: groups of nodes, sums, loss and optimizer.

    Args:
        model: the graph.
        case: the step.
    """
    together = subgraphs(model, case.phase, str(case.mode))
    if case.phase == "forward":
        return _requests(model, together, frozenset())
    wanted = with_gradient(model)
    found = [*_requests(model, together, wanted), *_gradient_sums(model, together, wanted)]
    found.append(OperatorRequest(name="loss", kind="loss"))
    if case.phase == "training" and model.optimizer.kind != "none":
        found.append(OperatorRequest(name="optimizer", kind="optimizer"))
    return found


def _fed(case: StepSpec) -> tuple[RecordedCall, ...]:
    """Return what brings images and labels from the host; nothing where they lie there."""
    if case.feed != "host":
        return ()
    model = build_model(case.model, case.batch, **case.options)
    return _distinct(model, case, [OperatorRequest(name="feed", kind="feed")])


def singles(case: StepSpec) -> tuple[RecordedCall, ...]:
    """Return the nodes of joined operators one by one; none of them is in a sum.

    Args:
        case: the step, in a mode that joins nodes.
    """
    model = build_model(case.model, case.batch, **case.options)
    wanted = with_gradient(model) if case.phase != "forward" else frozenset()
    groups = subgraphs(model, case.phase, str(case.mode))
    alone = [(name,) for nodes in groups if len(nodes) > 1 for name in nodes]
    return _distinct(model, case, _requests(model, alone, wanted))


def with_gradient(model: Model) -> frozenset[str]:
    """Return whose gradients are computed: of what stands behind a trained tensor."""
    found = {INPUT} if model.input_gradient else set()
    for node in model:
        if trained_tensors(node) or not found.isdisjoint(node.inputs):
            found.add(node.name)
    return frozenset(found)


def _distinct(
    model: Model, case: StepSpec, requests: Iterable[OperatorRequest]
) -> tuple[RecordedCall, ...]:
    wanted = with_gradient(model) if case.backward else frozenset()
    alike: dict[str, tuple[Subgraph, list[OperatorRequest]]] = {}
    for one in requests:
        said = signature_of(model, case, one, wanted)
        alike.setdefault(said.text, (said, []))[1].append(one)
    return tuple(
        RecordedCall.of(
            [(one.name,) for one in same],
            signature=text,
            operator=operator_of(model, same[0]),
            direction=_direction(same[0].kind, case.phase),
            bytes=_bytes(said, model.batch),
        )
        for text, (said, same) in alike.items()
    )


def _direction(kind: str, phase: str) -> str:
    if kind in ("loss", "optimizer"):
        return kind
    # A subgraph runs both ways at once.
    return "forward" if phase == "forward" else "backward"


def _bytes(said: Subgraph, batch: int) -> int:
    shapes = [*said.reads, *(tuple(one["shape"]) for one in said.nodes)]
    elements: int = sum(math.prod(shape) for shape in shapes)
    return 4 * batch * elements


def _requests(
    model: Model, groups: Iterable[tuple[str, ...]], wanted: frozenset[str]
) -> list[OperatorRequest]:
    """Return what a worker has to know of each subgraph."""
    readers = model.readers()
    found = []
    for nodes in groups:
        inside = set(nodes)
        layer = any(model[name].op in LAYERS for name in nodes)
        read = (name for one in nodes for name in model[one].inputs if name not in inside)
        found.append(
            OperatorRequest(
                name=group_name(nodes),
                kind="layer" if layer else "pointwise",
                nodes=nodes,
                differentiated=tuple(dict.fromkeys(one for one in read if one in wanted)),
                outputs=tuple(one for one in nodes if not inside.issuperset(readers[one])),
            )
        )
    return found


def _gradient_sums(
    model: Model, together: Sequence[tuple[str, ...]], wanted: frozenset[str]
) -> list[OperatorRequest]:
    """Return the sums of gradients that come back to what several groups read.

    Those of readers inside one group, its own included, are summed in its backward pass.
    """
    place = {name: group for group in together for name in group}
    found = []
    for name, readers in model.readers().items():
        outside = {place.get(one) for one in readers} - {place.get(name, ())}
        own = () if name == INPUT else (name,)
        one = OperatorRequest(name=f"{name}/gradient-sum", kind="gradient sum", nodes=own)
        found += [one] * (len(outside) - 1) if name in wanted else []
    return found
