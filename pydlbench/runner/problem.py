"""One problem: on one backend alone, or on several, interleaved, and the slow ones explained."""

from __future__ import annotations

import dataclasses
from typing import TYPE_CHECKING, Any, Final

import msgspec

from pydlbench.errors import PydlbenchError, UnsupportedError, WorkerError
from pydlbench.records.measurement import SLOW, less_exact
from pydlbench.runner.attribution import explained
from pydlbench.runner.backend_run import BackendRun
from pydlbench.runner.kernels import NEAR, variant_of
from pydlbench.runner.rows import empty_row
from pydlbench.study.loop import ROUNDS, Study, Subject, random_order
from pydlbench.study.ranking import clock_beside, ratio, ratios
from pydlbench.workers.host import releasing

if TYPE_CHECKING:
    from collections.abc import Hashable, Iterator, Mapping, Sequence

    from pydlbench.backends.base import KernelFacts
    from pydlbench.records.measurement import Measurement
    from pydlbench.records.specs import KernelSpec
    from pydlbench.runner.kernels import Kernels
    from pydlbench.study.estimate import Estimate
    from pydlbench.workers.host import RemoteKernel

# A page that is touched for the first time takes 0.1 to 1 us, on virtual machines most. Where this
# is less than so much of a call, there is nothing to find in a process that keeps its pages.
_FAULT_S = 2e-6
_WORTH = 0.01
# What keeping its pages saves a backend is known well enough from two visits, if it is worth
# knowing: they begin with the second, when it is known who faults.
_WARM_VISITS: Final = 2
# Visits after which a backend that is so much slower than the fastest, beyond doubt, has enough of
# them; and a second kernel that is slower than the first one.
_FEW: Final = 2
# Of two kernels that so many visits in turn cannot tell apart either one will do.
_RIVAL_VISITS: Final = 3
_FAR: Final = 1.5


