"""One problem: on one backend alone, or on several, interleaved, and the slow ones explained."""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import msgspec

from pydlbench.errors import PydlbenchError, UnsupportedError, WorkerError
from pydlbench.records.measurement import SLOW, less_exact
from pydlbench.runner.attribution import explained
from pydlbench.runner.interleaved import (
    clock_beside,
    random_order,
    ratios,
    releasing,
    sample_interleaved,
)
from pydlbench.runner.rows import empty_row
from pydlbench.timing.visits import joined, visit_policy

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from pydlbench.backends.base import KernelFacts
    from pydlbench.records.measurement import Measurement
    from pydlbench.records.specs import KernelSpec
    from pydlbench.runner.kernels import Kernels
    from pydlbench.timing.policy import Policy
    from pydlbench.timing.procedure import Samples
    from pydlbench.timing.statistics import Ratio
    from pydlbench.workers.host import RemoteKernel

__all__ = ["BackendRun", "Problem", "by_problem"]

# The fewest rounds whose interval of the ratio at 95 % leaves out the two extremes.
_ROUNDS = 9
# Six rounds have such an interval; one or two may be disturbed.
_LEAST_ROUNDS = 8


@dataclass(slots=True)
class BackendRun:
    """One backend's way through a problem that several backends solve.

    Attributes:
        case: what it computes.
        kernel: as users run it.
        warm: the same in a process whose allocator keeps the pages that were freed.
        row: what came of it.
        variant: what the first visit has found the fastest; the others time the same.
        facts: of the kernel, from the first visit.
        taken: samples of ``kernel``, a visit each.
        warm_taken: of ``warm``, in the same rounds.
        samples: of all visits together.
        warm_samples: likewise, with kept pages.
        log: what the library itself reports of a call, from a process that does nothing else.
    """

    case: KernelSpec
    kernel: RemoteKernel[KernelFacts] | None = None
    warm: RemoteKernel[KernelFacts] | None = None
    row: Measurement | None = None
    variant: str | None = None
    facts: KernelFacts | None = None
    taken: list[Samples] = field(default_factory=list)
    warm_taken: list[Samples] = field(default_factory=list)
    samples: Samples | None = None
    warm_samples: Samples | None = None
    log: dict[str, Any] = field(default_factory=dict)

    @property
    def name(self) -> str:
        """The backend with its mode: ``torch compiled``."""
        return " ".join(filter(None, (self.case.backend, self.case.mode)))


def by_problem(cases: Sequence[KernelSpec]) -> Iterator[list[KernelSpec]]:
    """Yield cases that differ in backend and mode only, together; in the order of their first.

    A case that is asked for twice competes with others, not with itself: it opens another group.
    """
    found: list[list[KernelSpec]] = []
    open_: dict[KernelSpec, list[KernelSpec]] = {}
    for case in cases:
        problem = msgspec.structs.replace(case, backend="native", mode=None)
        group = open_.get(problem)
        if group is None or case in group:
            group = open_[problem] = []
            found.append(group)
        group.append(case)
    yield from found


