"""The plans of one case on a GPU with their inputs, on their way to the choice of one."""

from __future__ import annotations

import functools
import math
from typing import TYPE_CHECKING, Any

import pydlbench._cuda as _cuda
from pydlbench.backends import autotune
from pydlbench.backends.native.inputs import RecentInputs
from pydlbench.errors import PrimitiveError, UnsupportedError
from pydlbench.records.measurement import fewer_flops, kernel_name
from pydlbench.verification.verify import (
    FAST_ACCUMULATOR,
    TENSOR_ACCUMULATOR,
    Verdict,
    tolerance,
    verify,
)

if TYPE_CHECKING:
    from collections.abc import Sequence

    from pydlbench.backends.base import Preparation
    from pydlbench.models.passes import StepPass
    from pydlbench.records.specs import KernelSpec


# -----------------------------------------------------------------------------
# From a case to plans and to the device's float64 reference.

# cuDNN's lists for float32 on a card with tensor cores hold next to nothing but TF32: what its
# other engines can do has to be found by trying them.
_SWEPT = ("fp32", "fp16")


def plans(
    device: _cuda.Device, spec: KernelSpec, workspace_bytes: int, thorough: bool = False
) -> list[_cuda.Plan]:
    """List every plan that the libraries and our own kernels have for ``spec``.

    For a convolution these are cuDNN's heuristic lists and its list of fallbacks; off the tensor
    cores, and when ``thorough``, the engines that are on none of them as well.

    Args:
        device: the GPU.
        spec: what is to be computed; its layout restricts the plans.
        workspace_bytes: scratch memory that a plan may ask for at most.
        thorough: leave out nothing.

    Raises:
        UnsupportedError: there is none, or the GPU lacks the precision.
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
        sweep=thorough or spec.precision in _SWEPT,
    )
    if layer.op != "gemm":
        return listed
    # Matrices know the caller's rows and transposed weights, as torch.nn.Linear keeps them.
    wanted = layer.variant or ("plain" if spec.layout in ("nchw", "nhwc") else None)
    return [plan for plan in listed if wanted in (None, plan.variant)]


def reference(spec: KernelSpec) -> _cuda.Reference | None:
    """Return what computes the exact result on the device, or None where only the host can."""
    layer, fused = spec.layer, spec.fuse == "bias-relu"
    return _cuda.reference(layer.kind, native_pass(spec), layer.problem_fields(), fused=fused)


def native_pass(spec: KernelSpec | StepPass) -> str:
    """Return the pass of a case as the native module calls it."""
    return f"forward-{spec.propagation}" if spec.pass_ == "forward" else spec.pass_


# -----------------------------------------------------------------------------
# The plans of one case on a GPU, on their way to the choice of one.

# A sample of a probe lasts so long at least: events tick every half microsecond.
_PROBE_SAMPLE_S = 50e-6
_PROBE_INNER = 64


class _BetweenEvents:
    """A plan made runnable between events, in the spec's cache state."""

    def __init__(self, kernel: _cuda.Kernel, details: dict[str, Any], hot: bool) -> None:
        self._kernel = kernel
        self._details = details
        self._hot = hot
        self._inner = 1

    def seconds(self, samples: int, untimed: int = 0) -> Sequence[float]:
        """Return times; only hot ones may come from several executions in a row."""
        raw = self._kernel.sample(samples, self._inner, untimed)
        self._details["gate_timeouts"] += raw["gate_timeouts"]
        seconds: list[float] = raw["seconds"].tolist()
        if self._hot:
            self._inner = _executions(min(seconds))
        return seconds


class _InGraph:
    """A plan made runnable for the finals as the row will time it: executions as one CUDA graph."""

    def __init__(self, kernel: _cuda.Kernel, details: dict[str, Any]) -> None:
        self._kernel = kernel
        self._details = details
        self._inner = 1
        self._inner = _executions(self.seconds(1)[0])

    def seconds(self, samples: int, untimed: int = 0) -> Sequence[float]:
        """Return a time, of all that samples between events would execute."""
        raw = self._kernel.sample(1, samples * self._inner, untimed)
        self._details["gate_timeouts"] += raw["gate_timeouts"]
        seconds: list[float] = raw["seconds"].tolist()
        return seconds


def _executions(seconds: float) -> int:
    """Return how many executions in a row a sample has."""
    return max(1, min(_PROBE_INNER, math.ceil(_PROBE_SAMPLE_S / max(seconds, 1e-7))))


