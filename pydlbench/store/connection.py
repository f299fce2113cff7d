"""Opens the store's file, and turns what SQLite says into one line with what to do.

Writers use a write-ahead log, so that readers and a second writer are never in the way, and have
each commit on the disk before they go on: after a power cut, what was finished is there.

Readers never write. Where the log cannot be opened because the folder is read-only, the file is
read as it is; a log that is there and has not been merged is read in a copy, for it holds the
newest rows.
"""

from __future__ import annotations

import contextlib
import shlex
import shutil
import sqlite3
import tempfile
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from pydlbench.errors import StoreError
from pydlbench.store.entry import LAYER_COLUMNS

if TYPE_CHECKING:
    from collections.abc import Iterator


_PLACES = ", ".join("?" * (1 + len(LAYER_COLUMNS)))
#: Puts an entry's number and :func:`~pydlbench.store.entry.layer_values` into the table of layers.
INSERT_LAYER: Final = f"INSERT INTO layers VALUES ({_PLACES})"  # noqa: S608 - places for values

#: ``PRAGMA application_id`` of a store: "pdlb" in ASCII.
APPLICATION_ID: Final = 0x70646C62
#: ``PRAGMA user_version``: the version of the tables below.
VERSION: Final = 2

#: Which entries are found by their keys alone; a query has to say it in the same words.
OF_OPERATORS: Final = "kind IN ('operator', 'faults')"

#: Runs, their entries and tags. Documents are compressed JSON, samples float64 (seconds). What a
#: list of runs shows stands in columns of its own, as do the numbers of layers: reading a hundred
#: thousand documents would take seconds.
TABLES: Final = (
    """
    CREATE TABLE runs (
        id TEXT NOT NULL PRIMARY KEY,
        created_utc TEXT NOT NULL,
        kind TEXT NOT NULL,
        status TEXT NOT NULL,
        document BLOB NOT NULL,
        command TEXT NOT NULL DEFAULT '[]',
        machine TEXT NOT NULL DEFAULT '',
        writer TEXT,
        request BLOB
    )
    """,
    # The samples have a CRC-32: a document's compression has its own.
    """
    CREATE TABLE entries (
        number INTEGER PRIMARY KEY,
        run TEXT NOT NULL REFERENCES runs (id) ON DELETE CASCADE,
        kind TEXT NOT NULL,
        document BLOB NOT NULL,
        samples BLOB,
        key TEXT,
        samples_crc INTEGER
    )
    """,
    # Ends with the row's number: counts and orders are read from it alone.
    "CREATE INDEX entries_of_run ON entries (run, kind)",
    "CREATE UNIQUE INDEX entries_by_key ON entries (run, key) WHERE key IS NOT NULL",
    # What forecasts are made of is looked up whatever run it is from.
    f"CREATE INDEX entries_of_operators ON entries (key) WHERE {OF_OPERATORS}",
    """
    CREATE TABLE layers (
        entry INTEGER PRIMARY KEY REFERENCES entries (number) ON DELETE CASCADE,
        layer TEXT, kind TEXT, problem TEXT, batch INTEGER, pass TEXT, precision TEXT, device TEXT,
        backend TEXT, mode TEXT, cache TEXT, timing TEXT, threads INTEGER, fuse TEXT,
        layout_request TEXT, propagation TEXT, status TEXT, median REAL, ci_low REAL, ci_high REAL,
        n INTEGER, clock_hz REAL, contended INTEGER, algorithm TEXT, flops INTEGER,
        flops_executed INTEGER, bytes INTEGER
    )
    """,
    """
    CREATE TABLE tags (
        tag TEXT NOT NULL,
        run TEXT NOT NULL REFERENCES runs (id) ON DELETE CASCADE,
        PRIMARY KEY (tag, run)
    ) WITHOUT ROWID
    """,
    "CREATE INDEX tags_of_run ON tags (run)",
)


