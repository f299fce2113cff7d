"""What an execution takes among a second of them in a row: time, clock, power and energy of it."""

from __future__ import annotations

import time
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING, Any, Final, NamedTuple, Protocol

from pydlbench.errors import PrimitiveError, UnsupportedError

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from pydlbench.timing.chunk import GpuReadings

# The card updates its energy counter about every 100 ms, and so ten times in the load behind its
# start, while which graphs are made and the clock finds its place.
_LOAD_S: Final = 1.2
_START_S: Final = 0.2


class EnergyMeter(Protocol):
    """Reads a GPU, its counter of energy too: ``native.nvml.Monitor``."""

    def mark(self) -> float:
        """Start."""

    def since(self, mark: float) -> GpuReadings | None:
        """Return what was read since then."""

    def energy_j(self) -> float | None:
        """Return the counter in joules, just when it has moved; None where nobody counts."""


class Sustained(NamedTuple):
    """An execution among a second of them in a row; None of what nobody tells.

    Attributes:
        sustained_s: seconds of it.
        sustained_hz: the multiprocessors' clock, the median.
        energy_j: of it.
        power_w: the mean.
    """

    sustained_s: float | None = None
    sustained_hz: float | None = None
    energy_j: float | None = None
    power_w: float | None = None


def sustained(run_for: Callable[[float], Mapping[str, Any]], meter: EnergyMeter) -> Sustained:
    """Return what a second of executions in a row takes.

    The counter of energy is read beside the executions, from one of its steps to another: from
    before the first one to a step after the last one it would count up to 100 ms of an idle GPU
    too.

    Args:
        run_for: launches executions back to back for so many seconds, and returns how many
            ``executions`` it were in how many ``seconds``.
        meter: of the GPU.
    """
    steps: list[tuple[float, float]] = []
    mark = meter.mark()
    with ThreadPoolExecutor(max_workers=1) as pool:
        load = pool.submit(run_for, _LOAD_S)
        time.sleep(_START_S)
        while not load.done():
            joules = meter.energy_j()
            now = time.monotonic()
            if joules is None:
                break
            if not load.done():
                steps.append((joules, now))
        try:
            steady = load.result()
        except (PrimitiveError, UnsupportedError):
            return Sustained()  # the load is a graph, which the plan may not be captured into
        finally:
            readings = meter.since(mark)
    if not steady["executions"]:
        return Sustained()
    seconds = steady["seconds"] / steady["executions"]
    clock_hz = None if readings is None else readings.sm_clock_hz
    if len(steps) < 2:
        return Sustained(seconds, clock_hz)
    watts = (steps[-1][0] - steps[0][0]) / (steps[-1][1] - steps[0][1])
    return Sustained(seconds, clock_hz, watts * seconds, watts)
