"""The test cases that are written in C++, which ``ctest`` runs as well."""

import re
import subprocess
from pathlib import Path

import pytest

_FILES = sorted(Path(__file__).parent.glob("*_test.cpp"))
_CASES = [
    pytest.param(name, id=f"{file.stem.removesuffix('_test')}-{name}")
    for file in _FILES
    for name in re.findall(r"^TEST\((\w+)\)", file.read_text(encoding="utf-8"), re.MULTILINE)
]


@pytest.mark.parametrize("name", _CASES)
def test_case(cpp_build, name):
    done = subprocess.run(
        [cpp_build / "pydlbench_test_cases", name], capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stdout + done.stderr


def test_every_case_is_built(cpp_build):
    """A file that CMake does not name would be listed here and run nowhere."""
    done = subprocess.run(
        [cpp_build / "pydlbench_test_cases"], capture_output=True, text=True, check=False
    )
    assert done.stdout.splitlines()[-1] == f"{len(_CASES)} ran, 0 failed"
