"""Opens the store's file and turns SQLite's errors into one line with a remedy.

Writers use a write-ahead log, so that readers and a second writer do not block each other. Each
commit is on the disk before a writer goes on, so that finished rows survive a power cut.

Readers never write. If the folder is read-only, so that the log cannot be opened, the file is read
without it. A log that has not been merged holds the newest rows; it is then merged in a copy.
"""

import contextlib
import shlex
import shutil
import sqlite3
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final

from pydlbench.errors import StoreError
from pydlbench.store.entry import LAYER_COLUMNS

_PLACES = ", ".join("?" * (1 + len(LAYER_COLUMNS)))
#: Inserts an entry's number and :func:`~pydlbench.store.entry.layer_values` into ``layers``.
INSERT_LAYER: Final = f"INSERT INTO layers VALUES ({_PLACES})"  # noqa: S608 - placeholders

#: ``PRAGMA application_id`` of a store: "pdlb" in ASCII.
APPLICATION_ID: Final = 0x70646C62
#: ``PRAGMA user_version``: version of the tables below.
VERSION: Final = 2

#: Condition of the entries that are indexed by key alone; queries must repeat it literally.
OPERATOR_CONDITION: Final = "kind IN ('operator', 'faults')"

#: Runs, their entries and tags. Documents are compressed JSON, samples are float64 (seconds). What
#: a list of runs shows has its own columns, and so have the numbers of layers: reading a hundred
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
    # Samples have a CRC-32; the compression of documents includes a checksum.
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
    # The index contains the row number as well, which is enough for counting and ordering.
    "CREATE INDEX entries_of_run ON entries (run, kind)",
    "CREATE UNIQUE INDEX entries_by_key ON entries (run, key) WHERE key IS NOT NULL",
    # Forecasts look up operators and faults of all runs.
    f"CREATE INDEX entries_of_operators ON entries (key) WHERE {OPERATOR_CONDITION}",
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
    """Return whether a file is a store, False if it has no table yet.

    Raises:
        StoreError: another program or another version of pydlbench wrote the file.
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
    """Create the tables of a new store in one transaction.

    Args:
        connection: connection to the file, without an open transaction.
        path: path of the file, for messages.

    Raises:
        StoreError: another program or another version of pydlbench wrote the file.
        sqlite3.Error: the file cannot be written; in that case it is unchanged.
    """
    if check_origin(connection, path):
        return
    connection.execute("BEGIN IMMEDIATE")
    try:
        # Checked again: another process may have created the tables meanwhile.
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


#: Seconds to wait for the transaction of another process.
BUSY_S: Final = 15.0
_OTHER_FILE: Final = "name another file with --store"
# SQLite's messages quote damaged files.
_MAX_MESSAGE_CHARACTERS: Final = 200


def open_writer(path: Path) -> sqlite3.Connection:
    """Open a store for writing, or create it.

    Raises:
        StoreError: the file cannot be written or is not a store.
    """
    with translate_errors(path):
        connection = sqlite3.connect(path.absolute(), timeout=BUSY_S, isolation_level=None)
        try:
            begin_store(connection, path)
            _use_log(connection)
            connection.execute("PRAGMA synchronous = FULL")
            connection.execute("PRAGMA foreign_keys = ON")
            # SQLite silently opens a file without write permission for reading.
            connection.execute("BEGIN IMMEDIATE")
            connection.execute(f"PRAGMA user_version = {VERSION}")
            connection.execute("ROLLBACK")
        except BaseException:
            connection.close()
            raise
    return connection


def open_reader(path: Path) -> sqlite3.Connection:
    """Open a store for reading; a file without tables is an empty store.

    Raises:
        StoreError: the file cannot be read or is not a store.
    """
    with translate_errors(path):
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
def translate_errors(path: Path) -> Iterator[None]:
    """Turn SQLite's errors into ``StoreError``."""
    try:
        yield
    except (sqlite3.Error, UnicodeDecodeError) as error:  # also of damaged names of tables
        raise explain(error, path) from error


