"""The software around a run: versions and the variables that change what libraries do."""

from __future__ import annotations

import os
import platform
from importlib import metadata
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Mapping

__all__ = ["read_environment"]

_PACKAGES = (
    *("pydlbench", "numpy", "onednn-cpu-gomp", "pybind11"),
    *("torch", "tensorflow", "tensorflow-cpu", "numba", "cupy-cuda13x"),
)
_PREFIXES = (
    *("OMP_", "GOMP_", "KMP_", "DNNL_", "ONEDNN_", "MKL_", "OPENBLAS_", "BLIS_", "NUMBA_"),
    *("MALLOC_", "TCMALLOC_", "MIMALLOC_", "CUDA_", "CUDNN_", "CUBLAS_", "NVIDIA_TF32"),
)
_NAMES = frozenset(
    (
        *("LD_PRELOAD", "LD_LIBRARY_PATH", "GLIBC_TUNABLES", "TF_ENABLE_ONEDNN_OPTS"),
        *("TF_NUM_INTEROP_THREADS", "TF_NUM_INTRAOP_THREADS", "TF_XLA_FLAGS", "XLA_FLAGS"),
        *("TORCH_LOGS", "TORCHINDUCTOR_MAX_AUTOTUNE", "PYTORCH_CUDA_ALLOC_CONF"),
    )
)


def read_environment(variables: Mapping[str, str] | None = None) -> dict[str, Any]:
    """Return the environment for JSON.

    Args:
        variables: the environment variables; those of the process by default. Only ones that
            compute libraries and allocators read are recorded.
    """
    variables = os.environ if variables is None else variables
    return {
        "python": platform.python_version(),
        "implementation": platform.python_implementation(),
        "os": _system_name(),
        "kernel": f"{platform.system()} {platform.release()}",
        "machine": platform.machine(),
        "packages": _packages(),
        "build": _build(),
        "variables": {
            name: value
            for name, value in sorted(variables.items())
            if name in _NAMES or name.startswith(_PREFIXES)
        },
    }


def _system_name() -> str:
    try:
        return platform.freedesktop_os_release().get("PRETTY_NAME", "Linux")
    except OSError:  # not Linux, or a system without this file
        return platform.platform(terse=True)


def _packages() -> dict[str, str]:
    found = {}
    for name in _PACKAGES:
        try:
            found[name] = metadata.version(name)
        except metadata.PackageNotFoundError:
            continue
    return found


def _build() -> dict[str, str]:
    """How the native modules were built; empty in a source tree that was never built."""
    import importlib

    try:
        module = importlib.import_module("pydlbench._build")
    except ImportError:
        return {}
    return {
        name.lower(): value
        for name in ("COMPILER", "FLAGS", "BUILD_TYPE", "ONEDNN_VERSION")
        if isinstance(value := getattr(module, name, None), str)
    }
