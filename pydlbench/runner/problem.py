"""One problem on one or several backends: interleaved samples, ratios, and causes of slowness."""

import dataclasses
from collections.abc import Hashable, Iterator, Sequence
from typing import Any, Final

import msgspec

from pydlbench.backends.base import KernelFacts
from pydlbench.errors import PydlbenchError, RefusedKernelError, UnsupportedError, WorkerError
from pydlbench.records.measurement import SLOW, KernelSpec, Measurement, less_exact
from pydlbench.runner.attribution import with_causes
from pydlbench.runner.kernels import (
    EQUAL_FACTOR,
    BackendRun,
    KernelSubject,
    SessionKernels,
    is_foreign,
    variant_of,
)
from pydlbench.runner.rows import empty_row
from pydlbench.study.estimate import Estimate, clock_beside, ratio, ratios
from pydlbench.study.loop import ROUNDS, Study, random_order
from pydlbench.workers.host import RemoteKernel, releasing

# Upper bound of the cost of a page fault, which takes 0.1 to 1 us, the longest on virtual machines.
_FAULT_S = 2e-6
# A process that keeps its pages is measured, too, if page faults may take this share of a call.
_MIN_FAULTS_SHARE = 0.01
# Repetitions with kept pages. They begin with the second one, when the number of faults is known.
_WARM_REPETITIONS: Final = 2
# Repetitions of a backend that is certainly slower than the fastest by the factor below, and of a
# second kernel that is certainly slower than the first.
_REPETITIONS_OF_SLOW: Final = 2
_SLOW_FACTOR: Final = 1.5
# Repetitions after which either of two kernels is used if they cannot be told apart, also by later
# runs: another three would tell no more.
_RIVAL_REPETITIONS: Final = 3


def by_problem(specs: Sequence[KernelSpec]) -> Iterator[list[KernelSpec]]:
    """Yield groups of specs that differ only in backend and mode, by their first members.

    A spec that is listed twice is not compared with itself: it opens another group.
    """
    groups: list[list[KernelSpec]] = []
    open_: dict[KernelSpec, list[KernelSpec]] = {}
    for spec in specs:
        problem = msgspec.structs.replace(spec, backend="native", mode=None)
        group = open_.get(problem)
        if group is None or spec in group:
            group = open_[problem] = []
            groups.append(group)
        group.append(spec)
    yield from groups


