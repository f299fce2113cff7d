"""``pydlbench sweep`` with invented sessions."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
import textwrap
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parent))
from sweep_fakes import Sessions

sys.path.pop(0)

from pydlbench.cli import sweep as command
from pydlbench.cli.parser import Parser
from pydlbench.errors import PrimitiveError, UsageError
from pydlbench.results.store import Store

FILE = """
title = "everything"
[[layers]]
shape = ["conv3", "conv4"]
batch = [1, 2]
pass = ["forward", "backward-data"]
exclude = [{ pass = "backward-data", batch = 2 }]
[[model]]
model = "mnist"
batch = [1, 4]
[[e2e]]
model = "mnist"
framework = "torch"
mode = "all"
batch = 8
[[check]]
model = "mnist"
framework = "torch"
batch = 8
"""
LAYERS = '[[layers]]\nshape = ["conv2", "conv3", "conv4", "conv5"]\nbatch = 1\n'


@pytest.fixture
def file(tmp_path):
    path = tmp_path / "all.toml"
    path.write_text(FILE, encoding="utf-8")
    return path


def parse(*words):
    parser = Parser(prog="pydlbench")
    command.add_parser(parser.add_subparsers())
    return parser.parse_args(["sweep", *map(str, words)])


def sweep(sessions, *words):
    return command.run(parse(*words), sessions.factories, sessions.checker)


def entries(run="last"):
    with Store.open(readonly=True) as store:
        info = store.find(run)
        return info, store.entries(info.id, samples=True)


def counts(found):
    tables = [entry.table for entry in found]
    return {name: tables.count(name) for name in ("layer", "estimate", "step", "check")}


def test_everything_is_one_run_with_its_samples(file, capsys):
    sessions = Sessions()
    assert sweep(sessions, file) == 0
    info, found = entries()
    assert (info.kind, info.status) == ("sweep", "done")
    kernels = sum(entry.table == "layer" for entry in found) - 6
    assert counts(found) == {"layer": 6 + kernels, "estimate": 2, "step": 2, "check": 1}
    assert kernels > 0  # of the estimates, each one's own
    assert found[0].samples == (1e-3, 2e-3)
    assert len({entry.key for entry in found}) == len(found)
    out, err = capsys.readouterr()
    assert out.splitlines()[0] == "everything"
    assert "[[layers]]  6 rows" in out
    assert "mnist batch 8 forward fp32 torch eager" in out
    assert f"next: pydlbench report {info.id}" in out
    assert "exclude takes out 2 of 8 rows" in err


def test_the_record_has_the_sessions_device_and_the_sweeps_own_id(file):
    sessions = Sessions()
    sweep(sessions, file, "--quiet")
    info, _ = entries()
    assert info.id != "session"
    with Store.open(readonly=True) as store:
        assert store.record(info.id).device["clock_hz"] == 1.25e9
        assert store.request(info.id) == {"file": str(file), "text": FILE}


def test_json_has_everything_by_kind(file, capsys):
    assert sweep(Sessions(), file, "--quiet", "--json", "-") == 0
    document = json.loads(capsys.readouterr().out)
    assert document["kind"] == "sweep"
    assert [len(document[name]) for name in ("estimates", "steps", "checks")] == [2, 2, 1]
    assert not any("samples_s" in row for row in document["measurements"])
    jsonschema = pytest.importorskip("jsonschema")
    from pydlbench.results.schema import load_schema

    jsonschema.Draft202012Validator(load_schema("sweep")).validate(document)


def test_markdown_has_a_table_for_each_kind(file, tmp_path):
    target = tmp_path / "all.md"
    assert sweep(Sessions(), file, "--quiet", "--md", target) == 0
    text = target.read_text(encoding="utf-8")
    for title in ("### Estimates", "### Cross-checks", "| layer |"):
        assert title in text


def test_a_row_that_fails_costs_itself(file, capsys):
    sessions = Sessions()
    sessions.bad = {"conv3 backward-data": PrimitiveError("it broke")}
    sessions.failing = {"conv4"}
    assert sweep(sessions, file) == 0
    _, found = entries()
    rows = [entry.document for entry in found if entry.table == "layer"]
    broken = [row for row in rows if row["status"] == "failed" and row["layer"] == "alexnet/conv3"]
    assert [(row["pass"], row["reason"]) for row in broken] == [("backward-data", "it broke")]
    out = capsys.readouterr().out
    assert "failed: alexnet/conv3 backward-data fp32: it broke" in out
    assert "[[layers]]  2 of 6 rows ok" in out


def test_a_model_without_any_kernel_has_no_estimate_and_says_why(tmp_path, capsys):
    path = tmp_path / "model.toml"
    path.write_text('[[model]]\nmodel = "mnist"\nbatch = 1\n', encoding="utf-8")
    sessions = Sessions()
    sessions.bad = {"": PrimitiveError("no module")}
    assert sweep(sessions, path, "--json", "-", "--quiet") == 1
    document = json.loads(capsys.readouterr().out)
    assert document["estimates"] == []
    (refused,) = document["not_estimated"]
    assert refused["status"] == "failed"
    assert "no module" in refused["reason"]


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
        sys.path.insert(0, {str(Path(__file__).parent)!r})
        from sweep_fakes import Sessions
        from test_sweep import sweep

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


def test_the_plan_measures_nothing_and_keeps_nothing(file, capsys, store_path):
    sessions = Sessions()
    assert sweep(sessions, file, "--dry-run") == 0
    out = capsys.readouterr().out
    assert "11 rows in " in out
    assert "from FLOPs and bytes over the peaks" in out
    assert sessions.opened == []
    assert not store_path.exists()


def test_the_plan_tells_all_rows_apart(tmp_path, capsys):
    path = tmp_path / "axes.toml"
    path.write_text(
        """
        [[layers]]
        shape = "conv3"
        batch = [1, 2]
        device = ["cpu", "cuda:0"]
        layout = ["best", "nhwc"]
        cache = ["hot", "all-cold"]
        fuse = ["none", "bias"]
        [[e2e]]
        model = ["mnist", "cifar10"]
        batch = [8, 16]
        precision = ["fp32", "bf16"]
        layout = ["nhwc", "nchw"]
        option = [["decay=0"], ["classes=12"]]
        framework = "torch"
        phase = "all"
        """,
        encoding="utf-8",
    )
    assert sweep(Sessions(), path, "--dry-run") == 0
    lines = capsys.readouterr().out.splitlines()
    rows = [line.split(maxsplit=1) for line in lines if line[:5].strip().isdigit()]
    assert [int(number) for number, _ in rows] == list(range(1, 32 + 96 + 1))
    assert len({text for _, text in rows}) == len(rows)


def test_the_plan_takes_times_from_earlier_runs(file, capsys, monkeypatch):
    sweep(Sessions(), file, "--quiet")
    capsys.readouterr()
    monkeypatch.setattr("pydlbench.devices.cpu.choose_cpus", lambda *_: (0, 1))
    assert sweep(Sessions(), file, "--dry-run", "--json", "-") == 0
    document = json.loads(capsys.readouterr().out)
    assert "earlier measurements" in document["time_s"]["source"]
    assert document["rows"] == 11
    assert document["time_s"]["low"] < document["time_s"]["high"]
    assert [len(job["rows"]) for job in document["jobs"]] == [6, 1, 1, 2, 1]
    jsonschema = pytest.importorskip("jsonschema")
    from pydlbench.results.schema import load_schema

    jsonschema.Draft202012Validator(load_schema("sweep-plan")).validate(document)


def test_no_row_is_in_a_run_twice(tmp_path, capsys):
    path = tmp_path / "twice.toml"
    layers = '[[layers]]\nmodel = "mnist"\nbatch = 1\nthreads = 1\n'
    steps = 'model = "mnist"\nbatch = 1\nthreads = 1\n'
    text = f'{layers}{layers}[[model]]\n{steps}[[check]]\n{steps}framework = "torch"\n'
    path.write_text(text, encoding="utf-8")
    sessions = Sessions()
    assert sweep(sessions, path) == 0
    err = capsys.readouterr().err
    assert "[[layers]] 2: 6 rows are asked for above already, left out" in err
    rows = [entry.document for entry in entries()[1] if entry.table == "layer"]
    names = [(row["layer"], row["pass"], row["cache"], row["batch"]) for row in rows]
    assert len(names) == len(set(names))
    # The estimate takes the layers' rows, the check measures its own but does not add them.
    hot = [label for label in sessions.measured if label == "mnist/conv1 forward fp32"]
    assert len(hot) == 1 + 1 + 2  # the table's, the estimate's cold one, the check's two


def test_sessions_are_shared_by_jobs_that_want_the_same(tmp_path):
    path = tmp_path / "models.toml"
    path.write_text('[[model]]\nmodel = "mnist"\nbatch = [1, 2, 4]\n', encoding="utf-8")
    sessions = Sessions()
    sweep(sessions, path, "--quiet")
    assert len(sessions.opened) == 1
    assert sessions.opened[0]["keep_samples"] is True


def test_backends_of_one_problem_are_measured_together(tmp_path):
    calls = []

    class Watching(Sessions):
        def measure(self, cases, progress):
            calls.append([case.backend for case in cases])
            return super().measure(cases, progress)

    path = tmp_path / "backends.toml"
    text = '[[layers]]\nshape = ["conv3", "conv4"]\nbackend = ["native", "numba"]\nbatch = 1\n'
    path.write_text(text, encoding="utf-8")
    sweep(Watching(), path, "--quiet")
    assert calls == [["native", "numba"]] * 2


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ('[[layers]]\nprecision = "bf17"', r"precision bf17: not a valid choice; nearest: bf16"),
        ('[[layers]]\nshape = "cnv3"', "cnv3: no such layer"),
        ('[[layers]]\njson = "x"', "json: belongs to the sweep's own command line"),
        ('[[layers]]\nstore = "x"', "store: belongs to"),
        ('[[model]]\nmodel = "mnist"\nthreads = 9999', "threads 9999: "),
        ('[[model]]\nmodel = "vgg17"', "vgg17: no such model; nearest: vgg1"),
        ("[[model]]\nbatch = 1", "following arguments are required: MODEL"),
        ('[[e2e]]\nmodel = "mnist"\nprotocol = "x"', "protocol: is for published scripts"),
        ('[[e2e]]\nmodel = "mnist"\nsweep = "x"', "nearest: batch = "),
        ('[[check]]\nmodel = "mnist"\nmodes = "x"', "modes: no such key; nearest: mode"),
    ],
)
def test_mistakes_name_file_table_and_key_and_leave_no_trace(text, message, tmp_path, store_path):
    path = tmp_path / "bad.toml"
    path.write_text(text, encoding="utf-8")
    with pytest.raises(UsageError, match=message) as caught:
        sweep(Sessions(), path)
    assert str(caught.value).startswith(f"{path}: [[")
    assert "--" not in str(caught.value)
    assert not store_path.exists()


@pytest.mark.parametrize(
    ("words", "message"),
    [
        ((), "FILE: none given"),
        (("--dry-run",), "FILE: none given"),
        (("no.toml",), "no.toml: cannot be read"),
        (("x", "--dry-run", "--resume", "last"), "not with --dry-run"),
        (("--resume", "last"), "no run|no runs|no such run"),
        (("x", "--json", "-", "--md", "-"), "--json goes there already"),
    ],
)
def test_bad_command_lines(words, message):
    with pytest.raises(UsageError, match=message):
        sweep(Sessions(), *words)


def test_the_nearest_file_is_named(file):
    with pytest.raises(UsageError, match=r"al\.toml: cannot be read .*nearest: .*all\.toml"):
        sweep(Sessions(), file.with_name("al.toml"))
