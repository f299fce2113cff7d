"""``breakdown``: printed, kept, shown again; one that cannot be made costs itself only."""

import inspect
import json
import signal
from unittest.mock import patch

import msgspec
import pytest
from breakdown_records import forecast_of
from invented_session import InventedSession
from said import says

from pydlbench.analysis.breakdown_run import broken_down
from pydlbench.cli import breakdown as command
from pydlbench.cli import main
from pydlbench.cli.parser import read
from pydlbench.errors import UnsupportedError, UsageError
from pydlbench.records.breakdown import (
    Alternative,
    BreakdownRecord,
    BrokenDownCall,
    BrokenDownModule,
    Level,
    Levels,
    Term,
)
from pydlbench.records.trace import Tracing
from pydlbench.store.store import Store

MS = 1e-3


def parse(*words):
    return read(["breakdown", *words])[0]


def level(ms):
    return Level(median=ms * MS, ci_low=0.9 * ms * MS, ci_high=1.1 * ms * MS, n=6)


def term(name, kind, ms, below, **more):
    return Term(
        term=name, kind=kind, seconds=ms * MS, share=ms / 40, how="how", level=below, **more
    )


def invented(case, session, **settings):
    """Stand for the measuring: a step of 40 ms, which TensorFlow cannot trace."""
    inspect.signature(broken_down).bind(case, session, **settings)
    settings["advance"](0, 6, "round 1 of 6")
    if case.framework == "tensorflow":
        raise UnsupportedError("no trace here")
    return BreakdownRecord(
        measured=level(40),
        levels=Levels(
            limit=None, native=None, alone=level(32), in_context=level(38), step=level(40)
        ),
        reasons={"limit": "no native layer", "native": "no native layer"},
        terms=(
            term("choice", "difference", 32, "alone"),
            term("caches", "experiment", 5, "in_context"),
            term("unexplained context", "unexplained", 1, "in_context", detail="conv1 +1.0 ms"),
            term("between calls", "difference", 2, "step"),
        ),
        calls=(
            BrokenDownCall(
                operator="conv",
                module="conv1",
                direction="forward",
                count=2,
                in_context_s=38 * MS,
                share=0.95,
                alone_s=32 * MS,
            ),
        ),
        modules=(BrokenDownModule(module="conv1", seconds=38 * MS, share=0.95, alone_s=32 * MS),),
        alternatives=(
            Alternative(
                change="kept pages",
                median=37 * MS,
                saved=3 * MS,
                ci_low=1 * MS,
                ci_high=4 * MS,
                n=3,
                how="in other processes",
            ),
        ),
        between_calls_s=2 * MS,
        not_measured=("fresh memory: nobody counts page faults here",),
        unexplained=0.025,
        unexplained_low=-0.01,
        unexplained_high=0.05,
        spec=case,
        library="PyTorch 9.9",
        threads=2,
        processes=6,
        trace=Tracing(
            source="a profiler",
            rounds=6,
            calls=2,
            traced_s=0.041,
            untraced_s=0.040,
            cost=1.02,
        ),
    )


def so_far(measure):
    """Return what yields the record of a measurement twice, as after two rounds."""

    def yielding(*arguments, **settings):
        yield from (record := measure(*arguments, **settings), record)

    return yielding


def run(words, session, measure=invented):
    with patch("pydlbench.analysis.breakdown_run.broken_down", so_far(measure)):
        return command.run(parse(*words), session.open)


@pytest.fixture
def session(run_record):
    return InventedSession(run_record)


@pytest.mark.parametrize(
    ("words", "number", "code"), [((), signal.SIGINT, 130), (("--minutes", "9"), signal.SIGALRM, 0)]
)
def test_an_interrupted_breakdown_is_printed_and_kept(
    session, tmp_path, capsys, words, number, code
):
    path = tmp_path / "breakdown.json"

    def interrupted(*arguments, **settings):
        yield invented(*arguments, **settings)
        signal.raise_signal(number)

    given = ("mnist", "--batch", "4", "--framework", "torch", "--json", str(path), *words)
    with patch("pydlbench.analysis.breakdown_run.broken_down", interrupted):
        assert command.run(parse(*given), session.open) == code
    out, err = capsys.readouterr()
    assert says(out, "40.00 ms", "6 processes")
    assert says(err, "0 of 1", "1 more in part")
    assert json.loads(path.read_text())["interrupted"]
    with Store.open(readonly=True) as store:
        info = store.find("last")
        (entry,) = store.entries(info.id)
    assert (info.status, entry.document["interrupted"]) == ("interrupted", True)


