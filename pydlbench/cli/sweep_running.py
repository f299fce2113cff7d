"""Runs the jobs of a sweep; a row that fails costs itself, and what is finished is kept at once."""

from __future__ import annotations

import dataclasses
import datetime as dt
import math
import sys
import time
import uuid
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Self, TextIO

import msgspec

from pydlbench.cli.check import Checks
from pydlbench.cli.recorder import Recorder
from pydlbench.cli.sweep import kept_kernels, kernel_key, row_key, same_kernel
from pydlbench.cli.terminal import OneInterrupt, Progress, tell
from pydlbench.errors import PydlbenchError, UnsupportedError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping, Sequence
    from contextlib import AbstractContextManager
    from types import TracebackType

    from pydlbench.cli.sweep_output import SweepOutputs
    from pydlbench.records.measurement import Measurement
    from pydlbench.records.run import RunRecord
    from pydlbench.records.specs import KernelSpec
    from pydlbench.runner.sweep import Job, Row, SweepFile
    from pydlbench.runner.sweep_forecast import Span
    from pydlbench.store.entry import Entry

__all__ = ["Outcome", "Sweep", "SweepProgress"]


# -----------------------------------------------------------------------------
# A sweep from its first row to its conclusion: one run in the store, whatever ends it.


class Sweep:
    """Runs a file's jobs and shows what came of them.

    Args:
        file: that was read.
        jobs: what it asks for.
        recorder: keeps what is finished; may go on with an earlier run.
        quiet: no progress.
    """

    def __init__(
        self, file: SweepFile, jobs: Sequence[Job], recorder: Recorder, *, quiet: bool
    ) -> None:
        self._file = file
        self._jobs = jobs
        self._recorder = recorder
        self._quiet = quiet
        # All that is finished, by key, without raw samples.
        self._entries: dict[str, Entry] = {}
        self._describe: Callable[[], RunRecord] = _new_run

    def run(
        self,
        outputs: SweepOutputs,
        factories: Mapping[str, Callable[..., Any]],
        checker: Callable[..., Any] | None,
    ) -> int:
        """Measure what is not there yet; see :func:`pydlbench.cli.sweep.run`."""
        from pydlbench.cli.sweep import request_of
        from pydlbench.cli.sweep_output import make_forecast
        from pydlbench.cli.terminal import OneInterrupt, tell

        forecast = make_forecast(self._recorder.store)
        spans = [forecast.job(job) for job in self._jobs]
        progress = SweepProgress(sys.stderr, self._jobs, spans, quiet=self._quiet)
        first = _new_run()
        self._recorder.start(first, request_of(self._file))
        # What is known where no session is opened any more, or before one is.
        resumed = self._recorder.resumed
        known = first if resumed is None else resumed.record
        interrupted = False
        with OneInterrupt() as interrupts:
            sessions = Sessions({**_factories(), **factories})
            self._describe = lambda: sessions.described(known)
            runner = Runner(
                sessions,
                factories.get("check", _open_session),
                checker,
                self._done(),
                self._keep,
                progress,
            )
            try:
                try:
                    with sessions:
                        runner.run(self._jobs)
                finally:
                    # Inside the outer try: no moment is left in which Ctrl-C could get past it.
                    interrupts.ignore()
            except KeyboardInterrupt:
                interrupted = True
            finally:
                progress.close()
            record = self._recorder.own(sessions.described(known))
            self._recorder.finish(record, "interrupted" if interrupted else "done")
            entries = list(self._entries.values())
            where = self._recorder.where if self._recorder.begun else None
            outputs.show(
                self._file, record, runner.outcomes, entries, where=where, interrupted=interrupted
            )
        if interrupted:
            total = sum(len(job.rows) for job in self._jobs)
            tell(f"interrupted: {len(runner.outcomes)} of {total} rows finished")
            if where is not None:
                tell(f"go on with: pydlbench sweep --resume {record.id}{where}")
            return 130
        return 0 if any(one.status == "ok" for one in runner.outcomes) else 1

    def _keep(self, table: str, document: dict[str, Any], key: str) -> None:
        from pydlbench.store.entry import Entry

        self._recorder.add(table, document, key)
        # What was probed for the row: a sweep that is killed has it all the same.
        self._recorder.describe(self._describe)
        self._entries.pop(key, None)
        self._entries[key] = Entry(table, Entry.of(table, document).document, None, key)

    def _done(self) -> dict[str, tuple[str, dict[str, Any]]]:
        """Return what an earlier attempt has finished, by key."""
        from pydlbench.cli.sweep import kernel_of

        resumed = self._recorder.resumed
        if resumed is None:
            return {}
        answered = resumed.done()
        for entry in resumed.entries():
            if entry.key is not None:
                self._entries[entry.key] = entry
        # An estimate without a kernel that failed is not what was asked for.
        unsure = {kernel_of(key) for key in self._entries if key not in answered}
        return {
            key: (entry.table, entry.document)
            for key, entry in self._entries.items()
            if key in answered and key not in unsure
        }