class RowProblem:
    """The specs of one problem, timed together in one or more repetitions.

    A backend that cannot prepare its kernel gets a row with the reason. One that fails later, or
    whose worker dies twice, has a row of its earlier repetitions, with a warning. The others go on.
    After an interruption there are rows of the samples so far.

    Args:
        kernels: kernels of the session.
        specs: one group, see :func:`by_problem`.
        repetitions: number of calls of :meth:`repeat`. Each prepares all kernels anew and takes one
            round; a single repetition takes as many rounds as an interval needs.
        keep: whether kernels of frameworks, which take long to compile, stay prepared between
            repetitions; native ones get new memory in each.
        in_place: whether native kernels of earlier repetitions keep their memory until the end, so
            that later ones of the same process get other memory.
        whole: whether slow backends, too, take all repetitions.
    """

    def __init__(
        self,
        kernels: SessionKernels,
        specs: Sequence[KernelSpec],
        repetitions: int = 1,
        *,
        keep: bool = False,
        in_place: bool = False,
        whole: bool = False,
    ) -> None:
        self.specs = list(specs)
        self._alone = len(specs) == 1
        self._kernels, self._repetitions, self._keep = kernels, repetitions, keep
        self._in_place, self._whole = in_place, whole
        self._held: list[RemoteKernel[KernelFacts] | None] = []
        self._taken = 0
        self._runs = [BackendRun(spec, patience=1 if repetitions > 1 else 0) for spec in specs]
        guarded = any(kernels.guarded(spec) for spec in specs)
        self._study = Study(random_order(kernels.seed), kernels.interference if guarded else None)

    @property
    def finished(self) -> bool:
        """Whether all rows are finished."""
        return all(run.row is not None for run in self._runs)

    @property
    def unmade(self) -> list[KernelSpec]:
        """The specs without a finished row."""
        return [run.spec for run in self._runs if run.row is None]

    @property
    def taken(self) -> int:
        """The largest number of repetitions that any spec has had."""
        return max(map(self._count, self._runs))

    @property
    def results(self) -> list[tuple[KernelSpec, Measurement]]:
        """Every spec with its row, in the given order; unfinished rows have the samples so far.

        Specs without samples and without a row are left out.
        """
        unmade = [run for run in self._runs if run.row is None and self._count(run)]
        rows = iter(self._rows(unmade, complete=False))
        results = [(run.spec, next(rows) if run in unmade else run.row) for run in self._runs]
        return [(spec, row) for spec, row in results if row is not None]

    def repeat(self) -> None:
        """Prepare the kernels, take a round, and release those that are not kept.

        The first repetition searches for the fastest kernel of each backend; later ones prepare the
        same kernels. The last one makes the rows.
        """
        runs = [run for run in self._runs if run.row is None and not run.ended]
        try:
            self._prepare(runs)
            self._sample(runs)
            self._refuse_impossible(runs)
            self._taken += 1
            if self._taken == 1 < self._repetitions:
                self._keep_choices(runs)
            self._end_early(runs)
            going = [run for run in self._runs if run.row is None and not run.ended]
            if self._taken >= self._repetitions or not going:
                self.conclude()
        finally:
            self._release(everything=not self._keep or self.finished, held=self.finished)

    def conclude(self, reason: str = "") -> None:
        """Make the rows of the samples so far.

        Args:
            reason: why no more samples are taken; empty if there are enough.
        """
        for run in self._runs:
            if run.row is None and not self._count(run):
                run.row = empty_row(run.spec, self._kernels.threads(run.spec), "skipped", reason)
        runs = [run for run in self._runs if run.row is None]
        for run in runs:
            self._settle_rival(run)
        rows = self._rows(runs, complete=True, reason=reason)
        for run, row in zip(runs, rows, strict=True):
            run.row = self._kept(run, row)
        if not self._alone:
            self._explain(runs)
        for run in self._runs:
            for subject in run.subjects:
                subject.samples = None
                self._study.table.forget(subject)
            run.rival = None

    def _keep_choices(self, runs: Sequence[BackendRun]) -> None:
        """Store the kernels of a search, so that a run that ends early need not search again."""
        stored = self._kernels.stored
        for run in runs:
            facts, rival = run.usual.facts, run.rival.variant if run.rival else None
            verified = facts is not None and facts.correct.status == "ok"
            if verified and self._count(run) and stored.read(run.spec) is None:
                samples = self._study.table.series(run.usual)
                stored.write(run.spec, run.usual.variant, rival, samples)

    def _kept(self, run: BackendRun, row: Measurement) -> Measurement:
        """Store the fastest kernel for later runs; return the row, with a warning if needed."""
        samples = run.usual.samples
        if not row.ok or row.contended or samples is None:
            return row
        words = self._kernels.stored.write(run.spec, run.usual.variant, run.second, samples)
        if words is None:
            return row
        return msgspec.structs.replace(row, warnings=(*row.warnings, words))

    def release(self) -> None:
        """Release all kernels that are still prepared."""
        self._release(everything=True, held=True)

    def hand_over(self) -> dict[KernelSpec, RemoteKernel[KernelFacts]]:
        """Return the kernels of rows that are still prepared, which the caller is to release."""
        kernels = {}
        for run in self._runs:
            if run.usual.kernel is not None:
                kernels[run.spec] = run.usual.kernel
                run.usual.kernel = None
        return kernels

    def _count(self, run: BackendRun) -> int:
        return self._study.table.rounds(run.usual)

    def _prepare(self, runs: Sequence[BackendRun]) -> None:
        """Prepare kernels that are not prepared, or whose process has ended.

        Known variants are prepared by all workers at the same time. A search is timed, so each runs
        alone.
        """
        self._kernels.prepare_at_once(
            [
                (run.spec, run.usual.variant)
                for run in runs
                if run.usual.facts is not None and not (run.usual.ready or is_quick(run.spec))
            ]
        )
        for number, run in enumerate(runs):
            for subject in self._wanted(run):
                if not subject.ready and self._prepare_kernel(run, subject):
                    self._restore(run, subject, runs[: number + 1])

    def _wanted(self, run: BackendRun) -> Iterator[KernelSubject]:
        """Yield the kernels of a run that the next round needs, the usual one first."""
        yield run.usual
        if run.usual.kernel is None:
            return
        if not self._alone and self._wants_warm(run) and self._kernels.allocates(run.spec):
            yield run.warm
        if run.rival is not None:
            yield run.rival

    def _prepare_kernel(self, run: BackendRun, subject: KernelSubject) -> bool:
        """Prepare a kernel of a run, or go on without it; return whether its worker died."""
        warm = subject is run.warm
        variant = run.usual.variant if warm else subject.variant
        subject.kernel = None
        try:
            kernel = self._kernels.prepare(
                run.spec, warm=warm, variant=variant, alone=self._alone, finals=False
            )
        except PydlbenchError as error:
            self._go_without(run, subject, error)
            return isinstance(error, WorkerError)
        subject.kernel = kernel
        if subject is run.rival and kernel.facts.correct.status != "ok":
            self._drop_rival(run, subject)
        elif subject.facts is None:
            subject.facts = kernel.facts
            if subject is run.usual:
                subject.variant = variant_of(run.spec, subject.facts)
                rival = self._kernels.rival_of(run.spec, subject.facts)
                run.rival = None if rival is None else KernelSubject(variant=rival)
            searched = run.usual.facts or kernel.facts
            subject.size = self._kernels.known_size(
                run.spec, subject.variant, searched, kernel.generation
            )
        return False

    def _restore(
        self, run: BackendRun, subject: KernelSubject, prepared: Sequence[BackendRun]
    ) -> None:
        """Prepare again the kernels of a process that died while it prepared one of a run."""
        place = (run.spec.backend, run.spec.device, subject is run.warm)
        for other in prepared:
            for each in other.subjects:
                same = place == (other.spec.backend, other.spec.device, each is other.warm)
                if same and each.kernel is not None:
                    self._prepare_kernel(other, each)

    def _go_without(self, run: BackendRun, subject: KernelSubject, error: PydlbenchError) -> None:
        """Go on without a kernel of a run, which cannot be prepared or sampled."""
        if subject is run.usual:
            self._lose(run, error)
        elif subject is run.rival:
            self._drop_rival(run, subject)
        # Without the kernel with kept pages a column stays empty.

    def _explain(self, runs: Sequence[BackendRun]) -> None:
        """Explain why rows are slow; all runs have samples and rows."""
        for run in runs:
            assert run.row is not None
            native = run.spec.backend == "native"
            empty = None if native else self._kernels.empty_call_s(run.spec)
            run.row = msgspec.structs.replace(run.row, empty_call_s=empty)
        for run in runs:
            row, facts = run.row, run.usual.facts
            if row is None or row.ratio is None:
                continue
            best = next(other for other in runs if other.name == row.ratio["to"])
            low = row.ratio["ci_low"] or row.ratio["median"]
            if row.ratio["median"] > SLOW and low > 1:
                if facts is not None and "kernel_s" not in facts.evidence:
                    sampled = run.warm.samples is not None
                    if sampled and not run.warm.ready:
                        self._prepare_kernel(run, run.warm)
                    unlogged = run.warm.kernel if sampled else None
                    run.log = self._kernels.logged(run.spec, run.usual.variant, unlogged)
                run.row = with_causes(row, run, best)

    def _lose(self, run: BackendRun, error: PydlbenchError) -> None:
        """Note that a repetition of a run failed, and end the run unless it may try again.

        If there are several repetitions, the first death of a worker costs one of them. Samples of
        earlier repetitions are kept; only without any is the row empty.
        """
        words = " ".join(str(error).split())
        run.lost.append(words)
        if isinstance(error, RefusedKernelError):  # earlier samples are not to be believed either
            for subject in run.subjects:
                self._study.table.forget(subject)
            run.row = empty_row(run.spec, self._kernels.threads(run.spec), "failed", words)
        elif isinstance(error, WorkerError) and run.patience > 0:
            run.patience -= 1
        elif self._count(run):
            run.ended = words
        else:
            status = "skipped" if isinstance(error, UnsupportedError) else "failed"
            run.row = empty_row(run.spec, self._kernels.threads(run.spec), status, str(error))

    def _wants_warm(self, run: BackendRun) -> bool:
        """Whether samples with kept pages would give new information."""
        if self._repetitions > 1 and not self._count(run):
            return False
        if self._study.table.rounds(run.warm) >= _WARM_REPETITIONS:
            return False
        if not self._count(run):
            return True
        series = self._study.table.series(run.usual)
        return (
            series.faults is None or series.faults * _FAULT_S >= _MIN_FAULTS_SHARE * series.median
        )

    def _sample(self, runs: Sequence[BackendRun]) -> None:
        rounds = ROUNDS if self._repetitions == 1 else 1
        owners: dict[Hashable, tuple[BackendRun, KernelSubject]] = {}
        sampled: list[KernelSubject] = []
        for run in runs:
            for subject in run.subjects if run.usual.kernel is not None else ():
                kernel = subject.kernel
                if kernel is None or (subject is run.warm and not self._wants_warm(run)):
                    continue
                policy = self._kernels.sampling_policy(run.spec, kernel.facts)
                subject.policy = dataclasses.replace(policy, visits=max(rounds, self._repetitions))
                subject.sample, subject.process = kernel.sample, kernel.generation
                subject.preparation = self._taken
                owners[subject] = run, subject
                sampled.append(subject)
        errors = self._study.take(sampled, first=self._taken * rounds, rounds=rounds)
        # Kernels that died with their process have the error of the first one sampled there.
        deaths: dict[tuple[str, str, bool], PydlbenchError] = {}
        for key, error in errors.items():
            run, subject = owners[key]
            cause = error
            if isinstance(error, WorkerError):
                place = (run.spec.backend, run.spec.device, subject is run.warm)
                cause = deaths.setdefault(place, error)
            if rounds > 1:  # the other rounds of a process that died do not count
                self._study.table.forget(subject)
            self._go_without(run, subject, cause)

    def _refuse_impossible(self, runs: Sequence[BackendRun]) -> None:
        """Refuse kernels that are not pydlbench's own and are faster than any kernel can be."""
        for run in runs:
            facts = run.usual.facts
            if facts is None or not self._count(run) or not is_foreign(run.spec):
                continue
            from pydlbench.runner.audited import impossible  # loads NumPy

            series = self._study.table.series(run.usual)
            words = impossible(self._kernels.row(run.spec, facts, series))
            if words is not None:
                self._lose(run, RefusedKernelError(words))

    def _drop_rival(self, run: BackendRun, rival: KernelSubject) -> None:
        self._study.table.forget(rival)
        self._held.append(rival.kernel)
        run.rival = None

    def _end_early(self, runs: Sequence[BackendRun]) -> None:
        """End runs, and drop rivals, that are known to be slower."""
        if self._repetitions == 1:
            return
        timed = [
            run for run in runs if self._count(run) >= _REPETITIONS_OF_SLOW and run.row is None
        ]
        for run in timed:
            self._settle_rival(run, beyond_doubt=self._count(run) < _RIVAL_REPETITIONS)
        series = {index: self._study.table.series(run.usual) for index, run in enumerate(timed)}
        if len(series) < 2 or self._whole:
            return
        best, to_best = ratios(series, _references(timed))
        for index, run in enumerate(timed):
            explained = run.warm.kernel is None or not self._wants_warm(run)
            if run.spec.backend != "native" and to_best[index].above(_SLOW_FACTOR) and explained:
                run.ended = f"more than {_SLOW_FACTOR:g} times as slow as {timed[best].name}"

    def _settle_rival(self, run: BackendRun, *, beyond_doubt: bool = False) -> None:
        """Keep the faster of a run's two kernels, if it is known which one that is."""
        first, rival, table = run.usual, run.rival, self._study.table
        if rival is None:
            return
        if rival in table and first in table:
            to_first = ratio(table.series(rival), table.series(first))
            back = ratio(table.series(first), table.series(rival))
            sure = to_first.above(1.0) or back.above(1.0)
            if beyond_doubt and not sure:
                return
            undecided = not sure and table.rounds(first) < _RIVAL_REPETITIONS
            near = undecided and max(to_first.median, back.median) <= EQUAL_FACTOR
            faster = to_first.median < 1
            run.second = (first.variant if faster else rival.variant) if near else None
            if faster:
                rival.facts = _chosen(rival, first)
                run.usual, rival = rival, first
        elif beyond_doubt:
            return
        self._drop_rival(run, rival)

    def _rows(
        self, runs: Sequence[BackendRun], *, complete: bool, reason: str = ""
    ) -> list[Measurement]:
        """Return the rows of the samples so far, with ratios if there are several backends.

        Args:
            runs: runs with samples.
            complete: whether all repetitions were taken.
            reason: see :meth:`conclude`.
        """
        table = self._study.table
        for run in runs:
            for subject in run.subjects:
                subject.samples = table.series(subject) if subject in table else None
        if not runs:
            return []
        if self._alone:
            rows = [_row(self._kernels, run) for run in runs]
        else:
            rows = _paired(self._kernels, runs)
        return [
            msgspec.structs.replace(
                row,
                stop_rule="rounds" if complete else "interrupted",
                stop_reason=self._detail(run, complete, reason),
            )
            for run, row in zip(runs, rows, strict=True)
        ]

    def _detail(self, run: BackendRun, complete: bool, reason: str) -> str:
        samples = run.usual.samples
        assert samples is not None
        made = samples.preparations
        if complete:
            where = "one process" if samples.processes == 1 else f"{samples.processes} processes"
            words = f"{made} repetition{'s' * (made > 1)} in {where}, {samples.spent_s:.3g} s"
        else:
            words = f"{made} of {self._repetitions} repetitions made, {samples.spent_s:.3g} s"
        return "; ".join(filter(None, (words, run.ended, reason)))

    def _release(self, *, everything: bool, held: bool) -> None:
        """Release kernels that need not stay prepared.

        Args:
            everything: also release kernels of frameworks that may be kept until the next
                repetition.
            held: also release those of earlier repetitions, which keep their memory until the end.
        """
        kernels: list[RemoteKernel[KernelFacts] | None] = []
        for run in self._runs:
            quick = is_quick(run.spec)
            if everything or run.row is not None or run.ended or quick:
                stays = self._in_place and quick and not held
                for subject in run.subjects:
                    (self._held if stays else kernels).append(subject.kernel)
                    subject.kernel = None
        if held or not self._in_place:
            kernels += self._held
            self._held = []
        with releasing(kernels):
            pass


