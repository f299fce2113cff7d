"""PyTorch on the CPU of this machine, and a GPU that is none."""

from __future__ import annotations

import importlib.util
import os
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import pytest

if TYPE_CHECKING:
    from collections.abc import Callable

# The modules under test import PyTorch at their top.
collect_ignore_glob = [] if importlib.util.find_spec("torch") else ["test_*.py"]


@pytest.fixture(scope="session")
def backend():
    """The backend on the CPU."""
    from pydlbench.backends.torch.backend import create

    return create("cpu")


class FakeRuntime:
    """A device on which one call takes 2 ms, under a sampler that writes down what it runs."""

    def __init__(self) -> None:
        self.log: list[str] = []

    def wait(self) -> None:
        self.log.append("wait")

    def launched(self) -> None:
        self.log.append("call")

    def call_work(self, call: Callable[[], Any], cache: str) -> Any:
        return self._work(call, "events" if cache == "hot" else cache)

    def graph_work(self, call: Callable[[], Any], times: int) -> Any:
        self.log.append(f"capture {times}")
        return self._work(call, "graph")

    def _work(self, call: Callable[[], Any], how: str) -> Any:
        import numpy as np

        def sample(samples: int, inner: int, untimed: int) -> dict[str, Any]:
            self.log.append(f"{how} {samples} x {inner} after {untimed}")
            call()
            return {
                "seconds": np.full(samples, 2e-3),
                "clock_hz": np.array([1.9e9]),
                "enqueue_s": np.full(samples, 10e-6),
                "wall_s": 2e-3 * samples * inner,
                "gate_timeouts": 1,
            }

        def launch_times(_: int) -> dict[str, float]:
            return {"event_s": 2e-3, "wall_s": 3e-3, "host_s": 10e-6}

        def run_for(seconds: float) -> dict[str, Any]:
            self.log.append(f"{how} for {seconds} s")
            call()
            return {"executions": 400, "seconds": 1.0}

        return SimpleNamespace(
            sample=sample,
            launch_times=launch_times,
            run_for=run_for,
            kernels=lambda: [{"name": "pad"}, {"name": "sm90_xmma_fprop"}] * 10,
        )


class FakeMonitor:
    """NVML that has nothing to tell."""

    def mark(self) -> float:
        return 0.0

    def since(self, mark: float) -> None:
        assert mark == 0.0

    def energy_j(self) -> None:
        return None

    def snapshot(self) -> dict[str, Any]:
        return {"reason": "invented"}


@pytest.fixture
def runtime():
    """A CUDA runtime without CUDA."""
    return FakeRuntime()


@pytest.fixture
def monitor():
    """No NVML."""
    return FakeMonitor()


@pytest.fixture
def gpu_backend(runtime, monitor):
    """The GPU's backend, whose tensors live on the CPU and whose time is invented."""
    import torch

    from pydlbench.backends.torch import backend as gpu_backend
    from pydlbench.backends.torch.backend import TorchBackend

    made = gpu_backend.TorchCudaBackend.__new__(gpu_backend.TorchCudaBackend)
    TorchBackend.__init__(made, "cuda:0", sorted(os.sched_getaffinity(0)))
    made._place = torch.device("cpu")
    made.runtime = runtime
    made.watcher = monitor
    return made


@pytest.fixture
def odd():
    """What makes a training step of a network with what is hard to record, run once."""
    import odd_network

    return odd_network.make
