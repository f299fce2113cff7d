"""The nodes that onnxruntime runs in a step, with their shapes and their share of its own profile.

A session writes the graph that it has made of the file. That graph, its nodes numbered, runs once
more as it is, and the profile of that run tells the shapes of all that its nodes write. What
onnxruntime fused is one node; a loop or a branch is one, whatever is in it.
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
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, Protocol

import numpy as np
import onnx
import onnxruntime
from onnx import helper, numpy_helper

from pydlbench.backends.capabilities import FOLDER_VARIABLE
from pydlbench.backends.steps.trace import StepTrace, StepTracer
from pydlbench.calls.seen.onnx import OnnxNode, Tensor
from pydlbench.calls.step_calls import StepCall, distinct_calls
from pydlbench.errors import PrimitiveError

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence

    from numpy.typing import NDArray

    from pydlbench.records.operator import RecordedCall
    from pydlbench.records.trace import ProgramCall


#: Runs before those that count, and those.
_UNTIMED: Final = 2
_STEPS: Final = 5
#: Behind the name of a node in a profile.
SUFFIX: Final = "_kernel_time"
#: Before the number of a node, where its name stood: no file has such names by chance.
PREFIX: Final = "pydlbench."
#: What onnxruntime puts behind the name of a node whose maps it lays out in blocks of channels.
_BLOCKED: Final = "_nchwc"
#: onnxruntime's names of types that NumPy calls otherwise.
_NAMES: Final = {"float": "float32", "double": "float64"}
#: Types of values that say what is computed: shapes, axes, indices, conditions.
_WHOLE: Final = ("int64", "int32", "bool")
#: So many values stand in a signature: of whole numbers, and of others (a limit, a scale).
_VALUES: Final = 64
_SCALARS: Final = 8
#: A larger constant among the attributes is not in it.
_LARGE: Final = 4096
#: Kinds of attributes that are kept as they are: numbers, texts, and lists of them.
_FLOAT, _INT = 1, 2
_PLAIN: Final = (_FLOAT, _INT, 6, 7)
_TEXT, _TEXTS, _TENSOR, _GRAPHS = 3, 8, 4, (5, 10)
_TOO_LARGE: Final = "a large constant is among its attributes"
#: Constants of so many bytes lie beside the written graph: it may be larger than a file can be.
_EXTERNAL_BYTES: Final = "1024"


class Sessions(Protocol):
    """A file that sessions are made of; see ``onnxruntime.step.OnnxModel``.

    Attributes:
        session: that of the step.
        feeds: its inputs by name.
    """

    session: onnxruntime.InferenceSession
    feeds: dict[str, NDArray[Any]]

    def options(self, mode: str | None = None) -> onnxruntime.SessionOptions:
        """Return the settings of a session in a mode; None is the step's."""
        ...

    def opened(
        self, options: onnxruntime.SessionOptions, path: Path | None = None
    ) -> onnxruntime.InferenceSession:
        """Return a session of the file, or of one that was made of it."""
        ...


def record(made: Sessions) -> tuple[RecordedCall, ...]:
    """Return the distinct nodes of a step, in the order in which the graph has them.

    Args:
        made: the file with its inputs; it is run several times.
    """
    with tempfile.TemporaryDirectory(prefix="pydlbench-graph-") as name:
        return distinct_calls(_recorded(made, Path(name))[1])


def _recorded(made: Sessions, folder: Path) -> tuple[Graph, list[StepCall], Collection[int]]:
    """Return a step's graph, its nodes as calls, and the numbers of those that the profile has.

    Args:
        made: the file with its inputs; it is run several times.
        folder: an empty one, for large constants.
    """
    graph = Graph(made, folder)
    events = _profiled(graph)
    values = _whole_numbers(graph, events)
    return graph, _NodeWriter(graph, events, values).calls(), sorted(events)


