"""The few things that timing on a GPU needs from PyTorch's CUDA runtime; tests put a fake in."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Any, Protocol

import torch

if TYPE_CHECKING:
    from collections.abc import Callable

__all__ = ["Event", "Graph", "Runtime", "kernel_names"]

_cuda: Any = torch.cuda  # partly without types
# Calls before a capture: cuDNN's benchmark mode and lazy loading must be done with by then.
_WARM_UP = 3
_COPIES = ("memcpy", "memset")
_NAME_LENGTH = 100


class Event(Protocol):
    """A point in the device's stream."""

    def record(self) -> None:
        """Put it into the stream here."""

    def elapsed_time(self, end: Any) -> float:
        """Return milliseconds until another one; both must have passed."""


class Graph(Protocol):
    """Captured calls."""

    def replay(self) -> None:
        """Launch them all at once."""


class Runtime:
    """PyTorch's CUDA runtime on the current device and stream."""

    def event(self) -> Event:
        """Return a new event that keeps its time."""
        event: Event = _cuda.Event(enable_timing=True)
        return event

    def wait(self) -> None:
        """Return when the device has done everything."""
        _cuda.synchronize()

    def sleep(self, seconds: float) -> None:
        """Keep the stream busy for about so long; the host goes on at once.

        The device counts cycles; at a clock below 2 GHz it sleeps a little longer.
        """
        _cuda._sleep(int(seconds * 2e9))  # noqa: SLF001 - what its own benchmarks use

    def now(self) -> float:
        """Return the host's time in seconds."""
        return time.perf_counter()

    def capture(self, call: Callable[[], Any], times: int) -> Graph:
        """Capture ``times`` calls; each one's result is dropped at once, as outside of a graph."""
        side = _cuda.Stream()
        side.wait_stream(_cuda.current_stream())
        with _cuda.stream(side):
            for _ in range(_WARM_UP):
                call()
        _cuda.current_stream().wait_stream(side)
        graph: Graph = _cuda.CUDAGraph()
        with _cuda.graph(graph):
            for _ in range(times):
                call()
        return graph


def kernel_names(call: Callable[[], Any]) -> list[str]:
    """Return the kernels of one call, the longest-running first; empty where CUPTI is refused."""
    try:
        with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CUDA]) as profile:
            call()
            _cuda.synchronize()
        events = [one for one in profile.events() or () if "CUDA" in str(one.device_type)]
    except RuntimeError:
        return []
    times: dict[str, float] = {}
    for event in events:
        if not event.name.lower().startswith(_COPIES):
            times[event.name] = times.get(event.name, 0.0) + event.device_time_total
    ranked = sorted(times, key=lambda name: -times[name])
    return list(dict.fromkeys(_short(name) for name in ranked))


def _short(name: str) -> str:
    """Strip a demangled name of its result and its template's arguments."""
    return name.removeprefix("void ").partition("<")[0].partition("(")[0][:_NAME_LENGTH]
