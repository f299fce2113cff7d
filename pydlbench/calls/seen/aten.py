"""Parses the signatures of PyTorch's recorded calls, without PyTorch.

:mod:`pydlbench.backends.torch.steps.signature` writes them.
"""

import ast
import functools
import math
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Final, NoReturn

from pydlbench.calls import elementwise, moves, products, rows, windows
from pydlbench.calls.meaning import (
    Meaning,
    Value,
    broadcast_shapes,
    combine,
    complete,
    dtypes_of,
    least_bytes,
    make_in_place,
    of_types,
)
from pydlbench.errors import UnsupportedError, UsageError
from pydlbench.records.trace import RecordedCall

_CONSTANTS: Final = {"inf": math.inf, "nan": math.nan}
_WITHOUT_TEXT: Final = re.compile("<([^<>]*)>")
_TYPE_PREFIXES: Final = ("float", "bfloat", "bool", "complex", "int", "uint")


# -----------------------------------------------------------------------------
# Arguments of operators: values in tuples, lists and dicts.


def map_leaves(tree: Any, function: Callable[[Any], Any]) -> Any:
    """Return arguments with a function applied to each value, in nested lists too."""
    if isinstance(tree, (list, tuple)):
        return type(tree)([map_leaves(item, function) for item in tree])
    if isinstance(tree, dict):
        return {name: map_leaves(item, function) for name, item in tree.items()}
    return function(tree)


def leaves(tree: Any, kind: type) -> Iterator[Any]:
    """Yield all values of one type in order, of nested lists too."""
    if isinstance(tree, (list, tuple)):
        for item in tree:
            yield from leaves(item, kind)
    elif isinstance(tree, dict):
        yield from leaves(list(tree.values()), kind)
    elif isinstance(tree, kind):
        yield tree


# -----------------------------------------------------------------------------
# Parsing of signatures.


@dataclass(frozen=True, slots=True)
class TorchName:
    """The name of a PyTorch type, layout, memory format or device.

    Attributes:
        kind: ``torch`` for an attribute of that module, or ``device``.
        text: name within that module, or of the device.
    """

    kind: str
    text: str


@dataclass(frozen=True, slots=True, eq=False)
class Unrecorded:
    """An argument whose value was not recorded; it is neither None nor equal to any number.

    Attributes:
        kind: type of the argument: ``Scalar``.
    """

    kind: str

    def _refuse(self, *_: Any) -> NoReturn:
        raise UnsupportedError(f"the value of an argument ({self.kind}) was not recorded")

    __bool__ = __float__ = __index__ = __iter__ = __len__ = __neg__ = __str__ = _refuse
    __add__ = __radd__ = __sub__ = __rsub__ = __mul__ = __rmul__ = __mod__ = _refuse
    __lt__ = __le__ = __gt__ = __ge__ = __getitem__ = _refuse


def _known(given: Any, default: float) -> float:
    return default if isinstance(given, Unrecorded) else given


@dataclass(frozen=True, kw_only=True)
class AtenCall:
    """A call parsed from its signature.

    Attributes:
        name: name of the operator's overload: ``aten.add_.Tensor``.
        arguments: positional arguments: numbers, strings, None, lists of them, and
            :class:`~pydlbench.calls.meaning.Value` and :class:`TorchName`.
        keywords: keyword arguments.
        backward: whether the call is a part of the backward pass.
        bytes: bytes of all operands and results; 0 if unknown.
        trained: indices of the operands that are trained tensors; as in
            :class:`~pydlbench.records.trace.RecordedCall`.
    """

    name: str
    arguments: tuple[Any, ...]
    keywords: dict[str, Any] = field(default_factory=dict)
    backward: bool = False
    bytes: int = 0
    trained: tuple[int, ...] = ()

    def __getitem__(self, place: int) -> Any:
        """Return an argument by its position."""
        return self.arguments[place]

    def get(self, place: int, name: str, default: Any = None) -> Any:
        """Return an argument by position and name; recorded calls lack default values."""
        if place < len(self.arguments):
            return self.arguments[place]
        return self.keywords.get(name, default)

    def number(self, place: int, name: str, default: float) -> float:
        """Return a number that changes little of the computation; the default if unrecorded."""
        return _known(self.get(place, name, default), default)

    @property
    def operator(self) -> str:
        """Operator without namespace, overload and the underscore of in-place operators."""
        namespace, operator, _ = self.name.split(".")
        return operator.rstrip("_") if namespace == "aten" else f"{namespace}.{operator}"

    @property
    def in_place(self) -> bool:
        """Whether the call overwrites its first operand."""
        return self.name.split(".")[1].endswith("_")

    @functools.cached_property
    def values(self) -> tuple[Value, ...]:
        """All operands in order, without those that only receive results."""
        read = {name: given for name, given in self.keywords.items() if name not in self._given_out}
        return tuple(leaves([self.arguments, read], Value))

    @functools.cached_property
    def outputs(self) -> tuple[Value, ...]:
        """Operands that only receive results (``out=``)."""
        return tuple(leaves([self.keywords[name] for name in self._given_out], Value))

    @property
    def _given_out(self) -> tuple[str, ...]:
        # Overloads are named ``out``, ``dim_out``, ``grad_input``.
        overload = self.name.rpartition(".")[2]
        if not overload.endswith(("out", "grad_input")):
            return ()
        return tuple(name for name in self.keywords if name.startswith(("out", "grad_input")))

    @property
    def numbers(self) -> tuple[Any, ...]:
        """The positional arguments that are not operands."""
        return tuple(item for item in self.arguments if not isinstance(item, Value))

    @property
    def results(self) -> int | None:
        """Bytes of all results, overwritten operands included; None if unknown."""
        if not self.bytes and self.outputs:
            return least_bytes(self.outputs)
        results = self.bytes - sum(value.bytes for value in (*self.values, *self.outputs))
        return results if self.bytes and results >= 0 else None

    @property
    def dtype(self) -> str | None:
        """The requested type; None if the call requests none."""
        dtype = self.keywords.get("dtype")
        return dtype.text if dtype else None

    def bytes_without(self, operand: Value) -> int:
        """Return the bytes of all operands but one, of which only the shape matters."""
        return least_bytes([value for value in self.values if value.number != operand.number])


def read_call(text: str) -> AtenCall:
    """Parse a signature.

    Raises:
        UnsupportedError: the signature lacks an argument, which has no text.
    """
    name, _, rest = text.partition("(")
    # A value without a text is its type in angle brackets.
    lost = next((kind for kind in _WITHOUT_TEXT.findall(rest) if "ensor" in kind), None)
    if lost is not None:
        raise UnsupportedError(f"{name}: the tensors of an argument ({lost}) were not recorded")
    rest = _WITHOUT_TEXT.sub(lambda match: f"lost({match[1]!r})", rest)
    try:
        tree = ast.parse(f"call({rest}", mode="eval").body
    except SyntaxError as error:
        raise UnsupportedError(f"{name}: its arguments cannot be read: {rest[:60]}") from error
    assert isinstance(tree, ast.Call), text
    reader = _Reader(name)
    arguments = tuple(reader.value(node) for node in tree.args)
    keywords = {str(keyword.arg): reader.value(keyword.value) for keyword in tree.keywords}
    return AtenCall(name=name, arguments=arguments, keywords=keywords)


