"""Nodes of an ONNX model from onnxruntime's profile, which has tensors and no attributes.

What sizes tell is inferred: groups, strides and paddings of a convolution, and which matrix of a
product lies transposed. FLOPs and bytes do not depend on what else there may be.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from pydlbench.ops.seen.onnx import Node, Tensor
from pydlbench.records.trace import ProgramCall

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

_DTYPES: Final = {"float": "float32", "double": "float64"}
#: ONNX's number of a list of integers, and of an integer.
_INTS, _INT = 7, 2
_VERSION: Final = 17
_WINDOWS: Final = ("MaxPool", "AveragePool", "LpPool")
_PRODUCTS: Final = ("Gemm", "FusedGemm", "MatMul", "FusedMatMul")


def call_of(module: str, args: Mapping[str, Any]) -> ProgramCall:
    """Return a node that ran.

    Args:
        module: its name.
        args: of its event.
    """
    operator = str(args.get("op_name", ""))
    inputs, outputs = (_tensors(args.get(f"{what}_type_shape")) for what in ("input", "output"))
    inputs = _with_packed(operator, inputs, outputs)
    node = Node(
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
    """Return a product's operands with its weights, which the profile lacks once packed."""
    if operator not in _PRODUCTS or not inputs or not outputs:
        return inputs
    left, result = inputs[0], outputs[0]
    packed = len(inputs) == 1 or (len(inputs) == 2 and len(inputs[1].shape) < 2 <= len(left.shape))
    if not packed or not left.shape or not result.shape:
        return inputs
    weights = Tensor(dtype=left.dtype, shape=(left.shape[-1], result.shape[-1]), constant=True)
    return (left, weights, *inputs[1:])


def _attributes(
    operator: str, inputs: Sequence[Tensor], outputs: Sequence[Tensor]
) -> dict[str, tuple[int, Any]]:
    if len(inputs) < 2 or not outputs:
        return {}
    left, right, result = inputs[0].shape, inputs[1].shape, outputs[0].shape
    if operator in ("Conv", "FusedConv", "NhwcFusedConv") and len(left) == len(right) > 2:
        return _window(left, right, result)
    if operator in ("Gemm", "FusedGemm") and len(left) == len(right) == len(result) == 2:
        turned = right[1] != result[1]
        return {"transA": (_INT, int(left[0] != result[0])), "transB": (_INT, int(turned))}
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
