"""The native GPU backend: cuDNN, cuBLASLt and our own kernels through ``pydlbench._cuda``."""

from __future__ import annotations

import math
import os
import time
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING, Any, Generic, Protocol, TypeVar

import numpy as np

import pydlbench._cuda as _cuda
from pydlbench.backends.base import KernelFacts, Preparation, check_case
from pydlbench.backends.native import cuda_libraries, cuda_probes, nvml
from pydlbench.backends.native.cuda_plans import CudaAutotuner, RecentInputs, plans
from pydlbench.errors import PrimitiveError, UnsupportedError
from pydlbench.records.measurement import Correctness
from pydlbench.timing.chunk import Chunk, Request
from pydlbench.timing.guards import disturbance

if TYPE_CHECKING:
    from pydlbench.backends import autotune
    from pydlbench.backends.native.cuda_chains import CudaChains
    from pydlbench.records.specs import KernelSpec

__all__ = []

Facts = TypeVar("Facts")

# How often each of the three clocks is read for a row; they are compared, not ranked.
_LAUNCH_REPETITIONS = 20
# The card updates its energy counter about every 100 ms, and so ten times in the load behind its
# start, while which graphs are made and the clock finds its place.
_ENERGY_SECONDS = 1.2
_ENERGY_START_SECONDS = 0.2


class _Sample(Protocol):
    def __call__(self, samples: int, inner: int, untimed: int) -> _cuda.RawChunk: ...


class CudaKernel(Generic[Facts]):
    """A kernel on a GPU, or a chain of many, ready to be timed."""

    def __init__(self, sample: _Sample, facts: Facts, monitor: nvml.Monitor) -> None:
        self._sample = sample
        self._monitor = monitor
        self.facts = facts

    def sample(self, request: Request) -> Chunk:
        """Time the requested samples; the GIL is released meanwhile.

        What the host does meanwhile is no part of them: a closed gate, or a graph, hides it.
        """
        mark = self._monitor.mark()
        raw = self._sample(request.samples, request.inner, request.untimed)
        readings = self._monitor.since(mark)
        return Chunk(
            seconds=tuple(raw["seconds"].tolist()),
            clock_hz=tuple(raw["clock_hz"].tolist()),
            wall_s=raw["wall_s"],
            disturbance=disturbance(readings),
            gpu=readings,
            gate_timeouts=raw["gate_timeouts"],
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

    def prepare(self, case: KernelSpec, preparation: Preparation) -> CudaKernel[KernelFacts]:
        """Find the fastest right plan; see :class:`~pydlbench.backends.base.Backend`."""
        self._check_support(case)
        found = plans(self.device, case, preparation.workspace_bytes, preparation.all_candidates)
        if not found:
            raise UnsupportedError(f"no plan with --layout {case.layout}")
        # Searched for and verified in this run: the other visits of a row time the same plan.
        asked = [plan for plan in found if f"{plan.algorithm} {plan.layout}" == preparation.variant]
        known = len(asked) == 1 and preparation.verified
        search = CudaAutotuner(self.device, asked or found, case, preparation, self._inputs)
        try:
            chosen = search.take() if known else search.tune()
        except (PrimitiveError, UnsupportedError):
            # After a lost device every plan is wrong, for no fault of its own: this says so.
            self.device.synchronize()
            raise
        return self._finish(search, chosen, preparation)

    def probe(self, name: str, arguments: dict[str, Any]) -> dict[str, Any]:
        """Run a GPU probe by name; see :mod:`pydlbench.backends.native.cuda_probes`.

        What NVML tells meanwhile stands beside the readings, as it does beside samples.
        """
        mark = self._monitor.mark()
        found = cuda_probes.run(self.device, name, arguments)
        return {**found, "disturbance": disturbance(self._monitor.since(mark))}

    def _check_support(self, case: KernelSpec) -> None:
        check_case(case)
        if case.layer.no_gpu:
            raise UnsupportedError(f"{case.layer.kind}: {case.layer.no_gpu}; nearest: --device cpu")
        if case.layout == "blocked":
            raise UnsupportedError("--layout blocked is for CPUs; on a GPU there is: nchw, nhwc")
        if case.cache == "weights-cold" and not case.layer.weight_elements:
            raise UnsupportedError(f"{case.layer.kind} has no weights to keep out of the cache")
        if case.fuse == "bias":
            raise UnsupportedError("--fuse bias is for frameworks; natively there is: bias-relu")
        if case.fuse != "none" and (
            case.pass_ != "forward" or case.layer.kind not in ("conv2d", "gemm")
        ):
            raise UnsupportedError(
                f"--fuse {case.fuse} is for the forward pass of convolutions and matrix products"
            )

    def _finish(
        self, search: CudaAutotuner, chosen: autotune.Candidate, preparation: Preparation
    ) -> CudaKernel[KernelFacts]:
        plan: _cuda.Plan = chosen.source
        listed = search.listing(chosen)
        known = chosen.verdict is None
        times = search.kernel(chosen).launch_times(1 if known else _LAUNCH_REPETITIONS)
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
        energy_j = power_w = None
        if preparation.energy and not known:
            energy_j, power_w = self._energy(kernel)
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
            notes=[*plan.notes, *search.late()],
            launch_s=launch_s,
            energy_j=energy_j,
            power_w=power_w,
        )
        return self.monitored(kernel.sample, facts)

    def monitored(self, sample: _Sample, facts: Facts) -> CudaKernel[Facts]:
        """Return what the native module has made ready with NVML's readings around its samples.

        Args:
            sample: takes a chunk of samples.
            facts: what is known of what is sampled.
        """
        return CudaKernel(sample, facts, self._monitor)

    def chains(self) -> CudaChains:
        """Return what makes chains of native kernels on this GPU."""
        from pydlbench.backends.native.cuda_chains import CudaChains

        return CudaChains(self)

    def _energy(self, kernel: _cuda.Kernel) -> tuple[float | None, float | None]:
        """Return joules per execution and mean watts, over a second of executions in a row.

        The counter is read beside the executions, from one of its steps to another: from before the
        first one to a step after the last one it would count up to 100 ms of an idle GPU too.
        """
        steps: list[tuple[float, float]] = []
        with ThreadPoolExecutor(max_workers=1) as pool:
            load = pool.submit(kernel.run_for, _ENERGY_SECONDS)
            time.sleep(_ENERGY_START_SECONDS)
            while not load.done():
                joules = self._monitor.energy_j()
                now = time.monotonic()
                if joules is None:
                    break
                if not load.done():
                    steps.append((joules, now))
            try:
                steady = load.result()
            except (PrimitiveError, UnsupportedError):
                return None, None  # the load is a graph, which the plan may not be captured into
        if len(steps) < 2 or not steady["executions"]:
            return None, None
        watts = (steps[-1][0] - steps[0][0]) / (steps[-1][1] - steps[0][1])
        return watts * steady["seconds"] / steady["executions"], watts


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
