"""How a recorded call of PyTorch's reads, from its signature, without PyTorch.

How signatures are written: :mod:`pydlbench.backends.torch.steps.signature`.
"""

from __future__ import annotations

import ast
import functools
import math
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any, Final

from pydlbench.calls import meaning as ours
from pydlbench.calls.meaning import Meaning, Value, least_bytes
from pydlbench.errors import UnsupportedError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping, Sequence

    from pydlbench.records.operator import RecordedCall

_CONSTANTS: Final = {"inf": math.inf, "nan": math.nan}
_TYPES: Final = ("float", "bfloat", "bool", "complex", "int", "uint")


# -----------------------------------------------------------------------------
# Arguments of operators: values in tuples, lists and dicts.


def mapped(tree: Any, function: Callable[[Any], Any]) -> Any:
    """Return arguments with each value replaced, lists within lists included."""
    if isinstance(tree, (list, tuple)):
        return type(tree)([mapped(each, function) for each in tree])
    if isinstance(tree, dict):
        return {name: mapped(each, function) for name, each in tree.items()}
    return function(tree)


def leaves(tree: Any, kind: type) -> Iterator[Any]:
    """Give all values of one type, in their order."""
    if isinstance(tree, (list, tuple)):
        for each in tree:
            yield from leaves(each, kind)
    elif isinstance(tree, dict):
        yield from leaves(list(tree.values()), kind)
    elif isinstance(tree, kind):
        yield tree


# -----------------------------------------------------------------------------
# What a text says.


@dataclass(frozen=True, slots=True)
class Word:
    """A value of PyTorch's own: a type, a layout, a memory format, a device.

    Attributes:
        kind: ``torch`` for what is an attribute of that module, or ``device``.
        text: its name.
    """

    kind: str
    text: str


@dataclass(frozen=True, kw_only=True)
class Call:
    """A call read from its signature.

    Attributes:
        name: of the operator's overload: ``aten.add_.Tensor``.
        arguments: by position: numbers, texts, None, lists of them, and
            :class:`~pydlbench.calls.meaning.Value` and :class:`Word`.
        keywords: by name, likewise.
        backward: whether it is a part of the backward pass.
        bytes: of all operands and results; 0 where nobody has counted them.
        trained: which operands are trained tensors; see
            :class:`~pydlbench.records.operator.RecordedCall`.
    """

    name: str
    arguments: tuple[Any, ...]
    keywords: dict[str, Any] = field(default_factory=dict)
    backward: bool = False
    bytes: int = 0
    trained: tuple[int, ...] = ()

    def __getitem__(self, place: int) -> Any:
        """Return an argument by its place."""
        return self.arguments[place]

    def get(self, place: int, name: str, default: Any = None) -> Any:
        """Return an argument by its place and its name; PyTorch leaves defaults out."""
        if place < len(self.arguments):
            return self.arguments[place]
        return self.keywords.get(name, default)

    @property
    def operator(self) -> str:
        """Without namespace, overload and the underscore of what works in place."""
        namespace, operator, _ = self.name.split(".")
        return operator.rstrip("_") if namespace == "aten" else f"{namespace}.{operator}"

    @property
    def in_place(self) -> bool:
        """Whether it overwrites its first operand."""
        return self.name.split(".")[1].endswith("_")

    @functools.cached_property
    def values(self) -> tuple[Value, ...]:
        """All operands, in their order."""
        return tuple(leaves([self.arguments, self.keywords], Value))

    @property
    def numbers(self) -> tuple[Any, ...]:
        """The arguments by position that are no operands."""
        return tuple(each for each in self.arguments if not isinstance(each, Value))

    @property
    def results(self) -> int | None:
        """Bytes of all results, what was overwritten among them; None if nobody has counted."""
        rest = self.bytes - sum(value.bytes for value in self.values)
        return rest if self.bytes and rest >= 0 else None

    @property
    def dtype(self) -> str | None:
        """The type that it asks for."""
        wanted = self.keywords.get("dtype")
        return wanted.text if wanted else None

    def without(self, given: Value | None) -> int:
        """Return the bytes of all operands but one, which is given for its shape only."""
        rest = [value for value in self.values if given is None or value.number != given.number]
        return least_bytes(rest)


def read_call(text: str) -> Call:
    """Read a signature.

    Raises:
        UnsupportedError: an argument that no text can tell.
    """
    name, _, rest = text.partition("(")
    try:
        tree = ast.parse(f"call({rest}", mode="eval").body
    except SyntaxError as error:
        # Where a value has no text, its type stands in angle brackets.
        lost = rest[rest.find("<") + 1 : rest.find(">")] if "<" in rest else rest[:60]
        raise UnsupportedError(f"{name}: no operand can be made up for {lost}") from error
    assert isinstance(tree, ast.Call), text
    reader = _Reader(name)
    arguments = tuple(reader.value(each) for each in tree.args)
    keywords = {str(each.arg): reader.value(each.value) for each in tree.keywords}
    return Call(name=name, arguments=arguments, keywords=keywords)


