import json

import pytest
from said import says

from pydlbench.backends import capabilities
from pydlbench.cli import backends as command
from pydlbench.cli.parser import read
from pydlbench.errors import BackendMissingError, UnsupportedError, WorkerError

pytestmark = pytest.mark.usefixtures("installed")


def parse(*words):
    return read(["backends", *words])[0]


@pytest.fixture
def installed(monkeypatch):
    """Everything but TensorFlow; what is started is written down."""
    versions = {"native": "1.0", "torch": "2.9", "cupy": "14.0", "numba": "0.62"}
    monkeypatch.setattr(capabilities, "installed_version", lambda one: versions.get(one.name))
    monkeypatch.setattr(capabilities, "is_installed", lambda one: one.name in versions)
    return versions


@pytest.fixture
def start():
    started = []

    def describe(name, device):
        started.append((name, device))
        if name == "cupy":
            raise UnsupportedError("cupy needs an NVIDIA GPU;\nthere is none")
        return {"name": name.title(), "version": "9", "threads": 2}

    describe.started = started
    return describe


def lines(capsys):
    """Return the words of the lines behind the headline and the command to run next."""
    out, err = capsys.readouterr()
    assert err == ""
    headline, table = out.split("\n\n", 1) if "\nnext: " in out else ("", out)
    assert says(headline, "backends can be used") or "yes" not in out.split()
    return [line.split() for line in table.splitlines()]


def test_table(start, capsys):
    assert command.run(parse(), start) == 0
    rows = lines(capsys)
    assert rows[0] == ["backend", "device", "version", "modes", "precisions", "usable"]
    assert [" ".join(row) for row in rows[1:5]] == [
        "native cpu Native 9 - fp32, bf16, fp16, int8 yes",
        "torch cpu Torch 9 eager, compiled, frozen fp32, bf16, fp16, int8 yes",
        "tensorflow cpu - graph, xla fp32, bf16, fp16 no",
        "cupy cuda:0 14.0 - fp32, tf32, fp16-tc no",
    ]
    notes = [" ".join(row) for row in rows[9:]]
    assert [one.partition(":")[0] for one in notes] == [
        *("tensorflow on cpu", "cupy on cuda", "jax on cpu", "onnxruntime on cpu"),
    ]
    assert notes[0].endswith("pip install 'pydlbench[tensorflow]'")
    assert says(notes[1], "cuda:0", "needs an NVIDIA GPU; there is none")
    # What is not installed is not started.
    assert [name for name, _ in start.started] == ["native", "torch", "cupy", "numba"]


def test_json_on_stdout_is_pure(start, capsys):
    assert command.run(parse("--json", "-"), start) == 0
    document = json.loads(capsys.readouterr().out)
    assert document["schema_version"] == 1
    found = {entry["backend"]: entry for entry in document["backends"]}
    assert tuple(found) == capabilities.backend_names()
    assert found["torch"]["about"] == {"name": "Torch", "version": "9", "threads": 2}
    assert (found["torch"]["usable"], found["torch"]["reason"]) == (True, None)
    assert found["torch"]["modes"] == ["eager", "compiled", "frozen"]
    assert (found["tensorflow"]["usable"], found["tensorflow"]["about"]) == (False, None)
    assert found["tensorflow"]["reason"] == "not installed"
    assert found["tensorflow"]["install"] == "pip install 'pydlbench[tensorflow]'"
    assert "GPU" in found["cupy"]["reason"]


def test_one_device_only(start, capsys):
    command.run(parse("--device", "cpu"), start)
    assert [row[0] for row in lines(capsys)[1:5]] == ["native", "torch", "tensorflow", "numba"]
    command.run(parse("--device", "cuda:1"), start)
    rows = lines(capsys)
    assert [row[:2] for row in rows[1:5]] == [
        [name, "cuda:1"] for name in ("native", "torch", "tensorflow", "cupy")
    ]


def test_with_a_gpu_both_devices_are_listed(start, capsys, monkeypatch):
    monkeypatch.setattr(capabilities, "default_device", lambda: ("cuda:0", ()))
    command.run(parse(), start)
    found = [tuple(row[:2]) for row in lines(capsys)[1:10]]
    assert found.count(("torch", "cpu")) == found.count(("torch", "cuda:0")) == 1
    assert found.count(("cupy", "cuda:0")) == 1
    assert ("cupy", "cpu") not in found


@pytest.mark.parametrize(
    "error",
    [
        BackendMissingError("torch cannot be imported: libgomp.so.1: not found"),
        WorkerError("the torch worker was killed by SIGSEGV"),
    ],
)
def test_one_that_does_not_start_says_why(capsys, error):
    def describe(name, _device):
        if name == "torch":
            raise error
        return {}

    assert command.run(parse("--device", "cpu"), describe) == 0
    out = capsys.readouterr().out
    assert f"torch on cpu: {error}\n" in out
    # It is installed: installing it once more would not help.
    assert ".[torch]" not in out


def test_an_install_command_is_given_once(capsys, monkeypatch):
    monkeypatch.setattr(capabilities, "is_installed", lambda _: True)
    text = "tensorflow is not installed; get it with: pip install 'pydlbench[tensorflow]'"

    def describe(name, _device):
        if name == "tensorflow":
            raise BackendMissingError(text)
        return {}

    command.run(parse(), describe)
    assert capsys.readouterr().out.count("get it with") == 1


def test_what_runs_without_its_package_is_usable(installed, start, capsys, monkeypatch):
    del installed["native"]  # run from a checkout
    monkeypatch.setattr(capabilities, "is_installed", lambda one: one.name == "native")
    command.run(parse("--device", "cpu"), start)
    assert lines(capsys)[1][-1] == "yes"