def explain(error: sqlite3.Error | UnicodeDecodeError, path: Path) -> StoreError:
    """Return an error with one line that names the problem and the remedy."""
    code = getattr(error, "sqlite_errorcode", 0)
    kind = code & 0xFF  # without the extended part of the code
    where = f"store {path}"
    text = " ".join(str(error).split())[:_MAX_MESSAGE_CHARACTERS]
    if path.is_dir():
        return StoreError(f"{where}: is a directory; nearest: --store {path / 'store.sqlite'}")
    if kind in (sqlite3.SQLITE_FULL, sqlite3.SQLITE_IOERR):
        why = "the disk is full" if kind == sqlite3.SQLITE_FULL else f"writing failed ({text})"
        return StoreError(f"{where}: not written, {why}; make room for it, or {_OTHER_FILE}")
    if kind in (sqlite3.SQLITE_READONLY, sqlite3.SQLITE_PERM):
        return StoreError(f"{where}: is read-only; make it writable, or {_OTHER_FILE}")
    if kind == sqlite3.SQLITE_CANTOPEN:
        if not path.parent.is_dir():
            return StoreError(
                f"{where}: no such directory: {path.parent}; make it, or {_OTHER_FILE}"
            )
        return StoreError(
            f"{where}: cannot be opened, no permission; change that, or {_OTHER_FILE}"
        )
    if kind in (sqlite3.SQLITE_BUSY, sqlite3.SQLITE_LOCKED):
        return StoreError(
            f"{where}: another process has locked it for {BUSY_S:g} s; wait for that, "
            f"or {_OTHER_FILE}"
        )
    if kind == sqlite3.SQLITE_NOTADB:
        return StoreError(f"{where}: not an SQLite file; {_OTHER_FILE}")
    if kind == sqlite3.SQLITE_CORRUPT or "decode" in text:
        file = shlex.quote(str(path))
        # The sqlite3 of Linux distributions is often built without .recover.
        return StoreError(
            f"{where}: is damaged ({text}); save what can be read, run by run with: pydlbench "
            f"export RUN --format json --samples --store {file}, or all with the sqlite3 of "
            f"sqlite.org: sqlite3 {file} .recover | sqlite3 recovered.sqlite; or {_OTHER_FILE}"
        )
    if kind == sqlite3.SQLITE_CONSTRAINT:
        gone = "FOREIGN" in text
        why = "its run was deleted" if gone else "it has a run of this id already"
        return StoreError(f"{where}: not written, {why} ({text}); {_OTHER_FILE}")
    return StoreError(f"{where}: {text}; {_OTHER_FILE}")


def _use_log(connection: sqlite3.Connection) -> None:
    """Switch to the write-ahead log, unless the file system does not support it."""
    deadline = time.monotonic() + BUSY_S
    while True:
        try:
            connection.execute("PRAGMA journal_mode = WAL")
        except sqlite3.OperationalError as error:
            # Unlike other statements, this one does not wait for other processes.
            if error.sqlite_errorcode & 0xFF != sqlite3.SQLITE_BUSY or time.monotonic() > deadline:
                raise
            time.sleep(0.01)
        else:
            return


def _read_only(path: Path) -> sqlite3.Connection:
    if not path.exists() and path.parent.is_dir():
        raise StoreError(f"store {path}: no such file; create it with: pydlbench layers")
    try:
        return _open_uri(path, "mode=ro")
    except sqlite3.OperationalError as error:
        kind = error.sqlite_errorcode & 0xFF
        if kind not in (sqlite3.SQLITE_CANTOPEN, sqlite3.SQLITE_READONLY) or not path.is_file():
            raise
    log = path.with_name(f"{path.name}-wal")
    with contextlib.suppress(OSError):
        if log.stat().st_size:
            return _merge_copy(path, log)
    return _open_uri(path, "mode=ro&immutable=1")


def _open_uri(path: Path, query: str) -> sqlite3.Connection:
    # Absolute: ":memory:" is not a file for SQLite, and two slashes precede a host.
    address = f"{path.absolute().as_uri()}?{query}"
    connection = sqlite3.connect(address, uri=True, timeout=BUSY_S, isolation_level=None)
    try:
        connection.execute("SELECT count(*) FROM sqlite_master").fetchone()
    except BaseException:
        connection.close()
        raise
    return connection


def _merge_copy(path: Path, log: Path) -> sqlite3.Connection:
    """Return the file merged with its log, in memory; the merge is done in a temporary folder."""
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
