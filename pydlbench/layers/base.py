"""What every kind of layer is: a problem with tensors by role, passes, checks, a descriptor.

A kind is a frozen dataclass in a file of its own, derived from :class:`Kind`, and one of the union
``Layer`` of :mod:`pydlbench.layers.layer`, which is all that makes it known: verification, records,
descriptors and native problems ask the layer itself.
"""

from __future__ import annotations

import abc
import dataclasses
import math
import operator
import re
from numbers import Real
from typing import TYPE_CHECKING, Any, ClassVar, Final, Self, cast

from pydlbench.errors import UnsupportedError, UsageError, nearest
from pydlbench.words import PASSES

if TYPE_CHECKING:
    from collections.abc import Mapping

__all__ = [
    "PASSES",
    "Kind",
    "Product",
    "check_pass",
    "check_total",
    "elements",
    "malformed",
    "pair",
    "read_name",
    "read_number",
    "read_real",
    "set_integers",
    "set_reals",
    "spell",
]


# -----------------------------------------------------------------------------
# Checks that every layer makes of its fields, with messages that say what would be valid.

#: The role of the tensor that each pass of a convolution, product or pooling writes.
_RESULTS: Final = {"forward": "dst", "backward-data": "src", "backward-weights": "weights"}

_LIMIT_BYTES: Final = 2**63
_ITEMSIZE: Final = 4  # fp32, the widest precision that is timed


def set_integers(layer: object, least: int, *fields: str) -> None:
    """Replace the named fields of a frozen layer by plain ints, each at least ``least``.

    Integers of other libraries (NumPy's) are welcome; floats and booleans are refused, because a
    size that silently became another one would be timed as if it had been asked for.

    Raises:
        UsageError: A field is not an integer, or is too small.
    """
    for field in fields:
        value = getattr(layer, field)
        try:
            if isinstance(value, bool):
                raise TypeError
            number = operator.index(value)
        except TypeError:
            raise UsageError(f"{field}={value!r}: not a whole number; at least {least}") from None
        if number < least:
            raise UsageError(f"{field}={number}: too small; at least {least}")
        object.__setattr__(layer, field, number)


def check_total(**elements: int) -> None:
    """Refuse tensors whose bytes in fp32 no longer fit a signed 64-bit integer.

    Raises:
        UsageError: The sum over all tensors reaches 2**63 bytes.
    """
    total = sum(elements.values()) * _ITEMSIZE
    if total >= _LIMIT_BYTES:
        largest = max(elements, key=lambda role: elements[role])
        raise UsageError(
            f"sizes overflow: {total:.3g} bytes in fp32, most of them in {largest}; "
            f"at most 2**63 - 1 bytes"
        )


def check_pass(pass_: str, supported: tuple[str, ...], kind: str) -> None:
    """Refuse a pass that does not exist, or that this kind of layer does not have.

    Raises:
        UsageError: No such pass.
        UnsupportedError: The pass exists, but not for this kind.
    """
    if pass_ in supported:
        return
    if pass_ in PASSES:
        raise UnsupportedError(f"{pass_}: {kind} has no such pass; it has {', '.join(supported)}")
    choices = nearest(pass_, supported) or list(supported)
    raise UsageError(f"{pass_}: no such pass; nearest: {', '.join(choices)}")


def pair(value: Any, field: str) -> tuple[int, int]:
    """Read ``3`` or ``(3, 5)`` as (height, width).

    Raises:
        UsageError: Neither a number nor a pair.
    """
    if isinstance(value, (tuple, list)):
        if len(value) != 2:
            raise UsageError(f"{field}={value!r}: expected a number or a pair (height, width)")
        return value[0], value[1]
    return value, value


# -----------------------------------------------------------------------------
# What all kinds have in common, and what those with weights on top of it.


