"""``forecast``: from stored rows, what is missing, its document, and how it is kept."""

import inspect
import json
from types import SimpleNamespace
from unittest.mock import patch

import msgspec
import pytest
from invented_session import InventedSession
from said import says

from pydlbench.analysis.forecast import conclude, forecasts
from pydlbench.analysis.rows import FAULT, Rows
from pydlbench.cli import forecast as command
from pydlbench.cli import main
from pydlbench.cli.parser import read
from pydlbench.errors import UnsupportedError, UsageError, WorkerError
from pydlbench.records.estimate import ForecastTerm, OperatorTime, Place, StepFaults
from pydlbench.records.trace import OperatorsFacts, RecordedCall
from pydlbench.report.estimate import dominating
from pydlbench.store.store import Store

WHEN = "2030-01-01T03:04:05+00:00"


def parse(*words):
    return read(["forecast", *words])[0]


def invented(case, session, store, **settings):
    """Stand for the forecaster: one operator that it measures, and one that has no row."""
    inspect.signature(forecasts).bind(case, session, store, **settings)
    settings["tell"]("operators")
    place = Place(framework=case.framework, mode=case.mode, library="x 1.0", threads=2)
    if case.framework == "tensorflow":
        raise UnsupportedError("no operators here")
    row = OperatorTime(
        signature="{}", operator="conv", place=place, created_utc=WHEN, visits_s=(0.010, 0.014)
    )
    settings["keep"]("operator", row.to_dict(), row.key)
    faults = StepFaults(place=place, step="{}", program="f3", created_utc=WHEN, counts=(1000.0,))
    settings["keep"]("faults", faults.to_dict(), faults.key)
    calls = [RecordedCall(signature="{}", operator="conv", count=5, names=("conv1", "conv2"))]
    if not settings["measures"]:
        calls.append(RecordedCall(signature="[]", operator="lrn"))
    found = OperatorsFacts(calls=tuple(calls), batch=4, notes=("loss: invented",))
    cost = msgspec.structs.replace(row, signature=FAULT.signature, visits_s=(5e-6,))
    return conclude(case, place, found, Rows(times={"{}": row, FAULT.signature: cost}), faults)


def run(words, session, measure=invented):
    with patch("pydlbench.analysis.forecast.forecasts", lambda *a, **k: iter([measure(*a, **k)])):
        return command.run(parse(*words), session.open)


@pytest.fixture
def session(run_record):
    return InventedSession(run_record)


def test_a_forecast_is_printed_kept_and_shown_again(session, tmp_path, capsys):
    path = tmp_path / "forecast.json"
    words = ("mnist", "--batch", "4", "--framework", "torch", "--json", str(path))
    assert run(words, session) == 0
    out, _ = capsys.readouterr()
    assert "forecast 65.00 ms" in out
    assert "55.56 .. 76.05 ms" in out
    assert says(out, "5 calls", "1 distinct")
    document = json.loads(path.read_text())
    (one,) = document["forecasts"]
    assert one["forecast_s"] == pytest.approx(0.065)
    assert one["framework"] == "torch"
    assert [term["share"] for term in one["terms"]] == pytest.approx([0.06 / 0.065, 0.005 / 0.065])
    with Store.open(readonly=True) as store:
        entries = store.entries(document["run"]["id"])
        assert [entry.table for entry in entries] == ["operator", "faults", "forecast"]
        keys = [entry.key for entry in entries[:1]]
        assert list(store.newest(keys)) == keys
    assert main(["runs", "show", "last"]) == 0
    assert "forecast 65.00 ms" in capsys.readouterr().out
    assert main(["runs", "show", str(path)]) == 0
    assert "forecast 65.00 ms" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("names", "told"),
    [
        ((), "in aten.gt"),
        (("gate",), "in aten.gt (gate)"),
        (("a", "b", "c"), "(a and 2 more)"),
    ],
)
def test_what_dominates_is_named_after_its_modules_if_it_has_any(names, told):
    term = ForecastTerm(operator="aten.gt", signature="{}", names=names, seconds=1.0, share=1.0)
    record = SimpleNamespace(terms=(term,))
    assert told in dominating(record)


