"""The plans of one case on a GPU, on their way to the choice of one."""

from __future__ import annotations

import dataclasses
import math
from typing import TYPE_CHECKING, Any

import pydlbench._cuda as _cuda
from pydlbench.backends.native.cuda_inputs import RecentInputs
from pydlbench.backends.native.cuda_problems import reference
from pydlbench.backends.reference import Verdict, verify
from pydlbench.backends.reference.tolerance import TENSOR_ACCUMULATOR, tolerance
from pydlbench.errors import UnsupportedError

if TYPE_CHECKING:
    from collections.abc import Sequence

    from pydlbench.backends.base import Preparation
    from pydlbench.backends.case import Case
    from pydlbench.backends.native import search

__all__ = ["Choice", "judge"]

# A sample of a trial lasts so long at least: events tick every half microsecond.
_TRIAL_SAMPLE_S = 50e-6
_TRIAL_INNER = 64


class _Contender:
    """A plan made runnable for trial and race: between events, in the case's cache state."""

    def __init__(self, kernel: _cuda.Kernel, hot: bool) -> None:
        self._kernel = kernel
        self._hot = hot
        self._inner = 1

    def seconds(self, samples: int, untimed: int = 0) -> Sequence[float]:
        """Return times; only hot ones may come from several executions in a row."""
        raw = self._kernel.sample(samples, self._inner, untimed)
        seconds: list[float] = raw["seconds"].tolist()
        if self._hot:
            best = max(min(seconds), 1e-7)
            self._inner = max(1, min(_TRIAL_INNER, math.ceil(_TRIAL_SAMPLE_S / best)))
        return seconds


class Choice:
    """Inputs, kernels and verdicts of one case."""

    def __init__(
        self,
        device: _cuda.Device,
        case: Case,
        preparation: Preparation,
        recent: RecentInputs | None = None,
    ) -> None:
        self._case = case
        self._preparation = preparation
        self._inputs = (recent or RecentInputs()).of(case, preparation.seed)
        self._arena = _cuda.Arena(device, self._inputs)
        self._reference = reference(device, case)
        self._kernels: dict[int, _cuda.Kernel] = {}
        self._setup_s: dict[int, float] = {}
        self._verdicts: dict[int, Verdict] = {}
        self._graphs = True

    @property
    def timing(self) -> str:
        """How the case is timed in the end."""
        if self._case.timing != "auto":
            return self._case.timing
        return "cuda-graph" if self._graphs and self._case.cache == "hot" else "events"

    def avoid_graphs(self, entrant: search.Entrant) -> None:
        """Learn that a plan cannot be captured into a graph.

        Raises:
            UnsupportedError: the case asks for one.
        """
        if self._case.timing == "cuda-graph":
            raise UnsupportedError(
                f"{entrant.candidate.library} {entrant.candidate.algorithm}, the fastest plan, "
                "cannot be captured into a CUDA graph; --timing events times it"
            )
        self._graphs = False

    def kernel(self, entrant: search.Entrant) -> _cuda.Kernel:
        """Return the plan's kernel for trials and verification, made when first asked for."""
        key = id(entrant)
        if key not in self._kernels:
            kernel = _cuda.Kernel(entrant.candidate, self._arena, self._case.cache, "events")
            self._kernels[key] = kernel
            # A plan is built once; what that took is known to its first kernel.
            self._setup_s.setdefault(key, kernel.build_seconds)
        return self._kernels[key]

    def contender(self, entrant: search.Entrant) -> _Contender:
        """Make a plan runnable."""
        return _Contender(self.kernel(entrant), hot=self._case.cache == "hot")

    def drop(self, entrant: search.Entrant) -> None:
        """Give back the memory of a plan's kernel."""
        self._kernels.pop(id(entrant), None)

    def final(self, entrant: search.Entrant) -> _cuda.Kernel:
        """Return the winner's kernel as the row is to time it; what the others held is freed."""
        if self.timing == "events":
            kernel = self.kernel(entrant)
        else:
            kernel = _cuda.Kernel(
                entrant.candidate,
                self._arena,
                self._case.cache,
                self.timing,
                self._preparation.cold_bytes,
            )
        self._kernels.clear()
        self._arena.clear()
        return kernel

    def setup_s(self, entrant: search.Entrant) -> float:
        """Seconds that building the plan took."""
        return self._setup_s[id(entrant)]

    def verdict(self, entrant: search.Entrant) -> Verdict:
        """The verdict on a plan that was verified."""
        return self._verdicts[id(entrant)]

    def verify(self, entrant: search.Entrant) -> str | None:
        """Run a plan on poisoned outputs and compare; returns what is wrong with it."""
        kernel, plan = self.kernel(entrant), entrant.candidate
        kernel.run_poisoned()
        accumulate = accumulator(plan, self._case.precision)
        if self._reference is not None:
            comparison = kernel.verify(self._reference, self._arena)
            verdict = judge(comparison, self._case.precision, accumulate, plan.algorithm)
        else:
            results = kernel.outputs()  # the main one first
            verdict = verify(
                self._case.layer,
                self._case.pass_,
                self._case.precision,
                self._inputs,
                next(iter(results.values())),
                seed=self._preparation.seed,
                accumulate=accumulate,
                algorithm=plan.algorithm,
                extra=results,
                propagation=self._case.propagation,
            )
        self._verdicts[id(entrant)] = verdict
        return None if verdict.status == "ok" else verdict.detail

    def entry(self, entrant: search.Entrant, chosen: bool) -> dict[str, Any]:
        """Describe a plan for ``--algorithms``, in JSON form."""
        plan: _cuda.Plan = entrant.candidate
        verdict = self._verdicts.get(id(entrant))
        return {
            "algorithm": plan.algorithm,
            "layout": plan.layout,
            "status": entrant.status,
            "reason": entrant.reason,
            "seconds": list(entrant.times),
            "chosen": chosen,
            "workspace_bytes": plan.workspace_bytes,
            "correct": dataclasses.asdict(verdict) if verdict else None,
            "reorder_s": None,
            "library": plan.library,
            "accumulate": plan.accumulate,
            "tensor_cores": plan.tensor_cores,
            "notes": list(plan.notes),
            "setup_s": self._setup_s.get(id(entrant)),
        }


def accumulator(plan: _cuda.Plan, precision: str) -> str:
    """Return the format of a plan's partial sums, by the name that the tolerance knows.

    Where the library does not tell whether tensor cores are at work, the mode decides.
    """
    tensor_cores = plan.tensor_cores
    if tensor_cores is None:
        tensor_cores = precision not in ("fp32", "fp16")
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
