"""Parses executions logged by oneDNN or MKL.

A signature is the part of a line that determines the computation, behind a prefix:
``mkl:SGEMM(N,T,32,64,128)``, or ``onednn:`` with primitive, propagation, tensors, attributes,
algorithm and problem. Formats of oneDNN 1 to 3 write tensors differently:
``src_f32::blocked:abcd:f0`` became
``src:f32::blocked:abcd::f0``.
"""

import math
import re
from collections.abc import Callable, Mapping
from typing import Any, Final

from pydlbench.calls import elementwise, moves, products, rows
from pydlbench.calls.meaning import (
    LayerPass,
    Meaning,
    Value,
    broadcast_shapes,
    bytes_of_type,
    complete,
)
from pydlbench.errors import UnsupportedError
from pydlbench.ops.descriptor import parse_problem
from pydlbench.ops.fused import ACTIVATIONS
from pydlbench.ops.op import Layer
from pydlbench.ops.table import build_layer
from pydlbench.records.trace import RecordedCall
from pydlbench.words import mixed_precision

_ONEDNN: Final = "onednn:"
_MKL: Final = "mkl:"
_TYPES: Final = {
    "f64": "float64",
    "f32": "float32",
    "bf16": "bfloat16",
    "f16": "float16",
    "f8_e4m3": "float8_e4m3fn",
    "f8_e5m2": "float8_e5m2",
    "f4_e2m1": "float4_e2m1fn",
    "s32": "int32",
    "s8": "int8",
    "u8": "uint8",
    "s4": "int4",
    "u4": "uint4",
}
_TENSOR: Final = re.compile(rf"(?:^| )(\w+?)[_:]({'|'.join(_TYPES)}):")
_FIELD: Final = re.compile(r"([a-z]+)([0-9]+)")
_PASSES: Final = {
    "backward_data": "backward-data",
    "backward": "backward-data",
    "backward_weights": "backward-weights",
}


def is_logged(signature: str) -> bool:
    """Whether a text is the signature of a logged execution."""
    return signature.startswith((_ONEDNN, _MKL))


class _Line:
    """A line of oneDNN's log.

    Args:
        text: signature without its prefix.
    """

    def __init__(self, text: str) -> None:
        self.primitive, self.propagation, tensors, attributes, auxiliary, self.problem = text.split(
            ",", 5
        )
        #: Attributes and parameters of the primitive: ``alg:eltwise_relu alpha:0 beta:0``.
        self.words = dict(
            word.split(":", 1) for word in f"{attributes} {auxiliary}".split() if ":" in word
        )
        self.tensors = [(role, _TYPES[dtype]) for role, dtype in _TENSOR.findall(tensors)]

    @property
    def algorithm(self) -> str:
        """Name of the algorithm: ``relu`` for ``alg:eltwise_relu``."""
        return self.words.get("alg", "").partition("_")[2]

    @property
    def pass_(self) -> str:
        return _PASSES.get(self.propagation, "forward")

    @property
    def training(self) -> bool:
        return self.propagation == "forward_training"

    @property
    def dtypes(self) -> list[str]:
        """Types of the tensors that are read; results do not count."""
        read = [dtype for role, dtype in self.tensors if role.removeprefix("diff_")[:3] != "dst"]
        return read or ["float32"]

    @property
    def written(self) -> str:
        return self.tensors[-1][1] if self.tensors else "float32"

    @property
    def backward(self) -> bool:
        return self.propagation.startswith("backward")

    @property
    def arithmetic(self) -> str:
        """Type of the arithmetic: that of the first tensor, or of the attribute ``fpmath``."""
        mode = self.words.get("attr-fpmath", "").partition(":")[0]
        return _TYPES.get(mode, self.dtypes[0])

    def shapes(self) -> list[tuple[int, ...]]:
        """Return the sizes of a problem that is written as shapes: ``64x128:128x32``."""
        try:
            return [tuple(map(int, part.split("x"))) for part in self.problem.split(":")]
        except ValueError:
            raise UnsupportedError(f"{self.primitive}: no shape: {self.problem[:60]}") from None

    def sizes(self) -> dict[str, int]:
        """Return the sizes of a problem that is written as fields: ``mb8ic2048oc10``."""
        return {name: int(size) for name, size in _FIELD.findall(self.problem)}

    def value(self, shape: tuple[int, ...], place: int = 0) -> Value:
        """Return a dense operand."""
        dtypes = self.dtypes
        return Value.dense(dtypes[min(place, len(dtypes) - 1)], shape, number=place, storage=place)

    def complete(self, part: Meaning, shape: tuple[int, ...]) -> Meaning:
        """Return the meaning with bytes and types, for a result of the source's shape."""
        source = self.value(shape)
        outer = [self.value(shape, 1)] if self.backward else []
        return complete(part, [source, *outer], source.bytes)


