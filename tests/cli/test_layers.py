"""``layers``: what is measured for which words, and where its rows go."""

from __future__ import annotations

import csv
import io
import json
import re
import signal
from contextlib import contextmanager

import msgspec
import pytest
from invented_session import InventedSession, stop_after
from said import says

from pydlbench.cli import layers as command
from pydlbench.cli import main
from pydlbench.cli.parser import read
from pydlbench.errors import PrimitiveError, PydlbenchError, UsageError


def parse(*words: str) -> command.LayersOptions:
    return read(["layers", *words])[0]


@pytest.fixture
def session(run_record):
    return InventedSession(run_record)


def test_default_is_alexnet_forward_fp32_hot(session):
    assert command.run(parse(), session.open) == 0
    assert {case.layer.name.split("/")[0] for case in session.cases} == {"alexnet"}
    case = session.cases[0]
    assert (case.pass_, case.precision, case.cache) == ("forward", "fp32", "hot")
    assert (case.layout, case.backend, case.propagation) == ("best", "native", "inference")
    assert session.opened == [
        {
            "seed": 0,
            "budget_s": 1.0,
            "repetitions": None,
            "renew": True,
            "width": None,
            "keep_probes": True,
            "keep_samples": True,
            "algorithms": False,
            "energy": False,
            "threads": None,
        }
    ]


@pytest.mark.parametrize(
    ("words", "expected"),
    [
        ((), {"budget_s": 1.0, "repetitions": None, "keep_probes": True}),
        (("--repetitions", "9"), {"budget_s": 1.0, "repetitions": 9}),
        (("--budget", "0.5", "--seed", "7"), {"budget_s": 0.5, "seed": 7}),
        (("--algorithms", "--fresh"), {"algorithms": True, "keep_probes": False}),
    ],
)
def test_options_reach_the_session(session, words, expected):
    assert command.run(parse("--shape", "conv3", *words), session.open) == 0
    (opened,) = session.opened
    assert expected.items() <= opened.items()


def test_table_on_stdout_and_nothing_on_stderr(session, capsys):
    assert command.run(parse("--shape", "conv3"), session.open) == 0
    out, err = capsys.readouterr()
    lines = out.splitlines()
    headline = lines[: lines.index("")]
    assert says(headline[0], "conv3 runs at 90 %")
    lines = lines[len(headline) + 1 :]
    assert lines[0].startswith("alexnet/conv3  mb128ic192ih13oc384oh13kh3ph1  forward  fp32")
    assert lines[4].split()[:2] == ["backend", "algorithm"]
    assert "50.0 ms" in lines[5]
    assert "90 %" in out
    assert "\033" not in out
    assert says(err, "20300102-030405-abcd", "pydlbench runs show abcd")
    assert err.count("\n") == 1


def test_lists_are_combined(session):
    words = [
        "--shape",
        "conv3,conv4",
        "--pass",
        "all",
        "--precision",
        "fp32,bf16",
        "--cache",
        "hot,all-cold",
    ]
    command.run(parse(*words), session.open)
    assert len(session.cases) == 2 * 3 * 2 * 2
    assert len(set(session.cases)) == len(session.cases)


def test_models_are_added_to_shapes(session):
    command.run(parse("--shape", "conv3", "--model", "vgg11"), session.open)
    names = [case.layer.name for case in session.cases]
    assert names[0] == "alexnet/conv3"
    assert all(name.startswith("vgg11/") for name in names[1:])
    assert len(names) > 8


@pytest.mark.parametrize("name", ["net.py:tagger", "models/net.py:tagger", "net.onnx"])
def test_a_model_of_ones_own_is_sent_to_what_runs_it(name):
    with pytest.raises(UsageError) as caught:
        command.run(parse("--model", name))
    assert f"nearest: pydlbench breakdown {name}" in str(caught.value)


def test_each_kind_of_layer_says_which_pass_it_lacks(session, capsys):
    words = ("--shape", "conv3,pool1,relu:ic3", "--pass", "forward,backward-weights")
    command.run(parse(*words), session.open)
    done = [(case.layer.name, case.pass_) for case in session.cases]
    assert ("alexnet/pool1", "forward") in done
    backward = [name for name, pass_ in done if pass_ == "backward-weights"]
    assert backward == ["alexnet/conv3"]
    err = capsys.readouterr().err
    assert "backward-weights" in err
    assert "alexnet/pool1" in err
    assert "relu:mb1ic3" in err


