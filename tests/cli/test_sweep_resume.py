"""``pydlbench sweep --resume``: what was finished stays, the rest is measured."""

import json
import signal
import subprocess
import sys
import textwrap
from pathlib import Path

import pytest
import raw_store
from invented_rows import time_of
from invented_sweep import LAYERS, Sessions, counts, entries, sweep

from pydlbench.errors import UsageError
from pydlbench.records.diagnosis import Diagnosis
from pydlbench.records.step import StepRecord
from pydlbench.store.store import Store


def test_ctrl_c_keeps_what_is_finished_and_resume_does_the_rest(file, capsys):
    def stop(count):
        if count == 9:
            raise KeyboardInterrupt

    first = Sessions(stop)
    assert sweep(first, file) == 130
    info, found = entries()
    assert info.status == "interrupted"
    assert len(found) == 9
    assert f"pydlbench sweep --resume {info.id}" in capsys.readouterr().err
    second = Sessions()
    assert sweep(second, "--resume", "last") == 0
    again, all_ = entries()
    assert again.id == info.id
    assert again.status == "done"
    assert not any("alexnet" in label for label in second.measured)
    whole = Sessions()
    assert sweep(whole, file, "--quiet") == 0
    assert [*first.measured, *second.measured] == whole.measured
    assert counts(all_) == counts(entries()[1])
    assert len(all_) == len({entry.key for entry in all_})


def test_what_failed_is_measured_again_and_takes_its_place(tmp_path):
    path = tmp_path / "layers.toml"
    path.write_text(LAYERS, encoding="utf-8")
    first = Sessions()
    first.failing = {"conv4"}
    sweep(first, path, "--quiet")
    second = Sessions()
    assert sweep(second, path, "--resume", "last", "--quiet") == 0
    assert second.measured == ["alexnet/conv4 forward fp32"]
    _, found = entries()
    assert [entry.document["status"] for entry in found] == ["ok"] * 4
    third = Sessions()
    assert sweep(third, "--resume", "last", "--quiet") == 0
    assert third.measured == third.opened == []


def test_kill_9_loses_nothing_that_was_finished(tmp_path):
    path = tmp_path / "layers.toml"
    path.write_text(LAYERS, encoding="utf-8")
    script = f"""
        import os, signal, sys
        sys.path.insert(0, {str(Path(__file__).parents[1] / "helpers")!r})
        from invented_sweep import Sessions, sweep
        def die(count):
            if count == 2:
                os.kill(os.getpid(), signal.SIGKILL)

        sweep(Sessions(die), {str(path)!r}, "--quiet")
    """
    done = subprocess.run([sys.executable, "-c", textwrap.dedent(script)], check=False)
    assert done.returncode == -signal.SIGKILL
    info, found = entries()
    assert info.status == "killed"
    assert [entry.document["layer"] for entry in found] == ["alexnet/conv2", "alexnet/conv3"]
    sessions = Sessions()
    assert sweep(sessions, "--resume", "last", "--quiet") == 0
    assert sessions.measured == ["alexnet/conv4 forward fp32", "alexnet/conv5 forward fp32"]
    assert len(entries()[1]) == 4


def test_a_file_that_changed_is_no_continuation(tmp_path):
    path = tmp_path / "layers.toml"
    path.write_text(LAYERS, encoding="utf-8")
    sweep(Sessions(), path, "--quiet")
    path.write_text(LAYERS + "seed = 3\n", encoding="utf-8")
    with pytest.raises(UsageError, match=r"has changed since run .* nearest: leave FILE out"):
        sweep(Sessions(), path, "--resume", "last")


class InTurn(Sessions):
    """Notes which cases were handed over together."""

    def __init__(self, before=None):
        super().__init__(before)
        self.calls = []

    def measure(self, cases, progress, **_):
        self.calls.append([case.backend for case in cases])
        return super().measure(cases, progress)


BACKENDS = '[[layers]]\nshape = ["conv3", "conv4"]\nbackend = ["native", "numba"]\nbatch = 1\n'


def test_backends_of_one_problem_are_measured_together(tmp_path):
    path = tmp_path / "backends.toml"
    path.write_text(BACKENDS, encoding="utf-8")
    sessions = InTurn()
    sweep(sessions, path, "--quiet")
    assert sessions.calls == [["native", "numba"] * 2]


@pytest.mark.parametrize("missing", ["deleted", "failed"])
def test_what_competes_with_a_missing_row_is_measured_again_with_it(
    tmp_path, store_path, missing, capsys
):
    path = tmp_path / "backends.toml"
    path.write_text(BACKENDS, encoding="utf-8")
    first = Sessions()
    first.failing = {"conv4 forward fp32 numba"} if missing == "failed" else set()
    sweep(first, path, "--quiet")
    info, found = entries()
    (lost,) = [
        one.key
        for one in found
        if (one.document["layer"], one.document["backend"]) == ("alexnet/conv4", "numba")
    ]
    # As if the process had been killed between two commits; or the worker has died.
    if missing == "deleted":
        raw_store.execute(store_path, "DELETE FROM entries WHERE key = ?", lost)
    again = InTurn()
    again.failing = {"native"}
    capsys.readouterr()
    assert sweep(again, "--resume", info.id, "--quiet", "--json", "-") == 0
    assert again.calls == [["native", "numba"]]
    rows = json.loads(capsys.readouterr().out)["measurements"]
    for some in (rows, [one.document for one in entries()[1]]):
        assert len(some) == 4
        assert {row["status"] for row in some} == {"ok"}  # the one that failed now did not before


