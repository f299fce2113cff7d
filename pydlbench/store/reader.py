"""Reads a store, and resolves names of runs: ``last``, prefixes of ids, tags."""

from __future__ import annotations

import contextlib
import itertools
import json
import re
from collections.abc import Collection, Iterable, Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from pydlbench.errors import StoreError, UsageError, nearest
from pydlbench.records.run import RunInfo, RunRecord
from pydlbench.store.entry import (
    LAYER_COLUMNS,
    UNTIMED,
    Entry,
    is_gone,
    unpack,
    unpack_samples,
    without_controls,
)
from pydlbench.units import printable

if TYPE_CHECKING:
    import sqlite3


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
        from pydlbench.store.connection import OPERATOR_CONDITION

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
            tags.setdefault(run, []).append(tag)
        infos = []
        for name, created, kind, status, command, machine, writer, count in rows:
            with self._undamaged(f"run {name}"):
                words = tuple(_texts(command))
                gone = is_gone(None if writer is None else json.loads(writer))
            infos.append(
                RunInfo(
                    id=name,
                    created_utc=created,
                    kind=kind,
                    status="killed" if status == "running" and gone else status,
                    command=words,
                    machine=printable(machine),
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
        row: tuple[Any, ...] = rows[0]
        return row

    def _read(self, statement: str, values: tuple[Any, ...] = ()) -> list[Any]:
        from pydlbench.store.connection import translate_errors

        with translate_errors(self.path):
            return self._connection.execute(statement, values).fetchall()

    @contextlib.contextmanager
    def _undamaged(self, what: str) -> Iterator[None]:
        try:
            yield
        except (ValueError, TypeError, KeyError, AttributeError) as error:
            raise StoreError(
                f"store {self.path}: {what}: a document is damaged ({error}); others can still "
                "be read: omit it, or restore the file from a backup"
            ) from error


def _texts(words: str) -> list[Any]:
    """Return the words of a stored command line, without control characters."""
    command: list[Any] = without_controls(json.loads(words))
    return command
