"""Element-wise arithmetic on up to three tensors, with broadcasting."""

from __future__ import annotations

from dataclasses import dataclass
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, ClassVar, Final, Self

from pydlbench.errors import UsageError
from pydlbench.layers.base import check_pass, check_total, elements, spell
from pydlbench.layers.tensors import (
    Shape,
    Tensors,
    check_operator,
    joined,
    read,
    set_number,
    set_shapes,
)

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

_ROLES: Final = ("src", "src2", "src3")


@dataclass(frozen=True, slots=True)
class Operator:
    """One operator.

    Attributes:
        operands: How many it has.
        flops: Per element of the result, as :class:`~pydlbench.layers.pointwise_ops.Step` counts.
        above_zero: Roles whose elements have to be above zero.
        numbered: Whether it has a number.
    """

    operands: int
    flops: int
    above_zero: tuple[str, ...] = ()
    numbered: bool = False


#: By name.
ELEMENTWISE: Final[Mapping[str, Operator]] = MappingProxyType(
    {
        "abs": Operator(1, 1),
        "neg": Operator(1, 1),
        "square": Operator(1, 1),
        "sqrt": Operator(1, 1, ("src",)),
        "rsqrt": Operator(1, 2, ("src",)),
        "exp": Operator(1, 1),
        "log": Operator(1, 1, ("src",)),
        "power": Operator(1, 1, ("src",), numbered=True),
        "add": Operator(2, 1, numbered=True),
        "mul": Operator(2, 1),
        "div": Operator(2, 1, ("src2",)),
        "max": Operator(2, 1),
        "min": Operator(2, 1),
        "leaky-relu": Operator(2, 2),
        # A square or a difference, a product, a sum.
        "add-square": Operator(2, 3, numbered=True),
        "lerp": Operator(3, 3),
        "addcmul": Operator(3, 3, numbered=True),
        "addcdiv": Operator(3, 3, ("src3",), numbered=True),
        "clamp": Operator(3, 2),
        "leaky-relu-gradient": Operator(3, 2),
    }
)
_NUMBERED: Final = tuple(name for name, one in ELEMENTWISE.items() if one.numbered)


