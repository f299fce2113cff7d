"""``estimate``: its sum, the document, and what is kept of it."""

import json
import re

import pytest
from invented_calls import CALLS
from invented_rows import row_of, time_of
from invented_session import InventedSession, stop_after
from said import says

from pydlbench.cli import estimate as command
from pydlbench.cli import main
from pydlbench.cli.parser import read
from pydlbench.records.estimate import StepEstimate
from pydlbench.records.measurement import Roofline
from pydlbench.records.trace import OperatorsFacts
from pydlbench.store.store import Store


@pytest.fixture
def session(run_record):
    def row(case):
        seconds = 2e-3 if case.cache == "hot" else 3e-3
        roof = Roofline(bound="memory", time_s=1e-3, efficiency=1e-3 / seconds)
        return row_of(case, time=time_of(seconds), roofline=roof)

    return InventedSession(run_record, row)


def run(session, *words):
    return command.run(read(["estimate", *words, "--quiet"])[0], session.open)


def test_the_table_ends_in_an_interval_and_a_conclusion(session, capsys):
    assert run(session, "mnist", "--device", "cpu", "--batch", "4", "--phase", "training") == 0
    out = capsys.readouterr().out
    assert "mnist  batch 4  training  fp32" in out
    assert "(hot caches) to" in out
    assert "dominates" in out
    assert "optimizer 6.65 MB" in out
    assert max(map(len, out.splitlines())) <= 150
    kept = {"keep_samples": True, "estimate": True}
    assert session.opened == [
        {"threads": None, "seed": 0, "budget_s": 0.25, "repetitions": 4, **kept}
    ]


def test_json_has_the_estimate_and_the_rows_behind_it(session, capsys):
    assert run(session, "mnist", "--device", "cpu", "--json", "-") == 0
    found = json.loads(capsys.readouterr().out)
    assert (found["model"], found["batch"], found["phase"]) == ("mnist", 64, "forward")
    estimate = found["estimate"]
    assert estimate["low"] < estimate["time_s"] < estimate["high"]
    assert estimate["images_per_s"] == pytest.approx(64 / estimate["time_s"])
    assert sum(layer["time_s"] for layer in found["layers"]) == pytest.approx(estimate["time_s"])
    assert found["dominant"] in {layer["name"] for layer in found["layers"]}
    assert len(found["measurements"]) == 2 * estimate["kernels_measured"]


def test_a_run_is_kept_and_shown_as_it_was_printed(session, capsys):
    assert run(session, "mnist", "--device", "cpu", "--set", "classes=12") == 0
    out = capsys.readouterr().out
    with Store.open(readonly=True) as store:
        *layers, estimate = store.entries(session.run.id)
    assert {one.table for one in layers} == {"layer"}
    assert estimate.table == "estimate"
    assert estimate.document["options"] == {"classes": "12"}
    assert main(["runs", "show", "last"]) == 0
    assert capsys.readouterr().out.endswith(out)


def test_what_is_missing_is_named_and_the_exit_code_says_so(session, without_time, capsys):
    row = session.row

    def fail(case):
        failed = without_time("failed", "it does not fit", layer="mnist/conv2")
        return failed if case.layer.name == "mnist/conv2" else row(case)

    session.row = fail
    assert run(session, "mnist", "--device", "cpu") == 1
    assert says(capsys.readouterr().out, "conv2 forward", "it does not fit")


def test_long_models_show_their_largest_layers(session, capsys):
    assert run(session, "resnet50", "--device", "cpu", "--batch", "1", "--top", "5") == 0
    few = capsys.readouterr().out
    assert run(session, "resnet50", "--device", "cpu", "--batch", "1", "--all") == 0
    every = capsys.readouterr().out
    hidden = int(re.search(r"(\d+) others", few)[1])
    shown = [
        re.search(r" x(\d+) ", line) for line in few.partition("\nlayer ")[2].splitlines()[1:6]
    ]
    counts = [int(found[1]) if found else 1 for found in shown]
    assert max(counts) > 1
    # Each layer has a line of its own there; five lines and that of the others here.
    assert len(every.splitlines()) - len(few.splitlines()) == hidden + sum(counts) - 6
    assert "others" not in every


