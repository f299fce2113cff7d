"""Which logical CPUs a run uses, and what this process may use at all."""

from __future__ import annotations

import contextlib
import os
import re
from pathlib import Path
from typing import TYPE_CHECKING

from pydlbench.devices.cpu.kernel_files import parse_cpu_list, read_number, read_text
from pydlbench.errors import UsageError

if TYPE_CHECKING:
    from collections.abc import Collection, Iterator, Sequence

    from pydlbench.devices.cpu.facts import CpuFacts


# -----------------------------------------------------------------------------
# Which logical CPUs a run uses: one per physical core, within what the process may use.


def choose_cpus(facts: CpuFacts, threads: int | None = None) -> tuple[int, ...]:
    """Return the logical CPUs to pin threads to, in ascending order.

    One CPU per physical core, socket by socket; second threads of the cores only when more threads
    are asked for than there are cores. Without ``threads``: all cores of the affinity mask, but no
    more than the control group's quota pays for.

    Args:
        facts: of the machine.
        threads: how many, or None.

    Raises:
        UsageError: Less than one thread, or more than the affinity mask has CPUs.
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
    """Return CPUs in sets of the same size, those beside each other together; a rest is left out.

    Sets of different sizes could not be compared. Where there are more sets than CPUs, all of them
    have all CPUs.
    """
    size = len(cpus) // count
    if size == 0:
        return [tuple(cpus)] * count
    return [tuple(cpus[number * size : (number + 1) * size]) for number in range(count)]


def _ranked(facts: CpuFacts) -> list[int]:
    """The usable CPUs: first ones of their cores first, then by socket, then by number."""
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
    """Return a list of CPUs the kernel's way: ``0-3,8``."""
    runs: list[list[int]] = []
    for index in sorted(cpus):
        if runs and index == runs[-1][1] + 1:
            runs[-1][1] = index
        else:
            runs.append([index, index])
    return ",".join(str(a) if a == b else f"{a}-{b}" for a, b in runs)


# -----------------------------------------------------------------------------
# What this process may use: its affinity mask, its control group's CPU quota and memory.

# Version 1 writes the largest multiple of a page where there is no limit.
_UNLIMITED = 1 << 60


def read_affinity(root: Path) -> tuple[int, ...]:
    """Return the CPUs on which this process may run; empty if unknown."""
    status = read_text(root / "proc/self/status") or ""
    match = re.search(r"^Cpus_allowed_list:\s*(\S+)", status, re.MULTILINE)
    allowed = parse_cpu_list(match[1]) if match else ()
    if not allowed and root == Path("/") and hasattr(os, "sched_getaffinity"):
        return tuple(sorted(os.sched_getaffinity(0)))
    return allowed


def read_cpu_limit(root: Path) -> float | None:
    """Return the tightest CPU quota of this process's control groups, in CPUs; None for no limit.

    Version 2 (``cpu.max``) and version 1 (``cpu.cfs_quota_us``) are read; a group's ancestors
    limit it too.
    """
    limits = (
        _quota_v2(folder) if version == 2 else _quota_v1(folder)
        for version, folder in _groups(root, "cpu")
    )
    return min((limit for limit in limits if limit is not None), default=None)


def read_memory_limit(root: Path) -> int | None:
    """Return the bytes that this process's control groups still allow; None for no limit.

    Version 2 (``memory.max`` less ``memory.current``) and version 1 (``memory.limit_in_bytes`` less
    ``memory.usage_in_bytes``) are read; a group's ancestors limit it too. Usage counts the page
    cache; what of it the kernel would give up first (``inactive_file``) is free to be had.
    """
    limits = (
        _memory_v2(folder) if version == 2 else _memory_v1(folder)
        for version, folder in _groups(root, "memory")
    )
    return min((limit for limit in limits if limit is not None), default=None)


def _groups(root: Path, controller: str) -> Iterator[tuple[int, Path]]:
    """The version and the folder of every control group that limits this process."""
    top = root / "sys/fs/cgroup"
    for line in (read_text(root / "proc/self/cgroup") or "").splitlines():
        number, controllers, path = [*line.split(":", 2), "", ""][:3]
        if number == "0" and not controllers:
            for mount in (top, top / "unified"):
                yield from ((2, folder) for folder in _upwards(mount, path))
        elif controller in controllers.split(","):
            for mount in (top / controller, top / controllers):
                yield from ((1, folder) for folder in _upwards(mount, path))


def _upwards(mount: Path, path: str) -> Iterator[Path]:
    """The group's folder and its ancestors' up to the mount.

    Inside a container the path may be the host's and its folder absent; the mount itself counts.
    """
    parts = [part for part in path.split("/") if part not in ("", "..")]
    for length in range(len(parts), -1, -1):
        yield mount.joinpath(*parts[:length])


def _quota_v2(folder: Path) -> float | None:
    match = re.fullmatch(r"([0-9]+) ([1-9][0-9]*)", read_text(folder / "cpu.max") or "")
    return int(match[1]) / int(match[2]) if match else None


def _quota_v1(folder: Path) -> float | None:
    quota = read_number(folder / "cpu.cfs_quota_us")
    period = read_number(folder / "cpu.cfs_period_us")
    return quota / period if quota is not None and quota > 0 and period else None


def _memory_v2(folder: Path) -> int | None:
    return _left(folder, "memory.max", "memory.current", "inactive_file")


def _memory_v1(folder: Path) -> int | None:
    # The files of version 1 count a group without its children unless they say "total".
    return _left(folder, "memory.limit_in_bytes", "memory.usage_in_bytes", "total_inactive_file")


def _left(folder: Path, limit_name: str, usage_name: str, cache_name: str) -> int | None:
    limit = read_number(folder / limit_name)  # "max" is no number
    if limit is None or limit < 0 or limit >= _UNLIMITED:
        return None
    usage = read_number(folder / usage_name) or 0
    text = read_text(folder / "memory.stat") or ""
    match = re.search(rf"^{cache_name} ([0-9]+)$", text, re.MULTILINE)
    return max(0, limit - max(0, usage - (int(match[1]) if match else 0)))


# -----------------------------------------------------------------------------
# The CPUs of this process, asked before a library binds threads to them.
#
# GNU OpenMP, told to bind, binds the thread that loads it to its first place: whoever asks for the
# process's CPUs afterwards is told of one.

_remembered: list[int] = []


def remember() -> None:
    """Take note of the CPUs; to be called before any library is loaded."""
    if not _remembered:
        _remembered.extend(_ask())


def own_cpus() -> list[int]:
    """Return the CPUs that were noted, or those of now where nobody took note."""
    return list(_remembered) or _ask()


def _ask() -> list[int]:
    if hasattr(os, "sched_getaffinity"):
        return sorted(os.sched_getaffinity(0))
    return list(range(os.cpu_count() or 1))


def bind(cpus: Collection[int]) -> None:
    """Have the calling thread run on some CPUs, where the system can.

    To be called first in a new thread: where OpenMP has bound the process's first thread, others
    inherit its place.
    """
    if cpus and hasattr(os, "sched_setaffinity"):
        os.sched_setaffinity(0, cpus)


@contextlib.contextmanager
def pinned(cpu: int) -> Iterator[None]:
    """Keep the calling thread on one CPU, where the system can."""
    if not hasattr(os, "sched_setaffinity"):
        yield
        return
    before = os.sched_getaffinity(0)
    os.sched_setaffinity(0, {cpu})
    try:
        yield
    finally:
        os.sched_setaffinity(0, before)
