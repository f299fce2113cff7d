"""The graph that TensorFlow really runs: its nodes as calls, and each of them alone.

Before TensorFlow runs a function it rewrites its graph: constants are folded, operators fused or
replaced by oneDNN's. What it made of it, it tells (``RunMetadata.partition_graphs``); of that each
node is a call. Shapes follow from TensorFlow's own functions of them, node by node.
"""

from __future__ import annotations

import base64
import re
from graphlib import TopologicalSorter
from typing import TYPE_CHECKING, Any, Final

import msgspec
import numpy as np
from google.protobuf import json_format
from tensorflow.python.eager import context  # no public name records a graph without a file
from tensorflow.python.framework.convert_to_constants import (  # nor puts functions in place
    _run_inline_graph_optimization,
)

from pydlbench.backends.steps.network import LOSS, OPTIMIZER
from pydlbench.backends.tensorflow.settings import tf
from pydlbench.calls.groups import CallGroup, distinct_groups
from pydlbench.calls.seen.tensorflow import NodeTensor, TensorFlowNode
from pydlbench.calls.step_calls import StepCall, distinct_calls
from pydlbench.errors import UnsupportedError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence

    from pydlbench.records.operator import Direction, RecordedCall
    from pydlbench.records.trace import ProgramCall

#: The scope that TensorFlow puts into what is backward.
_TAPE: Final = "gradient_tape"
#: Scopes that say nothing of whose a node is.
_INLINED: Final = re.compile(
    f"{_TAPE}|gradients|_[0-9]+|"
    "((Stateful)?PartitionedCall|ArithmeticOptimizer|ConstantFolding)(_[0-9]+)?"
)

#: What runs no kernel worth the name: operands, results, and orders to wait.
_SILENT: Final = (
    *("Const", "HostConst", "NoOp", "Placeholder", "VarHandleOp"),
    *("_Arg", "_DeviceArg", "_Retval", "_DeviceRetval"),
)
#: What stands for operands.
_STUBS: Final = ("Placeholder", "VarHandleOp")
#: What loops and branches are made of hands on what it is given; how it changes how many of them
#: its readers are in.
_CONTROL: Final = {
    "Enter": 1,
    "Exit": -2,
    "Switch": 1,
    "Merge": -1,
    "NextIteration": 0,
    "LoopCond": 0,
}
_BACK: Final = "NextIteration"
#: Of what a node reads, whole numbers decide what it does up to so many; others are operands.
_FEW: Final = 64
_VARIABLES: Final = tf.as_dtype("resource")


def executed(function: Any, operands: Sequence[Any]) -> tuple[Any, ...]:
    """Run a function that has never run before; return the graphs that TensorFlow has run for it.

    Args:
        function: a ``tf.function``.
        operands: that it is called with.
    """
    running = context.context()
    running.enable_graph_collection()
    try:
        running.export_run_metadata()  # drops what was recorded before
        function(*operands)
        metadata = running.export_run_metadata()
    finally:
        running.disable_graph_collection()
    return tuple(graph for each in metadata.function_graphs for graph in each.partition_graphs)


def controls(graphs: Sequence[Any]) -> bool:
    """Whether there are loops or branches in graphs: they do not say how often a node runs."""
    return any(each.op in _CONTROL for graph in graphs for each in graph.node)


def listed(
    graphs: Sequence[Any], layers: Mapping[str, str], runs: Mapping[str, int] | None = None
) -> tuple[RecordedCall, ...]:
    """Return the distinct nodes of graphs, in the order in which they could first run.

    Args:
        graphs: of :func:`executed`.
        layers: names of the model's layers by the scopes that their nodes are in; without any, the
            scopes are the names.
        runs: how often nodes in loops and branches run in a step, by name; of others, that is once.
            None knows nothing of them.
    """
    return distinct_calls(call for _, call in _calls(graphs, layers, runs))


