"""The native backend of a device: the suite's own C++ extension modules."""

from __future__ import annotations

from typing import TYPE_CHECKING

from pydlbench.backends.native.modules import native_module

if TYPE_CHECKING:
    from pydlbench.backends.base import Backend


def create(device: str) -> Backend:
    """Create the backend for ``cpu`` or ``cuda:N``.

    Raises:
        BackendMissingError: its native module, or a library that it needs, is missing.
        UnsupportedError: the device cannot be used.
    """
    if device == "cpu":
        native_module("_cpu")
        from pydlbench.backends.native import cpu

        return cpu.create()
    native_module("_cuda")
    from pydlbench.backends.native import cuda

    return cuda.create(device)
