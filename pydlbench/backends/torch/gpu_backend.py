"""PyTorch as a backend on a GPU: CUDA graphs and events on the device's own clock."""

from __future__ import annotations

import dataclasses
from typing import TYPE_CHECKING, Any

import torch

from pydlbench.backends.native import search
from pydlbench.backends.native.nvml import Monitor
from pydlbench.backends.reference.tolerance import TENSOR_ACCUMULATOR
from pydlbench.backends.torch.backend import Behind, TorchBackend
from pydlbench.backends.torch.gpu_clock import GpuClock
from pydlbench.backends.torch.gpu_runtime import Runtime, kernel_names
from pydlbench.backends.torch.operator import TorchOperator
from pydlbench.errors import UnsupportedError

if TYPE_CHECKING:
    from collections.abc import Sequence

    from pydlbench.backends.base import KernelFacts
    from pydlbench.backends.case import Case
    from pydlbench.backends.frameworks.kernel import HostClock
    from pydlbench.backends.frameworks.operator import Operator
    from pydlbench.backends.torch.recipe import Recipe

__all__ = ["TorchCudaBackend"]

# How often each clock is read for a row; they are compared, not ranked.
_LAUNCH_REPETITIONS = 20
_TENSOR_CORES = ("tf32", "fp16-tc", "bf16-tc", "fp8-tc")


class TorchCudaBackend(TorchBackend):
    """PyTorch on one GPU.

    Args:
        device: ``cuda:N``.
        cpus: logical CPUs that the process is pinned to.

    Raises:
        UnsupportedError: PyTorch was built without CUDA, or sees no such GPU.
    """

    effort = search.GPU_EFFORT

    def __init__(self, device: str, cpus: Sequence[int]) -> None:
        index = int(device.partition(":")[2] or 0)
        _check_gpu(index)
        torch.cuda.set_device(index)
        super().__init__(f"cuda:{index}", cpus)
        self._runtime = Runtime()
        self._monitor = Monitor(f"GPU-{torch.cuda.get_device_properties(index).uuid}")

    def describe(self) -> dict[str, Any]:
        """Return what the CPU's backend does, and CUDA, cuDNN and the GPU as PyTorch sees them."""
        properties = torch.cuda.get_device_properties(self._place)
        cudnn: Any = torch.backends.cudnn  # partly without types
        return {
            **super().describe(),
            "cuda": torch.version.cuda,
            "cudnn": cudnn.version(),
            "cudnn.benchmark_limit": cudnn.benchmark_limit,
            "device": {
                "name": properties.name,
                "capability": f"{properties.major}.{properties.minor}",
                "multiprocessors": properties.multi_processor_count,
                "memory_bytes": properties.total_memory,
            },
            "nvml": self._monitor.snapshot(),
        }

    def accumulator(self, recipe: Recipe, case: Case) -> str:
        """Return what sums are kept in; what tensor cores sum is judged as such."""
        if case.precision in _TENSOR_CORES and case.layer.weight_elements:
            return TENSOR_ACCUMULATOR
        return super().accumulator(recipe, case)

    def clock(self, operator: Operator) -> HostClock:
        """Return what times an operator: CUDA events."""
        assert isinstance(operator, TorchOperator)
        return GpuClock(operator, self._runtime, self._monitor)

    def wait(self) -> None:
        """Return when the GPU has done everything that was called."""
        self._runtime.wait()

    def behind(self, operator: TorchOperator, case: Case) -> Behind:
        """Ask the profiler which kernels one call launches."""
        with operator.guard():
            names = kernel_names(operator.call)
        return Behind(kernels=" + ".join(names) or None, remarks=_remarks(case))

    def completed(self, facts: KernelFacts, operator: Operator, case: Case) -> KernelFacts:
        """Return the facts with the kernels behind the call, and what launching it costs."""
        facts = super().completed(facts, operator, case)
        clock = self.clock(operator)
        assert isinstance(clock, GpuClock)
        return dataclasses.replace(
            facts,
            timing=clock.timing,
            accumulate=facts.accumulate.removesuffix("-tensor"),
            launch_s=clock.launch_times(_LAUNCH_REPETITIONS),
        )


def _remarks(case: Case) -> tuple[str, ...]:
    """The settings that decide which kernels a GPU gets."""
    found = []
    if case.layer.kind == "conv2d":
        found.append("cudnn.benchmark on, cudnn.deterministic off")
    if case.precision in ("fp32", "tf32") and case.layer.weight_elements:
        found.append(f"allow_tf32 {'on' if case.precision == 'tf32' else 'off'}")
    return tuple(found)


def _check_gpu(index: int) -> None:
    if torch.version.cuda is None:
        raise UnsupportedError(f"torch {torch.__version__} was built without CUDA")
    if not torch.cuda.is_available():
        raise UnsupportedError(f"torch {torch.__version__} sees no GPU")
    if index >= torch.cuda.device_count():
        raise UnsupportedError(
            f"torch sees {torch.cuda.device_count()} GPUs, and cuda:{index} is not among them"
        )