@pytest.mark.parametrize(
    ("driver", "options", "named"),
    [
        ("eltwise", "--dir=FWD_D,BWD_D --alg=relu --alpha=0.5 2x3", "leaky-relu:2x3:1"),
        ("conv", "--dir=FWD_D,BWD_D --attr-post-ops=relu ic8ih3oc4kh1", "ic8ih3oc4"),
    ],
)
def test_a_pass_of_a_list_that_is_left_out_is_named(
    session, capsys, tmp_path, driver, options, named
):
    path = tmp_path / driver / "list"
    path.parent.mkdir()
    path.write_text(options)
    command.run(parse("--shape", f"@{path}"), session.open)
    assert [case.pass_ for case in session.cases] == ["forward"]
    assert re.search(f"left out: .*{named}", capsys.readouterr().err)
    path.write_text(options.replace("FWD_D,", ""))
    with pytest.raises(UsageError) as caught:
        command.run(parse("--shape", f"@{path}"), session.open)
    assert "forward" not in str(caught.value).partition(";")[0]


def test_both_propagations_do_not_double_backward_passes(session):
    words = ["--shape", "conv3", "--propagation", "both", "--pass", "forward,backward-data"]
    command.run(parse(*words), session.open)
    done = [(case.pass_, case.propagation) for case in session.cases]
    assert done == [
        ("forward", "inference"),
        ("forward", "training"),
        ("backward-data", "inference"),
    ]


def test_every_number_of_threads_gets_its_session(session, monkeypatch):
    monkeypatch.setattr("os.sched_getaffinity", lambda _: set(range(4)), raising=False)
    command.run(parse("--shape", "conv3", "--threads", "1,4"), session.open)
    assert [options["threads"] for options in session.opened] == [1, 4]
    assert len(session.cases) == 2


def test_json_stays_pure_with_warnings_and_notes(session, capsys):
    session.run.device["warnings"].append({"symptom": "no governor", "remedy": "set one"})
    words = ["--shape", "conv3,pool1", "--pass", "forward,backward-weights", "--json", "-"]
    command.run(parse(*words), session.open)
    out, err = capsys.readouterr()
    assert len(json.loads(out)["measurements"]) == 3
    assert says(err, "no governor", "set one")
    command.run(parse(*words, "--quiet", "--store", "none"), session.open)
    assert capsys.readouterr().err == ""


def test_device_record_is_read_after_the_rows(run_record, capsys):
    class Late(InventedSession):
        @property
        def run(self):
            return msgspec.structs.replace(run_record, device={"name": f"{len(self.cases)} rows"})

        @run.setter
        def run(self, value):
            pass

    late = Late(run_record)
    command.run(parse("--shape", "conv3", "--json", "-"), late.open)
    assert json.loads(capsys.readouterr().out)["run"]["device"] == {"name": "1 rows"}


def test_files_are_written_beside_the_table(session, capsys, tmp_path):
    words = [word for kind in ("json", "csv", "md") for word in (f"--{kind}", str(tmp_path / kind))]
    command.run(parse("--shape", "conv3", *words), session.open)
    assert json.loads((tmp_path / "json").read_text())["measurements"]
    assert (tmp_path / "csv").read_text().count("\n") == 2
    assert (tmp_path / "md").read_text().startswith("**conv3 runs at ")
    assert "50.0 ms" in capsys.readouterr().out


def test_interrupt_shows_what_is_finished(run_record, capsys, tmp_path):
    session = InventedSession(run_record, before=stop_after(2))
    path = tmp_path / "a.json"
    words = ("--shape", "conv2,conv3,conv4", "--json", str(path))
    assert command.run(parse(*words), session.open) == 130
    out, err = capsys.readouterr()
    assert says(out.splitlines()[0], "conv2", "50.0 %", "100 ms", "conv3")
    assert "\nalexnet  2 layers" in out
    assert "\nconv2 " in out
    assert "\nconv3 " in out
    assert "conv4" not in out
    assert says(err.splitlines()[-1], "2 of 3")
    document = json.loads(path.read_text())
    assert document["interrupted"] is True
    assert len(document["measurements"]) == 2


