"""Numba as a backend on a GPU."""

from __future__ import annotations

import dataclasses
from typing import TYPE_CHECKING, Any

import numba
import numpy as np

from pydlbench.backends.frameworks.backend import FrameworkBackend
from pydlbench.backends.frameworks.events import EventClock
from pydlbench.backends.native.nvml import Monitor
from pydlbench.backends.numba.backend import check_common
from pydlbench.backends.numba.cuda.build import device_variants
from pydlbench.backends.numba.cuda.language import cuda, kernel
from pydlbench.backends.numba.cuda.operator import DeviceOperator
from pydlbench.backends.numba.cuda.runtime import Runtime
from pydlbench.errors import UnsupportedError

if TYPE_CHECKING:
    from collections.abc import Sequence

    from numpy.typing import NDArray

    from pydlbench.backends.base import KernelFacts
    from pydlbench.backends.frameworks.backend import HostClock, Operator, Variant
    from pydlbench.records.specs import Case

__all__ = ["NumbaCudaBackend"]


@kernel
def _nothing(y: NDArray[np.float32]) -> None:
    """Do next to nothing."""
    y[0] = 0


class NumbaCudaBackend(FrameworkBackend):
    """Numba on one GPU.

    Args:
        device: ``cuda:N``.
        cpus: logical CPUs that the process is pinned to.

    Raises:
        UnsupportedError: Numba finds no driver, or no such GPU.
    """

    name = "numba"

    def __init__(self, device: str, cpus: Sequence[int]) -> None:
        super().__init__(device, cpus)
        self.library = f"Numba {numba.__version__}"
        if not cuda.is_available():
            reason = " ".join(str(cuda.cuda_error() or "it finds no CUDA toolkit").split())
            raise UnsupportedError(f"numba cannot use an NVIDIA GPU here: {reason}")
        index = int(device.partition(":")[2] or 0)
        if index >= len(cuda.list_devices()):
            count = len(cuda.list_devices())
            raise UnsupportedError(f"numba sees {count} GPUs, and {device} is not among them")
        cuda.select_device(index)
        self._stream = cuda.stream()
        self._runtime = Runtime(self._stream)
        self._monitor = Monitor(str(cuda.current_context().device.uuid))

    def describe(self) -> dict[str, Any]:
        """Return versions and the GPU as Numba sees it."""
        device = cuda.current_context().device
        return {
            "name": "Numba",
            "version": numba.__version__,
            "numpy": np.__version__,
            "target": getattr(cuda, "implementation", "built in"),
            "capability": ".".join(str(part) for part in device.compute_capability),
            "nvml": self._monitor.snapshot(),
        }

    def variants(self, case: Case) -> list[Variant]:
        """List the ways to run a case; see the base class."""
        if case.precision != "fp32":
            raise UnsupportedError(f"numba has kernels for fp32 only, not for {case.precision}")
        check_common(case)
        if case.timing == "cuda-graph":
            raise UnsupportedError("numba cannot capture CUDA graphs: ask for --timing events")
        found = device_variants(case, self._stream)
        if not found:
            raise UnsupportedError("numba: memory-bound layers come with whole models")
        return found

    def empty(self, mode: str | None) -> Operator:  # noqa: ARG002 - there is one way to call
        """Return a kernel of one thread."""
        results: list[tuple[tuple[int, ...], type[np.generic]]] = [((1,), np.float32)]
        return DeviceOperator(
            _nothing, (1, 1), (), results, "dst", lambda result: result, self._stream
        )

    def clock(self, operator: Operator) -> HostClock:
        """Return what times an operator: events."""
        return EventClock(operator, self._runtime, self._monitor)

    def completed(self, facts: KernelFacts, operator: Operator, case: Case) -> KernelFacts:
        """Return the facts with how its time is taken."""
        facts = super().completed(facts, operator, case)
        return dataclasses.replace(facts, timing=EventClock.timing)
