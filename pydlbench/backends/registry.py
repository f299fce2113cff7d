"""Backends by name, imported only when a worker asks for one."""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, cast

from pydlbench.backends.native import native_module
from pydlbench.errors import UsageError

if TYPE_CHECKING:
    from pydlbench.backends.base import Backend

__all__ = ["load"]

#: Where each backend's ``create()`` lives, and the native module that it stands on.
_MODULES = {
    ("native", "cpu"): ("pydlbench.backends.native.cpu", "_cpu"),
    ("native", "cuda"): ("pydlbench.backends.native.cuda", "_cuda"),
}


def load(name: str, device: str) -> Backend:
    """Import and create the backend ``name`` for ``device`` (``cpu`` or ``cuda:N``).

    Raises:
        UsageError: no such backend for this device.
        BackendMissingError: it is not installed; the message says why.
    """
    kind = device.partition(":")[0]
    found = _MODULES.get((name, kind))
    if found is None:
        known = ", ".join(sorted(f"{backend} on {where}" for backend, where in _MODULES))
        raise UsageError(f"backend {name} on {device}: no such backend; there is: {known}")
    module, native = found
    native_module(native)
    return cast("Backend", importlib.import_module(module).create(device))