class Problem:
    """One problem's cases, interleaved where there are several, in one visit or more.

    Whoever cannot be prepared, dies or hangs gets a row that says so; the others go on.

    Args:
        kernels: of the session.
        cases: of one group, see :func:`by_problem`.
        visits: how often :meth:`visit` will be called, each time with other processes.
    """

    def __init__(self, kernels: Kernels, cases: Sequence[KernelSpec], visits: int = 1) -> None:
        self.cases = list(cases)
        self._kernels = kernels
        self._visits = visits
        self._made = 0
        self._runs = [BackendRun(case) for case in cases]

    @property
    def rows(self) -> list[Measurement]:
        """The rows, in the order of the cases; after the last visit."""
        return [one.row for one in self._runs if one.row is not None]

    def visit(self) -> None:
        """Have the kernels made ready, take a visit's samples, and free them; the last makes rows.

        The first visit searches for each backend's fastest kernel; the others take the same.
        """
        self._made += 1
        last = self._made == self._visits
        runs = [one for one in self._runs if one.row is None]
        alone = len(self._runs) == 1
        with releasing(kernel for one in runs for kernel in (one.kernel, one.warm)):
            for number, one in enumerate(runs):
                prepare(self._kernels, one, runs[:number], alone=alone)
                if one.kernel is not None and one.facts is None:
                    one.facts = one.kernel.facts
                    one.variant = _variant_of(one.case, one.facts)
            self._sample([one for one in runs if one.row is None], alone)
            if last:
                self._conclude([one for one in runs if one.row is None], alone)

    def _sample(self, runs: Sequence[BackendRun], alone: bool) -> None:
        running: list[tuple[BackendRun, RemoteKernel[KernelFacts], bool]] = []
        for run in runs:
            if run.kernel is not None:
                running.append((run, run.kernel, False))
            if run.warm is not None:
                running.append((run, run.warm, True))
        if not running:
            return
        policies = []
        for run, kernel, _ in running:
            policy = self._kernels.sampling_policy(run.case, kernel.facts, alone=alone)
            policy = policy if alone else _in_rounds(policy)
            policies.append(visit_policy(policy, self._visits))
        taken = sample_interleaved(
            [kernel.sample for _, kernel, _ in running],
            policies,
            random_order(self._kernels.seed + self._made - 1),
            canary=self._kernels.canary([run.case for run, _, _ in running]),
        )
        for (run, _, warm), samples in zip(running, taken, strict=True):
            if isinstance(samples, PydlbenchError):
                if not warm:  # without the other one a column stays empty
                    run.row = without_time(self._kernels, run.case, samples)
            else:
                (run.warm_taken if warm else run.taken).append(samples)

    def _conclude(self, runs: Sequence[BackendRun], alone: bool) -> None:
        for one in runs:
            one.samples = joined(one.taken)
            # Kept pages are held against the same visits only.
            if len(one.warm_taken) == len(one.taken):
                one.warm_samples = joined(one.warm_taken)
        if not alone:
            compare(self._kernels, runs)
            return
        for one in runs:
            if one.facts is not None and one.samples is not None:
                one.row = self._kernels.row(one.case, one.facts, one.samples)


def _variant_of(case: KernelSpec, facts: KernelFacts) -> str | None:
    """The name by which the same kernel is asked for again, see ``Preparation.variant``."""
    if case.backend == "native":
        return f"{facts.algorithm} {facts.layout}"
    return facts.evidence.get("variant")


def _in_rounds(policy: Policy) -> Policy:
    """Return the policy with rounds enough for a ratio, and within a small budget all the same.

    A dozen processes take turns: each chunk and each warm-up is waited for by all others.
    """
    return dataclasses.replace(
        policy,
        min_rounds=_ROUNDS,
        least_rounds=_LEAST_ROUNDS,
        chunk_s=min(policy.chunk_s, policy.budget_s / _ROUNDS),
        warmup_limit_s=min(policy.warmup_limit_s, policy.budget_s),
    )


def prepare(
    kernels: Kernels, run: BackendRun, before: Sequence[BackendRun], *, alone: bool = False
) -> None:
    """Have a run made ready; those that its crash takes along are made ready once more.

    Args:
        kernels: of the session.
        run: gets its kernels, or a row that says why not.
        before: those that were made ready before.
        alone: it competes with nobody, see :meth:`Kernels.prepare`.
    """
    same = [
        one
        for one in before
        if (one.case.backend, one.case.device) == (run.case.backend, run.case.device)
    ]
    if _prepare_default(kernels, run, alone=alone):
        for one in same:
            if one.kernel is not None:
                _prepare_default(kernels, one)
    if (
        not alone
        and run.kernel is not None
        and kernels.allocates(run.case)
        and _prepare_warm(kernels, run)
    ):
        for one in same:
            if one.warm is not None:
                _prepare_warm(kernels, one)


def _prepare_default(kernels: Kernels, run: BackendRun, *, alone: bool = False) -> bool:
    """Prepare as users run it; return whether the worker died of it."""
    run.kernel = None
    try:
        run.kernel = kernels.prepare(run.case, variant=run.variant, alone=alone)
    except PydlbenchError as error:
        run.row = without_time(kernels, run.case, error)
        return isinstance(error, WorkerError)
    return False


