"""``check``: each framework's check, its document, and what an error costs."""

import inspect
import json
import time

import msgspec
import pytest
from check_records import forecast_of, record_of
from invented_rows import row_of
from invented_session import InventedSession, stop_after
from said import says

from pydlbench.cli import check as command
from pydlbench.cli import main
from pydlbench.cli.parser import command_parser
from pydlbench.errors import (
    BackendMissingError,
    PydlbenchError,
    UnsupportedError,
    UsageError,
    WorkerError,
)
from pydlbench.ladder.check import check_step
from pydlbench.records.check import RUNGS
from pydlbench.records.step import StepSpec
from pydlbench.store.store import Store

BOTH = ("mnist", "--batch", "4", "--framework", "torch,tensorflow")
DESIGN_KEYS = {
    *("schema_version", "run", "framework", "mode", "measured_s", "rungs", "forecast_s"),
    *("forecast_error", "additivity_error", "ledger", "unexplained"),
}


def parse(*words):
    return command_parser("check").parse_args(words)


class FakeChecker:
    """Stands for ``pydlbench.ladder.check.check_step``; raises what it has for a framework."""

    def __init__(self, **errors):
        self.errors = errors
        self.calls = []
        self.natives = []

    def __call__(self, *given, **settings):
        inspect.signature(check_step).bind(*given, **settings)  # as the real one is called
        case, session = given
        assert session.cases
        self.natives.append(settings.pop("native"))
        assert settings.pop("began") <= time.monotonic()
        settings.pop("tell")("operators")
        assert callable(settings.pop("forecast"))
        self.calls.append((case, settings))
        if case.framework in self.errors:
            raise self.errors[case.framework]
        return record_of(case)


@pytest.fixture
def session(run_record):
    return InventedSession(run_record)


def test_each_framework_is_checked_in_its_first_mode(session, capsys):
    checker = FakeChecker()
    words = (*BOTH, "--phase", "training", "--laps", "7", "--stop-after", "9", "--seed", "3")
    assert command.run(parse(*words), session.open, checker) == 0
    settings = {"laps": 7, "time_limit_s": 9.0}
    step = {"model": "mnist", "batch": 4, "phase": "training", "seed": 3}
    assert checker.calls == [
        (StepSpec(framework="torch", mode="eager", **step), settings),
        (StepSpec(framework="tensorflow", mode="graph", **step), settings),
    ]
    kept = {"keep_samples": True, "estimate": True}
    assert session.opened == [{"threads": None, "seed": 3, "budget_s": 0.25, **kept}]
    out, err = capsys.readouterr()
    assert out.count("measured 116.8 ms") == 2
    assert out.splitlines()[-1].startswith("tensorflow graph")
    assert err == "kept as run 20300102-030405-abcd (pydlbench runs show abcd)\n"
    with Store.open(readonly=True) as store:
        entries = store.entries("20300102-030405-abcd")
    assert {one.table for one in entries} == {"layer", "check"}
    assert [one.document["framework"] for one in entries[-2:]] == ["torch", "tensorflow"]
    assert len(entries) == 2 + len(session.cases)
    assert main(["runs", "show", "last"]) == 0
    assert capsys.readouterr().out.endswith(out)


def test_a_forecast_is_kept_before_the_step_runs(session, monkeypatch, capsys):
    step = StepSpec(model="mnist", batch=4)
    found = forecast_of("mnist", 0.123)
    monkeypatch.setattr("pydlbench.ladder.forecast.forecast_step", lambda *_, **__: found)
    kept = []

    def checker(case, _, **settings):
        assert settings["forecast"](case) == found
        with Store.open(readonly=True) as store:
            kept.extend(one.document for one in store.entries(session.run.id, "forecast"))
        return msgspec.structs.replace(record_of(step), forecast_s=0.123)

    words = ("mnist", "--framework", "torch", "--batch", "4", "--json", "-")
    assert command.run(parse(*words), session.open, checker) == 0
    assert [one["forecast_s"] for one in kept] == [0.123]
    # It is no native row, and is shown once: with the check.
    document = json.loads(capsys.readouterr().out)
    assert len(document["measurements"]) == len(session.cases)
    assert main(["runs", "show", "last"]) == 0
    assert capsys.readouterr().out.count("forecast 123") == 1