class Kind(abc.ABC):
    """A kind of layer.

    Beside what is here, a layer has ``batch``, ``name`` (how to call it in tables, or None),
    ``problem`` (its canonical descriptor), ``with_batch(batch)`` and, by pass, ``flops``,
    ``flops_executed`` and ``bytes``.

    Attributes:
        kind: What it is called in results.
        passes: Those that it has.
        multiply_adds: Whether its FLOPs are the multiply-adds that publications count.
        no_gpu: Why there is no native row of it on a GPU; empty where there may be one.
    """

    __slots__ = ()

    kind: ClassVar[str]
    multiply_adds: ClassVar[bool] = False
    no_gpu: ClassVar[str] = ""

    @abc.abstractmethod
    def shapes(self) -> dict[str, tuple[int, ...]]:
        """Return the shape of each tensor by role, in plain layouts (images are NCHW).

        A gradient goes by its tensor's role, and has its shape.
        """

    def other_shapes(self, role: str) -> tuple[tuple[int, ...], ...]:  # noqa: ARG002 - of kinds that have some
        """Return shapes in which a tensor of this role may be handed over as well."""
        return ()

    @abc.abstractmethod
    def reads(self, pass_: str, propagation: str = "inference") -> tuple[str, ...]:
        """Return the roles of what a pass reads.

        Args:
            pass_: One of its passes.
            propagation: ``inference`` or ``training``: which forward pass.
        """

    @abc.abstractmethod
    def writes(self, pass_: str, propagation: str = "inference") -> tuple[str, ...]:
        """Return the roles of what a pass writes, its main result first."""

    def in_float32(self, role: str) -> bool:  # noqa: ARG002 - of kinds that have such tensors
        """Whether a tensor is float32 whatever the precision."""
        return False

    def above_zero(self, role: str) -> bool:  # noqa: ARG002 - of kinds that have such tensors
        """Whether the elements of a tensor have to be above zero: that of a root, or a divisor."""
        return False

    @property
    def weight_elements(self) -> int:
        """Elements of what is trained; zero without weights."""
        return math.prod(self.shapes().get("weights", (0,)))

    def operands(self, pass_: str) -> dict[str, int]:
        """Return the elements of each tensor of a pass, by role; a gradient has its tensor's."""
        shapes = self.shapes()
        return {role: math.prod(shapes[role]) for role in (*self.reads(pass_), *self.writes(pass_))}

    def problem_fields(self) -> dict[str, Any]:
        """Return the fields of the native problem of this kind, by name: all but the name."""
        fields = dataclasses.fields(cast("Any", self))
        return {one.name: getattr(self, one.name) for one in fields if one.name != "name"}

    @classmethod
    @abc.abstractmethod
    def claims(cls, text: str, pool: str | None) -> bool:
        """Whether a descriptor, perhaps a malformed one, is of this kind.

        Args:
            text: The descriptor.
            pool: What pooling does, where the user said so.
        """

    @classmethod
    @abc.abstractmethod
    def parse(cls, text: str, pool: str | None) -> Self:
        """Read a descriptor that this kind claims.

        Args:
            text: The descriptor; without a batch it is of one image.
            pool: What pooling does, where the user said so.

        Raises:
            UsageError: Malformed (with the position), or a layer that cannot be.
        """


class Product(Kind):
    """A layer of a source, weights and a result, of which each pass computes one from the others.

    forward gives ``dst``, backward-data ``src``, backward-weights ``weights``.
    """

    __slots__ = ()

    passes: ClassVar[tuple[str, ...]] = PASSES
    multiply_adds: ClassVar[bool] = True

    def reads(self, pass_: str, propagation: str = "inference") -> tuple[str, ...]:
        """Return the two roles that a pass does not write."""
        (written,) = self.writes(pass_, propagation)
        return tuple(role for role in self.shapes() if role != written)

    def writes(self, pass_: str, propagation: str = "inference") -> tuple[str, ...]:  # noqa: ARG002 - alike in both
        """Return the one role that a pass writes."""
        check_pass(pass_, self.passes, self.kind)
        return (_RESULTS[pass_],)


def elements(shapes: Mapping[str, tuple[int, ...]]) -> dict[str, int]:
    """Return how many elements each of some tensors has."""
    return {role: math.prod(shape) for role, shape in shapes.items()}


