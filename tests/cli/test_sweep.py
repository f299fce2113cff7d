"""``pydlbench sweep`` with invented sessions."""

import json
import re

import pytest
from invented_sweep import FILE, LAYERS, Sessions, counts, entries, sweep
from said import says

from pydlbench.errors import PrimitiveError
from pydlbench.store.store import Store
from pydlbench.units import format_seconds

TIMES = ("time_s", "measured_s")


def test_everything_is_one_run_with_its_samples(file, capsys):
    sessions = Sessions()
    assert sweep(sessions, file) == 0
    info, found = entries()
    assert (info.kind, info.status) == ("sweep", "done")
    kernels = sum(entry.table == "layer" for entry in found) - 6
    assert counts(found) == {"layer": 6 + kernels, "estimate": 2, "step": 2, "breakdown": 1}
    assert kernels > 0  # of the estimates, each one's own
    assert found[0].samples == (1e-3, 2e-3)
    assert len({entry.key for entry in found}) == len(found)
    out, err = capsys.readouterr()
    found = [entry.document for entry in found]
    times = [each[name]["median"] for each in found for name in TIMES if each.get(name)]
    assert says(out.splitlines()[0], "takes longest of", "rows", format_seconds(max(times)))
    assert "everything" in out.splitlines()
    assert re.search(r"\[\[layers\]\]  6 rows in [\d.]+ m?s\b", out)
    assert says(out, "mnist", "batch 8", "forward", "fp32", "torch eager")
    assert f"pydlbench report {info.id}" in out
    assert says(err, "2 of 8 rows")


def test_the_record_has_the_sessions_device_and_the_request(file):
    sessions = Sessions()
    sweep(sessions, file, "--quiet")
    info, _ = entries()
    with Store.open(readonly=True) as store:
        assert store.record(info.id).device["clock_hz"] == 1.25e9
        assert store.request(info.id) == {"file": str(file), "text": FILE}


def test_json_has_everything_by_kind(file, capsys):
    assert sweep(Sessions(), file, "--quiet", "--json", "-") == 0
    document = json.loads(capsys.readouterr().out)
    assert document["kind"] == "sweep"
    assert [len(document[name]) for name in ("estimates", "steps", "breakdowns")] == [2, 2, 1]
    assert not any("samples_s" in row for row in document["measurements"])
    jsonschema = pytest.importorskip("jsonschema")
    from pydlbench.records.schema import load_schema

    jsonschema.Draft202012Validator(load_schema("sweep")).validate(document)


def test_a_row_that_fails_costs_itself(file, capsys):
    sessions = Sessions()
    sessions.failing = {"conv3 backward-data", "conv4"}
    assert sweep(sessions, file) == 0
    _, found = entries()
    rows = [entry.document for entry in found if entry.table == "layer"]
    broken = [row for row in rows if row["status"] == "failed" and row["layer"] == "alexnet/conv3"]
    assert [(row["pass"], row["reason"]) for row in broken] == [("backward-data", "wrong result")]
    out = capsys.readouterr().out
    assert says(out, "failed", "alexnet/conv3 backward-data fp32", "wrong result")
    assert says(out, "[[layers]]", "2 of 6")
    # Two layers, two steps and a breakdown.
    assert says(out.splitlines()[0], "takes longest of", "5 rows")


def test_a_breakdown_that_does_not_fit_costs_itself(write, capsys):
    rows = 'model = "mnist"\nbatch = [2, 100000000]\nframework = "torch"\n'
    path = write(f"[[breakdown]]\n{rows}")
    assert sweep(Sessions(), path, "--dry-run") == 0
    capsys.readouterr()
    assert sweep(Sessions(), path, "--json", "-", "--quiet") == 0
    document = json.loads(capsys.readouterr().out)
    assert [(one["batch"], one["status"]) for one in document["breakdowns"]] == [
        (2, "ok"),
        (100000000, "failed"),
    ]
    assert "needs about" in document["breakdowns"][1]["reason"]


def test_a_model_without_any_kernel_has_no_estimate_and_says_why(write, capsys):
    path = write('[[estimate]]\nmodel = "mnist"\nbatch = 1\n')
    sessions = Sessions()
    sessions.errors = {"": PrimitiveError("no module")}
    assert sweep(sessions, path, "--json", "-", "--quiet") == 1
    document = json.loads(capsys.readouterr().out)
    assert document["estimates"] == []
    (refused,) = document["not_estimated"]
    assert refused["status"] == "failed"
    assert "no module" in refused["reason"]


