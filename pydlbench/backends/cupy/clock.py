"""CuPy's operators under CUDA events: launched one by one, or in a graph where they can be."""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol

from pydlbench.backends.frameworks.events import EventClock, EventRuntime, Watcher
from pydlbench.backends.frameworks.operator import Operator

if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Any

__all__ = ["CupyClock", "CupyTimed", "GraphRuntime"]


class GraphRuntime(EventRuntime, Protocol):
    """A runtime that can also capture."""

    def capture(self, call: Callable[[], Any], times: int) -> Callable[[], None]:
        """Capture calls and return what launches them all."""


class CupyTimed(Operator, Protocol):
    """An operator that says how it wants to be timed.

    Attributes:
        timing: ``events`` or ``cuda-graph``.
    """

    timing: str

    def settle(self) -> None:
        """Set what is global in CuPy as this operator needs it, before a chunk of samples."""

    def again(self) -> None:
        """Run it once into the results of an earlier call; allocates nothing."""


class CupyClock(EventClock):
    """Times an operator between events.

    Args:
        operator: what is timed; says whether in a graph.
        runtime: of CuPy.
        watcher: of the GPU; None where nobody watches.
    """

    def __init__(
        self, operator: CupyTimed, runtime: GraphRuntime, watcher: Watcher | None = None
    ) -> None:
        super().__init__(operator, runtime, watcher)
        self.timing = operator.timing
        self._timed = operator
        self._captures = runtime
        self._graphs: dict[int, Callable[[], None]] = {}

    def seconds(self, samples: int, inner: int, untimed: int) -> list[float]:
        """Return seconds per call, one for each sample of ``inner`` calls."""
        self._timed.settle()
        if self.timing != "cuda-graph":
            return super().seconds(samples, inner, untimed)
        if inner not in self._graphs:
            self._graphs.clear()
            self._graphs[inner] = self._captures.capture(self._timed.again, inner)
        launch = self._graphs[inner]
        for _ in range(1 + untimed // inner):
            launch()
        return self.spans(samples, inner, 0.0, launch)
