"""The command line of ``step`` with an invented session."""

from __future__ import annotations

import csv
import io
import json
import sysconfig
import venv
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from unittest.mock import patch

import msgspec
import pytest
from said import says

from pydlbench.backends.steps import requests
from pydlbench.cli import main, steps
from pydlbench.cli import step as command
from pydlbench.cli.parser import read
from pydlbench.errors import UsageError
from pydlbench.protocols.runner import ProtocolResult
from pydlbench.records.agreement import Agreement
from pydlbench.records.measurement import TimeSummary
from pydlbench.records.step import Check, StepRecord
from pydlbench.store.store import Store

H200 = {"name": "NVIDIA H200", "capability": "9.0", "memory_bytes": 141_000_000_000}


def parse(*words: str) -> Any:
    return read(["step", *words])[0]


class FakeSession:
    """Stands for ``cli.step_session``: invents a record per step."""

    def __init__(self, run_record: Any) -> None:
        self.run = run_record
        self.memory_bytes: int | None = 10**12
        self.seconds: dict[str, float] = {}
        self.status: dict[str, tuple[str, str]] = {}
        self.interrupt_at: int | None = None
        self.opened: list[dict[str, Any]] = []
        self.groups: list[list[Any]] = []
        self.checks: list[bool] = []
        self.visits: list[int | None] = []
        self.traces: list[bool] = []
        self.played: list[Any] = []
        self.error = 1e-6
        self.batch = 1  # of models of one's own

    def room_bytes(self) -> int | None:
        return self.memory_bytes

    @contextmanager
    def open(self, **options: Any) -> Any:
        self.opened.append(options)
        with (
            patch("pydlbench.steps.run.runs_in_turn", self.run_in_turn),
            patch("pydlbench.steps.agreement.agree", self.agree),
            patch("pydlbench.cli.step_protocol.run_in_worker", self.run_in_worker),
        ):
            yield self

    def run_in_turn(
        self, cases: Any, _: Any, *, visits: Any, preparation: Any, trace: bool, progress: Any
    ) -> Iterator[tuple[int, StepRecord]]:
        if len(self.groups) == self.interrupt_at:
            raise KeyboardInterrupt
        progress(0, len(cases), cases[0].label)
        self.groups.append(list(cases))
        self.checks.append(preparation.checks)
        self.visits.append(visits)
        self.traces.append(trace)
        yield from enumerate(self._record(case, preparation.checks) for case in cases)

    def _record(self, case: Any, checks: bool) -> StepRecord:
        for key in (case.mode, case.device):
            if key in self.status:
                status, reason = self.status[key]
                return StepRecord(spec=case, status=status, reason=reason)
        seconds = self.seconds.get(case.device, self.seconds.get(case.mode, 0.1))
        if case.own is not None:
            case = msgspec.structs.replace(case, batch=self.batch)
        return StepRecord(
            spec=case,
            status="ok",
            time=TimeSummary(
                median=seconds,
                ci_low=0.99 * seconds,
                ci_high=1.01 * seconds,
                q1=seconds,
                q3=seconds,
                min=seconds,
                n=24,
            ),
            images_per_s=case.batch / seconds,
            rounds_s=dict.fromkeys(range(8), seconds),
            faults=12.0,
            threads=2,
            checks=(Check(name="flops", status="ok", detail="1"),) if checks else (),
            library=f"{case.framework} 1.0",
            environment={"gpu": H200} if case.on_gpu else {"module": "Net"},
            parameters=20,
        )

    def agree(self, case: Any, _: Any, frameworks: tuple[str, str]) -> Agreement:
        assert case.model
        return Agreement(
            frameworks=frameworks,
            output=self.error,
            gradients=None,
            worst=None,
            median=None,
            tensors={"output": self.error},
        )

    def run_in_worker(self, case: Any, _: Any, write: Any, note: Any) -> ProtocolResult:
        self.played.append(case)
        write("step 0")
        note("invented")
        return ProtocolResult(
            numbers=({"name": "Forward", "value": 1.0, "unit": "s", "spread": 0.5},),
            library="x 1",
            environment={},
            data=None,
        )


@pytest.fixture
def session(run_record):
    return FakeSession(run_record)


