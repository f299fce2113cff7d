"""The suite's own C++ extension modules; where one was not built, the message says why."""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING

from pydlbench.errors import BackendMissingError

if TYPE_CHECKING:
    from types import ModuleType


def native_module(name: str) -> ModuleType:
    """Import ``pydlbench._cpu`` or another native module.

    Raises:
        BackendMissingError: it was not built, or cannot be loaded; the message says why.
    """
    try:
        return importlib.import_module(f"pydlbench.{name}")
    except ImportError as error:
        raise BackendMissingError(_why_missing(name, error)) from error


def _why_missing(name: str, error: ImportError) -> str:
    try:
        build = importlib.import_module("pydlbench._build")
    except ImportError:
        return f"pydlbench.{name} is not built: run pip install . in the source tree"
    recorded: str = getattr(build, f"{name.strip('_').upper()}_MISSING", "")
    return recorded or f"pydlbench.{name} cannot be loaded: {' '.join(str(error).split())}"
