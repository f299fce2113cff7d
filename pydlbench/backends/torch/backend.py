"""PyTorch as a backend: its operators on the CPU."""

from __future__ import annotations

from typing import TYPE_CHECKING

from pydlbench.backends.host_clock import HostClock
from pydlbench.backends.torch.base import TorchBackend
from pydlbench.backends.torch.operator import TorchOperator
from pydlbench.backends.torch.trace import Behind, behind_on_cpu
from pydlbench.devices.cpu.affinity import own_cpus

if TYPE_CHECKING:
    from pydlbench.backends.host_clock import Operator
    from pydlbench.records.specs import KernelSpec


class TorchCpuBackend(TorchBackend):
    """PyTorch on the CPUs that this process may use."""

    def clock(self, operator: Operator) -> HostClock:
        """Return what times an operator: the host's clock."""
        assert isinstance(operator, TorchOperator)
        return HostClock(operator, self.cpus, operator.guard)

    def wait(self) -> None:
        """Return at once: a call returns when it is done."""

    def behind(self, operator: TorchOperator, case: KernelSpec) -> Behind:
        """Ask oneDNN and MKL what they did in a call."""
        inference = case.pass_ == "forward" and case.propagation == "inference"
        return behind_on_cpu(operator, threads=len(self.cpus), inference=inference)


def create(device: str) -> TorchBackend:
    """Create the backend for ``cpu`` or ``cuda:N``.

    Raises:
        UnsupportedError: PyTorch sees no such device.
    """
    cpus = own_cpus()
    if device == "cpu":
        return TorchCpuBackend(device, cpus)
    from pydlbench.backends.torch.gpu import TorchCudaBackend

    return TorchCudaBackend(device, cpus)