# -----------------------------------------------------------------------------
# What both kinds of descriptor are made of: numbers, a name, and errors with a position.

_NUMBER: Final = re.compile(r"[0-9]+")
_SIGNED: Final = re.compile(r"[-+]?[0-9.]+")
_DIGITS: Final = 19  # 2**63 has nineteen


def malformed(position: int, expected: str, found: str) -> UsageError:
    """Return the error for the character at ``position`` (from 0; printed from 1)."""
    if len(found) > 12:
        found = found[:12] + "..."
    got = f"got {found!r}" if found else "got the end"
    return UsageError(f"column {position + 1}: {expected}; {got}")


def read_number(text: str, position: int, field: str, least: int) -> tuple[int, int]:
    """Read the digits at ``position``.

    Returns:
        The number and the position behind it.

    Raises:
        UsageError: No number, one below ``least``, or one beyond 63 bits.
    """
    match = _NUMBER.match(text, position)
    if match is None:
        signed = _SIGNED.match(text, position)
        found = signed.group() if signed else text[position:]
        raise malformed(position, f"expected a whole number for {field}, at least {least}", found)
    digits = match.group().lstrip("0") or "0"
    if len(digits) > _DIGITS:
        raise malformed(position, f"expected {field} below 2**63", match.group())
    number = int(digits)
    if number < least:
        raise malformed(position, f"expected {field} of at least {least}", match.group())
    return number, match.end()


def read_name(text: str, position: int) -> str:
    """Read ``n"..."`` or ``n...`` (a shell removes the quotes), which ends a descriptor.

    Raises:
        UsageError: An empty name, a missing closing quote, or text behind it.
    """
    start = position + 1
    if not text.startswith('"', start):
        if start == len(text):
            raise malformed(start, "expected a name", "")
        return text[start:]
    end = text.find('"', start + 1)
    if end < 0:
        raise malformed(len(text), "expected the closing quote of the name", "")
    if end == start + 1:
        raise malformed(end, "expected a name", text[end:])
    if end + 1 < len(text):
        raise malformed(end + 1, "expected nothing behind the name", text[end + 1 :])
    return text[start + 1 : end]


# -----------------------------------------------------------------------------
# Parameters of layers that are not whole numbers: checked, written and read without a loss.

_REAL: Final = re.compile(r"(?:[0-9]+(?:\.[0-9]*)?|\.[0-9]+)(?:e[-+]?[0-9]+)?")


def set_reals(layer: object, *fields: str, above_zero: bool = False) -> None:
    """Replace the named fields of a frozen layer by plain floats, finite and not negative.

    Args:
        layer: The layer.
        fields: Names of its fields.
        above_zero: Refuse zero too.

    Raises:
        UsageError: A field is not a number, infinite, or too small.
    """
    least = "above 0" if above_zero else "at least 0"
    for field in fields:
        value = getattr(layer, field)
        if isinstance(value, bool) or not isinstance(value, Real):
            raise UsageError(f"{field}={value!r}: not a number; {least}")
        number = float(value) + 0.0  # a negative zero becomes zero
        if not math.isfinite(number):
            raise UsageError(f"{field}={number}: not finite; {least}")
        if number < 0 or (above_zero and number == 0):
            raise UsageError(f"{field}={number!r}: too small; {least}")
        object.__setattr__(layer, field, number)


def spell(value: float) -> str:
    """Write a number as short as it can be read back: ``2``, ``0.75``, ``1e-05``."""
    return repr(value).removesuffix(".0")


def read_real(text: str, position: int, field: str) -> tuple[float, int]:
    """Read the number at ``position``.

    Returns:
        The number and the position behind it.

    Raises:
        UsageError: No number, or one beyond what a float holds.
    """
    match = _REAL.match(text, position)
    if match is None:
        raise malformed(position, f"expected a number for {field}, at least 0", text[position:])
    number = float(match.group())
    if not math.isfinite(number):
        raise malformed(position, f"expected a finite number for {field}", match.group())
    return number, match.end()
