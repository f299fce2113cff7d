"""PyTorch as a backend on a GPU: CUDA graphs and events on the device's own clock."""

from __future__ import annotations

import dataclasses
import itertools
import os
import statistics
import time
from typing import TYPE_CHECKING, Any

import torch

from pydlbench.backends import autotune
from pydlbench.backends.frameworks.events import EventClock
from pydlbench.backends.native.nvml import Monitor
from pydlbench.backends.torch.base import TorchBackend
from pydlbench.backends.torch.operator import TorchOperator
from pydlbench.backends.torch.trace import Behind
from pydlbench.backends.verification.verify import TENSOR_ACCUMULATOR
from pydlbench.errors import UnsupportedError

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from pydlbench.backends.base import KernelFacts
    from pydlbench.backends.frameworks.events import GraphRuntime
    from pydlbench.backends.host_clock import HostClock, Operator
    from pydlbench.records.specs import KernelSpec


# -----------------------------------------------------------------------------
# A PyTorch operator on a GPU between events: many calls in a graph, or launched one by one.
#
# In a graph, samples are replays of ``inner`` calls, each between two events; nothing waits for the
# host in between, which is ahead by a whole graph. This is how native hot rows are timed.

_cuda: Any = torch.cuda  # partly without types
# Executions per reading of launch times: a reading is their mean.
_LAUNCHES = 10
# Calls before a capture: cuDNN's benchmark mode and lazy loading must be done with by then.
_WARM_UP = 3
_COPIES = ("memcpy", "memset")
_NAME_LENGTH = 100


class GpuClock(EventClock):
    """Times an operator on a GPU.

    Args:
        operator: what is timed; says whether in a graph.
        runtime: of CUDA.
        monitor: reads clock, power and heat meanwhile.
    """

    def __init__(self, operator: TorchOperator, runtime: GraphRuntime, monitor: Monitor) -> None:
        super().__init__(operator, runtime, monitor, operator.guard)
        self.timing = operator.timing
        self._capture = runtime.capture
        self._graphs: dict[int, Any] = {}

    def seconds(self, samples: int, inner: int, untimed: int) -> list[float]:
        """Return seconds per call, one for each sample of ``inner`` calls."""
        if self.timing == "cuda-graph":
            return self._replays(samples, inner, untimed)
        return super().seconds(samples, inner, untimed)

    def launch_times(self, repetitions: int) -> dict[str, float]:
        """Return seconds per execution by three clocks, and what the host needs to launch one."""
        host, enqueue = [], []
        with self._guard():
            for _ in range(repetitions):
                self._runtime.wait()
                start = self._runtime.now()
                for _ in range(_LAUNCHES):
                    self._call()
                launched = self._runtime.now()
                self._runtime.wait()
                host.append((self._runtime.now() - start) / _LAUNCHES)
                enqueue.append((launched - start) / _LAUNCHES)
            times = {
                "event": super().seconds(repetitions, _LAUNCHES, _LAUNCHES),
                "graph": self._replays(repetitions, _LAUNCHES, _LAUNCHES),
                "host": host,
                "enqueue": enqueue,
            }
        return {name: statistics.median(values) for name, values in times.items()}

    def _replays(self, samples: int, inner: int, untimed: int) -> list[float]:
        graph = self._graph(inner)
        for _ in range(1 + untimed // inner):
            graph.replay()
        events = [self._runtime.record()]
        for _ in range(samples):
            graph.replay()
            events.append(self._runtime.record())
        self._runtime.wait()
        return [self._runtime.between(*pair) / inner for pair in itertools.pairwise(events)]

    def _graph(self, inner: int) -> Any:
        """Return the graph of ``inner`` calls; the last one only is kept, for its memory."""
        if inner not in self._graphs:
            self._graphs.clear()
            self._graphs[inner] = self._capture(self._call, inner)
        return self._graphs[inner]


class Runtime:
    """PyTorch's CUDA runtime on the current device and stream; tests put a fake in."""

    def record(self) -> Any:
        """Put a new event into the stream and return it."""
        event = _cuda.Event(enable_timing=True)
        event.record()
        return event

    def between(self, start: Any, end: Any) -> float:
        """Return the seconds between two events that have passed."""
        return float(start.elapsed_time(end)) / 1e3

    def wait(self) -> None:
        """Return when the device has done everything."""
        _cuda.synchronize()

    def sleep(self, seconds: float) -> None:
        """Keep the stream busy for about so long; the host goes on at once.

        The device counts cycles; at a clock below 2 GHz it sleeps a little longer.
        """
        _cuda._sleep(int(seconds * 2e9))  # noqa: SLF001 - what its own benchmarks use

    def now(self) -> float:
        """Return the host's time in seconds."""
        return time.perf_counter()

    def allocations(self) -> int:
        """Return how often PyTorch has called ``cudaMalloc`` until now."""
        return int(_cuda.memory_stats()["num_device_alloc"])

    def capture(self, call: Callable[[], Any], times: int) -> Any:
        """Capture ``times`` calls; each one's result is dropped at once, as outside of a graph."""
        side = _cuda.Stream()
        side.wait_stream(_cuda.current_stream())
        with _cuda.stream(side):
            for _ in range(_WARM_UP):
                call()
        _cuda.current_stream().wait_stream(side)
        graph = _cuda.CUDAGraph()
        with _cuda.graph(graph):
            for _ in range(times):
                call()
        return graph


def kernel_names(call: Callable[[], Any]) -> list[str]:
    """Return the kernels of one call, the longest-running first.

    Empty where CUPTI is refused, and where ``PYDLBENCH_PROFILER=0`` asks for no profiler, which on
    some drivers ends the process.
    """
    if os.environ.get("PYDLBENCH_PROFILER") == "0":
        return []
    # Else CUPTI stays attached, and slows all later launches of the process (pytorch#144455).
    os.environ.setdefault("TEARDOWN_CUPTI", "1")
    try:
        with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CUDA]) as profile:
            call()
            _cuda.synchronize()
        events = [one for one in profile.events() or () if "CUDA" in str(one.device_type)]
    except RuntimeError:
        return []
    times: dict[str, float] = {}
    for event in events:
        if not event.name.lower().startswith(_COPIES):
            times[event.name] = times.get(event.name, 0.0) + event.device_time_total
    ranked = sorted(times, key=lambda name: -times[name])
    return list(dict.fromkeys(_short(name) for name in ranked))


