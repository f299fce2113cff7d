"""How a node that onnxruntime runs reads, from its signature, without onnxruntime.

Neither the domain of an operator nor its version make a difference, but where a rule says so:
onnxruntime's own operators do what ONNX's of the name do.
"""

from __future__ import annotations

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

_MARK: Final = "onnx:"


# -----------------------------------------------------------------------------
# The signature of a node, all that it can be made of again: ``onnx:{"operator":"Conv",...}`` is
# JSON behind a mark. Values of large tensors are not in it, although they change the time of a few
# operators.


class Tensor(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """A tensor that a node reads or writes.

    Attributes:
        dtype: NumPy's name of its type; ``bfloat16`` and the like by ONNX's.
        shape: of it.
        constant: whether it is a weight, which onnxruntime may pack beforehand.
        values: of what is small, in their order.
        bounds: the smallest and the largest value of what is larger, where these are whole numbers:
            indices have to lie in what they index.
        same: the place of the first input that is the same tensor; None if this is the first.
    """

    dtype: str
    shape: tuple[int, ...]
    constant: bool = False
    values: tuple[bool | int | float, ...] | None = None
    bounds: tuple[int, int] | None = None
    same: int | None = None

    @property
    def bytes(self) -> int:
        """Bytes of its elements."""
        return math.prod(self.shape) * ours.bytes_of_type(self.dtype)


class Node(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """A node with its tensors.

    Attributes:
        operator: ONNX's name of what it computes: ``Conv``.
        domain: of the operator; empty is ONNX's own, ``com.microsoft.nchwc`` onnxruntime's for maps
            in blocks of channels.
        version: of the domain.
        inputs: None is what is left out.
        outputs: likewise.
        attributes: kind (a number of ONNX's) and value by name; of a tensor its bytes in base64.
        lacks: why no such node can be made; empty where one can.
    """

    operator: str
    domain: str = ""
    version: int
    inputs: tuple[Tensor | None, ...] = ()
    outputs: tuple[Tensor | None, ...] = ()
    attributes: dict[str, tuple[int, Any]] = {}
    lacks: str = ""

    @property
    def name(self) -> str:
        """The operator with its domain, ``onnx.Conv``, as it is printed."""
        return f"{self.domain.removeprefix('com.microsoft.') or 'onnx'}.{self.operator}"

    @property
    def signature(self) -> str:
        """Its text."""
        return _MARK + msgspec.json.encode(self, order="sorted").decode()

    @property
    def bytes(self) -> int:
        """Bytes of all tensors, each once."""
        known = [tensor for tensor in (*self.inputs, *self.outputs) if tensor is not None]
        return sum(tensor.bytes for tensor in known if tensor.same is None)

    def get(self, name: str, default: Any = None) -> Any:
        """Return an attribute's value."""
        return self.attributes[name][1] if name in self.attributes else default

    @classmethod
    def read(cls, signature: str) -> Node:
        """Read a text.

        Raises:
            UnsupportedError: it is no node's.
        """
        if not is_node(signature):
            raise UnsupportedError(f"{signature[:60]}: no node of an ONNX file")
        return msgspec.json.decode(signature.removeprefix(_MARK), type=cls)


def is_node(signature: str) -> bool:
    """Whether a signature is a node's."""
    return signature.startswith(_MARK)


# -----------------------------------------------------------------------------
# What a node says.


class _Call:
    """A node's operands and attributes.

    Args:
        node: the node.
    """

    def __init__(self, node: Node) -> None:
        self.node = node
        self.values = [
            None if tensor is None else _value(tensor, place)
            for place, tensor in enumerate(node.inputs)
        ]

    def __getitem__(self, place: int) -> Value:
        """Return an operand that has to be there."""
        value = self.optional(place)
        if value is None:
            raise UnsupportedError(f"{self.node.name}: without its operand {place}")
        return value

    def optional(self, place: int) -> Value | None:
        """Return an operand; None where it is left out."""
        return self.values[place] if place < len(self.values) else None

    @property
    def given(self) -> list[Value]:
        """The operands that are there."""
        return [value for value in self.values if value is not None]

    @property
    def result(self) -> Value:
        """The first result."""
        if self.node.outputs[0] is None:
            raise UnsupportedError(f"{self.node.name}: without its first result")
        return _value(self.node.outputs[0], 0)

    def alpha(self, usual: float) -> float:
        """Return an activation's factor, also where it is a part of another node."""
        given: list[float] = self.node.get("activation_params") or [self.node.get("alpha", usual)]
        return given[0]

    def unknown(self, what: str) -> UnsupportedError:
        """Return what says that a rule does not cover something."""
        return UnsupportedError(f"{self.node.name}: no rule for {what}")


def _value(tensor: Tensor, place: int) -> Value:
    storage = place if tensor.same is None else tensor.same
    dtype, shape = tensor.dtype, tensor.shape
    return Value.dense(dtype, shape, number=place, storage=storage, numbers=tensor.values)


def meaning_of(recorded: RecordedCall) -> Meaning:
    """Return what a node computes.

    Raises:
        UnsupportedError: no rule is for it.
    """
    node = Node.read(recorded.signature)
    call = _Call(node)
    if node.lacks:
        raise UnsupportedError(f"{node.name}: {node.lacks}")
    rule = RULES.get(node.operator)
    if rule is None:
        raise call.unknown("this operator")
    parts = rule(call)
    if name := node.get("activation", ""):
        if name not in _ACTIVATIONS:
            raise call.unknown(f"its {name}")
        parts = [*_listed(parts), _ACTIVATIONS[name](call, call.result)]
    written = sum(tensor.bytes for tensor in node.outputs if tensor is not None)
    return ours.completed(ours.together(_listed(parts)), call.given, written)


def _listed(parts: Meaning | Sequence[Meaning]) -> Sequence[Meaning]:
    return [parts] if isinstance(parts, Meaning) else parts


# -----------------------------------------------------------------------------
# Convolutions, poolings, resized images.


def _window(call: _Call, kernel: Sequence[int]) -> dict[str, Any]:
    """Return strides, pads and dilations."""
    node, number = call.node, len(kernel)
    stride = list(node.get("strides") or [1] * number)
    dilation = list(node.get("dilations") or [1] * number)
    pads = list(node.get("pads") or [0] * 2 * number)
    around = ours.padded(pads[:number], pads[number:])
    automatic = node.get("auto_pad", "NOTSET")
    if automatic.startswith("SAME"):
        lower, sizes = automatic == "SAME_LOWER", call[0].shape[2:]
        around = ours.same_padding(sizes, kernel, stride, dilation, first=lower)
    return {"stride": stride, "pads": around, "dilation": dilation}


def _convolution(call: _Call) -> list[Meaning]:
    """Source, weights, bias, and a sum with another."""
    source, weights = call[0].shape, call[1].shape
    turned = call.node.operator == "ConvTranspose"
    window = _window(call, weights[2:])
    made = ours.convolution(
        source,
        weights,
        groups=call.node.get("group", 1),
        transposed=turned,
        out=call.result.shape[2:] if turned else None,
        bias=call.optional(2) is not None,
        **window,
    )
    other = call.optional(3)
    return [made] if other is None else [made, _pair("add", call.result, other)]


def _pooling(mode: str) -> Callable[[_Call], Meaning]:
    def rule(call: _Call) -> Meaning:
        kernel = call.node.get("kernel_shape")
        ceil, counted = call.node.get("ceil_mode", 0), call.node.get("count_include_pad", 0)
        return ours.pooling(
            call[0].shape,
            mode=mode,
            kernel=kernel,
            ceil=bool(ceil),
            counted=bool(counted),
            **_window(call, kernel),
        )

    return rule


def _pooling_whole(mode: str) -> Callable[[_Call], Meaning]:
    return lambda c: ours.pooling_to(c[0].shape, [1] * (len(c[0].shape) - 2), mode=mode)


#: Pixels of the source along a side, and how ONNX and we say that they are found; the rest is like
#: none of ours.
_RESIZES: Final[Mapping[tuple[str, str], tuple[int, str]]] = {
    ("nearest", "asymmetric"): (1, "whole"),
    ("nearest", "half_pixel"): (1, "centres"),
    ("linear", "half_pixel"): (2, "centres"),
    ("linear", "align_corners"): (2, "aligned"),
}


def _resized(call: _Call) -> Meaning:
    """Images, and their new size in some form."""
    node, old, new = call.node, call[0].shape, call.result.shape
    how = node.get("coordinate_transformation_mode", "half_pixel")
    mode = node.get("mode", "nearest")
    # Another one only where the result has a single pixel: the first.
    if how == "pytorch_half_pixel" and any(
        to == 1 < size for size, to in zip(old, new, strict=True)
    ):
        mode = f"{mode}, one pixel"
    known = _RESIZES.get((mode, "half_pixel" if how == "pytorch_half_pixel" else how))
    rounding = node.get("nearest_mode", "round_prefer_floor")
    own = known is not None and not node.get("antialias", 0) and old[:2] == new[:2]
    # A multiple has no centre on a border, where roundings differ.
    multiple = all(not big % small for big, small in zip(new, old, strict=True))
    if mode == "nearest" and how == "half_pixel":
        own = own and multiple and rounding.startswith("round")
    elif mode == "nearest":
        own = own and rounding == "floor"
    # Sizes that are rounded down belong to another factor than their quotient.
    exact = multiple or all(not big % small for big, small in zip(old, new, strict=True))
    scales = call.optional(2)
    if call.optional(3):
        exact = node.get("keep_aspect_ratio_policy", "stretch") == "stretch"
    elif scales is not None and scales.numbers is not None and len(scales.numbers) == len(old):
        wanted = zip(scales.numbers, old, new, strict=True)
        exact = all(math.isclose(by * size, to, rel_tol=1e-6) for by, size, to in wanted)
    if known is None or not own or not exact:
        raise call.unknown(f"this way to find pixels ({mode}, {how})")
    made = ours.resize(old, new[2:], taps=known[0], how=known[1])
    return replace(made, dtypes=(call[0].dtype,))


# -----------------------------------------------------------------------------
# Products, and attention as frameworks' optimizers write it.


def _matrices(left: Sequence[int], right: Sequence[int], *, turned: bool = False) -> Meaning:
    """Return a product; what several products have in common lies in front."""
    batch = ours.broadcast([tuple(left[:-2]), tuple(right[:-2])])
    (m, k), n = left[-2:], right[-1]
    if math.prod(batch) == 1 or math.prod(right[:-2]) == 1:  # all rows meet the same matrix
        batch, m = (), math.prod(left[:-1])
    return ours.product([math.prod(batch)] if batch else (), m, k, n, right_turned=turned)


def _product(call: _Call) -> Meaning:
    """Vectors are matrices of one row or column."""
    left, right = list(call[0].shape), list(call[1].shape)
    left = [1, *left] if len(left) == 1 else left
    right = [*right, 1] if len(right) == 1 else right
    if call.node.get("transBatchA") or call.node.get("transBatchB"):
        raise call.unknown("batches behind their matrices")
    turned = bool(call.node.get("transB"))
    for shape, swapped in ((left, call.node.get("transA")), (right, turned)):
        if swapped:
            shape[-2:] = shape[-1], shape[-2]
    return _matrices(left, right, turned=turned)


def _added(call: _Call) -> list[Meaning]:
    """Two matrices, and what is added, broadcast."""
    addend = call.optional(2)
    wanted = addend is not None and call.node.get("beta", 1)
    return [_product(call), *([_pair("add", call.result, addend)] if addend and wanted else [])]


def _attention(call: _Call) -> list[Meaning]:
    """ONNX's of queries, keys and values, or onnxruntime's of rows and weights."""
    node, source = call.node, call[0]
    if not node.domain:
        shapes = [call[place].shape for place in range(3)]
        heads = (node.get("q_num_heads"), *[node.get("kv_num_heads")] * 2)
        if all(len(shape) == 3 and count for shape, count in zip(shapes, heads, strict=True)):
            shapes = [_by_heads(*pair) for pair in zip(shapes, heads, strict=True)]
        return [_heads(shapes, causal=bool(node.get("is_causal")))]
    if call.optional(4) is not None:
        raise call.unknown("what came before")
    batch, length, _ = source.shape
    columns, bias = call[1].shape[-1], call.optional(2)
    parts = [_matrices(source.shape, call[1].shape)]
    if bias is not None:
        parts.append(_pair("add", source.shaped(batch, length, columns), bias))
    widths = node.get("qkv_hidden_sizes") or [columns // 3] * 3
    shapes = [_by_heads((batch, length, width), node.get("num_heads")) for width in widths]
    return [*parts, _heads(shapes, causal=bool(node.get("unidirectional")))]


def _attention_by_heads(call: _Call) -> list[Meaning]:
    """Rows of queries, keys, values, a bias of all, and one of scores."""
    rows = [call[place] for place in range(3)]
    if any(len(value.shape) != 3 for value in rows):
        raise call.unknown("keys that are split by heads")
    parts = []
    if call.optional(3) is not None:
        parts = [_pair("add", value, value.shaped(value.shape[-1])) for value in rows]
    shapes = [_by_heads(value.shape, call.node.get("num_heads")) for value in rows]
    parts.append(_heads(shapes, causal=bool(call.node.get("unidirectional"))))
    if (bias := call.optional(5)) is not None:
        scores = rows[0].shaped(*shapes[0][:3], shapes[1][2])
        parts.append(_pair("add", scores, bias))
    return parts


def _by_heads(rows: Sequence[int], heads: int) -> tuple[int, ...]:
    batch, length, width = rows
    return batch, heads, length, width // heads


def _heads(shapes: Sequence[Sequence[int]], *, causal: bool) -> Meaning:
    """Return an attention.

    Raises:
        UnsupportedError: queries, keys and values are not ``(batch, heads, length, size)``.
    """
    if any(len(shape) != 4 for shape in shapes):
        raise UnsupportedError(f"attention of {[*map(list, shapes)]}: no rule for these sides")
    query, key, value = shapes
    return ours.attention(query, key[-2], value[-1], causal=causal)


def _recurrent(call: _Call) -> Meaning:
    """Source, weights of it and of the state, of each direction."""
    node, weights = call.node, [call[1], call[2]]
    known = node.operator == "LSTM" or node.get("linear_before_reset")
    cell = node.operator.lower() if known and not node.get("layout") else None
    return ours.recurrent(call[0].shape, weights, cell, directions=weights[0].shape[0])


# -----------------------------------------------------------------------------
# Element by element.


def _pair(name: str, left: Value, right: Value) -> Meaning:
    """Return an operation on two tensors, as many sides of which belong together as there are."""
    sides = max(len(left.shape), len(right.shape))
    return ours.elementwise(name, *(_of_sides(value, sides) for value in (left, right)))


def _of_sides(value: Value, sides: int) -> Value:
    shape = (1,) * (sides - len(value.shape)) + value.shape
    strides = (0,) * (sides - len(value.shape)) + value.strides
    return Value(dtype=value.dtype, shape=shape, strides=strides, storage=value.storage)


def _of_several(name: str) -> Callable[[_Call], list[Meaning]]:
    """Return the rule of an operation on two tensors, or of more on one after the other.

    One alone is copied.
    """

    def rule(call: _Call) -> list[Meaning]:
        if len(call.values) == 1:
            return [ours.moved()]
        firsts = [call[0], *[call.result] * (len(call.values) - 2)]
        return [_pair(name, first, call[place]) for place, first in enumerate(firsts, 1)]

    return rule


def _of_one(name: str) -> Callable[[_Call], Meaning]:
    return lambda c: ours.elementwise(name, c[0])


def _of_first(rule: Callable[[_Call, Value], Meaning]) -> Callable[[_Call], Meaning]:
    return lambda c: rule(c, c[0])


def _activation(op: str) -> Callable[[_Call, Value], Meaning]:
    return lambda _, value: ours.activation(op, value.shape, floating=value.floating)


def _leaky(call: _Call, value: Value) -> Meaning:
    return ours.elementwise("leaky_relu", value, call.alpha(0.01))


def _hard_sigmoid(call: _Call, value: Value) -> Meaning:
    """PyTorch's slope, or a sum, a product and two limits."""
    if math.isclose(call.alpha(0.2), 1 / 6, rel_tol=1e-4):
        return ours.activation("hardsigmoid", value.shape)
    steps = (("mul", 1), ("add", 1), ("clamp", 0, 1))
    return ours.together(ours.elementwise(name, value, *rest) for name, *rest in steps)


def _limited(call: _Call, value: Value) -> Meaning:
    """Least and largest, of a part of another node among its attributes; 0 and 6 are a ReLU6."""
    limits = [call.optional(place) for place in (1, 2)]
    numbers = [limit.numbers[0] if limit and limit.numbers else None for limit in limits]
    # Which limits there are counts, not what they are.
    given = [limit is not None for limit in limits]
    if call.node.operator != "Clip":
        numbers, given = call.node.get("activation_params"), [True, True]
    if numbers == [0, 6]:
        return ours.activation("relu6", value.shape, 0, 6)
    if numbers[0] == 0 and given == [True, False]:
        return ours.activation("relu", value.shape)
    return ours.elementwise("clamp", value, *(0 if there else None for there in given))


def _gelu(*, approximated: bool) -> Callable[[_Call], list[Meaning]]:
    """Return the rule of a GELU; a second operand is a bias."""

    def rule(call: _Call) -> list[Meaning]:
        bias = call.optional(1)
        tanh = approximated or call.node.get("approximate") == "tanh"
        made = ours.activation("gelu-tanh" if tanh else "gelu", call[0].shape)
        return [made] if bias is None else [_pair("add", call[0], bias), made]

    return rule


def _quick_gelu(call: _Call) -> Meaning:
    """``x * sigmoid(alpha x)``: a SiLU where alpha is 1."""
    if call.node.get("alpha", 1.702) != 1:
        raise call.unknown("a factor within")
    return ours.activation("silu", call[0].shape)


# -----------------------------------------------------------------------------
# Normalisations, softmax, sums.


def _batch_normalisation(call: _Call) -> Meaning:
    if call.node.get("training_mode"):
        raise call.unknown("training")
    epsilon = call.node.get("epsilon", 1e-5)
    return ours.batch_normalisation(call[0], epsilon=epsilon, training=False)


def _row_normalisation(call: _Call, op: str = "layernorm", *, skips: int = 0) -> Meaning:
    """Source, perhaps another one that it is added to, and factors and offsets.

    Args:
        call: the node.
        op: ours.
        skips: sources beside the first; only rows are normalised then.
    """
    source, first = call[0], 1 + skips
    axis = call.node.get("axis", -1) % len(source.shape)
    wanted = range(first, first + 2 if op == "layernorm" else first + 1)
    return ours.rows(
        op,
        source,
        1 if skips else len(source.shape) - axis,
        factors=None not in [call.optional(place) for place in wanted],
        epsilon=call.node.get("epsilon", 1e-5),
    )


def _sum_normalised(op: str, bias: int) -> Callable[[_Call], list[Meaning]]:
    """Two sources, factors, perhaps offsets, a bias.

    Args:
        op: ours.
        bias: the place of the bias.
    """

    def rule(call: _Call) -> list[Meaning]:
        more = call.optional(bias)
        parts = [_pair("add", call[0], call[1])]
        parts += [] if more is None else [_pair("add", call[0], more)]
        return [*parts, _row_normalisation(call, op, skips=1)]

    return rule


def _softmax(op: str) -> Callable[[_Call], Meaning]:
    def rule(call: _Call) -> Meaning:
        source, old = call[0], call.node.version < 13
        axis = call.node.get("axis", 1 if old else -1) % len(source.shape)
        if old:  # from that axis on all is one row
            rows = math.prod(source.shape[:axis]), math.prod(source.shape[axis:])
            return ours.rows(op, source.shaped(*rows))
        return ours.rows(op, source, dim=axis)

    return rule


def _reduced(op: str) -> Callable[[_Call], Meaning]:
    """Return the rule of a reduction; without axes, which were an attribute, it is one of all."""

    def rule(call: _Call) -> Meaning:
        axes = call.optional(1)
        over = call.node.get("axes") if axes is None else axes.numbers
        every = range(len(call[0].shape))
        return ours.reduction(op, call[0], [int(axis) for axis in over or every])

    return rule


# -----------------------------------------------------------------------------
# What computes nothing.


def _transposed(call: _Call) -> Meaning:
    order = call.node.get("perm", list(reversed(range(len(call[0].shape)))))
    return ours.copy(call[0].permuted(order), range(len(order)))


def _gathered(call: _Call) -> Meaning:
    axis = call.node.get("axis", 0) % len(call[0].shape)
    return ours.gathered(call[0], [call[1]], call.result.bytes, rows=not axis)


def _scattered(call: _Call) -> Meaning:
    """Table, indices, values: written, or added."""
    adds = call.node.get("reduction", "none") == "add"
    return ours.scattered(call[0], call.given[1:], call[2].elements, adds=adds)


def _lower(*names: str) -> dict[str, str]:
    """Return our names of operators that ONNX spells with capitals only."""
    return {name: name.lower() for name in names}


#: Activations, also those that are a part of other nodes.
_ACTIVATIONS: Final[Mapping[str, Callable[[_Call, Value], Meaning]]] = {
    **{
        name: _activation(op)
        for name, op in _lower("Relu", "Sigmoid", "Tanh", "Elu", "Gelu", "HardSwish").items()
    },
    **{name: _activation(op) for name, op in _lower("Mish", "Softplus").items()},
    "Swish": _activation("silu"),
    "LeakyRelu": _leaky,
    "HardSigmoid": _hard_sigmoid,
    "Clip": _limited,
}
_UNARY: Final = {
    **_lower("Erf", "Abs", "Ceil", "Cos", "Exp", "Floor", "Log", "Neg", "Reciprocal", "Round"),
    **_lower("Sign", "Sin", "Sqrt", "Selu"),
    "Not": "logical_not",
    "IsNaN": "isnan",
    "IsInf": "isinf",
}
_BINARY: Final = (
    _lower("Add", "Sub", "Mul", "Div", "Pow")
    | {"Mod": "remainder", "Max": "maximum", "Min": "minimum", "Equal": "eq", "Greater": "gt"}
    | {"Less": "lt", "GreaterOrEqual": "ge", "LessOrEqual": "le", "Sum": "add"}
    | {"And": "logical_and", "Or": "logical_or", "Xor": "logical_xor"}
)
_REDUCED: Final = _lower("ReduceMean", "ReduceSum", "ReduceMax", "ReduceMin", "ReduceProd")
#: What makes no kernel run: the same memory under another shape.
_VIEWS: Final = ("Reshape", "Flatten", "Squeeze", "Unsqueeze", "Identity", "Shape", "Size")
#: Parts, repeated elements or other types: none of them is a plain copy.
_MOVED: Final = (
    *("Slice", "Split", "Cast", "Expand", "Pad", "Tile", "Where", "ReorderInput"),
    *("ReorderOutput", "DepthToSpace", "SpaceToDepth", "Trilu"),
)

#: By operator.
RULES: Final[Mapping[str, Callable[[_Call], Meaning | Sequence[Meaning]]]] = {
    **dict.fromkeys(_VIEWS, lambda _: ours.view()),
    **dict.fromkeys(("Conv", "ConvTranspose", "FusedConv"), _convolution),
    "MaxPool": _pooling("max"),
    "AveragePool": _pooling("avg"),
    "GlobalAveragePool": _pooling_whole("avg"),
    "GlobalMaxPool": _pooling_whole("max"),
    "Resize": _resized,
    **dict.fromkeys(("MatMul", "FusedMatMul"), _product),
    **dict.fromkeys(("Gemm", "FusedGemm"), _added),
    "Attention": _attention,
    "MultiHeadAttention": _attention_by_heads,
    "Einsum": lambda c: ours.einsum(c.node.get("equation"), [value.shape for value in c.given]),
    **dict.fromkeys(("LSTM", "GRU", "RNN"), _recurrent),
    **{name: _of_first(rule) for name, rule in _ACTIVATIONS.items()},
    "Elu": lambda c: ours.activation("elu", c[0].shape, c.node.get("alpha", 1)),
    **{name: _of_one(op) for name, op in _UNARY.items()},
    **{name: _of_several(operator) for name, operator in _BINARY.items()},
    "PRelu": lambda c: _pair("prelu", c[0], c[1]),
    **dict.fromkeys(("Gelu", "BiasGelu"), _gelu(approximated=False)),
    "FastGelu": _gelu(approximated=True),
    "QuickGelu": _quick_gelu,
    "BatchNormalization": _batch_normalisation,
    "LayerNormalization": _row_normalisation,
    **dict.fromkeys(
        ("GroupNormalization", "InstanceNormalization"), lambda c: ours.group_normalisation(c[0])
    ),
    "SkipLayerNormalization": _sum_normalised("layernorm", 4),
    **dict.fromkeys(
        ("RMSNormalization", "SimplifiedLayerNormalization"),
        lambda c: _row_normalisation(c, "rmsnorm"),
    ),
    "SkipSimplifiedLayerNormalization": _sum_normalised("rmsnorm", 3),
    "Softmax": _softmax("softmax"),
    "LogSoftmax": _softmax("log-softmax"),
    **{name: _reduced(op.removeprefix("reduce")) for name, op in _REDUCED.items()},
    "ReduceL2": _reduced("norm"),
    **{name: _reduced(op) for name, op in _lower("ArgMax", "ArgMin", "CumSum").items()},
    "ReduceLogSumExp": _reduced("logsumexp"),
    **dict.fromkeys(_MOVED, lambda _: ours.moved()),
    "Transpose": _transposed,
    "Concat": lambda c: ours.joined(c.given, c.node.get("axis", 0)),
    "Gather": _gathered,
    **dict.fromkeys(
        ("GatherElements", "GatherND"),
        lambda c: ours.gathered(c[0], [c[1]], c.result.bytes, rows=False),
    ),
    **dict.fromkeys(("ScatterElements", "ScatterND"), _scattered),
    "ConstantOfShape": lambda c: ours.filled(c.result),
}