class CudaAutotuner(autotune.Autotuner):
    """The choice among the plans of one case.

    Args:
        device: the GPU.
        listed: the plans by the native module.
        spec: what is computed.
        preparation: with what inputs, and how thoroughly.
        recent: the inputs of the case before.
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
        self._arena = _cuda.Arena(device, self._inputs)
        self._reference = reference(spec)
        self._graphs = True

    @property
    def timing(self) -> str:
        """How the case is timed in the end."""
        if self._spec.timing != "auto":
            return self._spec.timing
        return "cuda-graph" if self._graphs and self._spec.cache == "hot" else "events"

    @property
    def label(self) -> str:
        """The case's name."""
        return self._spec.label

    def avoid_graphs(self, candidate: autotune.KernelCandidate) -> None:
        """Learn that a plan cannot be captured into a graph.

        Raises:
            UnsupportedError: the case asks for one.
        """
        if self._spec.timing == "cuda-graph":
            raise UnsupportedError(
                f"{candidate.source.library} {candidate.algorithm}, the fastest plan, "
                "cannot be captured into a CUDA graph; --timing events times it"
            )
        self._graphs = False

    def kernel(self, candidate: autotune.KernelCandidate) -> _cuda.Kernel:
        """Return the plan's kernel between events, made when asked for."""
        if candidate.kernel is None:
            candidate.kernel = _cuda.Kernel(
                candidate.source, self._arena, self._spec.cache, "events"
            )
            # A plan is built once; what that took is known to its first kernel.
            if candidate.details["setup_s"] is None:
                candidate.details["setup_s"] = candidate.kernel.build_seconds
        kernel: _cuda.Kernel = candidate.kernel
        return kernel

    def runnable(self, candidate: autotune.KernelCandidate) -> _BetweenEvents:
        """Make a plan runnable."""
        kernel = self.kernel(candidate)
        return _BetweenEvents(kernel, candidate.details, hot=self._spec.cache == "hot")

    def finalist(self, candidate: autotune.KernelCandidate) -> autotune.Runnable:
        """Make a plan runnable as the row times it.

        On an H200 some of cuDNN's plans take a fifth longer in a graph than between events, others
        for the same convolution do not. A plan that no graph captures is timed between events, as
        its row would be, unless the spec asks for graphs.
        """
        if self.timing == "cuda-graph" and self._spec.cache == "hot":
            try:
                kernel = _cuda.Kernel(candidate.source, self._arena, "hot", self.timing)
                return _InGraph(kernel, candidate.details)
            except (PrimitiveError, UnsupportedError) as error:
                if self._spec.timing == "cuda-graph":
                    raise
                candidate.details["notes"].append(f"between events in the finals: {error}")
        return self.runnable(candidate)

    def release_probed(self, candidate: autotune.KernelCandidate, best: float) -> None:  # noqa: ARG002 - in any case
        """Give back the memory of a plan's kernel."""
        candidate.kernel = None

    def late(self) -> list[str]:
        """Say which plans the launch gate did not hide: enqueueing them waited for the GPU."""
        counts = [(each.algorithm, each.details["gate_timeouts"]) for each in self.candidates]
        reasons = [f"{name} ({count})" for name, count in counts if count]
        if not reasons:
            return []
        return [f"samples of the search timed out behind the launch gate: {', '.join(reasons)}"]

    def final(self, chosen: autotune.KernelCandidate) -> _cuda.Kernel:
        """Return a plan's kernel as the row is to time it; what the others held is freed."""
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
        for each in self.candidates:
            each.kernel = None
        self._arena.clear()
        return kernel

    def verify(self, candidate: autotune.KernelCandidate) -> Verdict:
        """Run a plan on poisoned outputs and compare."""
        kernel = self.kernel(candidate)
        kernel.run_poisoned()
        accumulate = accumulator(candidate.source, self._spec.precision)
        if self._reference is not None:
            comparison = kernel.verify(self._reference, self._arena)
            judged = functools.partial(judge, comparison, self._spec.precision, accumulate)
            verdict = judged(candidate.algorithm)
            if verdict.status != "ok" and (fewer := _with_fewer_flops(kernel)):
                verdict = judged(fewer)
                candidate.details["notes"].append(f"runs {fewer}")
            return verdict
        results = kernel.outputs()  # the main one first
        return verify(
            self._spec.layer,
            self._spec.pass_,
            self._spec.precision,
            self._inputs,
            next(iter(results.values())),
            seed=self._preparation.seed,
            accumulate=accumulate,
            algorithm=candidate.algorithm,
            extra=results,
            propagation=self._spec.propagation,
        )


def _with_fewer_flops(kernel: _cuda.Kernel) -> str | None:
    """Return the kernel by whose name a plan is Winograd's or an FFT; None where none is.

    cuDNN does not say it of each of its engines: of engine 17 (9.19), gradients of weights, only
    ``cudnn::winograd_nonfused`` kernels tell.
    """
    return next(filter(fewer_flops, map(kernel_name, launched(kernel))), None)


def launched(kernel: _cuda.Kernel) -> list[dict[str, Any]]:
    """Return what a plan launches; nothing of one that cannot be captured."""
    try:
        return [dict(each) for each in kernel.kernels()]
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
    """Return the name by which a plan is prepared again; see ``Preparation.variant``."""
    return f"{plan.algorithm} {plan.layout}"


def accumulator(plan: _cuda.Plan, precision: str) -> str:
    """Return the format of a plan's partial sums, by the name that the tolerance knows.

    Where the library does not tell whether tensor cores are at work, the mode decides.
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
        comparison: largest error, where it is, and what was never written.
        precision: storage and arithmetic.
        accumulate: format of the partial sums.
        algorithm: the plan's name; Winograd and FFT are allowed more.
    """
    count = comparison["elements"]
    allowed = 0.0
    if comparison["terms"]:
        allowed = tolerance(precision, comparison["terms"], accumulate, algorithm)
    error = comparison["max_error"]
    right = math.isfinite(error) and error <= allowed
    if comparison["unwritten"]:
        right = False
        detail = f"{comparison['unwritten']} of {count} elements never written (NaN)"
    elif comparison["infinite"]:
        right = False
        detail = f"{comparison['infinite']} of {count} elements infinite"
    elif right:
        detail = f"all {count} elements recomputed on the device"
    else:
        place = ", ".join(map(str, comparison["where"]))
        detail = (
            f"element [{place}] is {comparison['got']:.7g}, expected {comparison['expected']:.7g}"
        )
    return Verdict(
        status="ok" if right else "failed",
        rel_error=error if math.isfinite(error) else None,
        tolerance=allowed,
        detail=detail,
        unwritten=comparison["unwritten"],
        points=count,
        checksums=0,
    )