class _Reader:
    """Parser of one call's arguments, in order.

    Args:
        name: name of the operator, for messages.
    """

    def __init__(self, name: str) -> None:
        self._name = name
        self._number = 0

    def value(self, node: ast.expr) -> Any:
        """Return the value of an expression."""
        if isinstance(node, ast.List):
            return [self.value(item) for item in node.elts]
        if isinstance(node, ast.Constant):
            return node.value
        if isinstance(node, ast.Name) and node.id in _CONSTANTS:
            return _CONSTANTS[node.id]
        if isinstance(node, ast.UnaryOp) and isinstance(node.op, ast.USub):
            return -self.value(node.operand)
        if isinstance(node, ast.Attribute):
            return TorchName("torch", node.attr)
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Subscript):
            return self._tensor(node.func, node)
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Name):
            return Unrecorded(self.value(node.args[0]))
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute):
            return TorchName("device", self.value(node.args[0]))
        raise UnsupportedError(f"{self._name}: the argument {ast.unparse(node)} has no meaning")

    def _tensor(self, typed: ast.Subscript, call: ast.Call) -> Value:
        number, self._number = self._number, self._number + 1
        shape = ast.literal_eval(typed.slice)
        assert isinstance(typed.value, ast.Name), ast.unparse(typed)
        fields = {str(keyword.arg): self.value(keyword.value) for keyword in call.keywords}
        return Value(
            number=number,
            dtype=typed.value.id,
            shape=shape if isinstance(shape, tuple) else (shape,),
            strides=tuple(self.value(stride) for stride in call.args),
            offset=fields.get("at", 0),
            storage=fields.get("of", number),
            device=fields.get("on"),
        )


def meaning_of(recorded: RecordedCall) -> Meaning:
    """Return the meaning of a PyTorch call.

    Raises:
        UnsupportedError: the signature is not a PyTorch call, or there is no rule for the call.
    """
    if recorded.signature.partition("(")[0].count(".") != 2:
        raise UnsupportedError(f"{recorded.operator}: no recorded call of PyTorch's")
    call = replace(
        read_call(recorded.signature),
        backward=recorded.direction == "backward",
        bytes=recorded.bytes,
        trained=recorded.trained,
    )
    inputs = _INPUTS.get(call.operator, len(call.arguments))
    if len(call.arguments) > inputs and isinstance(call[inputs], Value):
        # Profiles note ``out=`` behind the others, without its name.
        call = replace(
            call,
            name=f"{call.name.rpartition('.')[0]}.out",
            arguments=call.arguments[:inputs],
            keywords={**call.keywords, "out": call[inputs]},
        )
    try:
        part = _part(call)
    except UnsupportedError as error:
        raise UnsupportedError(_with_operator(call, str(error))) from error
    except UsageError:
        raise
    except (ArithmeticError, AttributeError, LookupError, TypeError, ValueError) as error:
        raise UnsupportedError(_with_operator(call, _not_recorded(call))) from error
    names = leaves([call.arguments, call.keywords], TorchName)
    types = [name.text for name in names if name.text.startswith(_TYPE_PREFIXES)]
    return complete(part, call.values, _written(call, part), types)


def _with_operator(call: AtenCall, why: str) -> str:
    name = call.name.rpartition(".")[0]
    return why if why.startswith((name, call.operator)) else f"{name}: {why}"


def _not_recorded(call: AtenCall) -> str:
    """Return the reason why the rule of a call failed: arguments that are missing."""
    if not call.arguments:
        return "its arguments were not recorded"
    if call.values and not any(value.shape for value in call.values):
        return "the shapes of its operands were not recorded"
    if None in call.arguments or any(leaves(call.arguments, Unrecorded)):
        return "the values of some of its arguments were not recorded"
    return f"no rule for these {len(call.arguments)} arguments"


def _written(call: AtenCall, part: Meaning) -> int | None:
    """Return the bytes of all results; if they were not recorded, by the shapes of the operands.

    None if neither tells them. Layers tell the size of their results.
    """
    compares = call.operator in _COMPARISONS
    if call.results is not None or (part.layers and not compares) or not call.values:
        return call.results
    first = call.values[0]
    if call.in_place or call.operator.endswith("_like"):
        return first.bytes
    if call.operator in ("clone", "_to_copy"):
        return Value.dense(call.dtype or first.dtype, first.shape).bytes
    if part.kind in ("softmax", "normalisation"):
        return first.bytes
    if part.kind not in ("elementwise", "activation"):
        return None
    dtype = "bool" if compares else dtypes_of(call.values)[0]
    return Value.dense(dtype, broadcast_shapes([value.shape for value in call.values])).bytes


def _part(call: AtenCall) -> Meaning:
    name = call.operator.removeprefix("_foreach_")
    rule = RULES.get(name)
    if rule is None:
        raise UnsupportedError(f"{call.operator}: no rule for this operator")
    of_complex = any(value.dtype.startswith("complex") for value in call.values)
    if of_complex and call.operator not in _OF_COMPLEX:
        raise UnsupportedError(f"{call.operator}: no rule for complex numbers")
    if name != call.operator:
        return _list_call(call, rule)
    return make_in_place(rule(call)) if call.in_place else rule(call)


def _list_call(call: AtenCall, rule: Callable[[AtenCall], Meaning]) -> Meaning:
    """Return the meaning of a call on lists, one tensor after the other.

    In-place operators return no tensors.
    """
    parts = []
    for place, first in enumerate(call[0]):
        arguments = tuple(
            item[place] if isinstance(item, list) else item for item in call.arguments
        )
        part = rule(replace(call, arguments=arguments, bytes=0))
        parts.append(replace(make_in_place(part), writes=first.bytes) if call.in_place else part)
    return combine(parts)


# -----------------------------------------------------------------------------
# Convolutions, poolings, resizing.


def _sides(values: Any, number: int) -> list[int]:
    """Return one number for each side; a single one is for all sides."""
    listed = values if isinstance(values, list) else [values]
    return listed * number if len(listed) == 1 else listed


def _convolution(
    call: AtenCall, source: Value, weights: Value, first: int, **options: Any
) -> Meaning:
    """Arguments from ``first``: stride, padding, dilation, transposed, output padding, groups."""
    number = len(source.shape) - 2
    stride, padding, dilation = (_sides(call[first + place], number) for place in range(3))
    transposed, groups = call[first + 3], call[first + 5]
    if transposed:
        extra = _sides(call[first + 4], number)
        sides = zip(
            source.shape[2:], weights.shape[2:], stride, padding, dilation, extra, strict=True
        )
        options["out"] = [(i - 1) * s - 2 * p + d * (k - 1) + e + 1 for i, k, s, p, d, e in sides]
    return windows.convolution(
        source.shape,
        weights.shape,
        stride=stride,
        pads=windows.pair_pads(padding),
        dilation=dilation,
        groups=groups,
        transposed=transposed,
        **options,
    )


def _convolution_gradients(call: AtenCall) -> Meaning:
    """Arguments: outer gradient, source, weights, sizes of the bias, settings, mask.

    The mask selects the gradients: of the source, the weights, the bias.
    """
    outer, source, weights = call.arguments[:3]
    of_source, of_weights, of_bias = call[10]
    gradients = ["backward-weights"] * of_weights + ["backward-data"] * of_source
    reads = least_bytes([outer] + [source] * bool(of_weights) + [weights] * bool(of_source))
    if gradients:
        return _convolution(
            call, source, weights, 4, gradients=gradients, bias=of_bias, reads=reads
        )
    return replace(elementwise.channel_sums(outer.shape, "convolution"), reads=reads)


