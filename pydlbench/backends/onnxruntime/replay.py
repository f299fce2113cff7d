"""Nodes that onnxruntime runs, each alone: a file of one node, on operands made up from its text.

Floating-point operands are uniform in [-1, 1), weights without a side or with one in [0.1, 1), for
scales and variances are among them. What the text tells is as it tells: small whole numbers and
limits value by value, others within their bounds. The session has the settings of the step's, but
rewrites nothing: the node is what the step's session has made of the file.
"""

from __future__ import annotations

import base64
import time
from functools import partial
from typing import TYPE_CHECKING, Any, Final

import numpy as np
import onnx
import onnxruntime
from onnx import helper, numpy_helper

from pydlbench.backends.onnxruntime.file import types_of, words
from pydlbench.backends.onnxruntime.recording import record
from pydlbench.backends.onnxruntime.step import OnnxModel
from pydlbench.backends.steps.repeated import dispatch_s, prepare_operators
from pydlbench.backends.steps.timed_calls import CallCost, OperatorsKernel
from pydlbench.calls.seen.onnx import OnnxNode
from pydlbench.devices.cpu.affinity import pinned
from pydlbench.errors import UnsupportedError
from pydlbench.records.operator import OperatorsFacts

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from numpy.typing import NDArray

    from pydlbench.backends.onnxruntime.backend import OnnxruntimeBackend
    from pydlbench.calls.seen.onnx import Tensor
    from pydlbench.records.step import StepSpec

# What gives its input another shape, within a step in the same memory. At the ends of a file it
# is a copy: so it stands between two operators, and those alone are taken off. By type, which.
_ALIASES: Final = ("Reshape", "Flatten", "Squeeze", "Unsqueeze", "Identity")
_NEIGHBOURS: Final = {
    **dict.fromkeys(("float32", "float64", "int64", "int32", "int8"), "Neg"),
    "bool": "Not",
}
_TENSOR: Final = 4
_TEXT, _TEXTS = 3, 8
#: Of files that are written here; the oldest that has all types.
_FORMAT: Final = 10
_ONNX: Final = 17


class FileOperator:
    """A file with its inputs as an operator; see ``backends.steps.timed_calls.TimedOperator``.

    Args:
        model: the file.
        feeds: its inputs by name.
        backend: has the settings of sessions.
        cost: of a run without nodes, which is taken off; None leaves it in.
    """

    def __init__(
        self,
        model: Any,
        feeds: Mapping[str, NDArray[Any]],
        backend: OnnxruntimeBackend,
        cost: CallCost | None = None,
    ) -> None:
        session = onnxruntime.InferenceSession(
            model.SerializeToString(),
            backend.options("unoptimized"),
            providers=["CPUExecutionProvider"],
        )
        self._session, self._cost, self._cpu = session, cost, backend.cpus[0]
        self._binding = session.io_binding()
        for name, values in feeds.items():
            self._binding.bind_cpu_input(name, values)
        for each in session.get_outputs():
            self._binding.bind_output(each.name)
        floats = [each for each in feeds.values() if each.dtype.kind == "f"]
        self._first = floats[0] if floats else None

    def run(self) -> float:
        """Run it once and return the seconds of its nodes."""
        with pinned(self._cpu):
            if self._first is not None:
                self._first.sum()
            start = time.perf_counter()
            self._session.run_with_iobinding(self._binding)
            seconds = time.perf_counter() - start
            return seconds if self._cost is None else seconds - self._cost.seconds()

    def results(self) -> list[Any]:
        """Return what the last run has computed."""
        outputs: list[Any] = self._binding.copy_outputs_to_cpu()
        return outputs


def node_operator(
    node: OnnxNode, backend: OnnxruntimeBackend, seed: int = 0, cost: CallCost | None = None
) -> FileOperator:
    """Return a node as an operator, on operands that are made up.

    Args:
        node: the node.
        backend: has the settings of sessions.
        seed: of the operands.
        cost: of a run without nodes, which is taken off; None leaves it in.

    Raises:
        UnsupportedError: no such node, or operand, can be made.
    """
    if node.lacks:
        raise UnsupportedError(node.lacks)
    stream = np.random.default_rng(seed)
    made = {
        f"x{place}": (each, _values(each, stream))
        for place, each in enumerate(node.inputs)
        if each is not None and each.same is None
    }
    constants = {name: values for name, (each, values) in made.items() if each.constant}
    feeds = {name: values for name, (each, values) in made.items() if not each.constant}
    neighbour = _NEIGHBOURS.get(feeds["x0"].dtype.name) if "x0" in feeds else None
    if node.operator not in _ALIASES or neighbour is None:
        return FileOperator(_file(node, feeds, constants), feeds, backend, cost)
    first = {"x0": feeds["x0"]}
    pair = [helper.make_node(neighbour, [a], [b]) for a, b in (("x0", "in"), ("in", "y0"))]
    without = FileOperator(_file_of(pair, first, {}, ["y0"], {"": _ONNX}), first, backend)
    file = _file(node, feeds, constants, neighbour)
    return FileOperator(file, feeds, backend, CallCost(without.run))


# -----------------------------------------------------------------------------
# From a text to a file of one node.


