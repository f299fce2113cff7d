"""The kernels for GPUs in Numba's simulator, in a process of its own, against the reference."""

from __future__ import annotations

import importlib.util
import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

if importlib.util.find_spec("numba") is None:
    pytest.skip("Numba is not installed", allow_module_level=True)

SCRIPT = Path(__file__).parent / "simulate.py"
CONVOLUTIONS = ("uneven padding and stride", "groups and dilation")
PRODUCTS = ("product", "batched product, two blocks")
POOLINGS = ("max", "max, gaps", "avg", "avg, padding counted")
EXPECTED = {
    *((name, pass_, "nchw") for name in CONVOLUTIONS for pass_ in ("forward", "backward-data")),
    *((name, "backward-weights", "nchw") for name in CONVOLUTIONS),
    *(
        (name, pass_, how)
        for name in PRODUCTS
        for pass_ in ("forward", "backward-data", "backward-weights")
        for how in ("plain", "transposed")
    ),
    *((name, pass_, "nchw") for name in POOLINGS for pass_ in ("forward", "backward-data")),
}


@pytest.fixture(scope="module")
def simulated() -> dict[str, Any]:
    """Return what the script found: one line of JSON."""
    environment = {**os.environ, "NUMBA_ENABLE_CUDASIM": "1"}
    done = subprocess.run(
        [sys.executable, str(SCRIPT)],
        capture_output=True,
        text=True,
        env=environment,
        cwd=SCRIPT.parents[3],
        timeout=600,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    found: dict[str, Any] = json.loads(done.stdout)
    return found


def test_every_kernel_is_right(simulated: dict[str, Any]) -> None:
    rows = simulated["rows"]
    wrong = [row for row in rows if row["status"] != "ok"]
    assert wrong == []
    assert {(row["name"], row["pass"], row["variant"]) for row in rows} == EXPECTED


def test_a_planted_fault_is_seen(simulated: dict[str, Any]) -> None:
    assert simulated["fault"]["status"] == "failed"
    assert simulated["fault"]["unwritten"] > 0


def test_a_row_is_timed_by_events(simulated: dict[str, Any]) -> None:
    assert simulated["prepared"] == {"timing": "events", "status": "ok"}


def test_what_it_lacks_is_one_sentence(simulated: dict[str, Any]) -> None:
    assert simulated["refused"] == {
        "fp16": "numba has kernels for fp32 only, not for fp16",
        "graph": "numba cannot capture CUDA graphs: ask for --timing events",
        "nhwc": "numba has no operator with --layout nhwc",
        "device": "numba sees 1 GPUs, and cuda:7 is not among them",
    }


def test_without_a_driver_it_says_so() -> None:
    """Not in the simulator: this machine's own answer, or none where there is a GPU."""
    code = "from pydlbench.backends.numba.backend import create; create('cuda:0')"
    done = subprocess.run(
        [sys.executable, "-c", code],
        capture_output=True,
        text=True,
        env={**os.environ, "CUDA_VISIBLE_DEVICES": ""},
        cwd=SCRIPT.parents[3],
        check=False,
    )
    assert done.returncode == 1
    assert "UnsupportedError: numba cannot use an NVIDIA GPU here: " in done.stderr
