"""What stored runs of the same code say of a row's next one, from the store to the output."""

from __future__ import annotations

import csv
import io
import json
from typing import TYPE_CHECKING

import msgspec
import pytest
from invented_rows import measurement, row_of
from invented_runs import REPEATABLE
from invented_session import InventedSession

from pydlbench.cli import layers as command
from pydlbench.cli import main
from pydlbench.cli.parser import read
from pydlbench.store.entry import Entry
from pydlbench.store.store import Store

if TYPE_CHECKING:
    from pydlbench.records.run import RunRecord

TITLE = "90 % of later runs"


def run_at(hour: int, **environment: str) -> RunRecord:
    """A run that began at an hour of the day; what differs from the others' environment."""
    return msgspec.structs.replace(
        REPEATABLE,
        id=f"20300102-{hour:02d}0000-0000",
        created_utc=f"2030-01-02T{hour:02d}:00:00+00:00",
        environment={**REPEATABLE.environment, **environment},
    )


def keep(path, run, median, **changes):
    """Store a run of one row."""
    row = measurement(median=median, **changes)
    with Store.open(path) as store:
        store.begin(run, "layers")
        store.add(run.id, Entry.from_document("layer", row.to_dict(), None))
        store.finish(run, "done")


def show(capsys, run="last"):
    capsys.readouterr()
    assert main(["runs", "show", run]) == 0
    return capsys.readouterr().out


def measure(capsys, run, *words):
    """Run ``layers`` on the same problem as ``run``; return what it printed."""
    session = InventedSession(run, lambda case: row_of(case, batch=128, median=0.05))
    options = read(["layers", "--shape", "alexnet/conv3", "--batch", "128", *words])[0]
    capsys.readouterr()
    assert command.run(options, session.open) == 0
    return capsys.readouterr().out


@pytest.fixture
def three_runs(store_path):
    for hour, median in enumerate((0.050, 0.055, 0.050 / 1.1)):
        keep(store_path, run_at(hour), median)
    return store_path


def test_a_stored_run_is_shown_with_what_its_repetitions_say(three_runs, capsys):
    assert TITLE in show(capsys)
    keep(three_runs, run_at(3, code="0ther"), 0.05)
    assert TITLE not in show(capsys)
    assert TITLE in show(capsys, run_at(2).id)


@pytest.mark.usefixtures("three_runs")
def test_a_row_has_the_interval_of_all_stored_occasions_and_its_own(capsys):
    document = json.loads(measure(capsys, run_at(3), "--format", "json"))
    (row,) = document["measurements"]
    expected = row["expected_s"]
    assert expected["occasions"] == 4
    # Of logarithms 0, 0.095, -0.095 and 0: Student's t of three degrees of freedom.
    assert expected["low"] * expected["high"] == pytest.approx(0.05**2, rel=1e-6)
    assert expected["high"] == pytest.approx(0.0614, rel=0.01)


@pytest.mark.usefixtures("three_runs")
def test_the_table_and_the_csv_have_it_too(capsys):
    table = measure(capsys, run_at(3))
    assert TITLE in table
    assert "40.7 ms to 61.4 ms" in table
    (row,) = csv.DictReader(io.StringIO(measure(capsys, run_at(4), "--format", "csv")))
    assert int(row["expected_s_occasions"]) == 5


def test_a_disturbed_run_is_left_out(three_runs, capsys):
    keep(three_runs, run_at(3), 0.5, contended=True)
    (row,) = json.loads(measure(capsys, run_at(4), "--format", "json"))["measurements"]
    assert row["expected_s"]["occasions"] == 4
    assert row["expected_s"]["high"] < 0.1


@pytest.mark.usefixtures("three_runs")
def test_runs_of_other_code_say_nothing(capsys):
    document = json.loads(measure(capsys, run_at(3, code="0ther"), "--format", "json"))
    (row,) = document["measurements"]
    assert row["expected_s"] is None


def test_runs_behind_one_another_say_nothing(store_path, capsys):
    for minute in range(3):
        run = msgspec.structs.replace(
            run_at(0), id=f"20300102-00000{minute}-0000", created_utc=f"2030-01-02T00:0{minute}:00Z"
        )
        keep(store_path, run, 0.05)
    assert TITLE not in show(capsys)