def test_default_is_both_frameworks_forward_checked(session, capsys):
    assert command.run(parse("mnist"), session.open) == 0
    (cases,) = session.groups
    assert [(one.framework, one.mode) for one in cases] == [
        ("torch", "eager"),
        ("tensorflow", "graph"),
    ]
    assert {(one.phase, one.precision, one.batch) for one in cases} == {("forward", "fp32", 64)}
    assert session.checks == [True]
    (options,) = session.opened
    usual = {"budget_s": 10.0, "repetitions": 4, "threads": None, "seed": 0, "pythons": {}}
    assert options == usual
    out, err = capsys.readouterr()
    assert says(out.splitlines()[0], "torch eager is fastest", "100 ms per step")
    assert says(out, "mnist", "batch 64", "forward", "fp32", "nhwc")
    assert "torch 1.0" in out
    assert says(err, "20300102-030405-abcd", "pydlbench runs show abcd")
    assert err.count("\n") == 1
    with Store.open(readonly=True) as store:
        entries = store.entries("20300102-030405-abcd")
    assert [(one.table, one.document["framework"]) for one in entries] == [
        ("step", "torch"),
        ("step", "tensorflow"),
    ]
    assert main(["runs", "show", "last"]) == 0
    assert capsys.readouterr().out.endswith(out)


def test_a_width_plans_processes_and_excludes_their_number(session):
    assert command.run(parse("mnist", "--width", "2%"), session.open) == 0
    assert session.visits == [4]  # nothing is known of its scatter
    with pytest.raises(UsageError):
        command.run(parse("mnist", "--width", "2%", "--repetitions", "8"), session.open)


def test_table_has_rates_and_ratio(session, capsys):
    session.seconds = {"eager": 0.1, "graph": 0.2}
    command.run(parse("mnist", "--batch", "10"), session.open)
    out = capsys.readouterr().out
    row = next(line for line in out.splitlines() if line.startswith("tensorflow graph"))
    assert "200 ms" in row
    assert "198 ms to 202 ms" in row
    assert row.split()[-1] == "2"
    assert "50" in row.split()
    # 12,273,152 multiply-adds of 10 images in 0.2 s.
    assert "0.00123" in row.split()
    assert says(out, "torch eager", "fastest", "100 ms")
    assert says(out, "tensorflow graph", "2 times", "2 to 2")


def test_equal_times_are_not_told_apart(session, capsys):
    command.run(parse("mnist"), session.open)
    assert not says(capsys.readouterr().out, "times as long")


def test_modes_phases_and_precisions_are_combined(session):
    words = ("--mode", "all", "--phase", "all", "--precision", "fp32,bf16", "--no-checks")
    command.run(parse("mnist", "--batch", "2", *words), session.open)
    assert [len(group) for group in session.groups] == [8, 8, 8]
    assert session.checks == [False] * 3


@pytest.mark.parametrize(
    ("status", "words", "code", "said"),
    [
        (
            {"graph": ("failed", "the worker died")},
            (),
            0,
            ("tensorflow graph", "the worker died", "1 of 2"),
        ),
        (
            {"graph": ("skipped", "not there"), "eager": ("skipped", "neither")},
            (),
            1,
            ("not there",),
        ),
        (
            {"cuda:0": ("skipped", "built without CUDA")},
            ("--device", "cpu,cuda:0", "--framework", "torch"),
            0,
            ("torch eager", "cuda:0", "built without CUDA"),
        ),
    ],
)
def test_a_row_without_time_costs_itself_only(session, capsys, status, words, code, said):
    session.status = status
    assert command.run(parse("mnist", *words), session.open) == code
    out = capsys.readouterr().out
    assert all(word in out for word in said)


def test_cpu_and_gpu_with_ratio_and_verdict(session, capsys):
    session.seconds = {"cpu": 10.0, "cuda:0": 0.01}
    words = ("--device", "cpu,cuda:0", "--framework", "torch", "--batch", "16")
    command.run(parse("vgg16", *words), session.open)
    out = capsys.readouterr().out
    assert "CPU / GPU" in out
    assert says(out, "cuda:0", "1e+03 times", "CPU")
    assert says(out, "cuda:0", "H200 SXM", "49.5 TFLOP/s")


