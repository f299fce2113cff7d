"""An iterator that a thread runs ahead of, as TensorFlow's queue runners do."""

from __future__ import annotations

import queue
import threading
from typing import TYPE_CHECKING, Generic, TypeVar

if TYPE_CHECKING:
    from collections.abc import Iterable

__all__ = ["Prefetch"]

_Item = TypeVar("_Item")


class Prefetch(Generic[_Item]):
    """Runs an iterator in a thread, a few items ahead; a context manager that ends the thread.

    What the iterator raises is raised by ``next``.
    """

    def __init__(self, items: Iterable[_Item], ahead: int = 3) -> None:
        """Set up.

        Args:
            items: what to run; endless iterators are fine.
            ahead: items that wait at most.
        """
        self._items = items
        self._ready: queue.Queue[_Item] = queue.Queue(maxsize=ahead)
        self._leaving = threading.Event()
        self._ended = threading.Event()
        self._error: BaseException | None = None
        self._thread = threading.Thread(target=self._work, name="prefetch", daemon=True)

    def __enter__(self) -> Prefetch[_Item]:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._leaving.set()
        self._thread.join()

    def __iter__(self) -> Prefetch[_Item]:
        return self

    def __next__(self) -> _Item:
        while True:
            # Read before looking: what was put before the end is still handed out.
            ended = self._ended.is_set()
            try:
                return self._ready.get(block=not ended, timeout=0.1)
            except queue.Empty:
                if ended:
                    break
        if self._error is not None:
            raise self._error
        raise StopIteration

    def _work(self) -> None:
        try:
            for item in self._items:
                while not self._leaving.is_set():
                    try:
                        self._ready.put(item, timeout=0.1)
                    except queue.Full:
                        continue
                    break
                if self._leaving.is_set():
                    return
        except BaseException as error:  # noqa: BLE001 - raised again where the items are taken
            self._error = error
        finally:
            self._ended.set()