def meaning_of(recorded: RecordedCall) -> Meaning:
    """Return the meaning of a logged execution.

    Raises:
        UnsupportedError: there is no rule for the primitive.
        UsageError: the problem is invalid.
    """
    if recorded.signature.startswith(_MKL):
        return _mkl(recorded.signature.removeprefix(_MKL))
    line = _Line(recorded.signature.removeprefix(_ONEDNN))
    rule = RULES.get(line.primitive)
    if rule is None:
        raise UnsupportedError(f"oneDNN's {line.primitive}: no rule for this primitive")
    return rule(line)


def _layer_meaning(layer: Layer, pass_: str, dtype: str, line: _Line | None = None) -> Meaning:
    """Return the meaning of a pass of a layer, with the bytes of the logged tensors.

    Args:
        layer: the layer, which is left out if the types of its operands differ, or are integers.
        pass_: the pass.
        dtype: type of the arithmetic.
        line: line of the log; None if all tensors have this type.
    """
    logged = {role.removeprefix("diff_")[:3]: kind for role, kind in line.tensors} if line else {}
    read = dict.fromkeys([dtype, *(logged.get(role[:3], dtype) for role in layer.reads(pass_))])
    sizes = {role: _bytes_of(logged.get(role[:3], dtype)) for role in layer.shapes()}
    elements, total = layer.operands(pass_), layer.bytes(pass_, sizes)
    writes = int(sum(elements[role] * sizes[role] for role in layer.writes(pass_)))
    flops, training = layer.flops(pass_), line is not None and line.training
    mixed = _mixed(layer, logged) if pass_ == "forward" else None
    floating = (len(read) == 1 and "float" in dtype) or mixed is not None
    trained = training and layer.entry.training is not None
    layers = (LayerPass(layer, pass_, trained),) if floating else ()
    return Meaning(
        kind=_KINDS[layer.entry.key],
        layers=layers,
        layers_missing=None if floating else f"no layer computes in {' and '.join(read)}",
        flops=flops,
        product_flops=flops if layer.multiply_adds else 0,
        reads=max(0, total - writes),
        writes=min(writes, total),
        dtypes=(mixed or dtype,),
    )


def _mixed(layer: Layer, logged: Mapping[str, str]) -> str | None:
    """Return the precision with the types of logged tensors of integers; None without one."""
    source, weights = logged.get("src", ""), logged.get("wei", "")
    if source not in ("int8", "uint8"):
        return None
    weights = "int8" if layer.entry.kind == "pool" else weights
    return mixed_precision(source, weights, logged.get("dst", ""))


def _bytes_of(dtype: str) -> float:
    """Return the bytes of one element, a half of four bits."""
    return 0.5 if dtype.startswith(("int4", "uint4", "float4")) else bytes_of_type(dtype)


_KINDS: Final = {
    **dict.fromkeys(("conv", "deconv"), "convolution"),
    **dict.fromkeys(("resize:nearest", "resize:linear"), "resize"),
    "pool": "pooling",
    "gemm": "product",
    "lrn": "normalisation",
}