class Graph:
    """The graph that a session has made of a file, its nodes numbered.

    Args:
        made: the file with its inputs.
        folder: to write it into.

    Attributes:
        made: see above, as the folder.
        model: the graph, large constants left where they are.
        names: of the nodes, as the user knows them, or by their operators and numbers.
        constants: by name.
    """

    def __init__(self, made: Sessions, folder: Path) -> None:
        self.made, self.folder = made, folder
        options = made.options()
        options.optimized_model_filepath = str(folder / "graph.onnx")
        place = "session.optimized_model_external_initializers_"
        options.add_session_config_entry(f"{place}file_name", "weights.bin")
        options.add_session_config_entry(f"{place}min_size_in_bytes", _EXTERNAL_BYTES)
        made.opened(options)
        self.model: Any = onnx.load(folder / "graph.onnx", load_external_data=False)
        self.nodes: Sequence[Any] = self.model.graph.node
        self.names = []
        for number, node in enumerate(self.nodes):
            own = node.name.removesuffix(_BLOCKED).strip("/")
            self.names.append(own or f"{node.op_type}_{number}")
            node.name = f"{PREFIX}{number}"
        self.constants = {each.name: each for each in self.model.graph.initializer}
        self.versions = {each.domain: each.version for each in self.model.opset_import}

    def opened(self, *, profile: bool = False) -> onnxruntime.InferenceSession:
        """Return a session of this very graph, which writes a profile if it is asked to."""
        options = self.made.options("unoptimized")
        if profile:
            options.enable_profiling = True
            options.profile_file_prefix = str(self.folder / "profile")
        path = self.folder / "numbered.onnx"
        path.write_bytes(self.model.SerializeToString())
        return self.made.opened(options, path)


@dataclass(frozen=True, slots=True)
class _Event:
    """What a profile says of a node: seconds in a step, and type and shape of what it writes."""

    seconds: float
    outputs: tuple[tuple[str, tuple[int, ...]], ...]


def _profiled(graph: Graph) -> dict[int, _Event]:
    """Run the graph and return what its profile says of each node, by number."""
    session = graph.opened(profile=True)
    for _ in range(_UNTIMED + _STEPS):
        session.run(None, graph.made.feeds)
    entries: dict[int, list[dict[str, Any]]] = {}
    for number, item in _of_nodes(_ended(session)):
        entries.setdefault(number, []).append(item)
    return {
        number: _Event(
            seconds=statistics.median(item["dur"] for item in ran[_UNTIMED:]) / 1e6,
            outputs=tuple(
                (_NAMES.get(dtype, dtype), tuple(shape))
                for each in ran[-1]["args"].get("output_type_shape", ())
                for dtype, shape in each.items()
            ),
        )
        for number, ran in entries.items()
    }


def _ended(session: onnxruntime.InferenceSession) -> list[dict[str, Any]]:
    """End a session's profile and return its events."""
    path = Path(session.end_profiling())
    events: list[dict[str, Any]] = json.loads(path.read_bytes())
    path.unlink()
    return events


def _of_nodes(events: Iterable[dict[str, Any]]) -> Iterator[tuple[int, dict[str, Any]]]:
    """Yield the events that are runs of numbered nodes, with their numbers."""
    for each in events:
        name = each["name"].removesuffix(SUFFIX)
        if name != each["name"] and name.startswith(PREFIX):
            yield int(name.removeprefix(PREFIX)), each


def _written(graph: Graph, events: Mapping[int, _Event]) -> dict[str, tuple[str, tuple[int, ...]]]:
    """Return type and shape of what nodes write, by name; what the profile leaves out is not."""
    tensors: dict[str, tuple[str, tuple[int, ...]]] = {}
    for number, node in enumerate(graph.nodes):
        names = [each for each in node.output if each]
        outputs = events[number].outputs if number in events else ()
        # Of results that are no tensors, or that nobody wants, there is none.
        if len(names) == len(outputs):
            tensors |= dict(zip(names, outputs, strict=True))
    return tensors