def check_origin(connection: sqlite3.Connection, path: Path) -> bool:
    """Return whether a file is a store; one without any table is none yet.

    Raises:
        StoreError: it is another program's, or of another version of pydlbench.
    """
    application = _pragma(connection, "application_id")
    version = _pragma(connection, "user_version")
    if application == 0 and version == 0:
        tables = connection.execute("SELECT count(*) FROM sqlite_master").fetchone()[0]
        if not tables:
            return False
    if application != APPLICATION_ID:
        raise StoreError(
            f"store {path}: is another program's SQLite file; name another file with --store"
        )
    if version != VERSION:
        raise StoreError(
            f"store {path}: its schema is version {version} and this pydlbench knows {VERSION}; "
            "use the pydlbench that wrote it, or name another file with --store"
        )
    return True


def begin_store(connection: sqlite3.Connection, path: Path) -> None:
    """Make the tables of a new store, in one transaction: all or none.

    Args:
        connection: outside of any transaction.
        path: for messages.

    Raises:
        StoreError: as :func:`check_origin`.
        sqlite3.Error: the file cannot be written; it is then left as it was.
    """
    if check_origin(connection, path):
        return
    connection.execute("BEGIN IMMEDIATE")
    try:
        # Once more: another process may have done it meanwhile.
        if not check_origin(connection, path):
            for statement in TABLES:
                connection.execute(statement)
            connection.execute(f"PRAGMA application_id = {APPLICATION_ID}")
            connection.execute(f"PRAGMA user_version = {VERSION}")
        connection.execute("COMMIT")
    except BaseException:
        if connection.in_transaction:
            connection.execute("ROLLBACK")
        raise


def _pragma(connection: sqlite3.Connection, name: str) -> int:
    value: Any = connection.execute(f"PRAGMA {name}").fetchone()[0]
    return int(value)


#: Seconds that a process waits for another one's transaction.
BUSY_S: Final = 15.0
_ELSE: Final = "name another file with --store"
# What is no text in a damaged file is part of the message.
_LONGEST: Final = 200


def open_writer(path: Path) -> sqlite3.Connection:
    """Open a store for writing; a new one is begun.

    Raises:
        StoreError: it cannot be written or is no store.
    """
    with translated(path):
        connection = sqlite3.connect(path.absolute(), timeout=BUSY_S, isolation_level=None)
        try:
            begin_store(connection, path)
            _use_log(connection)
            connection.execute("PRAGMA synchronous = FULL")
            connection.execute("PRAGMA foreign_keys = ON")
            # SQLite opens a file that it may not write for reading, without a word.
            connection.execute("BEGIN IMMEDIATE")
            connection.execute(f"PRAGMA user_version = {VERSION}")
            connection.execute("ROLLBACK")
        except BaseException:
            connection.close()
            raise
    return connection


def open_reader(path: Path) -> sqlite3.Connection:
    """Open a store for reading; a file without any table is an empty one.

    Raises:
        StoreError: it cannot be read or is no store.
    """
    with translated(path):
        connection = _read_only(path)
        try:
            if check_origin(connection, path):
                return connection
        except BaseException:
            connection.close()
            raise
        connection.close()
        empty = sqlite3.connect(":memory:", isolation_level=None)
        begin_store(empty, path)
        return empty


@contextlib.contextmanager
def translated(path: Path) -> Iterator[None]:
    """Raise what SQLite raises as ``StoreError``."""
    try:
        yield
    except sqlite3.Error as error:
        raise explain(error, path) from error


