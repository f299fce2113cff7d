"""Matrix products, including fully connected layers, and scaled dot-product attention."""

import math
from typing import Any, Final

from pydlbench.errors import UsageError
from pydlbench.ops.grammar import malformed
from pydlbench.ops.op import Field, Layer, Op, Operands, Pass, Shape, Sizes

# -----------------------------------------------------------------------------
# ``dst[m, n] = src[m, k] @ weights[k, n]``, without bias, for each matrix of a batch; batch
# dimensions of size one are broadcast. A fully connected layer has the minibatch as rows. The
# scores of an attention are products of queries (``src``) and keys (``weights``, stored as ``nk``),
# one for each head of each sequence.


def _convert(_: Op, values: dict[str, Any]) -> dict[str, Any]:
    """Return the fields with ``batch_count`` as the batch of both matrices."""
    count = values.pop("batch_count", None)
    if count is not None:
        values |= {"src_batch": (count,), "weights_batch": (count,)}
    return values


def _settle_gemm(values: dict[str, Any]) -> None:
    first, second = values["src_batch"], values["weights_batch"]
    fits = len(first) == len(second)
    if not fits or any(a != b and 1 not in (a, b) for a, b in zip(first, second, strict=True)):
        raise UsageError(f"weights_batch={second}: does not fit src_batch; nearest: {first}")
    if max((*first, *second), default=1) == 1:
        values |= {"src_batch": (), "weights_batch": ()}
    batch = tuple(map(max, values["src_batch"], values["weights_batch"]))
    field, count = ("the batch", math.prod(batch)) if batch else ("m", values["m"])
    if values["samples"] and count % values["samples"]:
        raise UsageError(f"samples={values['samples']}: does not divide {field}={count}")


def _batch(layer: Layer) -> Shape:
    """Return the batch of the result."""
    return tuple(map(max, layer.src_batch, layer.weights_batch))


def _batch_count(layer: Layer) -> int:
    return math.prod(_batch(layer))