def _mkl(text: str) -> Meaning:
    """Return the meaning of one of MKL's products, whose matrices are in column-major order.

    The text is ``SGEMM(transpose A, transpose B, m, n, k``, then numbers and addresses;
    ``SGEMM_PACK`` has the name of the matrix first, ``SGEMV`` one transposition, m and n.
    """
    routine = re.match(r"(?:cblas_)?([sd])gem([mv])(_pack)?(?:_compute)?\((.*)", text.lower())
    words = routine[4].rstrip(")").split(",") if routine else []
    sizes = [int(word) for word in words if word.isdecimal()]
    if routine is None and "batch" in text.lower():
        raise UnsupportedError(f"MKL's {text.partition('(')[0]}: its log has no sizes")
    if routine is None or len(sizes) < (3 if routine[2] == "m" else 2):
        raise UnsupportedError(f"MKL's {text.partition('(')[0]}: no rule for this routine")
    dtype = "float32" if routine[1] == "s" else "float64"
    if routine[2] == "v":  # a matrix of m rows and n columns, perhaps transposed, and a vector
        rows, columns = sizes[:2]
        n, k = (rows, columns) if words[0] == "n" else (columns, rows)
        return _layer_meaning(build_layer("gemm", m=1, k=k, n=n), "forward", dtype)
    m, n, k = sizes[:3]
    if routine[3]:
        size = k * (m if words[0] == "a" else n) * bytes_of_type(dtype)
        why = "packing a matrix has no layer"
        return Meaning(kind="copy", layers_missing=why, reads=size, writes=size, dtypes=(dtype,))
    return _layer_meaning(build_layer("gemm", m=n, k=k, n=m), "forward", dtype)


# -----------------------------------------------------------------------------
# Primitives.


def _convolution(line: _Line) -> Meaning:
    prefix = "deconv:" if line.primitive == "deconvolution" else "conv:"
    return _layer_meaning(parse_problem(prefix + line.problem), line.pass_, line.arithmetic, line)


def _pooling(line: _Line) -> Meaning:
    mode = {"avg": "avg", "avg_include_padding": "avg_p"}.get(line.algorithm, "avg_np")
    layer = parse_problem(line.problem, pool="max" if line.algorithm == "max" else mode)
    return _layer_meaning(layer, line.pass_, line.arithmetic, line)


def _matmul(line: _Line) -> Meaning:
    """Parse ``64x128:128x32``, perhaps with the result behind; in oneDNN 1 ``b4m64n32k128``."""
    if ":" not in line.problem:
        sizes = line.sizes()
        batch, (m, n, k) = sizes.get("b", 1), (sizes[name] for name in "mnk")
        layer = build_layer("gemm", batch_count=batch, m=m, k=k, n=n)
    else:
        layer = parse_problem(":".join(line.problem.split(":")[:2]))
    return _layer_meaning(layer, "forward", line.arithmetic, line)


def _inner_product(line: _Line) -> Meaning:
    return _layer_meaning(parse_problem(f"ip:{line.problem}"), line.pass_, line.arithmetic, line)


#: Ops of the table by oneDNN's names of activations.
_ACTIVATIONS: Final = {name: op for name, (op, *_) in ACTIVATIONS.items()} | {
    "soft_relu": "softplus"
}
_ARITHMETIC: Final = ("abs", "exp", "log", "sqrt", "square", "round")


def _eltwise(line: _Line) -> Meaning:
    (shape,), name = line.shapes(), line.algorithm.removesuffix("_use_dst_for_bwd")
    if name in _ARITHMETIC and line.pass_ == "forward":
        part = elementwise.arithmetic(name, line.value(shape))
    elif name in _ACTIVATIONS:
        slope = float(line.words.get("alpha", 0)) if name == "relu" else 0.0
        numbers = [slope] if slope else []
        part = elementwise.activation(_ACTIVATIONS[name], shape, *numbers, pass_=line.pass_)
    elif name in ("clip", "clip_v2"):
        low, high = (float(line.words.get(word, 0)) for word in ("alpha", "beta"))
        part = elementwise.hard_tanh(line.value(shape), low, high, pass_=line.pass_)
    else:
        raise UnsupportedError(f"oneDNN's eltwise_{name}: no rule for this function")
    return line.complete(part, shape)


