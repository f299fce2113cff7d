"""The optimized graph of a function in TensorFlow: its nodes as calls, and nodes alone.

Before TensorFlow runs a function it rewrites its graph: it folds constants, fuses operators, or
replaces them by oneDNN's. ``RunMetadata.partition_graphs`` holds the optimized graph, and each of
its nodes is one call. Shapes are inferred node by node, by TensorFlow's own functions.
"""

import base64
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from graphlib import TopologicalSorter
from typing import Any, Final

import msgspec
import numpy as np
from google.protobuf import json_format
from tensorflow.python.eager import context  # no public name records a graph without a file
from tensorflow.python.framework.convert_to_constants import (  # nor puts functions in place
    _run_inline_graph_optimization,
)

from pydlbench.backends.steps.network import LOSS, OPTIMIZER
from pydlbench.backends.tensorflow.settings import tf
from pydlbench.calls.groups import CallGroup, LinkedCalls, StepCall, distinct_calls, distinct_groups
from pydlbench.calls.seen.tensorflow import NodeTensor, TensorFlowNode
from pydlbench.errors import UnsupportedError
from pydlbench.records.trace import Direction, ProgramCall, RecordedCall

#: The scope of backward operators.
_TAPE: Final = "gradient_tape"
#: Scopes that are not layers.
_INLINED: Final = re.compile(
    f"{_TAPE}|gradients|_[0-9]+|"
    "((Stateful)?PartitionedCall|ArithmeticOptimizer|ConstantFolding)(_[0-9]+)?"
)

#: Operators that run no kernel, or a trivial one: operands, results and control dependencies.
_OPERATORS_WITHOUT_KERNEL: Final = (
    *("Const", "HostConst", "NoOp", "Placeholder", "VarHandleOp"),
    *("_Arg", "_DeviceArg", "_Retval", "_DeviceRetval"),
)
#: Operators that represent operands.
_PLACEHOLDERS: Final = ("Placeholder", "VarHandleOp")
#: Operators of loops and branches, which forward their operands, and by how much the number of
#: enclosing loops and branches changes for their readers.
_CONTROL: Final = {
    "Enter": 1,
    "Exit": -2,
    "Switch": 1,
    "Merge": -1,
    "NextIteration": 0,
    "LoopCond": 0,
}
_LOOP_BACK: Final = "NextIteration"
#: Maximum number of elements of integer operands whose values are in signatures.
_MAX_SIGNATURE_VALUES: Final = 64
_VARIABLES: Final = tf.as_dtype("resource")


def run_graphs(function: Any, operands: Sequence[Any]) -> tuple[Any, ...]:
    """Run a function and return its optimized graphs.

    Args:
        function: a ``tf.function`` that has not run, as graphs are recorded in the first run.
        operands: operands of the function.
    """
    running = context.context()
    running.enable_graph_collection()
    try:
        running.export_run_metadata()  # drops earlier records
        function(*operands)
        metadata = running.export_run_metadata()
    finally:
        running.disable_graph_collection()
    return tuple(graph for item in metadata.function_graphs for graph in item.partition_graphs)


def has_control_flow(graphs: Sequence[Any]) -> bool:
    """Whether graphs have loops or branches, so that the number of runs of a node is unknown."""
    return any(node.op in _CONTROL for graph in graphs for node in graph.node)


def list_calls(
    graphs: Sequence[Any], layers: Mapping[str, str], runs: Mapping[str, int] | None = None
) -> tuple[RecordedCall, ...]:
    """Return the distinct nodes of graphs, in an order in which they can run.

    Args:
        graphs: graphs of :func:`run_graphs`.
        layers: names of the model's layers by the scopes of their nodes; if empty, the scopes are
            the names.
        runs: number of runs in a step of nodes in loops and branches, by name; all other nodes run
            once. None if the number is unknown.
    """
    return distinct_calls(call for _, call in _calls(graphs, layers, runs))


def ordered_calls(graphs: Sequence[Any], layers: Mapping[str, str]) -> dict[str, ProgramCall]:
    """Return all nodes of graphs by name, in an order in which they can run.

    Args:
        graphs: graphs of :func:`run_graphs`.
        layers: names of the model's layers by the scopes of their nodes, see :func:`list_calls`.
    """
    return {name: call.program_call for name, call in _calls(graphs, layers)}


