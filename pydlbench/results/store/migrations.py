"""Brings a store's schema up to date, in one transaction: whole, or as it was before."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

from pydlbench.errors import StoreError
from pydlbench.results.store.codec import unpack
from pydlbench.results.store.columns import LAYER_COLUMNS, layer_values
from pydlbench.results.store.machine import machine_name
from pydlbench.results.store.schema import APPLICATION_ID, TO_VERSION_1, TO_VERSION_2, VERSION

if TYPE_CHECKING:
    import sqlite3
    from pathlib import Path

__all__ = ["INSERT_LAYER", "check_origin", "migrate"]

_PLACES = ", ".join("?" * (1 + len(LAYER_COLUMNS)))
#: Puts an entry's number and :func:`layer_values` into the table of layers.
INSERT_LAYER = f"INSERT INTO layers VALUES ({_PLACES})"  # noqa: S608 - places for values


def check_origin(connection: sqlite3.Connection, path: Path) -> int:
    """Return the version of a store's schema; 0 of a file without any table.

    Raises:
        StoreError: it is another program's, or of a newer pydlbench.
    """
    application = _pragma(connection, "application_id")
    version = _pragma(connection, "user_version")
    if application == 0 and version == 0:
        tables = connection.execute("SELECT count(*) FROM sqlite_master").fetchone()[0]
        if not tables:
            return 0
    if application != APPLICATION_ID:
        raise StoreError(
            f"store {path}: is another program's SQLite file; name another file with --store"
        )
    if version > VERSION:
        raise StoreError(
            f"store {path}: its schema is version {version} and this pydlbench knows {VERSION}; "
            "update pydlbench, or name another file with --store"
        )
    return version


def migrate(connection: sqlite3.Connection, path: Path, to: int = VERSION) -> None:
    """Bring the schema to a version, where it is older.

    Args:
        connection: outside of any transaction.
        path: for messages.
        to: the version; tests make old stores with it.

    Raises:
        StoreError: as :func:`check_origin`, or a document cannot be read.
        sqlite3.Error: the file cannot be written; it is then left as it was.
    """
    if check_origin(connection, path) >= to:
        return
    connection.execute("BEGIN IMMEDIATE")
    try:
        # Once more: another process may have done it meanwhile.
        version = check_origin(connection, path)
        if version < 1 <= to:
            _run(connection, TO_VERSION_1)
        if version < 2 <= to:
            _run(connection, TO_VERSION_2)
            _fill_columns(connection, path)
        connection.execute(f"PRAGMA application_id = {APPLICATION_ID}")
        connection.execute(f"PRAGMA user_version = {max(version, to)}")
        connection.execute("COMMIT")
    except BaseException:
        if connection.in_transaction:
            connection.execute("ROLLBACK")
        raise


def _fill_columns(connection: sqlite3.Connection, path: Path) -> None:
    """Version 2: columns from the documents that version 1 had only."""
    try:
        for name, data in connection.execute("SELECT id, document FROM runs").fetchall():
            run = unpack(data)
            connection.execute(
                "UPDATE runs SET command = ?, machine = ? WHERE id = ?",
                (json.dumps(list(run.get("command", ()))), machine_name(run.get("device")), name),
            )
        layers = connection.execute("SELECT number, document FROM entries WHERE kind = 'layer'")
        connection.executemany(
            INSERT_LAYER, ((number, *layer_values(unpack(data))) for number, data in layers)
        )
    except ValueError as error:
        raise StoreError(
            f"store {path}: cannot be brought up to date, a document in it is damaged ({error}); "
            "name another file with --store, or restore it from a backup"
        ) from error


def _run(connection: sqlite3.Connection, statements: tuple[str, ...]) -> None:
    for statement in statements:
        connection.execute(statement)


def _pragma(connection: sqlite3.Connection, name: str) -> int:
    value: Any = connection.execute(f"PRAGMA {name}").fetchone()[0]
    return int(value)