def _whole_numbers(graph: Graph, events: Mapping[int, _Event]) -> dict[str, NDArray[Any]]:
    """Return the whole numbers that nodes read and others have computed, by name."""
    read = {name for node in graph.nodes for name in node.input}
    kinds = {
        name: dtype
        for name, (dtype, _) in _written(graph, events).items()
        if dtype in _WHOLE and name in read
    }
    if not kinds:
        return {}
    known = {each.name for each in graph.model.graph.output}
    for name, dtype in kinds.items():
        if name not in known:
            element = helper.np_dtype_to_tensor_dtype(np.dtype(dtype))
            graph.model.graph.output.append(helper.make_tensor_value_info(name, element, None))
    names = list(kinds)
    return dict(zip(names, graph.opened().run(names, graph.made.feeds), strict=True))


# -----------------------------------------------------------------------------
# From nodes to their texts.


class _NodeWriter:
    """Writes the signatures of a graph's nodes.

    Args:
        graph: that has them.
        events: what the profile says.
        values: whole numbers that nodes read.
    """

    def __init__(
        self, graph: Graph, events: Mapping[int, _Event], values: Mapping[str, NDArray[Any]]
    ) -> None:
        self._graph, feeds = graph, graph.made.feeds
        self._known = {name: (each.dtype.name, each.shape) for name, each in feeds.items()}
        self._known |= _written(graph, events)
        self._values = {**feeds, **values}
        self._events = events

    def node(self, number: int) -> OnnxNode:
        """Return a node's text."""
        each = self._graph.nodes[number]
        names = list(each.input)
        read = tuple(self._read(name, place, names) for place, name in enumerate(names))
        wrote = tuple(self._plain(name) for name in each.output)
        lacks = "" if number in self._events else "the profile has no such node"
        for name, tensor in zip([*names, *each.output], [*read, *wrote], strict=True):
            if name and tensor is None:
                lacks = lacks or f"the profile tells no shape of {name}"
        attributes: dict[str, tuple[int, Any]] = {}
        for attribute in each.attribute:
            value = _value(attribute)
            if value is None:
                graph = attribute.type in _GRAPHS
                lacks = "it has a graph of its own" if graph else lacks or _TOO_LARGE
                digest = hashlib.sha256(attribute.SerializeToString(deterministic=True))
                value = digest.hexdigest()[:16]
            attributes[attribute.name] = attribute.type, value
        return OnnxNode(
            operator=each.op_type,
            domain=each.domain,
            version=self._graph.versions.get(each.domain, 1),
            inputs=read,
            outputs=wrote,
            attributes=attributes,
            lacks=lacks,
        )

    def calls(self) -> list[StepCall]:
        """Return all nodes in the order in which the graph has them."""
        whole = sum(each.seconds for each in self._events.values())
        shares = {number: each.seconds / whole for number, each in self._events.items() if whole}
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

    def _plain(self, name: str) -> Tensor | None:
        """Return what is written; None where that is nothing, or unknown."""
        if name not in self._known:
            return None
        dtype, shape = self._known[name]
        return Tensor(dtype=dtype, shape=shape)

    def _read(self, name: str, place: int, names: Sequence[str]) -> Tensor | None:
        """Return what is read at a place."""
        first = names.index(name)
        same = first if first != place else None
        constant = self._graph.constants.get(name)
        if constant is None:
            plain = self._plain(name)
            if plain is None:
                return None
            dtype, shape, values = plain.dtype, plain.shape, self._values.get(name)
        else:
            dtype = helper.tensor_dtype_to_np_dtype(constant.data_type).name
            shape = tuple(constant.dims)
            small = math.prod(shape) <= _SCALARS and dtype.startswith(("float", "int", "uint"))
            values = None
            if dtype in _WHOLE or small:
                values = numpy_helper.to_array(constant, str(self._graph.folder))
        how: dict[str, Any] = {}
        # JSON has no infinity; which value it is changes no time.
        if values is not None and values.size and np.isfinite(values.astype(float)).all():
            whole = dtype in _WHOLE
            if values.size <= (_VALUES if whole else _SCALARS) and (whole or constant is not None):
                how["values"] = tuple(values.ravel().tolist())
            elif whole:
                how["bounds"] = int(values.min()), int(values.max())
        return Tensor(dtype=dtype, shape=shape, constant=constant is not None, same=same, **how)