def test_native_rows_are_measured_once_and_shared(session):
    checker = FakeChecker()
    command.run(parse(*BOTH), session.open, checker)
    assert len(session.cases) == len(set(session.cases))
    first, second = checker.natives
    assert first == second
    assert set(first) == set(session.cases)
    assert all(row.ok for row in first.values())


def test_native_rows_are_found_by_the_first_of_as_many_visits_as_there_are_laps(session):
    command.run(parse(*BOTH, "--laps", "7"), session.open, FakeChecker())
    assert [one["first_of"] for one in session.how] == [7, 7]


def test_modes_in_the_other_frameworks_words(session, capsys):
    checker = FakeChecker()
    assert command.run(parse(*BOTH, "--mode", "eager,compiled"), session.open, checker) == 0
    assert [(case.framework, case.mode) for case, _ in checker.calls] == [
        ("torch", "eager"),
        ("torch", "compiled"),
        ("tensorflow", "graph"),
        ("tensorflow", "xla"),
    ]
    assert "tensorflow has no mode eager" in capsys.readouterr().err


def test_all_modes_of_all_frameworks(session):
    checker = FakeChecker()
    command.run(parse("mnist", "--framework", "all", "--mode", "all"), session.open, checker)
    modes = [case.mode for case, _ in checker.calls]
    assert modes == ["eager", "compiled", "graph", "xla"]


def test_without_a_name_those_that_are_installed(session, monkeypatch):
    monkeypatch.setattr(
        "pydlbench.backends.capabilities.is_there", lambda one: one.name == "tensorflow"
    )
    checker = FakeChecker()
    command.run(parse("mnist"), session.open, checker)
    assert [case.framework for case, _ in checker.calls] == ["tensorflow"]


def test_without_any_framework_the_way_to_get_one(monkeypatch):
    monkeypatch.setattr("pydlbench.backends.capabilities.is_there", lambda _: False)
    with pytest.raises(BackendMissingError, match=r"pip install 'pydlbench\[torch\]' or pip"):
        command.run(parse("mnist"))


def test_options_reach_the_model(session):
    checker = FakeChecker()
    words = ("alexnet", "--framework", "torch", "--option", "lrn=off", "--batch", "2")
    command.run(parse(*words), session.open, checker)
    case, _ = checker.calls[0]
    assert (case.model, case.options, case.batch) == ("alexnet", {"lrn": "off"}, 2)
    assert all("lrn" not in case.layer.name for case in session.cases)


def test_one_check_is_one_json_object(session, capsys):
    words = ("mnist", "--framework", "torch", "--json", "-", "--batch", "4")
    assert command.run(parse(*words), session.open, FakeChecker()) == 0
    document = json.loads(capsys.readouterr().out)
    assert document.keys() >= DESIGN_KEYS
    assert (document["schema_version"], document["run"]["id"]) == (2, "20300102-030405-abcd")
    assert (document["status"], document["reason"]) == ("ok", None)
    assert document["measured_s"].keys() >= {"median", "ci_low", "ci_high", "n"}
    assert document["additivity_error"] == pytest.approx((0.1124 - 0.1168) / 0.1168)
    assert document["forecast_s"] is document["forecast_error"] is None
    assert document["rungs"].keys() == {*RUNGS}
    assert document["rungs"]["limit"].keys() == {"median", "ci_low", "ci_high", "n"}
    assert document["rungs"]["native_chain"] is None
    assert document["reasons"].keys() == {"native_chain", "operator_chain"}
    terms = document["ledger"]
    names = {"term", "kind", "seconds", "ci_low", "ci_high", "share", "how"}
    assert all(one.keys() >= names for one in terms)
    total = sum(one["seconds"] for one in terms)
    assert total == pytest.approx(document["measured_s"]["median"])
    left = sum(one["share"] for one in terms if one["kind"] == "unexplained")
    assert left == document["unexplained"]
    assert len(document["measurements"]) == len(session.cases)