def is_quick(spec: KernelSpec) -> bool:
    """Whether a known variant is prepared so quickly that it need not be kept."""
    return spec.backend == "native" and not spec.on_gpu


def _row(kernels: SessionKernels, run: BackendRun, clock_hz: float | None = None) -> Measurement:
    """Return the row of a run's samples, with a warning if repetitions failed.

    Args:
        kernels: kernels of the session.
        run: a run with samples.
        clock_hz: clock read by another backend on the same cores, if this one reads none.
    """
    facts, samples = run.usual.facts, run.usual.samples
    assert facts is not None
    assert samples is not None
    row = kernels.row(run.spec, facts, samples, clock_hz)
    if not run.lost:
        return row
    number = "a repetition" if len(run.lost) == 1 else f"{len(run.lost)} repetitions"
    words = f"{number} failed, the row has {samples.preparations}: {run.lost[-1]}"
    return msgspec.structs.replace(row, warnings=(*row.warnings, words))


def _chosen(rival: KernelSubject, first: KernelSubject) -> KernelFacts:
    """Return the facts of the winning kernel, with all candidates of the search."""
    assert rival.facts is not None
    assert first.facts is not None
    candidates = [
        {**tried, "chosen": f"{tried['algorithm']} {tried['layout']}" == rival.variant}
        for tried in first.facts.candidates
    ]
    return dataclasses.replace(rival.facts, candidates=candidates, notes=first.facts.notes)