def _pooling(call: AtenCall, mode: str, sides: int, *, backward: bool = False) -> Meaning:
    """Arguments: source and settings; backward with the outer gradient in front.

    The gradient of a maximum has indices behind the settings.
    """
    source, first = call[int(backward)], 1 + backward
    kernel = _sides(call.get(first, "kernel_size"), sides)
    options: dict[str, Any] = {}
    ceil = first + 3
    if mode == "max":
        options["dilation"] = _sides(call.get(first + 3, "dilation", 1), sides)
        ceil += 1
    else:
        options["count_padding"] = call.get(first + 4, "count_include_pad", True)
        options["divisor"] = call.get(first + 5, "divisor_override")
    return windows.pooling(
        source.shape,
        mode=mode,
        kernel=kernel,
        stride=_sides(call.get(first + 1, "stride", []) or kernel, sides),
        pads=windows.pair_pads(_sides(call.get(first + 2, "padding", 0), sides)),
        ceil=call.get(ceil, "ceil_mode", False),
        backward=backward,
        reads=call.bytes_without(source) if backward else None,
        **options,
    )


def _adaptive_pooling(call: AtenCall, mode: str, sides: int, *, backward: bool = False) -> Meaning:
    """Arguments: source and size; backward outer gradient, source and indices of maxima."""
    if not backward:
        return windows.adaptive_pooling(call[0].shape, call[1], mode=mode)
    outer, source = call[0].shape[-sides:], call[1]
    reads = call.bytes_without(source)
    return windows.adaptive_pooling(source.shape, outer, mode=mode, backward=True, reads=reads)


def _resize(
    call: AtenCall, taps: int, coordinates: str, *, aligns: bool, backward: bool = False
) -> Meaning:
    """Arguments: source and size; backward outer gradient, size, shape of the source.

    Factors are last.

    Args:
        call: parsed call.
        taps: number of pixels, as in :func:`~pydlbench.calls.windows.resize`.
        coordinates: coordinates, as in that function, if corners are not aligned.
        aligns: whether the argument behind the sizes says whether corners are aligned.
        backward: whether the call computes the gradient.
    """
    shape = call[2] if backward else call[0].shape
    factors = list(call.arguments[2 + backward :])
    aligned = bool(factors.pop(0)) if aligns and factors else False
    if not isinstance(call[1], list):
        return Meaning.unknown("resized by a factor only", "resize")
    return windows.resize(
        shape,
        call[1],
        taps=taps,
        coordinates="aligned" if aligned else coordinates,
        factors=factors,
        backward=backward,
    )