def in_order(graphs: Sequence[Any], layers: Mapping[str, str]) -> dict[str, ProgramCall]:
    """Return all nodes of graphs by name, in an order in which they could run.

    Args:
        graphs: see :func:`listed`.
        layers: likewise.
    """
    return {name: call.program_call for name, call in _calls(graphs, layers)}


def _calls(
    graphs: Sequence[Any], layers: Mapping[str, str], runs: Mapping[str, int] | None = None
) -> Iterator[tuple[str, StepCall]]:
    """Yield nodes of graphs with their names, as often as they run; see :func:`listed`."""
    layers = _entered_again((each.name for graph in graphs for each in graph.node), layers)
    for graph in graphs:
        for name, node in _read(graph):
            count = 1 if runs is None or not node.looped else runs.get(name, 0)
            own = node if runs is None else msgspec.structs.replace(node, looped=False)
            yield from [(name, _call(name, own, own.op, layers))] * count


def _call(
    name: str,
    node: TensorFlowNode,
    operator: str,
    layers: Mapping[str, str],
    reads: tuple[tuple[int, int] | None, ...] = (),
) -> StepCall:
    direction, owner = _place(name, layers)
    return StepCall(
        signature=node.text,
        operator=operator,
        direction=direction,
        names=(owner,) if owner else (),
        reads=reads,
        bytes=node.bytes,
    )


def calls_of(operations: Iterable[Any]) -> tuple[RecordedCall, ...]:
    """Return the distinct operators of a function's graph, before TensorFlow rewrites it."""
    nodes = {
        each.name: TensorFlowNode(
            op=each.type,
            attributes=_attributes(each.node_def),
            inputs=tuple(map(_like, each.inputs)),
            outputs=tuple(map(_like, each.outputs)),
        )
        for each in operations
    }
    return distinct_calls(_call(name, node, node.operator, {}) for name, node in nodes.items())


def inlined(function: Any, operands: Sequence[Any]) -> tuple[Any, list[str]]:
    """Return the graph of a function before TensorFlow rewrites it, functions in it in place.

    Args:
        function: a ``tf.function``.
        operands: that it is called with.

    Returns:
        The graph, and the names of its results.
    """
    concrete = function.get_concrete_function(*operands)
    graph = _run_inline_graph_optimization(
        concrete, lower_control_flow=False, aggressive_inlining=True
    )
    nodes = {each.name: each for each in graph.node}
    for handle, inner in concrete.graph.captures:
        node = nodes.get(inner.op.name)
        if node is not None and inner.dtype == _VARIABLES:  # a placeholder tells nothing of it
            (kind,) = handle._handle_data.shape_and_type  # noqa: SLF001 - no public name tells
            node.attr["_handle_dtypes"].list.type.append(kind.dtype)
            node.attr["_handle_shapes"].list.shape.add().CopyFrom(kind.shape)
    return graph, [each.name for each in concrete.outputs]


def grouped_nodes(
    graph: Any, results: Sequence[str], layers: Mapping[str, str]
) -> tuple[RecordedCall, ...]:
    """Return the distinct groups of a graph's nodes that a compiler runs as one.

    What a variable holds is an operand of the group that reads it.

    Args:
        graph: of :func:`inlined`.
        results: likewise.
        layers: see :func:`listed`.
    """
    nodes = dict(_read(graph, folds=True))
    layers = _entered_again(nodes, layers)
    reads = {
        item.name: [_source(each) for each in item.input if not each.startswith("^")]
        for item in graph.node
    }
    number: dict[str, int] = {}
    members: list[StepCall] = []

    def made(source: str, result: int) -> tuple[int, int] | None:
        while source in nodes and nodes[source].op == "Identity":
            ((source, result),) = reads[source]
        return (number[source], result) if source in number else None

    for name, node in nodes.items():
        if node.op in ("Identity", "ReadVariableOp"):
            continue
        read = tuple(made(*item) for item in reads[name])
        members.append(_call(name, node, node.operator, layers, read))
        number[name] = len(members) - 1
    kept = (made(*_source(item)) for item in results)
    return distinct_groups(members, [item for item in kept if item is not None])