def _values(tensor: Tensor, stream: np.random.Generator) -> NDArray[Any]:
    """Return values for a tensor, as its text tells, else random.

    Raises:
        UnsupportedError: a type that NumPy lacks.
    """
    try:
        dtype = np.dtype(tensor.dtype)
    except TypeError as error:
        raise UnsupportedError(f"no operand can be made up of {tensor.dtype}") from error
    if tensor.values is not None:
        return np.array(tensor.values, dtype).reshape(tensor.shape)
    if dtype.kind == "f":
        # Of a double each would take twice the memory.
        drawn = stream.random(tensor.shape, np.float32)
        scales = tensor.constant and len(tensor.shape) < 2
        return (drawn * 0.9 + 0.1 if scales else drawn * 2 - 1).astype(dtype, copy=False)
    if dtype.kind == "b":
        return stream.integers(0, 2, tensor.shape).astype(dtype)
    if dtype.kind not in "iu":
        raise UnsupportedError(f"no operand can be made up of {tensor.dtype}")
    limits = np.iinfo(dtype)
    # Whole numbers of a few bits are weights and activations, others most often indices.
    low, high = tensor.bounds or ((limits.min, limits.max) if limits.bits < 16 else (0, 0))
    return stream.integers(low, high, tensor.shape, dtype=dtype, endpoint=True)


def _file(
    node: OnnxNode,
    feeds: Mapping[str, NDArray[Any]],
    constants: Mapping[str, NDArray[Any]],
    neighbour: str = "",
) -> Any:
    """Return the file of a node, between two others where a neighbour is named."""
    inputs = [
        "" if each is None else f"x{place if each.same is None else each.same}"
        for place, each in enumerate(node.inputs)
    ]
    outputs = ["" if each is None else f"y{place}" for place, each in enumerate(node.outputs)]
    made = helper.make_node(node.operator, inputs, outputs, domain=node.domain)
    made.attribute.extend(_attribute(name, *each) for name, each in node.attributes.items())
    opsets = {"": _ONNX, node.domain: node.version}
    nodes = [made]
    if neighbour:
        made.input[0], made.output[0] = "in", "out"
        before = helper.make_node(neighbour, ["x0"], ["in"])
        nodes = [before, made, helper.make_node(neighbour, ["out"], ["y0"])]
    return _file_of(nodes, feeds, constants, [each for each in outputs if each], opsets)


def _file_of(
    nodes: Sequence[Any],
    feeds: Mapping[str, NDArray[Any]],
    constants: Mapping[str, NDArray[Any]],
    outputs: Sequence[str],
    opsets: Mapping[str, int],
) -> Any:
    """Return a file of some nodes; onnxruntime infers the types of its results.

    Args:
        nodes: in their order.
        feeds: arrays like its inputs, by name.
        constants: by name.
        outputs: names of its results.
        opsets: version of each domain.
    """
    graph = helper.make_graph(
        nodes,
        "node",
        [
            helper.make_tensor_value_info(
                name, helper.np_dtype_to_tensor_dtype(each.dtype), list(each.shape)
            )
            for name, each in feeds.items()
        ],
        [onnx.ValueInfoProto(name=name) for name in outputs],
        [numpy_helper.from_array(each, name) for name, each in constants.items()],
    )
    ids = [helper.make_opsetid(domain, version) for domain, version in opsets.items()]
    return helper.make_model(graph, opset_imports=ids, ir_version=_FORMAT)


def _attribute(name: str, kind: int, value: Any) -> Any:
    """Return an attribute as its node had it."""
    if kind == _TENSOR:
        value = onnx.TensorProto.FromString(base64.b64decode(value))
    elif kind == _TEXT:
        value = value.encode("latin-1")
    elif kind == _TEXTS:
        value = [each.encode("latin-1") for each in value]
    return helper.make_attribute(name, value, attr_type=kind)


# -----------------------------------------------------------------------------
# What a run costs besides its nodes, and a node that computes nothing.


def _on_one_element(backend: OnnxruntimeBackend, length: int) -> FileOperator:
    """Return a chain of so many nodes on one element; without any, its input is its result."""
    nodes = [helper.make_node("Relu", [f"x{n}"], [f"x{n + 1}"]) for n in range(length)]
    feeds = {"x0": np.ones(1, np.float32)}
    return FileOperator(_file_of(nodes, feeds, {}, [f"x{length}"], {"": _ONNX}), feeds, backend)


# -----------------------------------------------------------------------------
# What a worker is asked for.


def serve_call_list(backend: OnnxruntimeBackend, spec: StepSpec) -> OperatorsKernel:
    """List the nodes of a step that is not timed; see ``requests.request_call_list``."""
    made = OnnxModel(backend, spec)
    with made:
        made.run()
        calls = record(made)
    facts = OperatorsFacts(
        calls=calls,
        batch=made.batch,
        types=types_of(made.graph()),
    )
    return OperatorsKernel([], facts, backend.cpus)


def serve_calls(
    backend: OnnxruntimeBackend, spec: StepSpec, signatures: Sequence[str]
) -> OperatorsKernel:
    """Make nodes ready; see ``requests.request_calls``."""
    cost = CallCost(_on_one_element(backend, 0).run)
    cost.seconds()

    def make(signature: str) -> FileOperator:
        made = node_operator(OnnxNode.read(signature), backend, spec.seed, cost)
        made.run()
        return made

    ready, refused = prepare_operators(signatures, make, words)
    facts = OperatorsFacts(
        names=tuple(ready),
        dispatch_s=dispatch_s(partial(_on_one_element, backend)),
        refused=refused,
    )
    return OperatorsKernel(list(ready.values()), facts, backend.cpus)
