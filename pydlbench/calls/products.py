"""Products of matrices, einsum, attention and recurrent layers."""

import math
from collections.abc import Iterator, Sequence
from typing import Any, Final

from pydlbench.calls.meaning import (
    LayerPass,
    Meaning,
    Value,
    bytes_of_type,
    combine,
    meaning_rule,
    no_layer,
    row_layer,
)
from pydlbench.errors import UnsupportedError
from pydlbench.ops.table import OPS, build_layer
from pydlbench.ops.tensors import merged_elementwise

_SOFTMAX_PASSES: Final = OPS["softmax"].passes
#: FLOPs per pair of query and key to recompute a probability: a difference and an exponential.
_RECOMPUTATION_FLOPS: Final = 2


@meaning_rule
def matmul(
    batch: Sequence[int],
    m: int,
    k: int,
    n: int,
    *,
    left_transposed: bool = False,
    right_transposed: bool = False,
    backward: bool = False,
    outer_first: bool = False,
) -> Iterator[Meaning | LayerPass]:
    """Return the meaning of ``(m, k) @ (k, n)``, and the pass of a product that it is.

    In a backward pass, a transposed left matrix means a gradient of weights, which sums over the
    rows of a minibatch; otherwise it is the gradient of data.

    Args:
        batch: leading dimensions. A product with a batch multiplies activations, so that no
            weights are packed.
        m: number of rows of the result.
        k: length of the sums.
        n: number of columns of the result.
        left_transposed: whether the left matrix is transposed in memory.
        right_transposed: whether the right matrix is transposed in memory.
        backward: whether the product is a part of the backward pass.
        outer_first: whether a gradient of weights has the transposed outer gradient on its left and
            the source on its right, instead of the other way round.
    """
    count = math.prod(batch)
    flops = 2 * count * m * k * n
    yield Meaning(kind="product", flops=flops, product_flops=flops)
    row_major, column_major = ("kn", "nk") if batch else ("any", "any")
    if backward and left_transposed:
        rows, columns = (n, m) if outer_first else (m, n)
        layer = build_layer(
            "gemm", m=k, k=rows, n=columns, batch_count=count, weights_tag=row_major
        )
        yield LayerPass(layer, "backward-weights")
    elif backward:
        # The right matrix (k, n) is the transposed weights.
        order = row_major if right_transposed else column_major
        layer = build_layer("gemm", m=m, k=n, n=k, batch_count=count, weights_tag=order)
        yield LayerPass(layer, "backward-data")
    else:
        order = column_major if right_transposed else row_major
        yield LayerPass(build_layer("gemm", m=m, k=k, n=n, batch_count=count, weights_tag=order))


def einsum(equation: str, shapes: Sequence[Sequence[int]]) -> Meaning:
    """Return the meaning of an einsum that is a batched product of two operands.

    Raises:
        UnsupportedError: the einsum is no such product.
    """
    inputs, _, result = equation.replace(" ", "").partition("->")
    left, _, right = inputs.partition(",")
    rows, columns, results = set(left), set(right), set(result)
    repeated = len(rows) < len(left) or len(columns) < len(right)
    if not right or set(".,") & (rows | columns) or repeated or (rows ^ columns) - results:
        raise UnsupportedError(f"no rule for {equation}")
    sizes = dict(zip(left + right, (*shapes[0], *shapes[1]), strict=True))

    def size(letters: set[str]) -> int:
        return math.prod(sizes[letter] for letter in letters)

    count, summed = size(rows & columns & results), size((rows & columns) - results)
    return matmul([count] * (count > 1), size(rows - columns), summed, size(columns - rows))


@meaning_rule
def addend(result: Sequence[int], shape: Sequence[int]) -> Iterator[Meaning | LayerPass]:
    """Return the meaning of adding a bias, or a matrix, to a product.

    Args:
        result: shape of the product.
        shape: shape of the addend.
    """
    *rows, columns = result
    yield Meaning(kind="elementwise", flops=math.prod(result))
    if tuple(shape) == tuple(result):
        yield LayerPass(build_layer("add", batch=math.prod(rows), channels=columns))
    elif math.prod(shape) == columns == shape[-1]:
        yield LayerPass(build_layer("bias", batch=math.prod(rows), channels=columns))
    else:
        yield LayerPass(merged_elementwise("add", result, shape))


def grouped_matmul(left: Value, columns: int) -> Meaning:
    """Return the meaning of a product of rows with experts' weights, one expert for each row."""
    flops = 2 * left.elements * columns
    why = "products of groups whose sizes are values have no layer"
    return Meaning(kind="product", flops=flops, product_flops=flops, layers_missing=why)


