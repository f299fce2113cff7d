"""Checks that every layer makes of its fields, with messages that say what would be valid."""

from __future__ import annotations

import operator
from typing import Any, Final

from pydlbench.errors import UnsupportedError, UsageError, nearest

__all__ = [
    "PASSES",
    "check_pass",
    "check_total",
    "pair",
    "set_integers",
]

PASSES: Final = ("forward", "backward-data", "backward-weights")

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
