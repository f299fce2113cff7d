"""``python -m pydlbench layers``: the whole way, in processes of its own."""

import importlib.util
import json
import os
import signal
import subprocess
import sys

import pytest

import pydlbench
from pydlbench.runner.options import RunnerOptions

FRAMEWORKS = {"torch", "tensorflow", "numba", "cupy", "jax"}
native = pytest.mark.skipif(
    importlib.util.find_spec("pydlbench._cpu") is None,
    reason="the native module _cpu is not built here",
)


def call(*words, python=()):
    command = [sys.executable, *python, "-m", "pydlbench", *words]
    return subprocess.run(command, capture_output=True, text=True, check=False, timeout=120)


def imported(stderr):
    """Top-level modules in the report of ``-X importtime``."""
    lines = [line for line in stderr.splitlines() if line.startswith("import time:")]
    return {line.rpartition("|")[2].strip().partition(".")[0] for line in lines}


@pytest.fixture(scope="module")
def job():
    """The main job in small."""
    return call(
        *("layers", "--shape", "mnist/conv1", "--batch", "2", "--budget", "0.02", "--json", "-"),
        python=("-X", "importtime"),
    )


@native
def test_the_main_job_gives_pure_json_and_a_verified_row(job):
    assert job.returncode == 0, job.stderr
    document = json.loads(job.stdout)
    assert document["schema_version"] == 1
    assert document["interrupted"] is False
    (row,) = document["measurements"]
    assert (row["layer"], row["problem"]) == ("mnist/conv1", "mb2ic1ih28oc32oh28kh5ph2")
    assert (row["status"], row["correct"]["status"]) == ("ok", "ok")
    assert row["time_s"]["median"] > 0
    assert document["run"]["command"][1:3] == ["layers", "--shape"]


@native
def test_no_framework_is_imported(job):
    names = imported(job.stderr)
    assert "pydlbench" in names
    assert not names & FRAMEWORKS


@native
def test_the_command_lines_record_has_the_fields_of_the_functions(job):
    layer = pydlbench.build_layer(
        "conv", batch=2, in_channels=1, in_size=28, out_channels=32, kernel=5, padding=2
    )
    record = pydlbench.measure(layer, options=RunnerOptions(budget_s=0.02)).to_dict()
    (row,) = json.loads(job.stdout)["measurements"]
    assert list(row) == list(record)
    same = ("problem", "batch", "pass", "precision", "flops", "flops_executed", "bytes", "threads")
    assert [row[name] for name in same] == [record[name] for name in same]
    for part in ("time_s", "peak_tflops", "roofline", "correct"):
        assert set(row[part]) == set(record[part])


def test_the_help_of_a_command_loads_nothing_that_only_a_run_needs():
    script = (
        "import sys; from pydlbench.cli import main; from pydlbench.cli.parser import COMMANDS\n"
        "assert all(main(['help', name]) == 0 for name in COMMANDS)\n"
        "print(*sys.modules, file=sys.stderr)"
    )
    command = [sys.executable, "-c", script]
    done = subprocess.run(command, capture_output=True, text=True, check=True, timeout=120)
    loaded = done.stderr.split()
    assert "pydlbench.cli.layers" in loaded
    heavy = FRAMEWORKS | {"msgspec", "numpy", "tqdm", "subprocess"}
    own = ("layers", "models", "devices", "records.record", "runner.execute", "store.store")
    assert not set(loaded) & (heavy | {f"pydlbench.{name}" for name in own})


# The command line itself, but each finished row is told on stderr, so that a test need not guess.
TELLING = """
import sys
from pydlbench.cli import main, terminal
def tell(self, done, total, label):
    print(f"finished {done:g}", file=sys.stderr, flush=True)
terminal.ProgressLine.__call__ = tell
sys.exit(main())
"""


@native
@pytest.mark.parametrize(
    ("finished", "number", "code"),
    [(0, signal.SIGINT, 130), pytest.param(1, signal.SIGTERM, 143, marks=pytest.mark.deep)],
)
def test_ctrl_c_and_sigterm_print_what_is_finished(finished, number, code):
    problems = [f"mb1ic8ih{size}oc8oh{size}kh3ph1" for size in (8, 6, 7)]
    words = ("--shape", ",".join(problems), "--budget", "0.2", "--json", "-")
    process = subprocess.Popen(
        [sys.executable, "-c", TELLING, "layers", *words, "--quiet"],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    for line in process.stderr:
        if line == f"finished {finished}\n":
            break
    os.kill(process.pid, number)
    out, err = process.communicate(timeout=60)
    assert process.returncode == code, err
    document = json.loads(out)
    assert document["interrupted"] is True
    rows = document["measurements"]
    assert [row["layer"] for row in rows] == problems * finished
    # A third of all visits was made: every row has had some.
    whole = sum(row["stop_rule"] != "interrupted" for row in rows)
    others = f", {3 - whole} more in part" if rows else ""
    last = err.splitlines()[-1]
    assert last.startswith(f"interrupted: {whole} of 3 rows finished{others}")
    assert len(document["unfinished"]) == 3 - whole
    assert all(label in last for label in document["unfinished"])
    assert "Traceback" not in err
