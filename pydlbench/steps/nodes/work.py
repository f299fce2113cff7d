"""What the nodes of a TensorFlow graph compute: our layers, their FLOPs, the least bytes.

:func:`work_of_graph_node` reads the signature of one node. Nothing is measured, and TensorFlow is
not imported. FLOPs are counted as those of PyTorch's calls are, see
:mod:`pydlbench.steps.aten.work`; what no rule knows is None with the reason, never zero.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

from pydlbench.errors import UnsupportedError
from pydlbench.models.work import Work
from pydlbench.ops.resize import flops_of_pixel
from pydlbench.ops.table import OPS, build_layer
from pydlbench.ops.tensors import merged_elementwise, merged_move, merged_reduction
from pydlbench.steps.aten.call import Found, on_images
from pydlbench.steps.aten.windows import check_centres
from pydlbench.steps.aten.work import CallWork
from pydlbench.steps.nodes.text import Node

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping, Sequence

    from pydlbench.ops.op import Layer
    from pydlbench.records.operator import RecordedCall
    from pydlbench.steps.nodes.text import NodeTensor


def work_of_graph_node(recorded: RecordedCall) -> CallWork:
    """Return what a node computes.

    The pass of a layer follows from the operator, and for products from where in the step it is.

    Args:
        recorded: a node of a graph, see :mod:`pydlbench.steps.nodes.text`.
    """
    node = Node.read(recorded.signature)
    one = _Read(node, recorded.direction == "backward", (*recorded.names, "")[0])
    try:
        if node.looped:
            raise UnsupportedError(
                f"{node.op}: in a loop or a branch: how often it runs is unknown"
            )
        if node.operator not in _RULES:
            raise UnsupportedError(f"{node.op}: no rule for this operator")
        # Behind a maximum pooling's gradient lies oneDNN's note of the forward pass.
        read = node.inputs[: 3 if node.operator == "MaxPoolGrad" else None]
        if any(each.shape is None for each in (*read, *node.outputs[:1])):
            raise UnsupportedError(f"{node.op}: not all of its shapes are known")
        found = _RULES[node.operator](one)
    except UnsupportedError as error:
        return CallWork.unknown(str(error))
    except (IndexError, TypeError, ValueError, ZeroDivisionError) as error:
        # Other operands than the rule was written for: another version of TensorFlow.
        return CallWork.unknown(f"{node.op}: no rule for these operands: {error}")
    size = 0 if found.kind == "view" else node.bytes
    if found.kind == "update":
        size += 2 * one.source.bytes  # read and overwritten where it lies
    return CallWork.of(
        found, size, _dtypes([one.source] if found.kind == "normalisation" else node.inputs)
    )


def _dtypes(operands: Sequence[NodeTensor]) -> tuple[str, ...]:
    """Return the type in which a node computes; several where they are mixed.

    Beside floating-point numbers, whole ones have none; one number alone takes the others' type.
    """
    own = {one.type for one in operands if one.shape} or {one.type for one in operands}
    floating = {one for one in own if one.startswith(("float", "bfloat"))}
    return tuple(sorted(floating or own))


@dataclass(frozen=True, slots=True)
class _Read:
    """A node with its place in the step.

    Attributes:
        node: the node.
        backward: whether it is a part of the backward pass.
        owner: the first name of the call.
    """

    node: Node
    backward: bool
    owner: str

    @property
    def source(self) -> NodeTensor:
        """The first operand."""
        return self.node.inputs[0]

    @property
    def result(self) -> NodeTensor:
        """The first output."""
        return self.node.outputs[0]

    def shape(self, number: int) -> tuple[int, ...]:
        """Return the shape of an operand."""
        return self.node.inputs[number].shape or ()

    def work(self, layer: Layer, pass_: str = "forward", *, training: bool = False) -> Work:
        """Return a pass of a layer as a part of this node."""
        propagation = "training" if training or pass_ != "forward" else "inference"
        return Work(node=self.owner, layer=layer, pass_=pass_, propagation=propagation)

    def images(self, shape: Sequence[int] | None) -> tuple[int, ...]:
        """Return a shape of images as batch, channels, height, width."""
        batch, *rest = shape or ()
        if self.node.word("data_format", "NHWC") == "NHWC":
            rest = [rest[-1], *rest[:-1]]
        return batch, *rest

    def sides(self, values: Sequence[int]) -> tuple[int, int]:
        """Return height and width of what there is a number for each dimension of images."""
        if not values:
            return 1, 1
        first = self.node.word("data_format", "NHWC").index("H")
        return values[first], values[first + 1]


def _elements(shape: Sequence[int] | None) -> int:
    return math.prod(shape or ())


# -----------------------------------------------------------------------------
# What slides over images.


def _pads(
    one: _Read, sizes: Sequence[int], extents: Sequence[int], strides: Sequence[int]
) -> tuple[int, int, int, int]:
    """Return top, bottom, left and right: TensorFlow adds what is odd behind."""
    kind = one.node.word("padding")
    around = one.node.numbers("explicit_paddings") if kind == "EXPLICIT" else one.node.padded
    if around:
        first = 2 * one.node.word("data_format", "NHWC").index("H")
        top, bottom, left, right = around[first : first + 4]
        return top, bottom, left, right
    found = []
    for size, extent, stride in zip(sizes, extents, strides, strict=True):
        total = max(0, (-(-size // stride) - 1) * stride + extent - size) * (kind == "SAME")
        found += [total // 2, total - total // 2]
    return found[0], found[1], found[2], found[3]


def _conv(one: _Read, source: Any, filters: Any, outer: Any) -> Layer:
    """Return the convolution of some shapes: images, filters (h, w, in, out), images."""
    batch, channels, *sizes = one.images(source)
    height, width, inner, _ = filters
    depthwise = one.node.operator.startswith("Depthwise")
    strides = one.sides(one.node.numbers("strides"))
    dilation = one.sides(one.node.numbers("dilations"))
    reach = [d * (k - 1) + 1 for d, k in zip(dilation, (height, width), strict=True)]
    return build_layer(
        "conv",
        batch=batch,
        in_channels=channels,
        out_channels=one.images(outer)[1],
        in_size=(sizes[0], sizes[1]),
        kernel=(height, width),
        stride=strides,
        dilation=dilation,
        padding=_pads(one, sizes, reach, strides),
        groups=inner if depthwise else channels // inner,
    )


def _conv_flops(one: _Read, filters: Any, outer: Any) -> int:
    """Each place of the outer images sums over a filter."""
    inner = 1 if one.node.operator.startswith("Depthwise") else filters[2]
    return int(2 * _elements(outer) * filters[0] * filters[1] * inner)


def _convolution(one: _Read) -> Found:
    """Images and filters; of a fused one what it is followed by."""
    outer, filters = one.result.shape, one.shape(1)
    products = _conv_flops(one, filters, outer)
    more, flops = _followed(one, one.images(outer))
    return Found.of(
        "convolution",
        lambda: [one.work(_conv(one, one.shape(0), filters, outer)), *more()],
        flops=products + flops,
        product_flops=products,
    )


def _convolution_to_data(one: _Read) -> Found:
    """Sizes, filters, outer gradient; in a forward pass it is a transposed convolution."""
    filters, outer, source = one.shape(1), one.shape(2), one.result.shape

    def layers() -> list[Work]:
        same = _conv(one, source, filters, outer)
        if one.backward:
            return [one.work(same, "backward-data")]
        # What the convolution reads, this one writes.
        alike = ("batch", "groups", "kernel", "stride", "dilation", "pad_before")
        layer = build_layer(
            "deconv",
            in_channels=same.out_channels,
            in_size=same.out_size,
            out_channels=same.in_channels,
            out_size=same.in_size,
            **{field: getattr(same, field) for field in alike},
        )
        return [one.work(layer)]

    products = _conv_flops(one, filters, outer)
    return Found.of("convolution", layers, flops=products, product_flops=products)


def _convolution_to_filter(one: _Read) -> Found:
    """Images, sizes, outer gradient; oneDNN's may give the gradient of a bias besides."""
    source, outer, filters = one.shape(0), one.shape(2), one.result.shape
    bias = one.node.operator.endswith("WithBias")

    def layers() -> Iterator[Work]:
        if bias:
            yield one.work(on_images("bias", one.images(outer)), "backward-weights")
        yield one.work(_conv(one, source, filters, outer), "backward-weights")

    products = _conv_flops(one, filters, outer)
    flops = products + _elements(outer) * bias
    return Found.of("convolution", layers, flops=flops, product_flops=products)