def test_an_interrupted_run_has_the_sum_of_its_rows(session, tmp_path, capsys):
    session.before = stop_after(4)
    path = tmp_path / "estimate.json"
    assert run(session, "mnist", "--device", "cpu", "--json", str(path)) == 130
    captured = capsys.readouterr()
    found = json.loads(path.read_text())
    assert found["interrupted"]
    # The largest layers come first.
    assert [layer["name"] for layer in found["layers"]] == ["conv1", "conv2", "fc1"]
    assert sum(layer["time_s"] for layer in found["layers"]) == found["estimate"]["time_s"]
    assert {entry["reason"] for entry in found["missing"]} == {
        "the estimate ended before it was measured"
    }
    assert "interrupted: 0 of 1 " in captured.err
    # The rows of the resumed run are taken, and all of a finished one.
    session.before = stop_after(99)
    with Store.open(readonly=True) as store:
        name = store.find("last", unfinished=True).id
    for _ in range(2):
        words = ("mnist", "--device", "cpu", "--json", str(path), "--resume", name)
        assert run(session, *words) == 0
    found = json.loads(path.read_text())
    assert (
        len(set(session.cases)) == len(session.cases) == found["estimate"]["kernels_measured"] * 2
    )
    assert (len(found["measurements"]), found["missing"]) == (len(session.cases), [])
    assert "dominates" in capsys.readouterr().out


def test_the_summary_counts_without_a_session(capsys):
    assert main(["estimate", "alexnet-owt", "--summary", "--json", "-"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert found["parameters"] == 61_100_840
    assert found["macs_forward"] == 714_188_480
    assert found["macs_training"] == 714_188_480 + 1_358_100_160
    assert found["layers"][0]["name"] == "conv1"


# -----------------------------------------------------------------------------
# A model of the user's own, whose layers are those of its recorded calls.


@pytest.fixture
def own(tmp_path, monkeypatch):
    text = "import torch\nraise SystemExit\ndef build(width): pass\n"
    (tmp_path / "my_model.py").write_text(text)
    monkeypatch.chdir(tmp_path)
    asked = []

    def listed(case, _):
        asked.append(case)
        return OperatorsFacts(calls=CALLS, batch=2, notes=("loss: invented",))

    monkeypatch.setattr("pydlbench.analysis.mapped.listed", listed)
    return asked


def test_a_model_of_ones_own_is_summed_by_module(own, session, capsys):
    words = ("my_model.py:build", "--set", "width=3", "--phase", "training", "--device", "cpu")
    assert run(session, *words, "--optimizer", "adam", "--time-limit", "9") == 0
    out = capsys.readouterr().out
    (case,) = own
    assert (case.framework, case.mode, case.own.optimizer) == ("torch", "eager", "adam")
    assert session.opened[0]["code_limit_s"] == 9
    first, _ = out.split("next: ", 1)
    sum_ = " ".join(first.split())
    assert says(sum_, "The 2 layers of my_model.py:build take 7.50 ms", "a dominates", "40 %")
    words = "my_model.py:build --phase training --set width=3 --optimizer adam"
    assert f"next: pydlbench step {words}" in out
    assert says(out, "my_model.py:build", "batch 2", "training")
    assert says(out, "a", "conv2d", "67 %")
    assert says(out, "75 % of the calls")
    assert says(out, "not in the sum: my.op")
    assert says(out, "note: loss: invented")
    assert "weights" not in out  # nobody has counted its memory
    with Store.open(readonly=True) as store:
        kept = StepEstimate.from_dict(store.entries(session.run.id)[-1].document)
    assert kept.recorded.calls == CALLS
    assert kept.own.optimizer == "adam"
    assert {one.name: one.share for one in kept.layers} == pytest.approx({"a": 2 / 3, "b": 1 / 3})
    assert main(["runs", "show", "last"]) == 0
    assert capsys.readouterr().out.endswith(out)


@pytest.mark.parametrize(
    ("words", "told"),
    [
        (("--summary",), ("--summary", "leave it out")),
        (("--batch", "4"), ("--batch 4", "--input 4x3x224x224")),
        (("--time-limit", "0"), ("--time-limit 0", "0.1")),
    ],
)
def test_bad_words_on_a_model_of_ones_own(own, words, told, capsys):
    assert main(["estimate", "my_model.py:build", *words]) == 2
    assert says(capsys.readouterr().err, *told)
    assert own == []


def test_the_types_of_an_onnx_file_are_its_own(session, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "net.onnx").touch()

    def listed(case, _):
        assert (case.framework, case.mode) == ("onnxruntime", "optimized")
        return OperatorsFacts(calls=CALLS, batch=2, types="fp16")

    monkeypatch.setattr("pydlbench.analysis.mapped.listed", listed)
    assert run(session, "net.onnx", "--device", "cpu") == 0
    assert says(capsys.readouterr().out, "net.onnx", "batch 2", "fp16")
