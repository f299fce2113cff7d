"""The nodes that onnxruntime runs in a step, with their shapes and shares of its own profile.

A session writes its optimized graph. This graph, with numbered nodes, runs again without further
optimization, and the profile of that run has the shapes of all outputs. A fused operator is one
node; so is a loop or a branch, with everything in it.
"""

from __future__ import annotations

import base64
import hashlib
import json
import math
import os
import shutil
import statistics
import tempfile
import time
import weakref
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, Protocol

import numpy as np
import onnx
import onnxruntime
from numpy.typing import NDArray
from onnx import helper, numpy_helper

from pydlbench.backends.capabilities import FOLDER_VARIABLE
from pydlbench.backends.steps.trace import StepTrace, StepTracer
from pydlbench.calls.groups import StepCall, distinct_calls
from pydlbench.calls.seen.onnx import OnnxNode, Tensor
from pydlbench.errors import PrimitiveError
from pydlbench.records.trace import ProgramCall, RecordedCall

#: Numbers of runs under the profiler: untimed runs, and timed runs.
_UNTIMED_RUNS: Final = 2
_PROFILED_RUNS: Final = 5
#: Suffix of a node's name in a profile.
SUFFIX: Final = "_kernel_time"
#: Prefix of a node's number, which replaces its name; files do not have such names.
PREFIX: Final = "pydlbench."
#: Suffix of nodes whose images onnxruntime stores in blocks of channels.
_BLOCKED_SUFFIX: Final = "_nchwc"
#: NumPy's names of types, where onnxruntime's names differ.
_NUMPY_NAMES: Final = {"float": "float32", "double": "float64"}
#: Types of operands whose values affect the computation: shapes, axes, indices, conditions.
_INTEGER_TYPES: Final = ("int64", "int32", "bool")
#: Maximum numbers of values in a signature: of integers, and of others (a limit, a scale).
_MAX_SIGNATURE_INTEGERS: Final = 64
_MAX_SIGNATURE_VALUES: Final = 8
#: Larger constants among the attributes are not in the signature.
_MAX_CONSTANT_BYTES: Final = 4096
#: Kinds of attributes: numbers and lists of numbers; texts, tensors and graphs.
_FLOAT, _INT = 1, 2
_NUMERIC_KINDS: Final = (_FLOAT, _INT, 6, 7)
_TEXT, _TEXTS, _TENSOR, _GRAPHS = 3, 8, 4, (5, 10)
_LARGE_CONSTANT: Final = "a large constant is among its attributes"
#: Larger constants are stored beside the written graph, as files of graphs are limited in size.
_EXTERNAL_BYTES: Final = "1024"


class Sessions(Protocol):
    """A file from which sessions are created; see ``onnxruntime.step.OnnxModel``.

    Attributes:
        session: session of the step.
        feeds: inputs of the session by name.
    """

    session: onnxruntime.InferenceSession
    feeds: dict[str, NDArray[Any]]

    def options(self, mode: str | None = None) -> onnxruntime.SessionOptions:
        """Return the settings of a session in a mode; None for the step's mode."""
        ...

    def open_session(
        self, options: onnxruntime.SessionOptions, path: Path | None = None
    ) -> onnxruntime.InferenceSession:
        """Return a session of the file, or of a file that was derived from it."""
        ...


def record(source: Sessions) -> tuple[RecordedCall, ...]:
    """Return the distinct nodes of a step, in the order of the graph.

    Args:
        source: the model file and its inputs; the model is run several times.
    """
    with tempfile.TemporaryDirectory(prefix="pydlbench-graph-") as name:
        return distinct_calls(_record_graph(source, Path(name))[1])


def _record_graph(source: Sessions, folder: Path) -> tuple[Graph, list[StepCall], Collection[int]]:
    """Return a step's graph, its nodes as calls, and the numbers of profiled nodes.

    Args:
        source: the model file and its inputs; the model is run several times.
        folder: an empty folder for large constants.
    """
    graph = Graph(source, folder)
    events = _profile_nodes(graph)
    values = _integer_values(graph, events)
    return graph, _NodeWriter(graph, events, values).calls(), sorted(events)


