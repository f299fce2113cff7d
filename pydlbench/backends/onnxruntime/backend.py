"""The onnxruntime backend: ONNX files in sessions that share one pool of pinned threads.

After a run threads spin for a while. Threads of one session would disturb runs of another, so that
all sessions share them.
"""

import contextlib
import functools
import math
import os
import re
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any, Final

import numpy as np
import onnxruntime

from pydlbench.backends.base import insufficient_memory, is_out_of_memory
from pydlbench.backends.frameworks.backend import FrameworkBackend, Variant
from pydlbench.backends.host_clock import Operator
from pydlbench.devices.cpu.affinity import process_cpus
from pydlbench.errors import BackendMissingError, PydlbenchError, UnsupportedError, UsageError
from pydlbench.records.measurement import KernelSpec

# Level of onnxruntime's log: errors only, which are raised as well.
_LOG_LEVEL: Final = 3


class OnnxruntimeBackend(FrameworkBackend):
    """onnxruntime on the CPUs that this process is pinned to."""

    name = "onnxruntime"
    library = f"onnxruntime {onnxruntime.__version__}"

    def describe(self) -> dict[str, Any]:
        """Return versions, threads and settings."""
        return {
            "name": self.name,
            "version": onnxruntime.__version__,
            "numpy": np.__version__,
            "threads": len(self.cpus),
            "settings": {
                "provider": "CPUExecutionProvider",
                "execution_mode": "sequential",
                "use_per_session_threads": False,
                "intra_op_num_threads": len(self.cpus),
                "inter_op_num_threads": 1,
                # onnxruntime's default: threads spin until the next operator.
                "allow_spinning": True,
            },
        }

    def options(self, mode: str) -> onnxruntime.SessionOptions:
        """Return the settings of a session.

        Args:
            mode: ``optimized`` (onnxruntime's default: all optimizations of the graph) or
                ``unoptimized``.
        """
        levels = onnxruntime.GraphOptimizationLevel
        options = onnxruntime.SessionOptions()
        options.graph_optimization_level = (
            levels.ORT_ENABLE_ALL if mode == "optimized" else levels.ORT_DISABLE_ALL
        )
        options.execution_mode = onnxruntime.ExecutionMode.ORT_SEQUENTIAL
        options.use_per_session_threads = False
        options.log_severity_level = _LOG_LEVEL
        return options

    def variants(self, spec: KernelSpec) -> list[Variant]:
        """Refuse all layers, as onnxruntime runs whole files."""
        raise UnsupportedError(
            f"{self.name} runs whole ONNX files, not {spec.layer.kind} layers; nearest: "
            "pydlbench step FILE.onnx"
        )

    def empty(self, mode: str | None) -> Operator:  # noqa: ARG002 - as its base class
        """Refuse, as onnxruntime runs whole files."""
        raise UnsupportedError(f"{self.name} runs whole ONNX files: it has no empty call")


def create(device: str) -> OnnxruntimeBackend:
    """Create the backend for the CPUs of this process.

    Raises:
        UnsupportedError: the device is a GPU, or onnxruntime is too old.
    """
    if device != "cpu":
        raise UnsupportedError("onnxruntime is run on CPUs so far; ask for --device cpu")
    cpus = process_cpus()
    _share_threads(tuple(cpus))
    return OnnxruntimeBackend(device, cpus)


@functools.cache
def _share_threads(cpus: tuple[int, ...]) -> None:
    """Create the threads that all sessions share, each pinned to a CPU; the caller is one of them.

    Raises:
        UnsupportedError: this version of onnxruntime has no shared threads.
    """
    make = getattr(onnxruntime, "set_global_thread_pool_sizes", None)
    if make is None:
        raise UnsupportedError(
            f"onnxruntime {onnxruntime.__version__} has no threads that sessions share; nearest: "
            "pip install -U onnxruntime"
        )
    before = _threads()
    make(len(cpus), 1)
    for thread, cpu in zip(sorted(_threads() - before), cpus[1:], strict=False):
        os.sched_setaffinity(thread, {cpu})


def _threads() -> set[int]:
    """Return the threads of this process; empty if the system does not list threads."""
    folder = Path("/proc/self/task")
    return {int(path.name) for path in folder.iterdir()} if folder.is_dir() else set()


