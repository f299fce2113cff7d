"""What has to hold of an installed package: also run on each wheel, where no compiler is.

Only what is installed with pydlbench itself is needed here, and pytest.
"""

import json
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

# Whatever GNU's, LLVM's and Intel's are called, with the names that repairing a wheel gives copies.
OPENMP = re.compile(r"(/\S*/lib[gi]?omp[^/\s]*\.so[^/\s]*)$", re.MULTILINE)
SAMPLED = """
from pydlbench.backends.base import Preparation
from pydlbench.models.catalog import find_layers
from pydlbench.records.measurement import KernelSpec
from pydlbench.runner.session import Session
from pydlbench.timing.chunk import ChunkRequest

(layer,) = find_layers(["mb1ic16ih8oc16kh3ph1"])
with Session() as session:
    worker = session.worker()
    kernel = worker.prepare(KernelSpec(layer=layer), Preparation())
    kernel.sample(ChunkRequest(samples=1))
    print(open(f"/proc/{worker.pid}/maps").read())
"""


@pytest.fixture
def run(tmp_path):
    """Run Python in an empty folder, with nothing on the PATH; return what it prints."""

    def python(*words):
        environment = {**os.environ, "PATH": str(tmp_path), "PYDLBENCH_STORE": "none"}
        done = subprocess.run(
            [sys.executable, *words],
            capture_output=True,
            text=True,
            check=False,
            cwd=tmp_path,
            env=environment,
        )
        assert done.returncode == 0, done.stdout + done.stderr
        return done.stdout

    return python


@pytest.mark.deep
def test_the_main_job_runs_without_a_compiler(run):
    words = ["layers", "--shape", "mb1ic16ih8oc16kh3ph1", "--budget", "0.05", "--repetitions", "1"]
    (row,) = json.loads(run("-m", "pydlbench", *words, "--quiet", "--json", "-"))["measurements"]
    assert (row["status"], row["correct"]["status"]) == ("ok", "ok")
    assert row["library"].startswith("oneDNN 3.")
    assert row["roofline"]["efficiency"] > 0


@pytest.mark.skipif(not Path("/proc/self/maps").exists(), reason="no /proc to see libraries in")
def test_the_process_that_runs_kernels_has_one_openmp_runtime(run):
    loaded = run("-c", SAMPLED)
    assert "libdnnl" in loaded
    assert len(set(OPENMP.findall(loaded))) == 1


def test_the_module_for_gpus_is_imported_where_there_is_none(run):
    missing = run("-c", "from pydlbench._build import CUDA_MISSING as m; print(m)").strip()
    if missing:
        pytest.skip(missing)
    code = "import pydlbench._cuda as cuda; print(cuda.built_with()['architectures'])"
    assert "90" in run("-c", code)


def test_a_second_runtime_would_be_seen():
    maps = "7f r-xp /usr/lib/libgomp.so.1.0.0\n7f r-xp /x/libgomp-f9a9ad78.so.1.0.0\n"
    assert len(set(OPENMP.findall(maps + maps))) == 2
    assert OPENMP.findall("/a/libomp.so\n/b/libiomp5.so\n/c/libcomp.so") == [
        "/a/libomp.so",
        "/b/libiomp5.so",
    ]