def test_interrupt_before_the_first_row_replaces_the_file_of_another_run(run_record, tmp_path):
    session = InventedSession(run_record, before=stop_after(0))
    path = tmp_path / "a.json"
    path.write_text("old")
    assert command.run(parse("--shape", "conv3", "--json", str(path)), session.open) == 130
    document = json.loads(path.read_text())
    assert (document["interrupted"], document["measurements"]) == (True, [])
    assert document["unfinished"] == ["alexnet/conv3 forward fp32"]


def test_unfinished_rows_of_the_same_label_are_told_apart(run_record, capsys):
    session = InventedSession(run_record, before=stop_after(1))
    words = ("--shape", "conv2,conv3", "--batch", "2,4", "--json", "-")
    assert command.run(parse(*words), session.open) == 130
    rows = json.loads(capsys.readouterr().out)["unfinished"]
    assert len(rows) == len(set(rows)) == 3
    assert all(row.rpartition(" ")[0].endswith("forward fp32 batch") for row in rows)


def test_error_after_some_rows_shows_them_and_is_raised(run_record, capsys):
    session = InventedSession(run_record, before=stop_after(1, PrimitiveError("worker gone")))
    with pytest.raises(PrimitiveError, match="worker gone"):
        command.run(parse("--shape", "conv3,conv4"), session.open)
    assert "alexnet/conv3" in capsys.readouterr().out


def test_error_before_the_first_row_shows_nothing(run_record, capsys):
    session = InventedSession(
        run_record, before=stop_after(0, UsageError("--shape x: too big; nearest: y"))
    )
    with pytest.raises(UsageError):
        command.run(parse("--shape", "conv3", "--json", "-"), session.open)
    assert capsys.readouterr().out == ""


def test_no_row_ok_is_exit_code_1(run_record, without_time, capsys):
    def fail(case):
        return without_time("failed", "worker killed by SIGKILL", layer=case.layer.name)

    session = InventedSession(run_record, fail)
    assert command.run(parse("--shape", "conv3"), session.open) == 1
    assert says(capsys.readouterr().out, "alexnet/conv3", "worker killed by SIGKILL")


def test_disk_that_fills_up_costs_the_file_not_the_table(session, capsys, tmp_path, monkeypatch):
    def full(*_):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("pydlbench.cli.output.write_text", full)
    with pytest.raises(PydlbenchError, match="not written: No space left"):
        command.run(parse("--shape", "conv3", "--md", str(tmp_path / "a.md")), session.open)
    assert "50.0 ms" in capsys.readouterr().out


def test_progress_counts_over_all_sessions(session, monkeypatch):
    seen, label = [], "alexnet/conv3 forward fp32"

    class Recorder:
        def __init__(self, *_, **__):
            pass

        from_options = classmethod(lambda cls, _: cls())

        def __call__(self, done, total, label):
            seen.append((done, total, label))

        def close(self):
            seen.append("closed")

    monkeypatch.setattr("pydlbench.cli.measuring.ProgressLine", Recorder)
    monkeypatch.setattr("os.sched_getaffinity", lambda _: {0, 1}, raising=False)
    command.run(parse("--shape", "conv3", "--threads", "1,2"), session.open)
    assert seen == [(0, 2, label), (1, 2, label), "closed"]


class ByThreads(InventedSession):
    """Its device knows how many threads it was opened with."""

    @property
    def run(self):
        count = self.opened[-1]["threads"]
        warnings = [{"symptom": f"{count} threads"}, {"symptom": "no governor"}]
        device = {"name": "Invented", "threads": count, "cores": count, "warnings": warnings}
        return msgspec.structs.replace(self.record, id=f"run-{count}", device=device)

    @run.setter
    def run(self, value):
        self.record = value


