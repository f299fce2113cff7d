"""``diagnose``: what it asks for, and how its findings are shown and kept."""

import json

import msgspec
import pytest
from invented_session import InventedSession
from said import says

from pydlbench.cli import diagnose as command
from pydlbench.cli import main
from pydlbench.cli.parser import read
from pydlbench.diagnose import run as package
from pydlbench.records.diagnosis import Cause, Diagnosis, Finding, Saving
from pydlbench.records.measurement import TimeSummary
from pydlbench.records.step import StepRecord
from pydlbench.store.store import Store

FRESH = "first touch of fresh memory"


@pytest.fixture
def session(run_record):
    return InventedSession(run_record)


@pytest.fixture
def asked(monkeypatch):
    """Stand in for the diagnosis: 30 % of the step can be saved."""
    found = []

    def diagnose(case, session, limit, tell, *, before, **_):
        found.append((case, session, limit, before))
        tell("the step")
        time = TimeSummary(median=0.1, ci_low=0.1, ci_high=0.1, q1=0.1, q3=0.1, min=0.1, n=9)
        saving = Saving(
            seconds=0.03, low=0.02, high=0.04, step_s=0.1, subject="step", how="in turn", rounds=9
        )
        one = Finding(
            problem=FRESH,
            where=(),
            symptom="5000 page faults",
            evidence=("in turn",),
            causes=(Cause(name=FRESH, meaning="the allocator"),),
            saving=saving,
            next="pydlbench breakdown mnist --framework torch",
            parts=frozenset({"allocation"}),
        )
        yield Diagnosis(step=StepRecord(spec=case, status="ok", time=time), findings=(one,))

    monkeypatch.setattr("pydlbench.diagnose.run.diagnoses", diagnose)
    return found


def parse(*words):
    return read(["diagnose", *words])[0]


def test_what_is_asked_for_arrives(session, asked, capsys):
    words = ("--phase", "training", "--batch", "4", "--set", "decay=0", "--minutes", "0.15")
    assert command.run(parse("mnist", *words, "--layout", "nchw"), session.open) == 0
    ((case, _, limit, before),) = asked
    assert before is None
    assert (case.model, case.phase, case.batch, limit) == ("mnist", "training", 4, 9.0)
    assert (case.framework, case.mode, case.layout) == ("torch", "eager", "nchw")
    assert case.options == {"decay": "0"}
    options = {"threads": None, "seed": 0, "budget_s": 0.25, "estimate": True}
    assert session.opened == [options]
    out, err = capsys.readouterr()
    assert says(out, "1", FRESH)
    assert says(err, "20300102-030405-abcd", "pydlbench runs show abcd")
    assert err.count("\n") == 1
    with Store.open(readonly=True) as store:
        (entry,) = store.entries("20300102-030405-abcd")
    assert entry.table == "findings"
    assert main(["runs", "show", "last"]) == 0
    assert capsys.readouterr().out.endswith(f"\n\n{out}")


@pytest.mark.parametrize(("share", "code"), [("0.1", 3), ("0.3", 3), ("0.31", 0)])
def test_a_large_finding_fails(session, asked, share, code):
    assert command.run(parse("mnist", "--fail-on", share), session.open) == code
    assert asked


def test_without_a_finding_nothing_fails(session, monkeypatch):
    time = TimeSummary(median=0.1, ci_low=0.1, ci_high=0.1, q1=0.1, q3=0.1, min=0.1, n=9)

    def diagnose(case, *_, **__):
        yield Diagnosis(step=StepRecord(spec=case, status="ok", time=time), findings=())

    monkeypatch.setattr("pydlbench.diagnose.run.diagnoses", diagnose)
    assert command.run(parse("mnist", "--fail-on", "saves"), session.open) == 0


def test_documents(session, asked, tmp_path, capsys):
    target = tmp_path / "found.json"
    words = ("--json", str(target), "--md", "-")
    assert command.run(parse("mnist", *words), session.open) == 0
    assert asked
    document = json.loads(target.read_text())
    assert document["schema_version"] == 1
    assert document["findings"][0]["saving"]["share"] == pytest.approx(0.3)
    assert document["run"]["id"]
    out = capsys.readouterr().out
    assert says(out, FRESH)
    assert "- next: `pydlbench breakdown mnist" in out  # as in Markdown


def test_what_was_found_before_an_interrupt_is_shown_and_kept(session, asked, monkeypatch, capsys):
    complete = package.diagnoses

    def interrupted(*arguments, **keywords):
        for record in complete(*arguments, **keywords):
            yield msgspec.structs.replace(record, interrupted=True)
        raise KeyboardInterrupt

    monkeypatch.setattr("pydlbench.diagnose.run.diagnoses", interrupted)
    assert command.run(parse("mnist"), session.open) == 130
    assert asked
    out, err = capsys.readouterr()
    assert says(out, "1", FRESH)
    assert says(err.splitlines()[-1], "0 of 1", "1 more in part")
    with Store.open(readonly=True) as store:
        (entry,) = store.entries("20300102-030405-abcd")
        assert store.info("20300102-030405-abcd").status == "interrupted"
    assert entry.document["interrupted"]


def test_an_interruption_before_the_step_is_timed_is_a_json_object(session, monkeypatch, capsys):
    def stop(*_, **__):
        raise KeyboardInterrupt

    monkeypatch.setattr("pydlbench.diagnose.run.diagnoses", stop)
    assert command.run(parse("mnist", "--json", "-"), session.open) == 130
    document = json.loads(capsys.readouterr().out)
    assert document["interrupted"]
    assert "findings" not in document
    assert ["mnist" in label for label in document["unfinished"]] == [True]


def test_a_resumed_diagnosis_begins_with_what_was_found(session, asked, monkeypatch, capsys):
    complete = package.diagnoses

    def interrupted(*arguments, **keywords):
        for record in complete(*arguments, **keywords):
            yield msgspec.structs.replace(record, interrupted=True)
        raise KeyboardInterrupt

    def at_once(*arguments, **keywords):
        next(complete(*arguments, **keywords))
        raise KeyboardInterrupt

    for diagnose, words in ((interrupted, ()), (at_once, ("--resume", "last")), (complete, ())):
        monkeypatch.setattr("pydlbench.diagnose.run.diagnoses", diagnose)
        again = words or (("--resume", "last") if asked else ())
        code = command.run(parse("mnist", *again), session.open)
        assert code == (0 if diagnose is complete else 130)
        assert says(capsys.readouterr().out, "1", FRESH)
    assert [before and before.findings[0].problem for *_, before in asked] == [None, FRESH, FRESH]
    with Store.open(readonly=True) as store:
        assert store.info("20300102-030405-abcd").status == "done"