def _pool(one: _Read, source: Any, mode: str) -> Layer:
    batch, channels, *sizes = one.images(source)
    kernel = one.sides(one.node.numbers("ksize"))
    strides = one.sides(one.node.numbers("strides"))
    return build_layer(
        "pool",
        batch=batch,
        channels=channels,
        in_size=(sizes[0], sizes[1]),
        kernel=kernel,
        stride=strides,
        padding=_pads(one, sizes, kernel, strides),
        mode=mode,
    )


def _pooling(mode: str) -> Callable[[_Read], Found]:
    def rule(one: _Read) -> Found:
        flops = one.result.elements * math.prod(one.node.numbers("ksize"))
        return Found.of("pooling", lambda: [one.work(_pool(one, one.shape(0), mode))], flops=flops)

    return rule


def _pooling_back(mode: str) -> Callable[[_Read], Found]:
    """Of maxima the source, the result, its gradient; of averages sizes and the gradient."""

    def rule(one: _Read) -> Found:
        source = one.shape(0) if mode == "max" else one.result.shape
        taps = 1 if mode == "max" else math.prod(one.node.numbers("ksize"))
        outer = one.node.inputs[2 if mode == "max" else 1]
        return Found.of(
            "pooling",
            lambda: [one.work(_pool(one, source, mode), "backward-data")],
            flops=outer.elements * taps,
        )

    return rule


