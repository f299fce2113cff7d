"""The system's counters around samples that Python takes: waiting threads, faults, stolen time.

The native module reads the same ones around its own samples. Absence is normal: what a system does
not count is zero.
"""

from __future__ import annotations

import os
import resource
import time
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Collection

__all__ = ["OthersTime", "StolenTime", "WaitingThreads", "involuntary_switches", "page_faults"]

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