def _paired(kernels: SessionKernels, runs: Sequence[BackendRun]) -> list[Measurement]:
    """Return rows with the ratio of each to the fastest, over the rounds that both have.

    Args:
        kernels: kernels of the session.
        runs: runs with samples, at least one.
    """
    timed = {
        index: run.usual.samples for index, run in enumerate(runs) if run.usual.samples is not None
    }
    best, to_best = ratios(timed, _references(runs))
    rows = []
    for index, run in enumerate(runs):
        clock_hz, clock_from = _clocked(run, runs)
        warm = run.warm.samples
        row = msgspec.structs.replace(
            _row(kernels, run, clock_hz),
            clock_from=clock_from,
            ratio=_ratio_fields(to_best[index], runs[best].name),
            warm_s=None if warm is None else warm.median,
            faults=_faults(run),
        )
        rows.append(row)
    return [_with_cycles(row, rows[best]) for row in rows]


def _with_cycles(row: Measurement, best: Measurement) -> Measurement:
    """Return a GPU's row with its ratio in cycles: a power cap slows kernels down differently."""
    if row.device == "cpu" or not row.cycles or not best.cycles:
        return row
    return msgspec.structs.replace(
        row, ratio={**(row.ratio or {}), "cycles": row.cycles / best.cycles}
    )