def _prepare_warm(kernels: Kernels, run: BackendRun) -> bool:
    """Prepare the same where pages are kept; return whether the worker died of it."""
    run.warm = None
    if run.kernel is None:
        return False
    variant = run.kernel.facts.evidence.get("variant")
    try:
        run.warm = kernels.prepare(run.case, warm=True, variant=variant)
    except PydlbenchError as error:
        # The column stays empty; the row itself is what was asked for.
        return isinstance(error, WorkerError)
    return False


def without_time(kernels: Kernels, case: KernelSpec, error: PydlbenchError) -> Measurement:
    """Return the row of a case that could not be prepared or sampled."""
    status = "skipped" if isinstance(error, UnsupportedError) else "failed"
    return empty_row(case, kernels.threads(case), status, str(error))


def compare(kernels: Kernels, runs: Sequence[BackendRun]) -> None:
    """Make the runs' rows.

    Args:
        kernels: of the session; makes rows, and knows what logs and empty calls tell.
        runs: those with samples.
    """
    timed = {i: run.samples for i, run in enumerate(runs) if run.samples is not None}
    if not timed:
        return
    best, found = ratios(timed, _references({index: runs[index] for index in timed}))
    for index, samples in timed.items():
        run, ratio = runs[index], found[index]
        if run.facts is None:
            continue
        facts, warm = run.facts, run.warm_samples
        clocked, clock_from = _clocked(run.case, samples, runs)
        row = kernels.row(run.case, facts, clocked)
        row = msgspec.structs.replace(
            row,
            clock_from=clock_from,
            ratio=_ratio_fields(ratio, runs[best].name),
            warm_s=None if warm is None else warm.median,
            faults=_faults(samples, warm),
            empty_call_s=None if run.case.backend == "native" else kernels.empty_call_s(run.case),
        )
        run.row = row
    for index, run in enumerate(runs):
        ratio = found[index]
        slow = ratio.interval.low if ratio.interval else ratio.median
        if run.row is not None and ratio.median > SLOW and slow > 1:
            if run.kernel is not None and "kernel_s" not in run.kernel.facts.evidence:
                variant = run.kernel.facts.evidence.get("variant")
                beside = run.warm if run.warm_samples is not None else None
                run.log = kernels.logged(run.case, variant, beside)
            run.row = explained(run.row, run, runs[best])


def _references(runs: Mapping[int, BackendRun]) -> set[int]:
    """Return whom others may be compared with: who sums as exactly as the native kernel.

    Without a native one it is who sums as exactly as any of them: rounding partial sums to fewer
    bits saves time, and its results are not the same.
    """
    sums = {
        index: run.kernel.facts.accumulate for index, run in runs.items() if run.kernel is not None
    }
    native = {sums[index] for index in sums if runs[index].case.backend == "native"}
    wanted = native or set(sums.values())
    return {index for index, own in sums.items() if not any(less_exact(own, one) for one in wanted)}


def _clocked(
    case: KernelSpec, samples: Samples, runs: Sequence[BackendRun]
) -> tuple[Samples, str | None]:
    """Give samples without a clock that of the native ones on the same cores, and say whose it is.

    A framework's process reads none, and its peak would be that of the clock of the probe, minutes
    ago. With code of other widths the clock may differ; between rounds it differs more.
    """
    if samples.clock_hz is not None or case.on_gpu:
        return samples, None
    for other in runs:
        if other.case.backend == "native" and other.samples is not None:
            clock = clock_beside(samples, other.samples)
            if clock is not None:
                return dataclasses.replace(samples, clock_hz=clock), other.name
    return samples, None


def _ratio_fields(ratio: Ratio, best: str) -> dict[str, Any]:
    return {
        "to": best,
        "median": ratio.median,
        "ci_low": ratio.interval.low if ratio.interval else None,
        "ci_high": ratio.interval.high if ratio.interval else None,
        "rounds": ratio.n,
    }


def _faults(samples: Samples, warm: Samples | None) -> dict[str, float] | None:
    found = {"default": samples.faults, "warm": None if warm is None else warm.faults}
    known = {name: value for name, value in found.items() if value is not None}
    return known or None
