"""Tensors that are copied, turned over, or filled."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar, Final, Self

from pydlbench.errors import UsageError
from pydlbench.layers.base import check_pass, check_total
from pydlbench.layers.tensors import Shape, Tensors, check_operator, joined, read, set_shapes

if TYPE_CHECKING:
    from collections.abc import Sequence

MOVES: Final = ("copy", "permute", "fill")


@dataclass(frozen=True, slots=True, kw_only=True)
class Move(Tensors):
    """A tensor that is written and not computed.

    - ``copy``: as it is.
    - ``permute``: dimension ``i`` of the result is dimension ``order[i]`` of the source.
    - ``fill``: with zeros; nothing is read.

    Attributes:
        op: One of :data:`MOVES`.
        src: Shape of the source, or of what is filled, outermost dimension in memory first.
        order: Of a permutation, else empty.
        name: How to call the layer in tables.

    Raises:
        UsageError: No such operator, an order that is none, or tensors of 2**63 bytes and more.
    """

    kind: ClassVar[str] = "move"

    op: str
    src: Shape
    order: Shape = ()
    name: str | None = None

    def __post_init__(self) -> None:
        """Check every field."""
        check_operator(self.op, MOVES)
        set_shapes(self, "src")
        object.__setattr__(self, "order", tuple(self.order))
        if not self.src:
            raise UsageError(f"{self.op}: without a shape; nearest: {self.op}:1")
        wanted = list(range(len(self.src))) if self.op == "permute" else []
        if sorted(self.order) != wanted:
            last = "".join(map(str, reversed(wanted))) or "none"
            raise UsageError(f"order={self.order}: no order of {self.src}; nearest: {last}")
        check_total(src=math.prod(self.src), dst=math.prod(self.src))

    @classmethod
    def of(cls, shape: Sequence[int], strides: Sequence[int]) -> Self:
        """Build what makes a dense tensor of one that lies otherwise, of the fewest dimensions.

        Args:
            shape: Of both.
            strides: Of the source, in elements; gaps make no difference.

        Raises:
            UsageError: A layer that cannot be.
        """
        axes = [axis for axis, size in enumerate(shape) if size != 1]
        memory = sorted(axes, key=lambda axis: -strides[axis])
        # Axes of the result that follow one another in the source too are one.
        groups: list[list[int]] = []
        for axis in axes:
            place = memory.index(axis)
            if groups and memory.index(groups[-1][-1]) == place - 1:
                groups[-1].append(axis)
            else:
                groups.append([axis])
        source = sorted(groups, key=lambda group: memory.index(group[0]))
        sizes = tuple(math.prod(shape[axis] for axis in group) for group in source) or (1,)
        if len(sizes) == 1:
            return cls(op="copy", src=sizes)
        return cls(op="permute", src=sizes, order=tuple(map(source.index, groups)))

    def shapes(self) -> dict[str, Shape]:
        """Return the shapes of the source, if there is one, and of the result."""
        if self.op == "fill":
            return {"dst": self.src}
        turned = tuple(self.src[axis] for axis in self.order) or self.src
        return {"src": self.src, "dst": turned}

    @property
    def problem(self) -> str:
        """The canonical descriptor: ``move:permute:8x128x12x64by0213``."""
        order = "by" + "".join(map(str, self.order)) if self.order else ""
        return joined(self.kind, self.op, self.src) + order

    @classmethod
    def parse(cls, text: str, pool: str | None) -> Self:  # noqa: ARG003 - of other kinds
        """Read ``move:OPERATOR:SHAPEbyORDER``."""
        op, shapes, order, name = read(text, cls.kind, MOVES, ("permute",))
        if len(shapes) != 1:
            raise UsageError(f"{op}: {len(shapes)} shapes; nearest: 1")
        order = order or ""
        if not order.isdecimal() and order:
            raise UsageError(f"order {order}: no order of dimensions; nearest: 10")
        return cls(op=op, src=shapes[0], order=tuple(map(int, order)), name=name)

    def flops(self, pass_: str) -> int:
        """Return none."""
        check_pass(pass_, self.passes, self.kind)
        return 0