def test_steps_of_a_job_are_timed_in_turn_again(tmp_path, store_path):
    path = tmp_path / "steps.toml"
    text = '[[step]]\nmodel = "mnist"\nframework = "torch"\nmode = "all"\nbatch = 8\n'
    path.write_text(text, encoding="utf-8")
    sweep(Sessions(), path, "--quiet")
    raw_store.execute(store_path, "DELETE FROM entries WHERE number = 2")
    again = Sessions()
    assert sweep(again, "--resume", "last", "--quiet") == 0
    assert len(again.measured) == len(entries()[1]) == 2


def test_a_killed_sweep_has_what_was_probed_and_the_rest_adds_to_it(tmp_path):
    path = tmp_path / "layers.toml"
    path.write_text(LAYERS, encoding="utf-8")

    def stop(count):
        if count == 2:
            with Store.open(readonly=True) as store:
                told.append(store.record(store.find("last").id).device["peaks"])
            raise KeyboardInterrupt

    told = []
    first = Sessions(stop)
    first.run.device["peaks"] = [{"precision": "fp32"}]
    assert sweep(first, path, "--quiet") == 130
    assert told == [[{"precision": "fp32"}]]  # before anything had ended
    second = Sessions()
    second.run.device["peaks"] = [{"precision": "bf16"}]
    assert sweep(second, "--resume", "last", "--quiet") == 0
    info, _ = entries()
    with Store.open(readonly=True) as store:
        peaks = store.record(info.id).device["peaks"]
    assert [one["precision"] for one in peaks] == ["fp32", "bf16"]


def test_an_estimate_without_a_kernel_that_failed_is_summed_again(tmp_path):
    path = tmp_path / "model.toml"
    path.write_text('[[estimate]]\nmodel = "mnist"\nbatch = [1, 2]\n', encoding="utf-8")
    first = Sessions()
    first.failing = {"conv1 "}
    sweep(first, path, "--quiet")
    missing = [len(one.document["missing"]) for one in entries()[1] if one.table == "estimate"]
    assert all(missing)
    second = Sessions()
    assert sweep(second, "--resume", "last", "--quiet") == 0
    assert {label.split()[0] for label in second.measured} == {"mnist/conv1"}
    found = [one.document for one in entries()[1] if one.table == "estimate"]
    assert [(one["batch"], one["missing"]) for one in found] == [(1, []), (2, [])]
    third = Sessions()
    sweep(third, "--resume", "last", "--quiet")
    assert third.measured == []


def test_a_diagnosis_that_was_interrupted_is_made_again(tmp_path, monkeypatch):
    path = tmp_path / "diagnose.toml"
    path.write_text('[[diagnose]]\nmodel = "mnist"\nbatch = 2\n', encoding="utf-8")
    made = []

    def diagnose(case, *_):
        made.append(case.model)
        step = StepRecord(spec=case, status="ok", time=time_of(0.1))
        return Diagnosis(step=step, findings=(), interrupted=len(made) == 1)

    monkeypatch.setattr("pydlbench.diagnose.run.diagnose", diagnose)
    assert sweep(Sessions(), path, "--quiet") == 130
    assert sweep(Sessions(), "--resume", "last", "--quiet") == 0
    info, (found,) = entries()
    assert (info.status, found.document["interrupted"]) == ("done", False)
    assert sweep(Sessions(), "--resume", "last", "--quiet") == 0
    assert made == ["mnist", "mnist"]


def test_a_run_that_is_done_keeps_its_record(tmp_path):
    path = tmp_path / "layers.toml"
    path.write_text(LAYERS, encoding="utf-8")
    first = Sessions()
    first.run.device.update({"threads": 7, "peaks": [{"precision": "fp32"}]})
    sweep(first, path, "--quiet")

    def device():
        with Store.open(readonly=True) as store:
            return store.record(store.find("last").id).device

    before = device()
    assert before["threads"] == 7
    assert sweep(Sessions(), "--resume", "last", "--quiet") == 0
    assert device() == before


SUMS = """
[defaults]
model = "mnist"
batch = 4
phase = ["forward-backward", "training"]
[[estimate]]
[[breakdown]]
framework = "torch"
"""


def kernels(found):
    rows = [one.document for one in found if one.table == "layer"]
    return sorted((row["layer"], row["pass"], row["cache"]) for row in rows)


def test_what_finished_sums_have_measured_is_shared_after_a_resume_as_well(tmp_path):
    path = tmp_path / "sums.toml"
    path.write_text(SUMS, encoding="utf-8")
    whole = Sessions()
    assert sweep(whole, path, "--quiet") == 0
    expected = kernels(entries()[1])
    assert len(expected) == len(set(expected))
    # Within each of the two estimates and each of the two breakdowns.
    for share in (0.2, 0.5, 0.7, 0.9):
        last = int(share * len(whole.measured))

        def stop(count, last=last):
            if count == last:
                raise KeyboardInterrupt

        assert sweep(Sessions(stop), path, "--quiet") == 130
        assert sweep(Sessions(), "--resume", "last", "--quiet") == 0
        assert kernels(entries()[1]) == expected


def test_what_is_done_already_counts_in_the_progress(tmp_path, monkeypatch):
    from pydlbench.cli.terminal import ProgressLine

    path = tmp_path / "tables.toml"
    path.write_text('[[layers]]\nshape = "conv3"\n[[layers]]\nshape = "conv4"\n', encoding="utf-8")
    first = Sessions()
    first.failing = {"conv3"}
    sweep(first, path, "--quiet")
    told = []
    monkeypatch.setattr(
        ProgressLine, "__call__", lambda _, done, total, __: told.append((done, total))
    )
    assert sweep(Sessions(), "--resume", "last", "--quiet") == 0
    assert told == [(1, 2)]  # before the second row: the one that is there is done
