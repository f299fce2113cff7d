"""Parameters of layers that are not whole numbers: checked, written and read without a loss."""

from __future__ import annotations

import math
import re
from numbers import Real
from typing import Final

from pydlbench.errors import UsageError
from pydlbench.layers.scan import malformed

__all__ = ["read_real", "set_reals", "spell"]

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
