"""What a node that onnxruntime runs computes: our layers, FLOPs, least bytes.

A node is written as the calls of PyTorch's that compute the same, one after the other, and what is
known of those is known of the node (:mod:`pydlbench.steps.aten`). A fused node is several calls.
Neither onnxruntime nor PyTorch is imported.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any, Final

from pydlbench.errors import UnsupportedError
from pydlbench.records.operator import RecordedCall
from pydlbench.steps.aten.call import broadcast
from pydlbench.steps.aten.work import CallWork
from pydlbench.steps.aten.work import work_of as work_of_call
from pydlbench.steps.onnxruntime.node import Node, Tensor

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping, Sequence

    Rule = Callable[["_Reader"], Iterable[str]]

#: What makes no kernel run: the same memory under another shape.
_VIEWS: Final = ("Reshape", "Flatten", "Squeeze", "Unsqueeze", "Identity", "Shape", "Size")


def work_of(recorded: RecordedCall) -> CallWork:
    """Return what a node computes.

    Args:
        recorded: of an ONNX file.
    """
    node = Node.of(recorded.signature)
    reader = _Reader(node)
    if node.operator in _VIEWS and not node.lacks:
        return CallWork(kind="view", flops=0, product_flops=0, bytes=0)
    try:
        if node.lacks:
            raise UnsupportedError(f"{node.name}: {node.lacks}")
        rule = _RULES.get(node.operator)
        if rule is None:
            raise UnsupportedError(f"{node.name}: no rule for this operator")
        calls = [*rule(reader)]
        calls += reader.activation()
    except UnsupportedError as error:
        return _unknown(str(error), node)
    except (AttributeError, IndexError, KeyError, TypeError, ValueError) as error:
        return _unknown(f"{node.name}: no rule for these operands: {error}", node)
    return _together([_found(one, recorded) for one in calls], node)


def _unknown(why: str, node: Node) -> CallWork:
    return CallWork(
        kind="other", layers_missing=why, flops_missing=why, bytes=node.bytes, dtypes=_dtypes(node)
    )


def _dtypes(node: Node) -> tuple[str, ...]:
    """Return the floating-point types of a node's inputs; any where there is no such."""
    found = {one.dtype for one in node.inputs if one is not None}
    return tuple(sorted({one for one in found if "float" in one} or found))


def _found(call: str, recorded: RecordedCall) -> CallWork:
    name = ".".join(call.partition("(")[0].split(".")[:2])
    return work_of_call(RecordedCall(signature=call, operator=name, names=recorded.names))


def _together(found: Sequence[CallWork], node: Node) -> CallWork:
    """Return what several calls compute together, each tensor of the node moved once."""
    first = next((one for one in found if one.kind != "view"), found[0])
    lacks = next((one.layers_missing for one in found if one.layers_missing), None)
    unknown = next((one.flops_missing for one in found if one.flops is None), None)
    counted = [one for one in found if one.flops is not None]
    whole = len(counted) == len(found)
    return CallWork(
        kind=first.kind,
        layers=() if lacks else tuple(layer for one in found for layer in one.layers),
        layers_missing=lacks,
        flops=sum(one.flops or 0 for one in counted) if whole else None,
        product_flops=sum(one.product_flops or 0 for one in counted) if whole else None,
        flops_missing=unknown,
        bytes=node.bytes,
        dtypes=_dtypes(node),
    )


# -----------------------------------------------------------------------------
# A node and its tensors as words of PyTorch's signatures.


def _text(dtype: str, shape: Sequence[int], turned: bool = False) -> str:
    """Return a tensor's text; its elements lie in the order of its shape.

    Args:
        dtype: of it.
        shape: of it.
        turned: its last two sides lie the other way round.
    """
    order = list(range(len(shape)))
    if turned:
        order[-2:] = order[-1], order[-2]
    strides = [0] * len(shape)
    step = 1
    for side in reversed(order):
        strides[side] = step
        step *= shape[side]
    return f"{dtype}[{', '.join(map(str, shape)) or '()'}]({', '.join(map(str, strides))})"


