"""Whatever is wrong with a file is one line with what to do, and nothing finished is lost."""

import os
import random
import shutil
import sqlite3
import tempfile
import zlib
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


def fill(path, run):
    with Store.open(path) as store:
        store.begin(run, "layers")
        store.add_all(run.id, [Entry("layer", {"layer": name}) for name in "abc"])


def layers(path, run):
    with Store.open(path, readonly=True) as store:
        return [entry.document["layer"] for entry in store.entries(run.id)]


def refusal(path, **how):
    """Return SQLite's name of why a store cannot be opened, None where SQLite was not reached."""
    with pytest.raises(StoreError) as caught:
        Store.open(path, **how)
    assert str(caught.value).startswith(f"store {path}: ")
    assert "\n" not in str(caught.value)
    return getattr(caught.value.__cause__, "sqlite_errorname", None)


@pytest.mark.parametrize(
    ("code", "text", "values"),
    [
        (sqlite3.SQLITE_FULL, "", ["disk is full", "make room"]),
        (sqlite3.SQLITE_IOERR_WRITE, "disk I/O error", ["disk I/O error", "make room"]),
        (sqlite3.SQLITE_READONLY_DIRECTORY, "", ["read-only", "make it writable"]),
        (sqlite3.SQLITE_CANTOPEN, "", ["no permission"]),
        (sqlite3.SQLITE_BUSY, "", ["locked", "15 s"]),
        (sqlite3.SQLITE_NOTADB, "", ["not an SQLite file"]),
        (sqlite3.SQLITE_CONSTRAINT_FOREIGNKEY, "FOREIGN KEY", ["deleted"]),
        (sqlite3.SQLITE_CONSTRAINT_PRIMARYKEY, "UNIQUE", ["of this id already"]),
        (sqlite3.SQLITE_CORRUPT, "malformed", ["is damaged", "malformed", "pydlbench export RUN"]),
        (sqlite3.SQLITE_ERROR, "two\nlines", ["two lines"]),
    ],
)
def test_each_error_names_its_reason_and_a_remedy(store_path, code, text, values):
    error = sqlite3.OperationalError(text)
    error.sqlite_errorcode = code
    message = str(connection.explain(error, store_path))
    assert says(message, str(store_path), *values)
    assert message.endswith("name another file with --store")


def test_a_full_disk_costs_the_row_that_does_not_fit(store, store_path, run_of):
    run = run_of()
    store.begin(run, "layers")
    ((pages,),) = raw_store.execute(store_path, "PRAGMA page_count")
    store._connection.execute(f"PRAGMA max_page_count = {pages + 6}")

    def add_many():
        for number in range(1000):
            store.add(run.id, Entry("layer", {"layer": str(number)}, (0.1,) * 300))

    with pytest.raises(StoreError) as caught:
        add_many()
    assert caught.value.__cause__.sqlite_errorname == "SQLITE_FULL"
    kept = store.info(run.id).measurements
    assert kept > 2
    assert len(store.entries(run.id)) == len(store.columns(run.id)) == kept
    store._connection.execute("PRAGMA max_page_count = 100000")
    store.add(run.id, Entry("layer", {"layer": "there is room again"}))
    assert store.info(run.id).measurements == kept + 1


def test_ctrl_c_just_behind_the_beginning_of_a_transaction_leaves_none_open(store, run_of, entry):
    class Interrupted:
        def __init__(self, connection):
            self._connection = connection

        def __getattr__(self, name):
            return getattr(self._connection, name)

        def execute(self, statement, *values):
            cursor = self._connection.execute(statement, *values)
            if statement.startswith("BEGIN"):
                raise KeyboardInterrupt
            return cursor

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
    assert refusal(store_path) == "SQLITE_FULL"


