"""Backends by name, imported only when a worker asks for one."""

from __future__ import annotations

import importlib
import importlib.util
from typing import TYPE_CHECKING, Any, cast

from pydlbench.backends.native import native_module
from pydlbench.backends.offers import offer
from pydlbench.backends.own_cpus import remember
from pydlbench.errors import BackendMissingError, UsageError

if TYPE_CHECKING:
    from pydlbench.backends.base import Backend, Kernel

__all__ = ["load", "prepare_step"]

#: Where each backend's ``create()`` lives, and the native module that it stands on.
_MODULES: dict[tuple[str, str], tuple[str, str | None]] = {
    ("native", "cpu"): ("pydlbench.backends.native.cpu", "_cpu"),
    ("native", "cuda"): ("pydlbench.backends.native.cuda", "_cuda"),
    ("torch", "cpu"): ("pydlbench.backends.torch.backend", None),
    ("torch", "cuda"): ("pydlbench.backends.torch.backend", None),
    ("tensorflow", "cpu"): ("pydlbench.backends.tensorflow.backend", None),
    ("tensorflow", "cuda"): ("pydlbench.backends.tensorflow.backend", None),
    ("cupy", "cpu"): ("pydlbench.backends.cupy.backend", None),
    ("cupy", "cuda"): ("pydlbench.backends.cupy.backend", None),
    ("numba", "cpu"): ("pydlbench.backends.numba.backend", None),
    ("numba", "cuda"): ("pydlbench.backends.numba.backend", None),
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
    remember()
    module, native = found
    if native is not None:
        native_module(native)
    elif importlib.util.find_spec(name) is None:
        raise BackendMissingError(f"{name} is not installed; get it with: {offer(name).install}")
    try:
        imported = importlib.import_module(module)
    except ImportError as error:
        text = " ".join(str(error).split())
        raise BackendMissingError(f"{name} cannot be imported: {text}") from error
    return cast("Backend", imported.create(device))


def prepare_step(backend: Backend, case: dict[str, Any], preparation: dict[str, Any]) -> Kernel:
    """Make a whole model's step ready in this process; raises what ``Backend.prepare`` raises.

    What builds steps stands above backends and workers, so it is found by name, as backends are.

    Args:
        backend: of this process.
        case: a ``pydlbench.endtoend.StepCase`` in its JSON form.
        preparation: a ``StepPreparation`` likewise.
    """
    serving = importlib.import_module("pydlbench.endtoend.serving")
    return cast("Kernel", serving.prepare(backend, case, preparation))
