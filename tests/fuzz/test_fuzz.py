"""Whatever a file or text of others holds: an answer or one line, soon, in bounded memory."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

HARNESS = Path(__file__).with_name("harness.py")
#: Inputs of each format in the default set, half a minute of one core in all.
COUNTS = {
    "descriptor": 600,
    "benchdnn": 300,
    "set": 600,
    "literal": 600,
    "log": 100,
    "trace": 60,
    "xplane": 120,
    "record": 100,
    "sweep": 100,
    "store": 150,
    "onnx": 500,
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
    count = int(os.environ.get("PYDLBENCH_FUZZ_COUNT", str(3 * COUNTS[name])))
    assert read_inputs(name, first, count, tmp_path)["findings"] == []