def _calls(
    graphs: Sequence[Any], layers: Mapping[str, str], runs: Mapping[str, int] | None = None
) -> Iterator[tuple[str, StepCall]]:
    """Yield nodes of graphs with their names, as often as they run; see :func:`list_calls`."""
    layers = _numbered_scopes((node.name for graph in graphs for node in graph.node), layers)
    for graph in graphs:
        for name, node in _read_nodes(graph):
            count = 1 if runs is None or not node.looped else runs.get(name, 0)
            counted = node if runs is None else msgspec.structs.replace(node, looped=False)
            yield from [(name, _call(name, counted, node.op, layers))] * count


def _call(
    name: str,
    node: TensorFlowNode,
    operator: str,
    layers: Mapping[str, str],
    reads: tuple[tuple[int, int] | None, ...] = (),
) -> StepCall:
    direction, owner = _origin(name, layers)
    return StepCall(
        signature=node.text,
        operator=operator,
        direction=direction,
        names=(owner,) if owner else (),
        reads=reads,
        bytes=node.bytes,
    )


def calls_of(operations: Iterable[Any]) -> tuple[RecordedCall, ...]:
    """Return the distinct operators of a function's graph before optimization."""
    nodes = {
        operation.name: TensorFlowNode(
            op=operation.type,
            attributes=_attributes(operation.node_def),
            inputs=tuple(map(_tensor_like, operation.inputs)),
            outputs=tuple(map(_tensor_like, operation.outputs)),
        )
        for operation in operations
    }
    return distinct_calls(_call(name, node, node.operator, {}) for name, node in nodes.items())


def inlined_graph(function: Any, operands: Sequence[Any]) -> tuple[Any, list[str]]:
    """Return the graph of a function before optimization, with functions in it inlined.

    Args:
        function: a ``tf.function``.
        operands: operands of the function.

    Returns:
        The graph, and the names of its results.
    """
    concrete = function.get_concrete_function(*operands)
    graph = _run_inline_graph_optimization(
        concrete, lower_control_flow=False, aggressive_inlining=True
    )
    nodes = {node.name: node for node in graph.node}
    for handle, inner in concrete.graph.captures:
        node = nodes.get(inner.op.name)
        if node is not None and inner.dtype == _VARIABLES:  # placeholders lack type and shape
            (kind,) = handle._handle_data.shape_and_type  # noqa: SLF001 - no public name tells
            node.attr["_handle_dtypes"].list.type.append(kind.dtype)
            node.attr["_handle_shapes"].list.shape.add().CopyFrom(kind.shape)
    return graph, [tensor.name for tensor in concrete.outputs]


def grouped_nodes(
    graph: Any, results: Sequence[str], layers: Mapping[str, str]
) -> tuple[RecordedCall, ...]:
    """Return the distinct groups of a graph's nodes that a compiler fuses.

    Values of variables are operands of the groups that read them.

    Args:
        graph: graph of a function, from :func:`inlined_graph`.
        results: names of the function's results, from :func:`inlined_graph`.
        layers: names of the model's layers by the scopes of their nodes, see :func:`list_calls`.
    """
    nodes = dict(_read_nodes(graph, folds=True))
    layers = _numbered_scopes(nodes, layers)
    reads = _data_inputs(graph)
    number: dict[str, int] = {}
    members: list[StepCall] = []

    def producer(source: str, result: int) -> tuple[int, int] | None:
        while source in nodes and nodes[source].op == "Identity":
            ((source, result),) = reads[source]
        return (number[source], result) if source in number else None

    for name, node in nodes.items():
        if node.op in ("Identity", "ReadVariableOp"):
            continue
        read = tuple(producer(*item) for item in reads[name])
        members.append(_call(name, node, node.operator, layers, read))
        number[name] = len(members) - 1
    kept = (producer(*_source(item)) for item in results)
    return distinct_groups(members, [item for item in kept if item is not None])


# -----------------------------------------------------------------------------
# Layer and direction of a node, from the scopes in its name.