def by_problem(specs: Sequence[KernelSpec]) -> Iterator[list[KernelSpec]]:
    """Yield specs that differ in backend and mode only, together; in the order of their first.

    A spec that is asked for twice competes with others, not with itself: it opens another group.
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


class Problem:
    """One problem's specs, subjects of a study, in one preparation or more.

    Whoever cannot be prepared gets a row that says so. Whoever fails later, or dies for the second
    time, has a row of the visits before, which says that there are fewer and why. The others go on.
    Whenever it is interrupted, there are rows of what there is.

    Args:
        kernels: of the session.
        specs: of one group, see :func:`by_problem`.
        visits: how often :meth:`visit` will be called: each prepares all of them anew, and takes a
            round; a single one takes the rounds that make an interval.
        keep: kernels of frameworks stay prepared between visits, as compilers take their time;
            native ones get new memory in each visit.
        in_place: native kernels of all visits stay where they are until the end: so each of one
            process has memory of its own.
    """

    def __init__(
        self,
        kernels: Kernels,
        specs: Sequence[KernelSpec],
        visits: int = 1,
        *,
        keep: bool = False,
        in_place: bool = False,
    ) -> None:
        self.specs = list(specs)
        self._kernels = kernels
        self._visits = visits
        self._keep = keep
        self._in_place = in_place
        self._held: list[RemoteKernel[KernelFacts]] = []
        self._taken = 0
        self._runs = [BackendRun(spec, patience=1 if visits > 1 else 0) for spec in specs]
        guarded = any(kernels.guarded(spec) for spec in specs)
        self._study = Study(random_order(kernels.seed), kernels.interference if guarded else None)

    @property
    def finished(self) -> bool:
        """Whether all rows are there."""
        return all(run.row is not None for run in self._runs)

    @property
    def unmade(self) -> list[KernelSpec]:
        """The specs whose rows are not there yet."""
        return [run.spec for run in self._runs if run.row is None]

    @property
    def taken(self) -> int:
        """How many visits its specs have had, the most of them."""
        return max(map(self._count, self._runs))

    @property
    def results(self) -> list[tuple[KernelSpec, Measurement]]:
        """Every spec with its row, in the order given; until that is made, of what there is.

        A spec without any samples has none then.
        """
        unmade = [run for run in self._runs if run.row is None and self._count(run)]
        rows = iter(self._rows(unmade, complete=False))
        results = [(run.spec, next(rows) if run in unmade else run.row) for run in self._runs]
        return [(spec, row) for spec, row in results if row is not None]

    def visit(self, number: int | None = None) -> None:
        """Have the kernels made ready, take a round, and free what is not kept.

        The first visit searches for each backend's fastest kernel; the others take the same. With
        the last one the rows are made.

        Args:
            number: of the lap; by default one more than the last one's.
        """
        number = self._taken if number is None else number
        alone = len(self._runs) == 1
        runs = [run for run in self._runs if run.row is None and not run.ended]
        try:
            self._prepare(runs, alone)
            self._sample(runs, number)
            self._taken = number + 1
            self._end_early(runs)
            going = [run for run in self._runs if run.row is None and not run.ended]
            if self._taken >= self._visits or not going:
                self.conclude()
        finally:
            self._release(everything=not self._keep or self.finished, held=self.finished)

    def conclude(self, reason: str = "") -> None:
        """Make the rows of what was sampled.

        Args:
            reason: why nothing more is sampled, if it is not that there is enough.
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
        if len(self._runs) > 1:
            explain(self._kernels, runs)
        for run in self._runs:
            run.samples = run.warm_samples = run.rival = None
            for key in _keys(run):
                self._study.table.forget(key)

    def _kept(self, run: BackendRun, row: Measurement) -> Measurement:
        """Keep which kernel was the fastest; return the row with what there is to say of it."""
        if not row.ok or row.contended or run.samples is None:
            return row
        words = self._kernels.keep(run.spec, run.variant, run.second, run.samples)
        if words is None:
            return row
        return msgspec.structs.replace(row, warnings=(*row.warnings, words))

    def release(self) -> None:
        """Free all that is still prepared."""
        self._release(everything=True, held=True)

    def _count(self, run: BackendRun) -> int:
        return self._study.table.rounds(_key(run))

    def _prepare(self, runs: Sequence[BackendRun], alone: bool) -> None:
        """Have those made ready that are not, or whose process has gone.

        What was searched for before is made ready by all workers at once; searches are timed, so
        that each has the machine for itself.
        """
        self._kernels.prepare_at_once(
            [
                (run.spec, run.variant)
                for run in runs
                if run.facts is not None and not _is_there(run.kernel) and not _is_quick(run.spec)
            ]
        )
        for number, run in enumerate(runs):
            warm = self._wants_warm(run)
            if not _is_there(run.kernel) or (warm and not _is_there(run.warm)):
                prepare(self._kernels, run, runs[:number], alone=alone, warm=warm)
            if run.rival is not None and run.kernel is not None and not _is_there(run.rival.kernel):
                _prepare_rival(self._kernels, run, alone=alone)

    def _wants_warm(self, run: BackendRun) -> bool:
        """Whether a visit with kept pages would tell something that is not known yet."""
        if self._visits > 1 and not self._count(run):
            return False
        if self._study.table.rounds(_key(run, warm=True)) >= _WARM_VISITS:
            return False
        if not self._count(run):
            return True
        series = self._study.table.of(_key(run))
        return series.faults is None or series.faults * _FAULT_S >= _WORTH * series.median

    def _ready(
        self, runs: Sequence[BackendRun]
    ) -> Iterator[tuple[BackendRun, RemoteKernel[KernelFacts], bool]]:
        """Yield what is prepared, and whether its pages are kept."""
        for run in runs:
            if run.kernel is not None:
                yield run, run.kernel, False
                if run.warm is not None and self._wants_warm(run):
                    yield run, run.warm, True
                if run.rival is not None and run.rival.kernel is not None:
                    yield run.rival, run.rival.kernel, False

    def _sample(self, runs: Sequence[BackendRun], number: int) -> None:
        rounds = ROUNDS if self._visits == 1 else 1
        subjects: dict[Hashable, tuple[BackendRun, bool, Subject]] = {}
        for run, kernel, warm in list(self._ready(runs)):
            policy = self._kernels.sampling_policy(run.spec, kernel.facts)
            subject = Subject(
                key=_key(run, warm=warm),
                sample=kernel.sample,
                policy=dataclasses.replace(policy, visits=max(rounds, self._visits)),
                process=kernel.generation,
                preparation=number,
                size=run.size.get(warm),
            )
            subjects[subject.key] = (run, warm, subject)
        taken = [subject for _, _, subject in subjects.values()]
        errors = self._study.take(taken, first=number * rounds, rounds=rounds)
        # Who died with its process died of what was sampled there first.
        deaths: dict[tuple[str, str, bool], PydlbenchError] = {}
        for key, error in errors.items():
            run, warm, _ = subjects[key]
            if isinstance(error, WorkerError):
                place = (run.spec.backend, run.spec.device, warm)
                errors[key] = deaths.setdefault(place, error)
        for key, (run, warm, subject) in subjects.items():
            if subject.size is not None:
                run.size[warm] = subject.size
            if key in errors:
                if rounds > 1:  # of a process that has died nothing counts
                    self._study.table.forget(key)
                self._failed(run, warm, errors[key])
            elif run in self._runs:
                run.visited = True

    def _failed(self, run: BackendRun, warm: bool, error: PydlbenchError) -> None:
        if run in self._runs and not warm:
            lose(self._kernels, run, error)
        # Without kept pages a column stays empty, without a rival the first kernel has won.
        for other in self._runs:
            if other.rival is run:
                self._study.table.forget(_key(run))
                self._held += run.kernels
                other.rival = None

    def _end_early(self, runs: Sequence[BackendRun]) -> None:
        """Visit no more what is known well enough to be slower, rivals and backends."""
        if self._visits == 1:
            return
        timed = [run for run in runs if self._count(run) >= _FEW and run.row is None]
        for run in timed:
            self._settle_rival(run, beyond_doubt=self._count(run) < _RIVAL_VISITS)
        series = {index: self._study.table.of(_key(run)) for index, run in enumerate(timed)}
        if len(series) < 2:
            return
        best, to_best = ratios(series, _references(dict(enumerate(timed))))
        for index, run in enumerate(timed):
            explained = run.warm is None or not self._wants_warm(run)
            if run.spec.backend != "native" and to_best[index].above(_FAR) and explained:
                run.ended = f"more than {_FAR:g} times as slow as {timed[best].name}"

    def _settle_rival(self, run: BackendRun, *, beyond_doubt: bool = False) -> None:
        """Take the faster one of a run's two kernels, if that is known."""
        rival, table = run.rival, self._study.table
        if rival is None:
            return
        if _key(rival) in table and _key(run) in table:
            to_first = ratio(table.of(_key(rival)), table.of(_key(run)))
            back = ratio(table.of(_key(run)), table.of(_key(rival)))
            if beyond_doubt and not (to_first.above(1.0) or back.above(1.0)):
                return
            near = max(to_first.median, back.median) <= NEAR
            faster = to_first.median < 1
            if faster and not _verified(self._kernels, rival):
                faster = near = False
            run.second = (run.variant if faster else rival.variant) if near else None
            if faster:
                table.replace(_key(run), _key(rival))
                run.facts, run.variant = _chosen(rival, run), rival.variant
                run.kernel, rival.kernel = rival.kernel, run.kernel
        elif beyond_doubt:
            return
        table.forget(_key(rival))
        self._held += rival.kernels
        run.rival = None

    def _rows(
        self, runs: Sequence[BackendRun], *, complete: bool, reason: str = ""
    ) -> list[Measurement]:
        """Return rows of the visits there are, with ratios where several backends compete.

        Args:
            runs: with visits.
            complete: whether all have had what they were to have.
            reason: see :meth:`conclude`.
        """
        table = self._study.table
        for run in runs:
            run.samples = table.of(_key(run))
            warm = _key(run, warm=True)
            run.warm_samples = table.of(warm) if warm in table else None
        if not runs:
            return []
        detail = {id(run): self._detail(run, complete, reason) for run in runs}
        if len(self._runs) > 1:
            rows = _paired(self._kernels, runs)
        else:
            rows = [_row(self._kernels, run) for run in runs]
        rule = "rounds" if complete else "interrupted"
        return [
            msgspec.structs.replace(row, stop_rule=rule, stop_reason=detail[id(run)])
            for run, row in zip(runs, rows, strict=True)
        ]

    def _detail(self, run: BackendRun, complete: bool, reason: str) -> str:
        samples = run.samples
        assert samples is not None, "it was sampled"
        made = samples.preparations
        if complete:
            where = "one process" if samples.processes == 1 else f"{samples.processes} processes"
            words = f"{made} repetition{'s' * (made > 1)} in {where}, {samples.spent_s:.3g} s"
        else:
            words = f"{made} of {self._visits} repetitions made, {samples.spent_s:.3g} s"
        return "; ".join(filter(None, (words, run.ended, reason)))

    def _release(self, *, everything: bool, held: bool) -> None:
        """Free what need not stay.

        Args:
            everything: also kernels of frameworks that may be kept until the next visit.
            held: also those of earlier visits, which keep their memory until the end.
        """
        kernels: list[RemoteKernel[KernelFacts]] = []
        for run in self._runs:
            quick = _is_quick(run.spec)
            if everything or run.row is not None or run.ended or quick:
                stays = self._in_place and quick and not held
                (self._held if stays else kernels).extend(run.kernels)
                run.kernel = run.warm = None
                if run.rival is not None:
                    run.rival.kernel = None
        if held or not self._in_place:
            kernels += self._held
            self._held = []
        with releasing(kernels):
            pass