def _value(attribute: Any) -> Any:
    """Return an attribute's value as JSON can have it; None of a graph, and of what is large."""
    value = helper.get_attribute_value(attribute)
    if attribute.type == _FLOAT:
        return float(str(np.float32(value)))  # 1e-05, and not 9.999999747378752e-06
    if attribute.type in _PLAIN:
        return value if attribute.type == _INT else list(value)
    if attribute.type == _TEXT:
        return value.decode("latin-1")
    if attribute.type == _TEXTS:
        return [each.decode("latin-1") for each in value]
    if attribute.type == _TENSOR and value.ByteSize() <= _LARGE:
        return base64.b64encode(value.SerializeToString(deterministic=True)).decode()
    return None


# -----------------------------------------------------------------------------
# A step traced: by its own profile of the graph that its session has made of the file.


def tracer(made: Sessions) -> StepTracer:
    """Return what runs the step traced.

    A profile is written once its session ends, so that each traced step has a session of its own,
    of the very graph that the step's session has made of the file.

    Args:
        made: the file with its inputs; it is run several times.
    """
    traced = _Traced(made)
    source = f"onnxruntime {onnxruntime.__version__}'s own profile"
    return StepTracer(
        calls=tuple(traced.nodes.values()),
        ways={"profile": (source, traced.profiled)},
        untimed=_UNTIMED,
    )


class _Traced:
    """A recorded step that is run traced; its constants lie in a folder as long as it is there."""

    def __init__(self, made: Sessions) -> None:
        # Beneath the worker's folder, which goes with its process.
        there = os.environ.get(FOLDER_VARIABLE)
        self._folder = Path(tempfile.mkdtemp(prefix="pydlbench-trace-", dir=there))
        weakref.finalize(self, shutil.rmtree, self._folder, ignore_errors=True)
        self._graph, calls, ran = _recorded(made, self._folder)
        self.nodes = {number: calls[number].program_call for number in ran}
        self._results = [each.name for each in made.session.get_outputs()]

    def profiled(self) -> StepTrace:
        """Run the step in a session that profiles itself, after runs that do not count."""
        session = self._graph.opened(profile=True)
        for _ in range(_UNTIMED):
            session.run(self._results, self._graph.made.feeds)
        start = time.perf_counter()
        outputs = session.run(self._results, self._graph.made.feeds)
        seconds = time.perf_counter() - start
        del outputs
        return StepTrace(seconds, node_seconds(_ended(session), self.nodes))


def node_seconds(events: Sequence[dict[str, Any]], nodes: Mapping[int, ProgramCall]) -> list[float]:
    """Return the seconds of each node in the last run of a profile.

    Args:
        events: of the whole file; ``model_run`` spans a run, and nodes are numbered.
        nodes: of the step, by number.

    Raises:
        PrimitiveError: a node is missing, ran several times, or is not of the step.
    """
    run = [each for each in events if each["name"] == "model_run"][-1]
    durations: dict[int, list[float]] = {number: [] for number in nodes}
    for number, each in _of_nodes(events):
        if not run["ts"] <= each["ts"] <= run["ts"] + run["dur"]:
            continue
        if number not in durations:
            _refuse(f"the profile has node {number}, which did not run before")
        durations[number].append(each["dur"] / 1e6)
    for number, seconds in durations.items():
        if len(seconds) != 1:
            node = f"node {number}, {nodes[number].operator} of {nodes[number].module}"
            _refuse(f"{node}, is in the profile {len(seconds)} times")
    return [seconds for (seconds,) in durations.values()]


def _refuse(why: str) -> None:
    raise PrimitiveError(f"the profile is not of the recorded step: {why}")
