"""Sums, means, extremes and norms over some dimensions of a tensor."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar, Final, Self

from pydlbench.errors import UsageError
from pydlbench.layers.base import check_pass, check_total, elements
from pydlbench.layers.tensors import Shape, Tensors, check_operator, joined, read, set_shapes

if TYPE_CHECKING:
    from collections.abc import Collection, Mapping, Sequence

#: FLOPs of each element of the source, by operator: a norm squares them first.
REDUCTIONS: Final[Mapping[str, int]] = {"sum": 1, "mean": 1, "max": 1, "min": 1, "norm": 2}


@dataclass(frozen=True, slots=True, kw_only=True)
class Reduction(Tensors):
    """``sum``, ``mean``, ``max``, ``min`` or the Euclidean ``norm`` of elements.

    Attributes:
        op: One of :data:`REDUCTIONS`.
        src: Shape of the source.
        dst: The same with 1 for each dimension that is reduced.
        name: How to call the layer in tables.

    Raises:
        UsageError: No such operator, shapes that do not fit together or are the same, or tensors of
            2**63 bytes and more.
    """

    kind: ClassVar[str] = "reduction"

    op: str
    src: Shape
    dst: Shape
    name: str | None = None

    def __post_init__(self) -> None:
        """Check every field."""
        check_operator(self.op, REDUCTIONS)
        set_shapes(self, "src", "dst")
        fits = len(self.src) == len(self.dst) and self.src != self.dst
        if not fits or any(
            kept not in (1, size) for size, kept in zip(self.src, self.dst, strict=True)
        ):
            total = "x".join("1" for _ in self.src) or "1"
            raise UsageError(f"dst={self.dst}: no reduction of {self.src}; nearest: {total}")
        check_total(**elements(self.shapes()))

    @classmethod
    def of(cls, op: str, shape: Sequence[int], over: Collection[int]) -> Self:
        """Build one of the fewest dimensions.

        Args:
            op: The operator.
            shape: Of the source.
            over: Dimensions that are reduced.

        Raises:
            UsageError: A layer that cannot be.
        """
        source: list[int] = []
        result: list[int] = []
        before = None
        for axis, size in enumerate(shape):
            if size == 1:
                continue
            reduced = axis in over
            if reduced == before:
                source[-1] *= size
                result[-1] *= 1 if reduced else size
            else:
                source.append(size)
                result.append(1 if reduced else size)
            before = reduced
        return cls(op=op, src=tuple(source) or (1,), dst=tuple(result) or (1,))

    def shapes(self) -> dict[str, Shape]:
        """Return the shapes of the source and of the result."""
        return {"src": self.src, "dst": self.dst}

    @property
    def problem(self) -> str:
        """The canonical descriptor: ``reduction:sum:4096x768:1x768``."""
        return joined(self.kind, self.op, self.src, self.dst)

    @classmethod
    def parse(cls, text: str, pool: str | None) -> Self:  # noqa: ARG003 - of other kinds
        """Read ``reduction:OPERATOR:SHAPE:SHAPE``."""
        op, shapes, _, name = read(text, cls.kind, REDUCTIONS)
        if len(shapes) != 2:
            raise UsageError(f"{op}: {len(shapes)} shapes; nearest: 2, of source and result")
        return cls(op=op, src=shapes[0], dst=shapes[1], name=name)

    def flops(self, pass_: str) -> int:
        """Return the FLOPs; what is done once for each element of the result is left out."""
        check_pass(pass_, self.passes, self.kind)
        return REDUCTIONS[self.op] * math.prod(self.src)
