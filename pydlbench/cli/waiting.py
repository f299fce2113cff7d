"""Results on their way into the store: they wait until it takes them."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pydlbench.results.store import Entry, Store

__all__ = ["Waiting"]


class Waiting:
    """A queue; what the store refuses stays in it, for the next attempt."""

    def __init__(self) -> None:
        self._entries: list[Entry] = []
        # Ctrl-C may have come behind the commit of the first one, or before.
        self._uncertain = False

    def __len__(self) -> int:
        return len(self._entries)

    def put(self, entry: Entry) -> None:
        """Take an entry."""
        self._entries.append(entry)

    def write(self, store: Store, run_id: str) -> None:
        """Write all that waits; Ctrl-C in the middle leaves nothing out and nothing twice.

        Raises:
            StoreError: one cannot be written; it waits, with those behind it.
        """
        from pydlbench.errors import StoreError

        try:
            while self._entries:
                entry = self._entries[0]
                if not (self._uncertain and store.holds(run_id, entry)):
                    self._uncertain = True
                    store.add(run_id, entry)
                self._entries.pop(0)
                self._uncertain = False
        except StoreError:
            self._uncertain = False  # a transaction that failed has left nothing
            raise
