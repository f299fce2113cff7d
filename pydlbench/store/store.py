"""The store: writes runs, entry by entry, and reads them back."""

from __future__ import annotations

import contextlib
import json
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from pydlbench.errors import StoreError, UsageError
from pydlbench.records.run import RunRecord
from pydlbench.store.entry import (
    BEING_WRITTEN,
    TABLES,
    Entry,
    layer_values,
    pack,
    pack_samples,
    samples_crc,
    this_process,
)
from pydlbench.store.place import default_path, machine_name, user_path
from pydlbench.store.reader import Reader, check_tag

_ENDS = ("done", "interrupted", "failed")


class Store(Reader):
    """One file of results. Open it with :meth:`open`, and use it as a context manager.

    Every method raises ``StoreError``, in one line with a remedy, if the file cannot be written or
    read; committed entries are unaffected. Methods raise ``UsageError`` if there is no such run.
    A store must not be shared by threads; any number of processes may open the same file.

    Attributes:
        path: path of the store's file.
    """

    @classmethod
    def open(cls, path: str | Path | None = None, *, readonly: bool = False) -> Self:
        """Open a store.

        Args:
            path: path of the file; None for :func:`pydlbench.store.place.default_path`, whose
                folder is created if missing.
            readonly: whether nothing is written. This works without write permission for file and
                folder; a missing file is an error.

        Raises:
            StoreError: the file cannot be opened, is damaged, not a store, or of another version.
        """
        from pydlbench.store.connection import open_reader, open_writer

        where = default_path() if path is None else user_path(path)
        if readonly:
            return cls(open_reader(where), where)
        if path is None:
            try:
                where.parent.mkdir(parents=True, exist_ok=True)
            except OSError as error:
                raise StoreError(
                    f"store {where}: its folder cannot be created ({error.strerror}); name another "
                    "file with --store"
                ) from error
        return cls(open_writer(where), where)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()

    def close(self) -> None:
        """Close the file; the store cannot be used afterwards."""
        self._connection.close()

    def begin(self, run: RunRecord, kind: str, *, request: Mapping[str, Any] | None = None) -> None:
        """Add a run with status ``running`` and this process as its writer.

        Args:
            run: record of the run, with a new id.
            kind: name of the command.
            request: request as a JSON object, which is needed to resume the run.
        """
        with self._transaction():
            self._connection.execute(
                "INSERT INTO runs (id, created_utc, kind, status, document, command, machine, "
                "writer, request) VALUES (?, ?, ?, 'running', ?, ?, ?, ?, ?)",
                (
                    *(run.id, run.created_utc, kind, *_columns(run)),
                    *(json.dumps(this_process()), None if request is None else pack(request)),
                ),
            )

    def resume(self, run_id: str) -> None:
        """Make this process the writer of a run again.

        Raises:
            UsageError: no such run, or another process is writing it.
        """
        with self._transaction():
            if self.info(run_id).status == "running":
                raise UsageError(f"run {run_id}: {BEING_WRITTEN.format(run_id)}")
            self._connection.execute(
                "UPDATE runs SET status = 'running', writer = ? WHERE id = ?",
                (json.dumps(this_process()), run_id),
            )

    def add(self, run_id: str, entry: Entry) -> None:
        """Commit an entry; it replaces an entry of the same run with the same key."""
        self.add_all(run_id, (entry,))

    def add_all(self, run_id: str, entries: Iterable[Entry]) -> None:
        """Commit entries in one transaction: all of them, or none if one is invalid."""
        with self._transaction():
            for entry in entries:
                self._insert(run_id, entry)

    def describe(self, run: RunRecord) -> None:
        """Store a run's device and environment as known so far."""
        document, _, machine = _columns(run)
        self._update(run.id, "document = ?, machine = ?", document, machine)

    def arrange(self, run_id: str, keys: Sequence[str]) -> None:
        """Put the entries with some keys into the order of the keys; others keep their places.

        Rows are finished in a random order, and are read in the order in which they were requested.
        """
        with self._transaction():
            execute = self._connection.execute
            known = "SELECT key, number FROM entries WHERE run = ? AND key IS NOT NULL"
            places = dict(execute(known, (run_id,)))
            before = [places[key] for key in dict.fromkeys(keys) if key in places]
            moves = [
                pair for pair in zip(sorted(before), before, strict=True) if len(set(pair)) > 1
            ]
            execute("PRAGMA defer_foreign_keys = ON")
            # A number that another entry still has is written with a minus first.
            for sign, moved in ((-1, moves), (1, [(new, -new) for new, _ in moves])):
                for table, column in (("entries", "number"), ("layers", "entry")):
                    self._connection.executemany(
                        f"UPDATE {table} SET {column} = ? WHERE {column} = ?",  # noqa: S608 - constants
                        [(sign * new, old) for new, old in moved],
                    )

    def finish(self, run: RunRecord, status: str) -> None:
        """End a run: store its status, and its final device and environment.

        Args:
            run: final record of the run; its command line is ignored.
            status: final status: ``done``, ``interrupted`` or ``failed``.
        """
        if status not in _ENDS:
            raise UsageError(f"status {status}: not one of {', '.join(_ENDS)}")
        document, _, machine = _columns(run)
        columns = "status = ?, writer = NULL, document = ?, machine = ?"
        self._update(run.id, columns, status, document, machine)

    def end(self, run_id: str) -> None:
        """Mark a run as interrupted whose process has ended; its entries are kept.

        For processes of another host or container, which are not visible here. If the process still
        runs, it continues and sets the status itself.

        Raises:
            UsageError: there is no such run, or it has ended.
        """
        with self._transaction():
            status = self.info(run_id).status
            if status not in ("running", "killed"):
                raise UsageError(f"run {run_id}: has ended already with status {status}")
            self._connection.execute(
                "UPDATE runs SET status = 'interrupted', writer = NULL WHERE id = ?", (run_id,)
            )

    def tag(self, run_id: str, tag: str) -> None:
        """Add a tag to a run, which may have it already; several runs may share a tag.

        Raises:
            UsageError: there is no such run, or the tag is invalid.
        """
        check_tag(tag)
        with self._transaction():
            self.info(run_id)
            self._connection.execute(
                "INSERT OR IGNORE INTO tags (tag, run) VALUES (?, ?)", (tag, run_id)
            )

    def untag(self, run_id: str, tag: str) -> None:
        """Remove a tag from a run.

        Raises:
            UsageError: the run has no such tag.
        """
        with self._transaction():
            tags = self.info(run_id).tags
            if tag not in tags:
                has = f"its tags: {', '.join(tags)}" if tags else "it has none"
                raise UsageError(f"{tag}: run {run_id} has no such tag; {has}")
            self._connection.execute("DELETE FROM tags WHERE tag = ? AND run = ?", (tag, run_id))

    def delete(self, run_id: str) -> None:
        """Delete a run with its entries and tags.

        Raises:
            UsageError: there is no such run.
        """
        with self._transaction():
            self.info(run_id)
            self._connection.execute("DELETE FROM runs WHERE id = ?", (run_id,))

    def vacuum(self) -> None:
        """Return the space of deleted runs to the file system."""
        from pydlbench.store.connection import translate_errors

        with translate_errors(self.path):
            self._connection.execute("VACUUM")
            self._connection.execute("PRAGMA wal_checkpoint(TRUNCATE)")

    def settle(self) -> None:
        """Merge the log into the file and remove it, so that the file alone is the store."""
        from pydlbench.store.connection import translate_errors

        with translate_errors(self.path):
            self._connection.execute("PRAGMA journal_mode = DELETE")

    def _update(self, run_id: str, columns: str, *values: object) -> None:
        """Change columns of a run.

        Raises:
            StoreError: the run was deleted.
        """
        with self._transaction():
            changed = self._connection.execute(
                f"UPDATE runs SET {columns} WHERE id = ?",  # noqa: S608 - values are bound
                (*values, run_id),
            )
            if not changed.rowcount:
                raise StoreError(
                    f"store {self.path}: run {run_id}: not written, the run was deleted"
                )

    @contextlib.contextmanager
    def _transaction(self) -> Iterator[None]:
        """Run a transaction, which is rolled back on any exception; waits for other writers."""
        from pydlbench.store.connection import translate_errors

        with translate_errors(self.path):
            # Within the try: Ctrl-C right after it would leave the transaction open.
            try:
                self._connection.execute("BEGIN IMMEDIATE")
                yield
                self._connection.execute("COMMIT")
            finally:
                if self._connection.in_transaction:
                    self._connection.execute("ROLLBACK")

    def _insert(self, run_id: str, entry: Entry) -> None:
        from pydlbench.store.connection import INSERT_LAYER

        if not re.fullmatch(r"[a-z][a-z-]{0,31}", entry.table):
            raise UsageError(f"table {entry.table}: not a valid name; nearest: {', '.join(TABLES)}")
        if entry.key is not None:
            self._connection.execute(
                "DELETE FROM entries WHERE run = ? AND key = ?", (run_id, entry.key)
            )
        samples = pack_samples(entry.samples)
        added = self._connection.execute(
            "INSERT INTO entries (run, kind, document, samples, samples_crc, key) "
            "VALUES (?, ?, ?, ?, ?, ?)",
            (
                *(run_id, entry.table, pack(entry.document)),
                *(samples, samples_crc(samples), entry.key),
            ),
        )
        if entry.table == "layer":
            self._connection.execute(INSERT_LAYER, (added.lastrowid, *layer_values(entry.document)))


def _columns(run: RunRecord) -> tuple[bytes, str, str]:
    """Return a run's document, command and machine."""
    plain = run.to_dict()
    document = pack({"device": plain["device"], "environment": plain["environment"]})
    return document, json.dumps(plain["command"]), machine_name(plain["device"])
