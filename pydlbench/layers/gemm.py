"""Matrix multiplication and inner product (fully connected layer): FLOPs and least bytes."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any, ClassVar, Final, Self

from pydlbench.errors import UsageError, nearest
from pydlbench.layers.base import (
    Product,
    check_pass,
    check_total,
    elements,
    malformed,
    read_name,
    read_number,
    set_integers,
)

#: How weights may lie: as the library likes best, or by rows or columns, outermost letter first.
ORDERS: Final = ("any", "kn", "nk")


@dataclass(frozen=True, slots=True, kw_only=True)
class Gemm(Product):
    """``batch_count`` independent products, without bias.

    forward: ``dst[m, n] = src[m, k] @ weights[k, n]``; backward-data:
    ``src_gradient[m, k] = dst_gradient[m, n] @ weights.T``; backward-weights:
    ``weights_gradient[k, n] = src.T @ dst_gradient``. A fully connected layer has the minibatch as
    its rows ``m``. The scores of an attention are the products of its queries (``src``) with its
    keys (``weights``, which lie as ``nk``), a product for each head of each sequence.

    Attributes:
        m: Rows of the source and of the result.
        k: Columns of the source, rows of the weights.
        n: Columns of the weights and of the result.
        batch_count: Independent products.
        weights_order: ``kn`` or ``nk`` where the weights, or their gradient, lie in that order and
            are not packed: those of a product of two activations have no other. ``any`` leaves
            it to the library.
        samples: Sequences or images that the rows are of, or the products where there are several:
            its batch. 0 where each row is one.
        name: How to call the layer in tables.

    Raises:
        UsageError: A size below one, tensors of 2**63 bytes and more, no such order, or samples
            that do not divide the rows.
    """

    kind: ClassVar[str] = "gemm"

    m: int
    k: int
    n: int
    batch_count: int = 1
    weights_order: str = "any"
    samples: int = 0
    name: str | None = None

    def __post_init__(self) -> None:
        """Check every field."""
        set_integers(self, 1, "m", "k", "n", "batch_count")
        set_integers(self, 0, "samples")
        if self.weights_order not in ORDERS:
            choices = nearest(str(self.weights_order), ORDERS) or list(ORDERS)
            raise UsageError(
                f"weights_order={self.weights_order!r}: no such order; nearest: {choices[0]}"
            )
        many = self.batch_count > 1
        field, count = ("batch_count", self.batch_count) if many else ("m", self.m)
        if self.samples and count % self.samples:
            raise UsageError(f"samples={self.samples}: does not divide {field}={count}")
        check_total(**elements(self.shapes()))

    @property
    def batch(self) -> int:
        """The minibatch: the samples, or the rows of the source."""
        return self.samples or self.m

    def shapes(self) -> dict[str, tuple[int, ...]]:
        """Return the shape of each matrix by role: ``(batch_count, rows, columns)``."""
        return {
            "src": (self.batch_count, self.m, self.k),
            "weights": (self.batch_count, self.k, self.n),
            "dst": (self.batch_count, self.m, self.n),
        }

    def other_shapes(self, role: str) -> tuple[tuple[int, ...], ...]:
        """Return the shape of a lone matrix without its batch."""
        return (self.shapes()[role][1:],) if self.batch_count == 1 else ()

    def problem_fields(self) -> dict[str, Any]:
        """Return the sizes, the batch of both operands, and how the weights are to lie."""
        batch = [] if self.batch_count == 1 else [self.batch_count]
        sizes = {field: getattr(self, field) for field in ("m", "k", "n")}
        tag = {"weights_tag": self.weights_order}
        return sizes | {"src_batch": batch, "weights_batch": batch} | tag

    @property
    def variant(self) -> str | None:
        """How backends call the way to store the weights that is wanted; None if any will do."""
        return {"kn": "plain", "nk": "transposed"}.get(self.weights_order)

    @classmethod
    def claims(cls, text: str, pool: str | None) -> bool:  # noqa: ARG003 - of poolings
        """Whether a descriptor starts with a number; no other kind's does."""
        return text[:1].isdecimal() or text.startswith(":")

    @classmethod
    def parse(cls, text: str, pool: str | None) -> Self:  # noqa: ARG003 - of poolings
        """Read ``MxK:KxN``."""
        return cls(**_read_sizes(text))

    @property
    def problem(self) -> str:
        """The canonical descriptor: ``128x9216:9216x4096``, ``3x128x64:3x64x32wtagnk``."""
        count = f"{self.batch_count}x" if self.batch_count > 1 else ""
        order = "" if self.weights_order == "any" else f"{_ORDER}{self.weights_order}"
        return f"{count}{self.m}x{self.k}:{count}{self.k}x{self.n}{order}"

    def with_batch(self, batch: int) -> Self:
        """Return the same product for another number of samples, or of source rows."""
        if not self.samples:
            return replace(self, m=batch)
        if self.batch_count == 1:
            return replace(self, m=self.m // self.samples * batch, samples=batch)
        count = self.batch_count // self.samples * batch
        return replace(self, batch_count=count, samples=batch)

    def flops(self, pass_: str) -> int:
        """Return the FLOPs, two per multiply-add; the three passes need the same number."""
        check_pass(pass_, self.passes, self.kind)
        return 2 * self.batch_count * self.m * self.k * self.n

    def flops_executed(self, pass_: str) -> int:
        """Return the same as :meth:`flops`: there is no padding to leave out."""
        return self.flops(pass_)

    def bytes(self, pass_: str, itemsize: int) -> int:
        """Return the least bytes moved: two matrices read once and the third written once."""
        check_pass(pass_, self.passes, self.kind)
        return itemsize * sum(elements(self.shapes()).values())


# -----------------------------------------------------------------------------
# Reading matrix products: ``MxK:KxN``, ``BxMxK:BxKxN``, then perhaps ``:MxN``, the order of the
# weights (benchdnn's ``--wtag``) and ``n"name"``.

_ROLES = ("src", "weights", "dst")
_ORDER: Final = "wtag"


def _read_sizes(text: str) -> dict[str, Any]:
    """Read a matrix product's sizes, order and name.

    Raises:
        UsageError: Malformed (with the position), or dimensions that do not fit together.
    """
    tensors, position = _scan(text)
    order, name = _read_rest(text, position)
    sizes = [[size for size, _ in tensor] for tensor in tensors]
    (*batch, m, k), (*_, n) = sizes[0], sizes[1]
    wanted = ([*batch, k, n], [*batch, m, n])
    for tensor, expected in zip(tensors[1:], wanted, strict=False):
        if len(tensor) != len(expected):
            shape = "x".join(map(str, expected))
            found = "x".join(str(size) for size, _ in tensor)
            raise malformed(tensor[0][1], f"expected dimensions as in {shape}", found)
        for (size, position), right in zip(tensor, expected, strict=True):
            if size != right:
                raise malformed(position, f"expected {right}", str(size))
    count = batch[0] if batch else 1
    return {"m": m, "k": k, "n": n, "batch_count": count, "weights_order": order, "name": name}


def _read_rest(text: str, position: int) -> tuple[str, str | None]:
    """Return the order of the weights and the name, either of which may be missing."""
    order = "any"
    if text.startswith(_ORDER, position):
        position += len(_ORDER)
        found = next((one for one in ORDERS if text.startswith(one, position)), None)
        if found is None:
            raise malformed(position, f"expected one of {', '.join(ORDERS)}", text[position:])
        order, position = found, position + len(found)
    if text.startswith("n", position):
        return order, read_name(text, position)
    if position < len(text):
        raise malformed(position, f"expected the end, {_ORDER} or a name", text[position:])
    return order, None


def _scan(text: str) -> tuple[list[list[tuple[int, int]]], int]:
    """Return the dimensions of two or three tensors, each with its position, and where they end."""
    tensors: list[list[tuple[int, int]]] = [[]]
    position = 0
    while True:
        field = f"a dimension of {_ROLES[len(tensors) - 1]}"
        start = position
        size, position = read_number(text, start, field, 1)
        tensors[-1].append((size, start))
        following = text[position : position + 1]
        if following == "x" and len(tensors[-1]) < 3:
            position += 1
            continue
        if len(tensors[-1]) < 2:
            raise malformed(position, f"expected x and {field}", text[position:])
        if following == ":" and len(tensors) < 3:
            tensors.append([])
            position += 1
            continue
        if len(tensors) < 2:
            raise malformed(position, "expected : and the weights, KxN", text[position:])
        return tensors, position
