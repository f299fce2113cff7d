"""The store: writes runs, entry by entry, reads them back, and resolves their names."""

import contextlib
import itertools
import json
import re
import sqlite3
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from types import TracebackType
from typing import Any, Final, Self

from pydlbench.errors import StoreError, UsageError, nearest
from pydlbench.records.run import RunInfo, RunRecord
from pydlbench.store.connection import (
    INSERT_LAYER,
    OPERATOR_CONDITION,
    open_reader,
    open_writer,
    translate_errors,
)
from pydlbench.store.entry import (
    BEING_WRITTEN,
    DAMAGE,
    LAYER_COLUMNS,
    TABLES,
    UNTIMED,
    Entry,
    is_gone,
    layer_values,
    pack,
    pack_samples,
    samples_crc,
    this_process,
    unpack,
    unpack_samples,
)
from pydlbench.store.place import default_path, machine_name, user_path
from pydlbench.units import printable

# -----------------------------------------------------------------------------
# Names of runs: ``last``, prefixes of ids, tags.

_LAST: Final = re.compile(r"last(?:~([0-9]{1,9}))?")
_TAG: Final = re.compile(r"[\w.+@][\w.+@:-]{0,63}")
_SHORTEST: Final = 4


def resolve_run_id(text: str, ids: Sequence[str], tags: Collection[str], path: Path) -> str:
    """Return the full id for an id, a prefix of one, or ``last``.

    Args:
        text: id, prefix of an id, or ``last``, as the user gave it.
        ids: all ids, the newest first.
        tags: all tags, for the message.
        path: path of the store, for the message.

    Raises:
        UsageError: the text matches no run, or several.
    """
    if text in ids:
        return text
    if not ids:
        raise UsageError(f"run {text}: no runs in {path} yet; start with: pydlbench layers")
    if match := _LAST.fullmatch(text):
        back = int(match[1] or 0)
        if back >= len(ids):
            count = "is 1 run" if len(ids) == 1 else f"are {len(ids)} runs"
            raise UsageError(f"run {text}: there {count} only; nearest: last~{len(ids) - 1}")
        return ids[back]
    meant = _beginning(text, ids)
    if len(meant) == 1:
        return meant[0]
    if meant:
        few = ", ".join(meant[:4]) + ("..." if len(meant) > 4 else "")
        raise UsageError(f"run {text}: {len(meant)} runs match: {few}; give more characters")
    near = nearest(text, [*tags, *ids, *map(_tail, ids)]) or ["last"]
    text = text or "''"
    raise UsageError(f"run {text}: no such run; nearest: {', '.join(near)}; see: pydlbench runs")


def short_id(name: str, ids: Sequence[str]) -> str:
    """Return the shortest unique prefix of the part of an id after its dash."""
    tail = _tail(name)
    for length in range(_SHORTEST, len(tail)):
        if _beginning(tail[:length], ids) == [name]:
            return tail[:length]
    return tail if _beginning(tail, ids) == [name] else name


def check_tag(tag: str) -> None:
    """Check that a text can be a tag.

    Raises:
        UsageError: it has invalid characters, is too long, or has another meaning in ``find``.
    """
    if not _TAG.fullmatch(tag):
        plain = re.sub(r"[^\w.+@:-]+", "-", tag).strip("-:")[:64] or "baseline"
        raise UsageError(
            f"tag {tag!r}: up to 64 letters, digits and . _ + @ : - only; nearest: {plain}"
        )
    if _LAST.fullmatch(tag):
        raise UsageError(f"tag {tag}: reserved for the newest run; nearest: {tag}-one")
    if tag.endswith(".json") and tag != ".json":
        raise UsageError(f"tag {tag}: reserved for files; nearest: {tag[:-5]}-json")


def _beginning(text: str, ids: Sequence[str]) -> list[str]:
    if not text:
        return []
    return [name for name in ids if name.startswith(text) or _tail(name).startswith(text)]


def _tail(name: str) -> str:
    return name.rpartition("-")[2]


# -----------------------------------------------------------------------------
# Reading a store.

# By the order in which runs started, not by their dates: runs of a clock that was once set ahead
# would stay the newest.
_NEWEST_FIRST = "ORDER BY runs.rowid DESC"


