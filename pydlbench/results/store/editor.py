"""What can be done to runs that are there: ended, tagged, deleted."""

from __future__ import annotations

import contextlib
from typing import TYPE_CHECKING

from pydlbench.errors import UsageError
from pydlbench.results.store.naming import check_tag
from pydlbench.results.store.reader import Reader

if TYPE_CHECKING:
    from collections.abc import Iterator

__all__ = ["Editor"]


class Editor(Reader):
    """The part of :class:`pydlbench.results.store.Store` that changes runs as a whole."""

    def end(self, run_id: str) -> None:
        """End a run whose process is gone; what it has finished stays.

        For one of another host or container, of which nothing can be seen from here. A process
        that is still there is not disturbed, and ends its run itself.

        Raises:
            UsageError: no such run, or it has ended.
        """
        with self._transaction():
            status = self.info(run_id).status
            if status not in ("running", "killed"):
                raise UsageError(f"run {run_id}: has ended already, it is {status}")
            self._connection.execute(
                "UPDATE runs SET status = 'interrupted', writer = NULL WHERE id = ?", (run_id,)
            )

    def tag(self, run_id: str, tag: str) -> None:
        """Give a run a tag; several runs may share one, and one that it has is no error.

        Raises:
            UsageError: no such run, or the word cannot be one.
        """
        check_tag(tag)
        with self._transaction():
            self.info(run_id)
            self._connection.execute(
                "INSERT OR IGNORE INTO tags (tag, run) VALUES (?, ?)", (tag, run_id)
            )

    def untag(self, run_id: str, tag: str) -> None:
        """Take a tag from a run.

        Raises:
            UsageError: it has no such tag.
        """
        with self._transaction():
            tags = self.info(run_id).tags
            if tag not in tags:
                has = f"its tags: {', '.join(tags)}" if tags else "it has none"
                raise UsageError(f"{tag}: run {run_id} has no such tag; {has}")
            self._connection.execute("DELETE FROM tags WHERE tag = ? AND run = ?", (tag, run_id))

    def delete(self, run_id: str) -> None:
        """Delete a run with all that belongs to it.

        Raises:
            UsageError: there is none.
        """
        with self._transaction():
            self.info(run_id)
            self._connection.execute("DELETE FROM runs WHERE id = ?", (run_id,))

    def vacuum(self) -> None:
        """Give the room of deleted runs back to the file system."""
        from pydlbench.results.store.connection import translated

        with translated(self.path):
            self._connection.execute("VACUUM")
            self._connection.execute("PRAGMA wal_checkpoint(TRUNCATE)")

    @contextlib.contextmanager
    def _transaction(self) -> Iterator[None]:
        """All or nothing, whatever ends it; waits for other writers first."""
        from pydlbench.results.store.connection import translated

        with translated(self.path):
            self._connection.execute("BEGIN IMMEDIATE")
            try:
                yield
                self._connection.execute("COMMIT")
            finally:
                if self._connection.in_transaction:
                    self._connection.execute("ROLLBACK")
