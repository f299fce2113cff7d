"""Whole commands on a GPU that is invented: its driver, its kernels, PyTorch on it and failures."""

import json
import os
import re
import shlex
import subprocess
import sys
from pathlib import Path

import pytest

import pydlbench

pytestmark = pytest.mark.deep

SITE = Path(__file__).parents[1] / "helpers" / "gpu_site"
ROOT = Path(pydlbench.__file__).parents[1]


class Finished:
    """A command that has ended: its exit code, its messages, and its JSON."""

    def __init__(self, process):
        self.code, self.said = process.returncode, process.stderr
        self._text = process.stdout

    @property
    def json(self):
        assert self._text, self.said
        return json.loads(self._text)


@pytest.fixture
def command(tmp_path):
    """Run a command on the invented GPU, in which failures may be planted."""

    def run(*words, planted="", device=("--device", "cuda:0")):
        places = [str(SITE), str(ROOT), *filter(None, [os.environ.get("PYTHONPATH")])]
        own = {
            "PYTHONPATH": os.pathsep.join(places),
            "INVENTED_GPU": planted,
            "PYDLBENCH_STORE": str(tmp_path / "store.db"),
            "PYDLBENCH_PROBES": str(tmp_path / "kept" / "probes.json"),
        }
        line = [sys.executable, "-m", "pydlbench", *words, *device, "--quiet", "--json", "-"]
        return Finished(
            subprocess.run(
                line,
                env=os.environ | own,
                capture_output=True,
                text=True,
                cwd=ROOT,
                timeout=600,
                check=False,
            )
        )

    return run


def test_rows_take_the_time_of_the_card_and_a_failure_costs_one_row(command):
    # The fastest plan of convolutions is wrong, that of ReLU cannot be captured, and a process that
    # starts a kernel of a normalisation ends.
    shapes = "conv:mb2ic3ih8oc4kh3n'a',relu:mb2ic3ih5,lrn:mb2ic6ih5"
    found = command(
        *("layers", "--shape", shapes, "--backend", "native", "--repetitions", "2"),
        planted="wrong=conv_engine_0,capture=relu,kill=lrn",
    )
    assert found.code == 0, found.said
    convolution, relu, normalisation = found.json["measurements"]
    assert convolution["algorithm"] == "engine 1"
    assert convolution["timing"] == "cuda-graph"
    assert convolution["time_s"]["median"] == pytest.approx(2e-6, rel=0.01)  # of a launch
    assert (relu["timing"], relu["status"], relu["correct"]["status"]) == ("events", "ok", "ok")
    assert normalisation["status"] == "failed"
    assert "SIGKILL" in normalisation["reason"]
    assert found.json["run"]["device"]["name"] == "NVIDIA H200"
    peaks = convolution["peak_tflops"]
    assert 0.9 < peaks["measured"] / peaks["theoretical"] < 1


def test_the_only_gpu_is_cuda_0(command):
    found = command("layers", "--shape", "relu:mb2ic3ih5", "--device", "cuda:1", device=())
    assert found.code == 1
    assert found.said == "pydlbench: there is 1 GPU, and cuda:1 is not among them\n"


def test_rows_of_pytorch_are_timed_like_native_ones(command):
    shapes = "conv:mb2ic3ih8oc4kh3,relu:mb2ic3ih5"
    found = command(
        *("layers", "--shape", shapes, "--backend", "native,torch", "--repetitions", "1"),
        *("--pass", "all", "--precision", "fp32,bf16-tc", "--cache", "hot,all-cold"),
    )
    rows = found.json["measurements"]
    assert {row["status"] for row in rows} == {"ok"}, found.said
    assert {row["backend"] for row in rows} == {"native", "torch"}
    assert {(row["cache"], row["timing"]) for row in rows} == {
        ("hot", "cuda-graph"),
        ("all-cold", "events"),
    }
    names = {row["kernels"][0]["name"] for row in rows if row["backend"] == "torch"}
    assert "invented::convolution_backward" in names


def test_a_call_that_waits_for_the_card_cannot_be_captured_and_says_so(command):
    found = command(
        *("layers", "--shape", "relu:mb2ic3ih5", "--backend", "torch", "--repetitions", "1"),
        planted="waits=clamp_min",
    )
    (row,) = found.json["measurements"]
    assert row["status"] == "failed"
    assert "capturing" in row["reason"]


def test_rows_of_pytorch_need_no_module(command):
    found = command(
        *("layers", "--shape", "relu:mb2ic3ih5", "--backend", "torch", "--repetitions", "1"),
        planted="module",
    )
    (row,) = found.json["measurements"]
    assert (row["status"], row["timing"], row["roofline"]) == ("ok", "cuda-graph", None)
    assert any("no launch gate" in note for note in row["notes"])
    assert any("PYDLBENCH_CUDA=1" in warning for warning in row["warnings"])
    assert found.json["run"]["device"]["name"] == "NVIDIA H200"