def _origin(name: str, layers: Mapping[str, str]) -> tuple[Direction, str]:
    """Return the direction and the layer of a node; the layer is empty if the node has no layer.

    A scope that is entered again gets a number: ``conv_1`` is ``conv``, unless a layer has that
    name.
    """
    *scopes, _ = name.split("/")
    if OPTIMIZER in scopes:
        return "optimizer", ""
    # Inlined functions, and their gradients, have scopes of their own.
    backward = _TAPE in scopes or "gradients" in scopes
    if LOSS in scopes:
        return ("backward" if backward else "loss"), "loss"
    inner = [item for item in scopes if not _INLINED.fullmatch(item)]
    if layers:
        path = [layers[item] for item in (_layer_scope(scope, layers) for scope in inner) if item]
    else:  # the last scope of a gradient is its operator
        path = inner[:-1] if backward else inner
    # Sums of gradients have no scope.
    summed = not scopes and name.startswith("AddN")
    # Loops repeat the scope of their layer.
    owner = ".".join(dict.fromkeys(path))
    return ("backward" if backward or summed else "forward"), owner


def _numbered_scopes(names: Iterable[str], layers: Mapping[str, str]) -> dict[str, str]:
    """Return layers by their scopes, including scopes that have another layer's name.

    Keras numbers layers as TensorFlow numbers scopes. If ``conv`` is entered twice before
    ``conv_1``, its nodes are in ``conv_1``, and the nodes of ``conv_1`` are in ``conv_1_2``.

    Args:
        names: names of all nodes.
        layers: names of the model's layers by the scopes of their nodes, see :func:`list_calls`.
    """
    scopes = {scope for name in names for scope in name.split("/")[:-1]}
    again: dict[str, list[str]] = {}
    for scope in scopes - layers.keys():
        again.setdefault(_without_number(scope), []).append(scope)
    owners = dict(layers)
    for layer, name in layers.items():
        first = _without_number(layer)
        if first in layers.keys() - scopes and layer in again:
            owners |= {layer: layers[first], **dict.fromkeys(again[layer], name)}
    return owners


def _without_number(scope: str) -> str:
    return re.sub(r"_\d+$", "", scope)


def _layer_scope(scope: str, layers: Mapping[str, str]) -> str:
    plain = _without_number(scope)
    return scope if scope in layers else plain if plain in layers else ""


# -----------------------------------------------------------------------------
# Nodes of a graph, with the shapes of their operands and results.


def _read_nodes(
    graph: Any, growing: frozenset[str] = frozenset(), *, folds: bool = False
) -> list[tuple[str, TensorFlowNode]]:
    """Return names and nodes of a graph in topological order.

    Args:
        graph: the graph.
        folds: leave out nodes whose results are known before they run, such as shapes.
        growing: nodes that merge values of different shapes: values of a loop's start and of its
            iterations, or values of two branches.
    """
    nodes = {item.name: item for item in graph.node}
    reads = _data_inputs(graph)
    # The order leaves out the edges from a loop's end to its start.
    before = {
        item.name: [
            name
            for name in (_source(text.removeprefix("^"))[0] for text in item.input)
            if nodes[name].op != _LOOP_BACK
        ]
        for item in graph.node
    }
    made: dict[str, tuple[NodeTensor, ...]] = {}
    inferred: dict[str, tuple[NodeTensor, ...]] = {}
    inside: dict[str, int] = {}
    entries: list[tuple[str, TensorFlowNode]] = []
    for name in TopologicalSorter(before).static_order():
        item = nodes[name]
        depth = max((inside[source] for source in before[name]), default=0)
        # A Merge at the start of a loop stays inside of it.
        stays = item.op == "Merge" and len(before[name]) < len(item.input)
        inside[name] = depth + (0 if stays else _CONTROL.get(item.op, 0))
        if item.op in _OPERATORS_WITHOUT_KERNEL:
            made[name] = _source_output(item)
            continue
        if item.op in _CONTROL:
            known = (_output(made, *source) for source in reads[name] if source[0] in made)
            first = next(known, NodeTensor(type="unknown"))
            if item.op == "Merge":  # values differ, and shapes may
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
            inputs=tuple(_output(made, *source) for source in reads[name]),
            looped=depth > 0,
        )
        text = node.text
        if text not in inferred:
            inferred[text] = _shape_values(node) if folds else ()
            inferred[text] = inferred[text] or _infer_outputs(node, folds=folds)
        made[name] = inferred[text]
        if folds and made[name] and all(output.values is not None for output in made[name]):
            continue
        entries.append((name, msgspec.structs.replace(node, outputs=made[name])))
    merged = {
        item.name: {_output(made, *source).shape for source in reads[item.name]} - {None}
        for item in graph.node
        if item.op == "Merge"
    }
    changed = {name for name, shapes in merged.items() if len(shapes) > 1}
    return entries if changed <= growing else _read_nodes(graph, growing | changed, folds=folds)


