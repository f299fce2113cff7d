"""The plans of one spec on a GPU, and the choice among them."""

from __future__ import annotations

import functools
import math
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

import pydlbench._cuda as _cuda
from pydlbench.backends import autotune
from pydlbench.backends.base import Preparation
from pydlbench.backends.native.inputs import RecentInputs
from pydlbench.errors import PrimitiveError, UnsupportedError
from pydlbench.records.measurement import KernelSpec, fewer_flops, kernel_name
from pydlbench.verification.checksums import Deviation
from pydlbench.verification.inputs import DrawnInput, UniformTensor, made
from pydlbench.verification.verify import (
    FAST_ACCUMULATOR,
    HOST_POINTS,
    TENSOR_ACCUMULATOR,
    Verdict,
    tolerance,
    verdict_on,
    verify,
)

# -----------------------------------------------------------------------------
# The list of plans, and the device's float64 reference.

# On cards with tensor cores, cuDNN's lists for these precisions contain hardly any plans that do
# not use tensor cores, so all of its engines are tried.
_SWEPT_PRECISIONS = ("fp32", "fp16")


def plans(
    device: _cuda.Device, spec: KernelSpec, workspace_bytes: int, thorough: bool = False
) -> list[_cuda.Plan]:
    """List all plans of the libraries and our own kernels for ``spec``.

    For a convolution these are cuDNN's heuristic and fallback lists; without tensor cores, and if
    ``thorough``, also the engines that are in none of these lists.

    Args:
        device: the GPU.
        spec: the spec; its layout restricts the plans.
        workspace_bytes: maximum size of a plan's workspace.
        thorough: list all engines.

    Raises:
        UnsupportedError: there is no plan, or the GPU lacks the precision.
        PrimitiveError: a library refused the problem.
    """
    layer = spec.layer
    listed = _cuda.plans(
        device,
        layer.kind,
        native_pass(spec),
        spec.precision,
        layer.problem_fields(),
        layout=spec.layout,
        workspace_limit=workspace_bytes,
        fused=spec.fuse == "bias-relu",
        sweep=thorough or spec.precision in _SWEPT_PRECISIONS,
    )
    if layer.op != "gemm":
        return listed
    # Products have plain weights, or transposed weights as in torch.nn.Linear.
    wanted = layer.variant or ("plain" if spec.layout in ("nchw", "nhwc") else None)
    return [plan for plan in listed if wanted in (None, plan.variant)]


def reference(spec: KernelSpec) -> _cuda.Reference | None:
    """Return the device's float64 reference; None if only the host has one."""
    layer, fused = spec.layer, spec.fuse == "bias-relu"
    return _cuda.reference(layer.kind, native_pass(spec), layer.problem_fields(), fused=fused)


def new_arena(device: _cuda.Device, inputs: Mapping[str, DrawnInput]) -> _cuda.Arena:
    """Return an arena of inputs; what is only random is made on the device."""
    drawn = {role: x for role, x in inputs.items() if isinstance(x, UniformTensor)}
    arrays = made({role: x for role, x in inputs.items() if role not in drawn})
    return _cuda.Arena(device, arrays, {role: x.drawn() for role, x in drawn.items()})


def native_pass(spec: KernelSpec) -> str:
    """Return the native module's name of a pass."""
    return f"forward-{spec.propagation}" if spec.pass_ == "forward" else spec.pass_


# -----------------------------------------------------------------------------
# The choice among the plans of one spec.

# Shortest sample of a probe, as events have a resolution of half a microsecond.
_MIN_SAMPLE_S = 50e-6
_MAX_EXECUTIONS = 64


class _TimedPlan:
    """A plan under the clock: between events, or in a CUDA graph of several executions.

    Args:
        kernel: the plan's kernel.
        details: details of the candidate, in which timeouts of the launch gate are counted.
        hot: whether a sample between events may consist of several executions.
        graph: take one sample, the mean of as many executions as samples between events would have,
            as the row will.
    """

    def __init__(
        self, kernel: _cuda.Kernel, details: dict[str, Any], *, hot: bool, graph: bool = False
    ) -> None:
        self._kernel, self._details = kernel, details
        self._hot, self._graph = hot, graph
        self._inner = 1
        if graph:
            self._fit(self.seconds(1))

    def seconds(self, samples: int, untimed: int = 0) -> Sequence[float]:
        """Return times of an execution."""
        counts = (1, samples * self._inner) if self._graph else (samples, self._inner)
        raw = self._kernel.sample(*counts, untimed)
        self._details["gate_timeouts"] += raw["gate_timeouts"]
        seconds: list[float] = raw["seconds"].tolist()
        if self._hot and not self._graph:
            self._fit(seconds)
        return seconds

    def _fit(self, seconds: Sequence[float]) -> None:
        fitting = math.ceil(_MIN_SAMPLE_S / max(min(seconds), 1e-7))
        self._inner = max(1, min(_MAX_EXECUTIONS, fitting))