def test_a_card_without_room_costs_only_the_rows_that_need_it(command):
    shapes = "relu:mb2ic3ih5,relu:mb64ic64ih64"
    found = command(
        *("layers", "--shape", shapes, "--backend", "native,torch", "--repetitions", "1"),
        planted=f"memory={32 << 20}",
    )
    statuses = [
        (row["layer"] or row["problem"], row["status"]) for row in found.json["measurements"]
    ]
    assert [status for name, status in statuses if "ih5" in name] == ["ok", "ok"]
    assert not any(status == "ok" for name, status in statuses if "ih64" in name)


def test_a_step_is_the_time_line_of_the_card(command):
    found = command(
        *("step", "mnist", "--batch", "2", "--phase", "training", "--framework", "torch"),
        *("--repetitions", "2"),
    )
    (step,) = found.json["steps"]
    assert step["status"] == "ok", step["reason"]
    assert step["calls"]
    assert step["between_calls_s"] > 0


def test_a_breakdown_adds_up(command):
    words = ("mnist", "--batch", "2", "--phase", "forward", "--framework", "torch")
    found = command("breakdown", *words).json
    known = {name for name, level in found["levels"].items() if level is not None}
    assert {"native", "in_context", "step"} <= known
    step_s = found["levels"]["step"]["median"]
    assert sum(term["seconds"] for term in found["terms"]) == pytest.approx(step_s, rel=1e-6)


def test_a_profiler_without_kernels_is_named(command):
    words = ("mnist", "--batch", "2", "--phase", "forward", "--framework", "torch")
    found = command("breakdown", *words, planted="profiler")
    assert found.code == 1
    assert "CUPTI" in json.dumps(found.json)


# -----------------------------------------------------------------------------
# Every command on the page on GPUs, with smaller shapes, which take a CPU less time.

_SMALLER = (
    (r"--model alexnet\b", "--model mnist --batch 2"),
    (r"\bconv3\b", "mb2ic4ih8oc4kh3ph1"),
    (r"relu:mb128ic96ih55", "relu:mb2ic3ih5"),
    (r"ic60000000", "ic6000"),
    (r"mb8h16q2048d64", "mb1h2q16d8"),
    (r"--precision all", "--precision fp32,bf16-tc"),
    (r"step resnet50", "step mnist --batch 2"),
)
#: Why a command of the page is refused here.
_REFUSED = {
    "--device cuda:1": "there is 1 GPU, and cuda:1 is not among them",
    "--python": "of-tensorflow/bin/python",
}


def _smaller(text, patterns):
    for pattern, smaller in patterns:
        text = re.sub(pattern, smaller, text)
    return text


def _documented():
    """Return the commands of the page, without comments; a sweep takes a quarter of an hour."""
    page = (ROOT / "docs" / "gpu.md").read_text()
    lines = "\n".join(re.findall(r"```bash\n(.*?)```", page, re.DOTALL)).splitlines()
    matches = [re.search(r"(?:^|&& |/)(pydlbench .*)", line) for line in lines]
    found = [match[1].partition("  #")[0].strip() for match in matches if match]
    found += re.findall(r"`(pydlbench [^`]+)`", page)
    return dict.fromkeys(line for line in found if " sweep " not in line)


@pytest.mark.parametrize("line", _documented())
def test_a_documented_command_runs(command, line):
    words = shlex.split(_smaller(line, _SMALLER))[1:]
    if words[0] == "layers":
        words += ["--repetitions", "1", "--budget", "0.05"]
    placed = {"--device", "--known"} & set(words)
    found = command(*words, device=() if placed else ("--device", "cuda:0"))
    assert "Traceback" not in found.said
    if reason := next((why for part, why in _REFUSED.items() if part in line), None):
        assert found.code in (1, 2)
        assert reason in found.said
        assert found.said.count("\n") == 1
        return
    assert found.code == 0, found.said
    rows = [row for kind in ("measurements", "steps") for row in found.json.get(kind, ())]
    assert all(row["status"] == "ok" or row["reason"] for row in rows)
    assert any(row["status"] == "ok" for row in rows) or words[0] == "device"


def test_a_wrong_kernel_in_a_step_on_the_card_is_refused_in_one_line(command, tmp_path):
    file = tmp_path / "wrong.py"
    file.write_text("def relu(x):\n    return x.clone()\n")
    found = command("compare", "mnist", "--swap", f"aten.relu_={file}:relu")
    assert found.code != 0
    assert "aten.relu_: wrong result in a timed sample" in found.said
    assert found.said.count("\n") == 1


def test_a_right_kernel_in_a_step_on_the_card_is_accepted_and_its_saving_adds_up(command, tmp_path):
    file = tmp_path / "right.py"
    file.write_text("def relu(x):\n    return x.clamp_min_(0)\n")
    found = command(
        *("compare", "mnist", "--batch", "2", "--swap", f"aten.relu_={file}:relu"),
        *("--repetitions", "4", "--budget", "0.01"),
    )
    assert found.code == 0, found.said
    change = found.json["change"]
    assert (change["results"]["refused"], change["results"]["agreement"]["output"]) == ([], 0)
    saving = change["swap"]
    assert saving["calls"] == 3
    assert [row["term"] for row in saving["between"]] == [
        *("other calls", "between calls", "unexplained")
    ]
    parts = [saving["foretold"], *saving["between"]]
    assert sum(row["saved_s"] for row in parts) == pytest.approx(saving["step"]["saved_s"])
