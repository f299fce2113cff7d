"""``layers``: what is kept of a run, and going on with one."""

import json
import os
import signal
import subprocess
import sys
from pathlib import Path

import msgspec
import pytest
from invented_rows import row_of
from invented_session import InventedSession, stop_after

from pydlbench.cli import layers as command
from pydlbench.cli.parser import read
from pydlbench.errors import PrimitiveError, UsageError
from pydlbench.store.store import Store

HELPERS = Path(__file__).parents[1] / "helpers"
ALL = ("--shape", "conv2,conv3,conv4", "--batch", "2")
SAMPLES = (0.05, 0.06, 0.07)


def parse(*words):
    return read(["layers", *words])[0]


@pytest.fixture(autouse=True)
def _command_line(monkeypatch):
    monkeypatch.setattr(sys, "argv", ["pydlbench", "layers", *ALL])


@pytest.fixture
def begin(run_of_now):
    """Run ``layers``; return the session. ``statuses`` by layer or backend."""

    def run(*words, code=0, number=0, stop_at=None, rows=None, statuses=None):
        statuses = statuses or {}

        def row(case):
            name = case.layer.name.partition("/")[2]
            status = statuses.get(name, statuses.get(case.backend, "ok"))
            return row_of(case, status=status, samples_s=SAMPLES)

        session = InventedSession(run_of_now(number), row, stop_after(rows))
        if stop_at:
            session.errors[stop_at] = KeyboardInterrupt()
        assert command.run(parse(*words), session.open) == code
        return session

    return run


@pytest.fixture
def run_of_now(run_record):
    def build(number):
        fields = run_record.to_dict()
        now = {"id": f"20300102-0000000{number}", "command": sys.argv}
        return type(run_record).from_dict({**fields, **now})

    return build


def kept(path):
    with Store.open(path, readonly=True) as store:
        (info,) = store.runs()
        return info, store.entries(info.id, samples=True)


def test_samples_are_kept_and_shown_only_where_they_are_asked_for(begin, store_path, capsys):
    begin(*ALL, "--json", "-")
    rows = json.loads(capsys.readouterr().out)["measurements"]
    assert not any("samples_s" in row for row in rows)
    info, entries = kept(store_path)
    assert (info.status, info.kind, info.measurements) == ("done", "layers", 3)
    assert [entry.samples for entry in entries] == [SAMPLES] * 3


def test_asked_for_samples_are_in_json(begin, capsys):
    begin("--shape", "conv3", "--samples", "--json", "-")
    (row,) = json.loads(capsys.readouterr().out)["measurements"]
    assert row["samples_s"] == list(SAMPLES)


def test_an_interrupted_run_is_gone_on_with_by_its_name_alone(begin, store_path, capsys):
    first = begin(*ALL, code=130, stop_at="conv4")
    assert first.layers == ["conv2", "conv3"]
    assert kept(store_path)[0].status == "interrupted"
    capsys.readouterr()
    second = begin("--resume", "last", "--json", "-", number=1)
    assert second.layers == ["conv4"]
    document = json.loads(capsys.readouterr().out)
    assert [row["layer"] for row in document["measurements"]] == [
        "alexnet/conv2",
        "alexnet/conv3",
        "alexnet/conv4",
    ]
    assert document["run"]["id"] == "20300102-00000000"
    assert document["interrupted"] is False
    info, entries = kept(store_path)
    assert (info.id, info.status, info.measurements) == ("20300102-00000000", "done", 3)
    assert [entry.samples for entry in entries] == [SAMPLES] * 3


def test_failed_rows_are_measured_again_and_skipped_ones_not(begin, store_path):
    statuses = {"conv2": "skipped", "conv3": "failed"}
    begin(*ALL, statuses=statuses, code=130, stop_at="conv4")
    again = begin("--resume", "0000", *ALL, number=1)
    assert again.layers == ["conv3", "conv4"]
    _, entries = kept(store_path)
    found = [(one.document["layer"], one.document["status"]) for one in entries]
    assert found == [
        ("alexnet/conv2", "skipped"),
        ("alexnet/conv3", "ok"),
        ("alexnet/conv4", "ok"),
    ]


INTERLEAVED = ("--shape", "conv2,conv3", "--batch", "2", "--backend", "native,numba")


@pytest.fixture
def half(begin, monkeypatch):
    """A run that ended between two backends of conv3."""
    monkeypatch.setattr(sys, "argv", ["pydlbench", "layers", *INTERLEAVED])
    begin(*INTERLEAVED, code=130, rows=3)


@pytest.mark.usefixtures("half")
def test_backends_that_compete_are_measured_again_together(begin, store_path, capsys):
    capsys.readouterr()
    again = begin("--resume", "last", "--json", "-", number=1)
    assert again.layers == ["conv3", "conv3"]
    rows = json.loads(capsys.readouterr().out)["measurements"]
    names = [(row["layer"].partition("/")[2], row["backend"]) for row in rows]
    both = [(name, backend) for name in ("conv2", "conv3") for backend in ("native", "numba")]
    assert names == both
    _, entries = kept(store_path)
    assert [(one.document["layer"][8:], one.document["backend"]) for one in entries] == both
    assert begin("--resume", "last", number=2).cases == []