def _resized(mode: str, pass_: str) -> Callable[[_Read], Found]:
    """Images and a size; backward the gradient, and images or a size of theirs."""
    backward = pass_ == "backward-data"

    def rule(one: _Read) -> Found:
        source, result = one.shape(0), one.result.shape or ()
        if backward:
            source, result = result, source
        batch, *sizes, channels = source
        sides = list(zip(sizes, result[1:3], strict=True))
        each = flops_of_pixel(1 if mode == "nearest" else 2, sides, backward=backward)

        def layers() -> list[Work]:
            how = "centres" if one.node.flag("half_pixel_centers") else "whole"
            how = "aligned" if one.node.flag("align_corners") else how
            for size, out in sides:
                check_centres(mode, size, out, how)
            layer = build_layer(
                f"resize:{mode}",
                batch=batch,
                channels=channels,
                in_size=tuple(size for size, _ in sides),
                out_size=tuple(out for _, out in sides),
            )
            return [one.work(layer, pass_)]

        return Found.of("resize", layers, flops=_elements(result) * each)

    return rule


# -----------------------------------------------------------------------------
# Products.


def _product(one: _Read) -> Found:
    """Left and right, each perhaps to be transposed; of several products in each first dimension.

    In a backward pass a transposed left matrix makes it a gradient of weights: it sums over the
    rows of a minibatch.
    """
    node = one.node
    turned = node.flag("transpose_a") or node.flag("adj_x")
    other = node.flag("transpose_b") or node.flag("adj_y")
    *batch, m, n = one.result.shape or ()
    k = one.shape(0)[-2 if turned else -1]
    count = math.prod(batch)
    plain, across = ("kn", "nk") if batch else ("any", "any")
    products = 2 * k * one.result.elements
    more, flops = _followed(one, one.result.shape or ())

    def layers() -> list[Work]:
        if one.backward and turned:
            layer = build_layer("gemm", m=k, k=m, n=n, batch_count=count, weights_tag=plain)
            return [one.work(layer, "backward-weights")]
        if one.backward:
            order = plain if other else across
            layer = build_layer("gemm", m=m, k=n, n=k, batch_count=count, weights_tag=order)
            return [one.work(layer, "backward-data")]
        order = across if other else plain
        layer = build_layer("gemm", m=m, k=k, n=n, batch_count=count, weights_tag=order)
        return [one.work(layer), *more()]

    return Found.of("product", layers, flops=products + flops, product_flops=products)


