from __future__ import annotations

import importlib.util
import json
from contextlib import contextmanager
from pathlib import Path

import pytest

from pydlbench.errors import WorkerError
from pydlbench.models import build_model

_PATH = Path(__file__).parents[1] / "report" / "check_records.py"
_SPEC = importlib.util.spec_from_file_location("check_records_here", _PATH)
records = importlib.util.module_from_spec(_SPEC)
_SPEC.loader.exec_module(records)

WORDS = ("--models", "mnist:4", "--phases", "forward", "training")


@pytest.fixture
def bench(script):
    return script("crosscheck")


@pytest.fixture
def open_session(run_record, measurement):
    class Session:
        run = run_record

        def cache_bytes(self, _):
            return 1 << 20

        def measure(self, cases, progress):  # noqa: ARG002 - as sessions are called
            return (measurement(layer=case.layer.name, median=1e-3, roof=9e-4) for case in cases)

    @contextmanager
    def factory(**_):
        yield Session()

    return factory


class Checker:
    """Gives each step the same record; ``broken`` frameworks raise."""

    def __init__(self, broken=(), error=None, **changes):
        self.broken, self.changes = broken, changes
        self.error = error or WorkerError("it died")
        self.calls = []

    def __call__(self, model, options, batch, phase, precision, framework, mode, *_, **__):
        self.calls.append((model, phase, framework))
        if framework in self.broken:
            raise self.error
        values = {"model": model, "batch": batch, "phase": phase, "precision": precision}
        return records.make_record(
            **{**values, "framework": framework, "mode": mode, "options": options, **self.changes}
        )


def test_the_default_set_is_twelve_models_that_exist(bench):
    assert len(bench.MODELS) == 12
    assert all(build_model(name, batch).batch == batch for name, batch in bench.MODELS.items())
    asked = bench.requests(bench.read([]))
    assert len(asked) == 24
    assert all(len(one.subjects) == 2 for one in asked)
    trained = [one for one in asked if one.phase == "training"]
    assert all(one.model.optimizer.kind != "none" for one in trained)
    changed = {one.model.name: one.model_options for one in asked if one.model_options}
    assert changed == {"alexnet": {"optimizer": "sgd"}}


def test_a_table_that_meets_its_targets(bench, open_session, capsys, tmp_path):
    ledger = records.make_ledger(layers=0.0860)
    target = tmp_path / "table.md"
    words = (*WORDS, "--md", str(target))
    assert bench.main(words, open_session, Checker(ledger=ledger)) == 0
    out = capsys.readouterr().out.splitlines()
    row = next(one for one in out if one.startswith("mnist"))
    assert row.split() == [
        *("mnist", "forward", "torch", "4", "112.4", "ms", "116.8", "ms"),
        *("-3.8", "%", "-22.2", "%", "+1.4", "%"),
    ]
    assert out[-5:] == [
        "4 of 4 rows have a result",
        "median error of the prediction: 3.8 %, target 5 %: met",
        "worst error (mnist forward torch): 3.8 %, target 12 %: met",
        "median |unexplained|: 1.4 %, target 3 %: met",
        "median error of the native sum: 22.2 % (4 rows)",
    ]
    text = target.read_text()
    assert "| mnist | training | tensorflow | 4 | 112.4 ms | 116.8 ms | -3.8 % |" in text
    assert "- median error of the prediction: 3.8 %, target 5 %: met" in text


def test_native_rows_can_be_left_out(bench, run_record, capsys):
    class Session:
        run = run_record  # it measures nothing

    @contextmanager
    def factory(**_):
        yield Session()

    words = (*WORDS, "--no-native")
    ledger = records.make_ledger(layers=0.0860)
    checker = Checker(ledger=ledger, native_low_s=0.0, native_high_s=0.0)
    assert bench.main(words, factory, checker) == 0
    out = capsys.readouterr().out.splitlines()
    row = next(one for one in out if one.startswith("mnist"))
    assert row.split()[8:11] == ["-3.8", "%", "-"]
    assert "4 of 4 rows have a result" in out
    assert not any("native sum:" in one for one in out)


def test_a_missed_target_is_exit_code_1(bench, open_session, capsys):
    assert bench.main(WORDS, open_session, Checker(estimate_s=0.0584)) == 1
    out = capsys.readouterr().out
    assert "median error of the prediction: 50.0 %, target 5 %: MISSED" in out
    assert "median |unexplained|: 3.1 %, target 3 %: MISSED" in out


def test_what_is_in_the_journal_is_not_measured_again(bench, open_session, tmp_path, capsys):
    journal = tmp_path / "rows.jsonl"
    words = (*WORDS, "--resume", str(journal))
    first = Checker(broken=("tensorflow",), ledger=records.make_ledger(layers=0.0860))
    assert bench.main(words, open_session, first) == 1
    assert "2 of 4 rows have a result" in capsys.readouterr().out
    with journal.open("a") as file:
        file.write('{"task": "cut')
    second = Checker(ledger=records.make_ledger(layers=0.0860))
    assert bench.main(words, open_session, second) == 0
    assert second.calls == [("mnist", phase, "tensorflow") for phase in ("forward", "training")]
    out = capsys.readouterr().out
    assert "4 of 4 rows have a result" in out
    assert len([one for one in out.splitlines() if one.startswith("mnist")]) == 4
    kept = [json.loads(one) for one in journal.read_text().splitlines() if "cut" not in one]
    assert [one["status"] for one in kept] == ["ok", "failed"] * 2 + ["ok", "ok"]
    assert kept[0]["ledger"][-1]["term"] == "unexplained"


def test_no_step_starts_after_the_time_is_over(bench, open_session, capsys, monkeypatch):
    clock = iter([0.0, 5.0, 20.0])
    monkeypatch.setattr(bench.time, "monotonic", lambda: next(clock))
    checker = Checker()
    assert bench.main((*WORDS, "--seconds", "10"), open_session, checker) == 1
    assert {phase for _, phase, _ in checker.calls} == {"forward"}
    assert "2 rows are left; go on with --resume FILE" in capsys.readouterr().out


def test_ctrl_c_keeps_what_is_finished(bench, open_session, tmp_path, capsys):
    journal = tmp_path / "rows.jsonl"
    checker = Checker(broken=("tensorflow",), error=KeyboardInterrupt())
    words = (*WORDS, "--resume", str(journal))
    assert bench.main(words, open_session, checker) == 130
    assert len(journal.read_text().splitlines()) == 1
    assert f"3 rows are left; go on with --resume {journal}" in capsys.readouterr().out


def test_a_session_that_cannot_measure_is_rows_that_say_why(bench, capsys):
    @contextmanager
    def broken(**_):
        raise WorkerError("no native module")
        yield

    assert bench.main(WORDS, broken, Checker()) == 1
    out = capsys.readouterr().out
    assert out.count("failed: no native module") == 4
    assert "0 of 4 rows have a result" in out


@pytest.mark.parametrize("words", [("--models", "mnist:0"), ("--models", "x"), ("--rounds", "1")])
def test_bad_input_is_exit_code_2(bench, words, capsys):
    assert bench.main(words) == 2
    assert capsys.readouterr().err.startswith("crosscheck: ")