class Graph:
    """The optimized graph of a file, with numbered nodes.

    Args:
        source: the model file and its inputs.
        folder: folder to write the graph into.

    Attributes:
        source: the model file and its inputs.
        folder: folder that has the written graph.
        model: the graph, without large constants.
        names: names of the nodes in the file; for nodes without a name, operator and number.
        constants: constants by name.
    """

    def __init__(self, source: Sessions, folder: Path) -> None:
        self.source, self.folder = source, folder
        options = source.options()
        options.optimized_model_filepath = str(folder / "graph.onnx")
        place = "session.optimized_model_external_initializers_"
        options.add_session_config_entry(f"{place}file_name", "weights.bin")
        options.add_session_config_entry(f"{place}min_size_in_bytes", _EXTERNAL_BYTES)
        source.open_session(options)
        self.model: Any = onnx.load(folder / "graph.onnx", load_external_data=False)
        self.nodes: Sequence[Any] = self.model.graph.node
        self.names = []
        for number, node in enumerate(self.nodes):
            name = node.name.removesuffix(_BLOCKED_SUFFIX).strip("/")
            self.names.append(name or f"{node.op_type}_{number}")
            node.name = f"{PREFIX}{number}"
        self.constants = {tensor.name: tensor for tensor in self.model.graph.initializer}
        self.versions = {opset.domain: opset.version for opset in self.model.opset_import}

    def open_session(self, *, profile: bool = False) -> onnxruntime.InferenceSession:
        """Return a session of this graph, optionally with a profile."""
        options = self.source.options("unoptimized")
        if profile:
            options.enable_profiling = True
            options.profile_file_prefix = str(self.folder / "profile")
        path = self.folder / "numbered.onnx"
        path.write_bytes(self.model.SerializeToString())
        return self.source.open_session(options, path)


@dataclass(frozen=True, slots=True)
class _NodeProfile:
    """The profile of a node: seconds in a step, and types and shapes of its outputs."""

    seconds: float
    outputs: tuple[tuple[str, tuple[int, ...]], ...]


def _profile_nodes(graph: Graph) -> dict[int, _NodeProfile]:
    """Run the graph and return the profile of each node, by number."""
    session = graph.open_session(profile=True)
    for _ in range(_UNTIMED_RUNS + _PROFILED_RUNS):
        session.run(None, graph.source.feeds)
    entries: dict[int, list[dict[str, Any]]] = {}
    for number, item in _node_events(_end_profile(session)):
        entries.setdefault(number, []).append(item)
    return {
        number: _NodeProfile(
            seconds=statistics.median(item["dur"] for item in runs[_UNTIMED_RUNS:]) / 1e6,
            outputs=tuple(
                (_NUMPY_NAMES.get(dtype, dtype), tuple(shape))
                for output in runs[-1]["args"].get("output_type_shape", ())
                for dtype, shape in output.items()
            ),
        )
        for number, runs in entries.items()
    }


def _end_profile(session: onnxruntime.InferenceSession) -> list[dict[str, Any]]:
    """End a session's profile and return its events."""
    path = Path(session.end_profiling())
    events: list[dict[str, Any]] = json.loads(path.read_bytes())
    path.unlink()
    return events


def _node_events(events: Iterable[dict[str, Any]]) -> Iterator[tuple[int, dict[str, Any]]]:
    """Yield the events of numbered nodes, with their numbers."""
    for event in events:
        name = event["name"].removesuffix(SUFFIX)
        if name != event["name"] and name.startswith(PREFIX):
            yield int(name.removeprefix(PREFIX)), event


def _written_tensors(
    graph: Graph, events: Mapping[int, _NodeProfile]
) -> dict[str, tuple[str, tuple[int, ...]]]:
    """Return types and shapes of profiled outputs of nodes, by name."""
    tensors: dict[str, tuple[str, tuple[int, ...]]] = {}
    for number, node in enumerate(graph.nodes):
        names = [name for name in node.output if name]
        outputs = events[number].outputs if number in events else ()
        # The profile lacks outputs that are not tensors, or that are not read.
        if len(names) == len(outputs):
            tensors |= dict(zip(names, outputs, strict=True))
    return tensors


