"""Time between events on a GPU, for frameworks that are given no gate of ours.

Before each sample the stream is put to sleep for as long as the host needs to launch what follows:
the device finds all of it in its queue, and the host's launches are hidden. A sleep needs no flag
that somebody must set, so nothing can hang. Where the host is slower than the sleep, the gaps show.

Knows no framework: what it needs of one comes as a runtime, and tests put in a fake.
"""

from __future__ import annotations

from contextlib import nullcontext
from typing import TYPE_CHECKING, Any, Protocol

from pydlbench.backends.host_clock import HostClock
from pydlbench.timing.chunk import Chunk

if TYPE_CHECKING:
    from collections.abc import Callable
    from contextlib import AbstractContextManager

    from pydlbench.backends.host_clock import Operator, Watcher
    from pydlbench.timing.chunk import Request

# The sleep is as long as the launches took, and so much more.
_SLEEP_FACTOR = 1.5
_SLEEP_LEAST_S = 50e-6
_SLEEP_MOST_S = 0.5
#: Launches from which the host's cost of one is taken.
_LAUNCHES = 10


class EventRuntime(Protocol):
    """What timing needs of a framework: its stream, events in it, and the host's clock."""

    def record(self) -> Any:
        """Put a new event into the stream and return it."""

    def between(self, start: Any, end: Any) -> float:
        """Return the seconds between two events that have passed."""

    def wait(self) -> None:
        """Return when the stream is empty."""

    def sleep(self, seconds: float) -> None:
        """Keep the stream busy for about so long; the host goes on at once."""

    def now(self) -> float:
        """Return the host's time in seconds."""


class GraphRuntime(EventRuntime, Protocol):
    """What timing whole steps needs besides: graphs, and the count of the driver's blocks."""

    def capture(self, call: Callable[[], Any], times: int) -> Any:
        """Return a graph of so many calls, whose ``replay`` puts them into the stream."""

    def allocations(self) -> int:
        """Return how many blocks the driver was asked for until now."""


class EventClock(HostClock):
    """Times an operator between events.

    Args:
        operator: what is timed.
        runtime: of its framework.
        watcher: of the GPU; None where nobody watches.
        guard: see :class:`HostClock`.
    """

    timing: str = "events"

    def __init__(
        self,
        operator: Operator,
        runtime: EventRuntime,
        watcher: Watcher | None = None,
        guard: Callable[[], AbstractContextManager[Any]] = nullcontext,
    ) -> None:
        super().__init__(operator, (), guard, watcher)
        self._call = operator.call
        self._runtime = runtime
        self._launch_s: float | None = None
        # Of the chunk that is taken, what the host needed for each of its samples.
        self._enqueued: list[float] = []

    def timed(self, request: Request) -> Chunk:
        """Do what :meth:`sample` does, within the guard."""
        begin = self._runtime.now()
        self._enqueued.clear()
        seconds = self.seconds(request.samples, request.inner, request.untimed)
        return Chunk(
            seconds=tuple(seconds),
            enqueue_s=tuple(self._enqueued),
            wall_s=self._runtime.now() - begin,
        )

    def seconds(self, samples: int, inner: int, untimed: int) -> list[float]:
        """Return seconds per call, one for each sample of ``inner`` calls."""
        for _ in range(untimed):
            self._call()
        return self.spans(samples, inner, self.pause_s(inner), lambda: self._many(inner))

    def pause_s(self, inner: int) -> float:
        """Return how long the device sleeps while so many calls are launched."""
        return min(self.launch_s * inner * _SLEEP_FACTOR + _SLEEP_LEAST_S, _SLEEP_MOST_S)

    def spans(
        self, samples: int, inner: int, pause: float, launch: Callable[[], None]
    ) -> list[float]:
        """Return seconds per call of what ``launch`` puts into the stream, behind a sleep."""
        found = []
        for _ in range(samples):
            self._runtime.sleep(pause)
            start = self._runtime.record()
            begin = self._runtime.now()
            launch()
            self._enqueued.append((self._runtime.now() - begin) / inner)
            end = self._runtime.record()
            self._runtime.wait()  # else the queue fills up, and later launches wait for room
            found.append(self._runtime.between(start, end) / inner)
        return found

    def _many(self, inner: int) -> None:
        for _ in range(inner):
            self._call()

    @property
    def launch_s(self) -> float:
        """What the host needs to launch one call; measured once, the device being idle."""
        if self._launch_s is None:
            self._call()  # loads what is loaded lazily
            self._runtime.wait()
            start = self._runtime.now()
            self._many(_LAUNCHES)
            self._launch_s = (self._runtime.now() - start) / _LAUNCHES
            self._runtime.wait()
        return self._launch_s