class Reader:
    """The reading half of :class:`pydlbench.store.store.Store`.

    Args:
        connection: an open store of the current schema.
        path: path of the store's file.
    """

    def __init__(self, connection: sqlite3.Connection, path: Path) -> None:
        self.path = path
        self._connection = connection

    def runs(self, *, tag: str | None = None, limit: int | None = None) -> list[RunInfo]:
        """Return runs, the newest first, without reading their documents.

        Args:
            tag: tag of the runs to return; None for all runs.
            limit: maximum number of runs.
        """
        clause = "" if tag is None else "WHERE id IN (SELECT run FROM tags WHERE tag = ?)"
        return self._infos(clause, () if tag is None else (tag,), -1 if limit is None else limit)

    def ids(self) -> list[str]:
        """Return the ids of all runs, the newest first."""
        return [row[0] for row in self._read(f"SELECT id FROM runs {_NEWEST_FIRST}")]  # noqa: S608 - a constant

    def info(self, run_id: str) -> RunInfo:
        """Return the summary of a run.

        Args:
            run_id: full id.

        Raises:
            UsageError: there is no such run.
        """
        infos = self._infos("WHERE id = ?", (run_id,), 1)
        if not infos:
            raise UsageError(f"run {run_id}: no such run in {self.path}; see: pydlbench runs")
        return infos[0]

    def find(self, text: str, *, unfinished: bool = False) -> RunInfo:
        """Return the run with a name.

        Args:
            text: an id; a tag (the newest run with it); ``last``, the newest run with a result;
                ``last~2``, two runs before that; or a prefix of an id or of the part after its last
                dash.
            unfinished: whether ``last`` may be a run that has no result yet.

        Raises:
            UsageError: the name matches no run, or several.
        """
        ids = self.ids()
        if (last := _LAST.fullmatch(text)) and text not in ids:
            with_result = (
                run_id
                for run_id in ids
                if self._has_result(run_id) or (unfinished and not self._has_ended(run_id))
            )
            ids = list(itertools.islice(with_result, int(last[1] or 0) + 1)) or ids
        tags = {row[0] for row in self._read("SELECT tag FROM tags")}
        if text not in ids and text in tags:
            return self.runs(tag=text, limit=1)[0]
        return self.info(resolve_run_id(text, ids, tags, self.path))

    def record(self, run_id: str) -> RunRecord:
        """Return a run's record."""
        statement = "SELECT id, created_utc, command, document FROM runs WHERE id = ?"
        name, created, command, data = self._row(statement, run_id)
        with self._undamaged(f"run {run_id}"):
            values = {**unpack(data), "id": name, "created_utc": created}
            return RunRecord.from_dict({**values, "command": _texts(command)})

    def request(self, run_id: str) -> dict[str, Any] | None:
        """Return the request that started a run, or None if it was not stored."""
        data = self._row("SELECT request FROM runs WHERE id = ?", run_id)[0]
        with self._undamaged(f"run {run_id}"):
            return None if data is None else unpack(data)

    def entries(
        self,
        run_id: str,
        table: str | None = None,
        *,
        samples: bool = False,
        places: Iterable[int] | None = None,
    ) -> list[Entry]:
        """Return a run's entries in the order in which they were finished.

        Args:
            run_id: full id.
            table: table whose entries are returned; None for all tables.
            samples: whether to include the raw samples, in seconds; documents of steps always
                contain them.
            places: return only the entries at these positions of the table, counted from 0; for
                ``layer`` these are the lines of ``columns``. Only their documents are read, which
                is fast for a few rows of a large run.
        """
        fields = "number, kind, document, CASE WHEN ?3 OR kind = 'step' THEN samples END"
        select = f"SELECT {fields}, samples_crc, key FROM entries WHERE run = ?1"  # noqa: S608 - constants
        of_table = "(?2 IS NULL OR kind = ?2)"
        rows: list[Any] = []
        if places is None:
            statement = f"{select} AND {of_table} ORDER BY number"
            rows = self._read(statement, (run_id, table, samples))
        else:
            numbers = self._read(
                f"SELECT number FROM entries WHERE run = ?1 AND {of_table} ORDER BY number",  # noqa: S608 - a constant
                (run_id, table),
            )
            for place in sorted(set(places)):
                values = (run_id, None, samples, *numbers[place])
                rows += self._read(f"{select} AND number = ?4", values)
        return [self._entry(run_id, samples, row) for row in rows]

    def columns(
        self, run_id: str, table: str = "layer", names: Sequence[str] = LAYER_COLUMNS
    ) -> list[tuple[Any, ...]]:
        """Return the columns of a run's layers, in the order in which they were finished.

        Much faster than reading the documents of large runs.

        Args:
            run_id: full id.
            table: only ``layer`` has columns.
            names: some of ``LAYER_COLUMNS``; fewer are read faster.
        """
        if table != "layer":
            raise UsageError(f"table {table}: it has no columns; nearest: layer")
        wanted = ", ".join(f"layers.{LAYER_COLUMNS[LAYER_COLUMNS.index(name)]}" for name in names)
        return self._read(
            f"SELECT {wanted} FROM entries JOIN layers ON entry = number "  # noqa: S608 - constants
            "WHERE run = ? AND entries.kind = 'layer' ORDER BY number",
            (run_id,),
        )

    def documents(self, table: str, limit: int) -> list[tuple[int, dict[str, Any]]]:
        """Return the newest entries of a table with their numbers, of all runs.

        Args:
            table: one of ``TABLES``.
            limit: maximum number of entries; the newest are returned, in this order.
        """
        rows = self._read(
            "SELECT number, document FROM entries WHERE kind = ? ORDER BY number DESC LIMIT ?",
            (table, limit),
        )
        with self._undamaged(table):
            return [(number, unpack(document)) for number, document in rows]

    def newest(self, keys: Iterable[str]) -> dict[str, dict[str, Any]]:
        """Return the newest operator or count of page faults of each key, of all runs.

        Args:
            keys: keys without an entry are omitted from the result.
        """
        documents: dict[str, dict[str, Any]] = {}
        for key in dict.fromkeys(keys):
            rows = self._read(
                f"SELECT document FROM entries WHERE key = ? AND {OPERATOR_CONDITION} "  # noqa: S608 - a constant
                "ORDER BY number DESC LIMIT 1",
                (key,),
            )
            if rows:
                with self._undamaged(key):
                    documents[key] = unpack(rows[0][0])
        return documents

    def _has_ended(self, run_id: str) -> bool:
        """Whether a run cannot get further rows."""
        ended = "SELECT 1 FROM runs WHERE id = ? AND status IN ('done', 'failed')"
        return bool(self._read(ended, (run_id,)))

    def _has_result(self, run_id: str) -> bool:
        """Whether a run has a row that was measured or computed; an agreement is none."""
        ok = "SELECT 1 FROM layers JOIN entries ON entry = number WHERE run = ? AND status = 'ok'"
        if self._read(f"{ok} LIMIT 1", (run_id,)):
            return True
        others = self._read(
            "SELECT document FROM entries WHERE run = ? AND kind NOT IN ('layer', 'agreement')",
            (run_id,),
        )
        with self._undamaged(f"run {run_id}"):
            return any(unpack(data).get("status", "ok") == "ok" for (data,) in others)

    def _infos(self, clause: str, values: tuple[Any, ...], limit: int) -> list[RunInfo]:
        untimed = ", ".join(f"'{name}'" for name in UNTIMED)
        counted = f"SELECT count(*) FROM entries WHERE run = id AND entries.kind NOT IN ({untimed})"  # noqa: S608 - constants
        rows = self._read(
            f"SELECT id, created_utc, kind, status, command, machine, writer, ({counted}) "  # noqa: S608 - values are bound
            f"FROM runs {clause} {_NEWEST_FIRST} LIMIT ?",
            (*values, limit),
        )
        tags: dict[str, list[str]] = {}
        for run, tag in self._read("SELECT run, tag FROM tags ORDER BY tag"):
            tags.setdefault(run, []).append(printable(str(tag)))
        infos = []
        # A damaged column may have another type.
        for name, created, kind, stored, command, machine, writer, count in rows:
            status = stored
            try:
                words = tuple(_texts(command))
                if is_gone(None if writer is None else json.loads(writer)) and stored == "running":
                    status = "killed"
            except DAMAGE:  # the other runs are listed
                words, status = (), "damaged"
            infos.append(
                RunInfo(
                    id=printable(str(name)),
                    created_utc=printable(str(created)),
                    kind=printable(str(kind)),
                    status=printable(str(status)),
                    command=words,
                    machine=printable(str(machine)),
                    tags=tuple(tags.get(name, ())),
                    measurements=count,
                )
            )
        return infos

    def _entry(self, run_id: str, samples: bool, row: tuple[Any, ...]) -> Entry:
        number, kind, data, raw, crc, key = row
        with self._undamaged(f"run {run_id}, entry {number}"):
            document, seconds = unpack(data), unpack_samples(raw, crc)
        if kind == "step" and seconds is not None:
            document["samples_s"] = list(seconds)
        return Entry(kind, document, seconds if samples else None, key)

    def _row(self, statement: str, run_id: str) -> tuple[Any, ...]:
        rows = self._read(statement, (run_id,))
        if not rows:
            self.info(run_id)  # raises UsageError
        return tuple(rows[0])

    def _read(self, statement: str, values: tuple[Any, ...] = ()) -> list[Any]:
        with translate_errors(self.path):
            return self._connection.execute(statement, values).fetchall()

    @contextlib.contextmanager
    def _undamaged(self, what: str) -> Iterator[None]:
        try:
            yield
        except DAMAGE as error:
            raise StoreError(
                f"store {self.path}: {what}: a document is damaged ({error}); others can still "
                "be read: omit it, or restore the file from a backup"
            ) from error


def _texts(words: str) -> list[str]:
    """Return the words of a stored command line, without control characters."""
    return [*map(printable, json.loads(words))]


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
        with translate_errors(self.path):
            self._connection.execute("VACUUM")
            self._connection.execute("PRAGMA wal_checkpoint(TRUNCATE)")

    def settle(self) -> None:
        """Merge the log into the file and remove it, so that the file alone is the store."""
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