class _Reader:
    """Reads the arguments of one call, in their order.

    Args:
        name: of the operator, for messages.
    """

    def __init__(self, name: str) -> None:
        self._name = name
        self._number = 0

    def value(self, node: ast.expr) -> Any:
        """Return what an expression says."""
        if isinstance(node, ast.List):
            return [self.value(each) for each in node.elts]
        if isinstance(node, ast.Constant):
            return node.value
        if isinstance(node, ast.Name) and node.id in _CONSTANTS:
            return _CONSTANTS[node.id]
        if isinstance(node, ast.UnaryOp) and isinstance(node.op, ast.USub):
            return -self.value(node.operand)
        if isinstance(node, ast.Attribute):
            return Word("torch", node.attr)
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Subscript):
            return self._tensor(node.func, node)
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute):
            return Word("device", self.value(node.args[0]))
        raise UnsupportedError(f"{self._name}: no operand can be made up for {ast.unparse(node)}")

    def _tensor(self, typed: ast.Subscript, call: ast.Call) -> Value:
        number, self._number = self._number, self._number + 1
        shape = ast.literal_eval(typed.slice)
        assert isinstance(typed.value, ast.Name), ast.unparse(typed)
        more = {str(each.arg): self.value(each.value) for each in call.keywords}
        return Value(
            number=number,
            dtype=typed.value.id,
            shape=shape if isinstance(shape, tuple) else (shape,),
            strides=tuple(self.value(each) for each in call.args),
            offset=more.get("at", 0),
            storage=more.get("of", number),
            device=more.get("on"),
        )


def meaning_of(recorded: RecordedCall) -> Meaning:
    """Return what a call of PyTorch's computes.

    Raises:
        UnsupportedError: the signature is no call of PyTorch's, or no rule is for it.
    """
    if recorded.signature.partition("(")[0].count(".") != 2:
        raise UnsupportedError(f"{recorded.operator}: no recorded call of PyTorch's")
    call = replace(
        read_call(recorded.signature),
        backward=recorded.direction == "backward",
        bytes=recorded.bytes,
        trained=recorded.trained,
    )
    part = _part(call)
    words = leaves([call.arguments, call.keywords], Word)
    types = [word.text for word in words if word.text.startswith(_TYPES)]
    return ours.completed(part, call.values, call.results, types)


def _part(call: Call) -> Meaning:
    name = call.operator.removeprefix("_foreach_")
    rule = RULES.get(name)
    if rule is None:
        raise UnsupportedError(f"{call.operator}: no rule for this operator")
    if any(value.dtype.startswith("complex") for value in call.values):
        raise UnsupportedError(f"{call.operator}: no rule for complex numbers")
    if name != call.operator:
        return _of_lists(call, rule)
    part = ours.overwriting(rule(call)) if call.in_place else rule(call)
    return ours.bound(part, call.values) if name in _IN_ORDER and not call.backward else part


def _of_lists(call: Call, rule: Callable[[Call], Meaning]) -> Meaning:
    """Return what a call on lists computes, one tensor after the other.

    What works in place returns nothing.
    """
    parts = []
    for place, first in enumerate(call[0]):
        own = tuple(each[place] if isinstance(each, list) else each for each in call.arguments)
        part = rule(replace(call, arguments=own, bytes=0))
        parts.append(replace(ours.overwriting(part), writes=first.bytes) if call.in_place else part)
    return ours.together(parts)


# -----------------------------------------------------------------------------
# Convolutions, poolings, resized images.


def _sides(values: Any, number: int) -> list[int]:
    """Return one number for each side, where all may share one."""
    listed = values if isinstance(values, list) else [values]
    return listed * number if len(listed) == 1 else listed


def _convolution(call: Call, source: Value, weights: Value, first: int, **how: Any) -> Meaning:
    """Stride, padding, dilation, whether it is transposed, padding of the result, groups."""
    number = len(source.shape) - 2
    stride, padding, dilation = (_sides(call[first + place], number) for place in range(3))
    transposed, groups = call[first + 3], call[first + 5]
    if transposed:
        more = _sides(call[first + 4], number)
        windows = zip(
            source.shape[2:], weights.shape[2:], stride, padding, dilation, more, strict=True
        )
        how["out"] = [(i - 1) * s - 2 * p + d * (k - 1) + e + 1 for i, k, s, p, d, e in windows]
    return ours.convolution(
        source.shape,
        weights.shape,
        stride=stride,
        pads=ours.padded(padding),
        dilation=dilation,
        groups=groups,
        transposed=transposed,
        **how,
    )


