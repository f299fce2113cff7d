"""PyTorch as a backend: the variants of a case, on a CPU and on a GPU.

On a GPU its calls and CUDA graphs run under the native sampler.
"""

import dataclasses
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import torch

from pydlbench.backends import autotune
from pydlbench.backends.base import KernelFacts
from pydlbench.backends.frameworks.backend import (
    FrameworkBackend,
    Variant,
    rename_algorithm,
    resolve_mode,
)
from pydlbench.backends.frameworks.device_clock import (
    CACHES_OF_SAMPLER,
    DeviceClock,
    DeviceWork,
    SampledRuntime,
    StepRuntime,
    sampler_module,
)
from pydlbench.backends.frameworks.shared_kernel import Transfer
from pydlbench.backends.host_clock import HostClock, Operator
from pydlbench.backends.native.modules import check_single_cudnn
from pydlbench.backends.native.nvml import Monitor
from pydlbench.backends.torch import settings
from pydlbench.backends.torch.events import EVENTS_NOTE, EventWork
from pydlbench.backends.torch.layers import user_kernel
from pydlbench.backends.torch.layers.layer_pass import variants_of
from pydlbench.backends.torch.layers.library_kernels import library_kernels
from pydlbench.backends.torch.layers.operator import (
    CompilationSite,
    TensorPlace,
    TorchOperator,
    empty,
)
from pydlbench.backends.torch.steps.profiled import kernel_seconds
from pydlbench.devices.cpu.affinity import process_cpus
from pydlbench.errors import UnsupportedError
from pydlbench.models.user_model import is_user_model
from pydlbench.records.measurement import KernelSpec, kernel_name
from pydlbench.verification.verify import FAST_ACCUMULATOR, TENSOR_ACCUMULATOR

MODES = ("eager", "compiled", "frozen")
FROZEN_NOTE = (
    "frozen: the weights are constants that torch.compile (torch._inductor.config.freezing) packed "
    "beforehand; packing is in no sample, as for native rows"
)


def ways_to_run(
    spec: KernelSpec, device: torch.device, wait: Callable[[], None] = lambda: None
) -> list[Variant]:
    """List the ways to run a case.

    Args:
        spec: what is computed.
        device: device of the tensors.
        wait: returns when the device has done everything that was called.

    Raises:
        UnsupportedError: PyTorch has no such operator, mode or precision here.
    """
    if is_user_model(spec.mode or ""):
        if spec.fuse != "none":
            raise UnsupportedError(f"torch: --fuse {spec.fuse} is for PyTorch's own operators")
        place = TensorPlace(device, settings.DTYPES[spec.precision])
        return user_kernel.variants_of(CompilationSite(spec, place, wait))
    resolve_mode("torch", MODES, spec.mode)
    if spec.on_gpu and spec.fuse not in ("none", "bias"):
        raise UnsupportedError(
            f"torch: --fuse {spec.fuse} is for the native GPU backend so far; nearest: bias"
        )
    if spec.mode == "frozen":
        _check_frozen(spec)
    settings.check_precision(spec.precision, spec.on_gpu)
    place = TensorPlace(device, settings.DTYPES[spec.precision])
    return variants_of(CompilationSite(spec, place, wait))


def _check_frozen(spec: KernelSpec) -> None:
    """Check that a case has constant weights, which the compiler can pack in advance."""
    if spec.on_gpu:
        raise UnsupportedError("torch frozen is for CPUs: on a GPU no weights are packed")
    if spec.pass_ != "forward" or spec.propagation != "inference":
        raise UnsupportedError(
            "torch frozen is for the forward pass of inference: training changes the weights"
        )
    if spec.layer.op not in ("conv", "gemm") or getattr(spec.layer, "batch_count", 1) > 1:
        raise UnsupportedError("torch frozen is for convolutions and products with weights")


