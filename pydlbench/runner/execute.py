"""The loop of every command that measures.

A command makes tasks and passes them to :func:`execute`. It opens the sessions that they need,
measures the missing rows, stores each result as soon as it is finished, and returns everything in
:class:`Results`, also after an interruption.
"""

import dataclasses
import hashlib
import json
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import Any, Protocol

import msgspec

from pydlbench.errors import PydlbenchError, UnsupportedError, UsageError
from pydlbench.grouping import group_by
from pydlbench.records.measurement import KernelSpec, Measurement
from pydlbench.records.run import RunRecord
from pydlbench.runner.recorder import RowRecorder
from pydlbench.runner.session import Effort
from pydlbench.runner.tasks import Result, Task, TaskRow, View
from pydlbench.store.entry import ANSWERED, Entry
from pydlbench.store.resume import merge_records

# -----------------------------------------------------------------------------
# Keys of stored entries: those of rows, and of kernels that are parts of a row.


def row_key(task: Task, row: TaskRow) -> str:
    """Return the key of a row's entry: its table and a digest of its fields and its spec.

    The spec is included as two layers of the same name may pool differently.
    """
    spec = row.spec.to_dict() if hasattr(row.spec, "to_dict") else row.spec
    return f"{task.kind}/{task.table}/{_digest([dict(row.fields), spec])}"


def kernel_of(key: str | None) -> str | None:
    """Return the key of the row that a kernel was measured for.

    None if the entry is that of a row itself, or has no key, as in a file.
    """
    return key.rpartition("/")[0] if key is not None and key.count("/") > 2 else None


def _same_kernel(spec: KernelSpec, options: Mapping[str, Any]) -> str:
    """Return a digest that is equal for all measurements of the same kernel."""
    return _digest([spec.nameless.to_dict(), options.get("threads")])


def _digest(value: object) -> str:
    text = json.dumps(value, sort_keys=True, default=str)
    return hashlib.sha256(text.encode("utf-8", "backslashreplace")).hexdigest()[:20]


def kernels(
    task: Task,
    specs: Sequence[KernelSpec],
    session: Any,
    view: View,
    rows: dict[KernelSpec, Measurement],
    effort: Effort | None = None,
) -> Iterator[Result]:
    """Measure the kernels behind a task's rows, or take them from earlier results.

    Args:
        task: the task; the keys of kernels start with that of its first row.
        specs: what to measure.
        session: the session.
        view: the view of the task.
        rows: filled with a measurement for each spec, and updated with each repetition.
        effort: see :func:`pydlbench.runner.session.repeated_problems`.

    Raises:
        PydlbenchError: a kernel could not be measured at all, and the run is not tolerant.
    """
    for spec in specs:
        if there := known_kernel(spec, view):
            rows[spec] = there
            if there.ok and there.cache == "hot":
                session.remember(spec, there.algorithm, there.layout)
    missing = [spec for spec in specs if spec not in rows]
    there_already = len(rows)

    def advance(done: float, _total: int, label: str) -> None:
        view.advance(there_already + done, len(specs), label)

    threads = task.options.get("threads")
    for spec, row in _repeated(session, missing, advance, view.tolerant, threads, effort):
        rows[spec] = msgspec.structs.replace(row, samples_s=None)
        yield kernel_result(task, spec, row)


def known_kernel(spec: KernelSpec, view: View) -> Measurement | None:
    """Return the row of a kernel that the run has already; None if it has none."""
    document = view.kernel(spec)
    return Measurement.from_dict(document) if document else None


def kernel_result(task: Task, spec: KernelSpec, row: Measurement) -> Result:
    """Return the row of a kernel behind a task's rows as a result, with the kernel's key."""
    key = f"{row_key(task, task.rows[0])}/{_same_kernel(spec, task.options)}"
    return Result("layer", row.to_dict(), key=key)