def _key(run: BackendRun, *, warm: bool = False) -> tuple[int, bool]:
    """Return what a run is called in the table."""
    return id(run), warm


def _keys(run: BackendRun) -> list[tuple[int, bool]]:
    return [_key(run), _key(run, warm=True)]


def _is_quick(spec: KernelSpec) -> bool:
    """Whether a kernel whose variant is known is soon prepared, so that it need not be kept."""
    return spec.backend == "native" and not spec.on_gpu


def _is_there(kernel: RemoteKernel[KernelFacts] | None) -> bool:
    return kernel is not None and kernel.alive


def lose(kernels: Kernels, run: BackendRun, error: PydlbenchError) -> None:
    """Take a visit from a run whose kernel cannot be prepared or sampled, or all that follow.

    The death of a worker is forgiven once where there are more visits: the next one tries again.
    What earlier visits have measured stays; only without any is there no time.
    """
    words = " ".join(str(error).split())
    run.lost.append(words)
    if isinstance(error, WorkerError) and run.patience > 0:
        run.patience -= 1
    elif run.visited:
        run.ended = words
    else:
        run.row = without_time(kernels, run.spec, error)


def _row(kernels: Kernels, run: BackendRun, clock_hz: float | None = None) -> Measurement:
    """Return the row of a run's samples, with what it has to say of visits that it lost.

    Args:
        kernels: of the session.
        run: with samples.
        clock_hz: of somebody else on the same cores, where its own is not known.
    """
    assert run.facts is not None, "it was sampled"
    assert run.samples is not None, "it was sampled"
    row = kernels.row(run.spec, run.facts, run.samples, clock_hz)
    if not run.lost:
        return row
    number = "a visit" if len(run.lost) == 1 else f"{len(run.lost)} visits"
    words = f"{number} failed, {run.samples.preparations} made the row: {run.lost[-1]}"
    return msgspec.structs.replace(row, warnings=(*row.warnings, words))


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
        other
        for other in before
        if (other.spec.backend, other.spec.device) == (run.spec.backend, run.spec.device)
    ]
    if not _is_there(run.kernel) and _prepare_default(kernels, run, alone=alone):
        for other in same:
            if other.kernel is not None:
                _prepare_default(kernels, other)
    if (
        warm
        and not alone
        and run.kernel is not None
        and not _is_there(run.warm)
        and kernels.allocates(run.spec)
        and _prepare_warm(kernels, run)
    ):
        for other in same:
            if other.warm is not None:
                _prepare_warm(kernels, other)