# -----------------------------------------------------------------------------
# Whose a node is, and where in a step: TensorFlow names nodes after the scopes they were made in.


def _place(name: str, layers: Mapping[str, str]) -> tuple[Direction, str]:
    """Return a node's direction and the layer that it is of; empty of none.

    A scope that is entered again is numbered: ``conv_1`` is ``conv``, unless there is one of that
    name.
    """
    *scopes, _ = name.split("/")
    if OPTIMIZER in scopes:
        return "optimizer", ""
    # A function within the step is put in its place, with scopes of its own; its gradients are a
    # function, too.
    backward = _TAPE in scopes or "gradients" in scopes
    if LOSS in scopes:
        return ("backward" if backward else "loss"), "loss"
    inner = [item for item in scopes if not _INLINED.fullmatch(item)]
    if layers:
        path = [layers[item] for item in (_known(each, layers) for each in inner) if item]
    else:  # a gradient lies in a scope of the operator that it is of
        path = inner[:-1] if backward else inner
    # What the tape sums has no scope.
    summed = not scopes and name.startswith("AddN")
    # A loop is entered by the name of its layer once more.
    owner = ".".join(dict.fromkeys(path))
    return ("backward" if backward or summed else "forward"), owner


def _entered_again(names: Iterable[str], layers: Mapping[str, str]) -> dict[str, str]:
    """Return layers by their scopes, with those that look like another layer's name.

    Keras numbers its layers as TensorFlow numbers scopes. Where ``conv`` is entered twice before
    ``conv_1``, its nodes are in ``conv_1`` and those of ``conv_1`` in ``conv_1_2``.

    Args:
        names: of all nodes.
        layers: see :func:`listed`.
    """
    scopes = {scope for name in names for scope in name.split("/")[:-1]}
    again: dict[str, list[str]] = {}
    for scope in scopes - layers.keys():
        again.setdefault(_plain(scope), []).append(scope)
    owners = dict(layers)
    for layer, name in layers.items():
        first = _plain(layer)
        if first in layers.keys() - scopes and layer in again:
            owners |= {layer: layers[first], **dict.fromkeys(again[layer], name)}
    return owners


def _plain(scope: str) -> str:
    return re.sub(r"_\d+$", "", scope)


def _known(scope: str, layers: Mapping[str, str]) -> str:
    plain = _plain(scope)
    return scope if scope in layers else plain if plain in layers else ""


# -----------------------------------------------------------------------------
# From a graph to its nodes, with the shapes of what they read and write.


