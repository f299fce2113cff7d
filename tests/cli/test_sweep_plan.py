"""``pydlbench sweep --dry-run``: what would be measured, and how long it would take."""

import json

import pytest
from invented_sweep import FILE, Sessions, sweep


@pytest.fixture
def file(tmp_path):
    path = tmp_path / "all.toml"
    path.write_text(FILE, encoding="utf-8")
    return path


def test_the_plan_measures_nothing_and_keeps_nothing(file, capsys, store_path):
    sessions = Sessions()
    assert sweep(sessions, file, "--dry-run") == 0
    out = capsys.readouterr().out
    assert "11 rows in " in out
    assert sessions.opened == []
    assert not store_path.exists()


def test_the_plan_tells_all_rows_apart(tmp_path, capsys):
    path = tmp_path / "axes.toml"
    path.write_text(
        """
        [[layers]]
        shape = "conv3"
        batch = [1, 2]
        device = ["cpu", "cuda:0"]
        layout = ["best", "nhwc"]
        cache = ["hot", "all-cold"]
        fuse = ["none", "bias"]
        [[step]]
        model = ["mnist", "cifar10"]
        batch = [8, 16]
        precision = ["fp32", "bf16"]
        layout = ["nhwc", "nchw"]
        set = [["decay=0"], ["classes=12"]]
        framework = "torch"
        phase = "all"
        """,
        encoding="utf-8",
    )
    assert sweep(Sessions(), path, "--dry-run") == 0
    lines = capsys.readouterr().out.splitlines()
    rows = [line.split(maxsplit=1) for line in lines if line[:5].strip().isdigit()]
    assert [int(number) for number, _ in rows] == list(range(1, 32 + 96 + 1))
    assert len({text for _, text in rows}) == len(rows)


def test_the_plan_counts_rows_and_budgets(tmp_path, capsys):
    path = tmp_path / "a.toml"
    layers = '[[layers]]\nshape = ["conv3", "conv4"]\nbudget = 3\n'
    path.write_text(f'{layers}[[step]]\nmodel = "mnist"\nmode = "eager"\n', encoding="utf-8")
    assert sweep(Sessions(), path, "--dry-run", "--json", "-") == 0
    document = json.loads(capsys.readouterr().out)
    assert document["rows"] == 3
    assert document["time_s"]["low"] < 2 * 3 + 10 < document["time_s"]["high"]
    assert [len(job["rows"]) for job in document["jobs"]] == [2, 1]
    jsonschema = pytest.importorskip("jsonschema")
    from pydlbench.records.schema import load_schema

    jsonschema.Draft202012Validator(load_schema("sweep-plan")).validate(document)


def test_a_single_row_that_is_asked_for_twice_is_one(tmp_path, capsys):
    path = tmp_path / "twice.toml"
    path.write_text('[[layers]]\nshape = "conv3"\nbatch = 1\n' * 2, encoding="utf-8")
    assert sweep(Sessions(), path, "--dry-run") == 0
    assert "[[layers]] 2: 1 row is asked for above already, left out" in capsys.readouterr().err
