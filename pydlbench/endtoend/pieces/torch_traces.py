"""The blocks that a part of PyTorch's step allocates, as PyTorch's profiler reports them."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch
from torch.profiler import ProfilerActivity, profile, record_function

if TYPE_CHECKING:
    from collections.abc import Mapping

__all__ = ["trace_all"]

# Tells spans of ours from the profiler's.
_MARK = "pydlbench|"


def trace_all(parts: Mapping[str, Any]) -> dict[str, list[int]]:
    """Run each part once under the profiler.

    Args:
        parts: by name; those without ``forward`` and ``backward`` work in place.

    Returns:
        By part, the bytes of each block that it allocates, in their order.
    """
    both_ways = {name: part for name, part in parts.items() if hasattr(part, "forward")}
    with profile(activities=[ProfilerActivity.CPU], profile_memory=True) as profiler:
        for name, part in both_ways.items():
            _run(name, part)
    spans, events = _collected(profiler)
    found: dict[str, list[int]] = {name: [] for name in parts}
    for name, (begin, end) in spans.items():
        found[name] = [size for moment, size in events if begin <= moment <= end]
    return found


def _run(name: str, part: Any) -> None:
    """Run a part; copies of operands that it overwrites are not its own."""
    with torch.set_grad_enabled(getattr(part, "differentiates", True)):
        tensors = part.ready()
        with record_function(f"{_MARK}{name}"):
            outputs = part.forward(tensors)
            wanted = any(one.requires_grad for one in outputs)
            gradients = part.backward(outputs) if wanted else ()
        del outputs, gradients


def _collected(
    profiler: Any,
) -> tuple[dict[str, tuple[int, int]], list[tuple[int, int]]]:
    """Return spans in nanoseconds by part, and (time, bytes) of all that is allocated."""
    spans: dict[str, tuple[int, int]] = {}
    events: list[tuple[int, int]] = []
    waiting = list(profiler.profiler.kineto_results.experimental_event_tree())
    while waiting:
        event = waiting.pop()
        kind, fields = event.typed
        if kind.name == "Allocation":
            if fields.alloc_size > 0:
                events.append((event.start_time_ns, fields.alloc_size))
        elif event.name.startswith(_MARK):
            spans[event.name.removeprefix(_MARK)] = event.start_time_ns, event.end_time_ns
        waiting += event.children
    return spans, sorted(events)
