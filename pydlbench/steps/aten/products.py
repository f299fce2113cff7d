"""Products of matrices: which layer and pass a call is, and its FLOPs."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Final

from pydlbench.ops.table import build_layer
from pydlbench.ops.tensors import merged_elementwise
from pydlbench.steps.aten.call import Found

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping

    from pydlbench.models.work import Work
    from pydlbench.steps.aten.call import Call
    from pydlbench.steps.aten.text import TensorText


def _alone(call: Call) -> Found:
    """``mm``, ``bmm``: left, right."""
    return _found(call, call.get(0, "self"), call.get(1, "mat2"))


def _added(call: Call) -> Found:
    """``addmm``, ``baddbmm``: what is added, left, right."""
    addend = None if call.get(3, "beta", 1) == 0 else call.get(0, "self")
    return _found(call, call.get(1, "mat1"), call.get(2, "mat2"), addend)


def _found(
    call: Call, left: TensorText, right: TensorText, addend: TensorText | None = None
) -> Found:
    *batch, m, k = left.shape
    shape = (*batch, m, right.shape[-1])
    products = 2 * k * math.prod(shape)

    def layers() -> Iterator[Work]:
        yield _pass(call, left, right)
        if addend is not None:
            yield _addition(call, addend, shape)

    added = 0 if addend is None else math.prod(shape)
    return Found.of("product", layers, flops=products + added, product_flops=products)


def _pass(call: Call, left: TensorText, right: TensorText) -> Work:
    """Return which pass of which product it is.

    In a backward pass, a left matrix that lies transposed makes it a gradient of weights: it sums
    over the rows of a minibatch. PyTorch has the outer gradient on the left there, transposed, and
    the source on the right; of several products in one call it has the source on the left. Several
    products are those of activations, which are packed in no way.
    """
    *batch, m, k = left.shape
    count, n = math.prod(batch), right.shape[-1]
    plain, turned = ("kn", "nk") if batch else ("any", "any")
    if call.backward and _transposed(left):
        rows, columns = (m, n) if batch else (n, m)
        layer = build_layer("gemm", m=k, k=rows, n=columns, batch_count=count, weights_tag=plain)
        return call.work(layer, "backward-weights")
    if call.backward:
        # What is k x n in this call are the weights the other way round.
        order = plain if _transposed(right) else turned
        layer = build_layer("gemm", m=m, k=n, n=k, batch_count=count, weights_tag=order)
        return call.work(layer, "backward-data")
    order = turned if _transposed(right) else plain
    return call.work(build_layer("gemm", m=m, k=k, n=n, batch_count=count, weights_tag=order))


def _transposed(matrix: TensorText) -> bool:
    """Whether the elements of a column lie behind one another, and not those of a row."""
    down, across = matrix.strides[-2:]
    return down == 1 and across >= matrix.shape[-2]


def _addition(call: Call, addend: TensorText, shape: tuple[int, ...]) -> Work:
    """Return the addition of a bias, or of a whole matrix."""
    *rows, columns = shape
    if addend.shape == shape:
        return call.work(build_layer("add", batch=math.prod(rows), channels=columns))
    if addend.elements == columns and addend.shape[-1:] == (columns,):
        return call.work(build_layer("bias", batch=math.prod(rows), channels=columns))
    return call.work(merged_elementwise("add", shape, addend.shape))


def _linear(call: Call) -> Found:
    """``linear``: rows of whatever shape, weights by outputs, and perhaps a bias."""
    source, weights, bias = (call.get(*one) for one in ((0, "input"), (1, "weight"), (2, "bias")))
    outputs, inputs = weights.shape
    rows = source.elements // inputs

    def layers() -> Iterator[Work]:
        yield call.work(build_layer("gemm", m=rows, k=inputs, n=outputs))
        if bias is not None:
            yield call.work(build_layer("bias", batch=rows, channels=outputs))

    products = 2 * rows * inputs * outputs
    added = 0 if bias is None else rows * outputs
    return Found.of("product", layers, flops=products + added, product_flops=products)


def _by_vector(call: Call) -> Found:
    """``mv``, ``dot``: a matrix or a vector, and a vector."""
    left, right = call.get(0, "self"), call.get(1, "vec")
    rows = left.elements // right.elements if right.elements else 0
    products = 2 * left.elements
    return Found.of(
        "product",
        lambda: [call.work(build_layer("gemm", m=rows, k=right.elements, n=1))],
        flops=products,
        product_flops=products,
    )


def _grouped(call: Call) -> Found:
    """``_grouped_mm``: rows and weights of experts, or two matrices whose rows are experts'.

    Which rows are whose, only values say; each row meets one matrix.
    """
    left, right = call.get(0, "self"), call.get(1, "mat2")
    products = 2 * left.elements * right.shape[-1]
    lacks = "products of groups whose sizes are values have no layer"
    return Found(kind="product", lacks=lacks, flops=products, product_flops=products)


#: By operator.
RULES: Final[Mapping[str, Callable[[Call], Found]]] = {
    "mm": _alone,
    "bmm": _alone,
    "addmm": _added,
    "baddbmm": _added,
    "linear": _linear,
    "mv": _by_vector,
    "_grouped_mm": _grouped,
    "dot": _by_vector,
}
