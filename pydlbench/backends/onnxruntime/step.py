"""An ONNX file as a step: one run of an onnxruntime session on random inputs; and its nodes alone.

As in a user's loop, the step is ``session.run(None, inputs)``, which allocates the outputs.

A node alone is a file of one node, on operands defined by its signature.

Floating-point operands are uniform in [-1, 1); constants with at most one dimension are in
[0.1, 1), as scales and variances are among them. Values in the signature are used: small integers
and limits, and bounds of other integers. The session has the settings of the step, without
optimizations, as the node comes from the optimized graph.
"""

import base64
import contextlib
import functools
import math
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any, Final

import msgspec
import numpy as np
import onnx
import onnxruntime
from numpy.typing import NDArray
from onnx import helper, numpy_helper

from pydlbench.backends.onnxruntime.backend import (
    OnnxruntimeBackend,
    onnx_errors,
    parameters,
    read_graph,
    types_of,
    words,
)
from pydlbench.backends.onnxruntime.recording import record, tracer
from pydlbench.backends.steps.inputs import load_values
from pydlbench.backends.steps.timed_calls import (
    CallCost,
    OperatorsKernel,
    dispatch_s,
    prepare_operators,
)
from pydlbench.backends.steps.trace import StepTracer
from pydlbench.backends.steps.user_model import FedModel, Tensors
from pydlbench.calls.seen.onnx import OnnxNode, Tensor
from pydlbench.devices.cpu.affinity import pinned
from pydlbench.devices.cpu.facts import read_cpu_facts
from pydlbench.errors import (
    InsufficientMemoryError,
    ModelError,
    UnsupportedError,
    UsageError,
    unknown_word,
)
from pydlbench.models.user_model import find_onnx
from pydlbench.records.step import Check, StepSpec
from pydlbench.records.trace import OperatorsFacts
from pydlbench.records.user_model import UserInput, UserModelSpec
from pydlbench.units import format_bytes


def _output_arrays(value: Any) -> list[NDArray[Any]]:
    several = value if isinstance(value, list) else [value]
    return [each for each in several if isinstance(each, np.ndarray)]


_TENSORS: Final = Tensors(
    find=_output_arrays,
    make=lambda values, kind: values.astype(kind),
    dtype=lambda array: str(array.dtype.name),
    is_finite=lambda array: bool(np.isfinite(array).all()),
    host=lambda array: array.astype(np.float32) if array.dtype.kind == "f" else array,
    assign=np.copyto,
)


