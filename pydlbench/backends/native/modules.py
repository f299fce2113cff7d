"""The suite's own C++ extension modules; where one cannot be had, the message says why."""

from __future__ import annotations

import ctypes
import importlib
from importlib import metadata
from pathlib import Path
from typing import TYPE_CHECKING, Final

from pydlbench.errors import BackendMissingError

if TYPE_CHECKING:
    from types import ModuleType

#: As the module asks the loader for it.
_ONEDNN: Final = "libdnnl.so.3"


def native_module(name: str) -> ModuleType:
    """Import ``pydlbench._cpu`` or another native module.

    Raises:
        BackendMissingError: it was not built, or cannot be loaded; the message says why.
    """
    try:
        return _imported(name)
    except ImportError as error:
        raise BackendMissingError(_why_missing(name, error)) from error


def _imported(name: str) -> ModuleType:
    """Import a module; where the loader does not find its oneDNN, load that first.

    The module looks for it where oneDNN's wheel puts it in the same environment. An environment on
    top of another one may have the wheel in that one.

    Raises:
        ImportError: it was not built, or cannot be loaded.
    """
    try:
        return importlib.import_module(f"pydlbench.{name}")
    except ImportError as error:
        if _ONEDNN not in str(error) or not (path := _of_wheel()):
            raise
    ctypes.CDLL(path)
    return importlib.import_module(f"pydlbench.{name}")


def _of_wheel() -> str:
    """Return the library that oneDNN's wheel has installed; empty where there is none."""
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