def _repeated(
    session: Any,
    specs: Sequence[KernelSpec],
    advance: Callable[[float, int, str], None],
    tolerant: bool,
    threads: int | None,
    effort: Effort | None,
) -> Iterator[tuple[KernelSpec, Measurement]]:
    """Yield rows after each of their repetitions; in tolerant runs errors become rows too."""
    from pydlbench.runner.rows import empty_row

    tolerated = PydlbenchError if tolerant else ()
    unmeasured: dict[KernelSpec, None] = {}
    for spec in specs:
        try:
            if tolerant:  # otherwise checked before anything is measured
                session.check_room([spec])
            unmeasured[spec] = None
        except tolerated as error:
            yield spec, empty_row(spec, threads, *_verdict(error))
    try:
        for spec, row in session.measure(list(unmeasured), advance, so_far=True, effort=effort):
            unmeasured.pop(spec, None)
            yield spec, row
    except tolerated as error:
        for spec in unmeasured:
            yield spec, empty_row(spec, threads, *_verdict(error))


# -----------------------------------------------------------------------------
# Results.


@dataclass(slots=True)
class Results:
    """The results of a run.

    Attributes:
        total: number of rows.
        outcomes: results of finished rows, including those of the resumed run; after an
            interruption also of rows with some of their repetitions. In the order of the tasks.
        parts: results that rows are made of: kernels, agreements.
        unfinished: labels of the rows that are not finished.
        run: time, command, device and environment.
        interrupted: whether Ctrl-C, SIGTERM or a time limit ended the run.
        expired: whether that was the time limit.
        trouble: the error that ended the run.
        where: how other commands find the run: `` --store FILE`` if the file was named; None if the
            run is not stored.
        seconds: wall seconds of the tasks of each place, such as a table of a sweep.
    """

    total: int
    run: RunRecord
    outcomes: Sequence[Result]
    parts: Mapping[str, Result]
    unfinished: Sequence[str] = ()
    interrupted: bool = False
    expired: bool = False
    trouble: PydlbenchError | None = None
    where: str | None = None
    seconds: Mapping[str, float] = dataclasses.field(default_factory=dict)

    @property
    def early(self) -> bool:
        """Whether the run ended before all rows were measured."""
        return self.interrupted or self.trouble is not None

    @property
    def ending(self) -> dict[str, Any]:
        """Fields of the JSON object of a run that has ended early: that, and what it lacks."""
        return {"interrupted": True, "unfinished": [*self.unfinished]} if self.early else {}

    @property
    def finished(self) -> int:
        """The number of rows that have all their repetitions."""
        return sum(not outcome.partial for outcome in self.outcomes)

    @property
    def ok(self) -> bool:
        """Whether any row has been measured."""
        return any(outcome.status == "ok" for outcome in self.outcomes)

    @property
    def status(self) -> str:
        """The status of the run in the store: ``done`` if all tasks were measured."""
        if self.interrupted:
            return "interrupted"
        return "done" if self.trouble is None else "failed"

    def entries(self) -> list[Entry]:
        """Return all entries of the run, without raw samples."""
        return [
            Entry.from_document(result.table, result.document, result.key)
            for result in (*self.parts.values(), *self.outcomes)
            if result.table
        ]


def _without_samples(result: Result) -> Result:
    """Return a layer's result without its raw samples, which are many."""
    plain = {name: value for name, value in result.document.items() if name != "samples_s"}
    record = result.detail and msgspec.structs.replace(result.detail, samples_s=None)
    return dataclasses.replace(result, document=plain, detail=record)


def _verdict(error: PydlbenchError) -> tuple[str, str]:
    """Return status and reason of rows that an error prevented."""
    status = "skipped" if isinstance(error, UnsupportedError) else "failed"
    return status, " ".join(str(error).split())


# -----------------------------------------------------------------------------
# The loop.


class RunProgress(Protocol):
    """Shows the progress of a run."""

    def __call__(self, done: float, total: int, label: str) -> None:
        """Show what is finished of all rows, or of the parts of the only row; and what is next."""

    def close(self) -> None:
        """Remove the progress line."""


