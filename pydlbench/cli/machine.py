"""What commands need to know of this machine: the device they run on, and its store of runs."""

from __future__ import annotations

from typing import TYPE_CHECKING

from pydlbench.errors import StoreError, UsageError

if TYPE_CHECKING:
    from collections.abc import Sequence

    from pydlbench.store.store import Store


def device_of(named: str | None) -> tuple[str, tuple[str, ...]]:
    """Return the device that is named, or the default one and notes on it."""
    from pydlbench.backends.capabilities import default_device

    return default_device() if named is None else (named, ())


def check_threads(threads: int | Sequence[int] | None, device: str) -> None:
    """Refuse ``--threads`` where the device is no CPU.

    Raises:
        UsageError: it was given.
    """
    if threads is not None and device != "cpu":
        first = threads if isinstance(threads, int) else threads[0]
        raise UsageError(f"--threads {first}: for CPUs only; nearest: leave it out")


def reading_store(named: str | None) -> Store | None:
    """Open the store for reading; None where there is none yet, or it is ``none``.

    Args:
        named: by ``--store``.

    Raises:
        UsageError: a file that was named is missing, or is no store that can be read.
        StoreError: another one cannot be read.
    """
    from pydlbench.store.place import chosen_path
    from pydlbench.store.store import Store

    path, by = chosen_path(named)
    if path is None:
        return None
    if not path.exists():
        if by == "--store":
            raise UsageError(f"--store {path}: no such file; nearest: leave it out")
        return None
    try:
        return Store.open(path, readonly=True)
    except StoreError as error:
        if by == "--store":
            raise UsageError(str(error)) from error
        raise
