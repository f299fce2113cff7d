"""``pydlbench sweep --dry-run``: what would be measured, and how long it would take."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parent))
from sweep_fakes import FILE, Sessions, sweep

sys.path.pop(0)


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
    assert "from FLOPs and bytes over the peaks" in out
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
        [[e2e]]
        model = ["mnist", "cifar10"]
        batch = [8, 16]
        precision = ["fp32", "bf16"]
        layout = ["nhwc", "nchw"]
        option = [["decay=0"], ["classes=12"]]
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


def test_the_plan_takes_times_from_earlier_runs(file, capsys, monkeypatch):
    sweep(Sessions(), file, "--quiet")
    capsys.readouterr()
    monkeypatch.setattr("pydlbench.devices.cpu.affinity.choose_cpus", lambda *_: (0, 1))
    assert sweep(Sessions(), file, "--dry-run", "--json", "-") == 0
    document = json.loads(capsys.readouterr().out)
    assert "earlier measurements" in document["time_s"]["source"]
    assert document["rows"] == 11
    assert document["time_s"]["low"] < document["time_s"]["high"]
    assert [len(job["rows"]) for job in document["jobs"]] == [6, 1, 1, 2, 1]
    jsonschema = pytest.importorskip("jsonschema")
    from pydlbench.records.schema import load_schema

    jsonschema.Draft202012Validator(load_schema("sweep-plan")).validate(document)


def test_the_plan_takes_the_times_of_the_same_steps_only(tmp_path, capsys, monkeypatch):
    monkeypatch.setattr("pydlbench.devices.cpu.affinity.choose_cpus", lambda *_: (0, 1))
    path = tmp_path / "steps.toml"
    step = '[[e2e]]\nmodel = "mnist"\nframework = "torch"\nbatch = 8\n'

    def source(more):
        path.write_text(step + more, encoding="utf-8")
        capsys.readouterr()
        assert sweep(Sessions(), path, "--dry-run", "--json", "-") == 0
        return json.loads(capsys.readouterr().out)["time_s"]["source"]

    variant = 'option = ["classes=12", "decay=0"]\nlayout = "nchw"\n'
    path.write_text(step + variant, encoding="utf-8")
    sweep(Sessions(), path, "--quiet")
    assert source(variant) == "from earlier measurements on this machine"
    assert "nothing of it was measured" in source("")
    assert "nothing of it was measured" in source(f"{variant}threads = 1\n")


def test_a_single_row_that_is_asked_for_twice_is_one(tmp_path, capsys):
    path = tmp_path / "twice.toml"
    path.write_text('[[layers]]\nshape = "conv3"\nbatch = 1\n' * 2, encoding="utf-8")
    assert sweep(Sessions(), path, "--dry-run") == 0
    assert "[[layers]] 2: 1 row is asked for above already, left out" in capsys.readouterr().err