def test_what_other_work_disturbed_dominates_nothing_even_when_it_is_resumed(write, capsys):
    path = write('[[estimate]]\nmodel = "mnist"\nbatch = [1, 2]\n')

    def lines():
        out = capsys.readouterr().out.splitlines()
        return [line for line in out if line.startswith("mnist batch")]

    sessions = Sessions()
    assert sweep(sessions, path, "--quiet", "--store", "none") == 0
    assert ["dominate" in line for line in lines()] == [True, True]
    sessions.disturbed = {"conv"}
    assert sweep(sessions, path, "--quiet") == 0
    disturbed = lines()
    assert [line.endswith(", contended") for line in disturbed] == [True, True]
    assert sweep(sessions, path, "--quiet", "--resume", "last") == 0
    assert lines() == disturbed


def test_no_row_is_in_a_run_twice(write, capsys):
    layers = '[[layers]]\nmodel = "mnist"\nbatch = 1\nthreads = 1\n'
    steps = 'model = "mnist"\nbatch = 1\nthreads = 1\n'
    text = f'{layers}{layers}[[estimate]]\n{steps}[[breakdown]]\n{steps}framework = "torch"\n'
    path = write(text)
    sessions = Sessions()
    assert sweep(sessions, path) == 0
    err = capsys.readouterr().err
    assert says(err, "[[layers]] 2", "6 rows")
    rows = [entry.document for entry in entries()[1] if entry.table == "layer"]
    names = [(row["layer"], row["pass"], row["cache"], row["batch"]) for row in rows]
    assert len(names) == len(set(names))
    # The estimate takes the layers' rows, and the check those of both.
    hot = [label for label in sessions.measured if label == "mnist/conv1 forward fp32"]
    assert len(hot) == 1 + 1  # the table's and the estimate's cold one
    # The cold one is timed with the table's kernel.
    assert ("mnist/conv1 forward fp32", "jit", "nhwc") in sessions.remembered


def test_sessions_are_shared_by_jobs_that_want_the_same(write):
    path = write('[[estimate]]\nmodel = "mnist"\nbatch = [1, 2, 4]\n')
    sessions = Sessions()
    sweep(sessions, path, "--quiet")
    assert len(sessions.opened) == 1
    assert sessions.opened[0]["keep_samples"] is True


def test_what_to_do_next_names_the_store(tmp_path, capsys):
    path, store = tmp_path / "layers.toml", tmp_path / "my store.sqlite"
    path.write_text(LAYERS, encoding="utf-8")

    def stop(count):
        if count == 2:
            raise KeyboardInterrupt

    assert sweep(Sessions(stop), path, "--store", store) == 130
    out, err = capsys.readouterr()
    assert f" --store '{store}' -o sweep.html" in out
    assert f"--store '{store}'\n" in err.partition("pydlbench sweep --resume ")[2]
    assert sweep(Sessions(), path, "--store", "none") == 0
    assert "next: " not in capsys.readouterr().out


def test_what_ends_before_its_first_row_leaves_no_run_to_go_on_with(write, tmp_path, capsys):
    path = write(LAYERS)

    def stop(_):
        raise KeyboardInterrupt

    target = tmp_path / "earlier.json"
    target.write_text("old", encoding="utf-8")
    assert sweep(Sessions(stop), path, "--json", target) == 130
    document = json.loads(target.read_text(encoding="utf-8"))
    assert (document["interrupted"], len(document["unfinished"])) == (True, 4)
    out, err = capsys.readouterr()
    assert "next: " not in out
    assert says(err, "0 of 4")
    with Store.open(readonly=True) as store:
        assert store.runs() == []


@pytest.mark.parametrize("status", ["ok", "failed"])
def test_no_two_steps_have_the_same_name(write, capsys, status):
    axes = 'batch = [8, 16]\nlayout = ["nhwc", "nchw"]\nfeed = ["resident", "host"]\n'
    path = write(f'[[step]]\nmodel = "mnist"\nframework = "torch"\n{axes}')
    sessions = Sessions()
    if status == "failed":
        sessions.errors = {"": PrimitiveError("it broke")}
    assert sweep(sessions, path, "--quiet") == (status == "failed")
    names = [
        line.partition(": it broke")[0].partition("  100 ms")[0].strip()
        for line in capsys.readouterr().out.splitlines()
        if "mnist batch" in line and "takes longest" not in line
    ]
    assert len(set(names)) == len(names) == 8