class TorchBackend(FrameworkBackend):
    """PyTorch on one device; a GPU has a class of its own.

    Args:
        device: ``cpu`` or ``cuda:N``.
        cpus: logical CPUs that the process is pinned to; one thread for each.
    """

    name = "torch"
    library = f"torch {torch.__version__}"

    def __init__(self, device: str, cpus: Sequence[int]) -> None:
        super().__init__(device, cpus)
        self._place = torch.device(device)
        settings.choose(len(self.cpus))

    def describe(self) -> dict[str, Any]:
        """Return version, threads, settings and the libraries that PyTorch is built with."""
        return {
            "name": self.name,
            "version": torch.__version__,
            "threads": torch.get_num_threads(),
            "settings": settings.in_words(),
            "modes": list(MODES),
            "cpu_capability": torch.backends.cpu.get_cpu_capability(),
            "built_with": _built_with(),
            "numpy": np.__version__,
        }

    def variants(self, spec: KernelSpec) -> list[Variant]:
        """List the ways to run a case; see :class:`FrameworkBackend`."""
        notes = (FROZEN_NOTE,) if spec.mode == "frozen" else ()
        return [
            replace(
                variant,
                accumulate=self.accumulator(variant.accumulate, spec),
                notes=(*variant.notes, *notes),
            )
            for variant in ways_to_run(spec, self._place, self.wait)
        ]

    def transfers(self, operator: Operator) -> list[Transfer]:
        """Return a transfer for each operand of a user's kernel."""
        assert isinstance(operator, TorchOperator)
        return list(map(user_kernel.transfer, operator.operands))

    def empty(self, mode: str | None) -> Operator:
        """Return an operator that computes next to nothing, in a mode.

        Raises:
            UnsupportedError: there is no such mode.
        """
        known = MODES[0] if is_user_model(mode or "") else resolve_mode("torch", MODES, mode)
        return empty(self._place, known, torch.inference_mode, self.wait)

    def clock(self, operator: Operator, cache: str = "hot") -> HostClock:  # noqa: ARG002 - there is one
        """Return the clock of an operator on this device: on a CPU the host's clock."""
        assert isinstance(operator, TorchOperator)
        return HostClock(operator, self.cpus, operator.guard)

    def wait(self) -> None:
        """Return when the device has done everything that was called: on a CPU at once."""

    def accumulator(self, accumulate: str, spec: KernelSpec) -> str:  # noqa: ARG002 - as its base class
        """Return the type of accumulators on this device.

        Args:
            accumulate: type of the accumulators according to the operators.
            spec: what is computed.
        """
        return accumulate

    def complete_facts(
        self, facts: KernelFacts, operator: Operator, spec: KernelSpec
    ) -> KernelFacts:
        """Return the facts with the kernels that oneDNN and MKL ran in the call."""
        assert isinstance(operator, TorchOperator)
        inference = spec.pass_ == "forward" and spec.propagation == "inference"
        seen = library_kernels(operator, threads=len(self.cpus), inference=inference)
        algorithm = f"{facts.algorithm} ({seen.kernels})" if seen.kernels else facts.algorithm
        notes = [*facts.notes, *seen.remarks]
        return rename_algorithm(facts, algorithm, notes=notes, evidence=seen.evidence)


def _built_with() -> list[str]:
    """Return the lines of PyTorch's configuration that name libraries, without compiler flags."""
    lines = (line.strip("- ") for line in torch.__config__.show().splitlines())
    words = ("Math Kernel", "MKL-DNN", "OpenMP", "CUDA Runtime", "CuDNN")
    return [line for line in lines if any(word in line for word in words) and len(line) < 200]


_cuda: Any = torch.cuda  # not fully typed
# Number of calls before a capture, so that cuDNN's benchmark mode and lazy loading are finished.
_WARM_UP = 3


class CapturedGraph:
    """A captured graph as work, with the owner of its memory.

    Args:
        graph: PyTorch's graph, which owns the memory of all calls in it.
        sampler: the native sampler's work for the same graph.
    """

    def __init__(self, graph: Any, sampler: DeviceWork) -> None:
        self._graph = graph
        self.sample, self.launch_times = sampler.sample, sampler.launch_times
        self.run_for, self.kernels = sampler.run_for, sampler.kernels


