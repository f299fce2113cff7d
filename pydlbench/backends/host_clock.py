"""An operator under the clock of the host, with the system's counters around its samples.

The native module reads the same counters around its own samples. Absence is normal: what a system
does not count is zero.
"""

from __future__ import annotations

import contextlib
import gc
import os
import resource
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol, Self

import msgspec

from pydlbench.timing.chunk import Chunk
from pydlbench.timing.guards import disturbance

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from numpy.typing import NDArray

    from pydlbench.timing.chunk import GpuReadings, Request

_TASKS = Path("/proc/self/task")
_STAT = Path("/proc/stat")
# Columns of a CPU's line in /proc/stat: user, nice, system, interrupts of both kinds; stolen.
_BUSY = (1, 2, 3, 6, 7)
_STOLEN = 8


def page_faults() -> int:
    """Return how often this process touched fresh memory until now; disk reads are not counted."""
    return resource.getrusage(resource.RUSAGE_SELF).ru_minflt


class Account:
    """What the system counts while the samples of a chunk are taken within it.

    Python collects no garbage meanwhile: in the middle of a sample that would be Python's time, not
    the operator's.

    Args:
        cpus: those that the process is pinned to.

    Attributes:
        faults: how often fresh memory was touched, once it is left.
    """

    def __init__(self, cpus: Sequence[int]) -> None:
        self.faults = 0
        self._cpus = tuple(cpus)
        self._names = {f"cpu{cpu}" for cpu in cpus}
        self._counted: dict[str, Any] = {}

    def __enter__(self) -> Self:
        """Begin to count."""
        self._collecting = gc.isenabled()
        gc.disable()
        self._delays, self._ticks = _delays(), self._of_cpus()
        self._usage = resource.getrusage(resource.RUSAGE_SELF)
        self._begin, self._used = time.monotonic(), time.process_time()
        return self

    def __exit__(self, *error: object) -> None:
        """Count what has happened since."""
        wall, used = time.monotonic() - self._begin, time.process_time() - self._used
        if self._collecting:
            gc.enable()
        usage = resource.getrusage(resource.RUSAGE_SELF)
        self.faults = usage.ru_minflt - self._usage.ru_minflt
        # A thread that is new counts from zero.
        waits = [delay - self._delays.get(task, 0) for task, delay in _delays().items()]
        busy, stolen = (
            (after - before) / os.sysconf("SC_CLK_TCK")
            for before, after in zip(self._ticks, self._of_cpus(), strict=True)
        )
        self._counted = {
            "run_delay_s": max(0, *waits, 0) / 1e9,
            "steal_s": max(0.0, stolen),
            "wall_s": wall,
            "cpu_s": used,
            "voluntary": usage.ru_nvcsw - self._usage.ru_nvcsw,
            "involuntary": usage.ru_nivcsw - self._usage.ru_nivcsw,
            # Ticks at both ends are whole ones, and this process's own time is known exactly: the
            # difference may be too small, and negative.
            "others_s": busy - used if self._ticks[0] else None,
        }

    def chunk(self, seconds: Sequence[float], *, faults: float) -> Chunk:
        """Return the samples with what was counted around them; see :class:`Chunk`.

        Args:
            seconds: the samples.
            faults: page faults per execution.
        """
        return Chunk(
            seconds=tuple(seconds),
            threads=len(self._cpus),
            faults=faults,
            **self._counted,
        )

    def _of_cpus(self) -> tuple[int, int]:
        """Return ticks that the CPUs were busy, and stolen ones; zeros where nobody counts."""
        try:
            lines = _STAT.read_text().splitlines()
        except OSError:
            return 0, 0
        rows = [
            fields for line in lines if (fields := line.split())[:1] and fields[0] in self._names
        ]
        rows = [fields for fields in rows if len(fields) > _STOLEN]
        return (
            sum(int(fields[column]) for fields in rows for column in _BUSY),
            sum(int(fields[_STOLEN]) for fields in rows),
        )


def _delays() -> dict[str, int]:
    """Nanoseconds that each thread spent waiting for a CPU."""
    counts: dict[str, int] = {}
    try:
        tasks = list(_TASKS.iterdir())
    except OSError:
        return counts
    for task in tasks:
        try:
            counts[task.name] = int((task / "schedstat").read_text().split()[1])
        except (OSError, IndexError, ValueError):
            continue  # the thread has ended, or the kernel does not count
    return counts


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


class Watcher(Protocol):
    """Reads a GPU while samples are taken."""

    def mark(self) -> float:
        """Start."""

    def since(self, mark: float) -> GpuReadings | None:
        """Return what was read since then."""


def watched(
    take: Callable[[], Chunk],
    guard: Callable[[], contextlib.AbstractContextManager[Any]],
    watcher: Watcher | None,
) -> Chunk:
    """Take a chunk within a guard, with what was read of the GPU meanwhile.

    Args:
        take: the chunk.
        guard: makes the context in which it is taken.
        watcher: reads the GPU; None where there is none, or nobody watches.
    """
    with guard():
        if watcher is None:
            return take()
        mark = watcher.mark()
        chunk = take()
        readings = watcher.since(mark)
    clock = None if readings is None else readings.sm_clock_hz
    return msgspec.structs.replace(
        chunk,
        gpu=readings,
        disturbance=disturbance(readings),
        clock_hz=chunk.clock_hz or ((clock,) if clock else ()),
    )


class HostClock:
    """Times an operator with the host's monotonic clock, its counters read around each chunk.

    Inside the timed region stands a loop of plain calls and nothing else; what an iteration of that
    loop costs is known from an empty operator and subtracted nowhere.

    Args:
        operator: what is timed.
        cpus: those that the process is pinned to, for the account of stolen time.
        guard: makes the context in which it is to be called, entered once for each chunk.
        watcher: reads the GPU that it runs on; None where there is none, or nobody watches.
    """

    def __init__(
        self,
        operator: Operator,
        cpus: Sequence[int],
        guard: Callable[[], contextlib.AbstractContextManager[Any]] = contextlib.nullcontext,
        watcher: Watcher | None = None,
    ) -> None:
        self._operator = operator
        self._cpus = tuple(cpus)
        self._guard = guard
        self._watcher = watcher
        self._now: Callable[[], float] = time.perf_counter

    def sample(self, request: Request) -> Chunk:
        """Time the requested samples, after the calls that are not timed."""
        return watched(lambda: self.timed(request), self._guard, self._watcher)

    def timed(self, request: Request) -> Chunk:
        """Do what :meth:`sample` does, within the guard."""
        call, wait, now = self._operator.call, self._operator.wait, self._now
        for _ in range(request.untimed):
            call()
        wait()
        seconds: list[float] = []
        inner = range(request.inner)
        with Account(self._cpus) as account:
            for _ in range(request.samples):
                start = now()
                for _ in inner:
                    call()
                wait()
                end = now()
                seconds.append((end - start) / request.inner)
        calls = request.samples * request.inner
        return account.chunk(seconds, faults=account.faults / calls)