@meaning_rule
def attention(
    query: Sequence[int],
    keys: int,
    depth: int,
    *,
    causal: bool = False,
    backward: bool = False,
) -> Iterator[Meaning | LayerPass]:
    """Return the meaning of scaled dot-product attention.

    Args:
        query: shape of the queries: ``(batch, heads, queries, size)``.
        keys: number of keys.
        depth: size of the values.
        causal: whether a query sees only the keys up to its own index.
        backward: whether the call computes the gradients of query, key and value, which recomputes
            the probabilities.
    """
    *heads, queries, size = query
    count, pairs, note = math.prod(heads), queries * keys, None
    if causal:
        diagonal = min(queries, keys)
        attended = diagonal * (diagonal + 1) // 2 + (queries - diagonal) * keys
        note = f"causal: {attended} of {pairs} pairs of a query and a key are counted"
        pairs = attended
    pairs *= count
    # Backward: scores again, then the gradients of values, probabilities, queries and keys.
    products = 2 * pairs * (3 * size + 2 * depth if backward else size + depth)
    per_pair = (
        _RECOMPUTATION_FLOPS + _SOFTMAX_PASSES["backward-data"].per_element
        if backward
        else _SOFTMAX_PASSES["forward"].per_element
    )
    flops = products + pairs * per_pair
    yield Meaning(kind="attention", flops=flops, product_flops=products, note=note)
    scores = build_layer("gemm", m=queries, k=size, n=keys, batch_count=count, weights_tag="nk")
    softmax = row_layer("softmax", (heads[0], math.prod(heads[1:]), queries, keys), 1)
    context = build_layer("gemm", m=queries, k=keys, n=depth, batch_count=count, weights_tag="kn")
    steps = [(scores, "forward"), (softmax, "forward"), (context, "forward")]
    if backward:
        steps[2:] = [(context, "backward-weights"), (context, "backward-data")]
        steps += [(softmax, "backward-data")]
        steps += [(scores, "backward-weights"), (scores, "backward-data")]
    for layer, pass_ in steps:
        yield LayerPass(layer, pass_)


def projected_attention(query: Sequence[int], keys: int, heads: int, hidden: int = 0) -> Meaning:
    """Return the meaning of an attention with its projections, and perhaps a feed-forward block.

    Queries, keys and values are projected separately, even if they are the same tensor.

    Args:
        query: shape of the queries: ``(batch, length, width)``.
        keys: number of keys for each batch.
        heads: number of heads.
        hidden: width between the two products of the feed-forward block; 0 if there is none.
    """
    batch, length, width = query
    rows, size = batch * length, width // heads
    of_rows = matmul((), rows, width, width)
    of_keys = matmul((), batch * keys, width, width)
    scores = attention((batch, heads, length, size), keys, size)
    parts = [of_rows, of_keys, of_keys, scores, of_rows]
    if hidden:
        parts += [matmul((), rows, width, hidden), matmul((), rows, hidden, width)]
    note = "biases, normalisations and activations within are not counted"
    return combine(parts, kind="attention", note=note)


@meaning_rule
def recurrent(
    source: Sequence[int],
    weights: Sequence[Value],
    cell: str | None,
    *,
    directions: int = 1,
    backward: bool = False,
    training: bool = False,
    **fields: Any,
) -> Iterator[Meaning | LayerPass]:
    """Return the meaning of a recurrent layer.

    Args:
        source: shape of the source: ``(length, batch, size)``.
        weights: weights of the source, weights of the state, ``(..., gates x hidden, state)``, and
            perhaps the matrix of a projection.
        cell: op of the table; None for another cell.
        directions: number of directions: 1 or 2.
        backward: whether the call computes the gradients of all operands, with two products for
            each product of the forward pass.
        training: whether a forward pass keeps data for the gradient.
        fields: further fields of the layer.
    """
    length, batch, size = source
    products = 2 * (1 + backward) * length * batch * sum(value.elements for value in weights)
    yield Meaning(
        kind="recurrent",
        flops=products,
        product_flops=products,
        note="what its gates compute beside products is not counted",
    )
    if cell is None:
        raise no_layer("a recurrent layer without gates, or with others")
    layer = build_layer(
        cell,
        directions=directions,
        steps=length,
        batch=batch,
        in_size=size,
        **{"hidden": weights[1].shape[-1], **fields},
    )
    yield LayerPass(layer, "backward-data" if backward else "forward", training)


@meaning_rule
def distances(left: Value, right: Value, *, euclidean: bool) -> Iterator[Meaning | LayerPass]:
    """Return the meaning of the distances of all rows of a matrix to all rows of another.

    Args:
        left: rows, perhaps in batches.
        right: the other rows.
        euclidean: whether distances are roots of sums of squares.
    """
    *batch, rows, width = left.shape
    count = math.prod(batch)
    flops = 3 * count * rows * width * right.shape[-2]
    yield Meaning(kind="reduction", flops=flops)
    if not euclidean or tuple(batch) != right.shape[:-2]:
        raise no_layer("a distance other than the Euclidean, or of repeated rows")
    others = (count, right.shape[-2], width)
    yield LayerPass(build_layer("distance:euclidean", src=(count, rows, width), src2=others))


@meaning_rule
def transform(
    name: str, dtype: str, numbers: int, shape: Sequence[int], dims: Sequence[int]
) -> Iterator[Meaning | LayerPass]:
    """Return the meaning of a Fourier transform.

    Args:
        name: ``real``, ``complex`` or ``inverse-real``.
        dtype: type of the source.
        numbers: real or complex numbers of a transform of all.
        shape: shape of the tensor, of real numbers unless all are complex.
        dims: dimensions along which it is transformed.
    """
    length = math.prod(shape[axis] for axis in dims)
    per_number = 5.0 if name == "complex" else 2.5
    flops = math.ceil(numbers * per_number * math.log2(max(1, length)))
    if dtype.startswith("complex"):  # pairs of real numbers
        dtype = f"float{4 * bytes_of_type(dtype)}"
    yield Meaning(kind="other", flops=flops, dtypes=(dtype,))
    last = [*range(len(shape) - len(dims), len(shape))]
    axes = [axis % len(shape) for axis in dims]
    if sorted(axes) != last:
        raise no_layer("a transform along other than the last dimensions")
    if name != "complex" and axes[-1:] != last[-1:]:
        raise no_layer("a half along another than the last dimension")
    outer = math.prod(shape[: last[0]])
    src = (outer, *shape[last[0] :])
    yield LayerPass(build_layer(f"fft:{name}", src=src, over=len(dims)))