def _convolution_gradients(call: Call) -> Meaning:
    """Outer gradient, source, weights, sizes of the bias, settings, mask.

    The mask says which gradients are wanted: of the source, the weights, the bias.
    """
    outer, source, weights = call.arguments[:3]
    of_source, of_weights, of_bias = call[10]
    gradients = ["backward-weights"] * of_weights + ["backward-data"] * of_source
    reads = least_bytes([outer] + [source] * bool(of_weights) + [weights] * bool(of_source))
    if gradients:
        return _convolution(
            call, source, weights, 4, gradients=gradients, bias=of_bias, reads=reads
        )
    return replace(ours.channel_sums(outer.shape, "convolution"), reads=reads)


def _pooling(mode: str, sides: int, *, backward: bool = False) -> Callable[[Call], Meaning]:
    """Source and settings; backward the outer gradient in front, and of maxima indices behind."""

    def rule(call: Call) -> Meaning:
        source, first = call[int(backward)], 1 + backward
        kernel = _sides(call.get(first, "kernel_size"), sides)
        how: dict[str, Any] = {}
        ceil = first + 3
        if mode == "max":
            how["dilation"] = _sides(call.get(first + 3, "dilation", 1), sides)
            ceil += 1
        else:
            how["counted"] = call.get(first + 4, "count_include_pad", True)
            how["divisor"] = call.get(first + 5, "divisor_override")
        return ours.pooling(
            source.shape,
            mode=mode,
            kernel=kernel,
            stride=_sides(call.get(first + 1, "stride", []) or kernel, sides),
            pads=ours.padded(_sides(call.get(first + 2, "padding", 0), sides)),
            ceil=call.get(ceil, "ceil_mode", False),
            backward=backward,
            reads=call.without(source) if backward else None,
            **how,
        )

    return rule


def _pooling_to(mode: str, sides: int, *, backward: bool = False) -> Callable[[Call], Meaning]:
    """Source and size; backward outer gradient, source, and of maxima their indices."""

    def rule(call: Call) -> Meaning:
        if not backward:
            return ours.pooling_to(call[0].shape, call[1], mode=mode)
        outer, source = call[0].shape[-sides:], call[1]
        reads = call.without(source)
        return ours.pooling_to(source.shape, outer, mode=mode, backward=True, reads=reads)

    return rule


def _resized(
    taps: int, how: str, *, aligns: bool, backward: bool = False
) -> Callable[[Call], Meaning]:
    """Source and size, backward outer gradient, size and that of the source; then factors.

    Args:
        taps: pixels of the source along a side that one of the result is a weighted sum of.
        how: pixels are found.
        aligns: whether the argument behind the sizes says that corners are aligned.
        backward: whether it is the gradient.
    """

    def rule(call: Call) -> Meaning:
        shape = call[2] if backward else call[0].shape
        rest = list(call.arguments[2 + backward :])
        aligned = bool(rest.pop(0)) if aligns and rest else False
        if not isinstance(call[1], list):
            return Meaning.unknown("resized by a factor only", "resize")
        own = "aligned" if aligned else how
        return ours.resize(shape, call[1], taps=taps, how=own, factors=rest, backward=backward)

    return rule


#: Elements of the source along a side that one of the result comes from, how they are found, and
#: whether corners may be aligned.
_RESIZES: Final[Mapping[str, tuple[int, str, bool]]] = {
    **dict.fromkeys([f"upsample_nearest{n}d" for n in (1, 2, 3)], (1, "whole", False)),
    **dict.fromkeys([f"_upsample_nearest_exact{n}d" for n in (1, 2, 3)], (1, "centres", False)),
    "upsample_linear1d": (2, "centres", True),
    "upsample_bilinear2d": (2, "centres", True),
    "upsample_trilinear3d": (2, "centres", True),
    "upsample_bicubic2d": (4, "centres", True),
}
_MODES: Final = {"max": "max_pool{}d_with_indices", "avg": "avg_pool{}d"}
_EVEN: Final = {"max": "adaptive_max_pool{}d", "avg": "_adaptive_avg_pool{}d"}
_WINDOWS: Final[Mapping[str, Callable[[Call], Meaning]]] = {
    "convolution": lambda c: _convolution(c, c[0], c[1], 3, bias=c[2] is not None),
    "convolution_backward": _convolution_gradients,
    **{
        f"{name.format(sides)}{'_backward' * backward}": make(mode, sides, backward=backward)
        for make, names in ((_pooling, _MODES), (_pooling_to, _EVEN))
        for mode, name in names.items()
        for sides in (2, 3)
        for backward in (False, True)
    },
    **{
        f"{name}{'_backward' * backward}": _resized(taps, how, aligns=aligns, backward=backward)
        for name, (taps, how, aligns) in _RESIZES.items()
        for backward in (False, True)
    },
}


