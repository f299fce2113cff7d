"""The CPUs of this process, asked before a library binds threads to them.

GNU OpenMP, told to bind, binds the thread that loads it to its first place: whoever asks for the
process's CPUs afterwards is told of one.
"""

from __future__ import annotations

import os

__all__ = ["own_cpus", "remember"]

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