def test_interrupt_keeps_what_is_finished(session, capsys):
    session.interrupt_at = 1
    assert command.run(parse("mnist", "--batch", "2,4"), session.open) == 130
    out, err = capsys.readouterr()
    assert "torch eager" in out
    assert says(err, "2 of 4")
    session.interrupt_at = None
    timed = len(session.opened)
    assert command.run(parse("mnist", "--batch", "2,4", "--resume", "last"), session.open) == 0
    assert len(session.opened) == timed + 1
    assert capsys.readouterr().out.count("torch eager") >= 2


def test_agreement_is_a_line_and_decides_the_exit_code(session, capsys):
    assert command.run(parse("mnist", "--agree"), session.open) == 0
    assert says(capsys.readouterr().out, "batch 64", "forward", "ok")
    session.error = 1.0
    assert command.run(parse("mnist", "--agree"), session.open) == 1
    assert says(capsys.readouterr().out, "failed", "output 1")


def test_any_two_frameworks_can_be_held_against_each_other(session, capsys):
    words = ("mnist", "--framework", "jax,torch", "--agree", "--json", "-")
    assert command.run(parse(*words), session.open) == 0
    found = json.loads(capsys.readouterr().out)
    assert found["agreements"][0]["frameworks"] == ["torch", "jax"]
    assert [(one["framework"], one["mode"]) for one in found["steps"]] == [
        ("jax", "xla"),
        ("torch", "eager"),
    ]


def test_formats(session, capsys, tmp_path):
    table, page = tmp_path / "a.csv", tmp_path / "a.md"
    words = ("--json", "-", "--csv", str(table), "--md", str(page))
    command.run(parse("mnist", *words), session.open)
    found = json.loads(capsys.readouterr().out)
    assert found["model"] == "mnist"
    assert [one["mode"] for one in found["steps"]] == ["eager", "graph"]
    step = found["steps"][0]
    assert step["tflops"] == pytest.approx(2 * 12_273_152 * 64 / 0.1 / 1e12)
    assert StepRecord.from_dict(step).ok
    rows = list(csv.DictReader(io.StringIO(table.read_text())))
    assert rows[0]["time_s_median"] == "0.1"
    assert rows[0]["checks"] == "flops ok"
    assert "| torch eager |" in page.read_text()


def test_too_little_memory_names_a_batch_that_fits(session):
    session.memory_bytes = 4 * 10**9
    with pytest.raises(UsageError, match="nearest: --batch ") as caught:
        command.run(parse("resnet50", "--batch", "5000"), session.open)
    assert session.groups == []
    batch = str(caught.value).rpartition(" ")[2]
    assert command.run(parse("resnet50", "--batch", batch), session.open) == 0


def test_protocol_prints_the_scripts_lines_and_nothing_else(session, capsys, tmp_path):
    target = tmp_path / "numbers.json"
    words = ("--steps", "7", "--quirk", "validation-in-time=off", "--json", str(target))
    assert command.run(parse("--protocol", "mnist-tutorial", *words), session.open) == 0
    out, err = capsys.readouterr()
    assert out == "step 0\n"
    assert err.splitlines()[:-1] == ["note: invented"]
    with Store.open(readonly=True) as store:
        (entry,) = store.entries("20300102-030405-abcd")
    assert (entry.table, entry.document["protocol"]) == ("protocol", "mnist-tutorial")
    assert main(["runs", "show", "last"]) == 0
    assert says(capsys.readouterr().out, "mnist-tutorial", "mnist", "fp32", "Forward", "1.00")
    (case,) = session.played
    assert (case.model, case.framework, case.mode) == ("mnist", "tensorflow", "graph")
    assert case.settings().steps == 7
    assert case.settings().quirks == {"first-line-over-all"}
    found = json.loads(target.read_text())
    assert [one["value"] for one in found["numbers"]] == [1.0]
    assert found["protocol"] == "mnist-tutorial"


def test_protocol_has_the_scripts_graph(session):
    command.run(parse("vgg16", "--protocol", "tf-cnn-benchmarks", "--quiet"), session.open)
    (case,) = session.played
    model = case.build()
    assert (model.batch, model.output.shape) == (64, (1001,))
    assert {one.factor for one in model.decays} == {4e-5}


# -----------------------------------------------------------------------------
# Models of the user's own.


