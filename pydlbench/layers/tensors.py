"""What layers on dense tensors of any shape have in common: a table of operators, and descriptors.

A descriptor is the kind, the operator and the shapes of the operands, as benchdnn writes shapes:
``elementwise:mul:8x128x768:1x1x768``, perhaps with ``by`` and a number, and with a name ``n"..."``
at the end.
"""

from __future__ import annotations

import abc
import math
import operator
import re
from numbers import Real
from typing import TYPE_CHECKING, ClassVar, Final, Self

from pydlbench.errors import UsageError, nearest
from pydlbench.layers.base import (
    Kind,
    check_pass,
    malformed,
    read_name,
    read_number,
)

if TYPE_CHECKING:
    from collections.abc import Collection

Shape = tuple[int, ...]

#: oneDNN knows twelve; with those merged that lie behind one another nobody needs as many.
MOST_DIMENSIONS: Final = 6
_SIGNED: Final = re.compile(r"[-+]?(?:[0-9]+(?:\.[0-9]*)?|\.[0-9]+)(?:e[-+]?[0-9]+)?")


class Tensors(Kind):
    """A layer that reads dense tensors and writes one, ``dst``; its gradients are other layers.

    There is no batch to tell from other dimensions: it counts as one, and stays.
    """

    __slots__ = ()

    passes: ClassVar[tuple[str, ...]] = ("forward",)

    @property
    def batch(self) -> int:
        """One."""
        return 1

    def with_batch(self, batch: int) -> Self:  # noqa: ARG002 - it has none
        """Return the same layer."""
        return self

    def reads(self, pass_: str, propagation: str = "inference") -> tuple[str, ...]:  # noqa: ARG002 - alike in both
        """Return the roles of all operands."""
        check_pass(pass_, self.passes, self.kind)
        return tuple(role for role in self.shapes() if role != "dst")

    def writes(self, pass_: str, propagation: str = "inference") -> tuple[str, ...]:  # noqa: ARG002 - alike in both
        """Return the role of the result."""
        check_pass(pass_, self.passes, self.kind)
        return ("dst",)

    @abc.abstractmethod
    def flops(self, pass_: str) -> int:
        """Return the FLOPs of a pass."""

    def flops_executed(self, pass_: str) -> int:
        """Return the same as :meth:`flops`: nothing is left out."""
        return self.flops(pass_)

    def bytes(self, pass_: str, itemsize: int) -> int:
        """Return the least bytes moved: each operand read once, and the result written once."""
        return itemsize * sum(self.operands(pass_).values())

    @classmethod
    def claims(cls, text: str, pool: str | None) -> bool:  # noqa: ARG003 - of poolings
        """Whether a descriptor begins with the kind and a colon."""
        return text.startswith(f"{cls.kind}:")


def check_operator(op: str, table: Collection[str]) -> None:
    """Refuse an operator that does not exist.

    Raises:
        UsageError: With the nearest ones.
    """
    if op not in table:
        choices = ", ".join(nearest(str(op), table) or table)
        raise UsageError(f"op={op!r}: no such operator; nearest: {choices}")


def set_shapes(layer: object, *fields: str) -> None:
    """Replace the named fields of a frozen layer by tuples of ints, each at least 1.

    Raises:
        UsageError: A size that is none, or more dimensions than there can be.
    """
    for field in fields:
        shape = getattr(layer, field)
        try:
            sizes = tuple(operator.index(size) for size in shape)
        except TypeError:
            raise UsageError(f"{field}={shape!r}: no shape; nearest: a list of sizes") from None
        if len(sizes) > MOST_DIMENSIONS:
            raise UsageError(f"{field}={shape}: too many dimensions; at most {MOST_DIMENSIONS}")
        if min(sizes, default=1) < 1:
            raise UsageError(f"{field}={shape}: too small; each size at least 1")
        object.__setattr__(layer, field, sizes)


def set_number(layer: object, field: str) -> None:
    """Replace the named field of a frozen layer by a plain, finite float.

    Raises:
        UsageError: It is none.
    """
    value = getattr(layer, field)
    if isinstance(value, bool) or not isinstance(value, Real) or not math.isfinite(value):
        raise UsageError(f"{field}={value!r}: no finite number; nearest: 1")
    object.__setattr__(layer, field, float(value))


# -----------------------------------------------------------------------------
# Descriptors.


def joined(kind: str, op: str, *shapes: Shape) -> str:
    """Return the descriptor of a layer; shapes without dimensions are left out."""
    return ":".join([kind, op, *("x".join(map(str, shape)) for shape in shapes if shape)])


def read(
    text: str, kind: str, table: Collection[str], numbered: Collection[str] = ()
) -> tuple[str, list[Shape], str | None, str | None]:
    """Read a descriptor.

    Args:
        text: The descriptor.
        kind: That it begins with.
        table: The operators that there are.
        numbered: Those with a number behind ``by``.

    Returns:
        The operator, the shapes, the number as it is written, and the name; either of the last two
        may be None.

    Raises:
        UsageError: Malformed, with the position.
    """
    start = len(kind) + 1
    op, colon, _ = text[start:].partition(":")
    if op not in table:
        choices = ", ".join(nearest(op, table) or table)
        raise malformed(start, f"expected an operator; nearest: {choices}", op)
    position = start + len(op)
    if not colon:
        raise malformed(position, "expected : and a shape, such as 8x128", "")
    shapes = []
    while text.startswith(":", position):
        sizes = []
        separator = "x"
        while separator == "x":
            size, position = read_number(text, position + 1, "a size", 1)
            sizes.append(size)
            separator = text[position : position + 1]
        shapes.append(tuple(sizes))
    number = None
    if op in numbered and text.startswith("by", position):
        found = _SIGNED.match(text, position + 2)
        if found is None:
            raise malformed(position + 2, "expected a number", text[position + 2 :])
        number, position = found.group(), found.end()
    if text.startswith("n", position):
        return op, shapes, number, read_name(text, position)
    if position < len(text):
        raise malformed(position, "expected x, : or a name", text[position:])
    return op, shapes, number, None
