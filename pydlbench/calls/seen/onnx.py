"""Parses the signatures of nodes that onnxruntime runs, without onnxruntime.

Rules ignore the domain and the version of an operator unless they say so: onnxruntime's own
operators compute the same as ONNX's operators with that name.
"""

import functools
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any, Final, Self

import msgspec

from pydlbench.calls import elementwise, moves, products, rows, windows
from pydlbench.calls.meaning import (
    Meaning,
    Value,
    broadcast_shapes,
    bytes_of_type,
    combine,
    complete,
    of_types,
)
from pydlbench.errors import UnsupportedError
from pydlbench.ops.pointwise import SELU
from pydlbench.records.trace import RecordedCall

_PREFIX: Final = "onnx:"


# -----------------------------------------------------------------------------
# Signatures of nodes: JSON behind a prefix, ``onnx:{"operator":"Conv",...}``, from which a node can
# be made again. Values of large tensors are left out, although a few operators' times depend on
# them.


class Tensor(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """A tensor that a node reads or writes.

    Attributes:
        dtype: NumPy's name of the type; ONNX's name if NumPy lacks the type (``bfloat16``).
        shape: size of each dimension.
        constant: whether the tensor is a weight, which onnxruntime may pack beforehand.
        values: elements of a small tensor.
        bounds: smallest and largest element of a larger tensor of integers, so that
            indices stay within their tables.
        same: position of the first input that is the same tensor; None if this is the first one.
    """

    dtype: str
    shape: tuple[int, ...]
    constant: bool = False
    values: tuple[bool | int | float, ...] | None = None
    bounds: tuple[int, int] | None = None
    same: int | None = None

    @property
    def bytes(self) -> int:
        """Bytes of all elements."""
        return math.prod(self.shape) * bytes_of_type(self.dtype)


class OnnxNode(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """A node with its tensors.

    Attributes:
        operator: ONNX's name of the operator: ``Conv``.
        domain: domain of the operator: empty for ONNX's own, ``com.microsoft.nchwc`` for
            onnxruntime's layout in blocks of channels.
        version: version of the domain.
        inputs: tensors that the node reads; None for one that is left out.
        outputs: tensors that the node writes; None for one that is left out.
        attributes: kind (one of ONNX's numbers) and value by name; tensors are bytes in base64.
        lacks: why the node cannot be made again; empty if it can.
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
        """The text of the node."""
        return _PREFIX + msgspec.json.encode(self, order="sorted").decode()

    @property
    def bytes(self) -> int:
        """Bytes of all tensors, each once."""
        known = [tensor for tensor in (*self.inputs, *self.outputs) if tensor is not None]
        return sum(tensor.bytes for tensor in known if tensor.same is None)

    def get(self, name: str, default: Any = None) -> Any:
        """Return the value of an attribute."""
        return self.attributes[name][1] if name in self.attributes else default

    @classmethod
    def read(cls, signature: str) -> Self:
        """Parse a signature.

        Raises:
            UnsupportedError: the text is not the signature of a node.
        """
        if not is_node(signature):
            raise UnsupportedError(f"{signature[:60]}: no node of an ONNX file")
        return msgspec.json.decode(signature.removeprefix(_PREFIX), type=cls)


def is_node(signature: str) -> bool:
    """Whether a text is the signature of a node."""
    return signature.startswith(_PREFIX)


# -----------------------------------------------------------------------------
# Operands.


class _OnnxCall:
    """A node's operands and attributes.

    Args:
        node: node parsed from its signature.
    """

    def __init__(self, node: OnnxNode) -> None:
        self.node = node
        self.values = [
            None if tensor is None else _value(tensor, place)
            for place, tensor in enumerate(node.inputs)
        ]

    def __getitem__(self, place: int) -> Value:
        """Return a required operand."""
        value = self.optional(place)
        if value is None:
            raise UnsupportedError(f"{self.node.name}: without its operand {place}")
        return value

    def optional(self, place: int) -> Value | None:
        """Return an operand; None if it is left out."""
        return self.values[place] if place < len(self.values) else None

    @property
    def given(self) -> list[Value]:
        """The operands that are not left out."""
        return [value for value in self.values if value is not None]

    @property
    def result(self) -> Value:
        """The first result."""
        if self.node.outputs[0] is None:
            raise UnsupportedError(f"{self.node.name}: without its first result")
        return _value(self.node.outputs[0], 0)

    def alpha(self, default: float) -> float:
        """Return an activation's factor, also if it is fused into another node."""
        parameters: list[float] = self.node.get("activation_params") or [
            self.node.get("alpha", default)
        ]
        return parameters[0]

    def unknown(self, what: str) -> UnsupportedError:
        """Return the error of a rule that does not cover something."""
        return UnsupportedError(f"{self.node.name}: no rule for {what}")


def _value(tensor: Tensor, place: int) -> Value:
    storage = place if tensor.same is None else tensor.same
    dtype, shape = tensor.dtype, tensor.shape
    return Value.dense(dtype, shape, number=place, storage=storage, numbers=tensor.values)


def meaning_of(recorded: RecordedCall) -> Meaning:
    """Return the meaning of a node.

    Raises:
        UnsupportedError: there is no rule for the operator.
    """
    node = OnnxNode.read(recorded.signature)
    call = _OnnxCall(node)
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
    return complete(combine(_listed(parts)), call.given, written)


def _listed(parts: Meaning | Sequence[Meaning]) -> Sequence[Meaning]:
    return [parts] if isinstance(parts, Meaning) else parts


# -----------------------------------------------------------------------------
# Convolutions, poolings, resizing.


def _window(call: _OnnxCall, kernel: Sequence[int]) -> dict[str, Any]:
    """Return strides, pads and dilations."""
    node, number = call.node, len(kernel)
    stride = list(node.get("strides") or [1] * number)
    dilation = list(node.get("dilations") or [1] * number)
    pads = list(node.get("pads") or [0] * 2 * number)
    pairs = windows.pair_pads(pads[:number], pads[number:])
    automatic = node.get("auto_pad", "NOTSET")
    if automatic.startswith("SAME"):
        lower, sizes = automatic == "SAME_LOWER", call[0].shape[2:]
        pairs = windows.same_padding(sizes, kernel, stride, dilation, larger_before=lower)
    return {"stride": stride, "pads": pairs, "dilation": dilation}


def _convolution(call: _OnnxCall) -> list[Meaning]:
    """Inputs: source, weights, bias, and an addend of the result."""
    source, weights = call[0].shape, call[1].shape
    transposed = call.node.operator == "ConvTranspose"
    window = _window(call, weights[2:])
    part = windows.convolution(
        source,
        weights,
        groups=call.node.get("group", 1),
        transposed=transposed,
        out=call.result.shape[2:] if transposed else None,
        bias=call.optional(2) is not None,
        **window,
    )
    addend = call.optional(3)
    return [part] if addend is None else [part, _pair("add", call.result, addend)]


def _pooling(call: _OnnxCall, mode: str) -> Meaning:
    kernel = call.node.get("kernel_shape")
    ceil, padding = call.node.get("ceil_mode", 0), call.node.get("count_include_pad", 0)
    part = windows.pooling(
        _channels_first(call),
        mode=mode,
        kernel=kernel,
        ceil=bool(ceil),
        count_padding=bool(padding),
        **_window(call, kernel),
    )
    return part if call[0].floating else _of_integers(call, part, "int8")


def _channels_first(call: _OnnxCall) -> tuple[int, ...]:
    """Return the shape of the source as images; onnxruntime's own nodes have channels last."""
    batch, *rest = call[0].shape
    last = call.node.get("channels_last") or call.node.operator.startswith("Nhwc")
    if last and call.node.get("auto_pad", "NOTSET").startswith("SAME"):
        raise call.unknown("automatic padding of channels last")
    return (batch, rest[-1], *rest[:-1]) if last else (batch, *rest)


def _of_integers(call: _OnnxCall, part: Meaning, weights: str) -> Meaning:
    """Return a meaning with the types of source, weights and result."""
    return of_types(part, call[0].dtype, weights, call.result.dtype)


def _quantized_convolution(call: _OnnxCall) -> Meaning:
    """Inputs of QLinearConv: source and weights with scale and zero point each; of ConvInteger.

    A bias, which every kernel adds before it rounds, is not counted.
    """
    weights = call[1] if call.node.operator == "ConvInteger" else call[3]
    window = _window(call, weights.shape[2:])
    groups = call.node.get("group", 1)
    part = windows.convolution(_channels_first(call), weights.shape, groups=groups, **window)
    return _of_integers(call, part, weights.dtype)


def _quantized_product(call: _OnnxCall) -> Meaning:
    """Inputs: two matrices, in some nodes each with scale and zero point."""
    right = call[3 if call.node.operator in ("QLinearMatMul", "QGemm") else 1]
    left, columns = list(call[0].shape), list(right.shape)
    if call.node.get("transA"):
        left[-2:] = left[:-3:-1]
    transposed = bool(call.node.get("transB"))
    if transposed:
        columns[-2:] = columns[:-3:-1]
    part = _matmul(left, columns, transposed=transposed)
    if call[0].floating:  # the node rounds the left matrix
        return of_types(part, "uint8", right.dtype, "float32")
    return _of_integers(call, part, right.dtype)


def _global_pooling(call: _OnnxCall, mode: str) -> Meaning:
    source = _channels_first(call)
    part = windows.adaptive_pooling(source, [1] * (len(source) - 2), mode=mode)
    return part if call[0].floating else _of_integers(call, part, "int8")


#: Taps and coordinates of :func:`~pydlbench.calls.windows.resize` by ONNX's mode and coordinates;
#: other combinations have no layer.
_RESIZES: Final[Mapping[tuple[str, str], tuple[int, str]]] = {
    ("nearest", "asymmetric"): (1, "whole"),
    ("nearest", "half_pixel"): (1, "centres"),
    ("linear", "half_pixel"): (2, "centres"),
    ("linear", "align_corners"): (2, "aligned"),
    ("cubic", "half_pixel"): (4, "centres"),
    ("cubic", "align_corners"): (4, "aligned"),
}


def _resize(call: _OnnxCall) -> Meaning:
    """Inputs: images, and their new size as factors or sizes."""
    node, old, new = call.node, call[0].shape, call.result.shape
    coordinates = node.get("coordinate_transformation_mode", "half_pixel")
    mode = node.get("mode", "nearest")
    # PyTorch's coordinates differ from half_pixel only if the result has a single pixel.
    if coordinates == "pytorch_half_pixel" and any(
        to == 1 < size for size, to in zip(old, new, strict=True)
    ):
        mode = f"{mode}, one pixel"
    half_pixel = coordinates in ("half_pixel", "pytorch_half_pixel")
    known = _RESIZES.get((mode, "half_pixel" if half_pixel else coordinates))
    rounding = node.get("nearest_mode", "round_prefer_floor")
    other = node.get("antialias", 0) or node.get("exclude_outside", 0)
    supported = known is not None and not other and old[:2] == new[:2]
    supported = supported and node.get("cubic_coeff_a", -0.75) == -0.75
    # With an integer factor no centre is on a border, where roundings differ.
    multiple = all(not big % small for big, small in zip(new, old, strict=True))
    if mode == "nearest" and coordinates == "half_pixel":
        supported = supported and multiple and rounding.startswith("round")
    elif mode == "nearest":
        supported = supported and rounding == "floor"
    # If sizes were rounded down, their quotient is not the factor.
    exact = multiple or all(not big % small for big, small in zip(old, new, strict=True))
    scales = call.optional(2)
    if call.optional(3):
        exact = node.get("keep_aspect_ratio_policy", "stretch") == "stretch"
    elif scales is not None and scales.numbers is not None and len(scales.numbers) == len(old):
        sides = zip(scales.numbers, old, new, strict=True)
        exact = all(math.isclose(by * size, to, rel_tol=1e-6) for by, size, to in sides)
    if known is None or not supported or not exact:
        raise call.unknown(f"this way to find pixels ({mode}, {coordinates})")
    part = windows.resize(old, new[2:], taps=known[0], coordinates=known[1])
    return replace(part, dtypes=(call[0].dtype,))


# -----------------------------------------------------------------------------
# Products, and attention as graph optimizers write it.


def _matmul(left: Sequence[int], right: Sequence[int], *, transposed: bool = False) -> Meaning:
    """Return the meaning of a product with leading batch dimensions."""
    batch = broadcast_shapes([tuple(left[:-2]), tuple(right[:-2])])
    (m, k), n = left[-2:], right[-1]
    if math.prod(batch) == 1 or math.prod(right[:-2]) == 1:  # a single right matrix
        batch, m = (), math.prod(left[:-1])
    return products.matmul(
        [math.prod(batch)] if batch else (), m, k, n, right_transposed=transposed
    )


def _product(call: _OnnxCall) -> Meaning:
    """Inputs: two matrices; a vector is a matrix of one row or column."""
    left, right = list(call[0].shape), list(call[1].shape)
    left = [1, *left] if len(left) == 1 else left
    right = [*right, 1] if len(right) == 1 else right
    if call.node.get("transBatchA") or call.node.get("transBatchB"):
        raise call.unknown("batches behind their matrices")
    transposed = bool(call.node.get("transB"))
    for shape, swapped in ((left, call.node.get("transA")), (right, transposed)):
        if swapped:
            shape[-2:] = shape[-1], shape[-2]
    return _matmul(left, right, transposed=transposed)


def _gemm(call: _OnnxCall) -> list[Meaning]:
    """Inputs: two matrices, and perhaps an addend, which is broadcast."""
    addend = call.optional(2)
    if addend is None or not call.node.get("beta", 1):
        return [_product(call)]
    return [_product(call), _pair("add", call.result, addend)]


def _attention(call: _OnnxCall) -> list[Meaning]:
    """Inputs: ONNX's queries, keys and values, or onnxruntime's rows and weights."""
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
    parts = [_matmul(source.shape, call[1].shape)]
    if bias is not None:
        parts.append(_pair("add", source.with_shape(batch, length, columns), bias))
    widths = node.get("qkv_hidden_sizes") or [columns // 3] * 3
    shapes = [_by_heads((batch, length, width), node.get("num_heads")) for width in widths]
    return [*parts, _heads(shapes, causal=bool(node.get("unidirectional")))]


def _attention_by_heads(call: _OnnxCall) -> list[Meaning]:
    """Inputs: queries, keys, values, a bias of all three, a mask, and a bias of scores."""
    operands = [call[place] for place in range(3)]
    if any(len(value.shape) != 3 for value in operands):
        raise call.unknown("keys that are split by heads")
    parts = []
    if call.optional(3) is not None:
        parts = [_pair("add", value, value.with_shape(value.shape[-1])) for value in operands]
    shapes = [_by_heads(value.shape, call.node.get("num_heads")) for value in operands]
    parts.append(_heads(shapes, causal=bool(call.node.get("unidirectional"))))
    if (bias := call.optional(5)) is not None:
        scores = operands[0].with_shape(*shapes[0][:3], shapes[1][2])
        parts.append(_pair("add", scores, bias))
    return parts


def _by_heads(shape: Sequence[int], heads: int) -> tuple[int, ...]:
    batch, length, width = shape
    return batch, heads, length, width // heads


def _heads(shapes: Sequence[Sequence[int]], *, causal: bool) -> Meaning:
    """Return the meaning of an attention.

    Raises:
        UnsupportedError: queries, keys and values are not ``(batch, heads, length, size)``.
    """
    if any(len(shape) != 4 for shape in shapes):
        raise UnsupportedError(f"attention of {[*map(list, shapes)]}: no rule for these sides")
    query, key, value = shapes
    return products.attention(query, key[-2], value[-1], causal=causal)


def _recurrent(call: _OnnxCall) -> Meaning:
    """Inputs: source, weights of the source and of the state for each direction.

    The eighth input of an LSTM are peepholes.
    """
    node, weights = call.node, [call[1], call[2]]
    cell: str | None = node.operator.lower()
    if node.operator == "GRU" and not node.get("linear_before_reset"):
        cell = "vanilla-gru"
    fields = {"peephole": True} if call.optional(7) is not None else {}
    if node.operator == "RNN":
        functions = {str(name).lower() for name in node.get("activations", ["tanh"])}
        cell = f"rnn-{functions.pop()}" if functions in ({"tanh"}, {"relu"}) else None
    cell = None if node.get("layout") else cell
    directions = weights[0].shape[0]
    return products.recurrent(call[0].shape, weights, cell, directions=directions, **fields)


# -----------------------------------------------------------------------------
# Elementwise operators.


def _pair(name: str, left: Value, right: Value) -> Meaning:
    """Return the meaning of an operator on two tensors with broadcasting."""
    rank = max(len(left.shape), len(right.shape))
    return elementwise.arithmetic(name, *(_with_rank(value, rank) for value in (left, right)))


def _quantized_pair(call: _OnnxCall, name: str) -> Meaning:
    """Inputs: two tensors, each with scale and zero point behind it."""
    return _pair(name, call[0], call[3])


def _quantized_activation(call: _OnnxCall) -> Meaning:
    return elementwise.activation("sigmoid", call[0].shape, floating=False)


def _with_rank(value: Value, rank: int) -> Value:
    shape = (1,) * (rank - len(value.shape)) + value.shape
    strides = (0,) * (rank - len(value.shape)) + value.strides
    return Value(dtype=value.dtype, shape=shape, strides=strides, storage=value.storage)


def _variadic(call: _OnnxCall, name: str) -> list[Meaning]:
    """Inputs: one or more tensors; a single one is copied."""
    if len(call.values) == 1:
        return [moves.other_copy()]
    firsts = [call[0], *[call.result] * (len(call.values) - 2)]
    return [_pair(name, first, call[place]) for place, first in enumerate(firsts, 1)]


def _unary(name: str) -> Callable[[_OnnxCall], Meaning]:
    return lambda c: elementwise.arithmetic(name, c[0])


def _on_first(rule: Callable[[_OnnxCall, Value], Meaning]) -> Callable[[_OnnxCall], Meaning]:
    return lambda c: rule(c, c[0])


def _activation(op: str) -> Callable[[_OnnxCall, Value], Meaning]:
    return lambda _, value: elementwise.activation(op, value.shape, floating=value.floating)


def _hard_sigmoid(call: _OnnxCall, value: Value) -> Meaning:
    """The layer has PyTorch's slope; other slopes are a product, a sum and two limits."""
    if math.isclose(call.alpha(0.2), 1 / 6, rel_tol=1e-4):
        return elementwise.activation("hardsigmoid", value.shape)
    steps = (("mul", 1), ("add", 1), ("clamp", 0, 1))
    return combine(elementwise.arithmetic(name, value, *numbers) for name, *numbers in steps)


def _clip(call: _OnnxCall, value: Value) -> Meaning:
    """Inputs: source and both limits, which are attributes if fused into another node."""
    limits = [call.optional(place) for place in (1, 2)]
    numbers = [limit.numbers[0] if limit and limit.numbers else None for limit in limits]
    # Limits that differ from the limits of ReLU and ReLU6 do not affect timing.
    given = [limit is not None for limit in limits]
    if call.node.operator != "Clip":
        numbers, given = call.node.get("activation_params"), [True, True]
    if numbers[0] == 0 and given == [True, False]:
        return elementwise.activation("relu", value.shape)
    low, high = numbers
    if low is not None and high is not None:
        return elementwise.hard_tanh(value, low, high)
    return elementwise.arithmetic("clamp", value, *(0 if is_given else None for is_given in given))


def _gelu(call: _OnnxCall, *, approximated: bool) -> list[Meaning]:
    """Inputs: source and perhaps a bias."""
    bias = call.optional(1)
    tanh = approximated or call.node.get("approximate") == "tanh"
    part = elementwise.activation("gelu-tanh" if tanh else "gelu", call[0].shape)
    return [part] if bias is None else [_pair("add", call[0], bias), part]


def _quick_gelu(call: _OnnxCall) -> Meaning:
    """``x * sigmoid(alpha x)``: a SiLU where alpha is 1."""
    if call.node.get("alpha", 1.702) != 1:
        raise call.unknown("a factor within")
    return elementwise.activation("silu", call[0].shape)


# -----------------------------------------------------------------------------
# Normalisations, softmax, sums.


def _batch_normalisation(call: _OnnxCall) -> Meaning:
    if call.node.get("training_mode"):
        raise call.unknown("training")
    epsilon = call.node.get("epsilon", 1e-5)
    return rows.batch_normalisation(call[0], epsilon=epsilon, training=False)


def _group_normalisation(call: _OnnxCall) -> Meaning:
    groups = call.node.get("num_groups", call[0].shape[1])
    return rows.group_normalisation(call[0], groups, epsilon=call.node.get("epsilon", 1e-5))


def _row_normalisation(call: _OnnxCall, op: str = "layernorm", *, skips: int = 0) -> Meaning:
    """Inputs: source, perhaps an addend, factors, and offsets of ``layernorm``.

    Args:
        call: node with its operands.
        op: name of the layer's op.
        skips: number of addends; if there are any, rows are the last dimension.
    """
    source, first = call[0], 1 + skips
    axis = call.node.get("axis", -1) % len(source.shape)
    places = range(first, first + 2 if op == "layernorm" else first + 1)
    return rows.along_rows(
        op,
        source,
        1 if skips else len(source.shape) - axis,
        factors=None not in [call.optional(place) for place in places],
        epsilon=call.node.get("epsilon", 1e-5),
    )


def _skip_normalisation(call: _OnnxCall, op: str, bias: int) -> list[Meaning]:
    """Inputs: two addends, factors, perhaps offsets, a bias.

    Args:
        call: node with its operands.
        op: name of the layer's op.
        bias: position of the bias.
    """
    addend = call.optional(bias)
    parts = [_pair("add", call[0], call[1])]
    parts += [] if addend is None else [_pair("add", call[0], addend)]
    return [*parts, _row_normalisation(call, op, skips=1)]


def _softmax(call: _OnnxCall, op: str) -> Meaning:
    source, old = call[0], call.node.version < 13
    axis = call.node.get("axis", 1 if old else -1) % len(source.shape)
    if old:  # a row is all dimensions from the axis on
        shape = math.prod(source.shape[:axis]), math.prod(source.shape[axis:])
        return rows.along_rows(op, source.with_shape(*shape))
    return rows.along_rows(op, source, dim=axis)


def _reduction(call: _OnnxCall, op: str) -> Meaning:
    """Inputs: source and axes, an attribute in old versions; the default is all axes."""
    axes = call.optional(1)
    over = call.node.get("axes") if axes is None else axes.numbers
    default = range(len(call[0].shape))
    return rows.reduction(op, call[0], [int(axis) for axis in over or default])


def _index_of_extreme(call: _OnnxCall, op: str) -> Meaning:
    return rows.reduction(op, call[0], [call.node.get("axis", 0)])


def _cumulative_sum(call: _OnnxCall) -> Meaning:
    """Inputs: source and axis."""
    if not call[1].numbers:
        raise call.unknown("an axis that is not a constant")
    return rows.along_rows("cumsum", call[0], dim=int(call[1].numbers[0]))


# -----------------------------------------------------------------------------
# Data movement.


def _transpose(call: _OnnxCall) -> Meaning:
    order = call.node.get("perm", list(reversed(range(len(call[0].shape)))))
    return moves.copy(call[0].permute(order), range(len(order)))


def _repeats(call: _OnnxCall) -> Meaning:
    return moves.taken("tile", call[0], call[0].bytes, result=call.result.shape)


def _pad(call: _OnnxCall) -> Meaning:
    if call.node.get("mode", "constant") != "reflect":
        return moves.other_copy()
    return moves.taken("reflect", call[0], call[0].bytes, result=call.result.shape)


def _gather(call: _OnnxCall) -> Meaning:
    axis = call.node.get("axis", 0) % len(call[0].shape)
    return moves.gather(call[0], [call[1]], call.result.bytes, axis=axis)


def _lower(*names: str) -> dict[str, str]:
    """Return names in lower case by operators that differ only in capitals."""
    return {name: name.lower() for name in names}


#: Activations, which may be fused into other nodes.
_ACTIVATIONS: Final[Mapping[str, Callable[[_OnnxCall, Value], Meaning]]] = {
    **{
        name: _activation(op)
        for name, op in _lower("Relu", "Sigmoid", "Tanh", "Elu", "Gelu", "HardSwish").items()
    },
    **{name: _activation(op) for name, op in _lower("Mish", "Softplus").items()},
    "Swish": _activation("silu"),
    "LeakyRelu": lambda call, value: elementwise.arithmetic("leaky_relu", value, call.alpha(0.01)),
    "HardSigmoid": _hard_sigmoid,
    "Clip": _clip,
}
_UNARY: Final = {
    **_lower("Erf", "Abs", "Ceil", "Cos", "Exp", "Floor", "Log", "Neg", "Reciprocal", "Round"),
    **_lower("Sign", "Sin", "Sqrt"),
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
#: Conversions between floats and integers.
_QUANTISATIONS: Final = ("QuantizeLinear", "DequantizeLinear", "DynamicQuantizeLinear")
#: Operators that launch no kernel.
_VIEWS: Final = ("Reshape", "Flatten", "Squeeze", "Unsqueeze", "Identity", "Shape", "Size")
#: Copies of parts, of repeated elements or to other types, which have no layer.
_OTHER_COPIES: Final = (
    *("Slice", "Split", "Cast", "ReorderInput", "ReorderOutput", "DepthToSpace", "SpaceToDepth"),
)

#: Rules by operator.
RULES: Final[Mapping[str, Callable[[_OnnxCall], Meaning | Sequence[Meaning]]]] = {
    **dict.fromkeys(_VIEWS, lambda _: moves.view()),
    **dict.fromkeys(("Conv", "ConvTranspose", "FusedConv"), _convolution),
    **dict.fromkeys(("MaxPool", "NhwcMaxPool"), lambda c: _pooling(c, "max")),
    **dict.fromkeys(("AveragePool", "QLinearAveragePool"), lambda c: _pooling(c, "avg")),
    **dict.fromkeys(
        ("GlobalAveragePool", "QLinearGlobalAveragePool"), lambda c: _global_pooling(c, "avg")
    ),
    "GlobalMaxPool": lambda c: _global_pooling(c, "max"),
    "Resize": _resize,
    **dict.fromkeys(("MatMul", "FusedMatMul"), _product),
    **dict.fromkeys(("QLinearConv", "ConvInteger"), _quantized_convolution),
    **dict.fromkeys(("QLinearMatMul", "QGemm", "MatMulInteger"), _quantized_product),
    **dict.fromkeys(("MatMulIntegerToFloat", "DynamicQuantizeMatMul"), _quantized_product),
    "QLinearAdd": functools.partial(_quantized_pair, name="add"),
    "QLinearMul": functools.partial(_quantized_pair, name="mul"),
    **{f"QLinear{op}": _quantized_activation for op in ("Sigmoid", "LeakyRelu")},
    **dict.fromkeys(("Gemm", "FusedGemm"), _gemm),
    "Attention": _attention,
    "MultiHeadAttention": _attention_by_heads,
    "Einsum": lambda c: products.einsum(c.node.get("equation"), [value.shape for value in c.given]),
    **dict.fromkeys(("LSTM", "GRU", "RNN"), _recurrent),
    **{name: _on_first(rule) for name, rule in _ACTIVATIONS.items()},
    "Elu": lambda c: elementwise.exponential_linear(c[0], c.alpha(1)),
    "Selu": lambda c: elementwise.exponential_linear(
        c[0], c.alpha(SELU[0]), c.node.get("gamma", SELU[1])
    ),
    "Where": lambda c: elementwise.arithmetic("where", *c.given),
    **dict.fromkeys(("Tile", "Expand"), _repeats),
    "Pad": _pad,
    "Trilu": lambda c: moves.taken("triu" if c.node.get("upper", 1) else "tril", c[0], c[0].bytes),
    **{name: _unary(op) for name, op in _UNARY.items()},
    **{name: functools.partial(_variadic, name=operator) for name, operator in _BINARY.items()},
    "PRelu": lambda c: _pair("prelu", c[0], c[1]),
    **dict.fromkeys(("Gelu", "BiasGelu"), lambda c: _gelu(c, approximated=False)),
    "FastGelu": lambda c: _gelu(c, approximated=True),
    "QuickGelu": _quick_gelu,
    "BatchNormalization": _batch_normalisation,
    "LayerNormalization": _row_normalisation,
    **dict.fromkeys(("GroupNormalization", "InstanceNormalization"), _group_normalisation),
    "SkipLayerNormalization": lambda c: _skip_normalisation(c, "layernorm", 4),
    **dict.fromkeys(
        ("RMSNormalization", "SimplifiedLayerNormalization"),
        lambda c: _row_normalisation(c, "rmsnorm"),
    ),
    "SkipSimplifiedLayerNormalization": lambda c: _skip_normalisation(c, "rmsnorm", 3),
    "Softmax": lambda c: _softmax(c, "softmax"),
    "LogSoftmax": lambda c: _softmax(c, "log-softmax"),
    **{
        name: functools.partial(_reduction, op=op.removeprefix("reduce"))
        for name, op in _REDUCED.items()
    },
    "ReduceL2": lambda c: _reduction(c, "norm"),
    **{
        name: functools.partial(_index_of_extreme, op=op)
        for name, op in _lower("ArgMax", "ArgMin").items()
    },
    "CumSum": _cumulative_sum,
    "ReduceLogSumExp": lambda c: _reduction(c, "logsumexp"),
    **dict.fromkeys(_OTHER_COPIES, lambda _: moves.other_copy()),
    **dict.fromkeys(_QUANTISATIONS, lambda _: moves.other_copy(what="a conversion of types")),
    "Transpose": _transpose,
    "Concat": lambda c: moves.concat(c.given, c.node.get("axis", 0)),
    "Gather": _gather,
    **dict.fromkeys(
        ("GatherElements", "GatherND"),
        lambda c: moves.gather(
            c[0],
            [c[1]],
            c.result.bytes,
            axis=c.node.get("axis", 0) if c.node.operator == "GatherElements" else None,
            each=True,
        ),
    ),
    **dict.fromkeys(
        ("ScatterElements", "ScatterND"),
        lambda call: moves.scatter(
            call[0],
            call.given[1:],
            call[2].elements,
            adds=call.node.get("reduction", "none") != "none",
        ),
    ),
    "ConstantOfShape": lambda c: moves.fill(c.result),
}
