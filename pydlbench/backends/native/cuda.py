"""The native GPU backend: cuDNN, cuBLASLt and our own kernels through ``pydlbench._cuda``."""

from __future__ import annotations

import math
import os
from collections.abc import Callable
from typing import Any

import msgspec
import numpy as np

import pydlbench._cuda as _cuda
from pydlbench.backends import autotune
from pydlbench.backends.base import (
    KernelFacts,
    Preparation,
    check_all_is_read,
    check_case,
)
from pydlbench.backends.frameworks.device_clock import chunk_of, nvtx_range
from pydlbench.backends.native import nvml
from pydlbench.backends.native.cuda_plans import (
    CudaAutotuner,
    kernel_list,
    new_arena,
    plan_name,
    plans,
)
from pydlbench.backends.native.inputs import RecentInputs
from pydlbench.backends.native.modules import load_libraries
from pydlbench.backends.native.nvml import Sustained, measure_sustained
from pydlbench.errors import (
    DeviceLostError,
    PrimitiveError,
    PydlbenchError,
    UnsupportedError,
    nearest,
)
from pydlbench.ops.table import build_layer
from pydlbench.records.measurement import Correctness, KernelSpec
from pydlbench.timing.chunk import Chunk, ChunkRequest
from pydlbench.timing.guards import gpu_disturbance
from pydlbench.timing.statistics import median
from pydlbench.units import some_names
from pydlbench.verification.inputs import draw_inputs
from pydlbench.words import PROFILED_RANGE

#: Environment variable with the only plan that rows may use.
_PLAN_VARIABLE = "PYDLBENCH_PLAN"
_BRIEF_NOTE = "found by the short search of an estimate; its launches were timed once"
# Number of launches that each of the three clocks times for a row.
_LAUNCH_REPETITIONS = 20


class CudaKernel:
    """A kernel on a GPU, ready to be timed.

    Args:
        sample: times samples, given the numbers of samples, of executions in each, and of untimed
            executions before them.
        facts: properties of the kernel.
        monitor: reads clocks, power and temperature of the GPU during samples.
        label: name of the range in a profiler.
    """

    def __init__(
        self,
        sample: Callable[[int, int, int], _cuda.RawChunk],
        facts: KernelFacts,
        monitor: nvml.Monitor,
        label: str = "",
    ) -> None:
        self._sample = sample
        self._monitor = monitor
        self._label = label
        self.facts = facts

    def sample(self, request: ChunkRequest) -> Chunk:
        """Time the requested samples; the GIL is released meanwhile.

        A closed gate, or a graph, hides the host's time. A profiler shows the samples as a range.
        """
        mark = self._monitor.mark()
        with nvtx_range(self._label):
            raw = self._sample(request.samples, request.inner, request.untimed)
        readings = self._monitor.since(mark)
        return msgspec.structs.replace(
            chunk_of(raw), disturbance=gpu_disturbance(readings), gpu=readings
        )


