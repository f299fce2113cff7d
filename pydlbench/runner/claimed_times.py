"""Times claimed by a process with a user's code, held against the host's clock and the roof."""

import contextlib
import os
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Final

from pydlbench.errors import RefusedKernelError
from pydlbench.records.measurement import TimeSummary
from pydlbench.units import format_seconds, number
from pydlbench.workers.host import Worker

# The host's time may be this many times the claimed one, beyond an allowance per request and the
# time to copy the operands at a slow rate. Fewer requests may all have been disturbed.
_MAX_HOST_FACTOR: Final = 2.0
_ALLOWED_S: Final = 0.01
_COPY_RATE: Final = 5e8
_MIN_REQUESTS: Final = 4
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


class ClaimedTimes:
    """The times that are claimed for the requests of one kernel or step.

    Args:
        judged: returns the factor that is judged, of those of all requests.
    """

    def __init__(self, judged: Callable[[Sequence[float]], float] = min) -> None:
        self._factors: list[float] = []
        self._judged = judged

    def check(self, elapsed: float, claimed: float, copied: int) -> None:
        """Compare a claimed time with the host's, which an overloaded machine may prolong.

        Args:
            elapsed: the host's time of a request, in seconds.
            claimed: the time that the process claims for it.
            copied: bytes that are copied meanwhile, outside of the claimed time.

        Raises:
            RefusedKernelError: the requests took longer than is claimed.
        """
        allowed = _ALLOWED_S + copied / _COPY_RATE
        self._factors.append((elapsed - allowed) / max(claimed, 1e-9))
        factor = self._judged(self._factors)
        if len(self._factors) >= _MIN_REQUESTS and factor > _MAX_HOST_FACTOR:
            raise RefusedKernelError(
                f"by the host's clock it takes {number(factor, 2)} times as long as by the clock "
                "of its own process, which was changed"
            )
