"""Two installations measure in turn, each by workers of its own interpreter."""

import json
import platform
import venv
from dataclasses import dataclass

import pytest
from invented_installations import installation
from said import says

import pydlbench
from pydlbench.backends import base
from pydlbench.cli import main
from pydlbench.workers.installation import messages, read_installation

MEASURED = ["--shape", "8x8:8x8", "--repetitions", "5", "--budget", "0.02", "--quiet"]


@pytest.fixture(scope="module")
def usual(tmp_path_factory):
    """The interpreter of an installation."""
    return installation(tmp_path_factory.mktemp("usual") / "env")


@pytest.fixture(scope="module")
def slow(tmp_path_factory):
    """One whose native kernels take 5 % longer, with another library."""
    folder = tmp_path_factory.mktemp("slow") / "env"
    return installation(folder, "invented 2", native=1.05e-3)


def compare(a, b, *words):
    return main(["compare", "--python", a, "--python", b, *words])


def test_an_installation_that_is_five_percent_slower_is_found(usual, slow, capsys):
    assert compare(usual, slow, *MEASURED, "--fail-on", "slower:3%", "--json", "-") == 3
    found = json.loads(capsys.readouterr().out)
    (row,) = found["rows"]
    assert (row["verdict"], len(row["by_pass"])) == ("SLOWER", 5)
    assert row["ratio"] == pytest.approx(1.05, rel=0.01)
    assert (row["a"]["library"], row["b"]["library"]) == ("invented 1", "invented 2")
    assert (found["a"]["name"], found["b"]["name"]) == (usual, slow)
    assert found["interleaved"]


@pytest.mark.deep
def test_each_row_says_which_library_each_side_has(usual, slow, capsys):
    assert compare(slow, usual, *MEASURED) == 0
    out = capsys.readouterr().out
    assert says(out, "as fast")
    assert says(out, "8x8:8x8", "invented 2", "invented 1")


@pytest.mark.deep
def test_several_layers_and_backends_are_measured(usual, slow, capsys):
    words = ("--shape", "4x4:4x4,mb1ic4ih8oc4kh3", "--backend", "native,torch")
    assert compare(usual, slow, *words, *MEASURED[2:], "--json", "-") == 0
    rows = json.loads(capsys.readouterr().out)["rows"]
    assert {(row["problem"][:2], row["backend"]) for row in rows} == {
        (shape, backend) for shape in ("4x", "mb") for backend in ("native", "torch")
    }
    ratios = {row["backend"]: row["ratio"] for row in rows}
    assert ratios["torch"] == pytest.approx(1, rel=0.01)


def test_a_kernel_that_one_of_them_lacks_costs_its_row(usual, tmp_path, capsys):
    refuse = (
        "from pydlbench.errors import UnsupportedError\n"
        "def refuse(*_): raise UnsupportedError('has no such kernel')\n"
        "drifting_backend.Backend.prepare = refuse"
    )
    broken = installation(tmp_path / "env", code=refuse)
    assert compare(usual, broken, *MEASURED) == 1
    err = capsys.readouterr().err.strip()
    assert says(err, "nothing to compare", "1 row", "has no such kernel")
    assert "\n" not in err


def test_an_interpreter_finds_its_own_packages(usual, tmp_path, monkeypatch):
    (tmp_path / "pydlbench.py").write_text("raise SystemExit('of somebody else')")
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    found = read_installation(usual)
    assert found.version == pydlbench.__version__
    assert found.environment["python"] == platform.python_version()


def nothing(folder):
    return str(folder / "python")


def no_pydlbench(folder):
    venv.create(folder / "env", symlinks=True)
    return str(folder / "env/bin/python")


def other_messages(folder):
    changed = "from pydlbench.workers import installation; installation.messages = lambda: 'other'"
    return installation(folder / "env", code=changed)


@pytest.mark.parametrize(
    ("python", "reason"),
    [
        (nothing, "cannot be run (No such file or directory); nearest:"),
        (
            no_pydlbench,
            "has no pydlbench that can be asked (ModuleNotFoundError: No module named 'pydlbench'",
        ),
        (other_messages, "take other messages than this one's; nearest: compare stored runs"),
    ],
)
def test_an_interpreter_that_cannot_measure_is_refused_in_one_line(
    usual, tmp_path, capsys, python, reason
):
    bad = python(tmp_path)
    assert compare(usual, bad, *MEASURED) == 2
    err = capsys.readouterr().err.strip()
    assert err.startswith(f"pydlbench: --python {bad}: ")
    assert reason in err
    assert "\n" not in err


@pytest.mark.parametrize(
    ("words", "reason"),
    [
        (["--python", "a", "--shape", "conv3"], "--python: 1 given"),
        (["--python", "a", "--python", "b"], "nearest: --shape conv3"),
        (["--python", "a", "--python", "b", "mnist", "vgg16"], "MODEL: 2 given"),
        (["--python", "a", "--python", "b", "--shape", "conv33"], "--shape conv33: no such layer"),
        (["--python", "a", "--python", "b", "--interleave"], "--interleave"),
        (["--shape", "conv3", "a", "b"], "a: --shape is for kernels"),
    ],
)
def test_what_is_to_be_measured_is_checked_first(capsys, words, reason):
    assert main(["compare", *words]) == 2
    err = capsys.readouterr().err.strip()
    assert reason in err
    assert "\n" not in err


def test_a_model_that_does_not_show_its_framework_needs_its_name(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "mine.py").write_text("def build(): ...\n")
    assert main(["compare", "--python", "a", "--python", "b", "mine.py:build"]) == 2
    assert "nearest: --framework torch" in capsys.readouterr().err


def test_who_sends_other_fields_has_other_messages(monkeypatch):
    before = messages()

    @dataclass(frozen=True, slots=True, kw_only=True)
    class Preparation(base.Preparation):
        more: int = 0

    assert messages() == before
    monkeypatch.setattr(base, "Preparation", Preparation)
    assert messages() != before
