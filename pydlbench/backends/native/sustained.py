"""Time, clock, power and energy of an execution when it runs for a second without pauses."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from typing import Any, Final, NamedTuple, Protocol

from pydlbench.backends.host_clock import Watcher
from pydlbench.errors import PrimitiveError, UnsupportedError

# The card updates its energy counter about every 100 ms, so ten times after the start, in which
# graphs are made and the clock settles.
_LOAD_S: Final = 1.2
_START_S: Final = 0.2


class EnergyMeter(Watcher, Protocol):
    """Reads a GPU including its energy counter: ``native.nvml.Monitor``."""

    def energy_j(self) -> float | None:
        """Return the counter in joules, right after an update; None if there is no counter."""


class Sustained(NamedTuple):
    """Properties of an execution, averaged over a second of executions; None if unknown.

    Attributes:
        sustained_s: time of one execution.
        sustained_hz: median clock of the multiprocessors.
        energy_j: energy of one execution.
        power_w: mean power of the GPU.
    """

    sustained_s: float | None = None
    sustained_hz: float | None = None
    energy_j: float | None = None
    power_w: float | None = None


def measure_sustained(
    run_for: Callable[[float], Mapping[str, Any]], meter: EnergyMeter
) -> Sustained:
    """Measure a second of executions without pauses.

    The energy counter is read during the executions, from one update to another. Readings before
    the first or after the last execution would include up to 100 ms of an idle GPU.

    Args:
        run_for: function that launches executions for a number of seconds, and returns
            ``executions`` and ``seconds``.
        meter: reads the GPU.
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
            return Sustained()  # the plan cannot be captured into the load's graph
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
