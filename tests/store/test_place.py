"""Where the store is."""

from pathlib import Path

import pytest

from pydlbench.errors import StoreError, UsageError
from pydlbench.store.place import chosen_path, default_path
from pydlbench.store.store import Store


def test_the_variable_names_the_store(monkeypatch):
    monkeypatch.setenv("PYDLBENCH_STORE", "~/mine.sqlite")
    assert default_path() == Path.home() / "mine.sqlite"
    assert chosen_path(None) == (Path.home() / "mine.sqlite", "PYDLBENCH_STORE")
    assert chosen_path("/a/b") == (Path("/a/b"), "--store")


@pytest.mark.parametrize("variable", ["", None])
def test_else_it_is_in_the_users_data_directory(monkeypatch, tmp_path, variable):
    monkeypatch.setenv("XDG_DATA_HOME", str(tmp_path / "data"))
    if variable is None:
        monkeypatch.delenv("PYDLBENCH_STORE")
    else:
        monkeypatch.setenv("PYDLBENCH_STORE", variable)
    expected = tmp_path / "data" / "pydlbench" / "store.sqlite"
    assert chosen_path(None) == (expected, "")
    with Store.open() as store:  # its folder is made
        assert store.path == expected
        assert expected.is_file()


def test_a_word_stands_for_no_store(monkeypatch):
    assert chosen_path("none") == (None, "--store")
    monkeypatch.setenv("PYDLBENCH_STORE", "none")
    assert chosen_path(None) == (None, "PYDLBENCH_STORE")
    assert chosen_path("/a/b") == (Path("/a/b"), "--store")


def test_a_data_directory_that_cannot_be_made_is_one_line(monkeypatch, tmp_path):
    (tmp_path / "file").write_text("")
    monkeypatch.setenv("XDG_DATA_HOME", str(tmp_path / "file"))
    monkeypatch.delenv("PYDLBENCH_STORE")
    with pytest.raises(StoreError, match="its folder cannot be made") as caught:
        Store.open()
    assert "--store" in str(caught.value)


@pytest.mark.parametrize("name", [":memory:", "a b?c#d%20.sqlite", "\udcff.sqlite"])
def test_whatever_its_name_it_is_a_file(monkeypatch, tmp_path, run_record, name):
    monkeypatch.chdir(tmp_path)
    with Store.open(name) as store:
        store.begin(run_record, "layers")
    assert (tmp_path / name).is_file()
    with Store.open(name, readonly=True) as store:
        assert store.ids() == [run_record.id]


def test_what_follows_two_slashes_is_no_host(tmp_path, run_record):
    name = f"/{tmp_path}/store.sqlite"
    assert name.startswith("//")
    with Store.open(name) as store:
        store.begin(run_record, "layers")
    with Store.open(name, readonly=True) as store:
        assert store.ids() == [run_record.id]


def test_an_empty_name_is_no_file():
    with pytest.raises(UsageError, match="--store '': empty file name; nearest: none"):
        chosen_path("")
