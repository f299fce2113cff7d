"""This machine, for commands: the device they run on, and the store of runs."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING

from pydlbench.errors import UsageError

if TYPE_CHECKING:
    from pydlbench.store.store import Store


def device_of(named: str | None) -> tuple[str, tuple[str, ...]]:
    """Return the named device, or the default one with notes on it."""
    from pydlbench.backends.capabilities import default_device

    return default_device() if named is None else (named, ())


def check_threads(threads: int | Sequence[int] | None, device: str) -> None:
    """Refuse ``--threads`` on a GPU.

    Raises:
        UsageError: it was given.
    """
    if threads is not None and device != "cpu":
        first = threads if isinstance(threads, int) else threads[0]
        raise UsageError(f"--threads {first}: for CPUs only; nearest: leave it out")


@contextlib.contextmanager
def reading_store(named: str | None) -> Iterator[Store | None]:
    """Open the store for reading; yield None if there is none yet, or it is ``none``.

    Args:
        named: value of ``--store``.

    Raises:
        UsageError: a file that was named is missing.
        StoreError: the file is damaged or not a store.
    """
    from pydlbench.store.place import select_path
    from pydlbench.store.store import Store

    path, by = select_path(named)
    if path is None or not path.exists():
        if by == "--store" and path is not None:
            raise UsageError(f"--store {path}: no such file; nearest: leave it out")
        yield None
        return
    with Store.open(path, readonly=True) as store:
        yield store