@pytest.mark.parametrize("mode", [0o777, 0o555], ids=["file", "folder"])
def test_what_is_read_only_can_be_read_and_not_written(folder, run_of, mode):
    path = folder / "store.sqlite"
    fill(path, run_of())
    path.chmod(0o444)
    folder.chmod(mode)
    with unprivileged():
        assert layers(path, run_of()) == ["a", "b", "c"]
        assert refusal(path).startswith(("SQLITE_READONLY", "SQLITE_CANTOPEN"))
    assert mode == 0o777 or [item.name for item in folder.iterdir()] == ["store.sqlite"]


@pytest.mark.parametrize("shared", [True, False], ids=["with its index", "without"])
def test_a_log_that_is_not_merged_is_read_although_nothing_can_be_written(folder, run_of, shared):
    path, remains = folder / "store.sqlite", folder / "remains"
    remains.mkdir()
    with Store.open(path) as store:
        store.begin(run_of(), "layers")
        store.add(run_of().id, Entry("layer", {"layer": "in the log"}))
        for suffix in ("", "-wal", "-shm")[: 3 if shared else 2]:
            shutil.copyfile(f"{path}{suffix}", remains / f"{path.name}{suffix}")
    for item in remains.iterdir():
        item.chmod(0o444)
    remains.chmod(0o555)
    with unprivileged():
        assert layers(remains / path.name, run_of()) == ["in the log"]
    remains.chmod(0o755)


@pytest.mark.parametrize("readonly", [False, True])
def test_a_file_that_may_not_be_read(folder, run_of, readonly):
    path = folder / "store.sqlite"
    fill(path, run_of())
    path.chmod(0o000)
    with unprivileged():
        assert refusal(path, readonly=readonly) == "SQLITE_CANTOPEN"


def test_a_missing_file_is_begun_and_not_read(store_path):
    assert refusal(store_path, readonly=True) is None
    Store.open(store_path).close()
    Store.open(store_path, readonly=True).close()


@pytest.mark.parametrize("readonly", [False, True])
@pytest.mark.parametrize("name", ["nowhere/store.sqlite", "."])
def test_folders_are_no_stores(tmp_path, name, readonly):
    assert refusal(tmp_path / name, readonly=readonly) is not None


@pytest.mark.parametrize(
    ("name", "nearest"), [(".", "store.sqlite"), ("nowhere/store.sqlite", "nowhere")]
)
def test_a_folder_in_place_of_a_store_is_named(tmp_path, name, nearest):
    with pytest.raises(StoreError, match=f"directory.*{tmp_path / nearest}"):
        Store.open(tmp_path / name)


@pytest.mark.parametrize("readonly", [False, True])
def test_files_of_other_programs_are_left_alone(tmp_path, readonly):
    notes, other = tmp_path / "notes.txt", tmp_path / "other.sqlite"
    notes.write_text("not a database, but long enough to be looked at " * 100)
    raw_store.execute(other, "CREATE TABLE bookmarks (address TEXT)")
    for path, reason in ((notes, "SQLITE_NOTADB"), (other, None)):
        before = path.read_bytes()
        assert refusal(path, readonly=readonly) == reason
        assert path.read_bytes() == before


def test_an_empty_file_becomes_a_store(store_path, run_of):
    store_path.touch()
    fill(store_path, run_of())
    assert layers(store_path, run_of()) == ["a", "b", "c"]


def test_a_locked_store_is_waited_for_and_then_named(monkeypatch, store_path):
    Store.open(store_path).close()
    other = sqlite3.connect(store_path, isolation_level=None)
    other.execute("BEGIN IMMEDIATE")
    monkeypatch.setattr(connection, "BUSY_S", 0.05)
    assert refusal(store_path) == "SQLITE_BUSY"
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


@pytest.fixture
def good(store_path, run_of):
    """The bytes of a store with four runs."""
    with Store.open(store_path) as store:
        for number in range(4):
            run = run_of(number)
            store.begin(run, "layers", request={"shape": ["conv3"]})
            for row in range(20):
                document = {"layer": str(row), "status": "ok", "reason": "x" * 100}
                entry = Entry("layer", document, tuple(map(float, range(1000))), f"key {row}")
                store.add(run.id, entry)
            store.tag(run.id, "base")
    return store_path.read_bytes()