def _short(name: str) -> str:
    """Strip a demangled name of its result and its template's arguments."""
    return name.removeprefix("void ").partition("<")[0].partition("(")[0][:_NAME_LENGTH]


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

    effort = autotune.GPU_EFFORT

    def __init__(self, device: str, cpus: Sequence[int]) -> None:
        index = int(device.partition(":")[2] or 0)
        _check_gpu(index)
        torch.cuda.set_device(index)
        super().__init__(f"cuda:{index}", cpus)
        self.runtime: GraphRuntime = Runtime()
        self.watcher: Monitor = Monitor(f"GPU-{torch.cuda.get_device_properties(index).uuid}")

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
            "nvml": self.watcher.snapshot(),
        }

    def accumulator(self, accumulate: str, case: KernelSpec) -> str:
        """Return what sums are kept in; what tensor cores sum is judged as such."""
        if case.precision in _TENSOR_CORES and case.layer.weight_elements:
            return TENSOR_ACCUMULATOR
        return super().accumulator(accumulate, case)

    def clock(self, operator: Operator) -> HostClock:
        """Return what times an operator: CUDA events."""
        assert isinstance(operator, TorchOperator)
        return GpuClock(operator, self.runtime, self.watcher)

    def wait(self) -> None:
        """Return when the GPU has done everything that was called."""
        self.runtime.wait()

    def behind(self, operator: TorchOperator, case: KernelSpec) -> Behind:
        """Ask the profiler which kernels one call launches."""
        with operator.guard():
            names = kernel_names(operator.call)
        return Behind(kernels=" + ".join(names) or None, remarks=_remarks(case))

    def completed(self, facts: KernelFacts, operator: Operator, case: KernelSpec) -> KernelFacts:
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


def _remarks(case: KernelSpec) -> tuple[str, ...]:
    """The settings that decide which kernels a GPU gets."""
    found = []
    if case.layer.op == "conv":
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