class TorchRuntime(SampledRuntime):
    """PyTorch's CUDA runtime on a device, which tests replace by a fake."""

    def on_stream(self, stream: int) -> Any:
        """Return PyTorch's context of a stream."""
        return _cuda.stream(_cuda.ExternalStream(stream, device=self._index))

    def graph_work(self, call: Callable[[], Any], times: int) -> DeviceWork:
        """Return a graph of ``times`` calls as work; see :meth:`capture`."""
        graph = self.capture(call, times)
        return CapturedGraph(graph, self._sampler.graph_work(graph.raw_cuda_graph(), times))

    def capture(self, call: Callable[[], Any], times: int) -> Any:
        """Capture ``times`` calls; each result is dropped at once, as outside of a graph.

        A call that cannot be captured leaves PyTorch as it was: its error passes PyTorch's own end
        of the capture, which would otherwise leave the generator of random numbers waiting for the
        end, and later calls in the stream of the capture.
        """
        side = _cuda.Stream()
        side.wait_stream(_cuda.current_stream())
        with _cuda.stream(side):
            for _ in range(_WARM_UP):
                call()
        _cuda.current_stream().wait_stream(side)
        graph = _cuda.CUDAGraph(keep_graph=True)
        generator = _cuda.default_generators[self._index]
        before = generator.clone_state()
        try:
            with _cuda.stream(_cuda.current_stream()), _cuda.graph(graph):
                for _ in range(times):
                    call()
        except Exception:
            generator.graphsafe_set_state(before)
            raise
        self.wait()
        return graph

    def record(self) -> Any:
        """Put a new event into the stream and return it."""
        event = _cuda.Event(enable_timing=True)
        event.record()
        return event

    def between(self, start: Any, end: Any) -> float:
        """Return the seconds between two events that have passed."""
        return float(start.elapsed_time(end)) / 1e3

    def kernel_seconds(
        self, calls: Sequence[tuple[Callable[[], Any], Callable[[], Any]]]
    ) -> Sequence[float]:
        """Return the seconds of each call's kernels, by PyTorch's profiler."""
        return kernel_seconds(self, calls)

    def wait(self) -> None:
        """Return when the device has done everything."""
        _cuda.synchronize()


class EventRuntime(TorchRuntime):
    """PyTorch's CUDA runtime without the native sampler: PyTorch's events are the clock."""

    def call_work(self, call: Callable[[], Any], cache: str = "hot") -> DeviceWork:
        """Return a call as work, with hot caches."""
        assert cache == "hot", "the backend offers no other caches"
        self.wait()
        return EventWork(call)

    def graph_work(self, call: Callable[[], Any], times: int) -> DeviceWork:
        """Return a graph of several calls as work."""
        return EventWork(self.capture(call, times).replay, times)


# Number of repetitions for the launch times of a row, by each clock.
_LAUNCH_REPETITIONS = 20
_TENSOR_CORES = ("tf32", "fp16-tc", "bf16-tc", "fp8-tc")
_FAST = "fp8-tc-fast"
# Names in rows of accumulators with a tolerance of their own; the mode tells fast accumulation.
_ACCUMULATOR_NAMES = {TENSOR_ACCUMULATOR: "float32", FAST_ACCUMULATOR: "float32"}


