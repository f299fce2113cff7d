"""Times claimed by a process with a user's code, held against the host's clock and the roof."""

import contextlib
import math
import os
import random
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from statistics import median_low
from typing import Final

import msgspec

from pydlbench.backends.host_clock import cpu_ticks
from pydlbench.errors import RefusedKernelError
from pydlbench.grouping import group_by
from pydlbench.records.measurement import TimeSummary
from pydlbench.timing.chunk import Chunk, ChunkRequest
from pydlbench.timing.statistics import median, quantile
from pydlbench.units import format_seconds, number
from pydlbench.workers.host import Worker

# The host's time may be this many times the claimed one, beyond an allowance per request and the
# time to copy the operands at a slow rate. Fewer requests may all have been disturbed.
_MAX_HOST_FACTOR: Final = 2.0
_ALLOWED_S: Final = 0.01
_COPY_RATE: Final = 5e8
# Time to feed and restore a step before a sample, and to write its results. Loops, which have none
# of it, judge steps that are as short.
_SAMPLE_S: Final = 0.01
_MIN_REQUESTS: Final = 4
# A loop takes this many times the largest overhead of a request that is believed, so that time in
# the overhead hides little of the loop. It is no longer for a claimed time that is shorter by more.
_LOOP_OVERHEADS: Final = 8
_MAX_SHORTER: Final = 20
# An execution in a loop may take this many times the claimed one, in three quarters of the loops of
# a group and in half of the groups, and in three quarters of the processes.
_MAX_LOOP_FACTOR: Final = 1.25
_JUDGED_QUANTILE: Final = 0.25
# Once there are enough loops, they take this share of the time of the requests; the system draws
# the requests that they follow. Claims of all requests of a process are compared with its loops, so
# that few more loops are needed.
_LOOPED: Final = 0.2
# Largest use of CPUs by other processes during a loop, as a share of its time: they prolong it, and
# an honest loop waits for longer than they use.
_MAX_OTHERS: Final = 0.2
# Samples of a request may take this many times their median, besides the time to wake threads up.
_MAX_UNEVEN: Final = 1.5
_WAKE_S: Final = 5e-4
_DRAW: Final = random.SystemRandom().random
#: Winograd and FFT convolutions and Strassen's products need this many times fewer FLOPs than their
#: roof counts.
FEWER_FLOPS: Final = {"conv": 6.0, "deconv": 6.0, "gemm": 1.5}
# Factor over the roof that no error of the probes explains.
_IMPOSSIBLE: Final = 1.5


def beyond_roof(claimed: TimeSummary, roof_s: float, factor: float, why: str) -> str | None:
    """Return by how much a time exceeds its roof, if nothing can; None if something can.

    Args:
        claimed: the time with its interval.
        roof_s: the roof, in seconds.
        factor: how many times fewer FLOPs other algorithms need.
        why: what takes as long as the roof.
    """
    times = roof_s / max(claimed.median, claimed.ci_high or 0.0)
    if times <= _IMPOSSIBLE * factor:
        return None
    return (
        f"impossible: {number(times, 2)} times the roof; it takes {format_seconds(claimed.median)} "
        f"where {why} {format_seconds(roof_s)}"
    )


def undisturbed_s(worker: Worker) -> float:
    """Return the host's time without what both processes' main threads waited for a CPU."""
    waited = 0
    for process in (os.getpid(), worker.pid):
        with contextlib.suppress(OSError, IndexError):  # the kernel does not count
            waited += int(Path(f"/proc/{process}/schedstat").read_text().split()[1])
    return time.perf_counter() - waited / 1e9


def others_s(worker: Worker) -> float:
    """Return the CPU time that neither this process nor the worker has used so far."""
    busy, _ = cpu_ticks({"cpu"})
    # The identifier of a process's CPU clock, see clock_getcpuclockid(3).
    own = time.process_time() + time.clock_gettime(~(worker.pid or 0) << 3 | 2)
    return busy / os.sysconf("SC_CLK_TCK") - own


