"""Find and load cuDNN and cuBLASLt.

The native module is not linked to them. NVIDIA's wheels come first, where PyTorch finds them, too,
so that both use the same copy in an environment. Every result names the file that was loaded.
"""

from __future__ import annotations

import ctypes
import os
import sys
from pathlib import Path
from typing import Any

from pydlbench.backends.native.modules import native_module
from pydlbench.errors import BackendMissingError, UnsupportedError

# Environment variables that name another copy of a library.
_OVERRIDES = {"cudnn": "PYDLBENCH_CUDNN", "cublasLt": "PYDLBENCH_CUBLASLT"}
# Major versions of libraries whose version differs from CUDA's.
_MAJOR_VERSIONS = {"cudnn": "9"}


def find(name: str, cuda: str) -> str | None:
    """Return the file of an NVIDIA library.

    Args:
        name: ``cudnn``, ``cublasLt`` or ``nvrtc``.
        cuda: required major version of CUDA.

    Returns:
        The file of a wheel in ``sys.path``, or in this Python's ``lib`` folder, where conda
        installs it. None leaves the search to the system's loader.
    """
    if chosen := os.environ.get(_OVERRIDES.get(name, "")):
        return chosen
    file = f"lib{name}.so.{_MAJOR_VERSIONS.get(name, cuda)}"
    for folder in sys.path:
        # cudnn/lib and cu13/lib; CUDA 12 has one folder per library.
        for path in sorted(Path(folder, "nvidia").glob(f"*/lib/{file}")):
            return str(path)
    path = Path(sys.prefix, "lib", file)
    return str(path) if path.exists() else None


def load(module: Any = None) -> dict[str, dict[str, str]]:
    """Load cuDNN and cuBLASLt unless they are loaded; one of them is sufficient.

    Args:
        module: replaces ``pydlbench._cuda`` in tests.

    Returns:
        Version and path of each loaded library. Rows that need a missing one say so.

    Raises:
        BackendMissingError: both are missing or too old.
    """
    cuda = module or native_module("_cuda")
    major = str(cuda.built_with()["cuda"]).partition(".")[0]
    # cuDNN opens NVRTC by name when it compiles a kernel, and so finds a copy that is loaded.
    if nvrtc := find("nvrtc", major):
        ctypes.CDLL(nvrtc)
    try:
        cuda.load_libraries(find("cudnn", major), find("cublasLt", major))
    except UnsupportedError as error:
        if cuda.libraries():
            return dict(cuda.libraries())
        extra, wheels = "cuda", "nvidia-cudnn-cu13 nvidia-cublas"
        if major == "12":
            extra, wheels = "cuda12", "nvidia-cudnn-cu12 nvidia-cublas-cu12"
        raise BackendMissingError(
            f"{error}; pip install '.[{extra}]' installs it (or pip install {wheels})"
        ) from error
    libraries: dict[str, dict[str, str]] = cuda.libraries()
    return libraries
