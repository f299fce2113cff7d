"""Reading matrix products: ``MxK:KxN``, ``BxMxK:BxKxN``, then perhaps ``:MxN`` and ``n"name"``."""

from __future__ import annotations

from pydlbench.layers.gemm import Gemm
from pydlbench.layers.scan import malformed, read_name, read_number

__all__ = ["parse_matmul"]

_ROLES = ("src", "weights", "dst")


def parse_matmul(text: str) -> Gemm:
    """Read a matrix product.

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
    return Gemm(m=m, k=k, n=n, batch_count=batch[0] if batch else 1, name=name)


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
