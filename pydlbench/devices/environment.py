"""The software around a run: versions and the variables that change what libraries do."""

from __future__ import annotations

import os
import platform
from importlib import metadata
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

__all__ = ["read_environment"]

_PACKAGES = ("pydlbench", "numpy", "onednn-cpu-gomp", "pybind11")
_PREFIXES = (
    *("OMP_", "GOMP_", "KMP_", "DNNL_", "ONEDNN_", "MKL_", "OPENBLAS_", "BLIS_"),
    *("MALLOC_", "TCMALLOC_", "MIMALLOC_", "CUDA_", "CUDNN_", "CUBLAS_", "NVIDIA_TF32"),
    *("LD_PRELOAD", "LD_LIBRARY_PATH", "GLIBC_TUNABLES"),
)


def read_environment(
    variables: Mapping[str, str] | None = None,
    packages: Iterable[str] = (),
    prefixes: Iterable[str] = (),
) -> dict[str, Any]:
    """Return the environment for JSON.

    Args:
        variables: the environment variables; those of the process by default. Only ones that
            compute libraries and allocators read are recorded.
        packages: whose versions are recorded besides those of this suite's own libraries.
        prefixes: of further variables to be recorded.
    """
    variables = os.environ if variables is None else variables
    return {
        "python": platform.python_version(),
        "implementation": platform.python_implementation(),
        "os": _system_name(),
        "kernel": f"{platform.system()} {platform.release()}",
        "machine": platform.machine(),
        "packages": _versions((*_PACKAGES, *packages)),
        "build": _build(),
        "variables": {
            name: value
            for name, value in sorted(variables.items())
            if name.startswith((*_PREFIXES, *prefixes))
        },
    }


def _system_name() -> str:
    try:
        return platform.freedesktop_os_release().get("PRETTY_NAME", "Linux")
    except OSError:  # not Linux, or a system without this file
        return platform.platform(terse=True)


def _versions(packages: Iterable[str]) -> dict[str, str]:
    found = {}
    for name in packages:
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