def test_every_number_of_threads_keeps_its_device(run_record, monkeypatch, capsys):
    monkeypatch.setattr("os.sched_getaffinity", lambda _: set(range(4)), raising=False)
    session = ByThreads(run_record)
    command.run(parse("--shape", "conv3", "--threads", "1,4,2", "--json", "-"), session.open)
    out, err = capsys.readouterr()
    run = json.loads(out)["run"]
    assert run["id"] == "run-1"
    assert run["device"]["cores"] == 4
    cores = {threads: device["cores"] for threads, device in run["device"]["by_threads"].items()}
    assert cores == {"1": 1, "4": 4, "2": 2}
    assert says(err, "2 threads", "--threads 2")
    assert err.count("no governor") == 1
    command.run(parse("--shape", "conv3", "--threads", "2", "--json", "-"), session.open)
    assert "by_threads" not in json.loads(capsys.readouterr().out)["run"]["device"]


@pytest.mark.parametrize(
    ("place", "formats"), [("verdicts.conclude", ("json", "csv", "md")), ("csv.to_csv", ("json",))]
)
def test_a_bug_costs_no_other_format(session, capsys, tmp_path, monkeypatch, place, formats):
    def broken(*_):
        raise ZeroDivisionError

    monkeypatch.setattr(f"pydlbench.report.{place}", broken)
    files = {kind: tmp_path / f"a.{kind}" for kind in ("json", "csv", "md")}
    words = [word for kind, path in files.items() for word in (f"--{kind}", str(path))]
    with pytest.raises(ZeroDivisionError):
        command.run(parse("--shape", "conv3", *words), session.open)
    assert all("conv3" in files[kind].read_text() for kind in formats)
    assert "50.0 ms" in capsys.readouterr().out


def test_second_interrupt_costs_no_finished_row(run_record, tmp_path, monkeypatch):
    class Impatient(InventedSession):
        @contextmanager
        def open(self, **_):
            try:
                yield self
            finally:
                signal.raise_signal(signal.SIGINT)  # while the workers are ended

        def measure(self, cases, progress, **_):
            yield from super().measure(cases[:1], progress)
            signal.raise_signal(signal.SIGINT)

    def interrupted(*_):
        signal.raise_signal(signal.SIGINT)
        return ["read me"]

    before = signal.getsignal(signal.SIGINT)
    signal.signal(signal.SIGINT, signal.default_int_handler)
    try:
        monkeypatch.setattr("pydlbench.report.verdicts.conclude", interrupted)
        path = tmp_path / "a.json"
        session = Impatient(run_record)
        words = ("--shape", "conv3,conv4", "--json", str(path))
        assert command.run(parse(*words), session.open) == 130
        assert signal.getsignal(signal.SIGINT) is signal.default_int_handler
    finally:
        signal.signal(signal.SIGINT, before)
    assert len(json.loads(path.read_text())["measurements"]) == 1


def test_an_interrupt_after_the_rows_are_written_costs_none(session, tmp_path, monkeypatch):
    path = tmp_path / "a.json"
    options = parse("--shape", "conv3", "--json", str(path))

    def run(options):
        assert command.run(options, session.open) == 0
        raise KeyboardInterrupt

    monkeypatch.setattr("pydlbench.cli.parser.read", lambda _: (options, run))
    assert main(["layers"]) == 130
    assert len(json.loads(path.read_text())["measurements"]) == 1


def stacks(session):
    return [(case.backend, case.mode) for case in session.cases]


EVERY_CPU_STACK = [
    ("native", None),
    ("torch", "eager"),
    ("torch", "compiled"),
    ("tensorflow", "graph"),
    ("tensorflow", "xla"),
    ("numba", None),
    ("jax", "xla"),
]


@pytest.mark.parametrize(
    ("words", "expected"),
    [
        (["--backend", "all"], EVERY_CPU_STACK),
        (["--backend", "torch"], [("torch", "eager")]),
        (
            ["--backend", "torch", "--mode", "all"],
            [("torch", "eager"), ("torch", "compiled"), ("torch", "frozen")],
        ),
        (["--backend", "torch", "--mode", "frozen"], [("torch", "frozen")]),
        (["--backend", "torch", "--mode", "compiled"], [("torch", "compiled")]),
        (["--backend", "numba,native"], [("numba", None), ("native", None)]),
        (
            ["--backend", "all", "--mode", "eager,xla"],
            [
                *(("native", None), ("torch", "eager"), ("tensorflow", "xla"), ("numba", None)),
                ("jax", "xla"),
            ],
        ),
        (
            ["--backend", "all", "--mode", "all"],
            [*EVERY_CPU_STACK[:3], ("torch", "frozen"), *EVERY_CPU_STACK[3:]],
        ),
        (["--backend", "torch,native,torch", "--mode", "eager,eager"], EVERY_CPU_STACK[1::-1]),
        (["--backend", "torch,tensorflow", "--mode", "xla"], [("tensorflow", "xla")]),
        # One that is named is a row even where it cannot run: the row says why.
        (["--backend", "native,cupy"], [("native", None), ("cupy", None)]),
    ],
)
def test_backends_and_their_modes(session, words, expected):
    assert command.run(parse("--shape", "conv3", "--device", "cpu", *words), session.open) == 0
    assert stacks(session) == expected


