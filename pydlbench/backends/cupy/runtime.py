"""What timing on a GPU needs of CuPy: events, a stream, a sleep in it, graphs."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Any

import cupy

from pydlbench.backends.cupy.kernels import SLEEP

if TYPE_CHECKING:
    from collections.abc import Callable

__all__ = ["Runtime"]


class Runtime:
    """CuPy's CUDA runtime on one stream, which becomes this thread's current one.

    It must not be the default stream, which cannot be captured.
    """

    def __init__(self) -> None:
        self._stream = cupy.cuda.Stream(non_blocking=True)
        self._stream.use()
        self._sleep = cupy.RawKernel(SLEEP, "sleep")

    def record(self) -> Any:
        """Put a new event into the stream and return it."""
        event = cupy.cuda.Event()
        event.record(self._stream)
        return event

    def between(self, start: Any, end: Any) -> float:
        """Return the seconds between two events that have passed."""
        return float(cupy.cuda.get_elapsed_time(start, end)) / 1e3

    def wait(self) -> None:
        """Return when the stream is empty."""
        self._stream.synchronize()

    def sleep(self, seconds: float) -> None:
        """Keep the stream busy for about so long; the host goes on at once."""
        self._sleep((1,), (1,), (cupy.uint64(int(seconds * 1e9)),))

    def now(self) -> float:
        """Return the host's time in seconds."""
        return time.perf_counter()

    def capture(self, call: Callable[[], Any], times: int) -> Callable[[], None]:
        """Capture ``times`` calls, which must not allocate; return what launches them all."""
        call()  # what is compiled and loaded lazily
        self.wait()
        self._stream.begin_capture()
        try:
            for _ in range(times):
                call()
        finally:
            graph = self._stream.end_capture()
        return lambda: graph.launch(self._stream)
