"""The fields of an op: names, defaults, spelling in descriptors, and valid values."""

from __future__ import annotations

import math
import operator
from dataclasses import dataclass
from numbers import Real
from typing import Any, Final

from pydlbench.errors import UsageError, nearest

#: Letters of the spatial sides; fewer sides are the last ones.
SIDES: Final = "dhw"
#: Default of a required field.
REQUIRED: Final = object()
#: Maximum number of dimensions. oneDNN supports twelve; with adjacent ones merged, six are enough.
MAX_DIMENSIONS: Final = 6


@dataclass(frozen=True, slots=True, kw_only=True)
class Field:
    """One field of an op.

    Attributes:
        name: Name of the layer's attribute.
        spelling: Text before the value in descriptors; empty if they do not contain the field.
        type: ``integer``; ``sides``, an integer for each spatial side, outermost first; ``real``,
            finite and not negative; ``signed``, any finite number; ``shape``, a tensor's sizes;
            ``sum``, integers that are written ``64+32``; ``order``, digits; ``word``; ``flag``.
        default: Default value; None if it follows from other fields.
        minimum: The smallest value of an integer, real, side or size.
        maximum: The largest value of an integer or real.
        above: Whether a real has to be above ``minimum``.
        choices: Valid words.
        offset: Difference to the number in descriptors; benchdnn counts dilations from zero.
        shown: Whether descriptors contain the field with its default value, too.
        derived: Whether the field always follows from other fields, and is not stored.
    """

    name: str
    spelling: str = ""
    type: str = "integer"
    default: Any = REQUIRED
    minimum: int = 1
    maximum: float = math.inf
    above: bool = False
    choices: tuple[str, ...] = ()
    offset: int = 0
    shown: bool = False
    derived: bool = False

    def check(self, value: Any) -> Any:
        """Return a valid value as plain ints, floats and tuples.

        Integers of other libraries, such as NumPy, are accepted. Floats and booleans are not, since
        a silently changed size would be timed instead of the requested one.

        Raises:
            UsageError: The value is invalid.
        """
        if value is None and self.default is None:
            return None
        return _CHECKS[self.type](self, value)

    def error(self, value: object, reason: str) -> UsageError:
        """Return the error for an invalid value."""
        return UsageError(f"{self.name}={value!r}: {reason}")


def _integer(field: Field, value: Any) -> int:
    try:
        if isinstance(value, bool):
            raise TypeError
        number = operator.index(value)
    except TypeError:
        raise field.error(value, f"not a whole number; at least {field.minimum}") from None
    if number < field.minimum:
        raise field.error(value, f"too small; at least {field.minimum}")
    if number > field.maximum:
        raise field.error(value, f"too large; at most {field.maximum:.0f}")
    return number


def _sides(field: Field, value: Any) -> tuple[int | None, ...]:
    optional = field.default is None
    return tuple(None if side is None and optional else _integer(field, side) for side in value)


def _real(field: Field, value: Any) -> float:
    bound = f"{'above' if field.above else 'at least'} {field.minimum}"
    if isinstance(value, bool) or not isinstance(value, Real):
        raise field.error(value, f"not a number; {bound}")
    number = float(value) + 0.0  # a negative zero becomes zero
    if not math.isfinite(number):
        raise field.error(value, f"not finite; {bound}")
    if field.type == "real":
        if number < field.minimum or (field.above and number == field.minimum):
            raise field.error(value, f"too small; {bound}")
        if number > field.maximum:
            raise field.error(value, f"too large; at most {field.maximum:g}")
    return number


def _sizes(field: Field, value: Any) -> tuple[int, ...]:
    try:
        sizes = tuple(operator.index(size) for size in value)
    except TypeError:
        raise field.error(value, "not a shape; nearest: a list of sizes") from None
    if len(sizes) > MAX_DIMENSIONS and field.type == "shape":
        raise field.error(sizes, f"too many dimensions; at most {MAX_DIMENSIONS}")
    if min(sizes, default=field.minimum) < field.minimum:
        raise field.error(sizes, f"too small; each at least {field.minimum}")
    return sizes


def _word(field: Field, value: Any) -> str:
    if value not in field.choices:
        choices = nearest(str(value), field.choices) or field.choices
        raise field.error(value, f"no such {field.name}; nearest: {', '.join(choices)}")
    return str(value)


def _flag(field: Field, value: Any) -> bool:
    if value not in (True, False):
        raise field.error(value, "neither true nor false")
    return bool(value)


_CHECKS: Final = {
    "integer": _integer,
    "sides": _sides,
    "real": _real,
    "signed": _real,
    "shape": _sizes,
    "sum": _sizes,
    "order": _sizes,
    "word": _word,
    "flag": _flag,
}


def format_value(field: Field, value: Any) -> str:
    """Return the text of a field's value in descriptors."""
    if field.type in ("real", "signed"):
        return repr(float(value)).removesuffix(".0")  # shortest exact text: 2, 0.75, 1e-05
    if field.type == "sum":
        return "+".join(map(str, value))
    if field.type == "order":
        return "".join(map(str, value))
    return str(int(value) - field.offset) if isinstance(value, int) else str(value)
