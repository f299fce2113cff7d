"""Which framework a model of the user's own is run in, by every command that takes one."""

import pytest

from pydlbench.cli import breakdown, diagnose, estimate, forecast
from pydlbench.cli.parser import read
from pydlbench.errors import UsageError

COMMANDS = {
    "breakdown": breakdown,
    "diagnose": diagnose,
    "forecast": forecast,
    "estimate": estimate,
}
EVERY = pytest.mark.parametrize("name", list(COMMANDS))
FILES = {
    "net.onnx": "",
    "torches.py": "import torch\ndef build(): pass\n",
    "kerases.py": "import keras\ndef build(): pass\n",
    "neither.py": "import numpy\ndef build(): pass\n",
}


@pytest.fixture(autouse=True)
def folder(tmp_path, monkeypatch):
    for name, text in FILES.items():
        (tmp_path / name).write_text(text)
    monkeypatch.chdir(tmp_path)


def tasks_of(name, *words):
    return COMMANDS[name].read_tasks(read([name, *words])[0])[0]


def steps_of(tasks):
    return [(row.spec.framework, row.spec.mode) for task in tasks for row in task.rows]


@EVERY
@pytest.mark.parametrize(
    ("words", "expected"),
    [
        (("net.onnx", "--batch", "4"), ("onnxruntime", "optimized")),
        (("torches.py:build",), ("torch", "eager")),
        (("kerases.py:build", "--phase", "training"), ("tensorflow", "graph")),
    ],
)
def test_a_model_runs_in_the_framework_that_it_is_of(name, words, expected):
    tasks = tasks_of(name, *words)
    assert steps_of(tasks) == [expected]
    (task,) = tasks
    assert not task.guessed
    (row,) = task.rows
    assert (row.spec.batch, row.spec.phase) == (
        (4, "forward") if "--batch" in words else (None, row.spec.phase)
    )


@EVERY
def test_what_a_file_does_not_say_its_model_does(name, monkeypatch):
    monkeypatch.setattr("pydlbench.cli.steps._installed", lambda: ["torch"])
    (task,) = tasks_of(name, "neither.py:build")
    assert task.guessed


@pytest.mark.parametrize("name", ["breakdown", "forecast"])
def test_all_modes_are_those_of_the_framework(name):
    found = steps_of(tasks_of(name, "net.onnx", "--mode", "all"))
    assert found == [("onnxruntime", "optimized"), ("onnxruntime", "unoptimized")]


@pytest.mark.parametrize(
    ("words", "expected"),
    [
        ((), ("torch", "eager")),
        (("--mode", "compiled"), ("torch", "compiled")),
        (("--framework", "tensorflow"), ("tensorflow", "graph")),
        (("--framework", "tensorflow", "--mode", "compiled"), None),
        (("--mode", "eager,compiled"), None),
    ],
)
def test_a_diagnosis_is_of_one_step(words, expected):
    if expected is None:
        with pytest.raises(UsageError):
            tasks_of("diagnose", "mnist", *words)
    else:
        assert steps_of(tasks_of("diagnose", "mnist", *words)) == [expected]


@pytest.mark.parametrize("name", ["diagnose", "estimate"])
def test_nothing_is_asked_of_a_file_that_it_has_not(name):
    with pytest.raises(UsageError, match=r"^--phase training: net\.onnx"):
        tasks_of(name, "net.onnx", "--phase", "training")