def _einsum(one: _Read) -> Found:
    """Two operands whose dimensions have letters: rows, columns, sums, or products apart."""
    inputs, _, result = one.node.word("equation").replace(" ", "").partition("->")
    left, _, right = inputs.partition(",")
    if not right or "." in inputs or "," in right or len(set(left)) < len(left):
        raise UnsupportedError(f"{one.node.op}: no rule for {one.node.word('equation')}")
    sizes = dict(zip(left + right, (*one.shape(0), *one.shape(1)), strict=True))

    def number(letters: set[str]) -> int:
        return math.prod(sizes[letter] for letter in letters)

    ours, theirs, kept = set(left), set(right), set(result)
    count = number(ours & theirs & kept)

    def layers() -> list[Work]:
        layer = build_layer(
            "gemm",
            m=number((ours - theirs) & kept),
            k=number((ours & theirs) - kept),
            n=number((theirs - ours) & kept),
            batch_count=count,
            weights_tag="kn" if count > 1 else "any",
        )
        return [one.work(layer)]

    products = 2 * number(ours | theirs)
    return Found.of("product", layers, flops=products, product_flops=products)


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


def _followed(one: _Read, shape: Sequence[int]) -> tuple[Callable[[], list[Work]], int]:
    """Return what makes the layers that a fused node has behind its product, and their FLOPs.

    Args:
        one: the node.
        shape: of the product, channels second; of rows and columns as they are.
    """
    names = [_FUSED.get(word, word) for word in one.node.words("fused_ops")]
    rows = shape if len(shape) == 2 or len(shape) == 4 else (math.prod(shape[:-1]), *shape[-1:])
    each = [OPS[name].passes["forward"].per_element if name in OPS else 0 for name in names]

    def layers() -> list[Work]:
        for name in names:
            if name not in OPS:
                raise UnsupportedError(f"{name} has no layer")
        return [one.work(on_images(name, rows)) for name in names]

    return layers, sum(each) * math.prod(shape)


# -----------------------------------------------------------------------------
# Biases, normalisations, softmax.


def _bias(one: _Read) -> Found:
    """Images, or rows of whatever shape, and a number for each channel."""
    shape = one.result.shape or ()
    four = one.images(shape) if len(shape) == 4 else (_elements(shape[:-1]), shape[-1])
    return Found.of(
        "elementwise", lambda: [one.work(on_images("bias", four))], flops=one.result.elements
    )