# -----------------------------------------------------------------------------
# Products, attention, recurrent layers.


def _transposed(matrix: Value) -> bool:
    """Whether the elements of a column lie behind one another, and not those of a row."""
    down, across = matrix.strides[-2:]
    return down == 1 and across >= matrix.shape[-2]


def _product(call: Call, first: int = 0) -> Meaning:
    """Two matrices, or as many of both. Of one a gradient's left operand is the outer gradient."""
    left, right = call.get(first, "self"), call.get(first + 1, "mat2")
    *batch, m, k = left.shape
    left_turned = _transposed(left)
    if not any(left.strides[-2:]):  # of a sum, it lies neither way
        left_turned = not (_transposed(right) or right.number in call.trained)
    return ours.product(
        batch,
        m,
        k,
        right.shape[-1],
        left_turned=left_turned,
        right_turned=_transposed(right),
        backward=call.backward,
        outer_first=not batch,
    )


def _added(call: Call) -> Meaning:
    """What is added, left, right."""
    made, addend = _product(call, 1), call[0]
    if call.get(3, "beta", 1) == 0:
        return made
    result = *call[1].shape[:-1], call[2].shape[-1]
    whole = ours.together([made, ours.addition(result, addend.shape)])
    plain = call.get(3, "beta", 1) == call.get(4, "alpha", 1) == 1
    return ours.bound(whole, (*call.arguments[1:3], addend), exact=plain)


def _linear(call: Call) -> Meaning:
    """Rows of whatever shape, weights by outputs, and perhaps a bias."""
    source, (outputs, inputs) = call[0], call[1].shape
    rows, bias = source.elements // inputs, call.get(2, "bias")
    parts = [ours.product((), rows, inputs, outputs)]
    parts += [] if bias is None else [ours.addition((rows, outputs), bias.shape)]
    return ours.bound(ours.together(parts), (source, call[1].permuted([1, 0]), *call.values[2:]))