def explain(error: sqlite3.Error, path: Path) -> StoreError:
    """Return an error that says in one line what is wrong with a store and what to do."""
    code = getattr(error, "sqlite_errorcode", 0)
    kind = code & 0xFF  # without what tells one kind of input or output error from another
    where = f"store {path}"
    text = " ".join(str(error).split())[:_LONGEST]
    if path.is_dir():
        return StoreError(f"{where}: is a directory; nearest: --store {path / 'store.sqlite'}")
    if kind in (sqlite3.SQLITE_FULL, sqlite3.SQLITE_IOERR):
        why = "the disk is full" if kind == sqlite3.SQLITE_FULL else f"the disk refused ({text})"
        return StoreError(f"{where}: not written, {why}; make room for it, or {_ELSE}")
    if kind in (sqlite3.SQLITE_READONLY, sqlite3.SQLITE_PERM):
        return StoreError(f"{where}: is read-only; make it writable, or {_ELSE}")
    if kind == sqlite3.SQLITE_CANTOPEN:
        if not path.parent.is_dir():
            return StoreError(f"{where}: no such directory: {path.parent}; make it, or {_ELSE}")
        return StoreError(f"{where}: cannot be opened, no permission; change that, or {_ELSE}")
    if kind in (sqlite3.SQLITE_BUSY, sqlite3.SQLITE_LOCKED):
        return StoreError(
            f"{where}: another process has locked it for {BUSY_S:g} s; wait for that, or {_ELSE}"
        )
    if kind == sqlite3.SQLITE_NOTADB:
        return StoreError(f"{where}: is no SQLite file; {_ELSE}")
    if kind == sqlite3.SQLITE_CORRUPT or "decode" in text:
        file = shlex.quote(str(path))
        # Distributions build a sqlite3 without what .recover needs.
        return StoreError(
            f"{where}: is damaged ({text}); save what can be read, run by run with: pydlbench "
            f"export RUN --format json --samples --store {file}, or all with the sqlite3 of "
            f"sqlite.org: sqlite3 {file} .recover | sqlite3 recovered.sqlite; or {_ELSE}"
        )
    if kind == sqlite3.SQLITE_CONSTRAINT:
        gone = "FOREIGN" in text
        why = "its run is not in it any more" if gone else "there is a run of this id in it"
        return StoreError(f"{where}: not written, {why} ({text}); {_ELSE}")
    return StoreError(f"{where}: {text}; {_ELSE}")


def _use_log(connection: sqlite3.Connection) -> None:
    """Switch to the write-ahead log; a file system that cannot have one stays without."""
    deadline = time.monotonic() + BUSY_S
    while True:
        try:
            connection.execute("PRAGMA journal_mode = WAL")
        except sqlite3.OperationalError as error:
            # Switching does not wait for others by itself.
            if error.sqlite_errorcode & 0xFF != sqlite3.SQLITE_BUSY or time.monotonic() > deadline:
                raise
            time.sleep(0.01)
        else:
            return


def _read_only(path: Path) -> sqlite3.Connection:
    if not path.exists() and path.parent.is_dir():
        raise StoreError(f"store {path}: there is none yet; begin with: pydlbench layers")
    try:
        return _checked(path, "mode=ro")
    except sqlite3.OperationalError as error:
        kind = error.sqlite_errorcode & 0xFF
        if kind not in (sqlite3.SQLITE_CANTOPEN, sqlite3.SQLITE_READONLY) or not path.is_file():
            raise
    log = path.with_name(f"{path.name}-wal")
    with contextlib.suppress(OSError):
        if log.stat().st_size:
            return _copied(path, log)
    return _checked(path, "mode=ro&immutable=1")


def _checked(path: Path, how: str) -> sqlite3.Connection:
    # Absolute: SQLite takes ":memory:" for no file, and what follows two slashes for a host.
    address = f"{path.absolute().as_uri()}?{how}"
    connection = sqlite3.connect(address, uri=True, timeout=BUSY_S, isolation_level=None)
    try:
        connection.execute("SELECT count(*) FROM sqlite_master").fetchone()
    except BaseException:
        connection.close()
        raise
    return connection


def _copied(path: Path, log: Path) -> sqlite3.Connection:
    """Read file and log in memory, by way of a copy beside each other."""
    with tempfile.TemporaryDirectory(prefix="pydlbench-") as folder:
        copy = Path(folder) / path.name
        shutil.copyfile(path, copy)
        shutil.copyfile(log, copy.with_name(log.name))
        merged = sqlite3.connect(copy, isolation_level=None)
        connection = sqlite3.connect(":memory:", isolation_level=None)
        try:
            merged.backup(connection)
        except BaseException:
            connection.close()
            raise
        finally:
            merged.close()
    return connection