def _gemm_scaled(layer: Layer, batch: int) -> dict[str, Any]:
    samples = layer.samples
    if not samples:
        return {"m": batch}
    if not layer.src_batch:
        return {"m": layer.m // samples * batch, "samples": batch}
    scaled: dict[str, Any] = {"samples": batch}
    for field in ("src_batch", "weights_batch"):
        first, *rest = getattr(layer, field)
        # The outermost batch dimension counts the samples, unless it is broadcast.
        outermost = max(layer.src_batch[0], layer.weights_batch[0])
        scaled[field] = (first if first != outermost else first * batch // samples, *rest)
    return scaled


def _read_gemm(_: Op, tensors: list[Sizes]) -> dict[str, Any]:
    """Return the fields of ``MxK:KxN[:MxN]`` or ``BxMxK:BxKxN[:BxMxN]``.

    B may be several dimensions; one that is 1 in one operand is broadcast. In ``MxK:GxKxN``, a
    grouped product of benchdnn, each of G equal groups of rows has its own weights.
    """
    sizes = [[size for size, _ in tensor] for tensor in tensors]
    (*first, m, k), weights = sizes[0], sizes[1]
    *second, _rows, n = weights
    if not first and len(second) == 1:
        if m % second[0]:
            raise malformed(tensors[0][0][1], f"expected a multiple of {second[0]} groups", str(m))
        first, m, tensors = second, m // second[0], tensors[:2]
    if len(second) == len(first):
        batch = [b if a == 1 else a for a, b in zip(first, second, strict=True)]
    else:
        batch = first
    broadcast = [a if b == 1 or a == 1 else b for a, b in zip(second, batch, strict=False)]
    shapes = [[*(broadcast if len(second) == len(batch) else batch), k, n], [*batch, m, n]]
    for tensor, expected in zip(tensors[1:], shapes, strict=False):
        if len(tensor) != len(expected):
            shape = "x".join(map(str, expected))
            written = "x".join(str(size) for size, _ in tensor)
            raise malformed(tensor[0][1], f"expected dimensions as in {shape}", written)
        for (size, position), right in zip(tensor, expected, strict=True):
            if size != right:
                raise malformed(position, f"expected {right}", str(size))
    return {"src_batch": tuple(first), "weights_batch": tuple(second), "m": m, "k": k, "n": n}


def _gemm_flops(layer: Layer) -> int:
    return 2 * _batch_count(layer) * int(layer.m) * int(layer.k) * int(layer.n)


GEMM: Final[Op] = Op(
    name="gemm",
    key="gemm",
    kind="gemm",
    fields=(
        Field(name="src_batch", type="shape", default=()),
        Field(name="weights_batch", type="shape", default=()),
        Field(name="m"),
        Field(name="k"),
        Field(name="n"),
        # Memory order of unpacked weights, or of their gradient, outermost letter first. With
        # ``any`` the library may pack the weights; a product of two activations excludes that.
        Field(
            name="weights_tag",
            spelling="wtag",
            type="word",
            choices=("any", "kn", "nk"),
            default="any",
        ),
        # Number of sequences or images that share the rows, or the products of a batch; 0 if each
        # row is a sample.
        Field(name="samples", default=0, minimum=0),
    ),
    operands=Operands(
        minimum=2,
        maximum=3,
        dimensions=2,
        read=_read_gemm,
        write=lambda layer: [
            (*layer.src_batch, layer.m, layer.k),
            (*layer.weights_batch, layer.k, layer.n),
        ],
    ),
    convert=_convert,
    settle=_settle_gemm,
    shapes=lambda layer: {
        "src": (*(layer.src_batch or (1,)), layer.m, layer.k),
        "weights": (*(layer.weights_batch or (1,)), layer.k, layer.n),
        "dst": (*(_batch(layer) or (1,)), layer.m, layer.n),
    },
    other_shapes=lambda layer: (
        {} if layer.src_batch else {role: shape[1:] for role, shape in layer.shapes().items()}
    ),
    passes={
        "forward": Pass(reads=("src", "weights"), writes=("dst",), flops=_gemm_flops),
        "backward-data": Pass(reads=("weights", "dst"), writes=("src",), flops=_gemm_flops),
        "backward-weights": Pass(reads=("src", "dst"), writes=("weights",), flops=_gemm_flops),
    },
    reference=lambda np, s, t: np.matmul(t.src, t.weights).reshape(s.shapes()["dst"]),
    batch=lambda s: int(s.samples or s.m),
    scaled=_gemm_scaled,
    native=lambda s: {field: value for field, value in s.fields.items() if field != "samples"},
    attributes={
        "batch_count": _batch_count,
        # Backends' name of the order of the weights; None if any order is allowed.
        "variant": lambda s: {"kn": "plain", "nk": "transposed"}.get(s.weights_tag),
        # Whether a matrix is broadcast.
        "broadcast": lambda s: s.src_batch != s.weights_batch,
    },
    multiply_adds=True,
    trained=("weights",),
)

# -----------------------------------------------------------------------------
# ``dst = softmax(query @ key.T / sqrt(size)) @ value`` of each head of each sequence (A. Vaswani
# et al., 2017), where several heads of queries may share one of keys and values (J. Ainslie et al.,
# 2023). ``causal``: a query attends to the keys up to its own position.


def _settle_attention(values: dict[str, Any]) -> None:
    for field, like in (("kv_heads", "heads"), ("keys", "queries"), ("value_size", "size")):
        if values[field] is None:
            values[field] = values[like]
    if values["heads"] % values["kv_heads"]:
        raise UsageError(
            f"kv_heads={values['kv_heads']}: does not divide heads={values['heads']}; nearest: "
            f"{math.gcd(values['heads'], values['kv_heads'])}"
        )


def _attended_pairs(layer: Layer) -> int:
    """Return the pairs of a query and a key that it attends to, for one head."""
    queries, keys = int(layer.queries), int(layer.keys)
    if not layer.causal:
        return queries * keys
    # 1, 2, 3 ... keys, up to all of them.
    diagonal = min(queries, keys)
    return diagonal * (diagonal + 1) // 2 + (queries - diagonal) * keys


def _attention_pass(
    reads: tuple[str, ...], writes: tuple[str, ...], sizes: int, values: int
) -> Pass:
    """Return a pass with the given numbers of products over the query size and the value size.

    Only the pairs that are attended to are counted, as papers and other benchmarks do.
    """

    def flops(layer: Layer) -> int:
        products = layer.heads * (sizes * layer.size + values * layer.value_size)
        return 2 * layer.batch * int(products) * _attended_pairs(layer)

    return Pass(reads=reads, writes=writes, flops=flops)


def _attend(np: Any, layer: Layer, t: Any) -> Any:
    """Return the result; for a part of the queries, ``t.first`` is the index of the first one."""
    # Query heads that share keys are further rows of one product.
    rows = t.query.reshape(*t.key.shape[:2], -1, layer.size)
    scores = rows @ np.swapaxes(t.key, 2, 3) / math.sqrt(layer.size)
    if layer.causal:
        place = (np.arange(scores.shape[2]) + getattr(t, "first", 0)) % layer.queries
        scores = np.where(np.arange(layer.keys) <= place[:, None], scores, _MASKED_SCORE)
    weights = np.exp(scores - scores.max(-1, keepdims=True))
    result = weights / weights.sum(-1, keepdims=True) @ t.value
    return result.reshape(*t.query.shape[:-1], layer.value_size)


#: Score of a key that a query does not attend to, whose weight is then zero.
_MASKED_SCORE: Final = -1e30


ATTENTION: Final[Op] = Op(
    name="attention",
    key="attention",
    kind="attention",
    prefix="attention:",
    fields=(
        Field(name="batch", spelling="mb", default=1, shown=True),
        Field(name="heads", spelling="h"),
        Field(name="kv_heads", spelling="kvh", default=None),
        Field(name="queries", spelling="q"),
        Field(name="keys", spelling="k", default=None),
        Field(name="size", spelling="d"),
        Field(name="value_size", spelling="dv", default=None),
        Field(name="causal", spelling="causal", type="flag", default=False, minimum=0),
    ),
    settle=_settle_attention,
    shown=lambda s, field: (
        (field.name, True)
        in (
            ("kv_heads", s.kv_heads != s.heads),
            ("keys", s.keys != s.queries),
            ("value_size", s.value_size != s.size),
        )
    ),
    shapes=lambda layer: {
        "query": (layer.batch, layer.heads, layer.queries, layer.size),
        "key": (layer.batch, layer.kv_heads, layer.keys, layer.size),
        "value": (layer.batch, layer.kv_heads, layer.keys, layer.value_size),
        "result": (layer.batch, layer.heads, layer.queries, layer.value_size),
        "dst": (layer.batch, layer.heads, layer.queries, layer.value_size),
    },
    passes={
        "forward": _attention_pass(("query", "key", "value"), ("dst",), 1, 1),
        # The scores again, and the gradients of weights, scores, queries, keys and values.
        # ``result`` is the result of the forward pass, ``dst`` the incoming gradient.
        "backward-data": _attention_pass(
            ("query", "key", "value", "result", "dst"), ("query", "key", "value"), 3, 2
        ),
    },
    reference=_attend,
    native=lambda layer: {**layer.fields, "causal": bool(layer.causal)},
    multiply_adds=True,
)
