"""Nodes of onnxruntime's steps alone: a file of one node, on operands defined by its signature.

Floating-point operands are uniform in [-1, 1); constants with at most one dimension are in
[0.1, 1), as scales and variances are among them. Values in the signature are used: small integers
and limits, and bounds of other integers. The session has the settings of the step, without
optimizations, as the node comes from the optimized graph.
"""

from __future__ import annotations

import base64
import time
from collections.abc import Mapping, Sequence
from functools import partial
from typing import Any, Final

import numpy as np
import onnx
import onnxruntime
from numpy.typing import NDArray
from onnx import helper, numpy_helper

from pydlbench.backends.onnxruntime.backend import OnnxruntimeBackend
from pydlbench.backends.onnxruntime.file import types_of, words
from pydlbench.backends.onnxruntime.recording import record
from pydlbench.backends.onnxruntime.step import OnnxModel
from pydlbench.backends.steps.repeated import dispatch_s, prepare_operators
from pydlbench.backends.steps.timed_calls import CallCost, OperatorsKernel
from pydlbench.calls.seen.onnx import OnnxNode, Tensor
from pydlbench.devices.cpu.affinity import pinned
from pydlbench.errors import UnsupportedError
from pydlbench.records.operator import OperatorsFacts
from pydlbench.records.step import StepSpec

# Operators that only change the shape, and reuse the memory of their input in a step. At the ends
# of a file they would copy: they are timed between two operators, whose own time is subtracted.
# These are selected by type.
_ALIASES: Final = ("Reshape", "Flatten", "Squeeze", "Unsqueeze", "Identity")
_NEIGHBOURS: Final = {
    **dict.fromkeys(("float32", "float64", "int64", "int32", "int8"), "Neg"),
    "bool": "Not",
}
_TENSOR: Final = 4
_TEXT, _TEXTS = 3, 8
#: Versions of the files' format and of ONNX: the oldest ones with all types.
_FORMAT_VERSION: Final = 10
_ONNX_VERSION: Final = 17


