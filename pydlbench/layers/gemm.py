"""Matrix multiplication and inner product (fully connected layer): FLOPs and least bytes."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any, ClassVar, Self

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

__all__ = ["Gemm"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Gemm(Product):
    """``batch_count`` independent products, without bias.

    forward: ``dst[m, n] = src[m, k] @ weights[k, n]``; backward-data:
    ``src_gradient[m, k] = dst_gradient[m, n] @ weights.T``; backward-weights:
    ``weights_gradient[k, n] = src.T @ dst_gradient``. A fully connected layer has the minibatch as
    its rows ``m``.

    Raises:
        UsageError: A size below one, or tensors of 2**63 bytes and more.
    """

    kind: ClassVar[str] = "gemm"

    m: int
    k: int
    n: int
    batch_count: int = 1
    name: str | None = None

    def __post_init__(self) -> None:
        """Check every size."""
        set_integers(self, 1, "m", "k", "n", "batch_count")
        check_total(**elements(self.shapes()))

    @property
    def batch(self) -> int:
        """The minibatch, which is the rows of the source."""
        return self.m

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

    @classmethod
    def claims(cls, text: str, pool: str | None) -> bool:  # noqa: ARG003 - of poolings
        """Whether a descriptor starts with a number; no other kind's does."""
        return text[:1].isdecimal() or text.startswith(":")

    @classmethod
    def parse(cls, text: str, batch: int, pool: str | None) -> Self:  # noqa: ARG003 - its rows are its batch
        """Read ``MxK:KxN``."""
        return cls(**_read_sizes(text))

    @property
    def problem(self) -> str:
        """The canonical descriptor: ``128x9216:9216x4096``, ``3x128x64:3x64x32`` for three."""
        count = f"{self.batch_count}x" if self.batch_count > 1 else ""
        return f"{count}{self.m}x{self.k}:{count}{self.k}x{self.n}"

    def with_batch(self, batch: int) -> Self:
        """Return the same product for another number of source rows."""
        return replace(self, m=batch)

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
# Reading matrix products: ``MxK:KxN``, ``BxMxK:BxKxN``, then perhaps ``:MxN`` and ``n"name"``.

_ROLES = ("src", "weights", "dst")


def _read_sizes(text: str) -> dict[str, Any]:
    """Read a matrix product's sizes and name.

    Raises:
        UsageError: Malformed (with the position), or dimensions that do not fit together.
    """
    tensors, name = _scan(text)
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
    return {"m": m, "k": k, "n": n, "batch_count": batch[0] if batch else 1, "name": name}


def _scan(text: str) -> tuple[list[list[tuple[int, int]]], str | None]:
    """Return the dimensions of two or three tensors, each with its position, and the name."""
    tensors: list[list[tuple[int, int]]] = [[]]
    name = None
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
        if following == "n":
            name = read_name(text, position)
        elif following:
            raise malformed(position, "expected the end or a name", text[position:])
        return tensors, name