def _data_inputs(graph: Any) -> dict[str, list[tuple[str, int]]]:
    """Return the inputs of all nodes by name, without control dependencies."""
    return {
        item.name: [_source(text) for text in item.input if not text.startswith("^")]
        for item in graph.node
    }


def _source(text: str) -> tuple[str, int]:
    """Return the node and the number of an output."""
    name, _, number = text.partition(":")
    return name, int(number or 0)


def _output(made: Mapping[str, tuple[NodeTensor, ...]], name: str, number: int) -> NodeTensor:
    """Return an output of a node; it is unknown if it comes from a later node of a loop."""
    outputs = made.get(name, ())
    return outputs[number] if number < len(outputs) else NodeTensor(type="unknown")


def _source_output(node: Any) -> tuple[NodeTensor, ...]:
    """Return the output of a constant, a placeholder or a variable."""
    if node.op in ("Const", "HostConst"):
        return (_constant(node.attr["value"].tensor),)
    kind = tf.as_dtype(node.attr["T" if "T" in node.attr else "dtype"].type or 1)
    if kind == _VARIABLES:
        types, shapes = (node.attr[f"_handle_{field}"].list for field in ("dtypes", "shapes"))
        if not types.type:
            return (NodeTensor(type="resource"),)
        dtype = tf.as_dtype(types.type[0]).name
        return (NodeTensor(type=dtype, shape=_shape(shapes.shape[0]), variable=True),)
    shapes = node.attr["_output_shapes"].list.shape or [node.attr["shape"].shape]
    return (NodeTensor(type=kind.name, shape=_shape(shapes[0])),)


def _constant(tensor: Any) -> NodeTensor:
    kind = tf.as_dtype(tensor.dtype)
    shape = _shape(tensor.tensor_shape)
    number = int(np.prod(shape or ()))
    decides = number <= (1 if kind.is_floating else _MAX_SIGNATURE_VALUES) and kind != tf.string
    values = None
    if decides:
        array = tf.make_ndarray(tensor).ravel()
        values = tuple((array.astype(float) if kind.is_floating else array).tolist())
    return NodeTensor(type=kind.name, shape=shape, values=values)


def _shape(shape: Any) -> tuple[int, ...] | None:
    static = tf.TensorShape(shape)
    return tuple(static.as_list()) if static.is_fully_defined() else None


def _attributes(node: Any) -> dict[str, Any]:
    """Return the attributes of a node, without those with an underscore, which graphs add."""
    return {
        name: _map_texts(
            json_format.MessageToDict(value, preserving_proto_field_name=True),
            lambda text: base64.b64decode(text).decode("latin-1"),
        )
        for name, value in node.attr.items()
        if not name.startswith("_") or name == "_kernel"
    }


def _map_texts(value: dict[str, Any], change: Callable[[str], str]) -> dict[str, Any]:
    """Return an attribute with changed texts, which are in base 64 in JSON."""
    mapped = dict(value)
    if "s" in mapped:
        mapped["s"] = change(mapped["s"])
    if "list" in mapped and "s" in mapped["list"]:
        mapped["list"] = {**mapped["list"], "s": [*map(change, mapped["list"]["s"])]}
    return mapped


def _infer_outputs(node: TensorFlowNode, *, folds: bool = False) -> tuple[NodeTensor, ...]:
    """Return the outputs of a node, inferred by TensorFlow's own functions.

    Args:
        node: a node with its inputs.
        folds: include values of integers that are known before it runs.
    """
    graph = tf.Graph()
    with graph.as_default():
        try:
            tf.import_graph_def(_single_node_graph(node), name="")
        except (ValueError, TypeError, tf.errors.OpError):
            return ()
    outputs = [
        NodeTensor(
            type=tensor.dtype.name,
            shape=_shape(tensor.shape),
            values=_known_values(tensor) if folds and tensor.dtype.is_integer else None,
        )
        for tensor in graph.get_operation_by_name("node").outputs
    ]
    if node.op == "InvertPermutation" and folds and node.inputs[0].values is not None:
        # ``get_static_value`` lacks this operator.
        order = tuple(np.argsort(node.inputs[0].values).tolist())
        outputs[0] = msgspec.structs.replace(outputs[0], values=order)
    if node.op == "FusedBatchNormV3" and outputs[5].shape is None:
        # The reserved space for cuDNN is empty on a CPU, but not inferred.
        outputs[5] = msgspec.structs.replace(outputs[5], shape=(0,))
    if node.op.endswith("FilterWithBias") and outputs[0].shape:
        # TensorFlow 2.21 infers the channels of the images.
        outputs[1] = msgspec.structs.replace(outputs[1], shape=outputs[0].shape[-1:])
    if node.padded:
        # TensorFlow 2.21 infers the shape without padding.
        outputs[0] = msgspec.structs.replace(outputs[0], shape=_shape_of_padded(node))
    return tuple(outputs)


