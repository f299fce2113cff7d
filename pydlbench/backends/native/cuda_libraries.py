"""Which copies of cuDNN and cuBLASLt a GPU is measured with.

The native module is linked to neither. Their wheels are found by cuda-pathfinder, where PyTorch
finds them too: in one environment both run on the same copy. Every result names the file that was
loaded.
"""

from __future__ import annotations

import importlib
import os
from typing import Any

from pydlbench.backends.native.modules import native_module
from pydlbench.errors import BackendMissingError, UnsupportedError

# A file named here is taken as it is; for another copy than the environment's.
_OVERRIDES = {"cudnn": "PYDLBENCH_CUDNN", "cublasLt": "PYDLBENCH_CUBLASLT"}


def find(name: str) -> str | None:
    """Return the file of an NVIDIA library.

    Args:
        name: as cuda-pathfinder knows it: ``cudnn``, ``cublasLt``, ``nvrtc``.

    Returns:
        The file, or None where it is left to the system's loader: cuda-pathfinder is not installed,
        or finds none.
    """
    if chosen := os.environ.get(_OVERRIDES.get(name, "")):
        return chosen
    try:
        pathfinder = importlib.import_module("cuda.pathfinder")
    except ImportError:
        return None
    try:
        path = pathfinder.load_nvidia_dynamic_lib(name).abs_path
    except RuntimeError:  # the base class of all that it raises
        return None
    return None if path is None else str(path)


def load(module: Any = None) -> dict[str, dict[str, str]]:
    """Load cuDNN and cuBLASLt; what is loaded already stays.

    Args:
        module: takes the place of ``pydlbench._cuda`` in tests.

    Returns:
        Version and path of each library.

    Raises:
        BackendMissingError: a library is missing or too old; the message names what installs it.
    """
    cuda = module or native_module("_cuda")
    cudnn, cublaslt = find("cudnn"), find("cublasLt")
    # cuDNN asks for this one by name when it compiles a kernel, and finds it once it is loaded.
    find("nvrtc")
    try:
        cuda.load_libraries(cudnn, cublaslt)
    except UnsupportedError as error:
        major = str(cuda.built_with()["cuda"]).partition(".")[0]
        extra, wheels = "cuda", "nvidia-cudnn-cu13 nvidia-cublas cuda-pathfinder"
        if major == "12":
            extra, wheels = "cuda12", "nvidia-cudnn-cu12 nvidia-cublas-cu12 cuda-pathfinder"
        raise BackendMissingError(
            f"{error}; pip install '.[{extra}]' installs it (or pip install {wheels})"
        ) from error
    libraries: dict[str, dict[str, str]] = cuda.libraries()
    return libraries