def _new_run() -> RunRecord:
    """Return the record of a run on this machine, with nothing probed yet."""
    from pydlbench.backends import capabilities
    from pydlbench.devices.cpu.affinity import choose_cpus
    from pydlbench.devices.cpu.facts import read_cpu_facts
    from pydlbench.devices.cpu.record import start_record
    from pydlbench.records.run import RunRecord

    facts = read_cpu_facts()
    now = dt.datetime.now(dt.UTC)
    return RunRecord(
        id=f"{now:%Y%m%d}-{uuid.uuid4().hex[:8]}",
        created_utc=now.isoformat(timespec="seconds"),
        command=tuple(sys.argv),
        device=start_record(facts, choose_cpus(facts, None)).to_dict(),
        environment=capabilities.environment(),
    )


def _factories() -> dict[str, Callable[..., Any]]:
    from pydlbench.cli.e2e import open_session

    return {"layers": _open_session, "e2e": open_session}


def _open_session(**options: Any) -> Any:
    from pydlbench.runner.session import Options, Session

    return Session(Options(**options))


# -----------------------------------------------------------------------------
# The sessions of a sweep: one at a time, kept for as long as the next job wants the same.


class Sessions:
    """Opens, keeps and closes sessions, and remembers the devices that they described.

    Args:
        factories: by name, what opens a session for keywords of ``measure.Options``.
    """

    def __init__(self, factories: Mapping[str, Callable[..., AbstractContextManager[Any]]]) -> None:
        self._factories = factories
        self._key: tuple[str, dict[str, Any]] | None = None
        self._manager: AbstractContextManager[Any] | None = None
        self._session: Any = None
        self._runs: list[RunRecord] = []

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()

    def get(self, name: str, options: Mapping[str, Any]) -> Any:
        """Return a session with these options: the one that is open, or a new one."""
        key = (name, dict(options))
        if self._key != key:
            self.close()
            manager = self._factories[name](**options)
            self._session = manager.__enter__()
            self._manager, self._key = manager, key
        return self._session

    def close(self) -> None:
        """Close the session that is open, its device noted down before."""
        manager, key = self._manager, self._key
        self._manager = self._key = None
        if manager is None or key is None:
            return
        try:
            self.note(self._session.run)
        finally:
            self._session = None
            manager.__exit__(None, None, None)

    def note(self, run: RunRecord | None) -> None:
        """Remember what a session said of its run."""
        if run is not None:
            self._runs.append(run)

    def described(self, run: RunRecord) -> RunRecord:
        """Return a run's record with all that was found on the devices that were used.

        Sessions come one after another, and each probes only what its own rows need.
        """
        from pydlbench.store.resume import continued

        found: RunRecord | None = None
        for one in [*self._runs, *([] if self._session is None else [self._session.run])]:
            found = one if found is None else continued(found, one)
        if found is None:
            return run
        environment = {**run.environment, **found.environment}
        return msgspec.structs.replace(run, device=found.device, environment=environment)


# -----------------------------------------------------------------------------
# The cross-checks of a sweep: one step in several frameworks and modes, its native rows shared.