class _Reader:
    """A node's operands and attributes.

    Args:
        node: the node.
    """

    def __init__(self, node: Node) -> None:
        self.node = node

    def __getitem__(self, place: int) -> Tensor:
        """Return an operand that has to be there."""
        found = self.optional(place)
        if found is None:
            raise UnsupportedError(f"{self.node.name}: without its operand {place}")
        return found

    def optional(self, place: int) -> Tensor | None:
        """Return an operand; None where it is left out."""
        return self.node.inputs[place] if place < len(self.node.inputs) else None

    def text(self, place: int) -> str:
        """Return an operand's text; ``None`` of one that is left out."""
        found = self.optional(place)
        return "None" if found is None else _text(found.dtype, found.shape)

    @property
    def result(self) -> Tensor:
        """The first result."""
        found = self.node.outputs[0]
        if found is None:
            raise UnsupportedError(f"{self.node.name}: without its first result")
        return found

    @property
    def result_text(self) -> str:
        """Its text."""
        return _text(self.result.dtype, self.result.shape)

    def numbers(self, place: int, name: str) -> list[Any] | None:
        """Return whole numbers of an operand, which older versions had as an attribute."""
        found = self.optional(place)
        if found is not None:
            return None if found.values is None else [int(one) for one in found.values]
        given: list[Any] | None = self.node.get(name)
        return given

    def activation(self) -> list[str]:
        """Return the call of an activation that is a part of the node; none of one without."""
        name = self.node.get("activation", "")
        if not name:
            return []
        operator = _ACTIVATIONS.get(name)
        if operator is None:
            raise UnsupportedError(f"{self.node.name}: no rule for its {name}")
        return [f"aten.{operator}.default({self.result_text})"]


# -----------------------------------------------------------------------------
# Convolutions and poolings.