def test_a_kernel_of_one_s_own_stands_beside_backends(session, tmp_path):
    path = tmp_path / "mine.py"
    path.write_text("def launch(src, weights, dst): ...\n")
    words = ("--shape", "conv3", "--device", "cpu", "--backend")
    assert command.run(parse(*words, f"native,{path}:launch"), session.open) == 0
    assert stacks(session) == [("native", None), ("torch", f"{path}:launch")]
    with pytest.raises(UsageError, match="launch"):
        command.run(parse(*words, f"{path}:lunch"), session.open)


def test_backends_of_a_gpu(session):
    command.run(parse("--shape", "conv3", "--device", "cuda:0", "--backend", "all"), session.open)
    assert ("cupy", None) in stacks(session)


def test_backends_of_one_problem_stand_together(session):
    words = ("--shape", "conv3,conv4", "--pass", "forward,backward-data")
    command.run(parse(*words, "--backend", "native,numba"), session.open)
    found = [(case.layer.name, case.pass_) for case in session.cases]
    assert found[::2] == found[1::2]
    assert len(set(found)) == 4


class Interleaved(InventedSession):
    """Gives rows of interleaved backends: ratios, and a cause for the slow ones."""

    def measure(self, cases, progress, **_):
        for case, row in super().measure(cases, progress):
            ratio = {"to": "native", "median": 1.0, "ci_low": 1.0, "ci_high": 1.0, "rounds": 9}
            words = {"backend": case.backend, "mode": case.mode, "ratio": ratio}
            if case.backend != "native":
                words["ratio"] = {**ratio, "median": 1.5, "ci_low": 1.4, "ci_high": 1.6}
                words["warm_s"], words["empty_call_s"] = 0.04, 1e-6
                words["faults"] = {"default": 700.0, "warm": 0.0}
                words["causes"] = (
                    {"cause": "allocation", "seconds": 0.01, "share": 0.6, "how": "pages kept"},
                    {"cause": "unexplained", "seconds": 0.01, "share": 0.4, "how": "the gap less"},
                )
            yield case, msgspec.structs.replace(row, **words)


@pytest.fixture
def interleaved(run_record):
    return Interleaved(run_record)


def test_json_and_csv_of_interleaved_backends(interleaved, capsys, tmp_path):
    path = tmp_path / "rows.csv"
    words = ("--shape", "conv3", "--backend", "native,torch", "--mode", "eager,compiled")
    words += ("--json", "-", "--csv", str(path))
    command.run(parse(*words), interleaved.open)
    rows = json.loads(capsys.readouterr().out)["measurements"]
    assert [(row["backend"], row["mode"]) for row in rows] == EVERY_CPU_STACK[:3]
    assert rows[0]["ratio"]["median"] == 1
    assert rows[1]["ratio"] == {
        "to": "native",
        "median": 1.5,
        "ci_low": 1.4,
        "ci_high": 1.6,
        "rounds": 9,
    }
    assert [cause["cause"] for cause in rows[1]["causes"]] == ["allocation", "unexplained"]
    assert (rows[1]["warm_s"], rows[1]["empty_call_s"]) == (0.04, 1e-6)
    table = list(csv.DictReader(io.StringIO(path.read_text())))
    assert [row["ratio_median"] for row in table] == ["1.0", "1.5", "1.5"]
    assert table[1]["causes"] == "allocation 60%; unexplained 40%"
    assert (table[1]["faults_default"], table[0]["faults_default"]) == ("700.0", "")