class CheckJob:
    """Takes the checks of a job that are not there yet.

    Args:
        job: with a ``CheckRequest``.
        todo: its rows that are wanted.
        finished: called with each row and its document.
        native: called with case, document and key of each native row.
        progress: called with rows done, as a fraction too, and what is done next.

    Attributes:
        interrupted: Ctrl-C came before all were finished.
    """

    def __init__(
        self,
        job: Job,
        todo: Sequence[Row],
        finished: Callable[[Row, dict[str, Any]], None],
        native: Callable[[KernelSpec, dict[str, Any], str], None],
        progress: Callable[[float, str], None],
    ) -> None:
        self.interrupted = False
        self._job = job
        self._left = {row.case: row for row in todo}
        self._request = dataclasses.replace(job.request, subjects=tuple(self._left))
        self._before = len(job.rows) - len(todo)
        self._count = len(todo)
        self._checks: Checks | None = None
        self._finished = finished
        self._keep = native
        self._progress = progress

    def run(
        self, factory: Callable[..., Any], checker: Callable[..., Any] | None
    ) -> RunRecord | None:
        """Take them and return what the session said of its run.

        Raises:
            PydlbenchError: there is no session, or the native rows cannot be measured at all.
        """
        passing = _Passing(self._native, self._result)
        self._checks = checks = Checks(self._request, self._advance, factory, checker, passing)
        checks.take(_Deaf())
        self.interrupted = checks.interrupted
        return checks.run

    def refused(self, status: str, reason: str) -> Iterator[tuple[Row, dict[str, Any]]]:
        """Yield the rows that are left, with a document that says why they have no result."""
        for (framework, mode), row in self._left.items():
            result = self._request.result(framework, mode, status=status, reason=reason)
            yield row, result.to_dict(None)

    def _advance(self, done: int, total: int, label: str) -> None:
        model = self._request.model
        rows = self._before + self._count * min(done / total, 1.0)
        self._progress(rows, f"{model.name} batch {model.batch}: {label}")

    def _native(self, measured: Measurement) -> None:
        assert self._checks is not None  # whose rows these are
        case = next(reversed(self._checks.rows))
        # By the job's first row: all of them share it.
        self._keep(case, measured.to_dict(), kernel_key(self._job, self._job.rows[0], case))

    def _result(self, document: dict[str, Any]) -> None:
        row = self._left.pop((document["framework"], document["mode"]))
        self._finished(row, document)


class _Passing(Recorder):
    """Takes what a cross-check would keep, and passes it on.

    Args:
        layer: called with each native row.
        check: called with each result's document.
    """

    def __init__(
        self, layer: Callable[[Measurement], None], check: Callable[[dict[str, Any]], None]
    ) -> None:
        super().__init__(None, "check")
        self._layer, self._check = layer, check

    def layer(
        self,
        row: Measurement,
        samples: Sequence[float] | None = None,  # noqa: ARG002 - as its base has it
        key: str | None = None,  # noqa: ARG002 - likewise
    ) -> None:
        """Pass a native row on."""
        self._layer(row)

    def add(
        self,
        table: str,  # noqa: ARG002 - it is always a check
        document: Mapping[str, Any],
        key: str | None = None,  # noqa: ARG002 - as its base has it
    ) -> None:
        """Pass a result on."""
        self._check(dict(document))


class _Deaf(OneInterrupt):
    """Ctrl-C is handled by the sweep, not by one of its checks."""

    def ignore(self) -> None:
        """Go on listening."""


# -----------------------------------------------------------------------------
# The estimate of a sweep's row: its kernels, from wherever they are, and their sum.


class EstimateRow:
    """Sums the kernels of a step.

    Args:
        job: with a ``ModelRequest``.
        row: of it.
        cache_bytes: of the device's last cache: what is smaller has no cold time of its own.
    """

    def __init__(self, job: Job, row: Row, cache_bytes: int) -> None:
        self._job = job
        self._row = row
        self._cache_bytes = cache_bytes

    def document(
        self, kernel: Callable[[Job, Row, KernelSpec, str, float], Measurement]
    ) -> dict[str, Any]:
        """Return the JSON object.

        Args:
            kernel: gives a kernel's row for job, row, case, a label, and the share that is done.

        Raises:
            PydlbenchError: none of the layers could be measured.
        """
        from pydlbench.cli.model import summed
        from pydlbench.ladder.estimate import plan

        job, asked = self._job, self._job.request
        wanted = plan(asked.model, asked.phase, asked.precision, asked.device, self._cache_bytes)
        count = len(wanted.cases)
        rows: dict[KernelSpec, Measurement] = {}
        for number, case in enumerate(wanted.cases):
            label = f"{self._row.label}: {case.label}, {number} of {count} kernels"
            rows[case] = kernel(job, self._row, case, label, number / count)
        found = summed(asked, wanted, rows, self._cache_bytes)
        if not found.estimate.layers:
            reasons = dict.fromkeys(one.reason for one in rows.values() if one.reason)
            raise PydlbenchError(f"no layer could be measured: {next(iter(reasons), 'no layers')}")
        return found.document