@pytest.mark.usefixtures("half")
def test_a_row_that_was_ok_is_not_given_up_for_one_that_failed(begin, store_path, capsys):
    capsys.readouterr()
    begin("--resume", "last", "--json", "-", number=1, statuses={"native": "failed"})
    rows = json.loads(capsys.readouterr().out)["measurements"]
    assert [row["status"] for row in rows] == ["ok"] * 4
    assert [one.document["status"] for one in kept(store_path)[1]] == ["ok"] * 4


def test_what_the_first_attempt_probed_stays_in_the_record(run_of_now, store_path):
    def probed(number, precision):
        run = run_of_now(number)
        run.device["peaks"] = [{"precision": precision, "measured_flops_per_s": 1e12}]
        return run

    def stop(count):
        if count == 2:
            with Store.open(store_path, readonly=True) as store:
                (peak,) = store.record("20300102-00000000").device["peaks"]
            assert peak["precision"] == "fp32"  # before anything has ended
            raise KeyboardInterrupt

    first = InventedSession(probed(0, "fp32"), before=stop)
    assert command.run(parse(*ALL), first.open) == 130
    second = InventedSession(probed(1, "bf16"))
    assert command.run(parse("--resume", "last"), second.open) == 0
    with Store.open(store_path, readonly=True) as store:
        peaks = store.record("20300102-00000000").device["peaks"]
    assert [one["precision"] for one in peaks] == ["fp32", "bf16"]


def test_a_run_that_is_done_is_only_shown(begin, store_path, capsys):
    begin(*ALL)
    capsys.readouterr()
    assert begin("--resume", "last", number=1).cases == []
    assert "alexnet  3 layers" in capsys.readouterr().out
    assert kept(store_path)[0].status == "done"


def test_an_error_in_the_middle_is_kept_as_failed(run_of_now, store_path):
    session = InventedSession(run_of_now(0), before=stop_after(1, PrimitiveError("gone")))
    with pytest.raises(PrimitiveError):
        command.run(parse(*ALL), session.open)
    info, entries = kept(store_path)
    assert (info.status, len(entries)) == ("failed", 1)


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (("--shape", "conv2"), "shape was"),
        ((*ALL, "--precision", "bf16"), "precision was"),
        ((*ALL, "--seed", "7"), "seed was 0, is 7"),
    ],
)
def test_another_request_is_refused_before_anything_is_measured(
    run_of_now, begin, words, message, store_path, capsys
):
    begin(*ALL, code=130, stop_at="conv3")
    capsys.readouterr()
    session = InventedSession(run_of_now(1))
    with pytest.raises(UsageError, match=message):
        command.run(parse(*words, "--resume", "last"), session.open)
    assert session.cases == []
    assert capsys.readouterr().out == ""
    assert kept(store_path)[0].status == "interrupted"


def test_another_machine_is_refused(run_of_now, begin):
    begin(*ALL, code=130, stop_at="conv3")
    other = run_of_now(1)
    other.device["name"] = "Invented 9001"
    session = InventedSession(other)
    text = "Invented 9000.*Invented 9001"
    with pytest.raises(UsageError, match=text):
        command.run(parse("--resume", "last"), session.open)
    assert session.cases == []


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (("--resume", "lats"), "run lats: no such run; nearest: last"),
        (("--resume", "last", "--store", "none"), "--resume last: "),
        (("--resume", "last~1"), "there is 1 run only; nearest: last~0"),
    ],
)
def test_what_cannot_be_resumed_is_one_line(begin, words, message):
    begin(*ALL, code=130, stop_at="conv3")
    with pytest.raises(UsageError) as caught:
        command.run(parse(*words))
    assert message in str(caught.value)


def test_a_run_of_another_command_is_refused(store_path, run_record):
    run = msgspec.structs.replace(run_record, command=("pydlbench", "estimate", "mnist"))
    with Store.open(store_path) as store:
        store.begin(run, "estimate")
        store.finish(run, "done")
    for more in ((), ALL):
        with pytest.raises(UsageError, match=r"estimate, not .*layers"):
            command.run(parse("--resume", "last", *more))


_KILLED = """
import sys, time
from invented_session import InventedSession
from pydlbench.cli import layers
from pydlbench.cli.parser import read
from pydlbench.records.run import RunRecord

def wait(count):
    if count == 2:
        print("two rows", flush=True)
        time.sleep(60)

run = RunRecord(id="20300102-killed00", created_utc="2030-01-02T03:04:05+00:00",
                command=tuple(sys.argv), device={"name": "A"})
layers.run(read(sys.argv[1:])[0], InventedSession(run, before=wait).open)
"""


def test_a_killed_run_has_all_rows_that_were_finished(store_path, run_record):
    process = subprocess.Popen(
        [sys.executable, "-c", _KILLED, "layers", *ALL],
        stdout=subprocess.PIPE,
        env={**os.environ, "PYTHONPATH": os.pathsep.join(map(str, (HELPERS, *sys.path)))},
        text=True,
    )
    assert process.stdout.readline() == "two rows\n"
    process.send_signal(signal.SIGKILL)
    process.communicate()
    info, entries = kept(store_path)
    assert (info.status, len(entries)) == ("killed", 2)
    fields = {**run_record.to_dict(), "device": {"name": "A"}, "environment": {}}
    session = InventedSession(type(run_record).from_dict(fields))
    assert command.run(parse("--resume", "last"), session.open) == 0
    assert session.layers == ["conv4"]
    info, entries = kept(store_path)
    assert (info.status, len(entries)) == ("done", 3)