# Types of weights, by their numbers in ONNX: TensorProto.FLOAT is 1.
_FLOATS: Final = {1: "fp32", 10: "fp16", 16: "bf16", 11: "fp64"}
_QUANTISED: Final = {
    2: "int8",
    3: "int8",
    21: "int4",
    22: "int4",
    25: "int2",
    26: "int2",
    **dict.fromkeys((17, 18, 19, 20), "fp8"),
    23: "fp4",
}
#: Nodes before and after a quantised operator (QDQ).
_QDQ: Final = ("QuantizeLinear", "DequantizeLinear")
# Weights with fewer dimensions are ignored: scales and biases of quantised weights are float32.
_MIN_DIMENSIONS: Final = 2


def read_graph(model: str, source: str) -> Any:
    """Return the file's graph, without external weights.

    Args:
        model: name of the model, for messages.
        source: path of the file.

    Raises:
        BackendMissingError: the package ``onnx`` is not installed.
        UsageError: the file is not an ONNX file.
    """
    try:
        import onnx
    except ImportError:
        raise BackendMissingError(
            "onnx, which reads ONNX files, is not installed; get it with: "
            "pip install 'pydlbench[onnx]'"
        ) from None
    with onnx_errors(model, UsageError):
        return onnx.load(source, load_external_data=False).graph


def parameters(graph: Any) -> int:
    """Return the number of elements of the file's weights, quantised ones included."""
    nodes = [node for node in graph.node if node.op_type in _QDQ]
    scales = {name for node in nodes for name in node.input[1:]}
    quantised = {node.input[0] for node in nodes}  # also biases, which are int32
    return sum(
        math.prod(weight.dims)
        for weight in _weights(graph)
        if weight.name not in scales
        and (weight.data_type in {**_FLOATS, **_QUANTISED} or weight.name in quantised)
    )


def types_of(graph: Any) -> str:
    """Return the types that the file computes in, from its weights and floating-point inputs.

    Returns:
        ``fp32``; ``int8 QDQ`` for quantised weights with nodes that quantise; ``mixed (fp16,
        fp32)`` for several types; empty if the types are unknown.
    """
    tensors = list(_weights(graph))
    weights = [item for item in tensors if len(item.dims) >= _MIN_DIMENSIONS] or tensors
    kinds = _type_names(weight.data_type for weight in weights)
    marks = {node.op_type for node in graph.node}
    quantising = not marks.isdisjoint(_QDQ)
    if quantising and not kinds & set(_QUANTISED.values()):
        kinds.add("int8")
    if not kinds & set(_QUANTISED.values()):
        known = {tensor.name for tensor in graph.initializer}
        given = (item.type.tensor_type.elem_type for item in graph.input if item.name not in known)
        kinds |= _type_names(given)
    text = ", ".join(sorted(kinds))
    text = f"mixed ({text})" if len(kinds) > 1 else text
    return f"{text} QDQ" if quantising else text


def _type_names(types: Iterable[int]) -> set[str]:
    names = {**_FLOATS, **_QUANTISED}
    return {names[number] for number in types if number in names}


def _weights(graph: Any) -> Iterable[Any]:
    """Yield the weights of the graph, including the weights in constant nodes."""
    yield from graph.initializer
    for node in graph.node:
        if node.op_type == "Constant":
            yield from (item.t for item in node.attribute if item.name == "value")


# -----------------------------------------------------------------------------
# Errors of onnxruntime.

# Parts of onnxruntime's messages that are left out: number and name of the error, and its position
# in the source.
_NUMBER: Final = re.compile(r"\[ONNXRuntimeError\] : \d+ : \w+ : ")
_OLDEST_OPSET: Final = 7  # that onnxruntime supports
_PLACE: Final = re.compile(r"/\S*onnxruntime\S*\.(?:h|cc):\d+ .*?\)\s+(?=[A-Z])")


@contextlib.contextmanager
def onnx_errors(model: str, kind: type[PydlbenchError]) -> Iterator[None]:
    """Translate errors into one line that names the file.

    Args:
        model: name of the file.
        kind: class of pydlbench's error, unless memory ran out.
    """
    try:
        yield
    except PydlbenchError:
        raise
    except Exception as error:  # onnxruntime's errors have no other common class
        if is_out_of_memory(error):
            raise insufficient_memory(MemoryError(f"{model}: {words(error)}")) from error
        raise kind(f"{model}: {words(error)}") from error


def words(error: Exception) -> str:
    """Return onnxruntime's message in one line, without error numbers and source positions."""
    text = _PLACE.sub("", _NUMBER.sub("", " ".join(str(error).split())))[:400]
    version = re.search(r"Could not find an implementation for \w+\(([0-9]+)\)", text)
    if version and int(version[1]) < _OLDEST_OPSET:
        text += (
            f"; operators of opset {version[1]} are too old; nearest: "
            "onnx.version_converter.convert_version(model, 21)"
        )
    return f"{type(error).__name__}: {text}"
