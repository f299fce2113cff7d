"""The tables of the store: the statements that lead from each version of the schema to the next.

A new store runs through all of them, so that a store that was brought up to date and one that was
begun today are the same.
"""

from __future__ import annotations

from typing import Final

__all__ = ["APPLICATION_ID", "TO_VERSION_1", "TO_VERSION_2", "VERSION"]

#: ``PRAGMA application_id`` of a store: "pdlb" in ASCII.
APPLICATION_ID: Final = 0x70646C62
#: ``PRAGMA user_version`` of the schema that this package writes.
VERSION: Final = 2

#: Runs and their entries; documents are compressed JSON, samples float64 (seconds).
TO_VERSION_1: Final = (
    """
    CREATE TABLE runs (
        id TEXT NOT NULL PRIMARY KEY,
        created_utc TEXT NOT NULL,
        kind TEXT NOT NULL,
        status TEXT NOT NULL,
        document BLOB NOT NULL
    )
    """,
    """
    CREATE TABLE entries (
        number INTEGER PRIMARY KEY,
        run TEXT NOT NULL REFERENCES runs (id) ON DELETE CASCADE,
        kind TEXT NOT NULL,
        document BLOB NOT NULL,
        samples BLOB
    )
    """,
    "CREATE INDEX entries_of_run ON entries (run)",
)

#: What a list of runs shows stands in columns of its own, as do the numbers of layers: reading a
#: hundred thousand documents would take seconds. Tags; who writes a run; what was asked for.
TO_VERSION_2: Final = (
    "ALTER TABLE runs ADD COLUMN command TEXT NOT NULL DEFAULT '[]'",
    "ALTER TABLE runs ADD COLUMN machine TEXT NOT NULL DEFAULT ''",
    "ALTER TABLE runs ADD COLUMN writer TEXT",
    "ALTER TABLE runs ADD COLUMN request BLOB",
    "ALTER TABLE entries ADD COLUMN key TEXT",
    # CRC-32 of the samples: a document's compression has its own.
    "ALTER TABLE entries ADD COLUMN samples_crc INTEGER",
    "DROP INDEX entries_of_run",
    # Ends with the row's number: counts and orders are read from it alone.
    "CREATE INDEX entries_of_run ON entries (run, kind)",
    "CREATE UNIQUE INDEX entries_by_key ON entries (run, key) WHERE key IS NOT NULL",
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