def _batch_normalisation(line: _Line) -> Meaning:
    sizes, flags = line.sizes(), line.words.get("flags", "")
    shape = tuple(sizes[name] for name in ("mb", "ic", "id", "ih", "iw") if name in sizes)
    part = rows.batch_normalisation(
        line.value(shape),
        epsilon=1e-5,
        training="G" not in flags,
        factors=bool(set("CHS") & set(flags)),
        backward=line.backward,
    )
    return line.complete(part, shape)


def _group_normalisation(line: _Line) -> Meaning:
    sizes = line.sizes()
    shape = tuple(sizes[name] for name in ("mb", "ic", "id", "ih", "iw") if name in sizes)
    part = rows.group_normalisation(
        line.value(shape),
        sizes["g"],
        epsilon=1e-5,
        factors=bool({*"CHS"} & {*line.words.get("flags", "")}),
        training=line.training,
        backward=line.backward,
    )
    return line.complete(part, shape)


def _local_response(line: _Line) -> Meaning:
    if line.algorithm != "across_channels":
        raise UnsupportedError(f"oneDNN's lrn_{line.algorithm}: no rule for this neighbourhood")
    return _layer_meaning(parse_problem(f"lrn:{line.problem}"), line.pass_, line.arithmetic, line)


def _prelu(line: _Line) -> Meaning:
    source, weights = (line.value(shape, place) for place, shape in enumerate(line.shapes()[:2]))
    name = "prelu_backward" if line.backward else "prelu"
    part = elementwise.arithmetic(name, source, weights, *[source] * line.backward)
    return complete(part, [source, weights], source.bytes)


def _concat(line: _Line) -> Meaning:
    """Parse ``2x16x8x8:2x8x8x8 2x24x8x8``: the tensors, and perhaps the result."""
    shapes = [tuple(map(int, text.split("x"))) for text in line.problem.split()[0].split(":")]
    values = [line.value(shape, place) for place, shape in enumerate(shapes)]
    return complete(moves.concat(values, int(line.words["axis"])), values, None)


