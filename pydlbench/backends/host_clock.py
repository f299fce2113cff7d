"""Time an operator by the host's clock, with the system's counters around its samples.

The native module reads the same counters around its own samples. A counter that the system does not
have is zero.
"""

import contextlib
import gc
import os
import resource
import sys
import time
from collections.abc import Callable, Collection, Sequence
from pathlib import Path
from typing import Any, Protocol, Self, TypeVar

import msgspec
from numpy.typing import NDArray

from pydlbench.devices.cpu.facts import read_text
from pydlbench.errors import RefusedKernelError, UnsupportedError
from pydlbench.timing.chunk import Chunk, ChunkRequest, GpuReadings
from pydlbench.timing.guards import gpu_disturbance

# Bound before the code of users is imported, which may replace it in the module.
_NOW = time.perf_counter
_PROFILE, _TRACE = sys.setprofile, sys.settrace
T = TypeVar("T")
_TASKS = Path("/proc/self/task")
_STAT = Path("/proc/stat")
# Columns of a CPU's line in /proc/stat: user, nice, system, irq, softirq; steal.
_BUSY = (1, 2, 3, 6, 7)
_STOLEN = 8


def page_faults() -> int:
    """Return the number of minor page faults (first uses of memory) of this process so far."""
    return resource.getrusage(resource.RUSAGE_SELF).ru_minflt


_sealed: list[tuple[Any, str, Any, Any]] = []


def seal(owner: Any, *names: str) -> None:
    """Register functions of a module or class, which a user's code must not replace."""
    for name in names:
        function = vars(owner)[name]
        _sealed.append((owner, name, function, getattr(function, "__code__", None)))


def sealed(owner: type[T]) -> type[T]:
    """Register the methods of a class."""
    seal(owner, *(name for name, method in vars(owner).items() if hasattr(method, "__code__")))
    return owner


def check_sealed(*judges: object) -> None:
    """Refuse code that has replaced a function by which it is timed or verified.

    Args:
        judges: objects whose own attributes must not hide the methods of their classes.

    Raises:
        RefusedKernelError: names the function.
    """
    for owner, name, function, code in _sealed:
        hidden = any(type(judge) is owner and name in vars(judge) for judge in judges)
        same = vars(owner).get(name) is function and getattr(function, "__code__", None) is code
        if hidden or not same:
            raise RefusedKernelError(f"its code replaces {owner.__name__}.{name}, which judges it")
    for judge in judges:
        if type(judge) not in {owner for owner, *_ in _sealed}:
            raise RefusedKernelError("its code replaces an object that judges it")


seal(sys.modules[__name__], "_NOW", "_PROFILE", "_TRACE")


def refuse_monitoring() -> None:
    """Let no code of this process register hooks of ``sys.monitoring`` (Python 3.12) from now on.

    A hook is called by code of others, such as that which copies a result after the clock. To
    unregister one is no error, and does nothing: earlier hooks stay until their events are off.
    """

    def refused(_tool: int, _event: int, hook: object) -> None:
        if hook is not None:
            raise RefusedKernelError("its code registers a hook of sys.monitoring")

    if (monitoring := getattr(sys, "monitoring", None)) is not None:
        vars(monitoring)["register_callback"] = refused


@sealed
class HostCounters:
    """Context that reads the system's counters around the samples of a chunk.

    Garbage collection is off within the context, because its time is not the operator's.

    Args:
        cpus: CPUs that the process is pinned to.

    Attributes:
        faults: number of minor page faults; valid after the context.
    """

    def __init__(self, cpus: Sequence[int]) -> None:
        self.faults = 0
        self._cpus = tuple(cpus)
        self._names = {f"cpu{cpu}" for cpu in cpus}
        self._counts: dict[str, Any] = {}

    def __enter__(self) -> Self:
        """Read the counters at the start."""
        self._collecting = gc.isenabled()
        gc.disable()
        self._delays, self._ticks = _delays(), cpu_ticks(self._names)
        self._usage = resource.getrusage(resource.RUSAGE_SELF)
        self._begin, self._used = time.monotonic(), time.process_time()
        return self

    def __exit__(self, *error: object) -> None:
        """Compute the differences of the counters between start and end."""
        wall, used = time.monotonic() - self._begin, time.process_time() - self._used
        if self._collecting:
            gc.enable()
        usage = resource.getrusage(resource.RUSAGE_SELF)
        self.faults = usage.ru_minflt - self._usage.ru_minflt
        # New threads count from zero.
        waits = [delay - self._delays.get(task, 0) for task, delay in _delays().items()]
        busy, stolen = (
            (after - before) / os.sysconf("SC_CLK_TCK")
            for before, after in zip(self._ticks, cpu_ticks(self._names), strict=True)
        )
        self._counts = {
            "run_delay_s": max(0, *waits, 0) / 1e9,
            "steal_s": max(0.0, stolen),
            "wall_s": wall,
            "cpu_s": used,
            "voluntary": usage.ru_nvcsw - self._usage.ru_nvcsw,
            "involuntary": usage.ru_nivcsw - self._usage.ru_nivcsw,
            # May be negative, because busy time is in whole ticks.
            "others_s": busy - used if self._ticks[0] else None,
        }

    def chunk(self, seconds: Sequence[float], *, faults: float) -> Chunk:
        """Return the samples with the counters around them; see :class:`Chunk`.

        Args:
            seconds: time of each sample.
            faults: page faults per execution.
        """
        return Chunk(
            seconds=tuple(seconds),
            threads=len(self._cpus),
            faults=faults,
            **self._counts,
        )


