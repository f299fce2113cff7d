"""Another oneDNN, which the environment names: a library that reports a version of its own."""

import os
import shutil
import subprocess
import sys

import pytest
from said import says

pytest.importorskip("pydlbench._cpu")

_ASK = """
from pydlbench.backends.native.backend import create
print(create("cpu").describe()["version"])
"""


def asked(path):
    """Return what a process prints that uses another oneDNN: its version, or why it is refused."""
    environment = {
        **os.environ,
        "PYDLBENCH_ONEDNN": str(path),
        "PYTHONPATH": os.pathsep.join(sys.path),
    }
    done = subprocess.run(
        [sys.executable, "-c", _ASK], capture_output=True, text=True, env=environment, check=False
    )
    return (done.stdout or done.stderr).strip().splitlines()[-1]


@pytest.mark.skipif(not shutil.which("cc"), reason="no C compiler")
@pytest.mark.parametrize(
    ("version", "runtime", "words"),
    [
        ("3, 99, 0", 2, ["3.99.0"]),
        ("2, 7, 0", 2, ["another interface", "nearest"]),
        ("3, 99, 0", 512, ["without OpenMP", "SYCL", "nearest"]),
    ],
)
def test_another_onednn_takes_the_place_of_the_installed_one_or_is_refused(
    tmp_path, version, runtime, words
):
    source, library = tmp_path / "stub.c", tmp_path / "libdnnl.so.3.99"
    source.write_text(
        "struct version { int number[3]; const char* hash; unsigned cpu, gpu; };\n"
        f'static const struct version own = {{{{{version}}}, "stub", {runtime}, 0}};\n'
        "const struct version* dnnl_version(void) { return &own; }\n"
    )
    subprocess.run(["cc", "-shared", "-fPIC", "-o", library, source], check=True)
    assert says(asked(library), *words)


@pytest.mark.parametrize("path", ["/nowhere/libdnnl.so.3", "libm.so.6"])
def test_a_file_that_is_no_onednn_is_refused(path):
    assert says(asked(path), "pydlbench._cpu", f"PYDLBENCH_ONEDNN={path}", "nearest")