class CudaBackend:
    """One GPU, with the libraries that were found for it."""

    name = "native"

    def __init__(self, index: int) -> None:
        self.device = _cuda.Device(index)
        load_libraries()
        self._monitor = nvml.Monitor(str(self.device.facts["uuid"]))
        self._inputs = RecentInputs()

    def describe(self) -> dict[str, Any]:
        """Return the GPU's facts, the libraries with their paths, and NVML's snapshot."""
        return {
            "name": "CUDA",
            "version": _cuda.built_with()["cuda"],
            "device": self.device.facts,
            "libraries": _cuda.libraries(),
            "built_with": _cuda.built_with(),
            "nvml": self._monitor.snapshot(),
            "numpy": np.__version__,
        }

    def prepare(self, spec: KernelSpec, preparation: Preparation) -> CudaKernel:
        """Find the fastest correct plan; see :class:`~pydlbench.backends.base.Backend`."""
        self._check_support(spec)
        # Under a profiler, a search may choose another plan, so the variable can fix it.
        wanted = os.environ.get(_PLAN_VARIABLE)
        thorough = preparation.all_candidates or wanted is not None
        listed = plans(self.device, spec, preparation.workspace_bytes, thorough)
        if not listed:
            raise UnsupportedError(f"no plan with --layout {spec.layout}")
        name = wanted if wanted is not None else preparation.variant
        variant = [plan for plan in listed if plan_name(plan) == name]
        if wanted is not None and not variant:
            names = [plan_name(plan) for plan in listed]
            near = some_names(nearest(wanted, names) or names[:1])
            raise UnsupportedError(f"{_PLAN_VARIABLE}={wanted}: no such plan; nearest: {near}")
        known = len(variant) == 1 and preparation.verified
        search = CudaAutotuner(self.device, variant or listed, spec, preparation, self._inputs)
        try:
            chosen = search.take() if known else search.tune()
        except (PrimitiveError, UnsupportedError):
            # If the device was lost, every plan seems wrong: raise DeviceLostError instead.
            self.device.synchronize()
            raise
        return self._finish(search, chosen, preparation)

    def probe(self, name: str, arguments: dict[str, Any]) -> dict[str, Any]:
        """Run a GPU probe by name, see :func:`run_probe`, with NVML's readings during it."""
        mark = self._monitor.mark()
        result = run_probe(self.device, name, arguments)
        return {**result, "disturbance": gpu_disturbance(self._monitor.since(mark))}

    def _check_support(self, spec: KernelSpec) -> None:
        check_case(spec)
        check_all_is_read(spec.layer)
        if reason := spec.layer.entry.no_gpu:
            raise UnsupportedError(f"{spec.layer.kind}: {reason}; nearest: --device cpu")
        if spec.layout == "blocked":
            raise UnsupportedError("--layout blocked is for CPUs; on a GPU there is: nchw, nhwc")
        if spec.cache == "weights-cold" and not spec.layer.weight_elements:
            raise UnsupportedError(f"{spec.layer.kind} has no weights to keep out of the cache")
        if spec.fuse not in ("none", "bias-relu"):
            raise UnsupportedError(f"--fuse {spec.fuse}: natively on a GPU there is: bias-relu")
        if spec.fuse != "none" and (
            spec.pass_ != "forward" or spec.layer.op not in ("conv", "gemm")
        ):
            raise UnsupportedError(
                f"--fuse {spec.fuse} is for the forward pass of convolutions and matrix products"
            )

    def _finish(
        self, search: CudaAutotuner, chosen: autotune.KernelCandidate, preparation: Preparation
    ) -> CudaKernel:
        plan: _cuda.Plan = chosen.source
        listed = search.listing(chosen)
        known = chosen.verdict is None
        repetitions = 1 if known or preparation.brief else _LAUNCH_REPETITIONS
        times = search.kernel(chosen).launch_times(repetitions)
        launch_s = {
            "event": times["event_s"],
            "graph": times["graph_s"],
            "host": times["wall_s"],
            "enqueue": times["host_s"],
        }
        if math.isnan(times["graph_s"]):
            del launch_s["graph"]
            search.avoid_graphs(chosen)
        kernel = search.final(chosen)
        kernel.run_marked(PROFILED_RANGE)
        steady = Sustained()
        if preparation.energy and not known:
            steady = measure_sustained(kernel.run_for, self._monitor)
        facts = KernelFacts(
            algorithm=plan.algorithm,
            layout=plan.layout,
            library=plan.library,
            accumulate=plan.accumulate,
            workspace_bytes=plan.workspace_bytes,
            reorder_s={},
            setup_s=chosen.details["setup_s"],
            correct=chosen.verdict or Correctness(status="unchecked"),
            candidates=listed,
            timing=search.timing,
            tensor_cores=plan.tensor_cores,
            notes=[
                *chosen.details["notes"],
                *search.timeout_notes(),
                *_variable_notes(),
                *([_BRIEF_NOTE] if preparation.brief and not known else []),
            ],
            launch_s=launch_s,
            kernels=kernel_list(kernel),
            **steady._asdict(),
        )
        return CudaKernel(kernel.sample, facts, self._monitor, search.label)


def _variable_notes() -> list[str]:
    """Return notes on environment variables that change a row."""
    notes = []
    if os.environ.get("PYDLBENCH_GATE") == "0":
        notes.append(
            "PYDLBENCH_GATE=0: no launch gate, so the host's time to start kernels is in the time"
        )
    if _PLAN_VARIABLE in os.environ:
        notes.append(f"{_PLAN_VARIABLE}: no other plan was tried")
    return notes


