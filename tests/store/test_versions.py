"""Stores of other versions are refused and left as they are."""

import pytest
import raw_store

from pydlbench.cli import main
from pydlbench.errors import StoreError
from pydlbench.store.connection import APPLICATION_ID, VERSION
from pydlbench.store.store import Store


@pytest.mark.parametrize("version", [0, 1, 99])
def test_another_version_is_refused_and_not_touched(store_path, version, capsys):
    Store.open(store_path).close()
    raw_store.execute(store_path, f"PRAGMA user_version = {version}")
    before = store_path.read_bytes()
    for readonly in (False, True):
        with pytest.raises(StoreError, match=rf"\b{version}\b.*\b{VERSION}\b.*--store"):
            Store.open(store_path, readonly=readonly)
    assert main(["runs", "--store", str(store_path)]) == 1
    assert len(capsys.readouterr().err.splitlines()) == 1
    assert store_path.read_bytes() == before


def test_a_file_without_tables_is_an_empty_store(store_path):
    store_path.touch()
    with Store.open(store_path, readonly=True) as store:
        assert store.runs() == []
    assert store_path.read_bytes() == b""


def test_a_new_store_says_whose_it_is(store_path):
    Store.open(store_path).close()
    pragmas = ("application_id", "user_version", "journal_mode")
    values = [raw_store.execute(store_path, f"PRAGMA {name}")[0][0] for name in pragmas]
    assert values == [APPLICATION_ID, VERSION, "wal"]
    assert store_path.read_bytes()[68:72] == b"pdlb"
