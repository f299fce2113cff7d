"""Choosing the logical CPUs of a run, and binding threads to them."""

import contextlib
import os
from collections.abc import Collection, Iterator, Sequence

from pydlbench.devices.cpu.facts import CpuFacts
from pydlbench.errors import UsageError

# -----------------------------------------------------------------------------
# The logical CPUs of a run: one per physical core, among those that the process may use.


def choose_cpus(facts: CpuFacts, threads: int | None = None) -> tuple[int, ...]:
    """Return the logical CPUs to pin threads to, in ascending order.

    One CPU per physical core, socket by socket; second threads of cores only if there are more
    threads than cores. The default is all cores of the affinity mask, within the quota of the
    control group.

    Args:
        facts: facts of the machine.
        threads: number of threads, or None for the default.

    Raises:
        UsageError: fewer than one thread, or more than the affinity mask has CPUs.
    """
    ranked = _ranked(facts)
    cores = physical_cores(facts, ranked)
    if threads is None:
        quota = cores if facts.cpu_limit is None else int(facts.cpu_limit)
        threads = max(1, min(cores, quota))
    elif threads < 1:
        raise UsageError(f"--threads {threads}: at least one thread is needed; nearest: 1")
    elif threads > len(ranked):
        raise UsageError(
            f"--threads {threads}: this process may use {len(ranked)} CPUs (affinity mask "
            f"{format_cpus(facts.affinity)}); nearest: {len(ranked)}"
        )
    return tuple(sorted(ranked[:threads]))


def physical_cores(facts: CpuFacts, cpus: Collection[int]) -> int:
    """Return the number of physical cores behind ``cpus``."""
    siblings = {cpu.index: cpu.siblings for cpu in facts.cpus}
    return len({siblings.get(index, (index,)) for index in cpus})


def split_cpus(cpus: Sequence[int], count: int) -> list[tuple[int, ...]]:
    """Split CPUs into ``count`` sets of equal size, in order; remaining CPUs are not used.

    Sets of different sizes would not be comparable. With fewer CPUs than sets, each set has all
    CPUs.
    """
    size = len(cpus) // count
    if size == 0:
        return [tuple(cpus)] * count
    return [tuple(cpus[number * size : (number + 1) * size]) for number in range(count)]


def _ranked(facts: CpuFacts) -> list[int]:
    """The usable CPUs: the first one of each core first, then by socket, then by number."""
    allowed = set(facts.affinity)
    usable = [cpu for cpu in facts.cpus if cpu.index in allowed]
    taken: dict[tuple[int, ...], int] = {}
    ranks = []
    for cpu in sorted(usable, key=lambda cpu: cpu.index):
        turn = taken.get(cpu.siblings, 0)
        taken[cpu.siblings] = turn + 1
        ranks.append((turn, cpu.socket, cpu.index))
    return [index for _, _, index in sorted(ranks)] or sorted(allowed) or [0]


def format_cpus(cpus: Collection[int]) -> str:
    """Return a list of CPUs in the kernel's format: ``0-3,8``."""
    runs: list[list[int]] = []
    for index in sorted(cpus):
        if runs and index == runs[-1][1] + 1:
            runs[-1][1] = index
        else:
            runs.append([index, index])
    return ",".join(str(a) if a == b else f"{a}-{b}" for a, b in runs)


# -----------------------------------------------------------------------------
# The CPUs of this process, read before a library binds threads.
#
# If binding is on, GNU OpenMP binds the thread that loads it to its first place. The affinity mask
# then has a single CPU.

_remembered: list[int] = []


def remember_cpus() -> None:
    """Store the CPUs of this process; call it before any library is loaded."""
    if not _remembered:
        _remembered.extend(_ask())


def process_cpus() -> list[int]:
    """Return the stored CPUs, or the present ones if none were stored."""
    return list(_remembered) or _ask()


def _ask() -> list[int]:
    if hasattr(os, "sched_getaffinity"):
        return sorted(os.sched_getaffinity(0))
    return list(range(os.cpu_count() or 1))


def bind(cpus: Collection[int]) -> None:
    """Bind the calling thread to CPUs, if the system supports it.

    Call it first in a new thread: threads inherit the place that OpenMP bound the first thread to.
    """
    if cpus and hasattr(os, "sched_setaffinity"):
        os.sched_setaffinity(0, cpus)


@contextlib.contextmanager
def pinned(cpu: int) -> Iterator[None]:
    """Bind the calling thread to one CPU, if the system supports it."""
    if not hasattr(os, "sched_setaffinity"):
        yield
        return
    before = os.sched_getaffinity(0)
    os.sched_setaffinity(0, {cpu})
    try:
        yield
    finally:
        os.sched_setaffinity(0, before)
