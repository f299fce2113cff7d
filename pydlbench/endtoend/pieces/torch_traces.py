"""What a part of PyTorch's step allocates, frees, saves for its backward pass, and returns.

PyTorch's profiler reports each allocation with its address. Storage is what counts: an output may
be a view of an input, a gradient may be the one that came in.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch
from torch.profiler import ProfilerActivity, profile, record_function

if TYPE_CHECKING:
    from collections.abc import Mapping

__all__ = ["trace_all"]


def trace_all(parts: Mapping[str, Any]) -> dict[str, Any]:
    """Run each part once under the profiler; returns its trace by name, JSON-able.

    A trace has ``forward`` and ``backward``, each a list of ``[block, bytes]`` (bytes below zero
    where it is freed), blocks numbered from 0 in the order of their allocation; and ``outputs``,
    ``saved``, ``input_gradients`` (one for each input, None where there is none) and
    ``parameter_gradients``: each a reference ``["in", input]``, ``["block", number]`` or
    ``["gradient", output]``, the one that came in.

    Args:
        parts: by name, with ``ready``, ``forward`` and ``backward``, or with ``run`` only.
    """
    seen: dict[str, dict[str, Any]] = {}
    with profile(activities=[ProfilerActivity.CPU], profile_memory=True) as profiler:
        for name, part in parts.items():
            seen[name] = _run(name, part)
    spans, events = _collected(profiler)
    return {name: _trace(name, one, spans, events) for name, one in seen.items()}


def _run(name: str, part: Any) -> dict[str, Any]:
    """Run a part and note the addresses of what comes in and goes out."""
    if not hasattr(part, "forward"):
        with record_function(f"{name}|forward"):
            part.run()
        return {}
    with torch.set_grad_enabled(getattr(part, "differentiates", True)):
        return _run_both_ways(name, part)


def _run_both_ways(name: str, part: Any) -> dict[str, Any]:
    saved: list[int] = []

    def keep(tensor: torch.Tensor) -> torch.Tensor:
        saved.append(_address(tensor))
        return tensor.detach()  # else an output would keep itself alive

    tensors = part.ready()
    gradients: Any = ()
    saving = torch.autograd.graph.saved_tensors_hooks(keep, lambda tensor: tensor)
    with saving, record_function(f"{name}|forward"):
        outputs = part.forward(tensors)
    seen: dict[str, Any] = {
        "inputs": [_address(one) for one in tensors],
        "outputs": [_address(one) for one in outputs],
        "saved": saved,
        "upstream": [
            None if one is None else _address(one) for one in getattr(part, "gradients", ())
        ],
    }
    if any(one.requires_grad for one in outputs):
        with record_function(f"{name}|backward"):
            gradients = part.backward(outputs)
    wanted = iter(gradients)
    seen["input_gradients"] = [
        _maybe(next(wanted, None)) if one.requires_grad else None for one in part.inputs
    ]
    seen["parameter_gradients"] = [_maybe(one) for one in wanted]
    return seen


def _collected(
    profiler: Any,
) -> tuple[dict[str, tuple[int, int]], list[tuple[int, int, int]]]:
    """Return spans in nanoseconds by marker, and (time, address, bytes) of all allocations."""
    spans: dict[str, tuple[int, int]] = {}
    events: list[tuple[int, int, int]] = []
    waiting = list(profiler.profiler.kineto_results.experimental_event_tree())
    while waiting:
        event = waiting.pop()
        kind, fields = event.typed
        if kind.name == "Allocation":
            events.append((event.start_time_ns, fields.ptr, fields.alloc_size))
        elif "|" in event.name:
            spans[event.name] = event.start_time_ns, event.end_time_ns
        waiting += event.children
    return spans, sorted(events, key=lambda one: one[0])


def _trace(
    name: str,
    seen: dict[str, Any],
    spans: dict[str, tuple[int, int]],
    events: list[tuple[int, int, int]],
) -> dict[str, Any]:
    blocks = _Blocks(events)

    def references(addresses: Any, *known: str) -> list[list[Any] | None]:
        return [_reference(one, blocks, seen, known) for one in addresses]

    trace: dict[str, Any] = {"forward": blocks.within(spans.get(f"{name}|forward"))}
    trace["outputs"] = references(seen.get("outputs", ()), "inputs")
    kept = references(dict.fromkeys(seen.get("saved", ())), "inputs")
    trace["saved"] = [one for one in kept if one is not None]
    trace["backward"] = blocks.within(spans.get(f"{name}|backward"))
    for role in ("input_gradients", "parameter_gradients"):
        trace[role] = references(seen.get(role, ()), "upstream", "inputs")
    return trace


class _Blocks:
    """Numbers blocks in the order of their allocation."""

    def __init__(self, events: list[tuple[int, int, int]]) -> None:
        self._events = events
        self._count = 0
        self.live: dict[int, int] = {}  # by address

    def within(self, span: tuple[int, int] | None) -> list[list[int]]:
        """Return the events of a span."""
        found: list[list[int]] = []
        for moment, address, size in self._events:
            if span is None or not span[0] <= moment <= span[1]:
                continue
            if size > 0:
                self.live[address] = self._count
                self._count += 1
                found.append([self.live[address], size])
            elif address in self.live:
                found.append([self.live.pop(address), size])
        return found


def _reference(
    address: int | None, blocks: _Blocks, seen: dict[str, Any], known: tuple[str, ...]
) -> list[Any] | None:
    if address is None:
        return None
    if address in blocks.live:
        return ["block", blocks.live[address]]
    for role in known:
        if address in seen.get(role, ()):
            return [{"inputs": "in", "upstream": "gradient"}[role], seen[role].index(address)]
    return None


def _address(tensor: torch.Tensor) -> int:
    address: int = tensor.untyped_storage().data_ptr()
    return address


def _maybe(tensor: torch.Tensor | None) -> int | None:
    return None if tensor is None else _address(tensor)