def _shape_values(node: TensorFlowNode) -> tuple[NodeTensor, ...]:
    """Return the outputs of ``ShapeN``, which ``get_static_value`` lacks."""
    if node.op != "ShapeN" or any(tensor.shape is None for tensor in node.inputs):
        return ()
    kind = node.attributes["out_type"]["type"].removeprefix("DT_").lower()
    shapes = [tensor.shape or () for tensor in node.inputs]
    return tuple(NodeTensor(type=kind, shape=(len(shape),), values=shape) for shape in shapes)


def _known_values(tensor: Any) -> tuple[int, ...] | None:
    value = tf.get_static_value(tensor)
    return None if value is None else tuple(np.asarray(value).ravel().tolist())


def _shape_of_padded(node: TensorFlowNode) -> tuple[int, ...] | None:
    """Return the shape of the output of a convolution with explicit padding."""
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
# Nodes alone: in functions of their own, on random operands.


class Replayed:
    """A node in a graph of its own.

    Args:
        node: the node to run.

    Raises:
        UnsupportedError: the node cannot be run alone; the message has the reason.
    """

    def __init__(self, node: TensorFlowNode) -> None:
        if node.looped:
            raise UnsupportedError(
                f"{node.op}: in a loop or a branch: how often it runs the graph does not say"
            )
        # Other operands of these gradients are computed by the forward pass.
        count = None
        if self._is_pooling_gradient(node):
            count = 1
        elif self._is_normalisation_gradient(node):
            count = 3
        for tensor in node.inputs[:count]:
            if tensor.values is None and not _can_make(tensor):
                shape = "of unknown shape" if tensor.shape is None else tensor.shape
                raise UnsupportedError(
                    f"{node.op}: operands of {tensor.type} {shape} cannot be made up"
                )
        if any(tensor.type in ("resource", "variant") for tensor in node.outputs):
            raise UnsupportedError(f"{node.op}: returns a resource, not a tensor")
        self._node = node
        graph = _single_node_graph(node)
        self._graph = tf.compat.v1.GraphDef(versions=graph.versions)
        # XLA would compile placeholders.
        self._graph.node.extend(item for item in graph.node if item.op not in _PLACEHOLDERS)
        #: Positions of operands that are not constants.
        self.places = [n for n, tensor in enumerate(node.inputs) if tensor.values is None]
        self._variables: list[Any] = []  # kept alive for the nodes that read them

    @property
    def plain(self) -> bool:
        """Whether all operands are floating-point tensors of one type."""
        read = [tensor for tensor in self._node.inputs if tensor.values is None]
        same = len({tensor.type for tensor in read}) == 1
        return same and all(tensor.floating and not tensor.variable for tensor in read)

    def operands(self, device: str) -> list[Any]:
        """Return random operands: floating-point in [-1, 1), integers 0 or 1."""
        node = self._node
        with tf.device(device):
            if self._is_pooling_gradient(node):
                return self._pooling_operands(node)
            if self._is_normalisation_gradient(node):
                return self._normalisation_operands(node)
            return [self._random(tensor) for tensor in node.inputs if tensor.values is None]

    def __call__(self, *operands: Any) -> list[Any]:
        """Return the node's outputs, as a part of a graph; a constant if it has none."""
        given = {f"in{n}:0": operand for n, operand in zip(self.places, operands, strict=True)}
        (node,) = tf.import_graph_def(
            self._graph, input_map=given, return_elements=["node"], name=""
        )
        return list(node.outputs) or [tf.constant(0.0)]

    @staticmethod
    def _is_pooling_gradient(node: TensorFlowNode) -> bool:
        return node.op == "_MklNativeMaxPoolGrad" and len(node.inputs) == 4

    def _pooling_operands(self, node: TensorFlowNode) -> list[Any]:
        """Return source, maxima, their gradient, and oneDNN's workspace of their positions."""
        source = self._random(node.inputs[0])
        forward = Replayed(
            TensorFlowNode(
                op="_MklNativeMaxPool", attributes=node.attributes, inputs=node.inputs[:1]
            )
        )
        maxima, workspace = tf.function(forward, autograph=False)(source)
        return [source, maxima, tf.random.uniform(maxima.shape, -1.0, 1.0, maxima.dtype), workspace]

    @staticmethod
    def _is_normalisation_gradient(node: TensorFlowNode) -> bool:
        return node.op.endswith("FusedBatchNormGradV3") and len(node.inputs) == 6

    def _normalisation_operands(self, node: TensorFlowNode) -> list[Any]:
        """Return gradient, source, factors, and results of the forward pass."""
        gradient, source, factors = map(self._random, node.inputs[:3])
        offsets = tf.zeros_like(factors)
        running = offsets[:0] if node.get("is_training") else offsets
        read = (source, factors, offsets, running, running + 1)
        inputs = [*node.inputs[1:3], node.inputs[2], *map(_tensor_like, read[3:])]
        op = node.op.replace("GradV3", "V3")
        forward = Replayed(TensorFlowNode(op=op, attributes=node.attributes, inputs=tuple(inputs)))
        others = tf.function(forward, autograph=False)(*read)[3:6]
        return [gradient, source, factors, *others]

    def _random(self, tensor: NodeTensor) -> Any:
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
        group: the group of nodes.

    Raises:
        UnsupportedError: a node cannot be run alone; the message has the reason.
    """

    #: Operands are read by several nodes, and must not be products; see ``Replayed.plain``.
    plain = False

    def __init__(self, group: CallGroup) -> None:
        self._nodes = [Replayed(TensorFlowNode.read(text)) for text in group.calls]
        self._linked = LinkedCalls(group, self._nodes, [node.places for node in self._nodes])

    def operands(self, device: str) -> list[Any]:
        """Return operands of the group; see :meth:`Replayed.operands`."""
        return self._linked.unlinked([node.operands(device) for node in self._nodes])

    def __call__(self, *operands: Any) -> list[Any]:
        """Return the group's results, as a part of a graph; a constant if it has none."""
        return self._linked(*operands) or [tf.constant(0.0)]


