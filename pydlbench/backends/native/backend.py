"""The native backend of a device: the suite's own C++ extension modules."""

from pydlbench.backends.base import Backend
from pydlbench.backends.native.modules import native_module


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