def _read(
    graph: Any, growing: frozenset[str] = frozenset(), *, folds: bool = False
) -> list[tuple[str, TensorFlowNode]]:
    """Return names and nodes of a graph, each behind what it reads.

    Args:
        graph: as it was run.
        folds: leave out nodes whose results are known before they run: shapes.
        growing: where ways join that bring another shape each: a loop's beginning and its way
            back, or two branches.
    """
    nodes = {item.name: item for item in graph.node}
    reads = {
        item.name: [_source(each) for each in item.input if not each.startswith("^")]
        for item in graph.node
    }
    # A loop's way back is the one edge that no order can follow.
    before = {
        item.name: [
            each
            for each in (_source(text.removeprefix("^"))[0] for text in item.input)
            if nodes[each].op != _BACK
        ]
        for item in graph.node
    }
    made: dict[str, tuple[NodeTensor, ...]] = {}
    inferred: dict[str, tuple[NodeTensor, ...]] = {}
    inside: dict[str, int] = {}
    entries: list[tuple[str, TensorFlowNode]] = []
    for name in TopologicalSorter(before).static_order():
        item = nodes[name]
        depth = max((inside[each] for each in before[name]), default=0)
        # What joins a loop's beginning with its way back does not leave it.
        stays = item.op == "Merge" and len(before[name]) < len(item.input)
        inside[name] = depth + (0 if stays else _CONTROL.get(item.op, 0))
        if item.op in _SILENT:
            made[name] = _given(item)
            continue
        if item.op in _CONTROL:
            known = (_output(made, *each) for each in reads[name] if each[0] in made)
            first = next(known, NodeTensor(type="unknown"))
            if item.op == "Merge":  # whatever the first one is, the others have other values
                shape = None if name in growing else first.shape
                first = msgspec.structs.replace(first, shape=shape, values=None)
            made[name] = (
                first,
                NodeTensor(type="int32", shape=()) if item.op == "Merge" else first,
            )
            continue
        node = TensorFlowNode(
            op=item.op,
            attributes=_attributes(item),
            inputs=tuple(_output(made, *each) for each in reads[name]),
            looped=depth > 0,
        )
        text = node.text
        if text not in inferred:
            inferred[text] = _shapes_of(node) if folds else ()
            inferred[text] = inferred[text] or _inferred(node, folds=folds)
        made[name] = inferred[text]
        if folds and made[name] and all(each.values is not None for each in made[name]):
            continue
        entries.append((name, msgspec.structs.replace(node, outputs=made[name])))
    joined = {
        item.name: {_output(made, *each).shape for each in reads[item.name]} - {None}
        for item in graph.node
        if item.op == "Merge"
    }
    changed = {name for name, shapes in joined.items() if len(shapes) > 1}
    return entries if changed <= growing else _read(graph, growing | changed, folds=folds)


def _source(text: str) -> tuple[str, int]:
    """Return node and number of an output that is read."""
    name, _, number = text.partition(":")
    return name, int(number or 0)


def _output(made: Mapping[str, tuple[NodeTensor, ...]], name: str, number: int) -> NodeTensor:
    """Return an output; of one that comes back in a loop, or that nobody knows, nothing."""
    outputs = made.get(name, ())
    return outputs[number] if number < len(outputs) else NodeTensor(type="unknown")


def _given(node: Any) -> tuple[NodeTensor, ...]:
    """Return the output of a node that computes nothing."""
    if node.op in ("Const", "HostConst"):
        return (_constant(node.attr["value"].tensor),)
    kind = tf.as_dtype(node.attr["T" if "T" in node.attr else "dtype"].type or 1)
    if kind == _VARIABLES:
        types, shapes = (node.attr[f"_handle_{each}"].list for each in ("dtypes", "shapes"))
        if not types.type:
            return (NodeTensor(type="resource"),)
        plain = tf.as_dtype(types.type[0]).name
        return (NodeTensor(type=plain, shape=_shape(shapes.shape[0]), variable=True),)
    shapes = node.attr["_output_shapes"].list.shape or [node.attr["shape"].shape]
    return (NodeTensor(type=kind.name, shape=_shape(shapes[0])),)


def _constant(tensor: Any) -> NodeTensor:
    kind = tf.as_dtype(tensor.dtype)
    shape = _shape(tensor.tensor_shape)
    number = int(np.prod(shape or ()))
    decides = number <= (1 if kind.is_floating else _FEW) and kind != tf.string
    values = None
    if decides:
        array = tf.make_ndarray(tensor).ravel()
        values = tuple((array.astype(float) if kind.is_floating else array).tolist())
    return NodeTensor(type=kind.name, shape=shape, values=values)


def _shape(shape: Any) -> tuple[int, ...] | None:
    static = tf.TensorShape(shape)
    return tuple(static.as_list()) if static.is_fully_defined() else None


def _attributes(node: Any) -> dict[str, Any]:
    """Return what is said of a node besides its inputs; what begins with a line is of its graph."""
    return {
        name: _words(json_format.MessageToDict(value, preserving_proto_field_name=True), _decoded)
        for name, value in node.attr.items()
        if not name.startswith("_") or name == "_kernel"
    }


