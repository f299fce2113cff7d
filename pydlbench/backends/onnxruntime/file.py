"""What an ONNX file says of itself, and what onnxruntime says of it where it refuses."""

from __future__ import annotations

import contextlib
import math
import re
from typing import TYPE_CHECKING, Any, Final

from pydlbench.backends.base import insufficient_memory, is_out_of_memory
from pydlbench.errors import BackendMissingError, PydlbenchError, UsageError

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

# Types of weights, by ONNX's number of each: TensorProto.FLOAT is 1.
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
#: Nodes that stand around an operator which computes in whole numbers (QDQ).
_QDQ: Final = ("QuantizeLinear", "DequantizeLinear")
# Of vectors, scales and biases of quantised weights are float32 too: matrices and more count.
_MATRIX: Final = 2


def read_graph(model: str, source: str) -> Any:
    """Return the file's graph as it is written, its weights left where they are.

    Args:
        model: its name, for messages.
        source: the path of the file.

    Raises:
        BackendMissingError: the package that reads it is not installed.
        UsageError: it is no ONNX file.
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
    """Return how many floating-point elements the file's weights have."""
    return sum(math.prod(each.dims) for each in _weights(graph) if each.data_type in _FLOATS)


def types_of(graph: Any) -> str:
    """Return what the file computes in, by the types of its weights, or of its inputs without any.

    Returns:
        ``fp32``; ``int8 QDQ`` of quantised weights between nodes that quantise; ``mixed (fp16,
        fp32)`` of several, floating-point inputs among them; empty where nothing tells.
    """
    every = list(_weights(graph))
    weights = [each for each in every if len(each.dims) >= _MATRIX] or every
    kinds = _named(each.data_type for each in weights)
    marks = {node.op_type for node in graph.node}
    quantising = not marks.isdisjoint(_QDQ)
    if quantising and not kinds & set(_QUANTISED.values()):
        kinds.add("int8")
    if not kinds & set(_QUANTISED.values()):
        known = {each.name for each in graph.initializer}
        given = (each.type.tensor_type.elem_type for each in graph.input if each.name not in known)
        kinds |= _named(given)
    text = ", ".join(sorted(kinds))
    text = f"mixed ({text})" if len(kinds) > 1 else text
    return f"{text} QDQ" if quantising else text


def _named(types: Iterable[int]) -> set[str]:
    names = {**_FLOATS, **_QUANTISED}
    return {names[each] for each in types if each in names}


def _weights(graph: Any) -> Iterable[Any]:
    """Give the tensors that lie in the file, or beside it, those of nodes that are constant too."""
    yield from graph.initializer
    for node in graph.node:
        if node.op_type == "Constant":
            yield from (each.t for each in node.attribute if each.name == "value")


# -----------------------------------------------------------------------------
# What onnxruntime raises, translated in one line.

# What onnxruntime puts around its sentences: the error's number and name, and its place in the
# source.
_NUMBER: Final = re.compile(r"\[ONNXRuntimeError\] : \d+ : \w+ : ")
_PLACE: Final = re.compile(r"/\S*onnxruntime\S*\.(?:h|cc):\d+ .*?\)\s+(?=[A-Z])")


@contextlib.contextmanager
def onnx_errors(model: str, kind: type[PydlbenchError]) -> Iterator[None]:
    """Turn what is raised within into one line that names the file.

    Args:
        model: the file.
        kind: of the error; memory that ran out is one of its own.
    """
    try:
        yield
    except PydlbenchError:
        raise
    except Exception as error:  # onnxruntime's errors have no class in common but this
        if is_out_of_memory(error):
            raise insufficient_memory(MemoryError(f"{model}: {words(error)}")) from error
        raise kind(f"{model}: {words(error)}") from error


def words(error: Exception) -> str:
    """Return in one line what onnxruntime says, without its numbers and places in its source."""
    text = _PLACE.sub("", _NUMBER.sub("", " ".join(str(error).split())))
    return f"{type(error).__name__}: {text[:400]}"