def _by_vector(call: Call) -> Meaning:
    """A matrix or a vector, and a vector."""
    left, right = call[0].elements, call[1].elements
    return ours.product((), left // right if right else 0, right, 1)


def _attention(causal: int, *, backward: bool = False) -> Callable[[Call], Meaning]:
    """Query, key, value ``(batch, heads, length, size)``, behind the outer gradient if any.

    Args:
        causal: the place among the arguments that says whether it is.
        backward: whether it is the gradient.
    """

    def rule(call: Call) -> Meaning:
        query, key, value = read = call.arguments[int(backward) :][:3]
        made = ours.attention(
            query.shape,
            key.shape[-2],
            value.shape[-1],
            causal=call.get(causal, "is_causal", False),
            backward=backward,
            operands=None if backward or len(call.values) > len(read) else read,
            scale=call.keywords.get("scale"),
        )
        # Sums of exponentials are kept in float32.
        return replace(made, dtypes=ours.dtypes_of(read))

    return rule


#: PyTorch's numbers of cells: 0 and 1 have no gates.
_CELLS: Final = {2: "lstm", 3: "gru"}
_CHAINS: Final[Mapping[str, Callable[[Call], Meaning]]] = {
    **dict.fromkeys(("mm", "bmm"), _product),
    **dict.fromkeys(("addmm", "baddbmm"), _added),
    "linear": _linear,
    **dict.fromkeys(("mv", "dot"), _by_vector),
    "_grouped_mm": lambda c: ours.grouped_product(c[0], c[1].shape[-1]),
    "_scaled_dot_product_flash_attention_for_cpu": _attention(4),
    "_scaled_dot_product_flash_attention": _attention(4),
    "_scaled_dot_product_efficient_attention": _attention(6),
    "_scaled_dot_product_cudnn_attention": _attention(6),
    "_scaled_dot_product_flash_attention_for_cpu_backward": _attention(7, backward=True),
    "_scaled_dot_product_flash_attention_backward": _attention(11, backward=True),
    "_scaled_dot_product_efficient_attention_backward": _attention(11, backward=True),
    "_scaled_dot_product_cudnn_attention_backward": _attention(14, backward=True),
    # Query, key, value, width, heads, four projections.
    "_native_multi_head_attention": lambda c: ours.projected_attention(
        c[0].shape, c[1].shape[-2], c[4]
    ),
    # Source, width, heads, and all weights in their order.
    "_transformer_encoder_layer_fwd": lambda c: ours.projected_attention(
        c[0].shape, c[0].shape[-2], c[2], c[14].shape[0]
    ),
    # Source, then weights, initial states, settings.
    "mkldnn_rnn_layer": lambda c: ours.recurrent(
        c[0].shape, c.arguments[1:3], _CELLS.get(c[9]), training=bool(c[15])
    ),
    "mkldnn_rnn_layer_backward": lambda c: ours.recurrent(
        c[0].shape, c.arguments[1:3], _CELLS.get(c[14]), backward=True
    ),
}


# -----------------------------------------------------------------------------
# Normalisations, softmax, losses, sums.


def _batch_normalisation(call: Call) -> Meaning:
    """Source, weights, bias, running mean and variance, whether to train, momentum, epsilon."""
    numbers = [each for each in call.arguments[3:] if isinstance(each, (bool, float, int))]
    momentum, epsilon = numbers[-2:]
    return ours.batch_normalisation(
        call[0],
        epsilon=epsilon,
        momentum=momentum,
        training=numbers[0] is True,
        factors=None not in call.arguments[1:3],
        running=[each for each in call.arguments[3:5] if isinstance(each, Value)],
        written=call.results,
    )


def _batch_gradient(call: Call) -> Meaning:
    """Outer gradient, source, weights, running and saved statistics, whether trained, epsilon."""
    made = ours.batch_normalisation(
        call[1], epsilon=call[8], training=call[7], factors=call[2] is not None, backward=True
    )
    return replace(made, dtypes=ours.dtypes_of(call.arguments[:2]))


def _cudnn_batch_gradient(call: Call) -> Meaning:
    """Source, outer gradient, weights, running and saved statistics, epsilon."""
    made = ours.batch_normalisation(call[0], epsilon=call[7], training=True, backward=True)
    return replace(made, dtypes=ours.dtypes_of(call.arguments[:2]))


def _layer_gradient(call: Call) -> Meaning:
    """Outer gradient, source, shape, mean, scale, weights, bias, which gradients are wanted."""
    factors = None not in call.arguments[5:7]
    made = ours.rows("layernorm", call[1], len(call[2]), factors=factors, backward=True)
    return replace(made, dtypes=ours.dtypes_of(call.arguments[:2]))


def _over(call: Call, place: int = 1) -> list[int]:
    """Return the dimensions of a reduction; without any it is one of all."""
    dims = call.get(place, "dim")
    return [dims] if isinstance(dims, int) else dims or list(range(len(call.values[0].shape)))


def _reduction(name: str) -> Callable[[Call], Meaning]:
    # Not ours of the same name: these return indices too.
    why = f"{name} with indices" if name in ("max", "min") else ""
    return lambda c: ours.reduction(name, c.values[0], _over(c), why=why)


def _norm(call: Call) -> Meaning:
    why = "" if call.get(1, "ord", 2) == 2 else "a norm that is not Euclidean"
    return ours.reduction("norm", call[0], _over(call, 2), why=why)


_SUMS: Final[Mapping[str, Callable[[Call], Meaning]]] = {
    **dict.fromkeys(
        (
            *("native_batch_norm", "_native_batch_norm_legit"),
            *("_native_batch_norm_legit_no_training", "cudnn_batch_norm"),
        ),
        _batch_normalisation,
    ),
    "native_batch_norm_backward": _batch_gradient,
    "cudnn_batch_norm_backward": _cudnn_batch_gradient,
    "native_layer_norm": lambda c: ours.rows(
        "layernorm", c[0], len(c[1]), factors=None not in c.arguments[2:4], epsilon=c[4]
    ),
    "native_layer_norm_backward": _layer_gradient,
    "native_group_norm": lambda c: ours.group_normalisation(c[0]),
    "native_group_norm_backward": lambda c: ours.group_normalisation(c[1], backward=True),
    # Source, shape of what is normalised together, factors, epsilon; backward the outer gradient,
    # source, shape, scale, factors.
    "_fused_rms_norm": lambda c: ours.rows(
        "rmsnorm", c[0], len(c[1]), factors=c[2] is not None, **({"epsilon": c[3]} if c[3] else {})
    ),
    "_fused_rms_norm_backward": lambda c: ours.rows(
        "rmsnorm", c[1], len(c[2]), factors=c[4] is not None, backward=True
    ),
    **dict.fromkeys(
        ("_softmax", "_safe_softmax"), lambda c: ours.rows("softmax", c[0], dim=c.get(1, "dim"))
    ),
    "_log_softmax": lambda c: ours.rows("log-softmax", c[0], dim=c.get(1, "dim")),
    "_softmax_backward_data": lambda c: ours.rows("softmax", c[0], dim=c[2], backward=True),
    "_log_softmax_backward_data": lambda c: ours.rows("log-softmax", c[0], dim=c[2], backward=True),
    # Scores, of each row of which one element is read, and labels.
    **dict.fromkeys(
        ("nll_loss_forward", "nll_loss2d_forward"),
        lambda c: ours.label_loss(c[1], c[1].elements * c[0].itemsize + least_bytes(c.values[1:])),
    ),
    # Outer gradient, scores, labels: zeros everywhere but at the labels; no score is read.
    **dict.fromkeys(
        ("nll_loss_backward", "nll_loss2d_backward"),
        lambda c: ours.label_loss(c[2], c.without(c[1])),
    ),
    **{name: _reduction(name) for name in ("sum", "mean", "argmax", "argmin", "max", "min")},
    **{name: _reduction(name) for name in ("prod", "cumsum", "cumprod", "logsumexp")},
    **{name: _reduction(name) for name in ("var", "var_mean", "std")},
    "amax": lambda c: ours.reduction("max", c[0], _over(c)),
    "amin": lambda c: ours.reduction("min", c[0], _over(c)),
    "linalg_vector_norm": _norm,
}


# -----------------------------------------------------------------------------
# Element by element, and whole steps of an optimizer.

_ARITHMETIC: Final = (
    *("abs", "ceil", "cos", "erf", "exp", "expm1", "floor", "log", "log1p", "log2", "neg"),
    *("reciprocal", "round", "sgn", "sign", "sin", "sqrt", "square", "trunc", "floor_divide"),
    *("add", "atan2", "div", "fmod", "maximum", "minimum", "mul", "pow", "remainder", "sub"),
    *("rsub", "eq", "ge", "gt", "le", "lt", "ne", "isfinite", "isinf", "isnan", "logical_and"),
    *("logical_not", "logical_or", "logical_xor", "bitwise_and", "bitwise_not", "bitwise_or"),
    *("bitwise_xor", "clamp_max", "clamp_min", "masked_fill", "where", "threshold", "rsqrt"),
    *("leaky_relu_backward", "lerp", "native_dropout_backward", "mse_loss", "mse_loss_backward"),
    *("l1_loss", "smooth_l1_loss", "smooth_l1_loss_backward", "binary_cross_entropy"),
    *("binary_cross_entropy_backward", "binary_cross_entropy_with_logits"),
)
#: Ours by PyTorch's names; with ``_backward`` their gradients.
_ACTIVATIONS: Final = {
    **{name: name for name in ("elu", "gelu", "hardsigmoid", "hardswish", "mish", "sigmoid")},
    **{name: name for name in ("silu", "softplus", "tanh", "relu")},
    "hardtanh": "relu6",
}


def _elementwise(call: Call, *operands: Any, name: str = "", **how: Any) -> Meaning:
    return ours.elementwise(
        name or call.operator.removeprefix("_foreach_"),
        *(operands or call.arguments),
        in_place=call.in_place,
        rounds=bool(call.keywords.get("rounding_mode")),
        **how,
    )


def _activation(call: Call) -> Meaning:
    name, _, backward = call.operator.removeprefix("_foreach_").partition("_")
    op = "relu" if name == "threshold" else _ACTIVATIONS[name]
    if op == "gelu" and call.keywords.get("approximate") == "tanh":
        op = "gelu-tanh"
    return ours.activation(
        op,
        ours.broadcast([value.shape for value in call.values]),
        *call.numbers,
        pass_="backward-data" if backward else "forward",
        floating=any(value.floating for value in call.values),
    )


def _adam(call: Call) -> Meaning:
    """Weights, gradients, both averages, perhaps maxima, numbers of steps; decay among the rest.

    Three for the first average and four for the second, a root, a quotient and a sum, three for the
    weights; decay is one more of the weights (AdamW), or two in the gradient.
    """
    decay = call.keywords.get("weight_decay", 0)
    each = 13 + (decay != 0) * (1 if "adamw" in call.operator else 2)
    return _updated(call, each + bool(call.keywords.get("amsgrad")), [0, 2, 3, 4])


def _descent(call: Call) -> Meaning:
    """Weights, gradients, velocities."""
    decay = call.keywords.get("weight_decay", 0)
    return _updated(call, 2 + 2 * (decay != 0) + 2 * bool(call[2]), [0, 2])


def _updated(call: Call, each: int, written: Sequence[int]) -> Meaning:
    moved = [value for place in written for value in call[place]]
    return ours.update(each, call[0], moved, f"{call.operator} has no layer")


_ELEMENTS: Final[Mapping[str, Callable[[Call], Meaning]]] = {
    **dict.fromkeys(_ARITHMETIC, _elementwise),
    **dict.fromkeys(
        ("add", "sub", "rsub"), lambda c: _elementwise(c, c[0], c[1], factor=c.get(2, "alpha", 1))
    ),
    "clamp": lambda c: _elementwise(c, c[0], c.get(1, "min"), c.get(2, "max")),
    **dict.fromkeys(
        ("addcmul", "addcdiv"),
        lambda c: _elementwise(c, *c.arguments[:3], factor=c.get(3, "value", 1)),
    ),
    "leaky_relu": lambda c: _elementwise(c, c[0], c.get(1, "negative_slope", 0.01)),
    "_prelu_kernel": lambda c: _elementwise(c, name="prelu"),
    "_prelu_kernel_backward": lambda c: _elementwise(c, name="prelu_backward"),
    **{
        f"{name}{pass_}": _activation
        for name in _ACTIVATIONS
        for pass_ in ("", "_backward")
        if f"{name}{pass_}" != "relu_backward"
    },
    "threshold_backward": _activation,
    "native_dropout": lambda c: ours.activation(
        "dropout", c[0].shape, training=True, keep=1 - c[1]
    ),
    **dict.fromkeys(("_fused_adam", "_fused_adamw"), _adam),
    "_fused_sgd": _descent,
}


# -----------------------------------------------------------------------------
# What computes nothing.


def _cloned(call: Call) -> Meaning:
    """A new tensor of the first one's elements."""
    source, wanted = call.values[0], call.keywords.get("memory_format")
    axes, how = list(range(len(source.shape))), wanted.text if wanted else "preserve_format"
    if how == "preserve_format":
        axes = source.axes_in_memory
    elif how != "contiguous_format":
        axes = [axes[0], *axes[2:], axes[1]]
    # Conversions have results of another size.
    converts = call.operator == "_to_copy"
    reads = least_bytes([source]) if converts else ours.part_of(source, call.results)
    other = call.dtype not in (None, source.dtype)
    return ours.copy(source, axes, reads, "a conversion has no layer" if other else "")


def _copied_into(call: Call) -> Meaning:
    """Target, and what is copied into it."""
    target, source = call.values
    alike = (target.dtype, target.shape) == (source.dtype, source.shape)
    why = "" if alike else "a copy to another type or shape has no layer"
    return ours.copy(source, target.axes_in_memory, least_bytes([source]), why)


def _filled(shape: Callable[[Call], Sequence[int]]) -> Callable[[Call], Meaning]:
    """A tensor of one value; one that is an operand says the shape only."""

    def rule(call: Call) -> Meaning:
        whole = call.operator == "full" and isinstance(call[1], int)
        usual = call.values[0].dtype if call.values else "int64" if whole else "float32"
        return ours.filled(Value.dense(call.dtype or usual, shape(call)))

    return rule


def _padded(call: Call) -> Meaning:
    """Source, and what is added at both ends, of the last dimension first."""
    source, pads = call.arguments[:2]
    around = [*zip(pads[::2], pads[1::2], strict=True)][::-1]
    around = [(0, 0)] * (len(source.shape) - len(around)) + around
    sizes = [size + sum(both) for size, both in zip(source.shape, around, strict=True)]
    why = "a copy of a part has no layer" if min(pads) < 0 else ""
    reads = ours.part_of(source, call.results)
    return ours.among_others(source, sizes, source.axes_in_memory, reads, why)


def _shuffled(call: Call) -> Meaning:
    """Images, and how many pixels of a side come from channels, or go there."""
    images, factor = call.arguments[:2]
    if len(images.shape) != 4 or 1 not in images.strides:
        return ours.moved(least_bytes([images]), "a shuffle of pixels of these")
    if call.operator == "pixel_shuffle":
        # Batch, channels, rows and columns of a pixel, height, width.
        parts, order = images.split(1, factor * factor).split(2, factor), [0, 1, 4, 2, 5, 3]
    else:
        # Batch, channels, height and rows of a pixel, width and columns.
        parts, order = images.split(2, factor).split(4, factor), [0, 1, 3, 5, 2, 4]
    shuffled = parts.permuted(order)
    if images.strides[1] == 1 and images.shape[1] > 1:  # the result lies likewise
        last = order[1:2] if call.operator == "pixel_shuffle" else [1, 3, 5]
        order = [axis for axis in order if axis not in last] + last
    made = ours.copy(parts.permuted(order), range(6), least_bytes([images]))
    return ours.bound(made, [shuffled])


def _gathered(call: Call) -> Meaning:
    """Table and indices."""
    first = call[1][0] if call.operator == "index" else call[1]
    whole = {"embedding": True, "index": isinstance(first, Value), "index_select": first == 0}
    table, *indices = call.values
    return ours.gathered(table, indices, call.results, rows=whole.get(call.operator, False))


def _scattered(call: Call) -> Meaning:
    """Table, dimension, indices, values: at the indices, values are written, or added."""
    table, indices, *values = call.values
    number = values[0].elements if call.operator.startswith("index") else indices.elements
    adds = call.operator.endswith("add")
    return ours.scattered(table, call.values[1:], number, adds=adds, in_place=call.in_place)


def _put(call: Call) -> Meaning:
    """Table, indices for each of its first dimensions, values, whether to add."""
    table, indices, values = call.arguments[:3]
    given = [each for each in indices if each is not None]
    if any(each.dtype in ("bool", "uint8") for each in given):
        if values.elements == 1:
            raise UnsupportedError("how many elements a mask picks is not recorded")
        number = values.elements
    else:
        rest = [n for n, each in zip(table.shape, indices, strict=False) if each is None]
        rest += table.shape[len(indices) :]
        number = math.prod(ours.broadcast([each.shape for each in given])) * math.prod(rest)
    adds = call.get(3, "accumulate", False)
    return ours.scattered(table, call.values[1:], number, adds=adds, in_place=call.in_place)


def _joined(call: Call) -> Meaning:
    """Tensors, and the dimension along which they are put behind one another."""
    values = [value for value in call[0] if value.shape != (0,)]
    return ours.joined(values, call.get(1, "dim", 0))


def _drawn(call: Call) -> Meaning:
    # The first one is overwritten, or says the shape.
    own = call.in_place or call.operator.endswith("_like")
    return ours.random(call.values[int(own) :])


#: What makes no kernel run: other sights of the same memory, memory without values, questions.
_VIEWS: Final = (
    *("_reshape_alias", "_unsafe_view", "alias", "as_strided", "detach", "diagonal", "expand"),
    *("lift_fresh", "permute", "reshape", "select", "slice", "split", "split_with_sizes"),
    *("squeeze", "t", "transpose", "unbind", "unfold", "unsafe_chunk", "unsafe_split"),
    *("unsafe_split_with_sizes", "unsqueeze", "view", "view_as_complex", "view_as_real"),
    *("_local_scalar_dense", "is_same_size", "resize", "set", "sym_numel", "sym_size"),
    *("empty", "empty_like", "empty_permuted", "empty_strided", "new_empty", "new_empty_strided"),
)
_COPIES: Final = (
    *("flip", "im2col", "reflection_pad1d", "reflection_pad2d", "repeat", "replication_pad2d"),
    *("roll", "tril", "triu"),
)
_DRAWN: Final = (
    *("bernoulli", "exponential", "multinomial", "normal", "rand", "rand_like", "randint"),
    *("randn", "randn_like", "random", "randperm", "uniform"),
)
_MOVES: Final[Mapping[str, Callable[[Call], Meaning]]] = {
    **dict.fromkeys(_VIEWS, lambda _: ours.view()),
    **dict.fromkeys(_COPIES, lambda c: ours.moved(ours.part_of(c.values[0], c.results))),
    **dict.fromkeys(("clone", "_to_copy"), _cloned),
    "copy": _copied_into,
    **dict.fromkeys(("arange", "eye", "linspace", "scalar_tensor"), lambda _: ours.moved(0)),
    **dict.fromkeys(("full", "ones", "zeros"), _filled(lambda c: c[0])),
    **dict.fromkeys(("new_full", "new_ones", "new_zeros"), _filled(lambda c: c[1])),
    **dict.fromkeys(
        ("fill", "full_like", "ones_like", "zero", "zeros_like"),
        _filled(lambda c: c.values[0].shape),
    ),
    **dict.fromkeys(_DRAWN, _drawn),
    "constant_pad_nd": _padded,
    **dict.fromkeys(("pixel_shuffle", "pixel_unshuffle"), _shuffled),
    "stack": lambda c: ours.joined(c[0], c.get(1, "dim", 0), stacked=True),
    # Outer gradient, and the sizes of all of it.
    **dict.fromkeys(
        ("slice_backward", "select_backward"),
        lambda c: ours.among_others(c[0], c[1], range(len(c[0].shape)), least_bytes(c.values)),
    ),
    "cat": _joined,
    **dict.fromkeys(("embedding", "index", "index_select", "gather", "take"), _gathered),
    **dict.fromkeys(("scatter", "scatter_add", "index_add", "index_copy"), _scattered),
    **dict.fromkeys(("index_put", "_index_put_impl"), _put),
    "embedding_dense_backward": lambda c: ours.table_gradient(c[0], c[1], c[2]),
}
#: Whose operands are those of its layers in their order, and whose first result is theirs.
_IN_ORDER: Final = frozenset(
    (
        *("mm", "bmm", "mv", "dot", "embedding", "index", "index_select"),
        *_WINDOWS,
        *_SUMS,
        *_ACTIVATIONS,
    )
)
#: By operator.
RULES: Final[Mapping[str, Callable[[Call], Meaning]]] = {
    **_CHAINS,
    **_WINDOWS,
    **_ELEMENTS,
    **_SUMS,
    **_MOVES,
}