def _words(value: dict[str, Any], change: Callable[[str], str]) -> dict[str, Any]:
    """Return an attribute with its texts, which JSON has in base 64, changed to or fro."""
    changed = dict(value)
    if "s" in changed:
        changed["s"] = change(changed["s"])
    if "list" in changed and "s" in changed["list"]:
        changed["list"] = {**changed["list"], "s": [change(each) for each in changed["list"]["s"]]}
    return changed


def _decoded(text: str) -> str:
    return base64.b64decode(text).decode("latin-1")


def _encoded(text: str) -> str:
    return base64.b64encode(text.encode("latin-1")).decode()


def _inferred(node: TensorFlowNode, *, folds: bool = False) -> tuple[NodeTensor, ...]:
    """Return what a node writes, by TensorFlow's own functions of shapes.

    Args:
        node: with what it reads.
        folds: tell whole numbers that are known before it runs.
    """
    graph = tf.Graph()
    with graph.as_default():
        try:
            tf.import_graph_def(_alone(node), name="")
        except (ValueError, TypeError, tf.errors.OpError):
            return ()
    outputs = [
        NodeTensor(
            type=each.dtype.name,
            shape=_shape(each.shape),
            values=_known_values(each) if folds and each.dtype.is_integer else None,
        )
        for each in graph.get_operation_by_name("node").outputs
    ]
    if node.op == "InvertPermutation" and folds and node.inputs[0].values is not None:
        # TensorFlow's functions of known values lack this one.
        order = tuple(np.argsort(node.inputs[0].values).tolist())
        outputs[0] = msgspec.structs.replace(outputs[0], values=order)
    if node.op == "FusedBatchNormV3" and outputs[5].shape is None:
        # What is reserved for cuDNN is empty on a CPU; its function of shapes does not tell.
        outputs[5] = msgspec.structs.replace(outputs[5], shape=(0,))
    if node.op.endswith("FilterWithBias") and outputs[0].shape:
        # TensorFlow 2.21 gives this one the channels of the images.
        outputs[1] = msgspec.structs.replace(outputs[1], shape=outputs[0].shape[-1:])
    if node.padded:
        # TensorFlow 2.21 leaves out what is added.
        outputs[0] = msgspec.structs.replace(outputs[0], shape=_shape_of_padded(node))
    return tuple(outputs)


def _shapes_of(node: TensorFlowNode) -> tuple[NodeTensor, ...]:
    """Return the shapes of several tensors, which ``get_static_value`` does not know."""
    if node.op != "ShapeN" or any(each.shape is None for each in node.inputs):
        return ()
    kind = node.attributes["out_type"]["type"].removeprefix("DT_").lower()
    shapes = [each.shape or () for each in node.inputs]
    return tuple(NodeTensor(type=kind, shape=(len(each),), values=each) for each in shapes)


def _known_values(tensor: Any) -> tuple[int, ...] | None:
    value = tf.get_static_value(tensor)
    return None if value is None else tuple(np.asarray(value).ravel().tolist())


def _shape_of_padded(node: TensorFlowNode) -> tuple[int, ...] | None:
    """Return the shape of what a convolution writes that pads its images itself."""
    source, filters = node.inputs[0].shape, node.inputs[1].shape
    if source is None or filters is None or node.get("data_format", "NHWC") != "NHWC":
        return None
    before, behind = node.padded[::2], node.padded[1::2]
    outer = [
        (source[side] + before[side] + behind[side] - dilation * (filters[side - 1] - 1) - 1)
        // stride
        + 1
        for side, dilation, stride in zip(
            (1, 2), node.get("dilations")[1:3], node.get("strides")[1:3], strict=True
        )
    ]
    return (source[0], *outer, filters[3])