def _prepare_default(kernels: Kernels, run: BackendRun, *, alone: bool = False) -> bool:
    """Prepare as users run it; return whether the worker died of it."""
    run.kernel = None
    try:
        run.kernel = kernels.prepare(run.spec, variant=run.variant, alone=alone, finals=False)
    except PydlbenchError as error:
        lose(kernels, run, error)
        return isinstance(error, WorkerError)
    if run.facts is None:
        run.facts = run.kernel.facts
        run.variant = variant_of(run.spec, run.facts)
        _size(kernels, run)
        if (variant := kernels.rival_of(run.spec, run.facts)) is not None:
            run.rival = BackendRun(run.spec, variant=variant)
    return False


def _prepare_rival(kernels: Kernels, run: BackendRun, *, alone: bool) -> None:
    """Prepare the second kernel of a run; without it the first one is the only one."""
    rival = run.rival
    assert rival is not None, "there is one"
    rival.kernel = None
    try:
        rival.kernel = kernels.prepare(
            run.spec, variant=rival.variant, alone=alone, finals=False, unchecked=True
        )
    except WorkerError:
        run.rival = None
        _prepare_default(kernels, run, alone=alone)
        return
    except PydlbenchError:  # what the search has chosen is right
        run.rival = None
        return
    if rival.facts is None:
        rival.facts = rival.kernel.facts
        _size(kernels, rival)


def _size(kernels: Kernels, run: BackendRun) -> None:
    """Take what is known of how long a kernel runs, before it is first sampled."""
    assert run.kernel is not None, "it was made ready"
    size = kernels.known_size(run.spec, run.variant, run.kernel.generation)
    if size is not None:
        run.size[False] = size


def _verified(kernels: Kernels, rival: BackendRun) -> bool:
    """Whether a rival gives a right result: nothing that it is faster is believed before."""
    try:
        kernel = kernels.prepare(rival.spec, variant=rival.variant, finals=False)
    except PydlbenchError:
        return False
    with releasing([kernel]):
        rival.facts = kernel.facts
    return rival.facts.correct.status == "ok"