class OnnxModel(FedModel):
    """An ONNX file in a session, with its inputs.

    A context manager, which pins the calling thread to the first CPU, as the other threads are
    pinned, and translates onnxruntime's errors.

    Args:
        backend: backend with the settings of sessions.
        spec: definition of the step.

    Raises:
        UsageError: the file is not an ONNX file, or the requested inputs do not match.
        UnsupportedError: there are no random values of an input's type.
        InsufficientMemoryError: the inputs do not fit in memory.
    """

    tensors = _TENSORS

    def __init__(self, backend: OnnxruntimeBackend, spec: StepSpec) -> None:
        super().__init__(spec)
        self._backend = backend
        self._source = str(find_onnx(spec.model))
        self.session = self.open_session(self.options())
        if not self.session.get_outputs():
            raise UsageError(f"{spec.model}: it has no outputs, so that there is nothing to run")
        if len(backend.cpus) > 1:
            self.notes.append("its threads spin between operators, as by default")
        with onnx_errors(spec.model, UsageError):
            self.feeds = random_inputs(spec, self.session.get_inputs())

    def options(self, mode: str | None = None) -> onnxruntime.SessionOptions:
        """Return the settings of a session in a mode; None for the step's mode."""
        return self._backend.options(mode or str(self.spec.mode))

    @functools.cached_property
    def graph(self) -> Any:
        """The file's graph."""
        return read_graph(self.spec.model, self._source)

    def open_session(
        self, options: onnxruntime.SessionOptions, path: Path | None = None
    ) -> onnxruntime.InferenceSession:
        """Return a session of the file, or of a file that was derived from it.

        Raises:
            UsageError: the file is no ONNX file, or an operator, a version or a file of weights is
                missing.
        """
        with onnx_errors(self.spec.model, UsageError):
            return onnxruntime.InferenceSession(
                self._source if path is None else path, options, providers=["CPUExecutionProvider"]
            )

    def guards(self) -> tuple[contextlib.AbstractContextManager[None], ...]:
        """Return the contexts that translate errors, and pin the calling thread."""
        return onnx_errors(self.spec.model, ModelError), pinned(self._backend.cpus[0])

    def run(self) -> list[Any]:
        """Run the step once."""
        outputs: list[Any] = self.session.run(None, self.feeds)
        return outputs

    def synchronize(self) -> None:
        """Return immediately, as a run returns with its results."""

    def tracer(self, run: Callable[[], Any]) -> StepTracer:  # noqa: ARG002 - as its base class
        """Return the tracer of the step; see ``steps.definition.StepModel``."""
        # A session profiles all of its runs or none.
        return tracer(self)

    def results(self, result: list[Any]) -> Mapping[str, Mapping[str, Any]]:
        """Return the outputs that are tensors, by name."""
        pairs = zip(self.session.get_outputs(), result, strict=True)
        return {"output": {each.name: x for each, x in pairs if isinstance(x, np.ndarray)}}

    def facts(self, result: list[Any]) -> dict[str, Any]:
        """Return facts of the file."""
        return {
            **super().facts(result),
            "parameters": parameters(self.graph),
            "types": types_of(self.graph),
            "environment": {"module": self.graph.name or "a graph"},
        }

    def checks(self, result: list[Any]) -> tuple[Check, ...]:
        """Check that the outputs are finite, and as in the folder that the inputs are from."""
        files = [item.file for item in self.user_spec.inputs if item.file]
        paths = [Path(file).parent / f"output_{n}.pb" for file in files[:1] for n in range(99)]
        pairs = zip(self.session.get_outputs(), paths, result, strict=False)
        known = [(each.name, load_values(str(path)), x) for each, path, x in pairs if path.exists()]
        wrong = [
            f"{name} differs from its file"
            for name, expected, x in known
            if expected.shape != x.shape or not np.allclose(x, expected, 1e-3, 1e-5, equal_nan=True)
        ]
        text = "; ".join(wrong) or f"{len(known)} outputs agree with their files"
        compared = Check(name="outputs", status="failed" if wrong else "ok", detail=text)
        return (*super().checks(result), *([compared] if known else []))

    def inputs(self) -> Iterable[tuple[str | None, Any]]:
        """Return the inputs by position, as for ``--input``."""
        return ((None, value) for value in self.feeds.values())


# -----------------------------------------------------------------------------
# The inputs of an ONNX file, from its graph, --batch and --input.

# NumPy's types, by onnxruntime's names of them.
_DTYPES: Final = {
    "tensor(float)": "float32",
    "tensor(double)": "float64",
    "tensor(float16)": "float16",
    "tensor(int64)": "int64",
    "tensor(int32)": "int32",
    **{
        f"tensor({kind})": kind for kind in ("uint8", "uint16", "uint32", "uint64", "int8", "int16")
    },
    "tensor(bool)": "bool",
}


def random_inputs(spec: StepSpec, wanted: Sequence[Any]) -> dict[str, NDArray[Any]]:
    """Return random inputs by name: in [-1, 1), integers 0 or 1 or below a limit of ``--input``.

    Args:
        spec: the step with its batch and inputs.
        wanted: name, shape and type of each input, as described by onnxruntime; a dimension that is
            not a number is dynamic.

    Raises:
        UsageError: a dimension is open or zero, or the request contradicts the file.
        UnsupportedError: there are no random values of a type.
        InsufficientMemoryError: the inputs do not fit in memory.
    """
    given = _inputs_by_name(spec, wanted)
    values = {name: load_values(item.file) for name, item in given.items() if item.file}
    for name, array in values.items():
        kind = array.dtype.name
        given[name] = msgspec.structs.replace(given[name], shape=array.shape, dtype=kind)
    stream = np.random.default_rng(spec.seed)
    shapes = {each.name: _shape(spec, each, given.get(each.name)) for each in wanted}
    for name, shape in list(shapes.items())[:1]:
        if spec.batch not in (None, *shape[:1]):
            raise UsageError(
                f"--batch {spec.batch}: the input {name} of {spec.model} is "
                f"{'x'.join(map(str, shape))}; nearest: leave it out"
            )
    dtypes = {each.name: _dtype(spec, each) for each in wanted}
    _check_room(spec, shapes, dtypes)
    below = {name: user_input.below for name, user_input in given.items()}
    return {
        name: values[name]
        if name in values
        else _TENSORS.random(shape, dtypes[name], stream, below.get(name))
        for name, shape in shapes.items()
    }


