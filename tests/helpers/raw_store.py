"""A store's file as SQLite sees it, for what only damage or another program does to it."""

from __future__ import annotations

import sqlite3
from contextlib import closing
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from pathlib import Path


def execute(path: Path, statement: str, *values: Any) -> list[tuple[Any, ...]]:
    """Run one statement on the file, and return its rows."""
    with closing(sqlite3.connect(path)) as connection, connection:
        connection.execute("PRAGMA foreign_keys = ON")  # what belongs to a row goes with it
        return connection.execute(statement, values).fetchall()