def test_a_resumed_breakdown_takes_what_is_finished(session):
    words = ("mnist", "--framework", "torch", "--mode", "eager,compiled")
    seen = []

    def measure(case, *arguments, **settings):
        seen.append(case.mode)
        if seen.count("compiled") == 1:
            raise KeyboardInterrupt
        return invented(case, *arguments, **settings)

    assert run(words, session, measure) == 130
    first = seen.copy()
    assert run((*words, "--resume", "last"), session, measure) == 0
    assert (first, seen[len(first) :]) == (["eager", "compiled"], ["compiled"])
    with Store.open(readonly=True) as store:
        (info,) = store.runs()
        modes = [entry.document["mode"] for entry in store.entries(info.id)]
    assert (info.status, modes) == ("done", ["eager", "compiled"])
    with pytest.raises(UsageError, match="batch was None, is 4"):
        run((*words, "--batch", "4", "--resume", info.id), session, measure)


def test_a_breakdown_is_printed_kept_and_shown_again(session, tmp_path, capsys):
    path = tmp_path / "breakdown.json"
    words = ("mnist", "--batch", "4", "--framework", "torch", "--json", str(path), "--explain")
    assert run(words, session) == 0
    out = capsys.readouterr().out
    assert says(out, "40.00 ms", "36.00", "44.00", "6 processes", "100 images/s")
    assert says(out, "unexplained", "+1.00 ms", "+2.5 %", "95 % -1.0 % .. +5.0 %")
    assert "not measured: fresh memory: nobody counts page faults here" in out
    assert says(out, "with kept pages: 37.00 ms", "-3.00 ms", "-4.00 .. -1.00", "3 rounds")
    found = json.loads(path.read_text())
    assert found["measured_s"] == found["levels"]["step"]
    assert found["levels"]["native"] is None
    assert found["additivity_error"] == pytest.approx(-0.2)
    assert sum(one["seconds"] for one in found["terms"]) == pytest.approx(40 * MS)
    assert main(["runs", "show", "last"]) == 0
    shown = capsys.readouterr().out
    assert "unexplained context" in shown
    assert main(["export", "last", "--format", "json"]) == 0
    assert json.loads(capsys.readouterr().out) == found
    assert main(["export", "last", "--format", "md"]) == 0
    rows = [line.split("|") for line in capsys.readouterr().out.splitlines() if "| step" in line]
    assert [cell.strip() for cell in rows[0][1:4]] == ["step", "40.00 ms", "36.00 .. 44.00"]


def test_a_step_without_a_trace_is_skipped_and_costs_no_other(session, capsys):
    words = ("mnist", "--batch", "4", "--framework", "torch,tensorflow", "--json", "-")
    assert run(words, session) == 0
    first, second = json.loads(capsys.readouterr().out)["breakdowns"]
    assert first["status"] == "ok"
    assert (second["status"], second["reason"]) == ("skipped", "no trace here")


def test_a_forecast_is_made_and_kept_before_the_step_is_timed(session, monkeypatch, capsys):
    forecast = forecast_of("mnist", 0.042)
    monkeypatch.setattr("pydlbench.analysis.forecast.forecast_step", lambda *_, **__: forecast)

    def measured(case, session, **settings):
        found = settings["forecast"](case)
        record = invented(case, session, **settings)
        return msgspec.structs.replace(record, forecast_s=found.seconds)

    words = ("mnist", "--batch", "4", "--framework", "torch")
    assert run(words, session, measured) == 0
    assert "forecast made before: 42.00 ms (+5.0 %)" in capsys.readouterr().out
    with Store.open(readonly=True) as store:
        ((made, kept),) = store.documents("forecast", 9)
        ((measured_later, _),) = store.documents("breakdown", 9)
    assert kept["forecast_s"] == 0.042
    assert made < measured_later


def test_steps_of_several_modes_stand_in_one_table(session, capsys):
    words = ("mnist", "--batch", "4", "--framework", "torch", "--mode", "eager,compiled")
    assert run(words, session) == 0
    lines = [line.split() for line in capsys.readouterr().out.splitlines()]
    rows = [line for line in lines if line[:1] == ["torch"]]
    assert [row[1] for row in rows] == ["eager", "compiled"]
    assert rows[0][2:] == ["32.00", "ms", "38.00", "ms", "40.00", "ms", "+2.5", "%"]