def _check_room(
    spec: StepSpec, shapes: Mapping[str, Sequence[int]], dtypes: Mapping[str, str]
) -> None:
    """Check that inputs fit in the available memory.

    Raises:
        InsufficientMemoryError: they do not fit; the message has their size.
    """
    size = sum(math.prod(shape) * np.dtype(dtypes[name]).itemsize for name, shape in shapes.items())
    available = read_cpu_facts().memory_available_bytes
    if available is not None and size > available:
        raise InsufficientMemoryError(
            f"{spec.model}: its inputs take {format_bytes(size)} of the {format_bytes(available)} "
            "that are free; try a smaller --batch or --input"
        )


def _inputs_by_name(spec: StepSpec, wanted: Sequence[Any]) -> dict[str, UserInput]:
    """Return the inputs of ``--input`` by name; inputs without names are assigned by position."""
    names = [each.name for each in wanted]
    given: dict[str, UserInput] = {}
    inputs = (spec.own or UserModelSpec()).inputs
    for item in inputs:
        if item.name is None:
            continue
        if item.name not in names:
            raise unknown_word(
                f"--input {item.text}: {spec.model} has no input {item.name}", item.name, names, 1
            )
        given[item.name] = item
    missing = [name for name in names if name not in given]
    plain = [each for each in inputs if each.name is None]
    if len(plain) > len(missing):
        raise UsageError(
            f"--input {plain[len(missing)].text}: {spec.model} has {len(names)} inputs only: "
            f"{', '.join(names)}; nearest: leave it out"
        )
    return given | dict(zip(missing, plain, strict=False))


def _dtype(spec: StepSpec, wanted: Any) -> str:
    if wanted.type not in _DTYPES:
        raise UnsupportedError(
            f"{spec.model}: its input {wanted.name} is a {wanted.type}; random ones are made of "
            f"{', '.join(_DTYPES)}"
        )
    return _DTYPES[wanted.type]


def _shape(spec: StepSpec, wanted: Any, given: UserInput | None) -> tuple[int, ...]:
    """Return the shape of an input; the batch is the first dimension, if it is dynamic."""
    if 0 in wanted.shape:
        shape = "x".join(map(str, wanted.shape))
        raise UsageError(f"{spec.model}: its input {wanted.name} is {shape}, without any element")
    known = [size if isinstance(size, int) and size > 0 else None for size in wanted.shape]
    shape = "x".join(str(size or "?") for size in wanted.shape)
    dtype = _dtype(spec, wanted)
    # A suggestion, with the sizes that the file defines.
    usual = [spec.batch or 8] + [128] * len(known)
    sizes = "x".join(str(size or other) for size, other in zip(known, usual, strict=False))
    near = f"--input {sizes}" + (f":{dtype}" if dtype != "float32" else "")
    if given is not None:
        fits = len(given.shape) == len(known) and all(
            expected in (None, size) for expected, size in zip(known, given.shape, strict=True)
        )
        if not fits or given.dtype != dtype:
            raise UsageError(
                f"--input {given.text}: the input {wanted.name} of {spec.model} is {shape} of "
                f"{dtype}; nearest: {near}"
            )
        return given.shape
    if spec.batch is not None and known and known[0] is None:
        known[0] = spec.batch
    if None in known:
        batched = known[0] is None and None not in known[1:]
        raise UsageError(
            f"{spec.model}: its input {wanted.name} is {shape}, which leaves dimensions open; "
            f"nearest: {'--batch 8' if batched else near}"
        )
    return tuple(size for size in known if size is not None)


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