@dataclass(frozen=True, slots=True, kw_only=True)
class Elementwise(Tensors):
    """``dst = op(x, y, z)`` for each element, ``a`` being the number.

    - ``abs``, ``neg``, ``square``, ``sqrt``, ``rsqrt`` (one over the root), ``exp``, ``log``, and
      ``power``: ``x**a``.
    - ``add``: ``x + a y``; ``mul``, ``div``, ``max``, ``min``; ``add-square``: ``x + a y**2``.
    - ``leaky-relu``: ``x`` above zero, else ``x y``.
    - ``lerp``: ``x + z (y - x)``; ``addcmul``: ``x + a y z``; ``addcdiv``: ``x + a y / z``.
    - ``clamp``: ``min(max(x, y), z)``.
    - ``leaky-relu-gradient``: ``x`` where ``y`` is above zero, else ``x z``.

    Where an operand has one element along a dimension, it stands for all others along it; a number
    of a program, such as the 2 of ``2 x``, is an operand of one element. The result is written to
    memory of its own, also where a program overwrites an operand: it moves as many bytes.

    Attributes:
        op: One of :data:`ELEMENTWISE`.
        src: Shape of x.
        src2: Shape of y, of as many dimensions; empty where there is none.
        src3: Shape of z, likewise.
        number: Of those that have one, else 1.
        name: How to call the layer in tables.

    Raises:
        UsageError: No such operator, other operands than it has, shapes that do not fit together,
            or tensors of 2**63 bytes and more.
    """

    kind: ClassVar[str] = "elementwise"

    op: str
    src: Shape
    src2: Shape = ()
    src3: Shape = ()
    number: float = 1.0
    name: str | None = None

    def __post_init__(self) -> None:
        """Check every field."""
        check_operator(self.op, ELEMENTWISE)
        set_shapes(self, *_ROLES)
        set_number(self, "number")
        wanted, shapes = ELEMENTWISE[self.op], self._operands()
        if len(shapes) != wanted.operands or not self.src:
            raise UsageError(f"{self.op}: {len(shapes)} operands; nearest: {wanted.operands}")
        alike = all(len(shape) == len(self.src) for shape in shapes)
        whole = self._dst() if alike else self.src
        for role, shape in zip(_ROLES, shapes, strict=False):
            if len(shape) != len(whole) or any(
                size not in (1, most) for size, most in zip(shape, whole, strict=True)
            ):
                fits = "x".join(map(str, whole))
                raise UsageError(f"{role}={shape}: does not fit the others; nearest: {fits}")
        if self.number != 1 and not wanted.numbered:
            raise UsageError(f"number={self.number}: {self.op} has none; nearest: 1")
        check_total(**elements(self.shapes()))

    @classmethod
    def of(cls, op: str, *shapes: Sequence[int], number: float = 1.0) -> Self:
        """Build one of the fewest dimensions from operands whose last dimensions belong together.

        Dimensions that all operands have, or lack, alike lie behind one another: they are one.

        Args:
            op: The operator.
            shapes: Of the operands, as a program has them: an empty one is a number.
            number: Of the operator.

        Raises:
            UsageError: A layer that cannot be.
        """
        longest = max(map(len, shapes), default=0)
        aligned = [(1,) * (longest - len(shape)) + tuple(shape) for shape in shapes]
        merged: list[list[int]] = []
        spread: tuple[bool, ...] = ()
        for sizes in zip(*aligned, strict=True):
            if max(sizes) == 1:
                continue
            alike = tuple(size == 1 for size in sizes)
            if merged and alike == spread:
                merged[-1] = [a * b for a, b in zip(merged[-1], sizes, strict=True)]
            else:
                merged.append(list(sizes))
            spread = alike
        dims = zip(*merged, strict=True) if merged else [(1,)] * len(shapes)
        operands: dict[str, Any] = dict(zip(_ROLES, map(tuple, dims), strict=False))
        return cls(op=op, number=number, **operands)

    def shapes(self) -> dict[str, Shape]:
        """Return the shape of each operand and of the result, by role."""
        return {**dict(zip(_ROLES, self._operands(), strict=False)), "dst": self._dst()}

    def above_zero(self, role: str) -> bool:
        """Whether the elements of an operand have to be above zero."""
        return role in ELEMENTWISE[self.op].above_zero

    @property
    def problem(self) -> str:
        """The canonical descriptor: ``elementwise:add:8x128:1x128by-0.5``."""
        number = "" if self.number == 1 else f"by{spell(self.number)}"
        return joined(self.kind, self.op, *self._operands()) + number

    @classmethod
    def parse(cls, text: str, pool: str | None) -> Self:  # noqa: ARG003 - of other kinds
        """Read ``elementwise:OPERATOR:SHAPE:SHAPEbyNUMBER``."""
        op, shapes, number, name = read(text, cls.kind, ELEMENTWISE, _NUMBERED)
        if len(shapes) > len(_ROLES):
            raise UsageError(f"{op}: {len(shapes)} operands; nearest: {ELEMENTWISE[op].operands}")
        return cls(
            op=op,
            number=float(number or 1),
            name=name,
            **dict(zip(_ROLES, shapes, strict=False)),
        )

    def flops(self, pass_: str) -> int:
        """Return the FLOPs; a number that an addition multiplies with is one more, unless 1."""
        check_pass(pass_, self.passes, self.kind)
        each = ELEMENTWISE[self.op].flops + (self.op == "add" and abs(self.number) != 1)
        return each * elements(self.shapes())["dst"]

    def _operands(self) -> tuple[Shape, ...]:
        return tuple(shape for shape in (self.src, self.src2, self.src3) if shape)

    def _dst(self) -> Shape:
        return tuple(max(sizes) for sizes in zip(*self._operands(), strict=True))
