"""``pydlbench sweep --resume``: what was finished stays, the rest is measured."""

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
    assert sum(counts(found).values()) == len(found) == 10
    assert [one.table for one in found if one.document.get("interrupted")] == ["estimate"]
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


def test_a_file_that_changed_is_no_continuation(write):
    path = write(LAYERS)
    sweep(Sessions(), path, "--quiet")
    path.write_text(LAYERS + "seed = 3\n", encoding="utf-8")
    with pytest.raises(UsageError, match=r"has changed since run .* nearest: leave FILE out"):
        sweep(Sessions(), path, "--resume", "last")


def test_steps_of_a_job_are_timed_in_turn_again(write, store_path):
    text = '[[step]]\nmodel = "mnist"\nframework = "torch"\nmode = "all"\nbatch = 8\n'
    path = write(text)
    sweep(Sessions(), path, "--quiet")
    raw_store.execute(
        store_path, "DELETE FROM entries WHERE number = (SELECT max(number) FROM entries)"
    )
    again = Sessions()
    assert sweep(again, "--resume", "last", "--quiet") == 0
    assert len(again.measured) == len(entries()[1]) == 2


def test_an_estimate_without_a_kernel_that_failed_is_summed_again(write):
    path = write('[[estimate]]\nmodel = "mnist"\nbatch = [1, 2]\n')
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


def test_a_diagnosis_that_was_interrupted_is_made_again(write, monkeypatch):
    path = write('[[diagnose]]\nmodel = "mnist"\nbatch = 2\n')
    made = []

    def diagnoses(case, *_, **__):
        made.append(case.model)
        step = StepRecord(spec=case, status="ok", time=time_of(0.1))
        yield Diagnosis(step=step, findings=(), interrupted=True)
        if len(made) == 1:
            raise KeyboardInterrupt
        yield Diagnosis(step=step, findings=())

    monkeypatch.setattr("pydlbench.diagnose.run.diagnoses", diagnoses)
    assert sweep(Sessions(), path, "--quiet") == 130
    assert sweep(Sessions(), "--resume", "last", "--quiet") == 0
    info, (found,) = entries()
    assert (info.status, found.document["interrupted"]) == ("done", False)
    assert sweep(Sessions(), "--resume", "last", "--quiet") == 0
    assert made == ["mnist", "mnist"]


def test_a_run_that_is_done_keeps_its_record(write):
    path = write(LAYERS)
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


def test_what_finished_sums_have_measured_is_shared_after_a_resume_as_well(write):
    path = write(SUMS)
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


def test_what_is_done_already_counts_in_the_progress(write, monkeypatch):
    from pydlbench.cli.terminal import ProgressLine

    path = write('[[layers]]\nshape = "conv3"\n[[layers]]\nshape = "conv4"\n')
    first = Sessions()
    first.failing = {"conv3"}
    sweep(first, path, "--quiet")
    told = []
    monkeypatch.setattr(
        ProgressLine, "__call__", lambda _, done, total, __: told.append((done, total))
    )
    assert sweep(Sessions(), "--resume", "last", "--quiet") == 0
    assert told == [(1, 2)]  # before the second row: the one that is there is done