# -----------------------------------------------------------------------------
# A node alone: in a function of its own, on operands that are made up.


class Replayed:
    """A node in a graph of its own.

    Args:
        node: the node.

    Raises:
        UnsupportedError: it cannot be run alone; says why.
    """

    def __init__(self, node: TensorFlowNode) -> None:
        if node.looped:
            raise UnsupportedError(
                f"{node.op}: in a loop or a branch: how often it runs the graph does not say"
            )
        # What a backward pass reads of its forward pass is made by running that.
        known = 1 if self._pools_back(node) else 3 if self._normalises_back(node) else None
        for each in node.inputs[:known]:
            if each.values is None and not _can_make(each):
                where = f"{each.type} {'of unknown shape' if each.shape is None else each.shape}"
                raise UnsupportedError(f"{node.op}: operands of {where} cannot be made up")
        if any(each.type in ("resource", "variant") for each in node.outputs):
            raise UnsupportedError(f"{node.op}: gives no tensor, but what others work on")
        self._node = node
        self._graph = tf.compat.v1.GraphDef(versions=_alone(node).versions)
        # XLA would want to compile what stands for operands.
        self._graph.node.extend(each for each in _alone(node).node if each.op not in _STUBS)
        #: Operands that are no constants.
        self.places = [n for n, each in enumerate(node.inputs) if each.values is None]
        self._variables: list[Any] = []  # live as long as what reads them

    @property
    def plain(self) -> bool:
        """Whether all operands are floating-point tensors of one type."""
        read = [each for each in self._node.inputs if each.values is None]
        same = len({each.type for each in read}) == 1
        return same and all(each.floating and not each.variable for each in read)

    def operands(self, device: str) -> list[Any]:
        """Return operands: floating-point values uniform in [-1, 1), whole numbers 0 or 1."""
        node = self._node
        with tf.device(device):
            if self._pools_back(node):
                return self._pooled(node)
            if self._normalises_back(node):
                return self._normalised(node)
            return [self._made(each) for each in node.inputs if each.values is None]

    def __call__(self, *operands: Any) -> list[Any]:
        """Return the node's outputs, as a part of a graph; a constant where it has none."""
        given = {f"in{n}:0": each for n, each in zip(self.places, operands, strict=True)}
        (node,) = tf.import_graph_def(
            self._graph, input_map=given, return_elements=["node"], name=""
        )
        return list(node.outputs) or [tf.constant(0.0)]

    @staticmethod
    def _pools_back(node: TensorFlowNode) -> bool:
        return node.op == "_MklNativeMaxPoolGrad" and len(node.inputs) == 4

    def _pooled(self, node: TensorFlowNode) -> list[Any]:
        """Return source, maxima, their gradient, and oneDNN's own note of which they were."""
        source = self._made(node.inputs[0])
        forward = Replayed(
            TensorFlowNode(
                op="_MklNativeMaxPool", attributes=node.attributes, inputs=node.inputs[:1]
            )
        )
        maxima, workspace = tf.function(forward, autograph=False)(source)
        return [source, maxima, tf.random.uniform(maxima.shape, -1.0, 1.0, maxima.dtype), workspace]

    @staticmethod
    def _normalises_back(node: TensorFlowNode) -> bool:
        return node.op.endswith("FusedBatchNormGradV3") and len(node.inputs) == 6

    def _normalised(self, node: TensorFlowNode) -> list[Any]:
        """Return gradient, source, factors, and what the forward pass leaves: statistics, notes."""
        gradient, source, factors = map(self._made, node.inputs[:3])
        offsets = tf.zeros_like(factors)
        none = offsets[:0] if node.get("is_training") else offsets
        read = (source, factors, offsets, none, none + 1)
        inputs = [*node.inputs[1:3], node.inputs[2], *[_like(each) for each in read[3:]]]
        op = node.op.replace("GradV3", "V3")
        forward = Replayed(TensorFlowNode(op=op, attributes=node.attributes, inputs=tuple(inputs)))
        others = tf.function(forward, autograph=False)(*read)[3:6]
        return [gradient, source, factors, *others]

    def _made(self, tensor: NodeTensor) -> Any:
        kind = tf.as_dtype(tensor.type)
        if kind.is_floating:
            value = tf.cast(tf.random.uniform(tensor.shape, -1.0, 1.0), kind)
        else:
            value = tf.cast(tf.random.uniform(tensor.shape, 0, 2, tf.int32), kind)
        if not tensor.variable:
            return value
        self._variables.append(tf.Variable(value))
        return self._variables[-1].handle


