"""Opens the file, and turns what SQLite says into one line with what to do.

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
from typing import TYPE_CHECKING, Final

from pydlbench.errors import StoreError
from pydlbench.results.store.migrations import check_origin, migrate
from pydlbench.results.store.schema import VERSION

if TYPE_CHECKING:
    from collections.abc import Iterator

__all__ = ["BUSY_S", "explain", "open_reader", "open_writer", "translated"]

#: Seconds that a process waits for another one's transaction.
BUSY_S: Final = 15.0
_ELSE: Final = "name another file with --store"
# What is no text in a damaged file is part of the message.
_LONGEST: Final = 200


def open_writer(path: Path) -> sqlite3.Connection:
    """Open a store for writing; a new one is begun, an older one brought up to date.

    Raises:
        StoreError: it cannot be written or is no store.
    """
    with translated(path):
        connection = sqlite3.connect(path.absolute(), timeout=BUSY_S, isolation_level=None)
        try:
            migrate(connection, path)
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
    """Open a store for reading; one of an older schema is brought up to date in memory.

    Raises:
        StoreError: it cannot be read or is no store.
    """
    with translated(path):
        connection = _read_only(path)
        try:
            version = check_origin(connection, path)
            if version == VERSION:
                return connection
            copy = sqlite3.connect(":memory:", isolation_level=None)
            connection.backup(copy)
        except BaseException:
            connection.close()
            raise
        connection.close()
        try:
            migrate(copy, path)
        except BaseException:
            copy.close()
            raise
        return copy


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
