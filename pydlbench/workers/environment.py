"""The environment of a worker: pinned threads, allocator, and no settings that change numerics."""

import contextlib
import ctypes
import os
import platform
import re
import stat
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Final

from pydlbench.backends import capabilities
from pydlbench.devices.cpu.facts import read_text
from pydlbench.devices.probe_cache import probe_cache_path
from pydlbench.errors import UnsupportedError, unknown_word
from pydlbench.workers.ahead import DROPPED_PREFIXES, FIXED

#: Makes the C library's allocator keep freed pages, so that the next call reuses them.
KEEP_PAGES = {"GLIBC_TUNABLES": f"glibc.malloc.mmap_max=0:glibc.malloc.trim_threshold={2**62}"}
# From <malloc.h>.
_M_TRIM_THRESHOLD: Final = -1
_M_MMAP_MAX: Final = -4
# From <linux/prctl.h>: children whose parent has ended become children of this process.
_SET_CHILD_SUBREAPER: Final = 36


def keep_pages() -> None:
    """Do in a running process what :data:`KEEP_PAGES` does at its start."""
    library = ctypes.CDLL(None)
    with contextlib.suppress(AttributeError):  # another C library, which ignores the variable, too
        library.mallopt(_M_TRIM_THRESHOLD, -1)
        library.mallopt(_M_MMAP_MAX, 0)


def adopt_orphans() -> None:
    """Make processes whose parent has ended, such as forks of a template, children of this one."""
    if sys.platform.startswith("linux"):
        ctypes.CDLL(None, use_errno=True).prctl(_SET_CHILD_SUBREAPER, 1, 0, 0, 0)


def worker_environment(inherited: Mapping[str, str], cpus: Sequence[int]) -> dict[str, str]:
    """Return the environment for a worker that runs one thread on each of ``cpus``.

    OpenMP thread i is bound to ``cpus[i]`` when its library loads.
    """
    backends = capabilities.all_capabilities()
    dropped = (
        *DROPPED_PREFIXES,
        *(prefix for backend in backends for prefix in backend.settings),
    )
    kept = tuple(prefix for backend in backends for prefix in backend.kept_settings)
    environment = {
        name: value
        for name, value in inherited.items()
        if name.startswith(kept) or not name.startswith(dropped)
    } | FIXED
    environment["OMP_NUM_THREADS"] = str(len(cpus))
    environment["OMP_PLACES"] = ",".join(f"{{{cpu}}}" for cpu in cpus)
    environment["OMP_PROC_BIND"] = "close"
    environment["OMP_DYNAMIC"] = "false"
    environment["MKL_NUM_THREADS"] = str(len(cpus))
    if (probes := probe_cache_path()) is not None:
        for backend in backends:
            if backend.code_folder and (folder := _code_folder(probes.parent, backend.name)):
                environment[backend.code_folder] = str(folder)
    return environment


def _code_folder(kept: Path, name: str) -> Path | None:
    """Return the folder for a backend's compiled code, which later processes load and run.

    Args:
        kept: folder of the file that ``PYDLBENCH_PROBES`` names.
        name: name of the backend.

    Returns:
        None if another user may write to one of these folders, or if they cannot be created.
    """
    folders = (kept, kept / "code", kept / "code" / name)
    try:
        for folder in folders:
            folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        return folders[-1] if all(is_private(folder.resolve()) for folder in folders) else None
    except OSError:
        return None


def is_private(folder: Path) -> bool:
    """Whether a path is a folder of this user, and no link, that nobody else may write to."""
    status = folder.lstat()
    own = stat.S_ISDIR(status.st_mode) and status.st_uid == os.getuid()
    return own and not status.st_mode & (stat.S_IWGRP | stat.S_IWOTH)


#: Variables that would make another interpreter import the packages of this one.
_PYTHON_VARIABLES: Final = ("PYTHONPATH", "PYTHONHOME")


def inherited_environment(python: str | None) -> dict[str, str]:
    """Return the environment variables that a child process inherits.

    Args:
        python: interpreter of another installation, which finds its own packages; None for this
            process's interpreter.
    """
    dropped = () if python is None else _PYTHON_VARIABLES
    return {name: value for name, value in os.environ.items() if name not in dropped}


# -----------------------------------------------------------------------------
# The allocator of a worker's C library, which determines the page faults of a step.

#: ``default`` is the library's own setting; ``kept pages`` returns no memory to the system; ``huge
#: pages`` uses pages of two megabytes.
ALLOCATOR_VARIABLES: Final[Mapping[str, Mapping[str, str]]] = {
    "default": {},
    "kept pages": KEEP_PAGES,
    # Makes the C library's allocator ask for huge pages by ``madvise``.
    "huge pages": {"GLIBC_TUNABLES": "glibc.malloc.hugetlb=1"},
}
ALLOCATORS: Final = tuple(ALLOCATOR_VARIABLES)

#: The kernel's setting of transparent huge pages.
HUGE_PAGES_FILE = Path("/sys/kernel/mm/transparent_hugepage/enabled")
_MIN_GLIBC = (2, 35)


def allocator_environment(name: str) -> Mapping[str, str]:
    """Return the variables that make a process use an allocator.

    Args:
        name: one of :data:`ALLOCATORS`.

    Raises:
        UsageError: no such allocator.
        UnsupportedError: the C library or the kernel has no huge pages.
    """
    if name not in ALLOCATORS:
        raise unknown_word(
            f"allocator {name}: not one of {', '.join(ALLOCATORS)}", name, ALLOCATORS, 1
        )
    if name == "huge pages":
        _check_huge_pages()
    return ALLOCATOR_VARIABLES[name]


def _check_huge_pages() -> None:
    """Check that huge pages are available; the C library would silently ignore the setting."""
    library, version = platform.libc_ver()
    number = tuple(int(part) for part in re.findall(r"\d+", version)[:2])
    if library != "glibc" or number < _MIN_GLIBC:
        known = f"{library} {version}".strip() or "unknown"
        raise UnsupportedError(f"huge pages need glibc 2.35; the C library here is {known}")
    text = read_text(HUGE_PAGES_FILE)
    if text is None:
        raise UnsupportedError(f"the kernel has no transparent huge pages: no {HUGE_PAGES_FILE}")
    if "[never]" in text:
        raise UnsupportedError(
            f"transparent huge pages are switched off: {HUGE_PAGES_FILE} says never"
        )