def _prepare_warm(kernels: Kernels, run: BackendRun) -> bool:
    """Prepare the same where pages are kept; return whether the worker died of it."""
    run.warm = None
    if run.facts is None:
        return False
    try:
        run.warm = kernels.prepare(run.spec, warm=True, variant=run.variant)
    except PydlbenchError as error:
        # The column stays empty; the row itself is what was asked for.
        return isinstance(error, WorkerError)
    run.warm_facts = run.warm_facts or run.warm.facts
    return False


def _chosen(rival: BackendRun, run: BackendRun) -> KernelFacts:
    """Return the facts of the kernel that has won, beside all that the search has tried."""
    assert rival.facts is not None, "it was sampled"
    assert run.facts is not None, "it was sampled"
    candidates = [
        {**tried, "chosen": f"{tried['algorithm']} {tried['layout']}" == rival.variant}
        for tried in run.facts.candidates
    ]
    return dataclasses.replace(rival.facts, candidates=candidates, notes=run.facts.notes)


def without_time(kernels: Kernels, spec: KernelSpec, error: PydlbenchError) -> Measurement:
    """Return the row of a spec that could not be prepared or sampled."""
    status = "skipped" if isinstance(error, UnsupportedError) else "failed"
    return empty_row(spec, kernels.threads(spec), status, str(error))


def explain(kernels: Kernels, runs: Sequence[BackendRun]) -> None:
    """Look for what makes the slow ones slow.

    Args:
        kernels: of the session; knows what logs and empty calls tell.
        runs: with samples and rows.
    """
    for run in runs:
        assert run.row is not None, "it was made"
        empty = None if run.spec.backend == "native" else kernels.empty_call_s(run.spec)
        run.row = msgspec.structs.replace(run.row, empty_call_s=empty)
    for run in runs:
        row = run.row
        if row is None or row.ratio is None:
            continue
        best = next(other for other in runs if other.name == row.ratio["to"])
        low = row.ratio["ci_low"] or row.ratio["median"]
        if row.ratio["median"] > SLOW and low > 1:
            if run.facts is not None and "kernel_s" not in run.facts.evidence:
                if run.warm_samples is not None and not _is_there(run.warm):
                    _prepare_warm(kernels, run)
                unlogged = run.warm if run.warm_samples is not None else None
                run.log = kernels.logged(run.spec, run.variant, unlogged)
            run.row = explained(row, run, best)


def _paired(kernels: Kernels, runs: Sequence[BackendRun]) -> list[Measurement]:
    """Return rows with everybody's ratio to the fastest in the rounds that both have.

    Args:
        kernels: of the session.
        runs: with samples, at least one.
    """
    timed = {index: run.samples for index, run in enumerate(runs) if run.samples is not None}
    best, to_best = ratios(timed, _references(dict(enumerate(runs))))
    rows = []
    for index, run in enumerate(runs):
        clock_hz, clock_from = _clocked(run, runs)
        warm = run.warm_samples
        row = msgspec.structs.replace(
            _row(kernels, run, clock_hz),
            clock_from=clock_from,
            ratio=_ratio_fields(to_best[index], runs[best].name),
            warm_s=None if warm is None else warm.median,
            faults=_faults(run),
        )
        rows.append(row)
    return rows


def _references(runs: Mapping[int, BackendRun]) -> set[int]:
    """Return whom others may be compared with: who sums as exactly as the native kernel.

    Without a native one it is who sums as exactly as any of them: rounding partial sums to fewer
    bits saves time, and its results are not the same.
    """
    sums = {index: run.facts.accumulate for index, run in runs.items() if run.facts is not None}
    native = {sums[index] for index in sums if runs[index].spec.backend == "native"}
    wanted = native or set(sums.values())
    return {index for index, own in sums.items() if not any(less_exact(own, it) for it in wanted)}


def _clocked(run: BackendRun, runs: Sequence[BackendRun]) -> tuple[float | None, str | None]:
    """Return the clock of the native samples on the same cores, and whose it is, for one without.

    A framework's process reads none, and its peak would be that of the clock of the probe, minutes
    ago. With code of other widths the clock may differ; between rounds it differs more.
    """
    if run.samples is None or run.samples.clock_hz is not None or run.spec.on_gpu:
        return None, None
    for other in runs:
        if other.spec.backend == "native" and other.samples is not None:
            clock_hz = clock_beside(run.samples, other.samples)
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
    if not run.samples:
        return None
    warm = run.warm_samples
    counted = {"default": run.samples.faults, "warm": None if warm is None else warm.faults}
    known = {name: value for name, value in counted.items() if value is not None}
    return known or None