def cpu_ticks(names: Collection[str]) -> tuple[int, int]:
    """Return busy and stolen ticks of CPUs; zeros if the system does not count them.

    Args:
        names: the CPUs, such as ``cpu0``; ``cpu`` is all of them.
    """
    lines = (read_text(_STAT) or "").splitlines()
    rows = [fields for line in lines if (fields := line.split())[:1] and fields[0] in names]
    rows = [fields for fields in rows if len(fields) > _STOLEN]
    return (
        sum(int(fields[column]) for fields in rows for column in _BUSY),
        sum(int(fields[_STOLEN]) for fields in rows),
    )


def _delays() -> dict[str, int]:
    """Return the nanoseconds that each thread spent waiting for a CPU."""
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
        """Run it once as user code would, including the allocation of outputs.

        The caller drops the result at once, as in a user's loop.
        """

    def wait(self) -> None:
        """Wait until all calls have finished; does nothing if calls are synchronous."""

    def outputs(self) -> dict[str, NDArray[Any]]:
        """Run it once and return its outputs, by role, as float32 in plain layouts.

        An image is NCHW, convolution weights are ``(out channels, in channels / groups, kernel
        height, kernel width)``, matrices are ``(batch, rows, columns)``. The main result comes
        first.
        """


class Watcher(Protocol):
    """Reads a GPU while samples are taken."""

    def mark(self) -> float:
        """Return the start of an interval."""

    def since(self, mark: float) -> GpuReadings | None:
        """Return the readings since ``mark``."""


def take_watched(
    take: Callable[[], Chunk],
    guard: Callable[[], contextlib.AbstractContextManager[Any]],
    watcher: Watcher | None,
) -> Chunk:
    """Take a chunk within a guard, with readings of the GPU.

    Args:
        take: function that takes the chunk.
        guard: makes the context in which the chunk is taken.
        watcher: reads the GPU; None if there is none.
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
        disturbance=gpu_disturbance(readings),
        clock_hz=chunk.clock_hz or ((clock,) if clock else ()),
    )


@sealed
class HostClock:
    """Times an operator with the host's monotonic clock, and reads counters around each chunk.

    The timed region contains only a loop of calls. The cost of an iteration is known from an empty
    operator, and is not subtracted.

    Args:
        operator: the operator to time.
        cpus: CPUs that the process is pinned to, for their counters.
        guard: makes the context of the calls, entered once per chunk.
        watcher: reads the GPU of the operator; None if there is none.

    Attributes:
        around: functions that are called with the number of a sample right before and right after
            it, outside of its time; None without any.
        parts: returns sums over all calls since it was called last, such as seconds of a part of
            each, which become ``parts`` of a sample; None without any.
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
        self.around: tuple[Callable[[int], None], Callable[[int], None]] | None = None
        self.parts: Callable[[], Sequence[float]] | None = None

    def sample(self, request: ChunkRequest) -> Chunk:
        """Time the requested samples, after the untimed calls."""
        return take_watched(lambda: self.time_samples(request), self._guard, self._watcher)

    def time_samples(self, request: ChunkRequest) -> Chunk:
        """Take the samples of a request, within the guard.

        Raises:
            UnsupportedError: the request is for a CUDA graph.
        """
        if request.timing == "cuda-graph":
            raise UnsupportedError("what the host's clock times is not replayed from a CUDA graph")
        call, wait, now = self._operator.call, self._operator.wait, _NOW
        for _ in range(request.untimed):
            call()
        wait()
        seconds: list[float] = []
        parts: list[list[float]] = []
        inner, around, sums = range(request.inner), self.around, self.parts
        with HostCounters(self._cpus) as counters:
            for number in range(request.samples):
                if around is not None:
                    around[0](number)
                if sums is not None:
                    sums()
                start = now()
                for _ in inner:
                    call()
                wait()
                # A function that a user's code has installed would run after the clock.
                _PROFILE(None)
                _TRACE(None)
                end = now()
                if sums is not None:
                    parts.append([each / request.inner for each in sums()])
                if around is not None:
                    around[1](number)
                seconds.append((end - start) / request.inner)
        calls = request.samples * request.inner
        chunk = counters.chunk(seconds, faults=counters.faults / calls)
        return msgspec.structs.replace(chunk, parts=tuple(map(tuple, parts)))