class ReplayedGroup:
    """Nodes that run as one, in a graph of their own.

    Args:
        group: of nodes.

    Raises:
        UnsupportedError: one of them cannot be run alone; says why.
    """

    #: What reads what is a part of it, and is not to be made by products; see ``Replayed.plain``.
    plain = False

    def __init__(self, group: CallGroup) -> None:
        self._nodes = [Replayed(TensorFlowNode.read(each)) for each in group.calls]
        self._results = group.results
        links = {(call, operand): (by, result) for call, operand, by, result in group.links}
        #: For each node and operand that is no constant, what of the group makes it.
        self._made = [
            [links.get((number, place)) for place in node.places]
            for number, node in enumerate(self._nodes)
        ]

    def operands(self, device: str) -> list[Any]:
        """Return what no node of the group makes; see :meth:`Replayed.operands`."""
        return [
            operand
            for node, made in zip(self._nodes, self._made, strict=True)
            for operand, link in zip(node.operands(device), made, strict=True)
            if link is None
        ]

    def __call__(self, *operands: Any) -> list[Any]:
        """Return the group's results, as a part of a graph; a constant where it has none."""
        given, results = iter(operands), list[list[Any]]()
        for node, made in zip(self._nodes, self._made, strict=True):
            read = [next(given) if each is None else results[each[0]][each[1]] for each in made]
            results.append(node(*read))
        return [results[call][result] for call, result in self._results] or [tf.constant(0.0)]


def _like(tensor: Any) -> NodeTensor:
    return NodeTensor(type=tensor.dtype.name, shape=tuple(tensor.shape))


def _can_make(tensor: NodeTensor) -> bool:
    if tensor.shape is None or tensor.type in ("unknown", "resource", "variant", "string"):
        return False
    kind = tf.as_dtype(tensor.type)
    return bool(kind.is_floating or kind.is_integer or kind.is_bool)


def _alone(node: TensorFlowNode) -> Any:
    """Return the graph of a node, its operands placeholders and constants."""
    graph = tf.compat.v1.GraphDef()
    graph.versions.producer = tf.version.GRAPH_DEF_VERSION
    for number, each in enumerate(node.inputs):
        operand = graph.node.add(name=f"in{number}")
        if each.values is not None:
            operand.op = "Const"
            operand.attr["dtype"].type = tf.as_dtype(each.type).as_datatype_enum
            values = np.array(each.values, tf.as_dtype(each.type).as_numpy_dtype)
            tensor = tf.make_tensor_proto(values.reshape(each.shape), each.type)
            operand.attr["value"].tensor.CopyFrom(tensor)
            continue
        if each.type == "unknown":
            raise ValueError("an operand of which nothing is known")
        shape = tf.TensorShape(each.shape).as_proto()
        operand.op = "VarHandleOp" if each.variable else "Placeholder"
        operand.attr["dtype"].type = tf.as_dtype(each.type).as_datatype_enum
        operand.attr["shape"].shape.CopyFrom(shape)
    own = graph.node.add(name="node", op=node.op)
    own.input.extend(f"in{number}" for number in range(len(node.inputs)))
    for name, value in node.attributes.items():
        json_format.ParseDict(_words(value, _encoded), own.attr[name])
    return graph