class ClaimedTimes:
    """The times that are claimed for the requests of one kernel or step.

    Args:
        judged: returns the factor that is judged, of those of all requests.
        grouped: number of loops, or of processes, that are judged together.
    """

    def __init__(
        self, judged: Callable[[Sequence[float]], float] = min, grouped: int = _MIN_REQUESTS
    ) -> None:
        self._grouped = grouped
        self._factors: list[float] = []
        # Seconds of an execution in loops, and as claimed for requests, by process: the machine may
        # be slower for some seconds.
        self._loops: list[tuple[int | None, float]] = []
        self._claims: dict[int | None, list[float]] = {}
        self._own: list[float] = []
        self._uneven: list[float] = []
        self._overheads: list[float] = []
        self._judged = judged

    def check(self, elapsed: float, claimed: float, copied: int, restored: int = 0) -> None:
        """Compare a claimed time with the host's, which an overloaded machine may prolong.

        Args:
            elapsed: the host's time of a request, in seconds.
            claimed: the time that the process claims for it.
            copied: bytes that are copied meanwhile, outside of the claimed time.
            restored: number of times that all else is restored meanwhile.

        Raises:
            RefusedKernelError: the requests took longer than is claimed.
        """
        allowed = _ALLOWED_S + copied / _COPY_RATE + restored * _SAMPLE_S
        self._overheads.append(max(0.0, elapsed - claimed))
        self._factors.append((elapsed - allowed) / max(claimed, 1e-9))
        factor = self._judged(self._factors)
        if len(self._factors) >= _MIN_REQUESTS and factor > _MAX_HOST_FACTOR:
            raise _changed_clock(factor)

    def check_even(self, seconds: Sequence[float]) -> None:
        """Check that the time of a request is in no few samples, which would compute for the rest.

        Raises:
            RefusedKernelError: that is so in all requests.
        """
        middle = max(len(seconds) * median(seconds), 1e-9)
        self._uneven.append((sum(seconds) - _WAKE_S) / middle)
        if len(self._uneven) >= _MIN_REQUESTS and min(self._uneven) > _MAX_UNEVEN:
            raise RefusedKernelError(
                f"samples take {number(min(self._uneven), 2)} times their median on average: some "
                "compute what the others return"
            )

    def check_loop(
        self,
        worker: Worker,
        sample: Callable[[ChunkRequest], Chunk],
        request: ChunkRequest,
        chunk: Chunk,
        elapsed: float,
        copied: int,
    ) -> None:
        """Time executions in a long loop by the host's clock, and compare a request's samples.

        The overhead of a request is the median of all, within what is allowed. A loop during which
        other processes use CPUs is not judged. The process claims a time of the loop, too, which
        takes as long by the host's clock whatever neighbours do; claims of requests are compared
        with many loops.

        Args:
            worker: the process.
            sample: takes samples there.
            request: a request.
            chunk: its samples.
            elapsed: the host's time of it, in seconds.
            copied: bytes that are copied around each sample.

        Raises:
            RefusedKernelError: a sample takes less than an execution in the loop.
        """
        allowed = _ALLOWED_S + copied / _COPY_RATE
        # A loop has the mean of its executions, so that is compared.
        claimed = max(sum(chunk.seconds) / len(chunk.seconds), 1e-9)
        self._claims.setdefault(worker.pid, []).append(claimed)
        wanted, inner = _LOOP_OVERHEADS * allowed, request.inner
        is_loop = request.samples == 1 and inner * claimed >= wanted
        if not is_loop:
            shortest = max(claimed, elapsed / (request.samples * inner * _MAX_SHORTER))
            inner = math.ceil(wanted / shortest)
            share = _LOOPED * elapsed / (inner * shortest)
            first = len(self._claims[worker.pid]) == 1
            if len(self._loops) >= self._grouped and not first and _DRAW() > share:
                return
            begin, others = undisturbed_s(worker), others_s(worker)
            chunk = sample(msgspec.structs.replace(request, samples=1, inner=inner, untimed=0))
            elapsed = undisturbed_s(worker) - begin
            if others_s(worker) - others > _MAX_OTHERS * elapsed:
                return
        loop_s = (elapsed - min(allowed, median(self._overheads))) / inner
        self._loops.append((worker.pid, loop_s))
        self._own.append(loop_s / max(sum(chunk.seconds) / len(chunk.seconds), 1e-9))
        factors = [seconds / median(self._claims[process]) for process, seconds in self._loops]
        groups = [
            quantile(factors[first : first + self._grouped], _JUDGED_QUANTILE)
            for first in range(0, len(factors) - self._grouped + 1, self._grouped)
        ]
        judged = [median_low(groups)] if groups else []
        if len(self._own) >= _MIN_REQUESTS:
            judged.append(quantile(self._own, _JUDGED_QUANTILE))
        # A clock may be right in the first process, which has most loops.
        processes = group_by(range(len(factors)), lambda place: self._loops[place][0]).values()
        if len(processes) >= self._grouped:
            judged += [
                quantile(
                    (median(map(each.__getitem__, some)) for some in processes), _JUDGED_QUANTILE
                )
                for each in (factors, self._own)
            ]
        if (factor := max(judged, default=0.0)) > _MAX_LOOP_FACTOR:
            raise _changed_clock(factor)


def _changed_clock(factor: float) -> RefusedKernelError:
    return RefusedKernelError(
        f"by the host's clock it takes {number(factor, 2)} times as long as by the clock of its "
        "own process, which was changed"
    )
