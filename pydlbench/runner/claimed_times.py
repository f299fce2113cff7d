"""Times claimed by a process with a user's code, held against the host's clock and the roof."""

import contextlib
import math
import os
import random
import signal
import time
from collections import Counter
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Final

import msgspec

from pydlbench.backends.host_clock import cpu_ticks
from pydlbench.devices.cpu.facts import read_text
from pydlbench.errors import RefusedKernelError
from pydlbench.records.measurement import TimeSummary
from pydlbench.timing.chunk import Chunk, ChunkRequest
from pydlbench.timing.statistics import median
from pydlbench.units import format_seconds, number
from pydlbench.workers.host import Worker
from pydlbench.workers.stopping import descendants_of

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
# An execution in a loop may take this many times the claimed one. If one takes longer, loops and
# requests follow in turn until a loop is as fast, at most so many: neighbours prolong half of the
# loops of a second, and hardly ever all of them and no request. Loops of large operands last for
# seconds: after this time none follows, unless there are fewer than the least number of requests.
_MAX_LOOP_FACTOR: Final = 1.25
_MAX_LOOPS: Final = 10
_LOOPS_S: Final = 10.0
# After the first loop of a process, loops take this share of the time of the requests; the system
# draws the requests that they follow.
_LOOPED: Final = 0.1
# Largest use of the worker's CPUs by other processes during a loop that is compared with requests,
# as a share of its time: they prolong it, and an honest loop waits for longer than they use.
_MAX_OTHERS: Final = 0.2
# Fields of /proc/PID/stat, after the name: times of children that have ended.
_ENDED: Final = slice(16 - 3, 17 - 2)
# Samples of a request may take this many times their median, besides the time to wake threads up.
_MAX_UNEVEN: Final = 1.5
MIN_SAMPLES: Final = 3
# In half of the requests threads wake up late if others use the CPUs.
_MIN_UNEVEN: Final = 12
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
    """Return the time of the worker's CPUs that neither this process nor its own have used so far.

    A child that has ended counts as soon as its parent has waited for it.
    """
    ticks, _ = cpu_ticks({f"cpu{cpu}" for cpu in worker.cpus} or {"cpu"})
    own = time.process_time()
    for process in (worker.pid or 0, *descendants_of(worker.pid or 0)):
        with contextlib.suppress(OSError):  # it has ended
            # The identifier of a process's CPU clock, see clock_getcpuclockid(3).
            own += time.clock_gettime(~process << 3 | 2)
            fields = Path(f"/proc/{process}/stat").read_text(errors="replace").rpartition(")")[2]
            ticks -= sum(map(int, fields.split()[_ENDED]))
    return ticks / os.sysconf("SC_CLK_TCK") - own


def _hides_children(worker: Worker) -> bool:
    """Whether the time of a worker's children is not counted as its own when they have ended."""
    for process in (worker.pid or 0, *descendants_of(worker.pid or 0)):
        status = read_text(Path(f"/proc/{process}/status")) or ""
        ignored = status.partition("SigIgn:")[2].split()[:1]
        if int("".join(ignored) or "0", 16) >> (signal.SIGCHLD - 1) & 1:
            return True
    return False


class ClaimedTimes:
    """The times that are claimed for the requests of one kernel or step.

    Args:
        judged: returns the factor that is judged, of those of all requests.
    """

    def __init__(self, judged: Callable[[Sequence[float]], float] = min) -> None:
        self._factors: list[float] = []
        self._uneven: dict[int, list[float]] = {}  # by number of samples
        self._samples = Counter[bool]()  # by whether their request is uneven
        self._overheads: list[float] = []
        self._looped: set[int | None] = set()  # processes
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
            RefusedKernelError: that is so in all requests of as many samples.
        """
        if len(seconds) < MIN_SAMPLES:
            return
        middle = max(len(seconds) * median(seconds), 1e-9)
        factors = self._uneven.setdefault(len(seconds), [])
        factors.append((sum(seconds) - _WAKE_S) / middle)
        self._samples[factors[-1] > _MAX_UNEVEN] += len(seconds)
        if len(factors) >= _MIN_UNEVEN and min(factors) > _MAX_UNEVEN:
            raise RefusedKernelError(
                f"samples take {number(min(factors), 2)} times their median on average: some "
                "compute what the others return"
            )

    @property
    def mostly_uneven(self) -> bool:
        """Whether most samples are in requests where some may compute what the others return."""
        return self._samples[True] > self._samples[False]

    def undecided(self, samples: int) -> int:
        """Return the samples of a request that tells a disturbance from a cheat; 0 if none has to.

        Args:
            samples: those of a request that is compared with the host's clock.
        """
        for size, factors in self._uneven.items():
            if len(factors) < _MIN_UNEVEN and min(factors) > _MAX_UNEVEN:
                return size
        few = len(self._factors) < _MIN_REQUESTS
        return samples if few and min(self._factors, default=0.0) > _MAX_HOST_FACTOR else 0

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

        The overhead of a request is the median of all, within what is allowed. The process claims
        a time of the loop, too, which takes as long by the host's clock whatever neighbours do.

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
        overhead = min(allowed, median(self._overheads))
        request = msgspec.structs.replace(request, untimed=0)
        wanted, inner, claims = _LOOP_OVERHEADS * allowed, request.inner, [_mean(chunk.seconds)]
        if request.samples == 1 and inner * claims[0] >= wanted:  # it is a loop
            if elapsed - overhead <= _MAX_LOOP_FACTOR * inner * claims[0]:
                return
        else:
            shortest = max(claims[0], elapsed / (request.samples * inner * _MAX_SHORTER))
            inner = math.ceil(wanted / shortest)
            share = _LOOPED * elapsed / (inner * shortest)
            if worker.pid in self._looped and _DRAW() > share:
                return
        self._looped.add(worker.pid)
        loop = msgspec.structs.replace(request, samples=1, inner=inner)
        own: list[float] = []  # factors over what is claimed for the loop
        loops: list[float] = []
        end = undisturbed_s(worker) + _LOOPS_S
        for _ in range(_MAX_LOOPS):
            hides = _hides_children(worker)
            begin, others = undisturbed_s(worker), others_s(worker)
            chunk = sample(loop)
            elapsed = undisturbed_s(worker) - begin
            loop_s = (elapsed - overhead) / inner
            own.append(loop_s / _mean(chunk.seconds))
            hides = hides or _hides_children(worker)
            if hides or others_s(worker) - others <= _MAX_OTHERS * elapsed:
                loops.append(loop_s)
            least = min(loops, default=0.0)
            if max(min(own), least / min(claims)) <= _MAX_LOOP_FACTOR:
                return
            if len(own) >= _MIN_REQUESTS and undisturbed_s(worker) > end:
                break
            again = sample(request).seconds
            claims.append(_mean(again[1:] or again))  # the first one wakes threads up
        if (factor := max(min(own), least / median(claims))) > _MAX_LOOP_FACTOR:
            raise _changed_clock(factor)


def _mean(seconds: Sequence[float]) -> float:
    """Return the mean, which is what a loop has of its executions."""
    return max(sum(seconds) / len(seconds), 1e-9)


def _changed_clock(factor: float) -> RefusedKernelError:
    return RefusedKernelError(
        f"by the host's clock it takes {number(factor, 2)} times as long as by the clock of its "
        "own process, which was changed"
    )
