"""Paths that people write; a ``~`` that stands for nobody is no reason for a traceback."""

from pathlib import Path

from pydlbench.cli import main
from pydlbench.store.place import user_path


def test_a_home_is_found_and_an_unknown_users_stays_as_it_is():
    assert user_path("~/a.json") == Path.home() / "a.json"
    assert user_path("~nobody-is-called-so/a.json") == Path("~nobody-is-called-so/a.json")


def test_an_unknown_users_home_is_one_line_wherever_a_path_is_taken(capsys, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    place = "~nobody-is-called-so/a.json"
    for words in (
        ("runs", "--store", place),
        ("runs", "show", place),
        ("runs", "--json", place),
        ("sweep", place, "--dry-run"),
    ):
        assert main(words) == 2
        out, err = capsys.readouterr()
        assert out == ""
        assert place in err
        assert err.count("\n") == 1
