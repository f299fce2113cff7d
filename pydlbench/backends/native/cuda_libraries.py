"""Which copies of cuDNN and cuBLASLt a GPU is measured with.

The native module is linked to neither. NVIDIA's wheels are looked for first, where PyTorch finds
them too: in one environment both run on the same copy. Every result names the file that was loaded.
"""

from __future__ import annotations

import ctypes
import os
import sys
from pathlib import Path
from typing import Any

from pydlbench.backends.native.modules import native_module
from pydlbench.errors import BackendMissingError, UnsupportedError

# A file named here is taken as it is; for another copy than the environment's.
_OVERRIDES = {"cudnn": "PYDLBENCH_CUDNN", "cublasLt": "PYDLBENCH_CUBLASLT"}
# Others are numbered as CUDA is.
_MAJOR = {"cudnn": "9"}


def find(name: str, cuda: str) -> str | None:
    """Return the file of an NVIDIA library.

    Args:
        name: ``cudnn``, ``cublasLt`` or ``nvrtc``.
        cuda: CUDA's major version, which the library has to be of.

    Returns:
        The file: of a wheel in a folder of ``sys.path``, or of this Python's own libraries, as
        conda installs them. None where it is left to the system's loader.
    """
    if chosen := os.environ.get(_OVERRIDES.get(name, "")):
        return chosen
    file = f"lib{name}.so.{_MAJOR.get(name, cuda)}"
    for folder in sys.path:
        # cudnn/lib and cu13/lib; of CUDA 12 one folder per library.
        for path in sorted(Path(folder, "nvidia").glob(f"*/lib/{file}")):
            return str(path)
    own = Path(sys.prefix, "lib", file)
    return str(own) if own.exists() else None


def load(module: Any = None) -> dict[str, dict[str, str]]:
    """Load cuDNN and cuBLASLt; what is loaded already stays. One of them is enough to begin with.

    Args:
        module: takes the place of ``pydlbench._cuda`` in tests.

    Returns:
        Version and path of each library. Rows that need one that is not among them say why.

    Raises:
        BackendMissingError: both are missing or too old; the message names what installs them.
    """
    cuda = module or native_module("_cuda")
    major = str(cuda.built_with()["cuda"]).partition(".")[0]
    # cuDNN asks for this one by name when it compiles a kernel, and finds it once it is loaded.
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
