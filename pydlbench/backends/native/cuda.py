"""The native GPU backend: cuDNN, cuBLASLt and our own kernels through ``pydlbench._cuda``."""

from __future__ import annotations

import math
import os
from typing import TYPE_CHECKING, Any, Protocol

import msgspec
import numpy as np

import pydlbench._cuda as _cuda
from pydlbench.backends.base import (
    KernelFacts,
    Preparation,
    check_all_is_read,
    check_case,
)
from pydlbench.backends.frameworks.device_clock import chunk_of, nvtx_range
from pydlbench.backends.native import cuda_libraries, nvml
from pydlbench.backends.native.cuda_plans import CudaAutotuner, launched, plan_name, plans
from pydlbench.backends.native.inputs import RecentInputs
from pydlbench.backends.native.sustained import Sustained, sustained
from pydlbench.errors import (
    DeviceLostError,
    PrimitiveError,
    PydlbenchError,
    UnsupportedError,
    nearest,
)
from pydlbench.ops.table import build_layer
from pydlbench.records.measurement import Correctness
from pydlbench.records.specs import KernelSpec
from pydlbench.timing.guards import disturbance
from pydlbench.timing.statistics import median
from pydlbench.units import some_names
from pydlbench.verification.inputs import make_inputs
from pydlbench.words import PROFILED_RANGE

if TYPE_CHECKING:
    from pydlbench.backends import autotune
    from pydlbench.timing.chunk import Chunk, Request

#: Variable: the only plan that rows may take.
_PLAN = "PYDLBENCH_PLAN"
_BRIEF = "found by the short search of an estimate; its launches were timed once"
# How often each of the three clocks is read for a row; they are compared, not ranked.
_LAUNCH_REPETITIONS = 20


class _Sample(Protocol):
    def __call__(self, samples: int, inner: int, untimed: int) -> _cuda.RawChunk: ...


class CudaKernel:
    """A kernel on a GPU, ready to be timed.

    Args:
        sample: takes samples.
        facts: what is known of the kernel.
        monitor: reads the GPU meanwhile.
        label: what a profiler calls it.
    """

    def __init__(
        self, sample: _Sample, facts: KernelFacts, monitor: nvml.Monitor, label: str = ""
    ) -> None:
        self._sample = sample
        self._monitor = monitor
        self._label = label
        self.facts = facts

    def sample(self, request: Request) -> Chunk:
        """Time the requested samples; the GIL is released meanwhile.

        What the host does meanwhile is no part of them: a closed gate, or a graph, hides it. A
        profiler shows them as a range of the row's name.
        """
        mark = self._monitor.mark()
        with nvtx_range(self._label):
            raw = self._sample(request.samples, request.inner, request.untimed)
        readings = self._monitor.since(mark)
        return msgspec.structs.replace(
            chunk_of(raw), disturbance=disturbance(readings), gpu=readings
        )