# -----------------------------------------------------------------------------
# What came of a sweep's row.


@dataclass(frozen=True, slots=True)
class Outcome:
    """What came of a row.

    Attributes:
        job: that it belongs to.
        row: what was wanted.
        table: of the store; empty where there is nothing to keep.
        document: its JSON object.
        status: ``ok``, ``skipped`` or ``failed``.
        reason: why it is not ok.
    """

    job: Job
    row: Row
    table: str
    document: Mapping[str, Any]
    status: str
    reason: str | None = None


def is_ok(document: Mapping[str, Any]) -> bool:
    """Whether a row's document says that it was measured."""
    return str(document.get("status", "ok")) == "ok"


def verdict(error: PydlbenchError) -> tuple[str, str]:
    """Return status and reason of what ``error`` has stopped."""
    status = "skipped" if isinstance(error, UnsupportedError) else "failed"
    return status, " ".join(str(error).split())


class Runner:
    """Measures what is not there yet.

    Args:
        sessions: to measure with: ``layers`` and ``e2e``.
        check_factory: opens the session of a cross-check.
        checker: takes the place of ``pydlbench.ladder.check.check``.
        done: documents that an earlier attempt has finished, by key.
        keep: called with table, document and key of whatever is finished.
        progress: called with the job, how many rows of it are done (a part of a row counts as a
            fraction), and what is done next.

    Attributes:
        outcomes: of all rows so far, earlier attempts' included.
    """

    def __init__(
        self,
        sessions: Sessions,
        check_factory: Callable[..., Any],
        checker: Callable[..., Any] | None,
        done: Mapping[str, tuple[str, dict[str, Any]]],
        keep: Callable[[str, dict[str, Any], str], None],
        progress: Callable[[Job, float, str], None],
    ) -> None:
        self.outcomes: list[Outcome] = []
        self._sessions = sessions
        self._check_factory = check_factory
        self._checker = checker
        self._done = done
        self._keep = keep
        self._progress = progress
        self._listed: set[int] = set()
        # What estimates can share with each other and with layers, by kernel.
        self._kernels = kept_kernels(done)

    def run(self, jobs: Sequence[Job]) -> None:
        """Run all jobs in their order.

        Raises:
            KeyboardInterrupt: Ctrl-C; ``outcomes`` has what was finished.
        """
        try:
            todos = [self._todo(job) for job in jobs]
            for job, todo in zip(jobs, todos, strict=True):
                self._progress(job, len(job.rows) - len(todo), "")
            for job, todo in zip(jobs, todos, strict=True):
                left = {id(row) for row in todo}
                for row in job.rows:
                    if id(row) not in left:
                        self._take(job, row)
                if todo:
                    {
                        "layers": self._layers,
                        "model": self._model,
                        "e2e": self._e2e,
                        "check": self._check,
                    }[job.kind](job, todo)
                self._progress(job, len(job.rows), "")
        finally:
            # Whatever ends it early: what an earlier attempt has finished is there all the same.
            for job in jobs:
                for row in job.rows:
                    if id(row) not in self._listed:
                        self._take(job, row)

    def _todo(self, job: Job) -> list[Row]:
        """Return the rows to be measured: those that are missing, and what they compete with."""
        from pydlbench.cli.resuming import unfinished

        missing = [row for row in job.rows if row_key(job, row) not in self._done]
        if job.kind == "e2e" and missing:
            return list(job.rows)  # its steps are timed in turn
        if job.kind == "layers" and missing:
            wanted = {row.case for row in missing}
            again = set(unfinished([row.case for row in job.rows], lambda one: one not in wanted))
            return [row for row in job.rows if row.case in again]
        return missing

    def _take(self, job: Job, row: Row) -> None:
        """Take a row from an earlier attempt, if it has finished that."""
        found = self._done.get(row_key(job, row))
        if found is not None:
            self._list(job, row, *found)

    def _finished(
        self, job: Job, row: Row, table: str, document: dict[str, Any], *, kept: bool = True
    ) -> None:
        key = row_key(job, row)
        before = self._done.get(key)
        if before is not None and not is_ok(document) and is_ok(before[1]):
            # Measured again for the sake of another one: it is not given up for that.
            self._list(job, row, *before)
            return
        if kept:
            self._keep(table, document, key)
        shown = {name: value for name, value in document.items() if name != "samples_s"}
        self._list(job, row, table, shown)

    def _list(self, job: Job, row: Row, table: str, document: dict[str, Any]) -> None:
        self._remember(job, row.case, table, document)
        status = str(document.get("status", "ok"))
        self._listed.add(id(row))
        self.outcomes.append(Outcome(job, row, table, document, status, document.get("reason")))

    def _remember(self, job: Job, case: Any, table: str, document: dict[str, Any]) -> None:
        if table == "layer" and document.get("status") == "ok":
            self._kernels.setdefault(same_kernel(job, case), document)

    # --- layers -----------------------------------------------------------------------------

    def _layers(self, job: Job, todo: Sequence[Row]) -> None:
        from pydlbench.runner.problem import by_problem

        waiting: dict[KernelSpec, list[Row]] = {}
        for row in todo:
            waiting.setdefault(row.case, []).append(row)
        count = len(job.rows) - len(todo)
        # Group by group: a problem that does not fit into memory costs its own rows only.
        for group in by_problem([row.case for row in todo]):
            self._progress(job, count, waiting[group[0]][0].label)
            for case, measured in zip(group, self._measured(job, group), strict=True):
                self._finished(job, waiting[case].pop(0), "layer", measured.to_dict())
            count += len(group)

    def _measured(self, job: Job, cases: Sequence[KernelSpec]) -> list[Measurement]:
        """Return a row for each case, those that could not be measured with the reason."""
        from pydlbench.runner.measuring import empty_row

        found: list[Measurement] = []
        try:
            session = self._layer_session(job)
            # Not extend(): what was measured before a failure counts.
            for one in session.measure(cases, progress=lambda *_: None):
                found.append(one)  # noqa: PERF402 - see above
        except PydlbenchError as error:
            status, reason = verdict(error)
            threads = job.options.get("threads")
            found += [empty_row(case, threads, status, reason) for case in cases[len(found) :]]
        return found

    def _layer_session(self, job: Job) -> Any:
        """Return the session of a table's kernels; those of an estimate are its summands."""
        options = {**job.options, "keep_samples": True, "estimate": job.kind == "model"}
        return self._sessions.get("layers", options)

    # --- model ------------------------------------------------------------------------------

    def _model(self, job: Job, todo: Sequence[Row]) -> None:

        for row in todo:
            try:
                cache = self._layer_session(job).cache_bytes(job.request.device)
                document = EstimateRow(job, row, cache).document(self._kernel)
            except PydlbenchError as error:
                status, reason = verdict(error)
                failed = {**row.fields, "status": status, "reason": reason}
                self._finished(job, row, "", failed, kept=False)
            else:
                self._finished(job, row, "estimate", document)

    def _kernel(
        self, job: Job, row: Row, case: KernelSpec, label: str, share: float
    ) -> Measurement:
        """Return a kernel of an estimate: one that is there already, or a new one."""
        from pydlbench.records.measurement import Measurement

        key = kernel_key(job, row, case)
        known = self._done[key][1] if key in self._done else None
        if known := known or self._kernels.get(same_kernel(job, case)):
            there = Measurement.from_dict(known)
            if there.ok and there.cache == "hot":
                self._layer_session(job).remember(case, there.algorithm, there.layout)
            return there
        self._progress(job, share, label)
        (measured,) = self._measured(job, [case])
        self._keep("layer", measured.to_dict(), key)
        measured = msgspec.structs.replace(measured, samples_s=None)
        self._remember(job, case, "layer", measured.to_dict())
        return measured

    # --- e2e --------------------------------------------------------------------------------

    def _e2e(self, job: Job, todo: Sequence[Row]) -> None:
        from pydlbench.records.step import StepRecord
        from pydlbench.steps.run import check_memory

        model, checks = job.request
        cases = [row.case for row in todo]
        before = len(job.rows) - len(todo)

        def advance(done: int, _total: int, label: str) -> None:
            self._progress(job, before + done, f"{label}, batch {model.batch}")

        try:
            session = self._sessions.get("e2e", job.options)
            check_memory(model, cases, session.memory_bytes)
            records = session.steps(cases, checks=checks, progress=advance)
        except PydlbenchError as error:
            status, reason = verdict(error)
            records = [StepRecord(case=case, status=status, reason=reason) for case in cases]
        for row, record in zip(todo, records, strict=True):
            self._finished(job, row, "step", record.to_dict())

    # --- check ------------------------------------------------------------------------------

    def _check(self, job: Job, todo: Sequence[Row]) -> None:
        from pydlbench.cli.check import check_room

        # A session of its own: the cross-check opens workers with several allocators.
        self._sessions.close()

        def native(case: KernelSpec, document: dict[str, Any], key: str) -> None:
            # One that an estimate has measured already would be the same row twice.
            if same_kernel(job, case) not in self._kernels:
                self._keep("layer", document, key)
                self._remember(job, case, "layer", document)

        checks = CheckJob(
            job,
            todo,
            lambda row, document: self._finished(job, row, "check", document),
            native,
            lambda done, label: self._progress(job, done, label),
        )
        try:
            check_room(job.request)
            run = checks.run(self._check_factory, self._checker)
        except PydlbenchError as error:
            for row, document in checks.refused(*verdict(error)):
                self._finished(job, row, "check", document)
        else:
            self._sessions.note(run)
        if checks.interrupted:
            raise KeyboardInterrupt


