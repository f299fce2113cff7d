"""Where the store is, and paths as people write them."""

from pathlib import Path

import pytest

from pydlbench.cli import main
from pydlbench.errors import StoreError, UsageError
from pydlbench.store.place import default_path, select_path, user_path
from pydlbench.store.store import Store


@pytest.mark.parametrize(
    ("variable", "option", "expected"),
    [
        ("~/mine.sqlite", None, (Path.home() / "mine.sqlite", "PYDLBENCH_STORE")),
        ("~/mine.sqlite", "/a/b", (Path("/a/b"), "--store")),
        ("none", None, (None, "PYDLBENCH_STORE")),
        ("none", "/a/b", (Path("/a/b"), "--store")),
        ("", "none", (None, "--store")),
    ],
)
def test_the_option_goes_before_the_variable(monkeypatch, variable, option, expected):
    monkeypatch.setenv("PYDLBENCH_STORE", variable)
    assert select_path(option) == expected


@pytest.mark.parametrize("variable", ["", None])
def test_else_it_is_in_the_users_data_directory(monkeypatch, tmp_path, variable):
    monkeypatch.setenv("XDG_DATA_HOME", str(tmp_path / "data"))
    monkeypatch.setenv("PYDLBENCH_STORE", variable or "")
    if variable is None:
        monkeypatch.delenv("PYDLBENCH_STORE")
    expected = tmp_path / "data" / "pydlbench" / "store.sqlite"
    assert select_path(None) == (expected, "")
    with Store.open() as store:  # its folder is made
        assert store.path == default_path() == expected
        assert expected.is_file()


def test_a_data_directory_that_cannot_be_made_is_an_error(monkeypatch, tmp_path):
    (tmp_path / "file").write_text("")
    monkeypatch.setenv("XDG_DATA_HOME", str(tmp_path / "file"))
    monkeypatch.delenv("PYDLBENCH_STORE")
    with pytest.raises(StoreError, match="--store"):
        Store.open()


@pytest.mark.parametrize("name", [":memory:", "a b?c#d%20.sqlite", "\udcff.sqlite", "//slashes"])
def test_whatever_its_name_it_is_a_file(monkeypatch, tmp_path, run_record, name):
    monkeypatch.chdir(tmp_path)
    # Two slashes in front would name a host.
    path = name.replace("//", f"/{tmp_path}/")
    with Store.open(path) as store:
        store.begin(run_record, "layers")
    assert (tmp_path / name.strip("/")).is_file()
    with Store.open(path, readonly=True) as store:
        assert store.ids() == [run_record.id]


def test_an_empty_name_is_no_file():
    with pytest.raises(UsageError, match="nearest: none"):
        select_path("")


def test_a_home_is_replaced_and_an_unknown_users_stays_as_it_is():
    assert user_path("~/a.json") == Path.home() / "a.json"
    assert user_path("~nobody-is-called-so/a.json") == Path("~nobody-is-called-so/a.json")


@pytest.mark.parametrize(
    "words",
    [("runs", "--store"), ("runs", "show"), ("runs", "--json"), ("sweep", "--dry-run")],
)
def test_an_unknown_users_home_is_one_line_wherever_a_path_is_taken(
    capsys, tmp_path, monkeypatch, words
):
    monkeypatch.chdir(tmp_path)
    place = "~nobody-is-called-so/a.json"
    assert main([*words, place]) == 2
    out, err = capsys.readouterr()
    assert (out, err.count("\n"), place in err) == ("", 1, True)
