"""What an ONNX file says of itself: its graph, its weights, and the types that it computes in."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any, Final

from pydlbench.errors import BackendMissingError, UsageError
from pydlbench.steps.onnxruntime.errors import told

if TYPE_CHECKING:
    from collections.abc import Iterable

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


def read_graph(model: str, source: str | bytes) -> Any:
    """Return the file's graph as it is written, its weights left where they are.

    Args:
        model: its name, for messages.
        source: the path of the file, or what is in it.

    Raises:
        BackendMissingError: the package that reads it is not installed.
        UsageError: it is no ONNX file.
    """
    try:
        import onnx
    except ImportError:
        raise BackendMissingError(
            "onnx, which reads ONNX files, is not installed; get it with: pip install '.[onnx]'"
        ) from None
    with told(model, UsageError):
        if isinstance(source, bytes):
            return onnx.load_from_string(source).graph
        return onnx.load(source, load_external_data=False).graph


def parameters(graph: Any) -> int:
    """Return how many floating-point elements the file's weights have."""
    return sum(math.prod(one.dims) for one in _weights(graph) if one.data_type in _FLOATS)


def types_of(graph: Any) -> str:
    """Return what the file computes in, by the types of its weights, or of its inputs without any.

    Returns:
        ``fp32``; ``int8 QDQ`` of quantised weights between nodes that quantise; ``mixed (fp16,
        fp32)`` of several, floating-point inputs among them; empty where nothing tells.
    """
    every = list(_weights(graph))
    weights = [one for one in every if len(one.dims) >= _MATRIX] or every
    found = _named(one.data_type for one in weights)
    marks = {node.op_type for node in graph.node}
    quantising = not marks.isdisjoint(_QDQ)
    if quantising and not found & set(_QUANTISED.values()):
        found.add("int8")
    if not found & set(_QUANTISED.values()):
        known = {one.name for one in graph.initializer}
        given = (one.type.tensor_type.elem_type for one in graph.input if one.name not in known)
        found |= _named(given)
    text = ", ".join(sorted(found))
    text = f"mixed ({text})" if len(found) > 1 else text
    return f"{text} QDQ" if quantising else text


def _named(types: Iterable[int]) -> set[str]:
    names = {**_FLOATS, **_QUANTISED}
    return {names[one] for one in types if one in names}


def _weights(graph: Any) -> Iterable[Any]:
    """Give the tensors that lie in the file, or beside it, those of nodes that are constant too."""
    yield from graph.initializer
    for node in graph.node:
        if node.op_type == "Constant":
            yield from (one.t for one in node.attribute if one.name == "value")