def execute(
    tasks: Sequence[Task],
    open_session: Callable[[Task], AbstractContextManager[Any]] | None,
    recorder: RowRecorder,
    *,
    progress: RunProgress,
    request: Mapping[str, Any] | None = None,
    tolerant: bool = False,
    samples: bool = False,
) -> Results:
    """Measure what is missing, and store each result at once.

    Args:
        tasks: the tasks; one session is open at a time.
        open_session: replaces :meth:`Task.open`.
        recorder: a recorder whose context was entered; it may resume an earlier run.
        progress: shows progress; closed at the end.
        request: the request as a JSON object, stored so that the run can be resumed.
        tolerant: whether an error of a task costs only its rows; otherwise it ends the run.
        samples: leave the raw samples in the documents.

    Returns:
        What is finished, also after Ctrl-C, SIGTERM and an error.

    Raises:
        UsageError: bad input, found before anything was finished.
    """
    opens = open_session or (lambda task: task.open())
    loop = _Loop(tasks, opens, recorder, progress, request, tolerant, samples)
    interrupted, trouble = False, None
    try:
        try:
            loop.run()
            trouble = loop.trouble
        finally:
            # Inside the outer try: Ctrl-C is handled at every moment.
            recorder.interrupts.ignore()
    except KeyboardInterrupt:
        interrupted = True
    except PydlbenchError as error:
        if isinstance(error, UsageError) and not recorder.given:
            raise
        trouble = error
    finally:
        progress.close()
    run = recorder.own(loop.described())
    expired = interrupted and recorder.interrupts.expired
    results = Results(
        *(loop.total, run, loop.outcomes, loop.parts, loop.unfinished),
        *(interrupted, expired, trouble),
    )
    keys = [row_key(task, row) for task in tasks for row in task.rows]
    recorder.finish(run, results.status, keys)
    results.where = recorder.where if recorder.begun else None
    results.seconds = loop.seconds
    return results


