"""One problem: on one backend alone, or on several, interleaved, and the slow ones explained."""

from __future__ import annotations

import dataclasses
import time
from typing import TYPE_CHECKING, Any

import msgspec

from pydlbench.errors import PydlbenchError, UnsupportedError, WorkerError
from pydlbench.records.measurement import SLOW, less_exact
from pydlbench.runner.attribution import explained
from pydlbench.runner.backend_run import BackendRun
from pydlbench.runner.interleaved import (
    clock_beside,
    random_order,
    ratios,
    releasing,
    sample_interleaved,
)
from pydlbench.runner.kernels import variant_of
from pydlbench.runner.rows import empty_row
from pydlbench.timing.statistics import median
from pydlbench.timing.visits import joined, more_wanted, taken_again, visit_policy

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

# The fewest rounds whose interval of the ratio at 95 % leaves out the two extremes.
_ROUNDS = 9
# Six rounds have such an interval; one or two may be disturbed.
_LEAST_ROUNDS = 8
# A page that is touched for the first time takes 0.1 to 1 us, on virtual machines most. Where this
# is less than so much of a call, there is nothing to find in a process that keeps its pages.
_FAULT_S = 2e-6
_WORTH = 0.01


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

    Whoever cannot be prepared gets a row that says so. Whoever fails later, or dies for the second
    time, has a row of the visits before, which says that there are fewer and why. The others go on.

    Args:
        kernels: of the session.
        cases: of one group, see :func:`by_problem`.
        visits: how often :meth:`visit` will be called at least.
        keep: kernels of frameworks stay prepared between visits, as compilers take their time;
            native ones get new memory in each visit.
    """

    def __init__(
        self, kernels: Kernels, cases: Sequence[KernelSpec], visits: int = 1, *, keep: bool = False
    ) -> None:
        self.cases = list(cases)
        self._kernels = kernels
        self._visits = visits
        self._keep = keep
        self._lap = -1
        # What keeping its pages saves a backend is known well enough from half of the visits: the
        # second, when it is known who faults, and after which the slow ones are explained.
        self._warm_from = visits // 2
        self._warm_visits = visits - self._warm_from
        self._runs = [BackendRun(case, patience=1 if visits > 1 else 0) for case in cases]

    @property
    def finished(self) -> bool:
        """Whether all rows are there."""
        return all(one.row is not None for one in self._runs)

    @property
    def unmade(self) -> list[KernelSpec]:
        """The cases whose rows are not there yet."""
        return [one.case for one in self._runs if one.row is None]

    @property
    def taken(self) -> int:
        """How many visits its cases have had, the most of them."""
        return max(len(one.taken) for one in self._runs)

    @property
    def results(self) -> list[tuple[KernelSpec, Measurement]]:
        """Every case with its row, in the order given; until that is made, of what there is.

        A case without any samples has none then.
        """
        unmade = [one for one in self._runs if one.row is None and one.taken]
        for one in unmade:
            one.samples = joined(one.taken, self._visits, len(one.processes))
        if len(self._runs) > 1:
            rows = iter(_paired(self._kernels, unmade)[2] if unmade else ())
        else:
            rows = iter([_row(self._kernels, one) for one in unmade])
        found = [(one.case, next(rows) if one in unmade else one.row) for one in self._runs]
        return [(case, row) for case, row in found if row is not None]

    def visit(self, lap: int | None = None) -> None:
        """Have the kernels made ready, take a visit's samples, and free what is not kept.

        The first visit searches for each backend's fastest kernel; the others take the same. Where
        nobody wants another visit, the rows are made.

        Args:
            lap: its number; by default one more than the last one's.
        """
        self._lap = self._lap + 1 if lap is None else lap
        alone = len(self._runs) == 1
        runs = self._to_visit(alone)
        try:
            self._prepare(runs, alone)
            self._sample(runs, alone)
            if not any(one.row is None and self._wants_more(one, alone) for one in runs):
                self.conclude()
        finally:
            self._release(everything=not self._keep or self.finished)

    def conclude(self, reason: str = "") -> None:
        """Make the rows of what was sampled.

        Args:
            reason: why nothing more is sampled, if it is not that there is enough.
        """
        for one in self._runs:
            if one.row is None and not one.taken:
                one.row = empty_row(one.case, self._kernels.threads(one.case), "skipped", reason)
        runs = [one for one in self._runs if one.row is None]
        for one in runs:
            wanted = min(self._visits, len(one.taken))
            one.samples = joined(one.taken, wanted, len(one.processes))
            if reason:
                detail = f"{one.samples.stop_detail}; {reason}"
                one.samples = dataclasses.replace(one.samples, stop_detail=detail)
            # Kept pages are held against visits in which both were timed.
            if one.warm_taken:
                one.warm_samples = joined(one.warm_taken, min(self._visits, len(one.warm_taken)))
        if len(self._runs) > 1:
            compare(self._kernels, runs)
        else:
            for one in runs:
                one.row = _row(self._kernels, one)
        for one in self._runs:
            one.forget()

    def release(self) -> None:
        """Free all that is still prepared."""
        self._release(everything=True)

    def _to_visit(self, alone: bool) -> list[BackendRun]:
        """Return whoever wants another visit, and whom that needs beside it.

        A disturbed visit is left out of the ratios, too: it is taken again beside the fastest, and
        where the fastest's own was disturbed, beside all.
        """
        unmade = [one for one in self._runs if one.row is None and not one.ended]
        wanting = [one for one in unmade if self._wants_more(one, alone)]
        timed = {i: one for i, one in enumerate(unmade) if one.taken}
        if not any(taken_again(one.taken.values(), self._visits) for one in wanting) or not timed:
            return wanting
        able = [timed[index] for index in _references(timed)]
        fastest = min(able, key=lambda one: joined(one.taken, self._visits).median)
        wanted = unmade if fastest in wanting else [*wanting, fastest]
        return [one for one in unmade if one in wanted]

    def _wants_more(self, run: BackendRun, alone: bool) -> bool:
        """Whether a run without a row is to be visited again."""
        if run.ended:
            return False
        if run.facts is None:
            return True
        policy = self._kernels.sampling_policy(run.case, run.facts, alone=alone)
        return more_wanted(run.taken, policy, self._visits, run.cost_s)

    def _prepare(self, runs: Sequence[BackendRun], alone: bool) -> None:
        """Have those made ready that are not, or whose process has gone."""
        for number, one in enumerate(runs):
            warm = self._wants_warm(one)
            if _is_there(one.kernel) and (_is_there(one.warm) or not warm):
                continue
            searched, begin = one.facts is not None, time.perf_counter()
            prepare(self._kernels, one, runs[:number], alone=alone, warm=warm)
            if searched:
                one.cost_s += time.perf_counter() - begin

    def _wants_warm(self, run: BackendRun) -> bool:
        """Whether a visit with kept pages would tell something that is not known yet."""
        if len(run.taken) < self._warm_from or len(run.warm_taken) >= self._warm_visits:
            return False
        faults = [one.faults for one in run.taken.values() if one.faults is not None]
        if not faults:
            return True
        seconds = median([one.median for one in run.taken.values()])
        return median(faults) * _FAULT_S >= _WORTH * seconds

    def _ready(
        self, runs: Sequence[BackendRun]
    ) -> list[tuple[BackendRun, RemoteKernel[KernelFacts], bool]]:
        """Return what is prepared, and whether its pages are kept."""
        found: list[tuple[BackendRun, RemoteKernel[KernelFacts], bool]] = []
        for run in runs:
            if run.kernel is not None:
                found.append((run, run.kernel, False))
                if run.warm is not None and self._wants_warm(run):
                    found.append((run, run.warm, True))
        return found

    def _sample(self, runs: Sequence[BackendRun], alone: bool) -> None:
        begin = time.perf_counter()
        running = self._ready(runs)
        if not running:
            return
        policies = []
        for run, kernel, _ in running:
            policy = self._kernels.sampling_policy(run.case, kernel.facts, alone=alone)
            policy = policy if alone else _in_rounds(policy)
            policies.append(visit_policy(policy, self._visits, alone=alone))
        guarded = [i for i, one in enumerate(running) if self._kernels.guarded(one[0].case)]
        known = {
            index: earlier
            for index, (run, kernel, warm) in enumerate(running)
            if (earlier := run.known_in(kernel, warm)) is not None
        }
        taken = sample_interleaved(
            [kernel.sample for _, kernel, _ in running],
            policies,
            random_order(self._kernels.seed + self._lap),
            canary=self._kernels.canary if guarded else None,
            guarded=guarded,
            known=known,
        )
        # All wait for each other, and for threads that fall asleep.
        share_s = (time.perf_counter() - begin) / len(runs)
        for index, ((run, kernel, warm), samples) in enumerate(zip(running, taken, strict=True)):
            if isinstance(samples, Exception):
                if not warm:  # without the other one a column stays empty
                    _lose(self._kernels, run, samples)
                continue
            (run.warm_taken if warm else run.taken)[self._lap] = samples
            run.known[warm] = (kernel.generation, samples)
            if not warm:
                run.processes.add(kernel.generation)
                own_s = samples.spent_s + (0.0 if index in known else samples.warmup.seconds)
                run.cost_s += max(share_s, own_s)

    def _release(self, *, everything: bool) -> None:
        kernels: list[RemoteKernel[KernelFacts]] = []
        for one in self._runs:
            if everything or one.row is not None or _is_quick(one.case):
                kernels += [kernel for kernel in (one.kernel, one.warm) if kernel is not None]
                one.kernel = one.warm = None
        with releasing(kernels):
            pass


def _is_quick(case: KernelSpec) -> bool:
    """Whether a kernel whose variant is known is soon prepared, so that it need not be kept."""
    return case.backend == "native" and not case.on_gpu


def _is_there(kernel: RemoteKernel[KernelFacts] | None) -> bool:
    return kernel is not None and kernel.alive


def _lose(kernels: Kernels, run: BackendRun, error: PydlbenchError) -> None:
    """Take a visit from a run whose kernel cannot be prepared or sampled, or all that follow.

    The death of a worker is forgiven once where there are more visits: the next one tries again.
    What earlier visits have measured stays; only without any is there no time.
    """
    run.lost.append(" ".join(str(error).split()))
    if isinstance(error, WorkerError) and run.patience > 0:
        run.patience -= 1
    elif run.taken:
        run.ended = True
    else:
        run.row = without_time(kernels, run.case, error)


def _row(kernels: Kernels, run: BackendRun, samples: Samples | None = None) -> Measurement:
    """Return the row of a run's samples, with what it has to say of visits that it lost.

    Args:
        kernels: of the session.
        run: with samples.
        samples: in place of its own.
    """
    samples = samples or run.samples
    assert run.facts is not None, "it was sampled"
    assert samples is not None, "it was sampled"
    row = kernels.row(run.case, run.facts, samples)
    if not run.lost:
        return row
    number = "a visit" if len(run.lost) == 1 else f"{len(run.lost)} visits"
    said = f"{number} failed, {max(1, len(samples.visits))} made the row: {run.lost[-1]}"
    return msgspec.structs.replace(row, warnings=(*row.warnings, said))


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
    kernels: Kernels,
    run: BackendRun,
    before: Sequence[BackendRun],
    *,
    alone: bool = False,
    warm: bool = True,
) -> None:
    """Have a run made ready; those that its crash takes along are made ready once more.

    Args:
        kernels: of the session.
        run: gets its kernels, or a row that says why not.
        before: those that were made ready before.
        alone: it competes with nobody, see :meth:`Kernels.prepare`.
        warm: also in a process that keeps its pages, where the backend allocates its results.
    """
    same = [
        one
        for one in before
        if (one.case.backend, one.case.device) == (run.case.backend, run.case.device)
    ]
    if not _is_there(run.kernel) and _prepare_default(kernels, run, alone=alone):
        for one in same:
            if one.kernel is not None:
                _prepare_default(kernels, one)
    if (
        warm
        and not alone
        and run.kernel is not None
        and not _is_there(run.warm)
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
        _lose(kernels, run, error)
        return isinstance(error, WorkerError)
    if run.facts is None:
        run.facts = run.kernel.facts
        run.variant = variant_of(run.case, run.facts)
    return False


def _prepare_warm(kernels: Kernels, run: BackendRun) -> bool:
    """Prepare the same where pages are kept; return whether the worker died of it."""
    run.warm = None
    if run.facts is None:
        return False
    try:
        run.warm = kernels.prepare(run.case, warm=True, variant=run.variant)
    except PydlbenchError as error:
        # The column stays empty; the row itself is what was asked for.
        return isinstance(error, WorkerError)
    run.warm_facts = run.warm_facts or run.warm.facts
    return False


def without_time(kernels: Kernels, case: KernelSpec, error: PydlbenchError) -> Measurement:
    """Return the row of a case that could not be prepared or sampled."""
    status = "skipped" if isinstance(error, UnsupportedError) else "failed"
    return empty_row(case, kernels.threads(case), status, str(error))


def compare(kernels: Kernels, runs: Sequence[BackendRun]) -> None:
    """Make the runs' rows, and look for what makes the slow ones slow.

    Args:
        kernels: of the session; makes rows, and knows what logs and empty calls tell.
        runs: with samples.
    """
    if not runs:
        return
    best, found, rows = _paired(kernels, runs)
    for run, row in zip(runs, rows, strict=True):
        empty = None if run.case.backend == "native" else kernels.empty_call_s(run.case)
        run.row = msgspec.structs.replace(row, empty_call_s=empty)
    for index, run in enumerate(runs):
        ratio = found[index]
        slow = ratio.interval.low if ratio.interval else ratio.median
        if run.row is not None and ratio.median > SLOW and slow > 1:
            if run.facts is not None and "kernel_s" not in run.facts.evidence:
                if run.warm_samples is not None and not _is_there(run.warm):
                    _prepare_warm(kernels, run)
                beside = run.warm if run.warm_samples is not None else None
                run.log = kernels.logged(run.case, run.variant, beside)
            run.row = explained(run.row, run, runs[best])


def _paired(
    kernels: Kernels, runs: Sequence[BackendRun]
) -> tuple[int, dict[int, Ratio], list[Measurement]]:
    """Return who is the fastest, everybody's ratio to it in the visits that both have, and rows.

    Args:
        kernels: of the session.
        runs: with samples, at least one.
    """
    timed = {index: run.samples for index, run in enumerate(runs) if run.samples is not None}
    best, found = ratios(timed, _references(dict(enumerate(runs))))
    rows = []
    for index, run in enumerate(runs):
        clocked, clock_from = _clocked(run.case, timed[index], runs)
        warm = run.warm_samples
        row = msgspec.structs.replace(
            _row(kernels, run, clocked),
            clock_from=clock_from,
            ratio=_ratio_fields(found[index], runs[best].name),
            warm_s=None if warm is None else warm.median,
            faults=_faults(timed[index], warm),
        )
        rows.append(row)
    return best, found, rows


def _references(runs: Mapping[int, BackendRun]) -> set[int]:
    """Return whom others may be compared with: who sums as exactly as the native kernel.

    Without a native one it is who sums as exactly as any of them: rounding partial sums to fewer
    bits saves time, and its results are not the same.
    """
    sums = {index: run.facts.accumulate for index, run in runs.items() if run.facts is not None}
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
