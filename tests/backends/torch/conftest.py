"""PyTorch on the CPU of this machine, and a GPU that is none."""

from __future__ import annotations

import importlib.util
import os
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
    """A device on which one call takes 2 ms, one replay 2 ms per call, and a clock of its own."""

    def __init__(self) -> None:
        self.log: list[str] = []
        self.device_s = 0.0
        self.host_s = 0.0
        self.event_s = 0.0  # what an event itself takes; nothing real runs on this device

    def record(self) -> float:
        self.log.append("event")
        self.device_s += self.event_s
        return self.device_s

    def between(self, start: float, end: float) -> float:
        return end - start

    def wait(self) -> None:
        self.log.append("wait")
        self.host_s = max(self.host_s, self.device_s)

    def sleep(self, seconds: float) -> None:
        self.log.append("sleep")
        self.device_s += seconds

    def now(self) -> float:
        return self.host_s

    def launched(self) -> None:
        """What a call does to the clocks: the host is done in 10 us, the device in 2 ms."""
        self.log.append("call")
        self.host_s += 10e-6
        self.device_s += 2e-3

    def capture(self, call: Callable[[], Any], times: int) -> Any:
        runtime = self
        runtime.log.append(f"capture {times}")
        call()

        class Graph:
            def replay(self) -> None:
                runtime.log.append("replay")
                runtime.device_s += 2e-3 * times

        return Graph()


class FakeMonitor:
    """NVML that has nothing to tell."""

    def mark(self) -> float:
        return 0.0

    def since(self, mark: float) -> None:
        assert mark == 0.0

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
def gpu_backend(runtime, monitor, monkeypatch):
    """The GPU's backend, whose tensors live on the CPU and whose time is invented."""
    import torch

    from pydlbench.backends.torch import gpu as gpu_backend
    from pydlbench.backends.torch.base import TorchBackend

    monkeypatch.setattr(gpu_backend, "kernel_names", lambda _: ["sm90_xmma_fprop"])
    made = gpu_backend.TorchCudaBackend.__new__(gpu_backend.TorchCudaBackend)
    TorchBackend.__init__(made, "cuda:0", sorted(os.sched_getaffinity(0)))
    made._place = torch.device("cpu")
    runtime.event_s = 1e-3
    made.runtime = runtime
    made.watcher = monitor
    return made


@pytest.fixture
def odd():
    """What makes a training step of a network with what is hard to record, run once."""
    import odd_network

    return odd_network.make
