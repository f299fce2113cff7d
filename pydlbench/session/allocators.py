"""How a worker's C library hands out memory: what faults a step has depends on it."""

from __future__ import annotations

import platform
import re
from pathlib import Path
from typing import TYPE_CHECKING, Final

from pydlbench.errors import UnsupportedError, UsageError, nearest

if TYPE_CHECKING:
    from collections.abc import Mapping

__all__ = ["ALLOCATORS", "HUGE_PAGES", "SWITCH", "allocator_environment"]

#: ``default`` is what users get; ``kept pages`` gives nothing back to the system; ``huge pages``
#: asks for pages of two megabytes.
ALLOCATORS: Final = ("default", "kept pages", "huge pages")
#: Makes the C library's allocator ask for huge pages by ``madvise``.
HUGE_PAGES: Final = {"GLIBC_TUNABLES": "glibc.malloc.hugetlb=1"}

#: What the kernel says of huge pages.
SWITCH = Path("/sys/kernel/mm/transparent_hugepage/enabled")
_FIRST_GLIBC = (2, 35)


def allocator_environment(name: str) -> Mapping[str, str]:
    """Return the variables that make a process use an allocator.

    Args:
        name: one of :data:`ALLOCATORS`.

    Raises:
        UsageError: no such allocator.
        UnsupportedError: the C library or the kernel has no huge pages to give.
    """
    from pydlbench.workers.environment import KEEP_PAGES

    if name not in ALLOCATORS:
        near = nearest(name, ALLOCATORS, 1) or ALLOCATORS[:1]
        raise UsageError(
            f"allocator {name}: not one of {', '.join(ALLOCATORS)}; nearest: {near[0]}"
        )
    if name == "huge pages":
        _check_huge_pages()
        return HUGE_PAGES
    return KEEP_PAGES if name == "kept pages" else {}


def _check_huge_pages() -> None:
    """Refuse what the C library would silently ignore."""
    library, version = platform.libc_ver()
    number = tuple(int(part) for part in re.findall(r"\d+", version)[:2])
    if library != "glibc" or number < _FIRST_GLIBC:
        known = f"{library} {version}".strip() or "unknown"
        raise UnsupportedError(f"huge pages need glibc 2.35; the C library here is {known}")
    try:
        text = SWITCH.read_text(encoding="ascii")
    except OSError:
        raise UnsupportedError(f"the kernel has no transparent huge pages: no {SWITCH}") from None
    if "[never]" in text:
        raise UnsupportedError(f"transparent huge pages are switched off: {SWITCH} says never")