def _sides(reader: _Reader, kernel: Sequence[int]) -> tuple[list[int], list[int], list[int]]:
    """Return strides, paddings and dilations.

    Raises:
        UnsupportedError: a padding that differs on two sides, as PyTorch's calls have none.
    """
    number = len(kernel)
    strides = list(reader.node.get("strides") or [1] * number)
    dilations = list(reader.node.get("dilations") or [1] * number)
    pads = list(reader.node.get("pads") or [0] * 2 * number)
    automatic = reader.node.get("auto_pad", "NOTSET")
    if automatic.startswith("SAME"):
        sizes = reader[0].shape[2:]
        reach = [
            max(0, (-(-size // step) - 1) * step + (taps - 1) * apart + 1 - size)
            for size, step, taps, apart in zip(sizes, strides, kernel, dilations, strict=True)
        ]
        halves = [one // 2 for one in reach]
        pads = [*halves, *(one - half for one, half in zip(reach, halves, strict=True))]
    if pads[:number] != pads[number:]:
        raise UnsupportedError(f"{reader.node.name}: padded by {pads}: no rule for other sides")
    return strides, pads[:number], dilations


def _convolved(reader: _Reader) -> Iterable[str]:
    """``Conv``, ``ConvTranspose``, ``FusedConv``: source, weights, bias, and a sum with another."""
    weights = reader[1]
    strides, pads, dilations = _sides(reader, weights.shape[2:])
    turned = reader.node.operator == "ConvTranspose"
    more = list(reader.node.get("output_padding") or [0] * len(strides))
    operands = ", ".join(reader.text(place) for place in range(3))
    groups = reader.node.get("group", 1)
    yield (
        f"aten.convolution.default({operands}, {strides}, {pads}, {dilations}, {turned}, {more}, "
        f"{groups})"
    )
    if reader.optional(3) is not None:
        yield f"aten.add.Tensor({reader.result_text}, {reader.text(3)})"


def _pooled(reader: _Reader) -> Iterable[str]:
    kernel = list(reader.node.get("kernel_shape"))
    strides, pads, dilations = _sides(reader, kernel)
    number, ceil = len(kernel), bool(reader.node.get("ceil_mode", 0))
    own = f"{reader.text(0)}, {kernel}, {strides}, {pads}"
    if reader.node.operator == "MaxPool":
        yield f"aten.max_pool{number}d_with_indices.default({own}, {dilations}, {ceil})"
        return
    if any(one != 1 for one in dilations):
        raise UnsupportedError(f"{reader.node.name}: no rule for a dilated average")
    counted = bool(reader.node.get("count_include_pad", 0))
    yield f"aten.avg_pool{number}d.default({own}, {ceil}, {counted})"


def _pooled_whole(mode: str) -> Rule:
    """Return the rule of a pooling of whole maps."""

    def rule(reader: _Reader) -> Iterable[str]:
        number = len(reader[0].shape) - 2
        size = [1] * number
        if mode == "avg":
            yield f"aten._adaptive_avg_pool{number}d.default({reader.text(0)}, {size})"
        else:
            yield f"aten.adaptive_max_pool{number}d.default({reader.text(0)}, {size})"

    return rule


#: PyTorch's operators by how ONNX finds pixels; the rest is like none of them.
_RESIZES: Final[Mapping[tuple[str, str], tuple[str, str]]] = {
    ("nearest", "asymmetric"): ("upsample_nearest2d", ""),
    ("nearest", "half_pixel"): ("_upsample_nearest_exact2d", ""),
    ("linear", "half_pixel"): ("upsample_bilinear2d", ", False"),
    ("linear", "align_corners"): ("upsample_bilinear2d", ", True"),
}


def _resized(reader: _Reader) -> Iterable[str]:
    """``Resize``: images, and their new size in some form."""
    node, old, new = reader.node, reader[0].shape, reader.result.shape
    how = node.get("coordinate_transformation_mode", "half_pixel")
    mode = node.get("mode", "nearest")
    # Another one only where the result has a single pixel: the first.
    if how == "pytorch_half_pixel" and any(
        one == 1 < was for was, one in zip(old, new, strict=True)
    ):
        mode = f"{mode}, one pixel"
    found = _RESIZES.get((mode, "half_pixel" if how == "pytorch_half_pixel" else how))
    rounding = node.get("nearest_mode", "round_prefer_floor")
    own = found is not None and not node.get("antialias", 0) and old[:2] == new[:2]
    # A multiple has no centre on a border, where roundings differ.
    multiple = all(not big % small for big, small in zip(new, old, strict=True))
    if mode == "nearest" and how == "half_pixel":
        own = own and multiple and rounding.startswith("round")
    elif mode == "nearest":
        own = own and rounding == "floor"
    # Sizes that are rounded down belong to another factor than their quotient.
    exact = multiple or all(not big % small for big, small in zip(old, new, strict=True))
    scales = reader.optional(2)
    if reader.optional(3):
        exact = node.get("keep_aspect_ratio_policy", "stretch") == "stretch"
    elif scales is not None and scales.values is not None and len(scales.values) == len(old):
        asked = zip(scales.values, old, new, strict=True)
        exact = all(math.isclose(by * was, one, rel_tol=1e-6) for by, was, one in asked)
    if found is None or len(old) != 4 or not own or not exact:
        raise UnsupportedError(f"{node.name}: no rule for this way to find pixels ({mode}, {how})")
    yield f"aten.{found[0]}.default({reader.text(0)}, {list(new[2:])}{found[1]})"


# -----------------------------------------------------------------------------
# Products.


def _product(dtype: str, left: Sequence[int], right: Sequence[int], turned: bool) -> str:
    """Return the call of a product; what several products have in common lies in front."""
    batch = math.prod(broadcast([tuple(left[:-2]), tuple(right[:-2])]))
    one_matrix = math.prod(right[:-2]) == 1
    if batch == 1 or one_matrix:  # all rows meet the same matrix
        rows = math.prod(left[:-1])
        name, sides = "mm", ([rows, left[-1]], list(right[-2:]))
    else:
        name, sides = "bmm", ([batch, *left[-2:]], [batch, *right[-2:]])
    return f"aten.{name}.default({_text(dtype, sides[0])}, {_text(dtype, sides[1], turned)})"


def _multiplied(reader: _Reader) -> Iterable[str]:
    """``MatMul``, ``FusedMatMul``: vectors are matrices of one row or column."""
    left, right = list(reader[0].shape), list(reader[1].shape)
    left = [1, *left] if len(left) == 1 else left
    right = [*right, 1] if len(right) == 1 else right
    if reader.node.get("transBatchA") or reader.node.get("transBatchB"):
        raise UnsupportedError(f"{reader.node.name}: no rule for batches behind their matrices")
    if reader.node.get("transA"):
        left[-2:] = left[-1], left[-2]
    turned = bool(reader.node.get("transB"))
    if turned:
        right[-2:] = right[-1], right[-2]
    yield _product(reader[0].dtype, left, right, turned)


def _added(reader: _Reader) -> Iterable[str]:
    """``Gemm``, ``FusedGemm``: two matrices, and what is added, broadcast."""
    yield from _multiplied(reader)
    addend = reader.optional(2)
    if addend is not None and reader.node.get("beta", 1):
        yield _binary("add", reader.result, addend)


# -----------------------------------------------------------------------------
# Attention, as frameworks' optimizers write it: the chain of its products and its softmax.


def _attended(reader: _Reader) -> Iterable[str]:
    """``Attention``: ONNX's of queries, keys and values, or onnxruntime's of rows and weights."""
    dtype = reader[0].dtype
    if not reader.node.domain:
        causal = bool(reader.node.get("is_causal"))
        yield _heads(dtype, [reader[place].shape for place in range(3)], causal=causal)
        return
    if reader.optional(4) is not None:
        raise UnsupportedError(f"{reader.node.name}: no rule for what came before")
    batch, length, _ = reader[0].shape
    columns = reader[1].shape[-1]
    yield _product(dtype, reader[0].shape, reader[1].shape, turned=False)
    if reader.optional(2) is not None:
        yield _binary("add", Tensor(dtype=dtype, shape=(batch, length, columns)), reader[2])
    heads = reader.node.get("num_heads")
    widths = reader.node.get("qkv_hidden_sizes") or [columns // 3] * 3
    shapes = [(batch, heads, length, width // heads) for width in widths]
    yield _heads(dtype, shapes, causal=bool(reader.node.get("unidirectional")))


def _attended_by_heads(reader: _Reader) -> Iterable[str]:
    """``MultiHeadAttention``: rows of queries, keys, values, a bias of all, and one of scores."""
    dtype, rows = reader[0].dtype, [reader[place] for place in range(3)]
    if any(len(one.shape) != 3 for one in rows):
        raise UnsupportedError(f"{reader.node.name}: no rule for keys that are split by heads")
    heads = reader.node.get("num_heads")
    if reader.optional(3) is not None:
        yield from (_binary("add", one, Tensor(dtype=dtype, shape=one.shape[-1:])) for one in rows)
    shapes = [(one.shape[0], heads, one.shape[1], one.shape[2] // heads) for one in rows]
    yield _heads(dtype, shapes, causal=bool(reader.node.get("unidirectional")))
    if reader.optional(5) is not None:
        scores = Tensor(dtype=dtype, shape=(*shapes[0][:3], shapes[1][2]))
        yield _binary("add", scores, reader[5])


def _heads(dtype: str, shapes: Sequence[Sequence[int]], *, causal: bool) -> str:
    """Return the call of an attention.

    Raises:
        UnsupportedError: queries, keys and values are not ``(batch, heads, length, size)``.
    """
    if any(len(one) != 4 for one in shapes):
        raise UnsupportedError(f"attention of {[*map(list, shapes)]}: no rule for these sides")
    texts = ", ".join(_text(dtype, one) for one in shapes)
    return f"aten._scaled_dot_product_flash_attention_for_cpu.default({texts}, 0.0, {causal})"


# -----------------------------------------------------------------------------
# On each element.


def _binary(operator: str, left: Tensor, right: Tensor) -> str:
    """Return the call of an operation on two tensors of as many sides, the larger on the left."""
    shapes = [one.shape for one in (left, right)]
    if operator in ("add", "mul") and math.prod(shapes[0]) < math.prod(shapes[1]):
        shapes.reverse()
    sides = max(map(len, shapes))
    padded = [(1,) * (sides - len(one)) + one for one in shapes]
    first, second = (_text(left.dtype, one) for one in padded)
    return f"aten.{operator}.Tensor({first}, {second})"


def _of_several(operator: str) -> Rule:
    """Return the rule of an operation on two tensors, or of more on one after the other.

    One alone is copied.
    """

    def rule(reader: _Reader) -> Iterable[str]:
        if len(reader.node.inputs) == 1:
            yield from _moved(reader)
        for place in range(1, len(reader.node.inputs)):
            yield _binary(operator, reader[0] if place == 1 else reader.result, reader[place])

    return rule


def _of_one(operator: str) -> Rule:
    return lambda reader: [f"aten.{operator}.default({reader.text(0)})"]


def _clipped(reader: _Reader) -> Iterable[str]:
    """``Clip``: source, least and largest; 0 and 6 are an activation."""
    limits = [reader.optional(place) for place in (1, 2)]
    values = [one.values[0] if one is not None and one.values else None for one in limits]
    if values == [0, 6]:
        yield f"aten.hardtanh.default({reader.text(0)}, 0, 6)"
    elif values == [0, None] and limits[1] is None:
        yield f"aten.relu.default({reader.text(0)})"
    else:  # which limits there are counts, not what they are
        least, most = (None if one is None else number for number, one in enumerate(limits))
        yield f"aten.clamp.default({reader.text(0)}, {least}, {most})"


def _scaled(operator: str, usual: float) -> Rule:
    """Return the rule of an activation with a factor."""

    def rule(reader: _Reader) -> Iterable[str]:
        alpha = reader.node.get("alpha", usual)
        given = "" if alpha == 1 and operator == "elu" else f", {alpha}"
        yield f"aten.{operator}.default({reader.text(0)}{given})"

    return rule


def _hard_sigmoid(reader: _Reader) -> Iterable[str]:
    """``HardSigmoid`` of PyTorch's slope, or a sum, a product and two limits."""
    if math.isclose(reader.node.get("alpha", 0.2), 1 / 6, rel_tol=1e-4):
        yield f"aten.hardsigmoid.default({reader.text(0)})"
    else:
        yield f"aten.mul.Tensor({reader.text(0)}, 1)"
        yield f"aten.add.Tensor({reader.text(0)}, 1)"
        yield f"aten.clamp.default({reader.text(0)}, 0, 1)"


def _gelu(approximated: bool) -> Rule:
    """Return the rule of a GELU; a second operand is a bias."""

    def rule(reader: _Reader) -> Iterable[str]:
        bias = reader.optional(1)
        if bias is not None:
            yield _binary("add", reader[0], bias)
        tanh = approximated or reader.node.get("approximate") == "tanh"
        how = ", approximate='tanh'" if tanh else ""
        yield f"aten.gelu.default({reader.text(0)}{how})"

    return rule


def _quick_gelu(reader: _Reader) -> Iterable[str]:
    """``QuickGelu`` is ``x * sigmoid(alpha x)``: a SiLU where alpha is 1."""
    if reader.node.get("alpha", 1.702) != 1:
        raise UnsupportedError(f"{reader.node.name}: no rule for a factor within")
    yield f"aten.silu.default({reader.text(0)})"


# -----------------------------------------------------------------------------
# Normalisations, softmax, sums.


def _batch_normalised(reader: _Reader) -> Iterable[str]:
    if reader.node.get("training_mode"):
        raise UnsupportedError(f"{reader.node.name}: no rule for training")
    operands = ", ".join(reader.text(place) for place in range(5))
    epsilon = reader.node.get("epsilon", 1e-5)
    yield f"aten.native_batch_norm.default({operands}, False, 0.1, {epsilon})"


def _layer_normalised(reader: _Reader) -> Iterable[str]:
    source = reader[0].shape
    axis = reader.node.get("axis", -1) % len(source)
    yield _normalised(reader, reader.text(0), list(source[axis:]), 1, 2)


def _sum_normalised(reader: _Reader) -> Iterable[str]:
    """``SkipLayerNormalization``: two sources, factors, offsets, a bias."""
    yield _binary("add", reader[0], reader[1])
    bias = reader.optional(4)
    if bias is not None:
        yield _binary("add", reader[0], bias)
    yield _normalised(reader, reader.text(0), [reader[0].shape[-1]], 2, 3)


def _normalised(reader: _Reader, source: str, shape: list[int], factors: int, offsets: int) -> str:
    epsilon = reader.node.get("epsilon", 1e-5)
    weights = f"{reader.text(factors)}, {reader.text(offsets)}"
    return f"aten.native_layer_norm.default({source}, {shape}, {weights}, {epsilon})"


def _softmax(operator: str) -> Rule:
    def rule(reader: _Reader) -> Iterable[str]:
        axis = reader.node.get("axis", -1 if reader.node.version >= 13 else 1)
        if reader.node.version < 13:  # from that axis on all is one row
            shape = reader[0].shape
            axis %= len(shape)
            rows = [math.prod(shape[:axis]), math.prod(shape[axis:])]
            yield f"aten.{operator}.default({_text(reader[0].dtype, rows)}, 1, False)"
        else:
            yield f"aten.{operator}.default({reader.text(0)}, {axis}, False)"

    return rule


def _reduced(operator: str) -> Rule:
    """Return the rule of a reduction; without axes it is one of all."""

    def rule(reader: _Reader) -> Iterable[str]:
        axes = reader.numbers(1, "axes")
        kept = bool(reader.node.get("keepdims", 1))
        yield f"aten.{operator}.dim({reader.text(0)}, {axes or []}, {kept})"

    return rule


# -----------------------------------------------------------------------------
# Copies: nothing is computed.


def _moved(reader: _Reader) -> Iterable[str]:
    # Parts, repeated elements or other types: none of them is a plain copy.
    yield f"aten.repeat.default({reader.result_text})"


def _transposed(reader: _Reader) -> Iterable[str]:
    source = reader.optional(0)
    if source is None:
        raise UnsupportedError(f"{reader.node.name}: without a source")
    sides = len(source.shape)
    order = reader.node.get("perm", list(reversed(range(sides))))
    shape = [source.shape[side] for side in order]
    strides = [math.prod(source.shape[side + 1 :]) for side in order]
    texts = (", ".join(map(str, sizes)) for sizes in (shape, strides))
    view = "{}[{}]({})".format(source.dtype, *texts)
    yield f"aten.clone.default({view}, memory_format=torch.contiguous_format)"


def _joined(reader: _Reader) -> Iterable[str]:
    texts = [_text(one.dtype, one.shape) for one in reader.node.inputs if one is not None]
    yield f"aten.cat.default([{', '.join(texts)}], {reader.node.get('axis', 0)})"


def _gathered(reader: _Reader) -> Iterable[str]:
    axis = reader.node.get("axis", 0) % len(reader[0].shape)
    if axis:
        yield f"aten.index_select.default({reader.text(0)}, {axis}, {reader.text(1)})"
    else:
        yield f"aten.embedding.default({reader.text(0)}, {reader.text(1)})"


def _lower(*names: str) -> dict[str, str]:
    """Return PyTorch's names of operators that ONNX spells with capitals only."""
    return {name: name.lower() for name in names}


#: Activations that are a part of other nodes, by ONNX's name.
_ACTIVATIONS: Final = {
    **_lower("Relu", "Sigmoid", "Tanh", "HardSigmoid", "Elu", "Gelu", "HardSwish"),
    "LeakyRelu": "leaky_relu",
}
_UNARY: Final = {
    **_lower("Relu", "Sigmoid", "Tanh", "HardSwish", "Mish", "Softplus", "Erf", "Abs", "Ceil"),
    **_lower("Cos", "Exp", "Floor", "Log", "Neg", "Reciprocal", "Round", "Sign", "Sin", "Sqrt"),
    "Not": "logical_not",
    "Swish": "silu",
}
_BINARY: Final = (
    _lower("Add", "Sub", "Mul", "Div", "Pow")
    | {"Mod": "remainder", "Max": "maximum", "Min": "minimum", "Equal": "eq", "Greater": "gt"}
    | {"Less": "lt", "GreaterOrEqual": "ge", "LessOrEqual": "le"}
    | {"And": "logical_and", "Or": "logical_or", "Xor": "logical_xor"}
)
_REDUCED: Final = {
    "ReduceMean": "mean",
    "ReduceSum": "sum",
    "ReduceMax": "amax",
    "ReduceMin": "amin",
} | {"ReduceProd": "prod", "ReduceL2": "linalg_vector_norm", "ReduceLogSumExp": "logsumexp"}
_MOVED: Final = (
    *("Slice", "Split", "Cast", "Expand", "Pad", "Tile", "Where", "ReorderInput"),
    *("ReorderOutput", "DepthToSpace", "SpaceToDepth"),
)

#: By operator, whatever domain it is of: onnxruntime's own do what ONNX's of the name do.
_RULES: Final[Mapping[str, Rule]] = {
    **dict.fromkeys(("Conv", "ConvTranspose", "FusedConv"), _convolved),
    **dict.fromkeys(("MaxPool", "AveragePool"), _pooled),
    "GlobalAveragePool": _pooled_whole("avg"),
    "GlobalMaxPool": _pooled_whole("max"),
    "Resize": _resized,
    **dict.fromkeys(("MatMul", "FusedMatMul"), _multiplied),
    **dict.fromkeys(("Gemm", "FusedGemm"), _added),
    "Attention": _attended,
    "MultiHeadAttention": _attended_by_heads,
    **{name: _of_one(operator) for name, operator in _UNARY.items()},
    **{name: _of_several(operator) for name, operator in _BINARY.items()},
    "Sum": _of_several("add"),
    "Clip": _clipped,
    "HardSigmoid": _hard_sigmoid,
    "Elu": _scaled("elu", 1.0),
    "LeakyRelu": _scaled("leaky_relu", 0.01),
    **dict.fromkeys(("Gelu", "BiasGelu"), _gelu(approximated=False)),
    "FastGelu": _gelu(approximated=True),
    "QuickGelu": _quick_gelu,
    "BatchNormalization": _batch_normalised,
    "LayerNormalization": _layer_normalised,
    "SkipLayerNormalization": _sum_normalised,
    "Softmax": _softmax("_softmax"),
    "LogSoftmax": _softmax("_log_softmax"),
    **{name: _reduced(operator) for name, operator in _REDUCED.items()},
    **dict.fromkeys(_MOVED, _moved),
    "Transpose": _transposed,
    "Concat": _joined,
    "Gather": _gathered,
}