class FileOperator:
    """A file with its inputs as an operator; see ``backends.steps.timed_calls.TimedOperator``.

    Args:
        model: the file.
        feeds: inputs of the file by name.
        backend: backend with the settings of sessions.
        cost: cost of a run without nodes, which is subtracted; None to subtract nothing.
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
        for output in session.get_outputs():
            self._binding.bind_output(output.name)
        floats = [array for array in feeds.values() if array.dtype.kind == "f"]
        self._first = floats[0] if floats else None

    def run(self) -> float:
        """Run the file once and return the seconds of its nodes."""
        with pinned(self._cpu):
            if self._first is not None:
                self._first.sum()
            start = time.perf_counter()
            self._session.run_with_iobinding(self._binding)
            seconds = time.perf_counter() - start
            return seconds if self._cost is None else seconds - self._cost.seconds()

    def results(self) -> list[Any]:
        """Return the results of the last run."""
        outputs: list[Any] = self._binding.copy_outputs_to_cpu()
        return outputs


def node_operator(
    node: OnnxNode, backend: OnnxruntimeBackend, seed: int = 0, cost: CallCost | None = None
) -> FileOperator:
    """Return a node as an operator on random operands.

    Args:
        node: the node to build.
        backend: backend with the settings of sessions.
        seed: seed of the operands.
        cost: cost of a run without nodes, which is subtracted; None to subtract nothing.

    Raises:
        UnsupportedError: the node or one of its operands cannot be built.
    """
    if node.lacks:
        raise UnsupportedError(node.lacks)
    stream = np.random.default_rng(seed)
    operands = {
        f"x{index}": (tensor, _values(tensor, stream))
        for index, tensor in enumerate(node.inputs)
        if tensor is not None and tensor.same is None
    }
    constants = {name: values for name, (tensor, values) in operands.items() if tensor.constant}
    feeds = {name: values for name, (tensor, values) in operands.items() if not tensor.constant}
    neighbour = _NEIGHBOURS.get(feeds["x0"].dtype.name) if "x0" in feeds else None
    if node.operator not in _ALIASES or neighbour is None:
        return FileOperator(_file(node, feeds, constants), feeds, backend, cost)
    first = {"x0": feeds["x0"]}
    pair = [helper.make_node(neighbour, [a], [b]) for a, b in (("x0", "in"), ("in", "y0"))]
    without = FileOperator(_file_of(pair, first, {}, ["y0"], {"": _ONNX_VERSION}), first, backend)
    file = _file(node, feeds, constants, neighbour)
    return FileOperator(file, feeds, backend, CallCost(without.run))


# -----------------------------------------------------------------------------
# Files of one node.


def _values(tensor: Tensor, stream: np.random.Generator) -> NDArray[Any]:
    """Return the values of a tensor that its signature has, else random ones.

    Raises:
        UnsupportedError: NumPy lacks the type.
    """
    try:
        dtype = np.dtype(tensor.dtype)
    except TypeError as error:
        raise UnsupportedError(f"no operand can be made up of {tensor.dtype}") from error
    if tensor.values is not None:
        return np.array(tensor.values, dtype).reshape(tensor.shape)
    if dtype.kind == "f":
        # Drawing doubles would take twice the memory.
        drawn = stream.random(tensor.shape, np.float32)
        scales = tensor.constant and len(tensor.shape) < 2
        return (drawn * 0.9 + 0.1 if scales else drawn * 2 - 1).astype(dtype, copy=False)
    if dtype.kind == "b":
        return stream.integers(0, 2, tensor.shape).astype(dtype)
    if dtype.kind not in "iu":
        raise UnsupportedError(f"no operand can be made up of {tensor.dtype}")
    limits = np.iinfo(dtype)
    # Integers of few bits are weights and activations, others are mostly indices.
    low, high = tensor.bounds or ((limits.min, limits.max) if limits.bits < 16 else (0, 0))
    return stream.integers(low, high, tensor.shape, dtype=dtype, endpoint=True)


def _file(
    node: OnnxNode,
    feeds: Mapping[str, NDArray[Any]],
    constants: Mapping[str, NDArray[Any]],
    neighbour: str = "",
) -> Any:
    """Return the file of a node, optionally between two nodes of a neighbour operator."""
    inputs = [
        "" if tensor is None else f"x{index if tensor.same is None else tensor.same}"
        for index, tensor in enumerate(node.inputs)
    ]
    outputs = ["" if tensor is None else f"y{index}" for index, tensor in enumerate(node.outputs)]
    target = helper.make_node(node.operator, inputs, outputs, domain=node.domain)
    target.attribute.extend(_attribute(name, *item) for name, item in node.attributes.items())
    opsets = {"": _ONNX_VERSION, node.domain: node.version}
    nodes = [target]
    if neighbour:
        target.input[0], target.output[0] = "in", "out"
        before = helper.make_node(neighbour, ["x0"], ["in"])
        nodes = [before, target, helper.make_node(neighbour, ["out"], ["y0"])]
    return _file_of(nodes, feeds, constants, [name for name in outputs if name], opsets)


def _file_of(
    nodes: Sequence[Any],
    feeds: Mapping[str, NDArray[Any]],
    constants: Mapping[str, NDArray[Any]],
    outputs: Sequence[str],
    opsets: Mapping[str, int],
) -> Any:
    """Return a file of nodes; onnxruntime infers the types of its outputs.

    Args:
        nodes: the nodes, in their order.
        feeds: arrays with types and shapes of the inputs, by name.
        constants: constants by name.
        outputs: names of the outputs.
        opsets: version of each domain of operators.
    """
    graph = helper.make_graph(
        nodes,
        "node",
        [
            helper.make_tensor_value_info(
                name, helper.np_dtype_to_tensor_dtype(array.dtype), list(array.shape)
            )
            for name, array in feeds.items()
        ],
        [onnx.ValueInfoProto(name=name) for name in outputs],
        [numpy_helper.from_array(array, name) for name, array in constants.items()],
    )
    ids = [helper.make_opsetid(domain, version) for domain, version in opsets.items()]
    return helper.make_model(graph, opset_imports=ids, ir_version=_FORMAT_VERSION)


def _attribute(name: str, kind: int, value: Any) -> Any:
    """Return an attribute from its kind and its value in a signature."""
    if kind == _TENSOR:
        value = onnx.TensorProto.FromString(base64.b64decode(value))
    elif kind == _TEXT:
        value = value.encode("latin-1")
    elif kind == _TEXTS:
        value = [text.encode("latin-1") for text in value]
    return helper.make_attribute(name, value, attr_type=kind)


# -----------------------------------------------------------------------------
# Overhead of a run, and of a node.


def _chain(backend: OnnxruntimeBackend, length: int) -> FileOperator:
    """Return a chain of nodes on one element; with length 0 the input is the output."""
    nodes = [helper.make_node("Relu", [f"x{n}"], [f"x{n + 1}"]) for n in range(length)]
    feeds = {"x0": np.ones(1, np.float32)}
    return FileOperator(
        _file_of(nodes, feeds, {}, [f"x{length}"], {"": _ONNX_VERSION}), feeds, backend
    )


# -----------------------------------------------------------------------------
# Requests.


def serve_call_list(backend: OnnxruntimeBackend, spec: StepSpec) -> OperatorsKernel:
    """List the nodes of a step that is not timed; see ``requests.request_call_list``."""
    model = OnnxModel(backend, spec)
    with model:
        model.run()
        calls = record(model)
    facts = OperatorsFacts(calls=calls, batch=model.batch, types=types_of(model.graph))
    return OperatorsKernel([], facts, backend.cpus)


def serve_calls(
    backend: OnnxruntimeBackend, spec: StepSpec, signatures: Sequence[str]
) -> OperatorsKernel:
    """Prepare nodes; see ``requests.request_calls``."""
    cost = CallCost(_chain(backend, 0).run)
    cost.seconds()

    def make(signature: str) -> FileOperator:
        operator = node_operator(OnnxNode.read(signature), backend, spec.seed, cost)
        operator.run()
        return operator

    ready, refused = prepare_operators(signatures, make, words)
    facts = OperatorsFacts(
        names=tuple(ready),
        dispatch_s=dispatch_s(partial(_chain, backend)),
        refused=refused,
    )
    return OperatorsKernel(list(ready.values()), facts, backend.cpus)
