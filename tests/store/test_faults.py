"""Whatever is wrong with a file is one line with what to do, and nothing finished is lost."""

import os
import random
import shutil
import sqlite3
import subprocess
import sys
import tempfile
from contextlib import contextmanager
from pathlib import Path

import pytest
import raw_store
from said import says

from pydlbench.errors import PydlbenchError, StoreError
from pydlbench.store import connection
from pydlbench.store.entry import Entry
from pydlbench.store.store import Store

_NOBODY = 65534
_PAGE = 4096


@contextmanager
def unprivileged():
    """Where everything is allowed, be somebody who may not."""
    root = os.geteuid() == 0
    if root:
        os.seteuid(_NOBODY)
    try:
        yield
    finally:
        if root:
            os.seteuid(0)


@pytest.fixture
def folder():
    """A folder that everybody may enter, unlike pytest's."""
    path = Path(tempfile.mkdtemp(prefix="pydlbench-test-"))
    path.chmod(0o755)
    yield path
    path.chmod(0o755)
    shutil.rmtree(path)


def fill(path, run, count=3):
    with Store.open(path) as store:
        store.begin(run, "layers")
        for number in range(count):
            store.add(run.id, Entry("layer", {"layer": str(number)}, (float(number),)))


def layers(path, run):
    with Store.open(path, readonly=True) as store:
        return [entry.document["layer"] for entry in store.entries(run.id)]


def complaint(path, **how):
    with pytest.raises(StoreError) as caught:
        Store.open(path, **how)
    text = str(caught.value)
    assert text.startswith(f"store {path}: ")
    assert "\n" not in text
    assert isinstance(caught.value, OSError)
    return text


def test_a_full_disk_costs_the_row_that_does_not_fit(store, store_path, run_of):
    run = run_of()
    store.begin(run, "layers")
    ((pages,),) = raw_store.execute(store_path, "PRAGMA page_count")
    store._connection.execute(f"PRAGMA max_page_count = {pages + 6}")
    kept, told = 0, ""
    while not told and kept < 1000:
        try:
            store.add(run.id, Entry("layer", {"layer": str(kept)}, (0.1,) * 300))
            kept += 1
        except StoreError as error:
            told = str(error)
    assert says(told, "disk is full")
    assert kept > 2
    assert len(store.entries(run.id)) == len(store.columns(run.id)) == kept
    store._connection.execute("PRAGMA max_page_count = 100000")
    store.add(run.id, Entry("layer", {"layer": "there is room again"}))
    assert store.info(run.id).measurements == kept + 1


_LIMITED = """
import resource, sys
from pydlbench.errors import StoreError
from pydlbench.records.run import RunRecord
from pydlbench.store.entry import Entry
from pydlbench.store.store import Store

resource.setrlimit(resource.RLIMIT_FSIZE, (400_000, 400_000))
with Store.open(sys.argv[1]) as store:
    run = RunRecord(id="20300102-limited", created_utc="2030-01-02T03:04:05+00:00")
    store.begin(run, "layers")
    kept = 0
    try:
        while kept < 1000:
            store.add(run.id, Entry("layer", {"layer": str(kept)}, (0.1,) * 1000))
            kept += 1
    except StoreError as error:
        print(kept, error)
"""


def test_a_file_that_may_not_grow_keeps_what_was_committed(store_path):
    done = subprocess.run(
        [sys.executable, "-c", _LIMITED, str(store_path)],
        capture_output=True,
        text=True,
        check=True,
    )
    kept, _, text = done.stdout.partition(" ")
    assert says(text, "disk")
    assert int(kept) > 2
    with Store.open(store_path) as store:
        assert len(store.entries("20300102-limited", samples=True)) == int(kept)
    assert raw_store.execute(store_path, "PRAGMA integrity_check") == [("ok",)]


def test_ctrl_c_just_behind_the_beginning_of_a_transaction_leaves_none_open(store, run_of, entry):
    class Interrupted:
        def __init__(self, connection):
            self._connection = connection

        def __getattr__(self, name):
            return getattr(self._connection, name)

        def execute(self, statement, *values):
            found = self._connection.execute(statement, *values)
            if statement.startswith("BEGIN"):
                raise KeyboardInterrupt
            return found

    run = run_of()
    store.begin(run, "layers")
    plain, store._connection = store._connection, Interrupted(store._connection)
    with pytest.raises(KeyboardInterrupt):
        store.add(run.id, entry())
    store._connection = plain
    store.finish(run, "interrupted")
    assert (store.info(run.id).status, store.entries(run.id)) == ("interrupted", [])