def test_several_are_a_list(session, capsys):
    command.run(parse(*BOTH, "--json", "-"), session.open, FakeChecker())
    document = json.loads(capsys.readouterr().out)
    assert [one["framework"] for one in document["checks"]] == ["torch", "tensorflow"]
    assert document.keys() >= {"schema_version", "run"}
    assert "ledger" not in document


def test_files_and_the_report_together(session, capsys, tmp_path):
    words = ("--json", str(tmp_path / "a.json"), "--md", str(tmp_path / "a.md"), "--explain")
    assert command.run(parse(*BOTH, *words), session.open, FakeChecker()) == 0
    assert len(json.loads((tmp_path / "a.json").read_text())["checks"]) == 2
    assert "| fresh memory | experiment | +6.3 ms |" in (tmp_path / "a.md").read_text()
    assert capsys.readouterr().out.count("how each term was measured") == 2


@pytest.mark.parametrize(
    ("error", "status"),
    [
        (WorkerError("the worker\ndied"), "failed"),
        (UnsupportedError("no such precision"), "skipped"),
        (BackendMissingError("torch is not installed"), "failed"),
    ],
)
def test_one_that_fails_does_not_take_the_other_down(error, status, session, capsys):
    checker = FakeChecker(torch=error)
    assert command.run(parse(*BOTH, "--json", "-"), session.open, checker) == 0
    first, second = json.loads(capsys.readouterr().out)["checks"]
    assert (first["status"], first["framework"], first["mode"]) == (status, "torch", "eager")
    assert first["reason"] == " ".join(str(error).split())
    assert "measured_s" not in first
    assert second["status"] == "ok"


def test_all_failing_is_exit_code_1_and_a_line_each(session, capsys):
    checker = FakeChecker(torch=PydlbenchError("one"), tensorflow=PydlbenchError("two"))
    assert command.run(parse(*BOTH), session.open, checker) == 1
    first, between, second = capsys.readouterr().out.splitlines()
    assert says(first, "mnist", "batch 4", "torch eager", "failed: one")
    assert between == ""
    assert says(second, "mnist", "batch 4", "tensorflow graph", "failed: two")


def test_ctrl_c_leaves_the_finished_checks(session, capsys):
    checker = FakeChecker(tensorflow=KeyboardInterrupt())
    assert command.run(parse(*BOTH, "--json", "-"), session.open, checker) == 130
    out, err = capsys.readouterr()
    document = json.loads(out)
    assert document["interrupted"] is True
    assert [one["framework"] for one in document["checks"]] == ["torch"]
    (line,) = err.splitlines()[1:]
    assert says(line, "interrupted", "1 of 2 checks")


def test_ctrl_c_before_the_first_check_writes_nothing(run_record, capsys, tmp_path):
    session = InventedSession(run_record, before=stop_after(0))
    target = tmp_path / "a.json"
    words = (*BOTH, "--json", str(target))
    assert command.run(parse(*words), session.open, FakeChecker()) == 130
    out, err = capsys.readouterr()
    assert out == ""
    assert says(err, "interrupted", "0 of 2 checks")
    assert not target.exists()


def test_disturbed_native_rows_are_said_in_the_conclusion(run_record, capsys):
    session = InventedSession(run_record, lambda case: row_of(case, contended=True))
    command.run(
        parse("mnist", "--framework", "torch", "--store", "none"), session.open, FakeChecker()
    )
    out, err = capsys.readouterr()
    assert err == ""
    conclusion = out.split("\n\n")[-1].splitlines()
    assert conclusion[0].startswith("other work disturbed the run")
    assert len(conclusion) == 2


def test_a_model_of_keras_says_its_layout_itself(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "net.py").write_text("import keras\ndef build(): pass\n")
    tasks, _ = command.read_tasks(parse("net.py:build", "--layout", "nchw"))
    assert [task.rows[0].case.framework for task in tasks] == ["tensorflow"]
    with pytest.raises(UsageError, match="--layout nchw"):
        command.read_tasks(parse("mnist", "--framework", "tensorflow", "--layout", "nchw"))
