"""What timing on a GPU needs of Numba: events, a stream, and a sleep in it."""

from __future__ import annotations

import time
from typing import Any

from pydlbench.backends.numba.cuda.language import cuda, kernel

__all__ = ["Runtime"]

# The instruction sleeps for anything up to twice as long: many short naps come out on average.
_NAP_NS = 10_000


@kernel
def _sleep(naps: int) -> None:
    """Sleep so many times for ten microseconds."""
    for _ in range(naps):
        cuda.nanosleep(10_000)


class Runtime:
    """Numba's CUDA runtime on one stream."""

    def __init__(self, stream: Any) -> None:
        self._stream = stream

    def record(self) -> Any:
        """Put a new event into the stream and return it."""
        event = cuda.event()
        event.record(self._stream)
        return event

    def between(self, start: Any, end: Any) -> float:
        """Return the seconds between two events that have passed."""
        return float(start.elapsed_time(end)) / 1e3

    def wait(self) -> None:
        """Return when the stream is empty."""
        self._stream.synchronize()

    def sleep(self, seconds: float) -> None:
        """Keep the stream busy for about so long; the host goes on at once."""
        _sleep[1, 1, self._stream](int(seconds * 1e9) // _NAP_NS + 1)

    def now(self) -> float:
        """Return the host's time in seconds."""
        return time.perf_counter()
