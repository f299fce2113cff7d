"""Parses the signatures of nodes of TensorFlow's graphs, without TensorFlow."""

import functools
import json
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any, Final, Self

import msgspec

from pydlbench.calls import elementwise, moves, products, rows, windows
from pydlbench.calls.meaning import (
    Meaning,
    Value,
    bytes_of_type,
    combine,
    complete,
    dtypes_of,
    is_floating,
)
from pydlbench.errors import UnsupportedError
from pydlbench.ops.pointwise import SELU
from pydlbench.records.trace import RecordedCall

# -----------------------------------------------------------------------------
# The text of a node: all that affects its time, and nothing else.


class NodeTensor(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """A tensor that a node reads or writes.

    Attributes:
        type: TensorFlow's name of the elements' type: ``float32``.
        shape: size of each dimension; None if unknown before the node runs.
        values: elements of a constant that determines the computation: axes, shapes, factors.
        variable: whether the tensor is a variable instead of a value.
    """

    type: str
    shape: tuple[int, ...] | None = None
    values: tuple[Any, ...] | None = None
    variable: bool = False

    @property
    def bytes(self) -> int:
        """Bytes of all elements; 0 if unknown."""
        elements = 0 if self.shape is None else math.prod(self.shape)
        return elements * bytes_of_type(self.type)

    @property
    def floating(self) -> bool:
        """Whether the elements are floating-point numbers."""
        return is_floating(self.type)


class TensorFlowNode(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """A node without its name.

    Attributes:
        op: TensorFlow's name of the operator: ``Conv2D``, ``_FusedMatMul``.
        attributes: attributes by name, as in protocol buffers' JSON, with bytes as text.
        inputs: tensors that the node reads, in order, without control dependencies.
        outputs: tensors that the node writes, in order.
        looped: whether the node is in a loop or a branch, and runs an unknown number of times.
    """

    op: str
    attributes: dict[str, Any]
    inputs: tuple[NodeTensor, ...] = ()
    outputs: tuple[NodeTensor, ...] = ()
    looped: bool = False

    @property
    def text(self) -> str:
        """The signature: JSON without default values, names in alphabetical order."""
        return json.dumps(msgspec.to_builtins(self), sort_keys=True, separators=(",", ":"))

    @classmethod
    def read(cls, text: str) -> Self:
        """Parse a signature.

        Raises:
            ValueError: the text is not the signature of a node.
        """
        return msgspec.json.decode(text, type=cls)

    @property
    def operator(self) -> str:
        """The public operator of a oneDNN or fused variant: ``Conv2D``."""
        name = self.op
        for prefix in ("_MklNative", "_Mkl", "_Native", "_Fused", "Fused"):
            # FusedBatchNorm is a public operator.
            if name.startswith(prefix) and not name.startswith("FusedBatchNorm"):
                name = name.removeprefix(prefix)
        return name

    @property
    def padded(self) -> tuple[int, ...]:
        """Pads (before, after) of each dimension in a convolution that pads its images itself.

        They are its last operand. Empty for any other node.
        """
        values = self.inputs[-1].values if self.operator.startswith("PadWith") else None
        return tuple(int(number) for number in values or ())

    @property
    def bytes(self) -> int:
        """Bytes of operands and results together; variables are not counted."""
        read = [tensor for tensor in self.inputs if not tensor.variable]
        return sum(tensor.bytes for tensor in (*read, *self.outputs))

    def get(self, name: str, default: Any = None) -> Any:
        """Return an attribute: a number, a text, a truth value, or a tuple of these."""
        attribute = self.attributes.get(name, {})
        for kind, value in attribute.get("list", attribute).items():
            parse = _PARSERS.get(kind, str)
            return tuple(map(parse, value)) if "list" in attribute else parse(value)
        return default


#: Parsers by the kinds of protocol buffers' JSON, which has integers as text.
_PARSERS: Final = {"i": int, "f": float, "b": bool}


def is_node(signature: str) -> bool:
    """Whether a text is the signature of a node."""
    return signature.startswith('{"attributes":')


# -----------------------------------------------------------------------------
# Operands.


class _TensorFlowCall:
    """A node's operands and results, and whether it is in the backward pass.

    Args:
        node: node parsed from its signature.
        backward: whether the node is a part of the backward pass.
    """

    def __init__(self, node: TensorFlowNode, *, backward: bool) -> None:
        self.node, self.backward = node, backward
        self.values = [_value(tensor, place) for place, tensor in enumerate(node.inputs)]
        self.results = [_value(tensor, 0) for tensor in node.outputs]

    def __getitem__(self, place: int) -> Value:
        """Return an operand."""
        return self.values[place]

    @property
    def result(self) -> Value:
        """The first output."""
        return self.results[0]

    @property
    def first(self) -> int:
        """The first dimension of images that is a side."""
        # Images with three sides are NDHWC.
        layout = self.node.get("data_format", "NHWC")
        return 1 if layout.endswith("C") else 2

    def images(self, shape: Sequence[int]) -> tuple[int, ...]:
        """Return a shape of images with channels second."""
        batch, *sizes = shape
        return (batch, *sizes) if self.first == 2 else (batch, sizes[-1], *sizes[:-1])

    def sides(self, name: str, number: int) -> tuple[int, ...]:
        """Return the numbers for the sides, from an attribute of all dimensions of images."""
        values = self.node.get(name)
        return values[self.first : self.first + number] if values else (1,) * number


def _value(tensor: NodeTensor, place: int) -> Value:
    shape = tensor.shape or ()
    return Value.dense(tensor.type, shape, number=place, storage=place, numbers=tensor.values)


def meaning_of(recorded: RecordedCall) -> Meaning:
    """Return the meaning of a node.

    The pass of a layer follows from the operator, and for products also from whether the
    node is in the backward pass.

    Raises:
        UnsupportedError: there is no rule for the operator.
    """
    node = TensorFlowNode.read(recorded.signature)
    if node.looped:
        raise UnsupportedError(f"{node.op}: in a loop or a branch: how often it runs is unknown")
    rule = RULES.get(node.operator)
    if rule is None:
        raise UnsupportedError(f"{node.op}: no rule for this operator")
    # The gradient of a maximum pooling has oneDNN's workspace as its last input.
    inputs = node.inputs[: 3 if node.operator in ("MaxPoolGrad", "MaxPool3DGrad") else None]
    if any(tensor.shape is None for tensor in (*inputs, *node.outputs[:1])):
        raise UnsupportedError(f"{node.op}: not all of its shapes are known")
    call = _TensorFlowCall(node, backward=recorded.direction == "backward")
    operands = zip(node.inputs, call.values, strict=True)
    read = [value for tensor, value in operands if tensor.bytes and not tensor.variable]
    part = rule(call)
    part = replace(part, dtypes=part.dtypes or dtypes_of(call.values))
    written = sum(tensor.bytes for tensor in node.outputs)
    return complete(part, read, written)


# -----------------------------------------------------------------------------
# Convolutions, poolings, resizing.


def _pads(
    call: _TensorFlowCall, sizes: Sequence[int], kernel: Sequence[int], dilation: Sequence[int]
) -> windows.Pads:
    """Return the pads of images."""
    node, kind = call.node, call.node.get("padding")
    pads = node.get("explicit_paddings", ()) if kind == "EXPLICIT" else node.padded
    if pads:
        pairs = list(zip(pads[::2], pads[1::2], strict=True))
        return pairs[call.first : call.first + len(sizes)]
    if kind == "SAME":
        return windows.same_padding(sizes, kernel, call.sides("strides", len(sizes)), dilation)
    return [(0, 0)] * len(sizes)


def _convolve(
    call: _TensorFlowCall,
    inner: Sequence[int],
    filters: Sequence[int],
    outer: Sequence[int],
    **options: Any,
) -> Meaning:
    """Return the meaning of a convolution.

    Args:
        call: node with its operands.
        inner: shape of the images.
        filters: shape of the filters: ``(..., in, out)``.
        outer: shape of the result.
        options: further arguments of :func:`~pydlbench.calls.windows.convolution`.
    """
    source, result = call.images(inner), call.images(outer)
    *kernel, channels, _ = filters
    sizes, number = source[2:], len(kernel)
    if "Depthwise" in call.node.operator:
        channels = 1
    dilation = call.sides("dilations", number)
    transposed = options.get("transposed", False)
    return windows.convolution(
        result if transposed else source,
        (result[1], channels, *kernel),
        stride=call.sides("strides", number),
        pads=_pads(call, sizes, kernel, dilation),
        dilation=dilation,
        groups=source[1] // channels,
        out=sizes if transposed else None,
        **options,
    )


def _convolution(call: _TensorFlowCall) -> Meaning:
    outer = call.result.shape
    part = _convolve(call, call[0].shape, call[1].shape, outer)
    return combine([part, *_fused_ops(call, call.images(outer))])


def _data_gradient(call: _TensorFlowCall) -> Meaning:
    """Inputs: sizes, filters, outer gradient; in a forward pass it is a transposed convolution."""
    options: dict[str, Any] = (
        {"gradients": ["backward-data"]} if call.backward else {"transposed": True}
    )
    return _convolve(call, call.result.shape, call[1].shape, call[2].shape, **options)


def _pooling(call: _TensorFlowCall, mode: str, *, backward: bool = False) -> Meaning:
    """Inputs: images; for gradients of maxima source, result, outer gradient.

    Inputs of gradients of averages are sizes and the outer gradient.
    """
    source = call.images(call.result.shape if backward and mode == "avg" else call[0].shape)
    sizes, number = source[2:], len(source) - 2
    kernel = call.sides("ksize", number)
    return windows.pooling(
        source,
        mode=mode,
        kernel=kernel,
        stride=call.sides("strides", number),
        pads=_pads(call, sizes, kernel, (1,) * number),
        backward=backward,
    )


def _resize(call: _TensorFlowCall, taps: int, *, backward: bool = False) -> Meaning:
    """Inputs: images and a size; backward the outer gradient, and images or their size."""
    shapes = [call[0].shape, call.result.shape]
    (batch, *sizes, channels), (_, *out, _) = shapes[::-1] if backward else shapes
    coordinates = "centres" if call.node.get("half_pixel_centers") else "whole"
    return windows.resize(
        (batch, channels, *sizes),
        out,
        taps=taps,
        coordinates="aligned" if call.node.get("align_corners") else coordinates,
        backward=backward,
    )


# -----------------------------------------------------------------------------
# Products.


def _product(call: _TensorFlowCall) -> Meaning:
    """Inputs: left and right, each perhaps to be transposed."""
    left_transposed = bool(call.node.get("transpose_a")) or bool(call.node.get("adj_x"))
    *batch, m, n = call.result.shape
    part = products.matmul(
        batch,
        m,
        call[0].shape[-2 if left_transposed else -1],
        n,
        left_transposed=left_transposed,
        right_transposed=bool(call.node.get("transpose_b")) or bool(call.node.get("adj_y")),
        backward=call.backward,
    )
    shape = math.prod((*batch, m)), n
    return combine([part, *([] if call.backward else _fused_ops(call, shape))])


#: Ops of the table by the names of fused operators.
_FUSED_OPS: Final = {
    "BiasAdd": "bias",
    "Add": "add",
    "FusedBatchNorm": "batchnorm",
    "Relu": "relu",
    "Relu6": "relu6",
    "Elu": "elu",
    "Tanh": "tanh",
    "Sigmoid": "sigmoid",
    "GeluExact": "gelu",
    "GeluApproximate": "gelu-tanh",
    "_MklSwish": "silu",
    "_FusedHardSwish": "hardswish",
}


def _fused_ops(call: _TensorFlowCall, shape: Sequence[int]) -> list[Meaning]:
    """Return the meanings of the operators that are fused behind a product or convolution.

    Args:
        call: node with its operands.
        shape: shape of the result, channels second.
    """
    return [
        elementwise.memory_bound(_FUSED_OPS.get(name, name), shape)
        for name in call.node.get("fused_ops", ())
    ]


# -----------------------------------------------------------------------------
# Biases, normalisations, softmax, sums.


def _batch_normalisation(call: _TensorFlowCall) -> Meaning:
    """Inputs: images, factors, offsets, mean, variance; an activation may be fused."""
    training, shape = bool(call.node.get("is_training")), call.images(call[0].shape)
    epsilon = call.node.get("epsilon", 1e-4)
    parts = [rows.batch_normalisation(call[0], shape, epsilon=epsilon, training=training)]
    if call.node.get("activation_mode") == "Relu":
        parts.append(elementwise.activation("relu", shape, training=training))
    return combine(parts, dtypes=(call[0].dtype,))


def _bias(call: _TensorFlowCall) -> Meaning:
    shape = call.result.shape
    matrix = math.prod(shape[:-1]), shape[-1]
    return elementwise.memory_bound("bias", call.images(shape) if len(shape) > 3 else matrix)


def _loss(call: _TensorFlowCall) -> Meaning:
    """Inputs: logits and labels; results are the loss of each row and its gradient."""
    return combine(
        elementwise.memory_bound(
            "softmax-xent", call[0].shape, kind="loss", pass_=pass_, training=True
        )
        for pass_ in ("forward", "backward-data")
    )


def _cumulative_sum(call: _TensorFlowCall) -> Meaning:
    """Inputs: source and dimension."""
    if not call[1].numbers:
        raise UnsupportedError("Cumsum: along a dimension that is a value: no rule")
    return rows.along_rows("cumsum", call[0], dim=int(call[1].numbers[0]))


def _reduction(call: _TensorFlowCall, op: str) -> Meaning:
    """Inputs: source and dimensions."""
    axes = call[1].numbers
    over = None if axes is None else [int(axis) for axis in axes]
    return rows.reduction(op, call[0], over, channels=-1)


# -----------------------------------------------------------------------------
# Elementwise operators.

_ACTIVATIONS: Final = {
    "Relu": "relu",
    "Relu6": "relu6",
    "Elu": "elu",
    "Sigmoid": "sigmoid",
    "Tanh": "tanh",
    "Softplus": "softplus",
    "Swish": "silu",
    "Mish": "mish",
}
#: Operators of :func:`~pydlbench.calls.elementwise.arithmetic`.
_ARITHMETIC: Final = {
    **{name: name.lower() for name in ("Abs", "Acos", "Asin", "Atan", "Atan2", "Ceil", "Cos")},
    **{name: name.lower() for name in ("Erf", "Erfc", "Exp", "Expm1", "Floor", "Log", "Log1p")},
    **{name: name.lower() for name in ("Neg", "Reciprocal", "Rint", "Round", "Sign", "Sin")},
    **{name: name.lower() for name in ("Sqrt", "Square", "Tan", "Add", "Sub", "Mul", "MulNoNan")},
    **{name: name.lower() for name in ("Div", "DivNoNan", "FloorDiv", "FloorMod", "Maximum")},
    **{name: name.lower() for name in ("Minimum", "Mod", "Pow", "Xdivy", "TruncateMod", "Rsqrt")},
    **{name: name.lower() for name in ("IsFinite", "IsInf", "IsNan", "LogicalAnd", "LogicalNot")},
    "Equal": "eq",
    "NotEqual": "ne",
    "Greater": "gt",
    "GreaterEqual": "ge",
    "Less": "lt",
    "LessEqual": "le",
    "LogicalOr": "logicalor",
    "Select": "where",
    "SelectV2": "where",
    "AddV2": "add",
    "RealDiv": "div",
    "Inv": "reciprocal",
    "InvGrad": "reciprocal_backward",
    "ReciprocalGrad": "reciprocal_backward",
    "RsqrtGrad": "rsqrt_backward",
    "SqrtGrad": "sqrt_backward",
    "ClipByValue": "clamp",
}


def _activation(op: str, pass_: str = "forward") -> Callable[[_TensorFlowCall], Meaning]:
    return lambda c: elementwise.activation(op, c.result.shape, pass_=pass_)


def _leaky_relu(name: str) -> Callable[[_TensorFlowCall], Meaning]:
    return lambda c: elementwise.arithmetic(name, *c.values, c.node.get("alpha", 0.2))


# -----------------------------------------------------------------------------
# Data movement.


def _other_copy(call: _TensorFlowCall) -> Meaning:
    """Copy a part, or to another type, without a layer."""
    return moves.view() if not call.result.elements else moves.other_copy(what=call.node.op)


#: Bytes to whose multiples TensorFlow aligns tensors.
_ALIGNMENT: Final = 64


def _drops_first(call: _TensorFlowCall) -> bool:
    """Whether no dimension but the first is dropped."""
    if call.node.operator == "Unpack":
        return bool(call.node.get("axis", 0) % len(call[0].shape) == 0)
    # Bits by place in the list of slices, in which new dimensions may be before the first.
    dropped, new = (call.node.get(f"{name}_axis_mask", 0) for name in ("shrink", "new"))
    return not dropped or (dropped & -dropped == dropped and (dropped - 1) & ~new == 0)


def _parts(call: _TensorFlowCall, source: int = 0) -> Meaning:
    """Copy parts of a source; whole rows of its first dimension are views if they are aligned.

    The last of a strided slice's inputs are its steps.
    """
    shape, results = call[source].shape, [value for value in call.results if value.elements]
    steps = call[3].numbers if call.node.operator == "StridedSlice" else ()
    if not results:
        return moves.view()
    if steps is None or set(steps) - {1}:
        return _other_copy(call)
    row = shape[1:]
    aligned = bool(row) and call[source].bytes // shape[0] % _ALIGNMENT == 0
    whole = _drops_first(call) and all(
        row == value.shape[len(value.shape) - len(row) :] for value in results
    )
    if (aligned and whole) or all(shape == value.shape for value in results):
        return moves.view()
    copies = [moves.copy(value, range(len(value.shape)), value.bytes) for value in results]
    return combine(copies)


def _slice_gradient(call: _TensorFlowCall) -> Meaning:
    """Inputs: shape, first and last places, steps, outer gradient."""
    outer, steps = call[4], call[3].numbers
    if not outer.elements or steps is None or set(steps) - {1}:
        return _other_copy(call)
    return moves.fill_and_copy(outer, call.result.shape, range(len(outer.shape)), outer.bytes)


def _taken(call: _TensorFlowCall) -> Meaning:
    """Inputs: source, then repeats, pads or the dimensions; both limits of a band."""
    source, name, numbers = call[0], call.node.operator, call[1].numbers
    if not call.result.elements:
        return moves.view()
    if name in ("Tile", "BroadcastTo"):
        return moves.taken("tile", source, source.bytes, result=call.result.shape)
    if name == "MirrorPad" and call.node.get("mode") == "REFLECT":
        return moves.taken("reflect", source, source.bytes, result=call.result.shape)
    if name in ("ReverseV2", "Roll") and (axes := call.values[-1].numbers):
        return moves.taken("roll" if name == "Roll" else "flip", source, source.bytes, axes)
    band = numbers and call.values[-1].numbers and (numbers[0], call.values[-1].numbers[0])
    if name == "MatrixBandPart" and band in ((-1, 0), (0, -1)):
        return moves.taken("tril" if band == (-1, 0) else "triu", source, source.bytes)
    return _other_copy(call)


def _pad(call: _TensorFlowCall) -> Meaning:
    """Inputs: source, pads, perhaps the number."""
    source, result = call[0], call.result
    if not result.elements:
        return moves.view()
    return moves.fill_and_copy(source, result.shape, range(len(result.shape)), source.bytes)


def _cast(call: _TensorFlowCall) -> Meaning:
    """Input: source."""
    if not call.result.elements:
        return moves.view()
    return moves.cast(call[0], call.result.dtype, call[0].bytes)


def _transpose(call: _TensorFlowCall) -> Meaning:
    """Inputs: images, and the order of their dimensions."""
    order = call[1].numbers
    if not call.result.elements or order is None:
        return _other_copy(call)
    axes = [int(axis) for axis in order]
    return moves.copy(call[0].permute(axes), range(len(axes)))


def _concat(call: _TensorFlowCall) -> Meaning:
    """Inputs: tensors, and the dimension."""
    *values, axis = call.values
    return moves.concat(values, int((axis.numbers or (0,))[0]))


def _gather(call: _TensorFlowCall) -> Meaning:
    """Inputs: table, indices, and for ``GatherV2`` the dimension."""
    along = call[2].numbers if call.node.operator == "GatherV2" else (0,)
    axis = int(along[0]) if along and not call.node.get("batch_dims") else None
    return moves.gather(call[0], [call[1]], call.result.bytes, axis=axis)


def _scatter(call: _TensorFlowCall, values: int, *, table: bool = True) -> Meaning:
    """Inputs: perhaps a table, indices, values.

    Args:
        call: node with its operands.
        values: position of the values.
        table: whether there is a table; if not, values are added to zeros.
    """
    name, count = call.node.operator, call[values].elements
    adds, in_place = name.endswith(("Add", "Sum")), name.startswith("Resource")
    first = call[0] if table else None
    others = call.values[int(table) :]
    return moves.scatter(first, others, count, adds=adds, in_place=in_place)


_VIEWS: Final = (
    *("AssignVariableOp", "Enter", "Exit", "ExpandDims", "Identity", "IdentityN", "Rank"),
    *("ReadVariableOp", "Reshape", "Shape", "ShapeN", "Size", "Squeeze", "StopGradient"),
    *("PreventGradient", "EnsureShape", "CheckNumerics"),
)
_COPIES: Final = (*("DepthToSpace", "OneHot", "Range", "SpaceToDepth"),)
_RANDOM: Final = (
    *("Multinomial", "RandomStandardNormal", "RandomUniform", "RandomUniformInt"),
    *("StatelessRandomGetKeyCounter", "StatelessRandomNormalV2", "StatelessRandomUniformV2"),
    *("StatelessRandomUniformIntV2", "StatelessTruncatedNormalV2", "TruncatedNormal"),
)
#: Rules of operators that libraries compute.
_LIBRARY_RULES: Final[Mapping[str, Callable[[_TensorFlowCall], Meaning]]] = {
    **dict.fromkeys(
        (
            *("Conv2D", "Conv3D", "DepthwiseConv2dNative"),
            *("PadWithConv2D", "PadWithFusedConv2D"),
        ),
        _convolution,
    ),
    **dict.fromkeys(
        (
            *("Conv2DBackpropInput", "Conv3DBackpropInputV2"),
            "DepthwiseConv2dNativeBackpropInput",
        ),
        _data_gradient,
    ),
    **dict.fromkeys(
        (
            *("Conv2DBackpropFilter", "Conv2DBackpropFilterWithBias", "Conv3DBackpropFilterV2"),
            "DepthwiseConv2dNativeBackpropFilter",
        ),
        # Images, sizes, outer gradient; a variant of oneDNN has the gradient of a bias too.
        lambda call: _convolve(
            call,
            call[0].shape,
            call.result.shape,
            call[2].shape,
            gradients=["backward-weights"],
            bias=call.node.operator.endswith("WithBias"),
        ),
    ),
    **dict.fromkeys(("MaxPool", "MaxPool3D"), lambda c: _pooling(c, "max")),
    **dict.fromkeys(("AvgPool", "AvgPool3D"), lambda c: _pooling(c, "avg")),
    **dict.fromkeys(("MaxPoolGrad", "MaxPool3DGrad"), lambda c: _pooling(c, "max", backward=True)),
    **dict.fromkeys(("AvgPoolGrad", "AvgPool3DGrad"), lambda c: _pooling(c, "avg", backward=True)),
    **dict.fromkeys(("MatMul", "BatchMatMul", "BatchMatMulV2", "BatchMatMulV3"), _product),
    "Einsum": lambda c: products.einsum(
        c.node.get("equation"), [value.shape for value in c.values]
    ),
}
LIBRARY_NODES: Final = frozenset(_LIBRARY_RULES)
#: Rules by :attr:`TensorFlowNode.operator`.
RULES: Final[Mapping[str, Callable[[_TensorFlowCall], Meaning]]] = {
    **_LIBRARY_RULES,
    "ResizeBilinear": lambda c: _resize(c, 2),
    "ResizeBilinearGrad": lambda c: _resize(c, 2, backward=True),
    "ResizeNearestNeighbor": lambda c: _resize(c, 1),
    "ResizeNearestNeighborGrad": lambda c: _resize(c, 1, backward=True),
    **dict.fromkeys(("BiasAdd", "BiasAddV1"), _bias),
    "BiasAddGrad": lambda call: elementwise.channel_sums(
        (call[0].elements // call.result.elements, call.result.elements)
    ),
    **dict.fromkeys(
        (
            *("FusedBatchNorm", "FusedBatchNormV2", "FusedBatchNormV3", "FusedBatchNormEx"),
            "BatchNormEx",
        ),
        _batch_normalisation,
    ),
    **dict.fromkeys(
        ("FusedBatchNormGrad", "FusedBatchNormGradV2", "FusedBatchNormGradV3"),
        lambda call: rows.batch_normalisation(
            call[0],
            call.images(call[0].shape),
            epsilon=call.node.get("epsilon", 1e-4),
            training=bool(call.node.get("is_training")),
            backward=True,
        ),
    ),
    "Softmax": lambda c: rows.along_rows("softmax", c[0]),
    "LogSoftmax": lambda c: rows.along_rows("log-softmax", c[0]),
    "Cumsum": _cumulative_sum,
    **dict.fromkeys(
        ("SparseSoftmaxCrossEntropyWithLogits", "SoftmaxCrossEntropyWithLogits"),
        _loss,
    ),
    **{name: _activation(op) for name, op in _ACTIVATIONS.items()},
    **{f"{name}Grad": _activation(op, "backward-data") for name, op in _ACTIVATIONS.items()},
    **dict.fromkeys(
        _ARITHMETIC,
        lambda call: elementwise.arithmetic(
            _ARITHMETIC[call.node.operator], *call.values, channels=-1
        ),
    ),
    "Selu": lambda c: elementwise.exponential_linear(c.result, *SELU),
    "SeluGrad": lambda c: elementwise.exponential_linear(c.result, *SELU, pass_="backward-data"),
    "SquaredDifference": lambda call: combine(
        [elementwise.arithmetic("sub", *call.values), elementwise.arithmetic("square", call.result)]
    ),
    "LeakyRelu": _leaky_relu("leaky_relu"),
    "LeakyReluGrad": _leaky_relu("leaky_relu_backward"),
    "L2Loss": lambda c: elementwise.memory_bound("l2", (c[0].elements,), kind="reduction"),
    "AddN": lambda c: elementwise.sum_of_tensors(c.values),
    **{
        name: functools.partial(_reduction, op=name.lower())
        for name in ("Sum", "Mean", "Max", "Min", "Prod", "All")
    },
    **{
        name: functools.partial(_reduction, op=name.lower()) for name in ("Any", "ArgMax", "ArgMin")
    },
    # Variable and delta.
    "AssignAddVariableOp": lambda c: moves.variable_update(c[0], c[1], subtracts=False),
    "AssignSubVariableOp": lambda c: moves.variable_update(c[0], c[1], subtracts=True),
    **dict.fromkeys(_VIEWS, lambda _: moves.view()),
    **dict.fromkeys(_COPIES, _other_copy),
    **dict.fromkeys(("Pad", "PadV2"), _pad),
    "Cast": _cast,
    **dict.fromkeys(("Slice", "SplitV", "StridedSlice", "Unpack"), _parts),
    "Split": lambda c: _parts(c, 1),
    "StridedSliceGrad": _slice_gradient,
    "Pack": lambda c: moves.concat(c.values, c.node.get("axis", 0), stacked=True),
    **dict.fromkeys(("Tile", "BroadcastTo", "MirrorPad", "ReverseV2", "Roll"), _taken),
    "MatrixBandPart": _taken,
    **dict.fromkeys(("Fill", "OnesLike", "ZerosLike"), lambda c: moves.fill(c.result)),
    "Transpose": _transpose,
    "ConcatV2": _concat,
    **dict.fromkeys(("Gather", "GatherV2", "GatherNd", "ResourceGather"), _gather),
    **dict.fromkeys(
        ("ResourceScatterAdd", "TensorScatterAdd", "TensorScatterUpdate"), lambda c: _scatter(c, 2)
    ),
    "ScatterNd": lambda c: _scatter(c, 1, table=False),
    "UnsortedSegmentSum": lambda c: _scatter(c, 0, table=False),
    **dict.fromkeys(_RANDOM, lambda c: moves.random(c.values)),
}