def _tensor_like(tensor: Any) -> NodeTensor:
    return NodeTensor(type=tensor.dtype.name, shape=tuple(tensor.shape))


def _can_make(tensor: NodeTensor) -> bool:
    if tensor.shape is None or tensor.type in ("unknown", "resource", "variant", "string"):
        return False
    kind = tf.as_dtype(tensor.type)
    return bool(kind.is_floating or kind.is_integer or kind.is_bool)


def _single_node_graph(node: TensorFlowNode) -> Any:
    """Return a graph of one node, whose operands are placeholders and constants."""
    graph = tf.compat.v1.GraphDef()
    graph.versions.producer = tf.version.GRAPH_DEF_VERSION
    for number, tensor in enumerate(node.inputs):
        operand = graph.node.add(name=f"in{number}")
        if tensor.type == "unknown":
            raise ValueError("an operand of unknown type")
        operand.attr["dtype"].type = tf.as_dtype(tensor.type).as_datatype_enum
        if tensor.values is not None:
            operand.op = "Const"
            values = np.array(tensor.values, tf.as_dtype(tensor.type).as_numpy_dtype)
            constant = tf.make_tensor_proto(values.reshape(tensor.shape), tensor.type)
            operand.attr["value"].tensor.CopyFrom(constant)
        else:
            operand.op = "VarHandleOp" if tensor.variable else "Placeholder"
            operand.attr["shape"].shape.CopyFrom(tf.TensorShape(tensor.shape).as_proto())
    target = graph.node.add(name="node", op=node.op)
    target.input.extend(f"in{number}" for number in range(len(node.inputs)))
    for name, value in node.attributes.items():
        json_format.ParseDict(
            _map_texts(value, lambda text: base64.b64encode(text.encode("latin-1")).decode()),
            target.attr[name],
        )
    return graph