class CudaAutotuner(autotune.Autotuner):
    """The choice among the plans of one spec.

    Args:
        device: the GPU.
        listed: plans that the native module listed.
        spec: the spec.
        preparation: options of the preparation.
        recent: cached inputs of the previous spec.
    """

    def __init__(
        self,
        device: _cuda.Device,
        listed: Sequence[_cuda.Plan],
        spec: KernelSpec,
        preparation: Preparation,
        recent: RecentInputs | None = None,
    ) -> None:
        super().__init__(
            [_candidate(plan) for plan in listed],
            autotune.GPU_BRIEF_EFFORT if preparation.brief else autotune.GPU_EFFORT,
            thorough=preparation.all_candidates,
        )
        self._spec = spec
        self._preparation = preparation
        self._inputs = (recent or RecentInputs()).inputs(spec, preparation.seed)
        self._arena = new_arena(device, self._inputs)
        self._reference = reference(spec)
        self._graphs = True

    @functools.cached_property
    def _arrays(self) -> dict[str, NDArray[np.float32]]:
        """The inputs on the host, for results that only the host can compare."""
        return made(self._inputs)

    @property
    def timing(self) -> str:
        """Clock of the row's samples."""
        if self._spec.timing != "auto":
            return self._spec.timing
        return "cuda-graph" if self._graphs and self._spec.cache == "hot" else "events"

    @property
    def label(self) -> str:
        """Label of the spec."""
        return self._spec.label

    def avoid_graphs(self, candidate: autotune.KernelCandidate) -> None:
        """Note that a plan cannot be captured into a graph.

        Raises:
            UnsupportedError: the spec requires a graph.
        """
        if self._spec.timing == "cuda-graph":
            raise UnsupportedError(
                f"{candidate.source.library} {candidate.algorithm}, the fastest plan, "
                "cannot be captured into a CUDA graph; --timing events times it"
            )
        self._graphs = False

    def kernel(self, candidate: autotune.KernelCandidate) -> _cuda.Kernel:
        """Return the plan's kernel that is timed between events, and make it if needed."""
        if candidate.kernel is None:
            candidate.kernel = _cuda.Kernel(
                candidate.source, self._arena, self._spec.cache, "events"
            )
            # A plan is built once, by its first kernel.
            if candidate.details["setup_s"] is None:
                candidate.details["setup_s"] = candidate.kernel.build_seconds
        kernel: _cuda.Kernel = candidate.kernel
        return kernel

    def runnable(self, candidate: autotune.KernelCandidate) -> _TimedPlan:
        """Make a plan runnable."""
        kernel = self.kernel(candidate)
        return _TimedPlan(kernel, candidate.details, hot=self._spec.cache == "hot")

    def finalist(self, candidate: autotune.KernelCandidate) -> autotune.Runnable:
        """Make a plan runnable as the row times it.

        On an H200, some of cuDNN's plans take a fifth longer in a graph than between events, and
        others for the same convolution do not. A plan that cannot be captured is timed between
        events, as its row would be, unless the spec requires graphs.
        """
        if self.timing == "cuda-graph" and self._spec.cache == "hot":
            try:
                kernel = _cuda.Kernel(candidate.source, self._arena, "hot", self.timing)
                return _TimedPlan(kernel, candidate.details, hot=True, graph=True)
            except (PrimitiveError, UnsupportedError) as error:
                if self._spec.timing == "cuda-graph":
                    raise
                candidate.details["notes"].append(f"between events in the finals: {error}")
        return self.runnable(candidate)

    def release_probed(self, candidate: autotune.KernelCandidate, best: float) -> None:  # noqa: ARG002 - in any case
        """Free the memory of a plan's kernel."""
        candidate.kernel = None

    def timeout_notes(self) -> list[str]:
        """Return a note on plans whose launches wait for the GPU, so that the gate timed out."""
        counts = [(c.algorithm, c.details["gate_timeouts"]) for c in self.candidates]
        reasons = [f"{name} ({count})" for name, count in counts if count]
        if not reasons:
            return []
        return [f"samples of the search timed out behind the launch gate: {', '.join(reasons)}"]

    def final(self, chosen: autotune.KernelCandidate) -> _cuda.Kernel:
        """Return a plan's kernel as the row times it, and free the memory of all others."""
        if self.timing == "events":
            kernel = self.kernel(chosen)
        else:
            kernel = _cuda.Kernel(
                chosen.source,
                self._arena,
                self._spec.cache,
                self.timing,
                self._preparation.cold_bytes,
            )
        for candidate in self.candidates:
            candidate.kernel = None
        self._arena.clear()
        return kernel

    def verify(self, candidate: autotune.KernelCandidate) -> Verdict:
        """Run a plan on outputs filled with NaN and compare."""
        kernel = self.kernel(candidate)
        kernel.run_poisoned()
        accumulate = accumulator(candidate.source, self._spec.precision)
        if self._reference is not None:
            comparison = kernel.verify(self._reference, self._arena)
            verdict = judge(comparison, self._spec.precision, accumulate, candidate.algorithm)
            # The name of its Winograd or FFT kernel, if it has one.
            name = next(filter(fewer_flops, map(kernel_name, kernel_list(kernel))), None)
            if verdict.status != "ok" and name is not None:
                verdict = judge(comparison, self._spec.precision, accumulate, name)
                candidate.details["notes"].append(f"runs {name}")
            return verdict
        results = kernel.outputs()  # the main one first
        return verify(
            self._spec.layer,
            self._spec.pass_,
            self._spec.precision,
            self._arrays,
            next(iter(results.values())),
            seed=self._preparation.seed,
            accumulate=accumulate,
            algorithm=candidate.algorithm,
            extra=results,
            propagation=self._spec.propagation,
            points=HOST_POINTS,
        )


