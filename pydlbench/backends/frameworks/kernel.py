"""A framework's operator under the clock of the host."""

from __future__ import annotations

import gc
import time
from typing import TYPE_CHECKING

from pydlbench.backends.frameworks.counters import (
    OthersTime,
    StolenTime,
    WaitingThreads,
    involuntary_switches,
    page_faults,
)
from pydlbench.timing.chunk import Chunk

if TYPE_CHECKING:
    from collections.abc import Sequence

    from pydlbench.backends.frameworks.operator import Operator
    from pydlbench.timing.chunk import Request

__all__ = ["HostClock"]


class HostClock:
    """Times an operator with the host's monotonic clock, its counters read around each chunk.

    Inside the timed region stands a loop of plain calls and nothing else; what an iteration of that
    loop costs is known from an empty operator and subtracted nowhere.

    Args:
        operator: what is timed.
        cpus: those that the process is pinned to, for the account of stolen time.
    """

    def __init__(self, operator: Operator, cpus: Sequence[int]) -> None:
        self._operator = operator
        self._cpus = tuple(cpus)

    def sample(self, request: Request) -> Chunk:
        """Time the requested samples, after the calls that are not timed."""
        call, wait = self._operator.call, self._operator.wait
        for _ in range(request.untimed):
            call()
        wait()
        seconds: list[float] = []
        switches: list[int] = []
        inner = range(request.inner)
        # A collection in the middle of a sample is Python's, not the operator's.
        collecting = gc.isenabled()
        gc.disable()
        waiting, stolen, before = WaitingThreads(), StolenTime(self._cpus), page_faults()
        others = OthersTime(self._cpus)
        begin, used = time.monotonic(), time.process_time()
        try:
            for _ in range(request.samples):
                forced = involuntary_switches()
                start = time.perf_counter()
                for _ in inner:
                    call()
                wait()
                end = time.perf_counter()
                switches.append(involuntary_switches() - forced)
                seconds.append((end - start) / request.inner)
        finally:
            if collecting:
                gc.enable()
        taken = others.seconds()
        wall, used = time.monotonic() - begin, time.process_time() - used
        touched = page_faults() - before
        calls = request.samples * request.inner
        return Chunk(
            seconds=tuple(seconds),
            involuntary=tuple(switches),
            run_delay_s=waiting.longest_s(),
            steal_s=stolen.seconds(),
            wall_s=wall,
            threads=len(self._cpus),
            faults=touched / calls,
            cpu_s=used,
            others_s=taken,
        )