def create(device: str) -> CudaBackend:
    """Create the backend for ``cuda:N``.

    Raises:
        UnsupportedError: no driver, no such GPU, or launches are blocking.
        BackendMissingError: cuDNN or cuBLASLt is not installed.
    """
    if os.environ.get("CUDA_LAUNCH_BLOCKING", "0") not in ("", "0"):
        raise UnsupportedError(
            "CUDA_LAUNCH_BLOCKING is set: starting a kernel waits for the device, so times would "
            "include the host's; unset it"
        )
    number = device.partition(":")[2]
    return CudaBackend(int(number or 0))


# -----------------------------------------------------------------------------
# The GPU's probes by name: instruction peaks, the best matrix product, bandwidth, launch costs.

# Large enough that every tile shape fills the card, small enough to be generated in half a second.
GEMM_SIZE = 8192
# Number of the library's candidates that are tried by one execution each.
_MAX_CANDIDATES = 16
_SAMPLES = 15
_WORKSPACE_BYTES = 1 << 28


def run_probe(device: _cuda.Device, name: str, arguments: dict[str, Any]) -> dict[str, Any]:
    """Run a probe and return its readings: rates in FLOP/s or B/s, clocks in Hz.

    Args:
        device: the GPU.
        name: ``fma_peak``, ``gemm_peak``, ``bandwidth`` or ``launch``.
        arguments: keyword arguments of the probe.

    Raises:
        UnsupportedError: no such probe, or the GPU does not support it.
    """
    if name == "fma_peak":
        return dict(_cuda.fma_peak(device, **arguments))
    if name == "bandwidth":
        arguments = {"bytes" if key == "size" else key: value for key, value in arguments.items()}
        return dict(_cuda.bandwidth(device, **arguments))
    if name == "launch":
        return dict(_cuda.launch_seconds(device))
    if name == "gemm_peak":
        return _gemm_peak(device, **arguments)
    raise UnsupportedError(
        f"no such probe: {name}; there is: fma_peak, gemm_peak, bandwidth, launch"
    )


def _gemm_peak(device: _cuda.Device, precision: str, size: int = GEMM_SIZE) -> dict[str, Any]:
    """Time the fastest of the library's products of two square matrices with random entries."""
    spec = KernelSpec(
        layer=build_layer("gemm", m=size, k=size, n=size), precision=precision, device="cuda:0"
    )
    listed = plans(device, spec, _WORKSPACE_BYTES)[:_MAX_CANDIDATES]
    arena = new_arena(device, draw_inputs(spec.layer, spec.pass_, precision, seed=0))
    best, kernel, reasons = math.inf, None, []
    for plan in listed:
        try:
            candidate = _cuda.Kernel(plan, arena, "hot", "events")
            seconds = float(candidate.sample(2, 1, 1)["seconds"].min())
        except DeviceLostError:
            raise
        except PydlbenchError as error:
            reasons.append(str(error))
            continue
        if seconds < best:
            best, kernel = seconds, candidate
    if kernel is None:
        device.synchronize()  # raises DeviceLostError if that is the reason
        raise UnsupportedError("; ".join(dict.fromkeys(reasons)) or f"no {precision} product")
    raw = kernel.sample(_SAMPLES, 1, 1)
    seconds_all = raw["seconds"].tolist()
    clocks = raw["clock_hz"].tolist()
    if not clocks:
        raise UnsupportedError(f"no SM clock was read beside the {precision} product")
    # The clock varies with the power draw: pair the best rate with the clock of its sample.
    paired = len(clocks) == len(seconds_all)
    fastest = clocks[seconds_all.index(min(seconds_all))] if paired else median(clocks)
    flops = spec.layer.flops("forward")
    return {
        "per_second": flops / min(seconds_all),
        "median_per_second": flops / median(seconds_all),
        "clock_hz": fastest,
        "median_clock_hz": median(clocks),
        "seconds": sum(seconds_all),
        "rounds": len(seconds_all),
        "kernel": f"{size}x{size}x{size} {kernel.plan.library} {kernel.plan.algorithm}",
    }
