"""An operator under the clock of the host, with the system's counters around its samples.

The native module reads the same counters around its own samples. Absence is normal: what a system
does not count is zero.
"""

from __future__ import annotations

import gc
import os
import resource
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

from pydlbench.timing.chunk import Chunk

if TYPE_CHECKING:
    from collections.abc import Collection, Sequence

    from numpy.typing import NDArray

    from pydlbench.timing.chunk import Request

__all__ = [
    "HostClock",
    "Operator",
    "OthersTime",
    "StolenTime",
    "WaitingThreads",
    "involuntary_switches",
    "page_faults",
]

_TASKS = Path("/proc/self/task")
_STAT = Path("/proc/stat")


def involuntary_switches() -> int:
    """Return how often threads of this process were taken off their CPU until now."""
    return resource.getrusage(resource.RUSAGE_SELF).ru_nivcsw


def page_faults() -> int:
    """Return how often this process touched fresh memory until now; disk reads are not counted."""
    return resource.getrusage(resource.RUSAGE_SELF).ru_minflt


class WaitingThreads:
    """Run-queue waits from its making on, of the thread of this process that waited most."""

    def __init__(self) -> None:
        self._before = _delays()

    def longest_s(self) -> float:
        """Return the longest wait since, in seconds; a thread that is new counts from zero."""
        waits = [delay - self._before.get(task, 0) for task, delay in _delays().items()]
        return max(0, *waits, 0) / 1e9


class StolenTime:
    """Time that the hypervisor took from some CPUs, from its making on.

    Args:
        cpus: their numbers.
    """

    def __init__(self, cpus: Collection[int]) -> None:
        self._names = {f"cpu{cpu}" for cpu in cpus}
        self._before = self._ticks()

    def seconds(self) -> float:
        """Return the stolen time since, summed over the CPUs."""
        return max(0, self._ticks() - self._before) / os.sysconf("SC_CLK_TCK")

    def _ticks(self) -> int:
        try:
            lines = _STAT.read_text().splitlines()
        except OSError:
            return 0
        fields = (line.split() for line in lines)
        return sum(int(one[8]) for one in fields if len(one) > 8 and one[0] in self._names)


class OthersTime:
    """CPU time that other processes spend on some CPUs, from its making on.

    The system counts what a CPU does in ticks; this process's own time is known exactly.

    Args:
        cpus: their numbers.
    """

    def __init__(self, cpus: Collection[int]) -> None:
        self._names = {f"cpu{cpu}" for cpu in cpus}
        self._before = self._busy()
        self._own = time.process_time()

    def seconds(self) -> float | None:
        """Return their time since, summed over the CPUs; None where the system does not count.

        Ticks at both ends are whole ones: the result may be too small, and negative.
        """
        now = self._busy()
        if now is None or self._before is None:
            return None
        own = time.process_time() - self._own
        return (now - self._before) / os.sysconf("SC_CLK_TCK") - own

    def _busy(self) -> int | None:
        """Ticks in user mode, niced or not, in the system and in interrupts."""
        try:
            lines = _STAT.read_text().splitlines()
        except OSError:
            return None
        fields = [line.split() for line in lines]
        found = [one for one in fields if len(one) > 7 and one[0] in self._names]
        if not found:
            return None
        return sum(int(one[i]) for one in found for i in (1, 2, 3, 6, 7))


def _delays() -> dict[str, int]:
    """Nanoseconds that each thread spent waiting for a CPU."""
    found: dict[str, int] = {}
    try:
        tasks = list(_TASKS.iterdir())
    except OSError:
        return found
    for task in tasks:
        try:
            found[task.name] = int((task / "schedstat").read_text().split()[1])
        except (OSError, IndexError, ValueError):
            continue  # the thread has ended, or the kernel does not count
    return found


class Operator(Protocol):
    """A framework's operator, built and compiled, with its operands in place."""

    def call(self) -> Any:
        """Run it once, as a user's line of code would, its outputs' allocation included.

        Whatever it returns is dropped by the caller at once, as in a loop of a user's.
        """

    def wait(self) -> None:
        """Return when everything that was called is done; costs nothing where calls are."""

    def outputs(self) -> dict[str, NDArray[Any]]:
        """Run it once and return what it wrote, by role, as float32 in plain layouts.

        An image is NCHW, convolution weights are ``(out channels, in channels / groups, kernel
        height, kernel width)``, matrices are ``(batch, rows, columns)``. The main result comes
        first.
        """


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
