"""What a library logged of whole steps, added up by primitive."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from pydlbench.backends.frameworks.verbose import total_s

if TYPE_CHECKING:
    from pydlbench.backends.frameworks.verbose import Execution

__all__ = ["summary"]


def summary(calls: list[list[Execution]]) -> dict[str, Any]:
    """Return seconds and executions by primitive of the call in the middle by its time.

    Args:
        calls: the executions of each of several equal calls.
    """
    if not calls or not all(calls):
        return {}
    middle = sorted(calls, key=total_s)[len(calls) // 2]
    seconds: dict[str, float] = {}
    number: dict[str, int] = {}
    for one in middle:
        seconds[one.primitive] = seconds.get(one.primitive, 0.0) + one.seconds
        number[one.primitive] = number.get(one.primitive, 0) + 1
    return {"seconds": seconds, "executions": number, "calls": len(calls)}
