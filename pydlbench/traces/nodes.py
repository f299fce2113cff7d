"""Nodes of an ONNX model from onnxruntime's profile, which has tensors and no attributes.

What sizes tell is inferred: groups, strides and paddings of a convolution, and which matrix of a
product lies transposed. FLOPs and bytes do not depend on what else there may be.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Final

from pydlbench.calls.seen.onnx import OnnxNode, Tensor
from pydlbench.records.trace import ProgramCall

_DTYPES: Final = {"float": "float32", "double": "float64"}
#: ONNX's number of a list of integers, and of an integer.
_INTS, _INT = 7, 2
_VERSION: Final = 17
_WINDOWS: Final = ("MaxPool", "AveragePool", "LpPool")
_PRODUCTS: Final = ("Gemm", "FusedGemm", "MatMul", "FusedMatMul")
#: Number of gates of recurrent layers, whose weights onnxruntime packs.
_GATES: Final = {"LSTM": 4, "GRU": 3}


def call_of(module: str, args: Mapping[str, Any]) -> ProgramCall:
    """Return a node that ran.

    Args:
        module: its name.
        args: of its event.
    """
    operator = str(args.get("op_name", ""))
    inputs, outputs = (_tensors(args.get(f"{what}_type_shape")) for what in ("input", "output"))
    inputs = _with_packed(operator, inputs, outputs)
    inputs = _with_batches_first(operator, inputs, outputs)
    node = OnnxNode(
        operator=operator,
        version=_VERSION,
        inputs=inputs,
        outputs=outputs,
        attributes=_attributes(operator, inputs, outputs),
        lacks="its window is not in onnxruntime's profile" if operator in _WINDOWS else "",
    )
    return ProgramCall(
        operator=node.name,
        module=module,
        direction="forward",
        signature=node.signature,
        bytes=node.bytes,
    )


def _tensors(listed: Any) -> tuple[Tensor, ...]:
    items = listed if isinstance(listed, list) else []
    pairs = [pair for each in items if isinstance(each, dict) for pair in each.items()]
    return tuple(
        Tensor(dtype=_DTYPES.get(str(dtype), str(dtype)), shape=tuple(shape))
        for dtype, shape in pairs
        if isinstance(shape, list) and all(type(size) is int for size in shape)
    )


def _with_packed(
    operator: str, inputs: tuple[Tensor, ...], outputs: tuple[Tensor, ...]
) -> tuple[Tensor, ...]:
    """Return a call's operands with its weights, which the profile lacks once they are packed."""
    if not inputs or not outputs or not inputs[0].shape or not outputs[0].shape:
        return inputs
    left, result = inputs[0], outputs[0]
    sides = [len(each.shape) for each in inputs[1:3]]
    shapes: list[tuple[int, ...]] = []
    if operator in _GATES and 3 not in sides[:1] and len(result.shape) > 2:
        hidden, gates = result.shape[-1], (result.shape[-3], _GATES[operator] * result.shape[-1])
        shapes = [(*gates, left.shape[-1]), (*gates, hidden)]
    elif operator in _PRODUCTS and (not sides or sides[0] < 2 <= len(left.shape)):
        shapes = [(left.shape[-1], result.shape[-1])]
    weights = [Tensor(dtype=left.dtype, shape=shape, constant=True) for shape in shapes]
    return (left, *weights, *inputs[1:])


def _with_batches_first(
    operator: str, inputs: tuple[Tensor, ...], outputs: tuple[Tensor, ...]
) -> tuple[Tensor, ...]:
    """Return a product's operands, those whose rows lie before their batches turned round."""
    if operator != "FusedMatMul" or not outputs:
        return inputs
    batches = outputs[0].shape[:-2]
    return tuple(
        Tensor(dtype=each.dtype, shape=(*batches, each.shape[0], each.shape[-1]))
        if each.shape[:-2] != batches == each.shape[1:-1]
        else each
        for each in inputs
    )


def _attributes(
    operator: str, inputs: Sequence[Tensor], outputs: Sequence[Tensor]
) -> dict[str, tuple[int, Any]]:
    if len(inputs) < 2 or not outputs:
        return {}
    left, right, result = inputs[0].shape, inputs[1].shape, outputs[0].shape
    if operator in ("Conv", "FusedConv", "NhwcFusedConv") and len(left) == len(right) > 2:
        return _window(left, right, result)
    if operator in ("Gemm", "FusedGemm", "FusedMatMul") and len(left) == len(result) > 1:
        turned = left[-2] != result[-2]
        inner = left[-2 if turned else -1]
        across = len(right) > 1 and (right[-2], right[-1]) != (inner, result[-1])
        return {"transA": (_INT, int(turned)), "transB": (_INT, int(across))}
    return {}


def _window(
    source: Sequence[int], weights: Sequence[int], result: Sequence[int]
) -> dict[str, tuple[int, Any]]:
    strides, before, after = [], [], []
    for size, taps, out in zip(source[2:], weights[2:], result[2:], strict=True):
        stride = max(1, round(size / max(1, out)))
        around = max(0, (out - 1) * stride + taps - size)
        strides.append(stride)
        # Where it is odd, the pads that a model asks for are mostly alike, and the last is idle.
        before.append(around - around // 2)
        after.append(around // 2)
    groups = max(1, source[1] // max(1, weights[1]))
    return {
        "group": (_INT, groups),
        "strides": (_INTS, strides),
        "pads": (_INTS, [*before, *after]),
    }