def test_damaged_pages_are_one_line_each(store_path, good, tmp_path):
    ((free,),) = raw_store.execute(store_path, "PRAGMA freelist_count")
    noise = random.Random(1)
    errors = []
    for page in range(len(good) // _PAGE):
        damaged = bytearray(good)
        start = page * _PAGE + (100 if page == 0 else 0)
        damaged[start : (page + 1) * _PAGE] = noise.randbytes((page + 1) * _PAGE - start)
        path = tmp_path / f"{page}.sqlite"
        path.write_bytes(damaged)
        try:
            everything(path)
        except PydlbenchError as error:
            errors.append(error)
    assert {type(error) for error in errors} == {StoreError}
    assert not any("\n" in str(error) for error in errors)
    # SQLite finds its own pages damaged; what is in them has sums of its own.
    causes = {isinstance(error.__cause__, sqlite3.Error) for error in errors}
    assert causes == {True, False}
    by_key = 2  # the pages of indices that only writing and forecasts read
    assert len(errors) == len(good) // _PAGE - free - by_key


@pytest.mark.parametrize("share", [0.2, 0.5, 0.9])
def test_a_truncated_file_says_how_to_save_the_rest(good, tmp_path, share):
    path = tmp_path / "my store.sqlite"
    path.write_bytes(good[: int(share * len(good)) // _PAGE * _PAGE])
    with pytest.raises(StoreError) as caught:
        everything(path)
    assert str(caught.value).count(f"'{path}'") == 2  # in two commands to paste


@pytest.mark.parametrize("column", ["writer", "command"])
@pytest.mark.parametrize("value", ["5", "{", "[" * 100_000])
def test_a_damaged_run_is_listed_beside_the_others_and_can_be_deleted(
    store, store_path, run_of, column, value
):
    for number in (0, 1):
        store.begin(run_of(number), "layers")
    change = f"UPDATE runs SET {column} = ? WHERE id = ?"
    raw_store.execute(store_path, change, value, run_of(0).id)
    assert {info.id: info.status for info in store.runs()} == {
        run_of(0).id: "damaged",
        run_of(1).id: "running",
    }
    if column == "command":
        with pytest.raises(StoreError, match=run_of(0).id):
            store.record(run_of(0).id)
    store.delete(run_of(0).id)
    assert len(store.runs()) == 1


@pytest.mark.parametrize(
    "document",
    [
        pytest.param(b'{"a":"' + bytes(1 << 27) + b'"}', id="bomb"),
        pytest.param(b'{"a":' + b"[" * 100_000 + b"]" * 100_000 + b"}", id="deep"),
    ],
)
def test_a_document_is_bounded_in_bytes_and_depth(store, store_path, run_of, entry, document):
    store.begin(run_of(), "layers")
    store.add(run_of().id, entry())
    packed = zlib.compress(document)
    raw_store.execute(store_path, "UPDATE entries SET document = ?", packed)
    with pytest.raises(StoreError, match="entry 1"):
        store.entries(run_of().id)


@pytest.mark.parametrize("writer", ["null", '{"host": 1}'])
def test_a_writer_of_another_version_is_none(store, store_path, run_of, writer):
    store.begin(run_of(), "layers")
    raw_store.execute(store_path, "UPDATE runs SET writer = ?", writer)
    assert store.runs()[0].status in ("running", "killed")


def test_a_damaged_document_does_not_hide_the_others(store, store_path, run_of, entry):
    for number in (0, 1):
        store.begin(run_of(number), "layers")
        store.add_all(run_of(number).id, [entry(layer=f"net/{row}") for row in range(3)])
    raw_store.execute(store_path, "UPDATE entries SET document = x'00' WHERE number = 2")
    for places in (None, [1]):
        with pytest.raises(StoreError, match="entry 2"):
            store.entries(run_of(0).id, "layer", places=places)
    assert len(store.entries(run_of(0).id, "layer", places=[0, 2])) == 2
    assert len(store.runs()) == 2
    assert len(store.columns(run_of(0).id)) == len(store.entries(run_of(1).id)) == 3