# -----------------------------------------------------------------------------
# How far a sweep is and how long it will take: a bar on a terminal, now and then a line
# elsewhere.
#
# A row of one job may take a hundred times as long as one of another, so the time that is left is
# counted in forecast seconds, not in rows: what the finished ones took against what they should
# have.


class SweepProgress:
    """Callback for ``Runner``; call ``close`` before anything else is printed.

    Args:
        stream: where the bar is drawn; lines go to standard error.
        jobs: all of them.
        spans: forecast of each.
        quiet: show nothing.
        every_s: seconds between two lines where there is no terminal.
        now: clock, for tests.
    """

    def __init__(
        self,
        stream: TextIO,
        jobs: Sequence[Job],
        spans: Sequence[Span],
        *,
        quiet: bool = False,
        every_s: float = 30.0,
        now: Callable[[], float] = time.monotonic,
    ) -> None:
        self._bar = Progress(stream, quiet=quiet)
        self._lines = not quiet and not stream.isatty()
        self._every_s, self._now = every_s, now
        self._total = sum(len(job.rows) for job in jobs)
        self._place = {id(job): index for index, job in enumerate(jobs)}
        self._rows = [len(job.rows) for job in jobs]
        self._seconds = [math.sqrt(max(span.low, 1e-3) * max(span.high, 1e-3)) for span in spans]
        self._done = [0.0] * len(jobs)
        self._there = 0.0  # forecast seconds of rows that an earlier attempt has finished
        self._measured = False
        self._start = self._told = now()

    def __call__(self, job: Job, done: float, label: str) -> None:
        """Show that ``done`` rows of a job are ready and ``label`` is being timed."""
        self._done[self._place[id(job)]] = done
        if not label and not self._measured:
            self._there = self._forecast_done()
        self._measured = self._measured or bool(label)
        rows = int(sum(self._done))
        self._bar(rows, self._total, self._text(label))
        if self._lines and label and self._now() - self._told >= self._every_s:
            self._told = self._now()
            tell(f"{rows} of {self._total} rows; {self._text(label)}")

    def left_s(self) -> float | None:
        """Return the seconds that are left, or None before anything is finished."""
        done = self._forecast_done() - self._there
        if done <= 0:
            return None
        rest = sum(self._seconds) - self._there - done
        return (self._now() - self._start) * rest / done

    def close(self) -> None:
        """Wipe the bar."""
        self._bar.close()

    def _forecast_done(self) -> float:
        return sum(
            seconds * done / rows
            for seconds, done, rows in zip(self._seconds, self._done, self._rows, strict=True)
        )

    def _text(self, label: str) -> str:
        left = self.left_s()
        return label if left is None else f"{label}; about {_duration(left)} left"


def _duration(seconds: float) -> str:
    if seconds < 90:
        return f"{seconds:.0f} s"
    return f"{seconds / 60:.0f} min" if seconds < 5400 else f"{seconds / 3600:.1f} h"
