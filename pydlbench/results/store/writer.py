"""Which process writes a run, so that a run whose process is gone can be told from a running one.

Kept are the host's name, the kernel's boot, the process's number and the time at which it started:
numbers are given out again, and nothing but the start tells one process from the next. Of a process
on another host, or in another container, nothing can be known: its run stays ``running``.
"""

from __future__ import annotations

import os
import platform
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Mapping

__all__ = ["is_gone", "this_process"]

_START = 21 - 2  # field 22 of /proc/PID/stat, counted behind the name in brackets


def this_process() -> dict[str, Any]:
    """Return who writes."""
    return {**_place(), "pid": os.getpid(), "start": _started(os.getpid())}


def is_gone(writer: Mapping[str, Any] | None) -> bool:
    """Whether the process that wrote a run has certainly ended.

    Args:
        writer: of :func:`this_process`; None where it was not kept.
    """
    if writer is None:
        return True
    here = _place()
    if writer.get("host") != here["host"]:
        return False
    if writer.get("boot") != here["boot"]:
        return True
    if writer.get("pids") != here["pids"]:
        return False
    return _started(int(writer["pid"])) != writer.get("start")


def _place() -> dict[str, Any]:
    """The host, its boot, and the name space of its processes (a container has its own)."""
    try:
        boot = Path("/proc/sys/kernel/random/boot_id").read_text(encoding="ascii").strip()
    except OSError:
        boot = None
    try:
        pids = Path("/proc/self/ns/pid").readlink().name
    except OSError:
        pids = None
    return {"host": platform.node(), "boot": boot, "pids": pids}


def _started(pid: int) -> str | None:
    """When a process started, in the kernel's ticks; None where there is none."""
    try:
        text = Path(f"/proc/{pid}/stat").read_text(encoding="utf-8", errors="replace")
    except OSError:
        if Path("/proc/self").exists():
            return None
        return _without_proc(pid)
    fields = text.rpartition(")")[2].split()
    return None if fields[0] == "Z" else fields[_START]


def _without_proc(pid: int) -> str | None:
    """A system that shows no processes: alive is all that can be asked."""
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return None
    except OSError:
        return "alive"
    return "alive"
