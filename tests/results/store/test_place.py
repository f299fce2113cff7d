from __future__ import annotations

from pathlib import Path

import pytest

from pydlbench.errors import StoreError
from pydlbench.results.store import Store, chosen_path, default_path


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