def _unfold(call: AtenCall, *, backward: bool = False) -> Meaning:
    """Arguments: images, kernel, dilation, padding, stride; columns, size of images, and those."""
    kernel, dilation, padding, stride = call.arguments[1 + backward :]
    shape = call[0].shape
    if backward:
        *batch, columns, _ = shape
        shape = (math.prod(batch), columns // math.prod(kernel), *call[1])
    return windows.unfold(
        shape if len(shape) == 4 else (1, *shape),
        kernel=kernel,
        dilation=dilation,
        pads=windows.pair_pads(padding),
        stride=stride,
        backward=backward,
        reads=None if backward else moves.bytes_copied(call[0], call.results),
    )


#: Taps, coordinates, and whether corners may be aligned.
_RESIZES: Final[Mapping[str, tuple[int, str, bool]]] = {
    **dict.fromkeys([f"upsample_nearest{n}d" for n in (1, 2, 3)], (1, "whole", False)),
    **dict.fromkeys([f"_upsample_nearest_exact{n}d" for n in (1, 2, 3)], (1, "centres", False)),
    "upsample_linear1d": (2, "centres", True),
    "upsample_bilinear2d": (2, "centres", True),
    "upsample_trilinear3d": (2, "centres", True),
    "upsample_bicubic2d": (4, "centres", True),
}
_POOLINGS: Final = {"max": "max_pool{}d_with_indices", "avg": "avg_pool{}d"}
_ADAPTIVE_POOLINGS: Final = {"max": "adaptive_max_pool{}d", "avg": "_adaptive_avg_pool{}d"}
_WINDOW_RULES: Final[Mapping[str, Callable[[AtenCall], Meaning]]] = {
    "convolution": lambda c: _convolution(c, c[0], c[1], 3, bias=c[2] is not None),
    "convolution_backward": _convolution_gradients,
    "im2col": _unfold,
    "col2im": functools.partial(_unfold, backward=True),
    # Images, grid, interpolation (linear, nearest, cubic), padding, whether corners are aligned.
    **dict.fromkeys(
        ("grid_sampler_2d", "grid_sampler_3d", "cudnn_grid_sampler"),
        lambda c: windows.sample(c[0], c[1], taps=(2, 1, 4)[c.get(2, "interpolation_mode", 0)]),
    ),
    # Affine maps of images, and their size: each place with a one behind times a map.
    "affine_grid_generator": lambda c: products.matmul(
        [c[0].shape[0]], math.prod(c[1][2:]), len(c[1]) - 1, len(c[1]) - 2
    ),
    **{
        f"{name.format(sides)}{'_backward' * backward}": functools.partial(
            rule, mode=mode, sides=sides, backward=backward
        )
        for rule, names in ((_pooling, _POOLINGS), (_adaptive_pooling, _ADAPTIVE_POOLINGS))
        for mode, name in names.items()
        for sides in (2, 3)
        for backward in (False, True)
    },
    **{
        f"{name}{'_backward' * backward}": functools.partial(
            _resize, taps=taps, coordinates=coordinates, aligns=aligns, backward=backward
        )
        for name, (taps, coordinates, aligns) in _RESIZES.items()
        for backward in (False, True)
    },
}


# -----------------------------------------------------------------------------
# Products, attention, recurrent layers.


def _is_transposed(matrix: Value) -> bool:
    """Whether the elements of a column are contiguous, but not the elements of a row."""
    down, across = matrix.strides[-2:]
    return down == 1 and across >= matrix.shape[-2]


def _matmul(call: AtenCall, first: int = 0) -> Meaning:
    """Arguments from ``first``: two matrices, or batches of them.

    PyTorch's gradient of a single matrix has the outer gradient on the left.
    """
    left, right = call.get(first, "self"), call.get(first + 1, "mat2")
    *batch, m, k = left.shape
    left_transposed = _is_transposed(left)
    if not any(left.strides[-2:]):  # the expanded gradient of a sum has no order
        left_transposed = not (_is_transposed(right) or right.number in call.trained)
    return products.matmul(
        batch,
        m,
        k,
        right.shape[-1],
        left_transposed=left_transposed,
        right_transposed=_is_transposed(right),
        backward=call.backward,
        outer_first=not batch,
    )


def _added_matmul(call: AtenCall) -> Meaning:
    """Arguments: addend, left, right."""
    part = _matmul(call, 1)
    if call.get(3, "beta", 1) == 0:
        return part
    result = *call[1].shape[:-1], call[2].shape[-1]
    return combine([part, products.addend(result, call[0].shape)])


def _linear(call: AtenCall) -> Meaning:
    """Arguments: rows of any shape, weights (outputs first), and perhaps a bias."""
    source, (outputs, inputs) = call[0], call[1].shape
    count, bias = source.elements // inputs, call.get(2, "bias")
    parts = [products.matmul((), count, inputs, outputs)]
    parts += [] if bias is None else [products.addend((count, outputs), bias.shape)]
    return combine(parts)


def _by_vector(call: AtenCall) -> Meaning:
    """Arguments: a matrix or a vector, and a vector."""
    left, right = call[0].elements, call[1].elements
    return products.matmul((), left // right if right else 0, right, 1)


def _attention(call: AtenCall, causal: int, *, backward: bool = False) -> Meaning:
    """Arguments: query, key, value ``(batch, heads, length, size)``, behind an outer gradient.

    Args:
        call: parsed call.
        causal: position of the argument ``is_causal``.
        backward: whether the call computes the gradient.
    """
    query, key, value = operands = call.arguments[int(backward) :][:3]
    part = products.attention(
        query.shape,
        key.shape[-2],
        value.shape[-1],
        causal=call.get(causal, "is_causal", False),
        backward=backward,
    )
    # Sums of exponentials are in float32.
    return replace(part, dtypes=dtypes_of(operands))


def _transform(call: AtenCall, name: str, shape: Sequence[int]) -> Meaning:
    """Arguments: numbers, and the dimensions along which they are transformed."""
    part = products.transform(name, call[0].dtype, math.prod(shape), shape, call[1])
    whole = name == "real" and not call.get(3, "onesided", True)
    why = "a transform to both halves has no layer"
    return replace(part, layers=(), layers_missing=why) if whole else part


def _real_shape(call: AtenCall) -> list[int]:
    """Return the shape of the result of a transform to real numbers."""
    shape = list(call[0].shape)
    shape[call[1][-1]] = call[3]
    return shape


#: Cells by PyTorch's numbers; 0 and 1 have no gates.
_CELLS: Final = {2: "lstm", 3: "gru"}
_PRODUCT_RULES: Final[Mapping[str, Callable[[AtenCall], Meaning]]] = {
    **dict.fromkeys(("mm", "bmm"), _matmul),
    **dict.fromkeys(("addmm", "baddbmm"), _added_matmul),
    "linear": _linear,
    "_euclidean_dist": lambda c: products.distances(c[0], c[1], euclidean=True),
    "_cdist_forward": lambda c: products.distances(c[0], c[1], euclidean=c[2] == 2),
    "_fft_r2c": lambda c: _transform(c, "real", c[0].shape),
    "_fft_c2c": lambda c: _transform(c, "complex", c[0].shape),
    "_fft_c2r": lambda c: _transform(c, "inverse-real", _real_shape(c)),
    **dict.fromkeys(("mv", "dot"), _by_vector),
    "_grouped_mm": lambda c: products.grouped_matmul(c[0], c[1].shape[-1]),
    "_scaled_dot_product_flash_attention_for_cpu": lambda c: _attention(c, 4),
    "_scaled_dot_product_flash_attention": lambda c: _attention(c, 4),
    "_scaled_dot_product_efficient_attention": lambda c: _attention(c, 6),
    "_scaled_dot_product_cudnn_attention": lambda c: _attention(c, 6),
    "_scaled_dot_product_flash_attention_for_cpu_backward": lambda c: _attention(
        c, 7, backward=True
    ),
    "_scaled_dot_product_flash_attention_backward": lambda c: _attention(c, 11, backward=True),
    "_scaled_dot_product_efficient_attention_backward": lambda c: _attention(c, 11, backward=True),
    "_scaled_dot_product_cudnn_attention_backward": lambda c: _attention(c, 14, backward=True),
    # Query, key, value, width, heads, four projections.
    "_native_multi_head_attention": lambda c: products.projected_attention(
        c[0].shape, c[1].shape[-2], c[4]
    ),
    # Source, width, heads, and all weights.
    "_transformer_encoder_layer_fwd": lambda c: products.projected_attention(
        c[0].shape, c[0].shape[-2], c[2], c[14].shape[0]
    ),
    # Source, then weights, initial states, settings.
    "mkldnn_rnn_layer": lambda c: products.recurrent(
        c[0].shape, c.arguments[1:3], _CELLS.get(c[9]), training=bool(c[15])
    ),
    "mkldnn_rnn_layer_backward": lambda c: products.recurrent(
        c[0].shape, c.arguments[1:3], _CELLS.get(c[14]), backward=True
    ),
}


# -----------------------------------------------------------------------------
# Quantized operators. Their packed weights are a list: weights, bias, settings of a convolution. A
# bias, which every kernel adds before it rounds, is not counted.


def _quantized(call: AtenCall, rule: Callable[[AtenCall], Meaning]) -> Meaning:
    """Arguments: source, which dynamic operators round themselves, and packed weights."""
    source, (weights, _, *settings) = call.arguments[:2]
    part = rule(replace(call, arguments=(source, weights, None, *settings)))
    if not weights.dtype.startswith("qint"):
        return part
    types = ["uint8" if source.floating else source.dtype, weights.dtype]
    types.append("float32" if source.floating else source.dtype)
    return of_types(part, *(dtype.removeprefix("q") for dtype in types))


def _quantized_pooling(call: AtenCall) -> Meaning:
    dtype = call[0].dtype.removeprefix("q")
    return of_types(_pooling(call, "max", 2), dtype, "int8", dtype)


_QUANTIZED_RULES: Final[Mapping[str, Callable[[AtenCall], Meaning]]] = {
    **{
        f"quantized.{name}{relu}{dynamic}": functools.partial(_quantized, rule=rule)
        for rule, names in (
            (_linear, ["linear"]),
            (
                lambda c: _convolution(c, c[0], c[1], 3),
                [f"conv{transposed}{n}d" for transposed in ("", "_transpose") for n in (1, 2, 3)],
            ),
        )
        for name in names
        for relu in ("", "_relu")
        for dynamic in ("", "_dynamic")
    },
    "quantized.linear_dynamic_fp16": functools.partial(_quantized, rule=_linear),
    **{
        f"quantized.{name}{relu}": functools.partial(
            lambda c, name: elementwise.arithmetic(name, *c.arguments[:2]), name=name
        )
        for name in ("add", "mul")
        for relu in ("", "_relu")
    },
    "quantized.cat": lambda c: moves.other_copy(least_bytes(c.values)),
    "quantized_max_pool2d": _quantized_pooling,
    **dict.fromkeys(
        ("quantize_per_tensor", "quantize_per_channel", "dequantize", "int_repr"),
        lambda c: moves.other_copy(least_bytes(c.values), "a conversion of types"),
    ),
}


# -----------------------------------------------------------------------------
# Normalisations, softmax, losses, sums.


#: PyTorch's default of normalisations, whose time does not depend on it.
_EPSILON: Final = 1e-5


def _batch_normalisation(call: AtenCall) -> Meaning:
    """Arguments: source, weights, bias, running mean and variance, training, momentum, epsilon."""
    kinds = (bool, float, int, Unrecorded)
    numbers = [item for item in call.arguments[3:] if isinstance(item, kinds)]
    momentum, epsilon = numbers[-2:]
    return rows.batch_normalisation(
        call[0],
        epsilon=_known(epsilon, _EPSILON),
        momentum=_known(momentum, 0.1),
        training=len(numbers) > 2 and bool(numbers[0]),
        factors=None not in call.arguments[1:3],
        running=[item for item in call.arguments[3:5] if isinstance(item, Value)],
        written=call.results,
    )


def _batch_gradient(call: AtenCall) -> Meaning:
    """Arguments: outer gradient, source, weights, running and saved statistics, training, epsilon.

    The type of the computation is the type of the first two.
    """
    part = rows.batch_normalisation(
        call[1],
        epsilon=_known(call[8], _EPSILON),
        training=bool(call[7]),
        factors=call[2] is not None,
        backward=True,
    )
    return replace(part, dtypes=dtypes_of(call.arguments[:2]))


def _cudnn_batch_gradient(call: AtenCall) -> Meaning:
    """Arguments: source, outer gradient, weights, running and saved statistics, epsilon."""
    part = rows.batch_normalisation(
        call[0], epsilon=_known(call[7], _EPSILON), training=True, backward=True
    )
    return replace(part, dtypes=dtypes_of(call.arguments[:2]))


def _layer_gradient(call: AtenCall) -> Meaning:
    """Arguments: outer gradient, source, shape, mean, scale, weights, bias, mask of gradients."""
    factors = None not in call.arguments[5:7]
    dimensions = _row_dimensions(call[2], call[5])
    part = rows.along_rows("layernorm", call[1], dimensions, factors=factors, backward=True)
    return replace(part, dtypes=dtypes_of(call.arguments[:2]))


def _row_dimensions(shape: Any, factors: Any) -> int:
    """Return the number of dimensions of a row, by its shape, or by that of the factors."""
    return len(factors.shape) if shape is None and isinstance(factors, Value) else len(shape)


def _reduced_dims(call: AtenCall, place: int = 1) -> list[int] | None:
    """Return the dimensions of a reduction; by default all; None if they were not recorded."""
    dims = call.get(place, "dim")
    if isinstance(dims, Unrecorded):
        return None
    if isinstance(dims, int) and not isinstance(dims, bool):
        return [dims]
    # A truth value says how a variance of all elements is divided.
    return [*range(len(call.values[0].shape))] if dims in (None, [], True, False) else dims


def _reduction(name: str) -> Callable[[AtenCall], Meaning]:
    def rule(call: AtenCall) -> Meaning:
        # Unlike the table's ops with these names, PyTorch's operators return the indices of
        # extremes along a dimension, too.
        indexed = name in ("max", "min") and call.get(1, "dim") is not None
        op = f"{name}-indices" if indexed else name
        return rows.reduction(op, call.values[0], _reduced_dims(call))

    return rule


def _group_normalisation(call: AtenCall) -> Meaning:
    """Arguments: source, weights, bias, batch, channels, pixels, groups, epsilon."""
    return rows.group_normalisation(
        call[0],
        call[6],
        epsilon=_known(call[7], _EPSILON),
        factors=call[1] is not None,
        training=True,
    )


def _group_gradient(call: AtenCall) -> Meaning:
    """Arguments: outer gradient, source, mean, scale, weights, batch, channels, pixels, groups."""
    part = rows.group_normalisation(
        call[1], call[8], epsilon=_EPSILON, factors=call[4] is not None, backward=True
    )
    return replace(part, dtypes=dtypes_of(call.arguments[:2]))


_ROW_RULES: Final[Mapping[str, Callable[[AtenCall], Meaning]]] = {
    **dict.fromkeys(
        (
            *("native_batch_norm", "_native_batch_norm_legit"),
            *("_native_batch_norm_legit_no_training", "cudnn_batch_norm"),
            "miopen_batch_norm",
        ),
        _batch_normalisation,
    ),
    "native_batch_norm_backward": _batch_gradient,
    **dict.fromkeys(
        ("cudnn_batch_norm_backward", "miopen_batch_norm_backward"), _cudnn_batch_gradient
    ),
    "native_layer_norm": lambda c: rows.along_rows(
        "layernorm",
        c[0],
        _row_dimensions(c[1], c[2]),
        factors=None not in c.arguments[2:4],
        epsilon=_known(c[4], _EPSILON),
    ),
    "native_layer_norm_backward": _layer_gradient,
    "native_group_norm": _group_normalisation,
    "native_group_norm_backward": _group_gradient,
    # Source, shape of a row, factors, epsilon; backward outer gradient, source, shape, scale,
    # factors.
    "_fused_rms_norm": lambda c: rows.along_rows(
        "rmsnorm",
        c[0],
        len(c[1]),
        factors=c.get(2, "weight") is not None,
        **({"epsilon": epsilon} if (epsilon := c.get(3, "eps")) else {}),
    ),
    "_fused_rms_norm_backward": lambda c: rows.along_rows(
        "rmsnorm", c[1], len(c[2]), factors=c.get(4, "weight") is not None, backward=True
    ),
    **dict.fromkeys(
        ("_softmax", "_safe_softmax"),
        lambda c: rows.along_rows("softmax", c[0], dim=c.get(1, "dim")),
    ),
    "_log_softmax": lambda c: rows.along_rows("log-softmax", c[0], dim=c.get(1, "dim")),
    "_softmax_backward_data": lambda c: rows.along_rows("softmax", c[0], dim=c[2], backward=True),
    "_log_softmax_backward_data": lambda c: rows.along_rows(
        "log-softmax", c[0], dim=c[2], backward=True
    ),
    # Scores and labels; one score of each row is read.
    **dict.fromkeys(
        ("nll_loss_forward", "nll_loss2d_forward"),
        lambda c: rows.label_loss(
            c[0],
            c[1],
            c[1].elements * c[0].itemsize + least_bytes(c.values[1:]),
            summed=c[2] is None and c[3] != 0,
        ),
    ),
    # Outer gradient, scores, labels: the result is zero except at the labels; no score is read.
    **dict.fromkeys(
        ("nll_loss_backward", "nll_loss2d_backward"),
        lambda c: rows.label_loss(
            c[1],
            c[2],
            c.bytes_without(c[1]),
            summed=c[3] is None and c[4] != 0,
            backward=True,
        ),
    ),
    **{name: _reduction(name) for name in ("sum", "mean", "argmax", "argmin", "max", "min")},
    **{name: _reduction(name) for name in ("prod", "logsumexp")},
    **dict.fromkeys(
        ("cumsum", "cumprod"),
        lambda c: rows.along_rows(c.operator, c[0], dim=c.get(1, "dim")),
    ),
    **dict.fromkeys(
        ("cummax", "cummin"), lambda c: rows.in_order(c.operator, c[0], dim=c.get(1, "dim"))
    ),
    **dict.fromkeys(
        # Profiles have ``stable`` before the dimension, without its name.
        ("sort", "argsort"),
        lambda c: rows.in_order(
            "sort", c[0], dim=c.get(1 + isinstance(c.get(1, "dim"), bool | None), "dim", -1)
        ),
    ),
    "topk": lambda c: rows.in_order("sort", c[0], dim=c.get(2, "dim", -1), k=c[1]),
    **{name: _reduction(name) for name in ("var", "var_mean", "std")},
    "amax": lambda c: rows.reduction("max", c[0], _reduced_dims(c)),
    "amin": lambda c: rows.reduction("min", c[0], _reduced_dims(c)),
    **dict.fromkeys(
        ("linalg_vector_norm", "norm"),
        lambda call: rows.reduction(
            "norm1" if call.get(1, "ord", 2) == 1 else "norm",
            call[0],
            _reduced_dims(call, 2),
            why="" if call.get(1, "ord", 2) in (1, 2, None) else "a norm of another order",
        ),
    ),
}


# -----------------------------------------------------------------------------
# Elementwise operators, and steps of an optimizer.

#: Operators whose results are booleans.
_COMPARISONS: Final = (
    *("eq", "ge", "gt", "le", "lt", "ne", "isfinite", "isinf", "isnan", "logical_and"),
    *("logical_not", "logical_or", "logical_xor"),
)
_ARITHMETIC: Final = (
    *("abs", "ceil", "cos", "erf", "exp", "expm1", "floor", "log", "log1p", "log2", "log10", "neg"),
    *("reciprocal", "round", "sgn", "sign", "sin", "sqrt", "square", "trunc", "floor_divide"),
    *("add", "atan2", "div", "fmod", "maximum", "minimum", "mul", "pow", "remainder", "sub"),
    *("rsub", *_COMPARISONS, "bitwise_and", "bitwise_not", "bitwise_or"),
    *("bitwise_xor", "clamp_max", "clamp_min", "masked_fill", "where", "rsqrt", "xlogy"),
    *("leaky_relu_backward", "lerp", "native_dropout_backward", "binary_cross_entropy"),
    *("binary_cross_entropy_backward", "hardshrink_backward", "softshrink_backward"),
)
#: Losses of the table by PyTorch's operators, which end with ``_backward`` for gradients.
_LOSSES: Final = {
    "mse_loss": "mse",
    "l1_loss": "l1",
    "smooth_l1_loss": "smooth-l1",
    "huber_loss": "smooth-l1",
    "binary_cross_entropy_with_logits": "bce-logits",
}
#: Ops of the table by PyTorch's operators, whose gradients end with ``_backward``.
_ACTIVATIONS: Final = {
    **{name: name for name in ("elu", "gelu", "hardsigmoid", "hardswish", "mish", "sigmoid")},
    **{name: name for name in ("silu", "softplus", "tanh", "relu")},
    "hardtanh": "hardtanh",
    "log_sigmoid": "logsigmoid",
}


def _elementwise(call: AtenCall, *operands: Any, name: str = "", **options: Any) -> Meaning:
    return elementwise.arithmetic(
        name or call.operator.removeprefix("_foreach_"),
        *(operands or call.arguments),
        in_place=call.in_place,
        rounds=bool(call.keywords.get("rounding_mode")),
        **options,
    )


def _activation(call: AtenCall) -> Meaning:
    operator = call.operator.removeprefix("_foreach_").removesuffix("_forward")
    name, backward = operator.removesuffix("_backward"), operator.endswith("_backward")
    op = "relu" if name == "threshold" else _ACTIVATIONS[name]
    if op == "hardtanh":
        limits = dict(enumerate(call.numbers))
        low, high = limits.get(0, -1.0), limits.get(1, 1.0)
        return elementwise.hard_tanh(
            call.values[-1], low, high, pass_="backward-data" if backward else "forward"
        )
    if op == "elu":
        return elementwise.exponential_linear(
            call.values[0],
            *call.numbers[:3],
            pass_="backward-data" if backward else "forward",
        )
    if op == "gelu" and call.keywords.get("approximate") == "tanh":
        op = "gelu-tanh"
    return elementwise.activation(
        op,
        broadcast_shapes([value.shape for value in call.values]),
        *call.numbers,
        pass_="backward-data" if backward else "forward",
        floating=any(value.floating for value in call.values),
    )


def _loss(call: AtenCall) -> Meaning:
    """Arguments: prediction, target, perhaps weights, reduction, perhaps where it is smooth.

    A gradient has the outer one before them.
    """
    name = call.operator.removesuffix("_backward")
    backward = name != call.operator
    given, op = call.arguments[backward:], _LOSSES[name]
    numbers = [number for number in given[2:] if number is not None]
    weighted = any(isinstance(number, Value) for number in numbers)
    each, beta = numbers[:1] == [0], (*numbers[1:], 1.0)[0]
    missing = "with weights" if weighted else "of each element" if each else ""
    parameters: dict[str, Any] = {"beta": float(beta)} if op == "smooth-l1" else {}
    return elementwise.loss(op, *given[:2], missing=missing, backward=backward, **parameters)


def _adam(call: AtenCall) -> Meaning:
    """Arguments: weights, gradients, both averages, perhaps maxima, numbers of steps.

    FLOPs: 3 for the first average and 4 for the second, a root, a quotient and a sum, 3 for the
    weights; decay takes one more on the weights (AdamW), or two on the gradient.
    """
    decay = call.keywords.get("weight_decay", 0)
    per_weight = 13 + (decay != 0) * (1 if "adamw" in call.operator else 2)
    return _update(call, per_weight + bool(call.keywords.get("amsgrad")), [0, 2, 3, 4])


def _sgd(call: AtenCall) -> Meaning:
    """Arguments: weights, gradients, velocities."""
    decay = call.keywords.get("weight_decay", 0)
    return _update(call, 2 + 2 * (decay != 0) + 2 * bool(call[2]), [0, 2])


def _update(call: AtenCall, per_weight: int, written: Sequence[int]) -> Meaning:
    values = [value for place in written for value in call[place]]
    return moves.optimizer_update(per_weight, call[0], values, f"{call.operator} has no layer")


_ELEMENTWISE_RULES: Final[Mapping[str, Callable[[AtenCall], Meaning]]] = {
    **dict.fromkeys(_ARITHMETIC, _elementwise),
    **dict.fromkeys(
        ("add", "sub", "rsub"),
        lambda c: _elementwise(c, c[0], c[1], factor=c.number(2, "alpha", 1)),
    ),
    "clamp": lambda c: _elementwise(c, c[0], c.get(1, "min"), c.get(2, "max")),
    **dict.fromkeys(
        ("addcmul", "addcdiv"),
        lambda c: _elementwise(c, *c.arguments[:3], factor=c.number(3, "value", 1)),
    ),
    **dict.fromkeys([name + end for name in _LOSSES for end in ("", "_backward")], _loss),
    # The source, whose second half along a dimension gates the first; the outer gradient before.
    "glu": lambda c: elementwise.gated(c[0], c.get(1, "dim", -1)),
    "glu_backward": lambda c: elementwise.gated(c[1], c[2], backward=True),
    "celu": lambda c: elementwise.exponential_linear(
        c[0], alpha := c.number(1, "alpha", 1.0), 1.0, 1 / alpha
    ),
    **dict.fromkeys(
        ("hardshrink", "softshrink", "nan_to_num", "round"), lambda c: _elementwise(c, c[0])
    ),
    "threshold": lambda c: _elementwise(c, c[0], c[2]),
    "leaky_relu": lambda c: _elementwise(c, c[0], c.get(1, "negative_slope", 0.01)),
    "_prelu_kernel": lambda c: _elementwise(c, name="prelu"),
    "_prelu_kernel_backward": lambda c: _elementwise(c, name="prelu_backward"),
    **{
        f"{name}{pass_}": _activation
        for name in _ACTIVATIONS
        for pass_ in ("", "_backward")
        if f"{name}{pass_}" != "relu_backward"
    },
    **dict.fromkeys(("threshold_backward", "log_sigmoid_forward"), _activation),
    "native_dropout": lambda c: elementwise.activation(
        "dropout", c[0].shape, training=True, keep=1 - c[1]
    ),
    **dict.fromkeys(("_fused_adam", "_fused_adamw"), _adam),
    "_fused_sgd": _sgd,
}


# -----------------------------------------------------------------------------
# Data movement.


def _clone(call: AtenCall) -> Meaning:
    """Copy the first operand to a new tensor."""
    source, requested = call.values[0], call.keywords.get("memory_format")
    axes = list(range(len(source.shape)))
    unknown = isinstance(requested, Unrecorded)
    memory_format = "preserve_format" if unknown or not requested else requested.text
    if memory_format == "preserve_format":
        # PyTorch leaves repeated dimensions where they are.
        axes = axes if 0 in source.strides else source.axes_in_memory
    elif memory_format != "contiguous_format":
        axes = [axes[0], *axes[2:], axes[1]]
    strides = source.permute(axes).long_strides
    if call.dtype not in (None, source.dtype) and strides == sorted(strides, reverse=True):
        return moves.cast(source, call.dtype, least_bytes([source]))
    # Casts have results of another size.
    converts = call.operator == "_to_copy"
    reads = least_bytes([source]) if converts else moves.bytes_copied(source, call.results)
    why = "a conversion has no layer" if call.dtype not in (None, source.dtype) else ""
    return moves.copy(source, axes, reads, "its layout was not recorded" if unknown else why)


def _copy_into(call: AtenCall) -> Meaning:
    """Arguments: target and source."""
    target, source = call.values
    alike = (target.dtype, target.shape) == (source.dtype, source.shape)
    if target.shape == source.shape and not alike and target.long_strides == source.long_strides:
        return moves.cast(source, target.dtype, least_bytes([source]))
    why = "" if alike else "a copy to another type or shape has no layer"
    return moves.copy(source, target.axes_in_memory, least_bytes([source]), why)


def _fill(call: AtenCall, shape: Sequence[int]) -> Meaning:
    """Fill a tensor of a given shape; an operand gives shape and type only."""
    if call.operator in ("zeros_like", "ones_like") and isinstance(
        call.get(1, "dtype"), Unrecorded
    ):
        raise UnsupportedError("the type of its result was not recorded")
    integer = call.operator == "full" and isinstance(call[1], int)
    default = call.values[0].dtype if call.values else "int64" if integer else "float32"
    return moves.fill(Value.dense(call.dtype or default, shape))


def _pad(call: AtenCall) -> Meaning:
    """Arguments: source, and pads (before, after) from the last dimension to the first."""
    source, pads = call.arguments[:2]
    pairs = [*zip(pads[::2], pads[1::2], strict=True)][::-1]
    pairs = [(0, 0)] * (len(source.shape) - len(pairs)) + pairs
    sizes = [size + sum(pair) for size, pair in zip(source.shape, pairs, strict=True)]
    why = "a copy of a part has no layer" if min(pads) < 0 else ""
    reads = moves.bytes_copied(source, call.results)
    return moves.fill_and_copy(source, sizes, source.axes_in_memory, reads, why)


def _pixel_shuffle(call: AtenCall) -> Meaning:
    """Arguments: images, and the factor of each side."""
    images, factor = call.arguments[:2]
    if len(images.shape) != 4 or 1 not in images.strides:
        return moves.other_copy(least_bytes([images]), "a shuffle of pixels of these")
    if call.operator == "pixel_shuffle":
        # Batch, channels, rows and columns of a pixel, height, width.
        parts, order = images.split(1, factor * factor).split(2, factor), [0, 1, 4, 2, 5, 3]
    else:
        # Batch, channels, height and rows of a pixel, width and columns.
        parts, order = images.split(2, factor).split(4, factor), [0, 1, 3, 5, 2, 4]
    if images.strides[1] == 1 and images.shape[1] > 1:  # channels last, as in the result
        last = order[1:2] if call.operator == "pixel_shuffle" else [1, 3, 5]
        order = [axis for axis in order if axis not in last] + last
    return moves.copy(parts.permute(order), range(6), least_bytes([images]))


def _channel_shuffle(call: AtenCall) -> Meaning:
    """Arguments: images, and the number of groups of channels."""
    images, groups = call.arguments[:2]
    parts = images.split(1, images.shape[1] // groups)
    order = [0, 2, 1, *range(3, len(parts.shape))]
    return moves.copy(parts.permute(order), range(len(order)), least_bytes([images]))


def _taken(call: AtenCall) -> Meaning:
    """Arguments: source, and dimensions, shifts and dimensions, repeats or pads."""
    source, op = call[0], call.operator
    reads, options = moves.bytes_copied(source, call.results), dict[str, Any]()
    if op in ("flip", "roll"):
        order = call.get(1 if op == "flip" else 2, "dims") or []
        options["order"] = order or range(len(source.shape))
        options["why"] = "" if order else "a shift over all dimensions has no layer"
    elif op == "repeat":
        shape = (1,) * (len(call[1]) - len(source.shape)) + source.shape
        options["result"] = [size * times for size, times in zip(shape, call[1], strict=True)]
        op = "tile"
    elif op.startswith(("reflection", "replication")):
        pads = [sum(pair) for pair in zip(call[1][::2], call[1][1::2], strict=True)][::-1]
        pads = [0] * (len(source.shape) - len(pads)) + pads
        options["result"] = [size + pad for size, pad in zip(source.shape, pads, strict=True)]
        options["why"] = "a copy of a part has no layer" if min(call[1]) < 0 else ""
        op = "reflect" if op.startswith("reflection") else "replicate"
    return moves.taken(op, source, reads, **options)


def _gather(call: AtenCall) -> Meaning:
    """Arguments: table and indices, of ``index`` for each of its first dimensions."""
    table, *indices = call.values
    count = math.prod(broadcast_shapes([index.shape for index in indices]))
    picked: list[int] = [count]
    places: dict[str, Any] = {"axis": None}
    if call.operator == "embedding":
        picked, places = [count, *table.shape[1:]], {"axis": 0}
    elif call.operator == "index_select":
        axis = call[1] if len(table.shape) > 1 else 0
        picked, places = [count, *table.shape], {"axis": axis}
        picked[axis + 1 if axis >= 0 else axis] = 1
    elif call.operator == "gather":
        places = {"axis": call[1], "each": True}
    elif call.operator == "take":
        table = table.with_shape(table.elements)
        places = {"axis": 0}
    elif call.operator == "index":
        places = _adjacent(call[1])
        picked += _unindexed(table, call[1])
    # Masks pick as many elements as they have ones.
    masked = any(index.dtype in ("bool", "uint8") for index in indices)
    known = None if masked else math.prod(picked) * table.itemsize
    return moves.gather(table, indices, known if call.results is None else call.results, **places)


def _adjacent(indices: Sequence[Value | None]) -> dict[str, Any]:
    """Return the first of the dimensions that a list indexes, which have to be adjacent."""
    given = [axis for axis, index in enumerate(indices) if index is not None]
    together = given == [*range(given[0], given[0] + len(given))]
    return {"axis": given[0] if together else None, "dimensions": len(given)}


def _unindexed(table: Value, indices: Sequence[Value | None]) -> list[int]:
    """Return the sizes of the dimensions that a list of indices takes whole."""
    pairs = zip(table.shape, indices, strict=False)
    return [size for size, index in pairs if index is None] + [*table.shape[len(indices) :]]


def _embedding_bag(call: AtenCall) -> Meaning:
    """Arguments: table, indices, and the offset of each bag's first index; mode, weights."""
    maximum, weights = call.get(4, "mode", 0) == 2, call.get(6, "per_sample_weights")
    why = "a maximum or a weighted sum over bags" if maximum or weights is not None else ""
    table, indices, offsets = call.arguments[:3]
    end = call.get(7, "include_last_offset", False)
    return moves.bags(table, indices, offsets, call.results, why, end=end)


def _embedding_bag_gradient(call: AtenCall, rows_at: int) -> Meaning:
    """Arguments: outer gradient, indices; the number of the table's rows."""
    outer, indices = call.arguments[:2]
    width = outer.shape[-1]
    part = moves.scatter(None, [outer, indices], indices.elements * width, adds=True)
    dense = outer.with_shape(call[rows_at], width).bytes
    return replace(part, writes=dense if call.results is None else call.results)


def _scatter(call: AtenCall) -> Meaning:
    """Arguments: table, dimension, indices, values to write or add, how to combine them."""
    table, indices, *values = call.values
    of_rows = call.operator.startswith("index")
    count = values[0].elements if of_rows else indices.elements
    combines = call.get(4, "reduce", "") if call.operator == "scatter" else ""
    if not isinstance(combines, str):  # profiles note that there is a word, but not which
        raise UnsupportedError("how it combines values was not recorded")
    adds = call.operator.endswith("add") or bool(combines)
    known = values and combines in ("", "add")
    places = {"axis": call[1], "each": not of_rows} if known else {}
    others = call.values[1:]
    return moves.scatter(table, others, count, adds=adds, in_place=call.in_place, **places)


def _index_put(call: AtenCall) -> Meaning:
    """Arguments: table, indices for each of its first dimensions, values, whether to add."""
    table, indices, values = call.arguments[:3]
    given = [index for index in indices if index is not None]
    if any(index.dtype in ("bool", "uint8") for index in given):
        if values.elements == 1:
            raise UnsupportedError("how many elements a mask picks is not recorded")
        count = values.elements
    else:
        whole = math.prod(_unindexed(table, indices))
        count = math.prod(broadcast_shapes([index.shape for index in given])) * whole
    adds = call.get(3, "accumulate", False)
    return moves.scatter(
        table, call.values[1:], count, adds=adds, in_place=call.in_place, **_adjacent(indices)
    )


def _concat(call: AtenCall) -> Meaning:
    """Arguments: tensors, and the dimension."""
    if not call[0]:
        raise UnsupportedError("the tensors of its list were not recorded")
    values = [value for value in call[0] if value.shape != (0,)]
    return moves.concat(values, call.get(1, "dim", 0))


#: Operators that launch no kernel: views, uninitialised memory, queries.
_VIEWS: Final = (
    *("_reshape_alias", "_unsafe_view", "alias", "as_strided", "detach", "diagonal", "expand"),
    *("lift_fresh", "permute", "reshape", "select", "slice", "split", "split_with_sizes"),
    *("squeeze", "t", "transpose", "unbind", "unfold", "unsafe_chunk", "unsafe_split"),
    *("unsafe_split_with_sizes", "unsqueeze", "view", "view_as_complex", "view_as_real"),
    *("_local_scalar_dense", "is_same_size", "resize", "set", "sym_numel", "sym_size"),
    *("empty", "empty_like", "empty_permuted", "empty_strided", "new_empty", "new_empty_strided"),
)
_RANDOM: Final = (
    *("bernoulli", "exponential", "multinomial", "normal", "rand", "rand_like", "randint"),
    *("randn", "randn_like", "random", "randperm", "uniform"),
)
_MOVE_RULES: Final[Mapping[str, Callable[[AtenCall], Meaning]]] = {
    **dict.fromkeys(_VIEWS, lambda _: moves.view()),
    **dict.fromkeys(("flip", "roll", "repeat", "tril", "triu"), _taken),
    **{
        f"{kind}_pad{sides}d": _taken
        for kind in ("reflection", "replication")
        for sides in (1, 2, 3)
    },
    **dict.fromkeys(("clone", "_to_copy"), _clone),
    "copy": _copy_into,
    **dict.fromkeys(("arange", "eye", "linspace", "scalar_tensor"), lambda _: moves.other_copy(0)),
    **dict.fromkeys(("full", "ones", "zeros"), lambda c: _fill(c, c[0])),
    **dict.fromkeys(("new_full", "new_ones", "new_zeros"), lambda c: _fill(c, c[1])),
    **dict.fromkeys(
        ("fill", "full_like", "ones_like", "zero", "zeros_like"),
        lambda c: _fill(c, c.values[0].shape),
    ),
    # The first operand is overwritten, or gives the shape only.
    **dict.fromkeys(
        _RANDOM,
        lambda call: moves.random(
            call.values[int(call.in_place or call.operator.endswith("_like")) :]
        ),
    ),
    "constant_pad_nd": _pad,
    "channel_shuffle": _channel_shuffle,
    **dict.fromkeys(("pixel_shuffle", "pixel_unshuffle"), _pixel_shuffle),
    "stack": lambda c: moves.concat(c[0], c.get(1, "dim", 0), stacked=True),
    # Outer gradient, and the shape of the result.
    **dict.fromkeys(
        ("slice_backward", "select_backward"),
        lambda c: moves.fill_and_copy(c[0], c[1], range(len(c[0].shape)), least_bytes(c.values)),
    ),
    "cat": _concat,
    **dict.fromkeys(("embedding", "index", "index_select", "gather", "take"), _gather),
    **dict.fromkeys(("scatter", "scatter_add", "index_add", "index_copy"), _scatter),
    **dict.fromkeys(("index_put", "_index_put_impl"), _index_put),
    **dict.fromkeys(
        ("embedding_bag", "_embedding_bag", "_embedding_bag_forward_only"), _embedding_bag
    ),
    "_embedding_bag_backward": lambda c: _embedding_bag_gradient(c, 6),
    "_embedding_bag_dense_backward": lambda c: _embedding_bag_gradient(c, 5),
    "embedding_dense_backward": lambda c: moves.embedding_gradient(c[0], c[1], c[2]),
}
#: Operators whose rules also hold for complex numbers.
_OF_COMPLEX: Final = (*_VIEWS, "_fft_c2c", "_fft_c2r", "clone", "copy", "zeros_like", "transpose")
#: Rules by operator.
RULES: Final[Mapping[str, Callable[[AtenCall], Meaning]]] = {
    **_PRODUCT_RULES,
    **_QUANTIZED_RULES,
    **_WINDOW_RULES,
    **_ELEMENTWISE_RULES,
    **_ROW_RULES,
    **_MOVE_RULES,
}
#: Number of positional arguments of operators that may write to an operand given behind them.
_INPUTS: Final = {
    **dict.fromkeys(
        ("abs", "cos", "exp", "log", "neg", "reciprocal", "rsqrt", "sigmoid", "sin"), 1
    ),
    **dict.fromkeys(("sqrt", "tanh", "silu", "relu", *_COMPARISONS[6:9], "logical_not"), 1),
    **dict.fromkeys(("div", "maximum", "minimum", "mul", "pow", "remainder", *_COMPARISONS[:6]), 2),
    **dict.fromkeys(("bmm", "cat", "mm", "sigmoid_backward", "stack", "tanh_backward"), 2),
    **dict.fromkeys(("add", "clamp", "index_select", "lerp", "sub", "_softmax", "_log_softmax"), 3),
    **dict.fromkeys(("addcdiv", "addcmul", "gather", "mean", "scatter", "scatter_add", "sum"), 4),
    **dict.fromkeys(("addmm", "baddbmm"), 5),
}
