"""Import of the C++ extension modules and CUDA's libraries, with the reason if one is missing."""

import contextlib
import ctypes
import importlib
import os
import sys
from importlib import metadata
from pathlib import Path
from types import ModuleType
from typing import Any, Final

from pydlbench.errors import BackendMissingError, UnsupportedError

#: Name by which the module's dependency is listed.
_ONEDNN: Final = "libdnnl.so.3"
#: Environment variable with the file of another oneDNN of the same C interface.
_VARIABLE: Final = "PYDLBENCH_ONEDNN"
#: ``DNNL_RUNTIME_OMP``: threads are those of OpenMP, whose number and places are set and checked.
_OPENMP: Final = 2
_MAJOR: Final = 3


def native_module(name: str) -> ModuleType:
    """Import ``pydlbench._cpu`` or another native module.

    Raises:
        BackendMissingError: the module is missing or cannot be loaded; the message has the reason.
    """
    try:
        return _import_module(name)
    except ImportError as error:
        raise BackendMissingError(_why_missing(name, error)) from error


def _import_module(name: str) -> ModuleType:
    """Import a module; if the loader does not find oneDNN, load it from its wheel and try again.

    The module's own search path finds the wheel in the same environment only; this also finds one
    in a parent environment.

    Raises:
        ImportError: the module was not built, or cannot be loaded.
    """
    if name == "_cpu" and (named := os.environ.get(_VARIABLE)):
        _load_named(named)
    try:
        return importlib.import_module(f"pydlbench.{name}")
    except ImportError as error:
        if _ONEDNN not in str(error) or not (path := _wheel_library()):
            raise
    ctypes.CDLL(path)
    return importlib.import_module(f"pydlbench.{name}")


class _Version(ctypes.Structure):
    """The struct ``dnnl_version_t`` of oneDNN 3."""

    _fields_ = (
        ("numbers", ctypes.c_int * 3),
        ("hash", ctypes.c_char_p),
        ("cpu_runtime", ctypes.c_uint),
    )


def _load_named(path: str) -> None:
    """Load the oneDNN that the environment names; the module is then linked with it.

    Raises:
        ImportError: it cannot be loaded, or is not a oneDNN 3 whose threads are those of OpenMP.
    """
    try:
        # Its symbols precede those of the installed one: distributions give it other names.
        read_version = ctypes.CDLL(path, ctypes.RTLD_GLOBAL).dnnl_version
        read_version.restype = ctypes.POINTER(_Version)
        version = read_version().contents
        if version.numbers[0] != _MAJOR or version.cpu_runtime != _OPENMP:
            raise OSError("it has another interface, or runs without OpenMP, as builds with SYCL")
    except (OSError, AttributeError) as error:
        raise ImportError(
            f"{_VARIABLE}={path}: {error}; nearest: the {_ONEDNN} of a oneDNN 3 that was built "
            "with ONEDNN_CPU_RUNTIME=OMP"
        ) from error


def _wheel_library() -> str:
    """Return the library of oneDNN's wheel; empty if the wheel is not installed."""
    try:
        files = metadata.files("onednn-cpu-gomp") or ()
    except metadata.PackageNotFoundError:
        return ""
    paths = (Path(str(file.locate())) for file in files if file.name == _ONEDNN)
    return next((str(path) for path in paths if path.exists()), "")


def _why_missing(name: str, error: ImportError) -> str:
    try:
        build = importlib.import_module("pydlbench._build")
    except ImportError:
        return f"pydlbench.{name} is not built: run pip install . in the source tree"
    recorded: str = getattr(build, f"{name.strip('_').upper()}_MISSING", "")
    reason = " ".join(str(error).split())
    advice = "; install it (Debian: libgomp1, Fedora: libgomp)" if "libgomp" in reason else ""
    return recorded or f"pydlbench.{name} cannot be loaded: {reason}{advice}"


# -----------------------------------------------------------------------------
# Find and load cuDNN and cuBLASLt.

# Environment variables that name another copy of a library.
_OVERRIDES = {"cudnn": "PYDLBENCH_CUDNN", "cublasLt": "PYDLBENCH_CUBLASLT"}
# Major versions of libraries whose version differs from CUDA's.
_MAJOR_VERSIONS = {"cudnn": "9"}


def find_library(name: str, cuda: str) -> str | None:
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


# Wheels of cuDNN, each for one version of CUDA, that put their files into the same folder.
_CUDNN_WHEELS = ("nvidia-cudnn-cu12", "nvidia-cudnn-cu13")


def check_single_cudnn() -> None:
    """Check that this environment has a cuDNN for one version of CUDA only.

    Both wheels install into ``nvidia/cudnn``, and the later one replaces files of the other, so
    that one framework would run with a library for the wrong CUDA.

    Raises:
        UnsupportedError: both wheels are installed.
    """
    installed = []
    for name in _CUDNN_WHEELS:
        with contextlib.suppress(metadata.PackageNotFoundError):
            installed.append(f"{name} {metadata.version(name)}")
    if len(installed) > 1:
        raise UnsupportedError(
            f"{' and '.join(installed)} are in one environment: both install into nvidia/cudnn, so "
            "that one of them is damaged; nearest: an environment for each framework, and "
            "pydlbench step --python torch=A/bin/python,tensorflow=B/bin/python"
        )


def load_libraries(module: Any = None) -> dict[str, dict[str, str]]:
    """Load cuDNN and cuBLASLt unless they are loaded; one of them is sufficient.

    Args:
        module: replaces ``pydlbench._cuda`` in tests.

    Returns:
        Version and path of each loaded library. Rows that need a missing one say so.

    Raises:
        BackendMissingError: both are missing or too old.
        UnsupportedError: see :func:`check_single_cudnn`.
    """
    check_single_cudnn()
    cuda = module or native_module("_cuda")
    major = str(cuda.built_with()["cuda"]).partition(".")[0]
    # cuDNN opens NVRTC by name when it compiles a kernel, and so finds a copy that is loaded.
    if nvrtc := find_library("nvrtc", major):
        ctypes.CDLL(nvrtc)
    try:
        cuda.load_libraries(find_library("cudnn", major), find_library("cublasLt", major))
    except UnsupportedError as error:
        if cuda.libraries():
            return dict(cuda.libraries())
        extra, wheels = "cuda", "nvidia-cudnn-cu13 nvidia-cublas"
        if major == "12":
            extra, wheels = "cuda12", "nvidia-cudnn-cu12 nvidia-cublas-cu12"
        raise BackendMissingError(
            f"{error}; pip install '.[{extra}]' installs it (or pip install {wheels})"
        ) from error
    return dict(cuda.libraries())