def test_a_full_disk_at_the_very_beginning(monkeypatch, store_path):
    class Full(sqlite3.Connection):
        def execute(self, statement, *values):
            if "CREATE TABLE" in statement:
                super().execute("PRAGMA max_page_count = 1")
            return super().execute(statement, *values)

    real = sqlite3.connect
    monkeypatch.setattr(sqlite3, "connect", lambda *a, **k: real(*a, **k, factory=Full))
    assert "the disk is full" in complaint(store_path)


def test_a_read_only_file_can_be_read_and_not_written(folder, run_of):
    path = folder / "store.sqlite"
    fill(path, run_of())
    path.chmod(0o444)
    folder.chmod(0o777)
    with unprivileged():
        assert layers(path, run_of()) == ["0", "1", "2"]
        assert "is read-only; make it writable, or name another file" in complaint(path)


def test_a_read_only_folder_can_be_read_and_not_written(folder, run_of):
    path = folder / "store.sqlite"
    fill(path, run_of())
    path.chmod(0o444)
    folder.chmod(0o555)
    assert [item.name for item in folder.iterdir()] == ["store.sqlite"]
    with unprivileged():
        assert layers(path, run_of()) == ["0", "1", "2"]
        text = complaint(path)
    assert "is read-only" in text or "cannot be opened, no permission" in text
    assert [item.name for item in folder.iterdir()] == ["store.sqlite"]


@pytest.mark.parametrize("shared", [True, False], ids=["with its index", "without"])
def test_a_log_that_is_not_merged_is_read_although_nothing_can_be_written(folder, run_of, shared):
    path, left = folder / "store.sqlite", folder / "left"
    left.mkdir()
    with Store.open(path) as store:
        store.begin(run_of(), "layers")
        store.add(run_of().id, Entry("layer", {"layer": "in the log"}))
        for item in (path, Path(f"{path}-wal"), Path(f"{path}-shm")):
            shutil.copyfile(item, left / item.name)
    copy = left / path.name
    if not shared:
        Path(f"{copy}-shm").unlink()
    for item in left.iterdir():
        item.chmod(0o444)
    left.chmod(0o555)
    with unprivileged():
        assert layers(copy, run_of()) == ["in the log"]
    left.chmod(0o755)


def test_a_file_that_may_not_be_read(folder, run_of):
    path = folder / "store.sqlite"
    fill(path, run_of())
    path.chmod(0o000)
    with unprivileged():
        for readonly in (False, True):
            text = complaint(path, readonly=readonly)
            assert "cannot be opened, no permission; change that, or name another" in text


def test_a_missing_file_is_begun_and_not_read(store_path):
    text = complaint(store_path, readonly=True)
    assert "there is none yet; begin with: pydlbench layers" in text
    Store.open(store_path).close()
    Store.open(store_path, readonly=True).close()


def test_a_missing_folder_is_named(tmp_path):
    for readonly in (False, True):
        text = complaint(tmp_path / "nowhere" / "store.sqlite", readonly=readonly)
        assert f"no such directory: {tmp_path / 'nowhere'}; make it, or name another" in text


def test_a_directory_is_no_store(tmp_path):
    for readonly in (False, True):
        text = complaint(tmp_path, readonly=readonly)
        assert f"is a directory; nearest: --store {tmp_path / 'store.sqlite'}" in text


def test_what_is_no_database_is_left_alone(tmp_path):
    path = tmp_path / "notes.txt"
    path.write_text("not a database, but long enough to be looked at " * 100)
    before = path.read_bytes()
    for readonly in (False, True):
        assert "is no SQLite file; name another" in complaint(path, readonly=readonly)
    assert path.read_bytes() == before


def test_another_programs_database_is_left_alone(tmp_path):
    path = tmp_path / "other.sqlite"
    with sqlite3.connect(path) as other:
        other.execute("CREATE TABLE bookmarks (address TEXT)")
    other.close()
    before = path.read_bytes()
    for readonly in (False, True):
        assert "is another program's SQLite file" in complaint(path, readonly=readonly)
    assert path.read_bytes() == before