@pytest.fixture
def own(tmp_path, monkeypatch):
    """The name of a model of one's own, whose file would end this process if it were run."""
    (tmp_path / "net.onnx").write_bytes(b"no ONNX")
    text = "import torch\nraise SystemExit\ndef build(width): pass\n"
    (tmp_path / "my_model.py").write_text(text)
    monkeypatch.chdir(tmp_path)
    return "my_model.py:build"


def test_a_model_of_ones_own_runs_in_torch_as_it_was_asked_for(own, session, capsys):
    session.batch = 8
    words = [own, "--phase", "training", "--set", "width=3", "--input", "8x4", "--optimizer=adam"]
    assert command.run(parse(*words, "--eval-mode", "--autocast", "bf16"), session.open) == 0
    ((case,),) = session.groups
    assert (case.framework, case.mode, case.precision) == ("torch", "eager", "bf16")
    assert (case.options, case.batch, case.layout) == ({"width": "3"}, None, "as-built")
    assert case.own.to_dict() == {
        "inputs": [{"shape": [8, 4], "dtype": "float32", "name": None}],
        "loss": None,
        "optimizer": "adam",
        "train": False,
    }
    out = capsys.readouterr().out
    head = (
        own,
        "batch 8",
        "training",
        "input 8x4",
        "adam",
        "evaluation mode",
        "Net, 20 trainable parameters",
    )
    assert says(out.splitlines()[0], "torch eager takes 100 ms per step")
    assert says(out, *head)
    assert "nhwc" not in out
    with Store.open(readonly=True) as store:
        (entry,) = store.entries("20300102-030405-abcd")
    assert entry.document["own"] == case.own.to_dict()
    assert StepRecord.from_dict(entry.document).spec.own == case.own
    assert main(["runs", "show", "last"]) == 0
    assert capsys.readouterr().out.endswith(out)
    assert main(["export", "last", "--format", "md"]) == 0
    assert says(capsys.readouterr().out, "Net, 20 trainable parameters")
    assert main(["report", "last", "-o", "page.html"]) == 0


class Asked:
    """A worker that says what the user's model is of, in the place of what it measures."""

    def __init__(self, framework):
        self.framework, self.closed = framework, False

    def call(self, function, hear, *, spec):
        del hear
        assert function is requests.request_framework
        assert spec["framework"] == "torch"
        return self.framework

    def close(self):
        self.closed = True


@pytest.mark.parametrize("word", ["compiled", "xla"])
@pytest.mark.parametrize(
    ("found", "expected"),
    [("tensorflow", ("tensorflow", "xla")), ("torch", ("torch", "compiled")), ("jax", None)],
)
def test_a_file_that_does_not_tell_its_framework_is_asked_in_a_worker(
    own, session, monkeypatch, found, expected, word
):
    Path(own.partition(":")[0]).write_text("import numpy\nraise SystemExit\ndef build(): pass\n")
    monkeypatch.setattr(steps, "_installed", lambda: ["torch", "tensorflow"])
    worker = Asked(found)
    session.worker = lambda *_: worker
    assert command.run(parse(own, "--mode", word), session.open) == 0
    ((case,),) = session.groups
    assert (case.framework, case.mode) == (expected or ("torch", "compiled"))
    assert worker.closed == (found == "tensorflow")