class TorchCudaBackend(TorchBackend):
    """PyTorch on one GPU.

    Args:
        device: ``cuda:N``.
        cpus: logical CPUs that the process is pinned to.

    Raises:
        UnsupportedError: PyTorch was built without CUDA, or sees no such GPU.
    """

    effort = autotune.GPU_EFFORT
    caches: tuple[str, ...] = CACHES_OF_SAMPLER

    def __init__(self, device: str, cpus: Sequence[int]) -> None:
        index = int(device.partition(":")[2] or 0)
        _check_gpu(index)
        torch.cuda.set_device(index)
        super().__init__(f"cuda:{index}", cpus)
        self.runtime: StepRuntime = TorchRuntime(index)
        try:
            sampler_module()
        except UnsupportedError:  # rows are timed without it, and say so
            self.runtime, self.caches = EventRuntime(index), ("hot",)
        self.watcher: Monitor = Monitor(f"GPU-{torch.cuda.get_device_properties(index).uuid}")

    def describe(self) -> dict[str, Any]:
        """Return the description of the CPU's backend with CUDA, cuDNN and the GPU."""
        properties = torch.cuda.get_device_properties(self._place)
        cudnn: Any = torch.backends.cudnn  # not fully typed
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
                "l2_bytes": properties.L2_cache_size,
                "uuid": f"GPU-{properties.uuid}",
            },
            "nvml": self.watcher.snapshot(),
        }

    def accumulator(self, accumulate: str, spec: KernelSpec) -> str:
        """Return the type of accumulators; the one of tensor cores has its own tolerance."""
        if spec.precision == _FAST:
            return FAST_ACCUMULATOR
        if spec.precision in _TENSOR_CORES and spec.layer.weight_elements:
            return TENSOR_ACCUMULATOR
        return super().accumulator(accumulate, spec)

    def clock(self, operator: Operator, cache: str = "hot") -> DeviceClock:
        """Return the clock of an operator: the native sampler."""
        assert isinstance(operator, TorchOperator)
        return DeviceClock(
            operator, self.runtime, operator.timing, self.watcher, operator.guard, cache
        )

    def wait(self) -> None:
        """Return when the GPU has done everything that was called."""
        self.runtime.wait()

    def complete_facts(
        self, facts: KernelFacts, operator: Operator, spec: KernelSpec
    ) -> KernelFacts:
        """Return the facts with the kernels of a call, by the driver, and its launch times."""
        clock = self.clock(operator, spec.cache)
        kernels = clock.kernels()
        names = " + ".join(dict.fromkeys(kernel_name(kernel) for kernel in kernels))
        algorithm = f"{facts.algorithm} ({names})" if names else facts.algorithm
        lacks = [EVENTS_NOTE] if isinstance(self.runtime, EventRuntime) else []
        facts = rename_algorithm(facts, algorithm, notes=[*facts.notes, *_remarks(spec), *lacks])
        return dataclasses.replace(
            facts,
            timing=clock.timing,
            accumulate=_ACCUMULATOR_NAMES.get(facts.accumulate, facts.accumulate),
            launch_s=clock.launch_times(_LAUNCH_REPETITIONS),
            kernels=kernels,
        )


def _remarks(spec: KernelSpec) -> tuple[str, ...]:
    """Return the settings that decide which kernels a GPU runs."""
    remarks = []
    if spec.layer.op == "conv":
        remarks.append("cudnn.benchmark on, cudnn.deterministic off")
    if spec.precision in ("fp32", "tf32") and spec.layer.weight_elements:
        remarks.append(f"allow_tf32 {'on' if spec.precision == 'tf32' else 'off'}")
    return tuple(remarks)


def _check_gpu(index: int) -> None:
    check_single_cudnn()
    if torch.version.cuda is None:
        raise UnsupportedError(f"torch {torch.__version__} was built without CUDA")
    if not torch.cuda.is_available():
        raise UnsupportedError(f"torch {torch.__version__} sees no GPU")
    if index >= torch.cuda.device_count():
        raise UnsupportedError(
            f"torch sees {torch.cuda.device_count()} GPUs, and cuda:{index} is not among them"
        )


def create(device: str) -> TorchBackend:
    """Create the backend for ``cpu`` or ``cuda:N``.

    Raises:
        UnsupportedError: PyTorch sees no such device.
    """
    cpus = process_cpus()
    return TorchBackend(device, cpus) if device == "cpu" else TorchCudaBackend(device, cpus)