class CudaBackend:
    """One GPU, with the libraries that were found for it."""

    name = "native"

    def __init__(self, index: int) -> None:
        self.device = _cuda.Device(index)
        cuda_libraries.load()
        self._monitor = nvml.Monitor(str(self.device.facts["uuid"]))
        self._inputs = RecentInputs()

    def describe(self) -> dict[str, Any]:
        """Return the GPU's facts, the libraries with their paths, and what NVML tells."""
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
        """Find the fastest right plan; see :class:`~pydlbench.backends.base.Backend`."""
        self._check_support(spec)
        # A profiler is to see one plan: under it a search ends with another one.
        wanted = os.environ.get(_PLAN)
        thorough = preparation.all_candidates or wanted is not None
        listed = plans(self.device, spec, preparation.workspace_bytes, thorough)
        if not listed:
            raise UnsupportedError(f"no plan with --layout {spec.layout}")
        # Searched for and verified in this run: the other visits of a row time the same plan.
        name = wanted if wanted is not None else preparation.variant
        variant = [plan for plan in listed if plan_name(plan) == name]
        if wanted is not None and not variant:
            names = [plan_name(plan) for plan in listed]
            alike = nearest(wanted, names) or names[:1]
            raise UnsupportedError(f"{_PLAN}={wanted}: no such plan; nearest: {some_names(alike)}")
        known = len(variant) == 1 and preparation.verified
        search = CudaAutotuner(self.device, variant or listed, spec, preparation, self._inputs)
        try:
            chosen = search.take() if known else search.tune()
        except (PrimitiveError, UnsupportedError):
            # After a lost device every plan is wrong, for no fault of its own: this says so.
            self.device.synchronize()
            raise
        return self._finish(search, chosen, preparation)

    def probe(self, name: str, arguments: dict[str, Any]) -> dict[str, Any]:
        """Run a GPU probe by name; see :func:`run_probe`.

        What NVML tells meanwhile stands beside the readings, as it does beside samples.
        """
        mark = self._monitor.mark()
        result = run_probe(self.device, name, arguments)
        return {**result, "disturbance": disturbance(self._monitor.since(mark))}

    def _check_support(self, spec: KernelSpec) -> None:
        check_case(spec)
        check_all_is_read(spec.layer)
        if reason := spec.layer.entry.no_gpu:
            raise UnsupportedError(f"{spec.layer.kind}: {reason}; nearest: --device cpu")
        if spec.layout == "blocked":
            raise UnsupportedError("--layout blocked is for CPUs; on a GPU there is: nchw, nhwc")
        if spec.cache == "weights-cold" and not spec.layer.weight_elements:
            raise UnsupportedError(f"{spec.layer.kind} has no weights to keep out of the cache")
        if spec.fuse == "bias":
            raise UnsupportedError("--fuse bias is for frameworks; natively there is: bias-relu")
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
        briefly = known or preparation.brief
        times = search.kernel(chosen).launch_times(1 if briefly else _LAUNCH_REPETITIONS)
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
            steady = sustained(kernel.run_for, self._monitor)
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
                *search.late(),
                *_variables(),
                *([_BRIEF] if preparation.brief and not known else []),
            ],
            launch_s=launch_s,
            kernels=launched(kernel),
            **steady._asdict(),
        )
        return CudaKernel(kernel.sample, facts, self._monitor, search.label)


def _variables() -> list[str]:
    """Say what variables change of a row."""
    notes = []
    if os.environ.get("PYDLBENCH_GATE") == "0":
        notes.append(
            "PYDLBENCH_GATE=0: no launch gate, so the host's time to start kernels is in the time"
        )
    if _PLAN in os.environ:
        notes.append(f"{_PLAN}: no other plan was tried")
    return notes


def create(device: str) -> CudaBackend:
    """Create the backend for ``cuda:N``.

    Raises:
        UnsupportedError: no driver, no such GPU, or launches that wait for the device.
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

# Large enough for every tile shape to fill the card, small enough to be made in half a second.
GEMM_SIZE = 8192
# The library's first candidates; the best of so many is found by one execution each.
_CANDIDATES = 16
_SAMPLES = 15
_WORKSPACE = 1 << 28


def run_probe(device: _cuda.Device, name: str, arguments: dict[str, Any]) -> dict[str, Any]:
    """Run a probe and return its readings: rates in FLOP/s or B/s, clocks in Hz.

    Args:
        device: the GPU.
        name: ``fma_peak``, ``gemm_peak``, ``bandwidth`` or ``launch``.
        arguments: of the probe.

    Raises:
        UnsupportedError: no such probe, or the GPU lacks what it probes.
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
    listed = plans(device, spec, _WORKSPACE)[:_CANDIDATES]
    arena = _cuda.Arena(device, make_inputs(spec.layer, spec.pass_, precision, seed=0))
    best, kernel, reasons = math.inf, None, []
    for plan in listed:
        try:
            tried = _cuda.Kernel(plan, arena, "hot", "events")
            seconds = float(tried.sample(2, 1, 1)["seconds"].min())
        except DeviceLostError:
            raise
        except PydlbenchError as error:
            reasons.append(str(error))
            continue
        if seconds < best:
            best, kernel = seconds, tried
    if kernel is None:
        device.synchronize()  # says so where the device is lost: no fault of the plans
        raise UnsupportedError("; ".join(dict.fromkeys(reasons)) or f"no {precision} product")
    raw = kernel.sample(_SAMPLES, 1, 1)
    seconds_all = raw["seconds"].tolist()
    clocks = raw["clock_hz"].tolist()
    if not clocks:
        raise UnsupportedError(f"no SM clock was read beside the {precision} product")
    # The clock moves with the power that a product draws: the best rate belongs to its own.
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