def _references(runs: Sequence[BackendRun]) -> set[int]:
    """Return the runs that others are compared with: those that sum as exactly as the native one.

    Without a native run these are the ones that sum most exactly: rounding partial sums to fewer
    bits saves time, but the results differ.
    """
    facts = {index: run.usual.facts for index, run in enumerate(runs)}
    sums = {index: own.accumulate for index, own in facts.items() if own is not None}
    native = {sums[index] for index in sums if runs[index].spec.backend == "native"}
    wanted = native or set(sums.values())
    return {index for index, own in sums.items() if not any(less_exact(own, it) for it in wanted)}


def _clocked(run: BackendRun, runs: Sequence[BackendRun]) -> tuple[float | None, str | None]:
    """Return the clock of native samples on the same cores and its origin, for a run without one.

    A framework's process reads no clock. Without this one the peak would be at the clock of the
    probe, minutes ago. The clock also depends on the width of the vector code, but varies more
    between rounds.
    """
    samples = run.usual.samples
    if samples is None or samples.clock_hz is not None or run.spec.on_gpu:
        return None, None
    for other in runs:
        if other.spec.backend == "native" and other.usual.samples is not None:
            clock_hz = clock_beside(samples, other.usual.samples)
            if clock_hz is not None:
                return clock_hz, other.name
    return None, None


def _ratio_fields(estimate: Estimate, best: str) -> dict[str, Any]:
    return {
        "to": best,
        "median": estimate.median,
        "ci_low": estimate.interval.low if estimate.interval else None,
        "ci_high": estimate.interval.high if estimate.interval else None,
        "rounds": estimate.rounds,
    }


def _faults(run: BackendRun) -> dict[str, float] | None:
    subjects = {"default": run.usual, "warm": run.warm}
    counted = {
        name: subject.samples.faults
        for name, subject in subjects.items()
        if subject.samples is not None
    }
    return {name: value for name, value in counted.items() if value is not None} or None