def _bias_back(one: _Read) -> Found:
    channels = one.result.elements
    layer = build_layer("bias", batch=one.source.elements // channels, channels=channels)
    return Found.of(
        "reduction", lambda: [one.work(layer, "backward-weights")], flops=one.source.elements
    )


def _normalised(one: _Read) -> Found:
    """Images, factors, summands, mean, variance; perhaps an activation behind it."""
    training = one.node.flag("is_training")
    shape = one.images(one.shape(0))
    relu = one.node.word("activation_mode") == "Relu"

    def layers() -> Iterator[Work]:
        layer = on_images("batchnorm", shape, epsilon=one.node.number("epsilon", 1e-4))
        yield one.work(layer, training=training)
        if relu:
            yield one.work(on_images("relu", shape), training=training)

    flops = one.source.elements * ((5 if training else 2) + relu)
    return Found.of("normalisation", layers, flops=flops)


def _normalised_back(one: _Read) -> Found:
    """Outer gradient, images, factors, ..."""

    def layers() -> list[Work]:
        if not one.node.flag("is_training"):
            raise UnsupportedError("a gradient with fixed statistics has no layer")
        epsilon = one.node.number("epsilon", 1e-4)
        layer = on_images("batchnorm", one.images(one.shape(0)), epsilon=epsilon)
        return [one.work(layer, "backward-data")]

    each = 8 if one.node.flag("is_training") else 5
    return Found.of("normalisation", layers, flops=one.source.elements * each)


def _softmax(op: str) -> Callable[[_Read], Found]:
    def rule(one: _Read) -> Found:
        *rows, width = one.shape(0)
        layer = build_layer(op, batch=math.prod(rows), channels=1, width=width)
        flops = one.source.elements * OPS[op].passes["forward"].per_element
        return Found.of("softmax", lambda: [one.work(layer)], flops=flops)

    return rule


def _loss(one: _Read) -> Found:
    """Logits and labels; the loss of each row, and at once its gradient."""
    rows, classes = one.shape(0)
    passes = "forward", "backward-data"

    def layers() -> list[Work]:
        layer = build_layer("softmax-xent", batch=rows, channels=classes)
        return [one.work(layer, each, training=True) for each in passes]

    each = sum(OPS["softmax-xent"].passes[one].per_element for one in passes)
    return Found.of("loss", layers, flops=one.source.elements * each)


# -----------------------------------------------------------------------------
# Element by element.

_SMOOTH: Final = {
    "Relu": "relu",
    "Relu6": "relu6",
    "Elu": "elu",
    "Sigmoid": "sigmoid",
    "Tanh": "tanh",
    "Softplus": "softplus",
    "Swish": "silu",
    "Mish": "mish",
}


def _activation(op: str, pass_: str) -> Callable[[_Read], Found]:
    def rule(one: _Read) -> Found:
        shape = one.result.shape or ()
        flops = one.result.elements * OPS[op].passes[pass_].per_element
        return Found.of("activation", lambda: [one.work(on_images(op, shape), pass_)], flops=flops)

    return rule


#: FLOPs for each element of the result.
_EACH: Final[Mapping[str, int]] = {
    **dict.fromkeys(
        (
            *("Abs", "Acos", "Asin", "Atan", "Atan2", "Ceil", "Cos", "Erf", "Erfc", "Exp", "Expm1"),
            *("Floor", "Log", "Log1p", "Neg", "Reciprocal", "Inv", "Rint", "Round", "Sign", "Sin"),
            *("Sqrt", "Square", "Tan", "Add", "AddV2", "Sub", "Mul", "MulNoNan", "RealDiv", "Div"),
            *("DivNoNan", "FloorDiv", "FloorMod", "Maximum", "Minimum", "Mod", "Pow", "Xdivy"),
            *("TruncateMod", "Equal", "NotEqual", "Greater", "GreaterEqual", "Less", "LessEqual"),
            *("IsFinite", "IsInf", "IsNan", "LogicalAnd", "LogicalNot", "LogicalOr", "Select"),
            "SelectV2",
        ),
        1,
    ),
    **dict.fromkeys(
        ("Rsqrt", "SquaredDifference", "LeakyRelu", "LeakyReluGrad", "SqrtGrad", "L2Loss"), 2
    ),
    **dict.fromkeys(("ClipByValue", "Selu", "SeluGrad"), 2),
    **dict.fromkeys(("InvGrad", "ReciprocalGrad"), 3),
    "RsqrtGrad": 4,
}


def _each(one: _Read) -> Found:
    node = one.node
    floating = any(each.floating for each in node.inputs)
    flops = _EACH[node.operator] * one.result.elements if floating else 0

    def layers() -> list[Work]:
        if node.operator != "SquaredDifference":
            return [_arithmetic(one)]
        shapes = [each.shape or () for each in node.inputs]
        square = merged_elementwise("square", one.result.shape or ())
        return [one.work(each) for each in (merged_elementwise("add", *shapes, number=-1), square)]

    return Found.of("elementwise", layers, flops=flops)


#: Ours for TensorFlow's, with the same operands, and the number of those that have one.
_ARITHMETIC: Final[Mapping[str, tuple[str, float]]] = {
    **{name: (name.lower(), 1.0) for name in ("Abs", "Neg", "Square", "Sqrt", "Rsqrt")},
    **{name: (name.lower(), 1.0) for name in ("Exp", "Log", "Add", "Mul", "Div")},
    "AddV2": ("add", 1.0),
    "Sub": ("add", -1.0),
    "RealDiv": ("div", 1.0),
    "Maximum": ("max", 1.0),
    "Minimum": ("min", 1.0),
}


def _arithmetic(one: _Read) -> Work:
    """Return the layer of arithmetic: where the catalogue's models have the same, theirs."""
    node = one.node
    if node.operator not in _ARITHMETIC:
        raise UnsupportedError(f"{node.op} has no layer")
    if not one.result.floating:
        raise UnsupportedError("whole numbers have no layer")
    op, number = _ARITHMETIC[node.operator]
    pair = sorted(node.inputs, key=lambda each: -each.elements)
    shape, other = pair[0].shape or (), pair[-1].shape or ()
    if (op, number) == ("add", 1.0) and shape:
        if shape == other:
            return one.work(on_images("add", shape))
        if other[-1:] == shape[-1:] and pair[-1].elements == shape[-1]:
            return one.work(build_layer("bias", batch=_elements(shape[:-1]), channels=shape[-1]))
    if op == "mul" and len(shape) == 4 and other == (shape[0], 1, 1, shape[3]):
        return one.work(on_images("scale", one.images(shape)))
    shapes = [each.shape or () for each in node.inputs]
    return one.work(merged_elementwise(op, *shapes, number=number))


def _summed(one: _Read) -> Found:
    """``AddN``: tensors of one shape."""
    count = len(one.node.inputs)

    def layers() -> list[Work]:
        return [one.work(on_images("add", one.result.shape or ()))] * (count - 1)

    return Found.of("elementwise", layers, flops=one.result.elements * (count - 1))


def _reduced(one: _Read) -> Found:
    """Source and dimensions; whether these are kept as 1.

    A sum over all but the last dimension is the gradient of a bias, a mean over both sides of
    images a pooling, another one a reduction.
    """
    shape, axes = one.shape(0), one.node.inputs[1].values

    def layers() -> list[Work]:
        if axes is None or not one.source.floating:
            raise UnsupportedError(f"{one.node.op} of these has no layer")
        over = {int(axis) % len(shape) for axis in axes}
        if one.node.operator == "Sum" and over == set(range(len(shape) - 1)) and over:
            layer = build_layer("bias", batch=_elements(shape[:-1]), channels=shape[-1])
            return [one.work(layer, "backward-weights")]
        if one.node.operator == "Mean" and len(shape) == 4 and over == {1, 2}:
            batch, height, width, channels = shape
            size = height, width
            pool = build_layer(
                "pool", batch=batch, channels=channels, in_size=size, kernel=size, mode="avg"
            )
            return [one.work(pool)]
        op = one.node.operator.lower()
        if f"reduction:{op}" not in OPS:
            raise UnsupportedError(f"{one.node.op} has no layer")
        return [one.work(merged_reduction(op, shape, over))]

    return Found.of("reduction", layers, flops=one.source.elements * one.source.floating)


def _assigned(one: _Read) -> Found:
    """``AssignAddVariableOp``, ``AssignSubVariableOp``: a variable, and what it moves by."""
    moved = one.node.inputs[1]

    def layers() -> list[Work]:
        if one.node.operator.startswith("AssignSub"):
            return [one.work(build_layer("sgd", channels=moved.elements, rate=1.0))]
        return [one.work(on_images("add", moved.shape or (1,)))]

    if not moved.floating:
        return Found(kind="update", lacks="whole numbers have no layer", flops=0)
    return Found.of("update", layers, flops=moved.elements)


# -----------------------------------------------------------------------------
# What computes nothing.


def _view(one: _Read) -> Found:
    del one
    return Found(kind="view", flops=0)


def _copy(one: _Read) -> Found:
    """What is written and not computed: zeros, the same in another order of dimensions."""
    if not one.result.elements:
        return _view(one)

    def layers() -> list[Work]:
        if not one.result.floating:
            raise UnsupportedError("whole numbers have no layer")
        if one.node.operator in _FILLS:
            return [one.work(build_layer("move:fill", src=(one.result.elements,)))]
        order = one.node.inputs[-1].values
        if one.node.operator != "Transpose" or order is None:
            raise UnsupportedError(f"{one.node.op} has no layer")
        source = one.shape(0)
        strides = [_elements(source[axis + 1 :]) for axis in range(len(source))]
        turned = [strides[int(axis)] for axis in order]
        return [one.work(merged_move(one.result.shape or (), turned))]

    return Found.of("copy", layers, flops=0)


def _joined(one: _Read) -> Found:
    """``ConcatV2``: tensors, and the dimension along which they are put behind one another."""
    *tensors, axis = one.node.inputs

    def layers() -> list[Work]:
        shape = one.result.shape or ()
        along = int((axis.values or (0,))[0]) % len(shape)
        sources = tuple((each.shape or ())[along] for each in tensors)
        joined = _elements(shape[:along]), shape[along], *shape[along + 1 :]
        return [one.work(on_images("concat", joined, sources=sources))]

    return Found.of("copy", layers, flops=0)


def _gathered(one: _Read) -> Found:
    """A table and indices; of some the dimension along which they count."""
    adds = "Sum" in one.node.operator or one.node.operator.endswith("Add")

    def layers() -> list[Work]:
        name, inputs = one.node.operator, one.node.inputs
        along = inputs[2].values if name == "GatherV2" else (0,)
        if name not in ("Gather", "GatherV2", "ResourceGather") or along != (0,):
            raise UnsupportedError(f"{one.node.op} of these has no layer")
        if one.node.number("batch_dims") or not one.result.floating:
            raise UnsupportedError(f"{one.node.op} of these has no layer")
        rows, *width = one.shape(0)
        return [
            one.work(
                build_layer(
                    "gather:rows", rows=rows, width=_elements(width), count=inputs[1].elements
                )
            )
        ]

    return Found.of("gather", layers, flops=one.source.elements * adds)


def _random(one: _Read) -> Found:
    del one
    why = "random numbers: generators differ in what they compute"
    return Found(kind="random", lacks=why, unknown=why)


_VIEWS: Final = (
    *("AssignVariableOp", "Enter", "Exit", "ExpandDims", "Identity", "IdentityN", "Rank"),
    *("ReadVariableOp", "Reshape", "Shape", "ShapeN", "Size", "Squeeze", "StopGradient"),
    *("PreventGradient", "EnsureShape", "CheckNumerics"),
)
_COPIES: Final = (
    *("BroadcastTo", "Cast", "DepthToSpace", "Fill", "MirrorPad", "OneHot", "OnesLike", "Pack"),
    *("Pad", "PadV2", "Range", "ReverseV2", "Slice", "SpaceToDepth", "Split", "SplitV"),
    *("StridedSlice", "StridedSliceGrad", "Tile", "Transpose", "Unpack", "ZerosLike"),
)
_FILLS: Final = ("Fill", "OnesLike", "ZerosLike")
_DRAWN: Final = (
    *("Multinomial", "RandomStandardNormal", "RandomUniform", "RandomUniformInt"),
    *("StatelessRandomGetKeyCounter", "StatelessRandomNormalV2", "StatelessRandomUniformV2"),
    *("StatelessRandomUniformIntV2", "StatelessTruncatedNormalV2", "TruncatedNormal"),
)
_GATHERS: Final = (
    *("Gather", "GatherV2", "GatherNd", "ResourceGather", "ScatterNd", "UnsortedSegmentSum"),
    *("ResourceScatterAdd", "TensorScatterAdd", "TensorScatterUpdate"),
)
_CONVOLUTIONS: Final[Mapping[str, Callable[[_Read], Found]]] = {
    **dict.fromkeys(("Conv2D", "DepthwiseConv2dNative", "PadWithFusedConv2D"), _convolution),
    **dict.fromkeys(
        ("Conv2DBackpropInput", "DepthwiseConv2dNativeBackpropInput"), _convolution_to_data
    ),
    **dict.fromkeys(
        (
            *("Conv2DBackpropFilter", "Conv2DBackpropFilterWithBias"),
            "DepthwiseConv2dNativeBackpropFilter",
        ),
        _convolution_to_filter,
    ),
    "MaxPool": _pooling("max"),
    "AvgPool": _pooling("avg"),
    "MaxPoolGrad": _pooling_back("max"),
    "AvgPoolGrad": _pooling_back("avg"),
}
_RESIZES: Final[Mapping[str, Callable[[_Read], Found]]] = {
    "ResizeBilinear": _resized("linear", "forward"),
    "ResizeBilinearGrad": _resized("linear", "backward-data"),
    "ResizeNearestNeighbor": _resized("nearest", "forward"),
    "ResizeNearestNeighborGrad": _resized("nearest", "backward-data"),
}
_PRODUCTS: Final[Mapping[str, Callable[[_Read], Found]]] = {
    **dict.fromkeys(("MatMul", "BatchMatMul", "BatchMatMulV2", "BatchMatMulV3"), _product),
    "Einsum": _einsum,
}

#: By operator, see :attr:`Node.operator`.
_RULES: Final[Mapping[str, Callable[[_Read], Found]]] = {
    **_CONVOLUTIONS,
    **_PRODUCTS,
    **_RESIZES,
    **dict.fromkeys(("BiasAdd", "BiasAddV1"), _bias),
    "BiasAddGrad": _bias_back,
    **dict.fromkeys(
        (
            *("FusedBatchNorm", "FusedBatchNormV2", "FusedBatchNormV3", "FusedBatchNormEx"),
            "BatchNormEx",
        ),
        _normalised,
    ),
    **dict.fromkeys(
        ("FusedBatchNormGrad", "FusedBatchNormGradV2", "FusedBatchNormGradV3"), _normalised_back
    ),
    "Softmax": _softmax("softmax"),
    "LogSoftmax": _softmax("log-softmax"),
    "SparseSoftmaxCrossEntropyWithLogits": _loss,
    "SoftmaxCrossEntropyWithLogits": _loss,
    **{name: _activation(op, "forward") for name, op in _SMOOTH.items()},
    **{f"{name}Grad": _activation(op, "backward-data") for name, op in _SMOOTH.items()},
    **dict.fromkeys(_EACH, _each),
    "AddN": _summed,
    **dict.fromkeys(
        ("Sum", "Mean", "Max", "Min", "Prod", "All", "Any", "ArgMax", "ArgMin"), _reduced
    ),
    **dict.fromkeys(("AssignAddVariableOp", "AssignSubVariableOp"), _assigned),
    **dict.fromkeys(_VIEWS, _view),
    **dict.fromkeys(_COPIES, _copy),
    "ConcatV2": _joined,
    **dict.fromkeys(_GATHERS, _gathered),
    **dict.fromkeys(_DRAWN, _random),
}
#: Operators that libraries compute.
LIBRARY_NODES: Final = frozenset((*_CONVOLUTIONS, *_PRODUCTS, "Conv3D", "MaxPool3D", "AvgPool3D"))
