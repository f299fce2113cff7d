"""Runs the jobs of a sweep; a row that fails costs itself, and what is finished is kept at once."""

from __future__ import annotations

import dataclasses
from typing import TYPE_CHECKING, Any

from pydlbench.cli.sweep_keys import kept_kernels, kernel_key, row_key, same_kernel
from pydlbench.cli.sweep_outcome import Outcome, is_ok, verdict
from pydlbench.errors import PydlbenchError

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from pydlbench.backends.case import Case
    from pydlbench.cli.sweep_sessions import Sessions
    from pydlbench.results import Measurement
    from pydlbench.sweep import Job, Row

__all__ = ["Runner"]


class Runner:
    """Measures what is not there yet.

    Args:
        sessions: to measure with: ``layers`` and ``e2e``.
        check_factory: opens the session of a cross-check.
        checker: takes the place of ``pydlbench.crosscheck.check``.
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
        from pydlbench.contest import groups

        waiting: dict[Case, list[Row]] = {}
        for row in todo:
            waiting.setdefault(row.case, []).append(row)
        count = len(job.rows) - len(todo)
        # Group by group: a problem that does not fit into memory costs its own rows only.
        for group in groups([row.case for row in todo]):
            self._progress(job, count, waiting[group[0]][0].label)
            for case, measured in zip(group, self._measured(job, group), strict=True):
                self._finished(job, waiting[case].pop(0), "layer", measured.to_dict())
            count += len(group)

    def _measured(self, job: Job, cases: Sequence[Case]) -> list[Measurement]:
        """Return a row for each case, those that could not be measured with the reason."""
        from pydlbench.rows import empty_row

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
        from pydlbench.cli.sweep_estimates import EstimateRow

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

    def _kernel(self, job: Job, row: Row, case: Case, label: str, share: float) -> Measurement:
        """Return a kernel of an estimate: one that is there already, or a new one."""
        from pydlbench.results import Measurement

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
        measured = dataclasses.replace(measured, samples_s=None)
        self._remember(job, case, "layer", measured.to_dict())
        return measured

    # --- e2e --------------------------------------------------------------------------------

    def _e2e(self, job: Job, todo: Sequence[Row]) -> None:
        from pydlbench.endtoend import StepRecord
        from pydlbench.endtoend.memory import check_memory

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
        from pydlbench.cli.check_request import check_room
        from pydlbench.cli.sweep_checks import CheckJob

        # A session of its own: the cross-check opens workers with several allocators.
        self._sessions.close()

        def native(case: Case, document: dict[str, Any], key: str) -> None:
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
