"""How a node of TensorFlow's graph reads, from its signature, without TensorFlow."""

from __future__ import annotations

import json
import math
from dataclasses import replace
from typing import TYPE_CHECKING, Any, Final

import msgspec

from pydlbench.calls import meaning as ours
from pydlbench.calls.meaning import Meaning, Value
from pydlbench.errors import UnsupportedError

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from pydlbench.records.operator import RecordedCall


# -----------------------------------------------------------------------------
# The text of a node: all that changes its time, and nothing else.


class NodeTensor(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """What a node reads or writes.

    Attributes:
        type: TensorFlow's name of the elements' type: ``float32``.
        shape: None where it is not known before the node runs.
        values: of a constant, where they decide what is computed: axes, shapes, factors.
        variable: whether it is a variable, and no value.
    """

    type: str
    shape: tuple[int, ...] | None = None
    values: tuple[Any, ...] | None = None
    variable: bool = False

    @property
    def bytes(self) -> int:
        """How many its elements take; 0 where nobody knows."""
        elements = 0 if self.shape is None else math.prod(self.shape)
        return elements * ours.bytes_of_type(self.type)

    @property
    def floating(self) -> bool:
        """Whether its elements are floating-point numbers."""
        return self.type.startswith(("float", "bfloat"))


class Node(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """A node without its name.

    Attributes:
        op: TensorFlow's name of the operator: ``Conv2D``, ``_FusedMatMul``.
        attributes: by name, as protocol buffers' JSON has them, text as text.
        inputs: in their order, without what only has to be done before.
        outputs: likewise.
        looped: whether it is in a loop or a branch: how often it runs, the graph does not say.
    """

    op: str
    attributes: dict[str, Any]
    inputs: tuple[NodeTensor, ...] = ()
    outputs: tuple[NodeTensor, ...] = ()
    looped: bool = False

    @property
    def text(self) -> str:
        """The signature: JSON without what is as usual, names in alphabetical order."""
        return json.dumps(msgspec.to_builtins(self), sort_keys=True, separators=(",", ":"))

    @classmethod
    def read(cls, text: str) -> Node:
        """Return the node of a signature.

        Raises:
            ValueError: it is none.
        """
        return msgspec.json.decode(text, type=cls)

    @property
    def operator(self) -> str:
        """The public operator that oneDNN's or a fused one stands for: ``Conv2D``."""
        name = self.op
        for start in ("_MklNative", "_Mkl", "_Native", "_Fused", "Fused"):
            # Fused batch normalisation is one operator.
            if name.startswith(start) and not name.startswith("FusedBatchNorm"):
                name = name.removeprefix(start)
        return name

    @property
    def padded(self) -> tuple[int, ...]:
        """Of a convolution that pads its images itself, by its last operand: before and behind.

        For each dimension of the images; empty of any other node.
        """
        values = self.inputs[-1].values if self.operator.startswith("PadWith") else None
        return tuple(int(number) for number in values or ())

    @property
    def bytes(self) -> int:
        """Of operands and results together; a variable that is handed on has none."""
        read = [tensor for tensor in self.inputs if not tensor.variable]
        return sum(tensor.bytes for tensor in (*read, *self.outputs))

    def get(self, name: str, default: Any = None) -> Any:
        """Return an attribute: a number, a text, whether something is, or several in a tuple."""
        given = self.attributes.get(name, {})
        for kind, value in given.get("list", given).items():
            as_read = _KINDS.get(kind, str)
            return tuple(map(as_read, value)) if "list" in given else as_read(value)
        return default


#: How protocol buffers' JSON has values: whole numbers as text.
_KINDS: Final = {"i": int, "f": float, "b": bool}


def is_node(signature: str) -> bool:
    """Whether a call's signature is that of a node."""
    return signature.startswith('{"attributes":')


# -----------------------------------------------------------------------------
# What a node says.


class _Call:
    """A node with its place in the step.

    Args:
        node: the node.
        backward: whether it is a part of the backward pass.
    """

    def __init__(self, node: Node, *, backward: bool) -> None:
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
        # Three sides are written NDHWC.
        layout = self.node.get("data_format", "NHWC")
        return 1 if layout.endswith("C") else 2

    def images(self, shape: Sequence[int]) -> tuple[int, ...]:
        """Return a shape of images with channels second."""
        batch, *rest = shape
        return (batch, *rest) if self.first == 2 else (batch, rest[-1], *rest[:-1])

    def sides(self, name: str, number: int) -> tuple[int, ...]:
        """Return a number for each side of what there is one for each dimension of images."""
        values = self.node.get(name)
        return values[self.first : self.first + number] if values else (1,) * number


def _value(tensor: NodeTensor, place: int) -> Value:
    shape = tensor.shape or ()
    return Value.dense(tensor.type, shape, number=place, storage=place, numbers=tensor.values)


def meaning_of(recorded: RecordedCall) -> Meaning:
    """Return what a node computes.

    The pass of a layer follows from the operator, and for products from where in the step it is.

    Raises:
        UnsupportedError: no rule is for it.
    """
    node = Node.read(recorded.signature)
    if node.looped:
        raise UnsupportedError(f"{node.op}: in a loop or a branch: how often it runs is unknown")
    rule = RULES.get(node.operator)
    if rule is None:
        raise UnsupportedError(f"{node.op}: no rule for this operator")
    # Behind a maximum pooling's gradient lies oneDNN's note of the forward pass.
    inputs = node.inputs[: 3 if node.operator in ("MaxPoolGrad", "MaxPool3DGrad") else None]
    if any(tensor.shape is None for tensor in (*inputs, *node.outputs[:1])):
        raise UnsupportedError(f"{node.op}: not all of its shapes are known")
    call = _Call(node, backward=recorded.direction == "backward")
    given = zip(node.inputs, call.values, strict=True)
    read = [value for tensor, value in given if tensor.bytes and not tensor.variable]
    part = rule(call)
    part = replace(part, dtypes=part.dtypes or ours.dtypes_of(call.values))
    written = sum(tensor.bytes for tensor in node.outputs)
    return ours.completed(part, read, written)


# -----------------------------------------------------------------------------
# What slides over images.


def _pads(
    call: _Call, sizes: Sequence[int], kernel: Sequence[int], dilation: Sequence[int]
) -> ours.Pads:
    """Return what lies around images: TensorFlow adds what is odd behind."""
    node, kind = call.node, call.node.get("padding")
    around = node.get("explicit_paddings", ()) if kind == "EXPLICIT" else node.padded
    if around:
        pairs = list(zip(around[::2], around[1::2], strict=True))
        return pairs[call.first : call.first + len(sizes)]
    if kind == "SAME":
        return ours.same_padding(sizes, kernel, call.sides("strides", len(sizes)), dilation)
    return [(0, 0)] * len(sizes)


def _convolved(
    call: _Call, inner: Sequence[int], filters: Sequence[int], outer: Sequence[int], **how: Any
) -> Meaning:
    """Return a convolution of images with filters ``(..., in, out)`` to the outer images."""
    source, result = call.images(inner), call.images(outer)
    *kernel, channels, _ = filters
    sizes, number = source[2:], len(kernel)
    if "Depthwise" in call.node.operator:
        channels = 1
    dilation = call.sides("dilations", number)
    transposed = how.get("transposed", False)
    return ours.convolution(
        result if transposed else source,
        (result[1], channels, *kernel),
        stride=call.sides("strides", number),
        pads=_pads(call, sizes, kernel, dilation),
        dilation=dilation,
        groups=source[1] // channels,
        out=sizes if transposed else None,
        **how,
    )


def _convolution(call: _Call) -> Meaning:
    """Images and filters; of a fused one what it is followed by."""
    outer = call.result.shape
    made = _convolved(call, call[0].shape, call[1].shape, outer)
    return ours.together([made, *_followed(call, call.images(outer))])


def _to_data(call: _Call) -> Meaning:
    """Sizes, filters, outer gradient; in a forward pass it is a transposed convolution."""
    how: dict[str, Any] = (
        {"gradients": ["backward-data"]} if call.backward else {"transposed": True}
    )
    return _convolved(call, call.result.shape, call[1].shape, call[2].shape, **how)


def _to_filter(call: _Call) -> Meaning:
    """Images, sizes, outer gradient; oneDNN's may give the gradient of a bias besides."""
    bias = call.node.operator.endswith("WithBias")
    gradients = ["backward-weights"]
    return _convolved(
        call, call[0].shape, call.result.shape, call[2].shape, gradients=gradients, bias=bias
    )


def _pooling(mode: str, *, backward: bool = False) -> Callable[[_Call], Meaning]:
    """Images; backward of maxima the source, the result, its gradient; of averages two.

    These are sizes and the gradient.
    """

    def rule(call: _Call) -> Meaning:
        source = call.images(call.result.shape if backward and mode == "avg" else call[0].shape)
        sizes, number = source[2:], len(source) - 2
        kernel = call.sides("ksize", number)
        return ours.pooling(
            source,
            mode=mode,
            kernel=kernel,
            stride=call.sides("strides", number),
            pads=_pads(call, sizes, kernel, (1,) * number),
            backward=backward,
        )

    return rule


def _resized(taps: int, *, backward: bool = False) -> Callable[[_Call], Meaning]:
    """Images and a size; backward the gradient, and images or a size of theirs."""

    def rule(call: _Call) -> Meaning:
        shapes = [call[0].shape, call.result.shape]
        (batch, *sizes, channels), (_, *out, _) = shapes[::-1] if backward else shapes
        how = "centres" if call.node.get("half_pixel_centers") else "whole"
        how = "aligned" if call.node.get("align_corners") else how
        return ours.resize((batch, channels, *sizes), out, taps=taps, how=how, backward=backward)

    return rule


# -----------------------------------------------------------------------------
# Products.


def _product(call: _Call) -> Meaning:
    """Left and right, each perhaps to be transposed."""
    left_turned = bool(call.node.get("transpose_a")) or bool(call.node.get("adj_x"))
    *batch, m, n = call.result.shape
    made = ours.product(
        batch,
        m,
        call[0].shape[-2 if left_turned else -1],
        n,
        left_turned=left_turned,
        right_turned=bool(call.node.get("transpose_b")) or bool(call.node.get("adj_y")),
        backward=call.backward,
    )
    rows = math.prod((*batch, m)), n
    return ours.together([made, *([] if call.backward else _followed(call, rows))])


#: What follows in a fused node, as a layer of ours.
_FUSED: Final = {
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


def _followed(call: _Call, shape: Sequence[int]) -> list[Meaning]:
    """Return what a fused node has behind its product, whose channels are second."""
    return [ours.layer_on(_FUSED.get(word, word), shape) for word in call.node.get("fused_ops", ())]


# -----------------------------------------------------------------------------
# Biases, normalisations, softmax, sums.


def _bias(call: _Call) -> Meaning:
    """Images, or rows of whatever shape, and a number for each channel."""
    shape = call.result.shape
    rows = math.prod(shape[:-1]), shape[-1]
    return ours.layer_on("bias", call.images(shape) if len(shape) > 3 else rows)


def _bias_gradient(call: _Call) -> Meaning:
    channels = call.result.elements
    return ours.channel_sums((call[0].elements // channels, channels))


def _normalised(call: _Call) -> Meaning:
    """Images, factors, summands, mean, variance; perhaps an activation behind it."""
    training, shape = bool(call.node.get("is_training")), call.images(call[0].shape)
    epsilon = call.node.get("epsilon", 1e-4)
    parts = [ours.batch_normalisation(call[0], shape, epsilon=epsilon, training=training)]
    if call.node.get("activation_mode") == "Relu":
        parts.append(ours.activation("relu", shape, training=training))
    return ours.together(parts, dtypes=(call[0].dtype,))


def _normalised_gradient(call: _Call) -> Meaning:
    """Outer gradient, images, factors, ..."""
    return ours.batch_normalisation(
        call[0],
        call.images(call[0].shape),
        epsilon=call.node.get("epsilon", 1e-4),
        training=bool(call.node.get("is_training")),
        backward=True,
    )


def _loss(call: _Call) -> Meaning:
    """Logits and labels; the loss of each row, and at once its gradient."""
    return ours.together(
        ours.layer_on("softmax-xent", call[0].shape, kind="loss", pass_=pass_, training=True)
        for pass_ in ("forward", "backward-data")
    )


def _reduced(op: str) -> Callable[[_Call], Meaning]:
    """Source and dimensions."""

    def rule(call: _Call) -> Meaning:
        axes = call[1].numbers
        over = None if axes is None else [int(axis) for axis in axes]
        return ours.reduction(op, call[0], over, channels=-1)

    return rule


# -----------------------------------------------------------------------------
# Element by element.

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
#: PyTorch's names, and what it has none for.
_ARITHMETIC: Final = {
    **{name: name.lower() for name in ("Abs", "Acos", "Asin", "Atan", "Atan2", "Ceil", "Cos")},
    **{name: name.lower() for name in ("Erf", "Erfc", "Exp", "Expm1", "Floor", "Log", "Log1p")},
    **{name: name.lower() for name in ("Neg", "Reciprocal", "Rint", "Round", "Sign", "Sin")},
    **{name: name.lower() for name in ("Sqrt", "Square", "Tan", "Add", "Sub", "Mul", "MulNoNan")},
    **{name: name.lower() for name in ("Div", "DivNoNan", "FloorDiv", "FloorMod", "Maximum")},
    **{name: name.lower() for name in ("Minimum", "Mod", "Pow", "Xdivy", "TruncateMod", "Equal")},
    **{name: name.lower() for name in ("NotEqual", "Greater", "GreaterEqual", "Less")},
    **{name: name.lower() for name in ("LessEqual", "IsFinite", "IsInf", "IsNan", "LogicalAnd")},
    **{name: name.lower() for name in ("LogicalNot", "LogicalOr", "Select", "SelectV2", "Rsqrt")},
    **{name: name.lower() for name in ("Selu",)},
    "AddV2": "add",
    "RealDiv": "div",
    "Inv": "reciprocal",
    "SeluGrad": "selu_backward",
    "InvGrad": "reciprocal_backward",
    "ReciprocalGrad": "reciprocal_backward",
    "RsqrtGrad": "rsqrt_backward",
    "SqrtGrad": "sqrt_backward",
    "ClipByValue": "clamp",
}


def _activation(op: str, pass_: str = "forward") -> Callable[[_Call], Meaning]:
    return lambda c: ours.activation(op, c.result.shape, pass_=pass_)


def _elementwise(call: _Call) -> Meaning:
    return ours.elementwise(_ARITHMETIC[call.node.operator], *call.values, channels=-1)


def _squared_difference(call: _Call) -> Meaning:
    pair = ours.elementwise("sub", *call.values), ours.elementwise("square", call.result)
    return ours.together(pair)


def _leaky(name: str) -> Callable[[_Call], Meaning]:
    return lambda c: ours.elementwise(name, *c.values, c.node.get("alpha", 0.2))


# -----------------------------------------------------------------------------
# What computes nothing.


def _copied(call: _Call) -> Meaning:
    """What is written and not computed, and no layer of ours: parts, other types."""
    if not call.result.elements:
        return ours.view()
    return ours.moved(why=call.node.op)


def _transposed(call: _Call) -> Meaning:
    """Images, and the order of their dimensions."""
    order = call[1].numbers
    if not call.result.elements or order is None:
        return _copied(call)
    axes = [int(axis) for axis in order]
    return ours.copy(call[0].permuted(axes), range(len(axes)))


def _joined(call: _Call) -> Meaning:
    """Tensors, and the dimension along which they are put behind one another."""
    *values, axis = call.values
    return ours.joined(values, int((axis.numbers or (0,))[0]))


def _gathered(call: _Call) -> Meaning:
    """A table and indices; of some the dimension along which they count."""
    along = call[2].numbers if call.node.operator == "GatherV2" else (0,)
    rows = along == (0,) and not call.node.get("batch_dims")
    return ours.gathered(call[0], [call[1]], call.result.bytes, rows=rows)


def _scattered(values: int, *, table: bool = True) -> Callable[[_Call], Meaning]:
    """Perhaps a table, indices, values.

    Args:
        values: their place.
        table: whether there is one, else zeros.
    """

    def rule(call: _Call) -> Meaning:
        name, number = call.node.operator, call[values].elements
        adds, in_place = name.endswith(("Add", "Sum")), name.startswith("Resource")
        first = call[0] if table else None
        others = call.values[int(table) :]
        return ours.scattered(first, others, number, adds=adds, in_place=in_place)

    return rule


_VIEWS: Final = (
    *("AssignVariableOp", "Enter", "Exit", "ExpandDims", "Identity", "IdentityN", "Rank"),
    *("ReadVariableOp", "Reshape", "Shape", "ShapeN", "Size", "Squeeze", "StopGradient"),
    *("PreventGradient", "EnsureShape", "CheckNumerics"),
)
_COPIES: Final = (
    *("BroadcastTo", "Cast", "DepthToSpace", "MirrorPad", "OneHot", "Pack", "Pad", "PadV2"),
    *("Range", "ReverseV2", "Slice", "SpaceToDepth", "Split", "SplitV", "StridedSlice"),
    *("StridedSliceGrad", "Tile", "Unpack"),
)
_DRAWN: Final = (
    *("Multinomial", "RandomStandardNormal", "RandomUniform", "RandomUniformInt"),
    *("StatelessRandomGetKeyCounter", "StatelessRandomNormalV2", "StatelessRandomUniformV2"),
    *("StatelessRandomUniformIntV2", "StatelessTruncatedNormalV2", "TruncatedNormal"),
)
#: Operators that libraries compute.
_LIBRARY: Final[Mapping[str, Callable[[_Call], Meaning]]] = {
    **dict.fromkeys(
        ("Conv2D", "Conv3D", "DepthwiseConv2dNative", "PadWithFusedConv2D"), _convolution
    ),
    **dict.fromkeys(
        (
            *("Conv2DBackpropInput", "Conv3DBackpropInputV2"),
            "DepthwiseConv2dNativeBackpropInput",
        ),
        _to_data,
    ),
    **dict.fromkeys(
        (
            *("Conv2DBackpropFilter", "Conv2DBackpropFilterWithBias", "Conv3DBackpropFilterV2"),
            "DepthwiseConv2dNativeBackpropFilter",
        ),
        _to_filter,
    ),
    **dict.fromkeys(("MaxPool", "MaxPool3D"), _pooling("max")),
    **dict.fromkeys(("AvgPool", "AvgPool3D"), _pooling("avg")),
    **dict.fromkeys(("MaxPoolGrad", "MaxPool3DGrad"), _pooling("max", backward=True)),
    **dict.fromkeys(("AvgPoolGrad", "AvgPool3DGrad"), _pooling("avg", backward=True)),
    **dict.fromkeys(("MatMul", "BatchMatMul", "BatchMatMulV2", "BatchMatMulV3"), _product),
    "Einsum": lambda c: ours.einsum(c.node.get("equation"), [value.shape for value in c.values]),
}
LIBRARY_NODES: Final = frozenset(_LIBRARY)
#: By operator, see :attr:`Node.operator`.
RULES: Final[Mapping[str, Callable[[_Call], Meaning]]] = {
    **_LIBRARY,
    "ResizeBilinear": _resized(2),
    "ResizeBilinearGrad": _resized(2, backward=True),
    "ResizeNearestNeighbor": _resized(1),
    "ResizeNearestNeighborGrad": _resized(1, backward=True),
    **dict.fromkeys(("BiasAdd", "BiasAddV1"), _bias),
    "BiasAddGrad": _bias_gradient,
    **dict.fromkeys(
        (
            *("FusedBatchNorm", "FusedBatchNormV2", "FusedBatchNormV3", "FusedBatchNormEx"),
            "BatchNormEx",
        ),
        _normalised,
    ),
    **dict.fromkeys(
        ("FusedBatchNormGrad", "FusedBatchNormGradV2", "FusedBatchNormGradV3"),
        _normalised_gradient,
    ),
    "Softmax": lambda c: ours.rows("softmax", c[0]),
    "LogSoftmax": lambda c: ours.rows("log-softmax", c[0]),
    **dict.fromkeys(
        ("SparseSoftmaxCrossEntropyWithLogits", "SoftmaxCrossEntropyWithLogits"),
        _loss,
    ),
    **{name: _activation(op) for name, op in _ACTIVATIONS.items()},
    **{f"{name}Grad": _activation(op, "backward-data") for name, op in _ACTIVATIONS.items()},
    **dict.fromkeys(_ARITHMETIC, _elementwise),
    "SquaredDifference": _squared_difference,
    "LeakyRelu": _leaky("leaky_relu"),
    "LeakyReluGrad": _leaky("leaky_relu_backward"),
    "L2Loss": lambda c: ours.layer_on("l2", (c[0].elements,), kind="reduction"),
    "AddN": lambda c: ours.sum_of_several(c.values),
    **{name: _reduced(name.lower()) for name in ("Sum", "Mean", "Max", "Min", "Prod", "All")},
    **{name: _reduced(name.lower()) for name in ("Any", "ArgMax", "ArgMin")},
    # A variable, and what it moves by.
    "AssignAddVariableOp": lambda c: ours.variable_update(c[0], c[1], minus=False),
    "AssignSubVariableOp": lambda c: ours.variable_update(c[0], c[1], minus=True),
    **dict.fromkeys(_VIEWS, lambda _: ours.view()),
    **dict.fromkeys(_COPIES, _copied),
    **dict.fromkeys(("Fill", "OnesLike", "ZerosLike"), lambda c: ours.filled(c.result)),
    "Transpose": _transposed,
    "ConcatV2": _joined,
    **dict.fromkeys(("Gather", "GatherV2", "GatherNd", "ResourceGather"), _gathered),
    **dict.fromkeys(
        ("ResourceScatterAdd", "TensorScatterAdd", "TensorScatterUpdate"), _scattered(2)
    ),
    "ScatterNd": _scattered(1, table=False),
    "UnsortedSegmentSum": _scattered(0, table=False),
    **dict.fromkeys(_DRAWN, lambda c: ours.random(c.values)),
}
