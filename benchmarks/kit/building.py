"""Builds and fetches wheels, from which a GPU machine without a network installs."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path

__all__ = ["LIMIT", "PYTHONS", "REPOSITORY", "TOOLS", "build", "install", "interpreter"]

REPOSITORY = Path(__file__).resolve().parents[2]
#: The Python of the machines, then another one that the package supports.
PYTHONS = ("3.12", "3.11")
#: Bytes of the whole folder.
LIMIT = 40 << 20
# Machine code for Hopper, and its PTX for whatever comes after it.
_ARCHITECTURES = "90"
# Imports of the package that images with PyTorch, CuPy and Matplotlib lack.
_MISSING = ("msgspec>=0.19", "platformdirs>=4")
#: What is built with, in one folder for all versions of Python: pip's build isolation would fetch
#: it for each wheel anew, and a build whose tools have moved compiles everything again.
TOOLS = (
    *("scikit-build-core>=0.11", "setuptools-scm>=8", "hatch-fancy-pypi-readme>=24"),
    *("pybind11>=3", "cmake>=3.25", "ninja"),
)
_HEADERS = ("nvidia-cudnn-cu13>=9.8", "nvidia-cublas>=13")
_CUDNN, _CUBLASLT = "nvidia/cudnn/include", "nvidia/cu13/include"


def build(folder: Path, work: Path, pythons: Sequence[str] = PYTHONS) -> dict[str, float]:
    """Fill the folder anew.

    The wheels have the module ``_cuda`` only: oneDNN is not on those machines.

    Args:
        folder: for the wheels.
        work: for tools and object files; a second build goes on from them.
        pythons: versions of Python that there are wheels for; each has to be installed here.

    Returns:
        What each version of Python took, in seconds.

    Raises:
        SystemExit: a Python, nvcc or the network is missing, or the folder is too large.
    """
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    seconds = {}
    for version in pythons:
        begin = time.monotonic()
        _wheel(folder, work, version)
        _fetch(folder, version)
        seconds[version] = time.monotonic() - begin
    size = sum(one.stat().st_size for one in folder.iterdir())
    if size > LIMIT:
        raise SystemExit(f"{folder}: {size / 2**20:.1f} MiB, more than {LIMIT >> 20} MiB")
    return seconds


def install(folder: Path, site: Path) -> None:
    """Install the wheels of a folder that fit this Python, without a network.

    Raises:
        SystemExit: the folder has no wheels for this Python.
    """
    names = ["pydlbench", *(one.partition(">")[0] for one in _MISSING)]
    # Modules are compiled at import; each call of the kit has a folder of its own.
    how = ("--no-index", "--no-deps", "--no-compile", "--find-links", folder, "--target", site)
    _pip("install", *how, *names)


def _wheel(folder: Path, work: Path, version: str) -> None:
    """Build the package's wheel for one version of Python; only its bindings are recompiled."""
    python = interpreter(version)
    tools = work / "tools"
    if not tools.exists():
        _pip("install", "--target", tools, *TOOLS)
    headers = _headers(work)
    defines = {
        "CMAKE_DISABLE_FIND_PACKAGE_dnnl": "ON",
        "PYDLBENCH_CUDNN_INCLUDE": headers / _CUDNN,
        "PYDLBENCH_CUBLASLT_INCLUDE": headers / _CUBLASLT,
    }
    _pip(
        *("wheel", REPOSITORY, "-w", folder, "--no-deps", "--no-build-isolation"),
        f"-Cbuild-dir={work / 'build'}",
        *(f"-Ccmake.define.{name}={value}" for name, value in defines.items()),
        python=python,
        PYTHONPATH=str(tools),
        PYDLBENCH_CUDA="1",
        CUDAARCHS=_ARCHITECTURES,
    )


def interpreter(version: str) -> str:
    """Return a Python of a version that runs pip.

    What is on PATH may be a version manager's, which runs only where that version is chosen: pyenv
    has the Pythons themselves in a folder.

    Raises:
        SystemExit: there is none.
    """
    manager = Path(os.environ.get("PYENV_ROOT", Path.home() / ".pyenv")) / "versions"
    named = shutil.which(f"python{version}")
    managed = sorted(manager.glob(f"{version}.*/bin/python"), reverse=True)
    for python in (*([named] if named else ()), *map(str, managed)):
        command = [python, "-m", "pip", "--version"]
        if not subprocess.run(command, capture_output=True, check=False).returncode:
            return python
    raise SystemExit(f"no python{version} that runs pip is on PATH; nearest: --python X.Y")


def _headers(work: Path) -> Path:
    """Return the folder above those of cuDNN and cuBLASLt: of this Python, or fetched."""
    fetched = work / "headers"
    for folder in (*map(Path, sys.path), fetched):
        if (folder / _CUDNN / "cudnn_version.h").exists() and (folder / _CUBLASLT).exists():
            return folder
    _pip("install", "--no-deps", "--target", fetched, *_HEADERS)
    return fetched


def _fetch(folder: Path, version: str) -> None:
    """Fetch the other packages as wheels for one version of Python."""
    words = ["--only-binary=:all:", "--python-version", version, "--implementation", "cp"]
    for platform in ("manylinux_2_28", "manylinux_2_17", "manylinux2014"):
        words += ["--platform", f"{platform}_x86_64"]
    _pip("download", *words, "--no-deps", "-d", folder, *_MISSING)


def _pip(verb: str, *words: str | Path, python: str = sys.executable, **environment: str) -> None:
    """Run a command of pip, isolated from compiled modules of other folders."""
    outer = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
    command = [python, "-m", "pip", verb, "--quiet", *map(str, words)]
    done = subprocess.run(command, env={**outer, **environment}, check=False)
    if done.returncode != 0:
        raise SystemExit(f"exit code {done.returncode} of {' '.join(command)}")