class _Loop:
    """The state of :func:`execute`."""

    def __init__(
        self,
        tasks: Sequence[Task],
        open_session: Callable[[Task], AbstractContextManager[Any]],
        recorder: RowRecorder,
        progress: RunProgress,
        request: Mapping[str, Any] | None,
        tolerant: bool,
        samples: bool,
    ) -> None:
        self.tolerant = tolerant
        self.kernels: dict[str, dict[str, Any]] = {}
        # Native rows of earlier runs by kernel, with the run, by kind of the task that takes them.
        self._reusable: dict[str, dict[str, tuple[str, dict[str, Any]]]] = {}
        self._tasks, self._open, self._recorder = tasks, open_session, recorder
        self._progress, self._request, self._samples = progress, request, samples
        self._known: RunRecord | None = None
        self._key: object = None
        self._session: Any = None
        self._manager: AbstractContextManager[Any] | None = None
        self._listed: set[int] = set()
        self.total = sum(len(task.rows) for task in tasks)
        # By row's identity; those in ``_listed`` are finished.
        self._outcomes: dict[int, Result] = {}
        self.parts: dict[str, Result] = {}
        # Why a tolerant run has rows with some of their repetitions only.
        self.trouble: PydlbenchError | None = None
        self.seconds: dict[str, float] = {}
        # Finished results of the resumed run, by key; and those that were measured for a row, by
        # the row's key.
        self._done: dict[str, Result] = {}
        self._parts_of: dict[str, list[Result]] = {}
        # Documents of rows that the resumed run has in part, by key.
        self._begun: dict[str, dict[str, Any]] = {}
        self._read_earlier()

    def run(self) -> None:
        """Measure all tasks in their order.

        Raises:
            KeyboardInterrupt: Ctrl-C or SIGTERM.
            PydlbenchError: a task cannot be measured, and the run is not tolerant.
        """
        try:
            for task in self._tasks:
                self._take_earlier(task)
            for task in self._tasks:
                if not self._is_done(task):
                    self._measure(task)
        finally:
            self._close()
        self.start()  # if nothing had to be measured

    def start(self) -> None:
        """Begin the run in the store, once a session can describe the machine."""
        if not self._recorder.started:
            self._recorder.start(self.described(), self._request)

    @property
    def outcomes(self) -> list[Result]:
        """The results of rows so far, in the order of the tasks."""
        rows = [id(row) for task in self._tasks for row in task.rows]
        return [self._outcomes[row] for row in rows if row in self._outcomes]

    @property
    def unfinished(self) -> list[str]:
        """The labels of the rows that are not finished, equal ones with what tells them apart."""
        rows = [row for task in self._tasks for row in task.rows]
        alike = group_by(rows, lambda row: row.label)
        return [_told_apart(row, alike[row.label]) for row in rows if id(row) not in self._listed]

    def described(self) -> RunRecord:
        """Return the run's record, with what all its sessions have found on the devices.

        Sessions follow one another, and each probes only what its own rows need.
        """
        now = None if self._session is None else self._session.run
        known = [record for record in (self._known, now) if record is not None]
        if len(known) > 1:
            return merge_records(*known)
        if known:
            return known[0]
        if self._recorder.before is not None:
            return self._recorder.before
        from pydlbench.runner.session import Session

        # Once: the run keeps its id, whatever session opens later. No worker starts and nothing is
        # probed for it.
        self._known = Session().run
        return self._known

    # --- sessions ---------------------------------------------------------------------------

    def _session_for(self, task: Task) -> Any:
        """Return the session of a task: the open one, or a new one."""
        key = _session_key(task)
        if key != self._key:
            self._close()
            manager = self._open(task)
            self._session = manager.__enter__()
            self._manager, self._key = manager, key
            if not self.tolerant:
                for other in self._tasks:
                    if _session_key(other) == key and not self._is_done(other):
                        other.check(self._session)
        return self._session

    def _close(self) -> None:
        """Close the open session after its device was noted."""
        manager, self._manager, self._key = self._manager, None, None
        if manager is None:
            return
        try:
            with self._recorder.interrupts.held():
                self._known = self.described()
        finally:
            self._session = None
            manager.__exit__(None, None, None)

    # --- tasks ------------------------------------------------------------------------------

    def _view(self, task: Task) -> View:
        """Return the view of a task on the run while it measures."""
        before = len(self._listed)
        missing = sum(id(row) not in self._listed for row in task.rows)

        def advance(done: float, total: int, label: str) -> None:
            self.start()  # not earlier: only now the GPU's name is known
            if self.total == 1:
                self._progress(min(done, total), total, label)
                return
            here = missing * min(done / max(total, 1), 1.0)
            # Finished rows count even if the task does not report them.
            self._progress(max(before + here, len(self._listed)), self.total, label)

        return View(
            tolerant=self.tolerant,
            store=lambda: self._recorder.store,
            advance=advance,
            keep=lambda result: self.take(task, result),
            earlier=lambda row: self.earlier(task, row) is not None,
            begun=lambda row: self._begun.get(row_key(task, row)),
            kernel=lambda spec: self._kernel(task, spec),
        )

    def _kernel(self, task: Task, spec: KernelSpec) -> dict[str, Any] | None:
        """Return the document of a kernel of this run, or of an earlier one.

        That is an interrupted run; for a breakdown on a GPU, where a search takes long, also a
        finished one. A row of an earlier run is stored with this run, too.
        """
        name = _same_kernel(spec, task.options)
        if task.kind not in self._reusable:
            found = self._reusable[task.kind] = {}
            finished = task.kind == "breakdown" and spec.on_gpu
            for run_id, entry in self._recorder.reusable(self.described(), finished=finished):
                if kernel_of(entry.key):
                    same = str(entry.key).rpartition("/")[2]
                    found.setdefault(same, (run_id, dict(entry.document)))
        reusable = self._reusable[task.kind]
        if name not in self.kernels and name in reusable:
            run_id, document = reusable[name]
            self._recorder.tell_reuse(run_id)
            key = f"{row_key(task, task.rows[0])}/{name}"
            self.take(task, Result("layer", document, key=key))
        return self.kernels.get(name)

    def _measure(self, task: Task) -> None:
        begin = time.monotonic()
        try:
            session = self._session_for(task)
            for result in task.measure(session, self._view(task)):
                self.take(task, result)
        except PydlbenchError as error:
            if not self.tolerant:
                raise
            for row in task.rows:
                # A row with an answer so far stays stored; it is not finished, nor is the run.
                if id(row) not in self._outcomes:
                    self.take(task, task.refused(row, *_verdict(error)))
                elif id(row) not in self._listed:
                    self.trouble = error
        finally:
            before_s = self.seconds.get(task.place, 0.0)
            self.seconds[task.place] = before_s + time.monotonic() - begin

    def take(self, task: Task, result: Result) -> None:
        """Store and list a result, completely or not at all."""
        self.start()
        with self._recorder.interrupts.held():
            row = result.row
            before = None if row is None else self.earlier(task, row)
            worse = result.partial or result.status != "ok"
            if before is not None and before.status == "ok" and worse:
                # It was measured again only for the sake of another row.
                result = before
            elif result.table:
                key = result.key if row is None else row_key(task, row)
                so_far = {"interrupted": True} if result.so_far else {}
                result = dataclasses.replace(result, key=key, document=result.document | so_far)
                self._recorder.add(result.table, result.document, key)
                # With the probes for the row, so that a run that is killed has them.
                self._recorder.describe(self.described)
            self._list(task, row, result)

    def _list(self, task: Task, row: TaskRow | None, result: Result) -> None:
        if result.table == "layer" and result.status == "ok" and not result.partial:
            # Estimates and layers share kernels.
            name = (
                str(result.key).rpartition("/")[2]
                if row is None
                else _same_kernel(row.spec, task.options)
            )
            self.kernels.setdefault(name, _without_samples(result).document)
        if not self._samples and result.table == "layer":
            result = _without_samples(result)
        if row is None:
            self.parts[result.key or str(len(self.parts))] = result
            return
        if not result.partial:
            self._listed.add(id(row))
        self._outcomes[id(row)] = dataclasses.replace(result, row=row, place=task.place)

    # --- the resumed run ----------------------------------------------------------------------

    def _read_earlier(self) -> None:
        """Read the finished results of the resumed run."""
        incomplete: set[str] = set()
        for entry in self._recorder.earlier(samples=self._samples):
            document = dict(entry.document)
            if entry.samples is not None:
                document["samples_s"] = entry.samples
            result = Result(entry.table, document, key=entry.key)
            if result.status not in ANSWERED:
                incomplete.add(kernel_of(entry.key) or "")
            elif result.partial:  # what Ctrl-C ended is measured again
                self._begun[entry.key or ""] = document
            elif entry.key is not None:
                self._done[entry.key] = result
                if row := kernel_of(entry.key):
                    self._parts_of.setdefault(row, []).append(result)
        # An estimate that lacks a failed kernel is measured again.
        for key in incomplete & set(self._done):
            del self._done[key]

    def earlier(self, task: Task, row: TaskRow) -> Result | None:
        """Return the result of a row in the resumed run."""
        return self._done.get(row_key(task, row)) if self._done else None

    def _is_done(self, task: Task) -> bool:
        return bool(self._done) and all(self.earlier(task, row) for row in task.rows)

    def _take_earlier(self, task: Task) -> None:
        """Take over the results that the resumed run has for a task, and remember their kernels."""
        for row in task.rows if self._done else ():
            for result in self._parts_of.get(row_key(task, row), ()):
                self._list(task, None, result)
            if earlier := self.earlier(task, row):
                self._list(task, row, earlier)


def _told_apart(row: TaskRow, alike: Sequence[TaskRow]) -> str:
    """Return a row's label with the fields in which rows of the same label differ."""
    words = (
        f"{name} {value}"
        for name, value in row.fields.items()
        if any(other.fields.get(name) != value for other in alike)
    )
    return " ".join([row.label, *words])


def _session_key(task: Task) -> tuple[str, dict[str, Any]]:
    return task.opens, dict(task.options)