def test_an_empty_file_becomes_a_store(store_path, run_of):
    store_path.touch()
    fill(store_path, run_of())
    assert layers(store_path, run_of()) == ["0", "1", "2"]


def test_a_locked_store_is_waited_for_and_then_named(monkeypatch, store_path):
    Store.open(store_path).close()
    other = sqlite3.connect(store_path, isolation_level=None)
    other.execute("BEGIN IMMEDIATE")
    monkeypatch.setattr(connection, "BUSY_S", 0.05)
    assert "another process has locked it for 0.05 s; wait for that" in complaint(store_path)
    other.execute("ROLLBACK")
    other.close()
    Store.open(store_path).close()


def everything(path):
    """Ask a store for everything; every answer but another exception will do."""
    with Store.open(path, readonly=True) as store:
        for info in store.runs():
            store.record(info.id)
            store.request(info.id)
            store.columns(info.id)
            store.entries(info.id, samples=True)
            store.find(info.id)


def bigger(path, run_of):
    with Store.open(path) as store:
        for number in range(4):
            run = run_of(number)
            store.begin(run, "layers", request={"shape": ["conv3"]})
            for row in range(20):
                document = {"layer": str(row), "status": "ok", "reason": "x" * 100}
                entry = Entry("layer", document, tuple(map(float, range(1000))), f"key {row}")
                store.add(run.id, entry)
            store.tag(run.id, "base")


def test_damaged_pages_are_one_line_each(store_path, run_of, tmp_path):
    bigger(store_path, run_of)
    ((free,),) = raw_store.execute(store_path, "PRAGMA freelist_count")
    good = store_path.read_bytes()
    noise = random.Random(1)
    told = []
    for page in range(len(good) // _PAGE):
        damaged = bytearray(good)
        start = page * _PAGE + (100 if page == 0 else 0)
        damaged[start : (page + 1) * _PAGE] = noise.randbytes((page + 1) * _PAGE - start)
        path = tmp_path / f"{page}.sqlite"
        path.write_bytes(damaged)
        try:
            everything(path)
        except PydlbenchError as error:
            told.append(error)
    assert {type(error) for error in told} == {StoreError}
    texts = [str(error).partition(": ")[2] for error in told]
    assert not any("\n" in text for text in texts)
    # SQLite finds its own pages damaged; what is in them has sums of its own.
    assert {text[:12] for text in texts} == {"is damaged (", "run 20300102"}
    by_key = 2  # the pages of indices that only writing and forecasts read
    assert len(told) == len(good) // _PAGE - free - by_key


def test_a_truncated_file_says_how_to_save_what_is_left(store_path, run_of, tmp_path):
    bigger(store_path, run_of)
    good = store_path.read_bytes()
    for share in (0.2, 0.5, 0.9):
        path = tmp_path / f"my {share}.sqlite"
        path.write_bytes(good[: int(share * len(good)) // _PAGE * _PAGE])
        with pytest.raises(StoreError, match="is damaged ") as caught:
            everything(path)
        told = str(caught.value)
        assert f"pydlbench export RUN --format json --samples --store '{path}', " in told
        assert f"sqlite3 '{path}' .recover | sqlite3 recovered.sqlite" in told


@pytest.mark.parametrize("writer", ["5", "{", "null", '{"host": 1}'])
def test_a_damaged_writer_is_one_line(store, store_path, run_of, writer):
    store.begin(run_of(), "layers")
    raw_store.execute(store_path, "UPDATE runs SET writer = ?", writer)
    if writer in ("null", '{"host": 1}'):  # may be, of another version
        assert store.runs()[0].status in ("running", "killed")
        return
    with pytest.raises(StoreError, match=r"run 20300102-00000000: a document is damaged"):
        store.runs()


def test_a_damaged_document_does_not_hide_the_others(store, store_path, run_of):
    for number in (0, 1):
        store.begin(run_of(number), "layers")
        store.add(run_of(number).id, Entry("layer", {"layer": "x"}))
    damage = "UPDATE entries SET document = x'00' WHERE run = ?"
    raw_store.execute(store_path, damage, run_of(0).id)
    with pytest.raises(StoreError, match=r"entry 1: a document is damaged .*; the others can be"):
        store.entries(run_of(0).id)
    assert len(store.runs()) == 2
    assert len(store.columns(run_of(0).id)) == 1
    assert len(store.entries(run_of(1).id)) == 1
