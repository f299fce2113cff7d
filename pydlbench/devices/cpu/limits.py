"""What this process may use of the CPU: its affinity mask and its control group's quota."""

from __future__ import annotations

import os
import re
from pathlib import Path
from typing import TYPE_CHECKING

from pydlbench.devices.cpu.kernel_files import parse_cpu_list, read_number, read_text

if TYPE_CHECKING:
    from collections.abc import Iterator

__all__ = ["read_affinity", "read_cpu_limit"]


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
    limits = [limit for limit in _limits(root) if limit is not None]
    return min(limits, default=None)


def _limits(root: Path) -> Iterator[float | None]:
    top = root / "sys/fs/cgroup"
    for line in (read_text(root / "proc/self/cgroup") or "").splitlines():
        number, controllers, path = [*line.split(":", 2), "", ""][:3]
        if number == "0" and not controllers:
            for mount in (top, top / "unified"):
                yield from map(_quota_v2, _upwards(mount, path))
        elif "cpu" in controllers.split(","):
            for mount in (top / "cpu", top / controllers):
                yield from map(_quota_v1, _upwards(mount, path))


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
