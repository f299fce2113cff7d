"""Limits of this process: affinity mask, CPU quota and memory of its control group."""

from __future__ import annotations

import os
import re
from collections.abc import Iterator
from pathlib import Path

from pydlbench.devices.cpu.kernel_files import parse_cpu_list, read_number, read_text

# Without a limit, version 1 has the largest multiple of a page.
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
    """Return the bytes that remain within this process's control groups; None for no limit.

    Version 2 (``memory.max`` less ``memory.current``) and version 1 (``memory.limit_in_bytes`` less
    ``memory.usage_in_bytes``) are read; a group's ancestors limit it too. Usage includes the page
    cache; the part that the kernel reclaims first (``inactive_file``) counts as free.
    """
    limits = (
        _memory_v2(folder) if version == 2 else _memory_v1(folder)
        for version, folder in _groups(root, "memory")
    )
    return min((limit for limit in limits if limit is not None), default=None)


def _groups(root: Path, controller: str) -> Iterator[tuple[int, Path]]:
    """Yield version and folder of every control group that limits this process."""
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
    """Yield the folders of a group and of its ancestors up to the mount.

    In a container the path may be that of the host, without a folder; the mount itself counts.
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
    return _available(folder, "memory.max", "memory.current", "inactive_file")


def _memory_v1(folder: Path) -> int | None:
    # In version 1, fields without the prefix "total" exclude the children of the group.
    return _available(
        folder, "memory.limit_in_bytes", "memory.usage_in_bytes", "total_inactive_file"
    )


def _available(folder: Path, limit_name: str, usage_name: str, cache_name: str) -> int | None:
    limit = read_number(folder / limit_name)  # None if it is "max"
    if limit is None or limit < 0 or limit >= _UNLIMITED:
        return None
    usage = read_number(folder / usage_name) or 0
    text = read_text(folder / "memory.stat") or ""
    match = re.search(rf"^{cache_name} ([0-9]+)$", text, re.MULTILINE)
    return max(0, limit - max(0, usage - (int(match[1]) if match else 0)))