def kernel_list(kernel: _cuda.Kernel) -> list[dict[str, Any]]:
    """Return the GPU kernels of a plan; empty if it cannot be captured."""
    try:
        return [dict(item) for item in kernel.kernels()]
    except (PrimitiveError, UnsupportedError):
        return []


def _candidate(plan: _cuda.Plan) -> autotune.KernelCandidate:
    return autotune.KernelCandidate(
        plan,
        algorithm=plan.algorithm,
        layout=plan.layout,
        details={
            "workspace_bytes": plan.workspace_bytes,
            "library": plan.library,
            "accumulate": plan.accumulate,
            "tensor_cores": plan.tensor_cores,
            "notes": list(plan.notes),
            "setup_s": None,
            "gate_timeouts": 0,
        },
    )


def plan_name(plan: _cuda.Plan) -> str:
    """Return a plan's name in ``Preparation.variant``."""
    return f"{plan.algorithm} {plan.layout}"


def accumulator(plan: _cuda.Plan, precision: str) -> str:
    """Return the format of a plan's partial sums, as an argument of ``tolerance``.

    If the library does not report the use of tensor cores, it is derived from the precision.
    """
    tensor_cores = plan.tensor_cores
    if tensor_cores is None:
        tensor_cores = precision not in ("fp32", "fp16")
    if precision == "fp8-tc-fast":
        return FAST_ACCUMULATOR
    if tensor_cores and plan.accumulate == "float32":
        return TENSOR_ACCUMULATOR
    return plan.accumulate


def judge(comparison: _cuda.Comparison, precision: str, accumulate: str, algorithm: str) -> Verdict:
    """Turn the device's comparison of all elements into a verdict.

    Args:
        comparison: largest error with its index, and numbers of NaN and infinite elements.
        precision: storage and arithmetic.
        accumulate: format of the partial sums.
        algorithm: the plan's name; Winograd and FFT get a larger tolerance.
    """
    count = comparison["elements"]
    terms = 0 if accumulate == "int32" else comparison["terms"]  # sums of integers are exact
    worst = Deviation(
        error=comparison["max_error"],
        where=f"element [{', '.join(map(str, comparison['where']))}]",
        got=comparison["got"],
        expected=comparison["expected"],
    )
    return verdict_on(
        worst,
        tolerance(precision, terms, accumulate, algorithm) if terms else 0.0,
        elements=f"{count} elements",
        unwritten=comparison["unwritten"],
        infinite=comparison["infinite"],
        right=f"all {count} elements recomputed on the device",
        points=count,
    )