@pytest.mark.parametrize(
    ("words", "told"),
    [
        (("my_model.py:biuld",), "nearest: my_model.py:build"),
        (("my_model.py",), "nearest: my_model.py:build"),
        (("my_model.py:build", "--batch", "8"), "nearest: --input 8x3x224x224"),
        (("my_model.py:build", "--agree", "--framework", "all"), "--agree: for models of the cat"),
        (("my_model.py:build", "--framework", "jax"), "models of the catalogue, not my_model.py"),
        (("mnist", "--agree", "--framework", "jax"), "--agree: needs two frameworks"),
        (("mnist", "--mode", "eager", "--framework", "jax"), "jax has no such mode; nearest: xla"),
        (("my_model.py:build", "--feed", "host"), "--feed host: for models of the catalogue"),
        (("my_model.py:build", "--train-mode", "--eval-mode"), "nearest: leave one out"),
        (("my_model.py:build", "--autocast", "bf16", "--precision", "bf16"), "says it already"),
        (("my_model.py:build", "--input", "8x"), "--input 8x: 8x is no shape"),
        (("my_model.py:build", "--input", "a-b=8"), "a-b is no name"),
        (("my_model.py:build", "--input", "8:int65"), "nearest: int64"),
        (("my_model.py:build", "--loss", "crossentropy"), "nearest: cross-entropy"),
        (("my_model.py:build", "--loss", "my_model.py:los"), "my_model.py defines no los"),
        (("my_model.py:build", "--optimizer", "adan"), "nearest: adam"),
        (("my_model.py:build", "--optimizer", "none", "--phase", "training"), "--optimizer sgd"),
        (("nett.onnx",), "nett.onnx: no such file; nearest: net.onnx"),
        (("net.onnx", "--phase", "training"), "--phase training: net.onnx runs forward"),
        (("net.onnx", "--framework", "torch"), "nearest: --framework onnxruntime"),
        (("net.onnx", "--mode", "eager"), "nearest: optimized"),
        (("net.onnx", "--autocast", "bf16"), "--autocast bf16"),
        (("net.onnx", "--layout", "nhwc"), "--layout nhwc: net.onnx"),
        (("mnist", "--framework", "onnxruntime"), "runs FILE.onnx, not mnist"),
        (("mnist", "--input", "8x4"), "with a model of the catalogue"),
        (("mnist", "--eval-mode"), "with a model of the catalogue"),
    ],
)
def test_bad_words_on_a_model_of_ones_own(own, session, words, told):
    assert own
    with pytest.raises(UsageError) as raised:
        command.run(parse(*words), session.open)
    assert told in str(raised.value)
    assert session.groups == []


def test_an_onnx_file_runs_in_onnxruntime(own, session, capsys):
    assert own
    session.batch = 4
    words = ["net.onnx", "--batch", "4", "--mode", "all", "--framework", "onnxruntime"]
    assert command.run(parse(*words), session.open) == 0
    (cases,) = session.groups
    assert [(one.framework, one.mode, one.batch) for one in cases] == [
        ("onnxruntime", "optimized", 4),
        ("onnxruntime", "unoptimized", 4),
    ]
    out = capsys.readouterr().out
    assert main(["runs", "show", "last"]) == 0
    assert capsys.readouterr().out.endswith(out)


@pytest.mark.parametrize(
    ("word", "near"),
    [
        ("tensorflow", "nearest: tensorflow="),
        ("tensorflw=/bin/python", "nearest: tensorflow=/bin/python"),
        ("torch=/a,torch=/b", "nearest: leave one out"),
        ("jax=/bin/python", "nearest: --framework torch,tensorflow,jax"),
        ("torch=/none", "nearest: "),
    ],
)
def test_interpreters_are_of_frameworks_that_are_measured(word, near):
    with pytest.raises(UsageError, match=near) as caught:
        command.read_tasks(parse("mnist", "--framework", "torch,tensorflow", "--python", word))
    assert word.split(",")[-1].split("=")[-1] in str(caught.value)


@pytest.mark.deep
def test_two_frameworks_are_measured_in_an_environment_of_each(tmp_path, capsys):
    started = {}
    for name in ("torch", "tensorflow"):
        venv.create(tmp_path / name, symlinks=True)
        (packages,) = tmp_path.joinpath(name).glob("lib/python*/site-packages")
        started[name] = tmp_path / f"{name}.txt"
        paths = [Path(steps.__file__).parents[2], sysconfig.get_path("purelib")]
        (packages / "here.pth").write_text("\n".join([*map(str, paths), "import started"]))
        (packages / "started.py").write_text(
            f"import sys\nopen({str(started[name])!r}, 'a').write(f'{{sys.orig_argv[-1]}}\\n')\n"
        )
    pythons = ",".join(f"{name}={tmp_path / name}/bin/python" for name in started)
    words = ("--framework", "torch,tensorflow", "--batch", "2", "--repetitions", "1", "--no-checks")
    store = ("--store", str(tmp_path / "store.db"), "--json", "-")
    assert main(["step", "mnist", *words, "--no-trace", "--python", pythons, *store]) == 0
    found = {step["framework"]: step for step in json.loads(capsys.readouterr().out)["steps"]}
    for name, step in found.items():
        assert (step["status"], step["framework"]) == ("ok", name)
        # One start tells what is installed; the others are workers.
        assert len(started[name].read_text().splitlines()) > 1
