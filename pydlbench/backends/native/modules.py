"""Import of the C++ extension modules, with the reason if one is missing."""

from __future__ import annotations

import ctypes
import importlib
from importlib import metadata
from pathlib import Path
from types import ModuleType
from typing import Final

from pydlbench.errors import BackendMissingError

#: Name by which the module's dependency is listed.
_ONEDNN: Final = "libdnnl.so.3"


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
    try:
        return importlib.import_module(f"pydlbench.{name}")
    except ImportError as error:
        if _ONEDNN not in str(error) or not (path := _wheel_library()):
            raise
    ctypes.CDLL(path)
    return importlib.import_module(f"pydlbench.{name}")


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