def test_an_interruption_before_the_first_answer_is_a_json_object(session, capsys):
    def stop(*_, **__):
        raise KeyboardInterrupt

    assert run(("mnist", "--framework", "torch", "--json", "-"), session, stop) == 130
    document = json.loads(capsys.readouterr().out)
    assert (document["interrupted"], document["forecasts"]) == (True, [])
    assert ["torch eager" in label for label in document["unfinished"]] == [True]


def test_a_worker_that_dies_after_an_answer_costs_only_what_it_had_to_add(
    session, monkeypatch, capsys
):
    def dies(case, *more, **settings):
        yield invented(case, *more, **(settings | {"measures": False}))
        if case.mode == "eager":
            raise WorkerError("the torch worker was killed by SIGKILL")

    monkeypatch.setattr("pydlbench.analysis.forecast.forecasts", dies)
    words = ("mnist", "--framework", "torch", "--mode", "eager,compiled", "--json", "-")
    with pytest.raises(WorkerError):
        command.run(parse(*words), session.open)
    document = json.loads(capsys.readouterr().out)
    first, second = document["forecasts"]
    assert (first["mode"], first["forecast_s"]) == ("eager", second["forecast_s"])
    assert document["interrupted"]
    assert ["torch eager" in label for label in document["unfinished"]] == [True]
    with Store.open(readonly=True) as store:
        assert store.runs()[0].status == "failed"


def test_missing_rows_are_named_and_end_with_1(session, capsys):
    words = ("mnist", "--batch", "4", "--framework", "torch", "--known-only")
    assert run(words, session) == 1
    out, _ = capsys.readouterr()
    assert says(out, "1 without a row", "17 %")
    assert "lrn" in out


def test_a_framework_that_cannot_costs_itself_only(session, capsys):
    words = ("mnist", "--batch", "4", "--framework", "all")
    assert run(words, session) == 0
    out, _ = capsys.readouterr()
    assert "forecast 65.00 ms" in out
    assert "no operators here" in out


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (("mnost",), "mnist"),
        (("mnist", "--repetitions", "0"), "--repetitions"),
        (("mnist", "--framework", "torch", "--mode", "graph"), "graph"),
        (("alexnet", "--phase", "training"), "forward-backward"),
    ],
)
def test_bad_input_is_one_line(words, said, capsys):
    assert main(["forecast", *words]) == 2
    err = capsys.readouterr().err
    assert said in err
    assert len(err.splitlines()) == 1


def test_a_mistake_in_a_model_of_ones_own_is_bad_input_and_costs_more_than_a_row(
    session, tmp_path, monkeypatch
):
    (tmp_path / "net.py").write_text("import torch\ndef build(width): pass\n")
    monkeypatch.chdir(tmp_path)

    def forecaster(*_, **__):
        raise UsageError("net.py:build: missing a required argument: 'width'")

    with pytest.raises(UsageError, match="'width'"):
        run(["net.py:build"], session, forecaster)
    words = ("mnist", "--batch", "4", "--framework", "torch")
    assert run(words, session, forecaster) == 1


def test_a_model_of_ones_own_is_forecast_in_torch(session, tmp_path, monkeypatch, capsys):
    text = "import torch\nraise SystemExit\ndef build(width): pass\n"
    (tmp_path / "my_model.py").write_text(text)
    monkeypatch.chdir(tmp_path)
    words = ("my_model.py:build", "--set", "width=3", "--input", "4x8", "--phase", "training")
    assert run(words, session) == 0
    out = capsys.readouterr().out
    head = ("my_model.py:build", "width=3", "batch 4", "training", "input 4x8", "sgd", "eager")
    assert says(out.splitlines()[0], "92 % of it")
    assert says(out, *head)
    assert says(out, "the step was not timed", "note: loss: invented")
    assert "nchw" not in out
    assert main(["runs", "show", "last"]) == 0
    assert capsys.readouterr().out.endswith(out)
