"""Checks of a memory-bound layer's sizes and parameters against its operation."""

from __future__ import annotations

from dataclasses import fields
from typing import TYPE_CHECKING, Any

from pydlbench.errors import UsageError, nearest
from pydlbench.layers.pointwise_ops import OPERATIONS, SPELLINGS

if TYPE_CHECKING:
    from pydlbench.layers.pointwise import Pointwise

__all__ = ["changed", "check_operation", "check_parameters", "check_sides"]


def check_operation(layer: Pointwise) -> None:
    """Refuse an operation that does not exist.

    Raises:
        UsageError: No such operation.
    """
    if layer.op not in OPERATIONS:
        choices = nearest(str(layer.op), OPERATIONS) or list(OPERATIONS)
        raise UsageError(f"op={layer.op!r}: no such operation; nearest: {', '.join(choices)}")


def check_sides(layer: Pointwise) -> None:
    """Refuse sizes that an operation has no use for, and channels that are not those joined.

    Raises:
        UsageError: A height or width of what is flat, a batch of weights, or other sources.
    """
    operation = OPERATIONS[layer.op]
    without = {"height": layer.height, "width": layer.width} if operation.flat else {}
    if operation.of_weights:
        without |= {"batch": layer.batch}
    for field, size in without.items():
        if size != 1:
            raise UsageError(f"{field}={size}: {layer.op} has none; nearest: 1")
    if layer.op != "concat":
        return
    if len(layer.sources) < 2 or min(layer.sources) < 1:
        raise UsageError(f"sources={layer.sources}: at least two, each of at least 1 channel")
    total = sum(layer.sources)
    if total != layer.channels:
        raise UsageError(f"channels={layer.channels}: not the sum of the sources; nearest: {total}")


def check_parameters(layer: Pointwise) -> None:
    """Refuse what is out of range, and what another operation has: it would be ignored.

    Raises:
        UsageError: A share above one, an even neighbourhood, or another operation's parameter.
    """
    for field in ("momentum", "keep", "mu"):
        if getattr(layer, field) > 1:
            raise UsageError(f"{field}={getattr(layer, field)!r}: too large; at most 1")
    if layer.local_size % 2 == 0:
        raise UsageError(
            f"local_size={layer.local_size}: has no middle; nearest: {layer.local_size + 1}"
        )
    own = OPERATIONS[layer.op].parameters
    choices = f"it has {', '.join(own)}" if own else "it has none"
    for field, value in changed(layer).items():
        if field not in own:
            raise UsageError(f"{field}={value!r}: {layer.op} has no such parameter; {choices}")


def changed(layer: Pointwise) -> dict[str, Any]:
    """Return the parameters that are not at their defaults, by field."""
    return {
        field.name: getattr(layer, field.name)
        for field in fields(layer)
        if field.name in (*SPELLINGS, "sources") and getattr(layer, field.name) != field.default
    }
