"""Whatever a file or text of others holds: an answer or one line, soon, in bounded memory."""

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

HARNESS = Path(__file__).with_name("harness.py")
#: Inputs of each format in the default set, a quarter of a minute of one core in all.
COUNTS = {
    "descriptor": 150,
    "benchdnn": 150,
    "set": 200,
    "literal": 150,
    "log": 40,
    "trace": 30,
    "xplane": 60,
    "record": 40,
    "sweep": 40,
    "store": 60,
    "onnx": 200,
}


def read_inputs(name, first, count, tmp_path):
    if name == "onnx":
        pytest.importorskip("onnx")
    if name == "xplane":
        pytest.importorskip("jax")
    variables = {"PYDLBENCH_STORE": "none", "PYDLBENCH_PROBES": "none", "TMPDIR": str(tmp_path)}
    done = subprocess.run(
        [sys.executable, HARNESS, name, str(first), str(count)],
        capture_output=True,
        text=True,
        env={**os.environ, **variables},
        check=False,
        timeout=3600,
    )
    assert done.returncode == 0, done.stderr[-2000:]
    return json.loads(done.stdout.splitlines()[-1])


@pytest.mark.parametrize("name", COUNTS)
def test_no_input_is_a_traceback_or_a_hang_or_takes_all_memory(name, tmp_path):
    result = read_inputs(name, 0, COUNTS[name], tmp_path)
    assert result["findings"] == []
    # Inputs that are all refused at once, or none, would show nothing.
    assert result["accepted"] > 0
    assert result["refused"] > 0 or name == "literal"


@pytest.mark.deep
@pytest.mark.parametrize("name", COUNTS)
def test_nor_is_any_of_many_more(name, tmp_path):
    first = int(os.environ.get("PYDLBENCH_FUZZ_FIRST", "100000"))
    count = int(os.environ.get("PYDLBENCH_FUZZ_COUNT", str(4 * COUNTS[name])))
    assert read_inputs(name, first, count, tmp_path)["findings"] == []


@pytest.fixture(scope="module")
def faults(tmp_path_factory):
    """The library that makes a call fail, for ``LD_PRELOAD``."""
    if not shutil.which("c++"):
        pytest.skip("no C++ compiler")
    library = tmp_path_factory.mktemp("faults") / "faults.so"
    source = Path(__file__).with_name("faults.cpp")
    subprocess.run(["c++", "-shared", "-fPIC", "-O1", "-o", library, source, "-ldl"], check=True)
    return library


#: Command, call, and of which calls one fails: each, or each one of so many; at most so many.
TORTURES = [
    *(("trace", call, 1, 60) for call in ("open", "write", "pwrite", "fsync", "mmap", "rename")),
    *(("layers", "pwrite", 9, 4), ("layers", "fsync", 3, 2), ("layers", "open", 97, 5)),
    *(("layers", "pipe", 1, 3), ("layers", "mmap", 5, 3), ("layers", "new", 1500, 4)),
    *(("layers", "rename", 1, 6), ("layers", "fork", 1, 4), ("step", "fork", 1, 3)),
    *(("step", "pwrite", 9, 3), ("step", "open", 97, 4), ("step", "pipe", 1, 3)),
]


@pytest.mark.deep
@pytest.mark.parametrize(("name", "call", "each", "most"), TORTURES)
def test_a_call_that_fails_costs_an_answer_and_no_store(faults, tmp_path, name, call, each, most):
    pytest.importorskip("pydlbench._cpu")
    if name == "step":
        pytest.importorskip("torch")
    variables = {"PYDLBENCH_PROBES": str(tmp_path / "probes.json"), "LD_PRELOAD": str(faults)}
    done = subprocess.run(
        [sys.executable, HARNESS.with_name("torture.py"), name, call, str(each), str(most)],
        capture_output=True,
        text=True,
        env={**os.environ, **variables, "TMPDIR": str(tmp_path)},
        check=False,
    )
    assert done.returncode == 0, done.stderr[-2000:]
    result = json.loads(done.stdout.splitlines()[-1])
    assert result["findings"] == []
    assert result["failed"] > 0