def _integer_values(graph: Graph, events: Mapping[int, _NodeProfile]) -> dict[str, NDArray[Any]]:
    """Return integers that are computed by nodes and read by others, by name."""
    read = {name for node in graph.nodes for name in node.input}
    kinds = {
        name: dtype
        for name, (dtype, _) in _written_tensors(graph, events).items()
        if dtype in _INTEGER_TYPES and name in read
    }
    if not kinds:
        return {}
    known = {output.name for output in graph.model.graph.output}
    for name, dtype in kinds.items():
        if name not in known:
            element = helper.np_dtype_to_tensor_dtype(np.dtype(dtype))
            graph.model.graph.output.append(helper.make_tensor_value_info(name, element, None))
    names = list(kinds)
    return dict(zip(names, graph.open_session().run(names, graph.source.feeds), strict=True))


# -----------------------------------------------------------------------------
# Signatures of nodes.


class _NodeWriter:
    """Writes the signatures of a graph's nodes.

    Args:
        graph: the graph.
        events: profiles of the nodes, by number.
        values: integers that nodes read, by name.
    """

    def __init__(
        self, graph: Graph, events: Mapping[int, _NodeProfile], values: Mapping[str, NDArray[Any]]
    ) -> None:
        self._graph, feeds = graph, graph.source.feeds
        self._known = {name: (array.dtype.name, array.shape) for name, array in feeds.items()}
        self._known |= _written_tensors(graph, events)
        self._values = {**feeds, **values}
        self._events = events

    def node(self, number: int) -> OnnxNode:
        """Return a node with the properties that its signature has."""
        source = self._graph.nodes[number]
        names = list(source.input)
        inputs = tuple(self._input(name, index, names) for index, name in enumerate(names))
        outputs = tuple(self._tensor(name) for name in source.output)
        lacks = "" if number in self._events else "the profile has no such node"
        for name, tensor in zip([*names, *source.output], [*inputs, *outputs], strict=True):
            if name and tensor is None:
                lacks = lacks or f"the profile tells no shape of {name}"
        attributes: dict[str, tuple[int, Any]] = {}
        for attribute in source.attribute:
            value = _attribute_value(attribute)
            if value is None:
                graph = attribute.type in _GRAPHS
                lacks = "it has a graph of its own" if graph else lacks or _LARGE_CONSTANT
                digest = hashlib.sha256(attribute.SerializeToString(deterministic=True))
                value = digest.hexdigest()[:16]
            attributes[attribute.name] = attribute.type, value
        return OnnxNode(
            operator=source.op_type,
            domain=source.domain,
            version=self._graph.versions.get(source.domain, 1),
            inputs=inputs,
            outputs=outputs,
            attributes=attributes,
            lacks=lacks,
        )

    def calls(self) -> list[StepCall]:
        """Return all nodes as calls, in the order of the graph."""
        whole = sum(event.seconds for event in self._events.values())
        shares = {number: event.seconds / whole for number, event in self._events.items() if whole}
        nodes = map(self.node, range(len(self._graph.nodes)))
        return [
            StepCall(
                signature=node.signature,
                operator=node.name,
                direction="forward",
                names=(self._graph.names[number],),
                bytes=node.bytes,
                profiled=shares.get(number, 0.0),
            )
            for number, node in enumerate(nodes)
        ]

    def _tensor(self, name: str) -> Tensor | None:
        """Return type and shape of a tensor; None if unknown."""
        if name not in self._known:
            return None
        dtype, shape = self._known[name]
        return Tensor(dtype=dtype, shape=shape)

    def _input(self, name: str, index: int, names: Sequence[str]) -> Tensor | None:
        """Return an input of a node; None if unknown."""
        first = names.index(name)
        same = first if first != index else None
        constant = self._graph.constants.get(name)
        if constant is None:
            tensor = self._tensor(name)
            if tensor is None:
                return None
            dtype, shape, values = tensor.dtype, tensor.shape, self._values.get(name)
        else:
            dtype = helper.tensor_dtype_to_np_dtype(constant.data_type).name
            shape = tuple(constant.dims)
            small = math.prod(shape) <= _MAX_SIGNATURE_VALUES and dtype.startswith(
                ("float", "int", "uint")
            )
            values = None
            if dtype in _INTEGER_TYPES or small:
                values = numpy_helper.to_array(constant, str(self._graph.folder))
        known: dict[str, Any] = {}
        # JSON has no infinity, whose value does not affect the time.
        if values is not None and values.size and np.isfinite(values.astype(float)).all():
            whole = dtype in _INTEGER_TYPES
            if values.size <= (_MAX_SIGNATURE_INTEGERS if whole else _MAX_SIGNATURE_VALUES) and (
                whole or constant is not None
            ):
                known["values"] = tuple(values.ravel().tolist())
            elif whole:
                known["bounds"] = int(values.min()), int(values.max())
        return Tensor(dtype=dtype, shape=shape, constant=constant is not None, same=same, **known)


