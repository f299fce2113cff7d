"""PyTorch as a backend, on the device that is asked for."""

from __future__ import annotations

from pydlbench.backends.torch.layers.base import TorchBackend
from pydlbench.devices.cpu.affinity import process_cpus


def create(device: str) -> TorchBackend:
    """Create the backend for ``cpu`` or ``cuda:N``.

    Raises:
        UnsupportedError: PyTorch sees no such device.
    """
    cpus = process_cpus()
    if device == "cpu":
        return TorchBackend(device, cpus)
    from pydlbench.backends.torch.layers.gpu import TorchCudaBackend

    return TorchCudaBackend(device, cpus)
