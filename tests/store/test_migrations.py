from __future__ import annotations

import json
import sqlite3
import subprocess
import sys
import zlib

import pytest

from pydlbench.errors import StoreError
from pydlbench.store.connection import APPLICATION_ID, VERSION
from pydlbench.store.store import Store

# As version 1 wrote it; not what the package has today.
VERSION_1 = """
CREATE TABLE runs (
    id TEXT NOT NULL PRIMARY KEY,
    created_utc TEXT NOT NULL,
    kind TEXT NOT NULL,
    status TEXT NOT NULL,
    document BLOB NOT NULL
);
CREATE TABLE entries (
    number INTEGER PRIMARY KEY,
    run TEXT NOT NULL REFERENCES runs (id) ON DELETE CASCADE,
    kind TEXT NOT NULL,
    document BLOB NOT NULL,
    samples BLOB
);
CREATE INDEX entries_of_run ON entries (run);
PRAGMA application_id = 1885629538;
PRAGMA user_version = 1;
"""


def packed(document):
    return zlib.compress(json.dumps(document).encode())


@pytest.fixture
def old(store_path, measurement):
    """A store of version 1 with a run of two layers and a step."""
    row = measurement().to_dict()
    connection = sqlite3.connect(store_path)
    connection.executescript(VERSION_1)
    run = {
        "command": ["pydlbench", "layers"],
        "device": {"name": "Invented 9000 CPU @ 3.00GHz"},
        "environment": {"python": "3.11.2"},
    }
    values = ("20300102-old", "2030-01-02T03:04:05+00:00", "layers", "done", packed(run))
    connection.execute("INSERT INTO runs VALUES (?, ?, ?, ?, ?)", values)
    for kind, document in (("layer", row), ("layer", {**row, "time_s": None}), ("step", {})):
        connection.execute(
            "INSERT INTO entries (run, kind, document, samples) VALUES (?, ?, ?, ?)",
            ("20300102-old", kind, packed(document), b"\0" * 16),
        )
    connection.commit()
    connection.close()
    return store_path


def check(store):
    (info,) = store.runs()
    assert info.command == ("pydlbench", "layers")
    assert (info.machine, info.measurements, info.status) == ("Invented 9000", 3, "done")
    assert [row[16] for row in store.columns(info.id)] == [0.05, None]
    assert [entry.table for entry in store.entries(info.id)] == ["layer", "layer", "step"]
    assert store.entries(info.id, "layer", samples=True)[0].samples == (0.0, 0.0)
    assert store.record(info.id).environment == {"python": "3.11.2"}
    assert store.request(info.id) is None
    assert dict(store.statuses(info.id)) == {}


def version(path):
    connection = sqlite3.connect(path)
    found = connection.execute("PRAGMA user_version").fetchone()[0]
    connection.close()
    return found


def test_an_old_store_is_brought_up_to_date_and_can_be_written(old, run_of, entry):
    with Store.open(old) as store:
        check(store)
        store.begin(run_of(), "layers")
        store.add(run_of().id, entry("a key"))
        store.tag("20300102-old", "first")
    assert version(old) == VERSION
    with Store.open(old) as store:
        assert store.find("first").id == "20300102-old"
        store.delete("20300102-old")
        assert len(store.runs()) == 1


def test_readers_leave_an_old_store_as_it_is(old):
    before = old.read_bytes()
    with Store.open(old, readonly=True) as store:
        check(store)
    assert old.read_bytes() == before


def test_a_store_that_was_brought_up_to_date_is_like_a_new_one(old, tmp_path):
    def schema(path):
        Store.open(path).close()
        connection = sqlite3.connect(path)
        found = connection.execute("SELECT type, name, sql FROM sqlite_master ORDER BY 1, 2")
        rows = [(*row[:2], " ".join((row[2] or "").split())) for row in found]
        connection.close()
        return rows

    assert schema(old) == schema(tmp_path / "new.sqlite")


def test_a_document_that_cannot_be_read_leaves_the_old_store_as_it_is(old):
    connection = sqlite3.connect(old)
    connection.execute("UPDATE entries SET document = x'0102' WHERE number = 2")
    connection.commit()
    connection.close()
    before = old.read_bytes()
    for readonly in (False, True):
        with pytest.raises(StoreError, match="cannot be brought up to date"):
            Store.open(old, readonly=readonly)
    assert version(old) == 1
    assert old.read_bytes() == before


def test_two_processes_bring_it_up_to_date_at_once(old):
    script = (
        "import sys\nfrom pydlbench.store.store import Store\n"
        "with Store.open(sys.argv[1]) as store:\n"
        "    print(store.info('20300102-old').measurements)\n"
    )
    command = [sys.executable, "-c", script, str(old)]
    both = [subprocess.Popen(command, stdout=subprocess.PIPE, text=True) for _ in range(3)]
    assert [process.communicate()[0] for process in both] == ["3\n"] * 3
    with Store.open(old) as store:
        check(store)


def test_a_newer_schema_is_not_touched(store_path):
    Store.open(store_path).close()
    connection = sqlite3.connect(store_path)
    connection.execute("PRAGMA user_version = 99")
    connection.close()
    before = store_path.read_bytes()
    for readonly in (False, True):
        with pytest.raises(StoreError) as caught:
            Store.open(store_path, readonly=readonly)
        assert f"its schema is version 99 and this pydlbench knows {VERSION}; update" in str(
            caught.value
        )
    assert store_path.read_bytes() == before


def test_a_new_store_says_whose_it_is(store_path):
    Store.open(store_path).close()
    connection = sqlite3.connect(store_path)
    assert connection.execute("PRAGMA application_id").fetchone() == (APPLICATION_ID,)
    assert connection.execute("PRAGMA journal_mode").fetchone() == ("wal",)
    connection.close()
    assert store_path.read_bytes()[68:72] == b"pdlb"