def _attribute_value(attribute: Any) -> Any:
    """Return an attribute's value for JSON; None for graphs and large constants."""
    value = helper.get_attribute_value(attribute)
    if attribute.type == _FLOAT:
        return float(str(np.float32(value)))  # 1e-05, and not 9.999999747378752e-06
    if attribute.type in _NUMERIC_KINDS:
        return value if attribute.type == _INT else list(value)
    if attribute.type == _TEXT:
        return value.decode("latin-1")
    if attribute.type == _TEXTS:
        return [text.decode("latin-1") for text in value]
    if attribute.type == _TENSOR and value.ByteSize() <= _MAX_CONSTANT_BYTES:
        return base64.b64encode(value.SerializeToString(deterministic=True)).decode()
    return None


# -----------------------------------------------------------------------------
# Traced steps, from profiles of the optimized graph.


def tracer(source: Sessions) -> StepTracer:
    """Return the tracer of a step.

    A profile is written when its session ends, so each traced step has its own session,
    with the optimized graph of the step's session.

    Args:
        source: the model file and its inputs; the model is run several times.
    """
    traced = _TracedSteps(source)
    title = f"onnxruntime {onnxruntime.__version__}'s own profile"
    return StepTracer(
        calls=tuple(traced.nodes.values()),
        ways={"profile": (title, traced.profiled)},
        untimed=_UNTIMED_RUNS,
    )


class _TracedSteps:
    """Runs of a recorded step with profiles; constants are in a folder during its lifetime."""

    def __init__(self, source: Sessions) -> None:
        # In the worker's folder, which is deleted with its process.
        parent = os.environ.get(FOLDER_VARIABLE)
        self._folder = Path(tempfile.mkdtemp(prefix="pydlbench-trace-", dir=parent))
        weakref.finalize(self, shutil.rmtree, self._folder, ignore_errors=True)
        self._graph, calls, ran = _record_graph(source, self._folder)
        self.nodes = {number: calls[number].program_call for number in ran}
        self._results = [each.name for each in source.session.get_outputs()]

    def profiled(self) -> StepTrace:
        """Run the step once in a session with a profile, after untimed runs."""
        session = self._graph.open_session(profile=True)
        for _ in range(_UNTIMED_RUNS):
            session.run(self._results, self._graph.source.feeds)
        start = time.perf_counter()
        outputs = session.run(self._results, self._graph.source.feeds)
        seconds = time.perf_counter() - start
        del outputs
        return StepTrace(seconds, node_seconds(_end_profile(session), self.nodes))


def node_seconds(events: Sequence[dict[str, Any]], nodes: Mapping[int, ProgramCall]) -> list[float]:
    """Return the seconds of each node in the last run of a profile.

    Args:
        events: all events of the profile; ``model_run`` spans a run, and nodes are numbered.
        nodes: nodes of the step, by number.

    Raises:
        PrimitiveError: a node is missing, ran several times, or is not part of the step.
    """
    run = [event for event in events if event["name"] == "model_run"][-1]
    durations: dict[int, list[float]] = {number: [] for number in nodes}
    for number, event in _node_events(events):
        if not run["ts"] <= event["ts"] <= run["ts"] + run["dur"]:
            continue
        if number not in durations:
            _refuse(f"the profile has node {number}, which did not run before")
        durations[number].append(event["dur"] / 1e6)
    for number, seconds in durations.items():
        if len(seconds) != 1:
            node = f"node {number}, {nodes[number].operator} of {nodes[number].module}"
            _refuse(f"{node}, is in the profile {len(seconds)} times")
    return [seconds for (seconds,) in durations.values()]


def _refuse(why: str) -> None:
    raise PrimitiveError(f"the profile is not of the recorded step: {why}")
