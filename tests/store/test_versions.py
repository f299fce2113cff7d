"""Stores of other versions are refused and left as they are."""

import sqlite3

import pytest

from pydlbench.cli import main
from pydlbench.errors import StoreError
from pydlbench.store.connection import APPLICATION_ID, VERSION
from pydlbench.store.store import Store


@pytest.fixture(params=[0, 1, 99])
def other(request, store_path):
    """A store of another version."""
    Store.open(store_path).close()
    connection = sqlite3.connect(store_path)
    connection.execute(f"PRAGMA user_version = {request.param}")
    connection.close()
    return store_path, request.param


@pytest.mark.parametrize("readonly", [False, True])
def test_another_version_is_refused_and_not_touched(other, readonly):
    path, version = other
    before = path.read_bytes()
    with pytest.raises(StoreError) as caught:
        Store.open(path, readonly=readonly)
    message = str(caught.value)
    assert f"version {version} and this pydlbench knows {VERSION}" in message
    assert "--store" in message
    assert path.read_bytes() == before


def test_a_command_refuses_it_in_one_line(other, capsys):
    path, _ = other
    assert main(["runs", "--store", str(path)]) == 2
    assert len(capsys.readouterr().err.splitlines()) == 1


def test_a_file_without_tables_is_an_empty_store(store_path):
    store_path.touch()
    with Store.open(store_path, readonly=True) as store:
        assert store.runs() == []
    assert store_path.read_bytes() == b""


def test_a_new_store_says_whose_it_is(store_path):
    Store.open(store_path).close()
    connection = sqlite3.connect(store_path)
    assert connection.execute("PRAGMA application_id").fetchone() == (APPLICATION_ID,)
    assert connection.execute("PRAGMA user_version").fetchone() == (VERSION,)
    assert connection.execute("PRAGMA journal_mode").fetchone() == ("wal",)
    connection.close()
    assert store_path.read_bytes()[68:72] == b"pdlb"
