"""Host-side C++ of the CUDA module that needs no CUDA, compiled for these tests."""

from __future__ import annotations

import ctypes
import os
import shutil
import subprocess
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from collections.abc import Callable

_HERE = Path(__file__).parent
_SOURCES = _HERE.parent.parent / "csrc"


def _compiler() -> str:
    """Return the C++ compiler: ``$CXX``, or what is usual."""
    for name in (os.environ.get("CXX"), "g++", "c++"):
        if name and (path := shutil.which(name)):
            return path
    pytest.fail("no C++ compiler: this code is tested by compiling it for the CPU; set CXX")


@pytest.fixture(scope="session")
def host_library(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], ctypes.CDLL]:
    """Return a function that compiles ``tests/cuda_host/<name>.cpp`` once and loads it."""
    loaded: dict[str, ctypes.CDLL] = {}

    def load(name: str, *flags: str) -> ctypes.CDLL:
        if name in loaded:
            return loaded[name]
        library = tmp_path_factory.mktemp("host") / f"{name}.so"
        options = ["-std=c++17", "-O1", "-shared", "-fPIC", "-I", str(_SOURCES), *flags]
        command = [_compiler(), *options, str(_HERE / f"{name}.cpp"), "-o", str(library)]
        built = subprocess.run(command, capture_output=True, text=True, check=False)
        if built.returncode != 0:
            pytest.fail(f"{' '.join(command)}\n{built.stderr}", pytrace=False)
        loaded[name] = ctypes.CDLL(str(library))
        return loaded[name]

    return load