def _shuffle(line: _Line) -> Meaning:
    (shape,), axis, groups = line.shapes(), int(line.words["axis"]), int(line.words["group"])
    value, order = line.value(shape), [*range(len(shape) + 1)]
    order[axis : axis + 2] = axis + 1, axis
    parts = value.split(axis, shape[axis] // groups).permute(order)
    return line.complete(moves.copy(parts, range(len(order))), shape)


def _rows(line: _Line) -> Meaning:
    shape = line.shapes()[0]
    source, backward = line.value(shape), line.backward
    if line.primitive == "layer_normalization":
        flags = set(line.words.get("flags", ""))
        part = rows.along_rows(
            "layernorm", source, factors=bool(set("CHS") & flags), backward=backward
        )
    else:
        log = "log" in line.primitive or line.algorithm == "log"
        axis = int(line.words.get("axis", -1))
        part = rows.along_rows(
            "log-softmax" if log else "softmax", source, dim=axis, backward=backward
        )
    return line.complete(part, shape)


_BINARY: Final = {
    **{name: name for name in ("add", "mul", "div", "sub", "eq", "ge", "gt", "le", "lt", "ne")},
    "max": "maximum",
    "min": "minimum",
}


def _binary(line: _Line) -> Meaning:
    name = _BINARY.get(line.algorithm)
    if name is None:
        raise UnsupportedError(f"oneDNN's binary_{line.algorithm}: no rule for this function")
    values = [line.value(shape, place) for place, shape in enumerate(line.shapes()[:2])]
    result = line.value(broadcast_shapes([value.shape for value in values]))
    return complete(elementwise.arithmetic(name, *values), values, result.bytes)


def _sum(line: _Line) -> Meaning:
    (shape, *_), number = line.shapes(), max(2, len(line.tensors) - 1)
    values = [line.value(shape, place) for place in range(number)]
    return complete(elementwise.sum_of_tensors(values), values, values[0].bytes)


def _reduction(line: _Line) -> Meaning:
    source, result = line.shapes()
    over = [axis for axis, (size, to) in enumerate(zip(source, result, strict=True)) if size != to]
    value = line.value(source)
    part = rows.reduction(line.algorithm, value, over)
    return complete(part, [value], line.value(result).bytes)


def _reorder(line: _Line) -> Meaning:
    elements = math.prod(line.shapes()[0])
    read, written = line.dtypes[0], line.written
    return Meaning(
        kind="copy",
        layers_missing="a conversion of layouts or types has no layer",
        reads=elements * bytes_of_type(read),
        writes=elements * bytes_of_type(written),
        dtypes=(read,),
    )


def _resampling(line: _Line) -> Meaning:
    layer = parse_problem(f"resize:{line.algorithm}:{line.problem}")
    return _layer_meaning(layer, line.pass_, line.arithmetic, line)


#: Op of the table (None if there is no layer) and number of gates, by oneDNN's name of the cell.
_CELLS: Final[Mapping[str, tuple[str | None, int]]] = {
    "vanilla_lstm": ("lstm", 4),
    "lbr_gru": ("gru", 3),
    "vanilla_gru": ("vanilla-gru", 3),
    "vanilla_rnn": (None, 1),
}
_PLAIN_CELLS: Final = {"eltwise_tanh": "rnn-tanh", "eltwise_relu": "rnn-relu"}


def _rnn(line: _Line) -> Meaning:
    """Parse ``l1t64mb16sic64slc64dhc64dic64``: layers, steps, batch, sizes of state and source."""
    sizes, (cell, gates) = line.sizes(), _CELLS.get(line.words.get("alg", ""), (None, 0))
    if not gates or sizes["l"] != 1:
        raise UnsupportedError("oneDNN's rnn: no rule for this cell, or for several layers at once")
    if gates == 1:
        cell = _PLAIN_CELLS.get(line.words.get("activation", ""))
    directions = 1 if line.words.get("direction", "uni").startswith("uni") else 2
    hidden, source = sizes["dhc"], (sizes["t"], sizes["mb"], sizes["slc"])
    state, logged = sizes.get("dic", hidden), dict(line.tensors)
    weights = [
        line.value((directions, gates * hidden, inputs), place)
        for place, inputs in enumerate((sizes["slc"], state), start=1)
    ]
    fields: dict[str, Any] = {}
    if "wei_proj" in logged:
        weights.append(line.value((directions, hidden, state), 3))
        fields |= {"projection": state, "projected": True}
    if "wei_peephole" in logged:
        fields["peephole"] = True
    part = products.recurrent(
        source,
        weights,
        cell,
        directions=directions,
        backward=line.propagation == "backward",
        training=line.training,
        hidden=hidden,
        **fields,
    )
    written = line.value((*source[:2], directions * state)).bytes
    return complete(part, [line.value(source), *weights], written)


#: Rules by primitive.
RULES: Final[Mapping[str, Callable[[_Line], Meaning]]] = {
    **dict.fromkeys(("convolution", "deconvolution"), _convolution),
    **dict.fromkeys(("matmul", "gemm_api", "gemm"), _matmul),
    **dict.fromkeys(("softmax", "softmax_v2", "logsoftmax", "layer_normalization"), _rows),
    "inner_product": _inner_product,
    **dict.fromkeys(("pooling", "pooling_v2"), _pooling),
    **dict.fromkeys(("eltwise", "eltwise_v2"), _eltwise),
    "batch_normalization": _batch_normalisation,
    "binary": _binary,
    "concat": _concat,
    "group_normalization": _group_normalisation,
    "lrn": _local_response,
    "prelu": _prelu,
    "shuffle": _shuffle,
    "sum": _sum,
    "reduction": _reduction,
    "reorder": _reorder,
    "rnn": _rnn,
    **dict.fromkeys(("resampling", "resampling_v2"), _resampling),
}
