"""How long a sweep will take, as an interval, before any of it has run.

The time of one execution comes from an earlier measurement of the same problem on the same machine
where there is one, else from FLOPs and bytes over what the hardware could do at best. What lies
around it (workers that start, kernels that are searched, results that are verified) has constants
here, whose ends lie so far apart because they were seen to.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from pydlbench.backends import capabilities

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping, Sequence

    from pydlbench.records.specs import KernelSpec
    from pydlbench.runner.sweep import Job

__all__ = ["Forecast", "Key", "Limits", "Span", "layer_key", "step_key"]

#: What two measurements of the same kernel have in common.
Key = tuple[str, ...]

# From the best that hardware could do to what kernels take: the fastest reach it, small ones and
# memory-bound ones took up to six times as long.
_OVER_ROOF: Final = 6.0
# Implementations are created, tried and verified: executions, and seconds that go with none.
_SEARCH: Final = ((8.0, 0.1), (80.0, 0.8))
# The same for a summand of an estimate; the kernel of a hot row is known for the cold one.
_SUMMAND: Final = ((3.0, 0.03), (40.0, 0.6))
# A framework's function is traced or compiled, and runs in two processes: another with kept pages.
_FRAMEWORK: Final = ((10.0, 0.2), (120.0, 8.0))
# Three rounds of a chunk are the least that is sampled, however short the kernel.
_LEAST_S: Final = 0.15
_LEAST_SUMMAND_S: Final = 0.045
# Building a step, tracing or compiling it, and holding it against the graph first.
_STEP: Final = ((15.0, 1.0), (80.0, 40.0))
# A cross-check calibrates and replays; its rounds end at the time limit, its last one is finished.
_CHECK: Final = ((40.0, 5.0), (200.0, 45.0))


@dataclass(frozen=True, slots=True)
class Span:
    """Seconds, at least and at most."""

    low: float = 0.0
    high: float = 0.0

    def __add__(self, other: Span) -> Span:
        return Span(self.low + other.low, self.high + other.high)


@dataclass(frozen=True, slots=True, kw_only=True)
class Limits:
    """What a device could do at best.

    Attributes:
        flops_per_s: by precision.
        bytes_per_s: of its memory.
    """

    flops_per_s: Mapping[str, float]
    bytes_per_s: float

    def seconds(self, flops: float, moved: float, precision: str) -> float:
        """Return the time of so many FLOPs and bytes; the slower of the two."""
        rate = self.flops_per_s.get(precision) or max(self.flops_per_s.values(), default=1e12)
        return max(flops / rate, moved / self.bytes_per_s)


def layer_key(case: KernelSpec, threads: int | None) -> Key:
    """Return what a case has in common with earlier measurements of the same kernel."""
    return (
        *(case.layer.problem, case.pass_, case.precision),
        *(case.device, case.backend, case.mode or "", str(threads or "")),
    )


def step_key(fields: Mapping[str, str], threads: int | None) -> Key:
    """Return what a step has in common with earlier ones; ``threads`` of a CPU."""
    names = ("model", "option", "batch", "phase", "precision", "framework", "mode", "layout")
    where = (fields.get("device", "cpu"), str(threads or ""))
    return (*(fields.get(name, "") for name in names), *where)


class Forecast:
    """Times of rows.

    Args:
        limits: what a device could do, by its name and the number of threads.
        threads: of a CPU where a job names no number.
        layers: seconds of one execution in earlier measurements, by :func:`layer_key`.
        steps: likewise of steps, by :func:`step_key`.
        kernels: the kernels that have to be measured for a row of ``model`` or ``check``.
        step_work: FLOPs and bytes of a row's step.

    Attributes:
        known: how many of the kernels and steps that were asked for had an earlier time.
        asked: how many were asked for.
    """

    def __init__(
        self,
        limits: Callable[[str, int], Limits],
        threads: int,
        layers: Mapping[Key, float],
        steps: Mapping[Key, float],
        kernels: Callable[[Job], Iterable[KernelSpec]],
        step_work: Callable[[Job], tuple[float, float]],
    ) -> None:
        self._limits = limits
        self._default_threads = threads
        self._layers = layers
        self._steps = steps
        self._kernels = kernels
        self._step_work = step_work
        self.known = 0
        self.asked = 0

    def job(self, job: Job) -> Span:
        """Return the seconds of a job, its workers' start included."""
        budget = float(job.options.get("budget_s", 2.0))
        threads = self._threads(job)
        if job.kind == "layers":
            cases = [row.case for row in job.rows]
            return sum((self._kernel(case, budget, threads) for case in cases), self._starts(cases))
        if job.kind == "e2e":
            return sum((self._step(job, row.fields, budget) for row in job.rows), Span())
        cases = list(self._kernels(job))
        native = sum(
            (self._kernel(case, budget, threads, summand=True) for case in cases),
            self._starts(cases),
        )
        if job.kind == "model":
            return native
        return sum((self._check(job, row.fields) for row in job.rows), native)

    def source(self) -> str:
        """Return in words where the times came from."""
        if not self.known:
            return "from FLOPs and bytes over the peaks; nothing of it was measured here before"
        if self.known == self.asked:
            return "from earlier measurements on this machine"
        return (
            f"{self.known} of {self.asked} kernels and steps from earlier measurements on this "
            "machine, the others from FLOPs and bytes over the peaks"
        )

    def _starts(self, cases: Sequence[KernelSpec]) -> Span:
        names = {case.backend for case in cases}
        both = [capabilities.of(name).start_s for name in sorted(names | {"native"})]
        return Span(sum(low for low, _ in both), sum(high for _, high in both))

    def _threads(self, job: Job) -> int:
        return int(job.options.get("threads") or self._default_threads)

    def _kernel(
        self, case: KernelSpec, budget_s: float, threads: int, *, summand: bool = False
    ) -> Span:
        self.asked += 1
        known = self._layers.get(layer_key(case, None if case.on_gpu else threads))
        if known is None:
            size = {"fp32": 4, "tf32": 4, "fp8-tc": 1}.get(case.precision, 2)
            least = self._limits(case.device, threads).seconds(
                case.layer.flops_executed(case.pass_),
                case.layer.bytes(case.pass_, size),
                case.precision,
            )
            once = Span(least, _OVER_ROOF * least)
        else:
            self.known += 1
            once = Span(known, known)
        summand = summand and not case.on_gpu
        search = _SUMMAND if summand else _SEARCH
        least_s, samples = (_LEAST_SUMMAND_S, 6) if summand else (_LEAST_S, 10)
        (few, short), (many, long) = search if case.backend == "native" else _FRAMEWORK
        processes = 1 if case.backend == "native" else 2
        return Span(
            short + few * once.low + min(budget_s, max(least_s, samples * once.low)),
            long + many * once.high + processes * (budget_s + 6 * once.high),
        )

    def _once(self, job: Job, fields: Mapping[str, str]) -> Span:
        self.asked += 1
        on_gpu = fields.get("device", "cpu") != "cpu"
        known = self._steps.get(step_key(fields, None if on_gpu else self._threads(job)))
        if known is not None:
            self.known += 1
            return Span(known, known)
        flops, moved = self._step_work(job)
        limits = self._limits(fields.get("device", "cpu"), self._threads(job))
        least = limits.seconds(flops, moved, fields.get("precision", "fp32"))
        return Span(least, _OVER_ROOF * least)

    def _step(self, job: Job, fields: Mapping[str, str], budget_s: float) -> Span:
        once = self._once(job, fields)
        (few, short), (many, long) = _STEP
        return Span(
            short + few * once.low + min(budget_s, max(_LEAST_S, 10 * once.low)),
            long + many * once.high + 1.5 * budget_s,
        )

    def _check(self, job: Job, fields: Mapping[str, str]) -> Span:
        once = self._once(job, fields)
        limit_s = float(job.request.time_limit_s)
        (few, short), (many, long) = _CHECK
        return Span(
            short + few * once.low,
            long + min(many * once.high, limit_s) + 40 * once.high,
        )
