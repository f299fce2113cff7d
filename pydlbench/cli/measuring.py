"""Measuring commands: execute the tasks, store and show the results, return the exit code."""

import contextlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from typing import Any

from pydlbench.backends.capabilities import untested_versions
from pydlbench.cli.machine import reading_store
from pydlbench.cli.options import Measuring
from pydlbench.cli.output import Outputs
from pydlbench.cli.terminal import ProgressLine, tell
from pydlbench.cli.values import FINDING
from pydlbench.errors import StoreError, UsageError
from pydlbench.records.record import Record
from pydlbench.records.run import RunInfo, RunRecord, command_text
from pydlbench.report.blocks import Block, run_lines
from pydlbench.report.json import run_document
from pydlbench.report.text import check_writable
from pydlbench.runner.execute import Results, execute
from pydlbench.runner.recorder import RowRecorder
from pydlbench.runner.tasks import Task
from pydlbench.store.entry import BEING_WRITTEN, Entry
from pydlbench.store.place import select_path
from pydlbench.store.store import Store
from pydlbench.units import some_names

# The options of the last run that has ended: it writes its files itself.
_ended: list[Measuring] = []


def answer(
    args: Measuring,
    kind: str,
    tasks: Sequence[Task],
    notes: Sequence[str],
    report: Callable[[RunRecord, Results], list[Block]],
    *,
    document: Callable[[Results], Mapping[str, Any]] | None = None,
    csv: Callable[[Results], str] | None = None,
    warnings: Callable[[Results], Sequence[str]] = lambda _: (),
    parts: Callable[[Results], Sequence[Record]] = lambda _: (),
    **keywords: Any,
) -> tuple[int, Results]:
    """Measure the tasks of a command, write its files and print its report.

    Args:
        args: the command's options.
        kind: name of the command.
        tasks: tasks to measure.
        notes: notes on the tasks.
        report: returns the blocks of a run with results.
        document: returns the JSON object of a run, also of one without results; by default the
            documents of the rows. What a run that has ended early lacks is added.
        csv: returns the CSV text.
        warnings: returns warnings on the rows.
        parts: returns rows that follow the answers in the default JSON object.
        keywords: further keywords of :func:`measure`.

    Returns:
        The command's exit code, and the results.

    Raises:
        UsageError: bad input; nothing was measured and nothing written.
        PydlbenchError: the run ended early, or a file could not be written after all; the report is
            printed before.
    """
    outputs = Outputs.from_options(args)
    outputs.note(*notes)

    def row_documents(results: Results) -> dict[str, Any]:
        entries = [
            Entry.from_document(outcome.table, outcome.document) for outcome in results.outcomes
        ]
        entries += [Entry.from_document("layer", row.to_dict()) for row in parts(results)]
        return run_document(kind, results.run, entries, samples=True)

    def show(results: Results) -> None:
        def blocks() -> list[Block]:
            return report(results.run, results) if results.outcomes else []

        outputs.write(
            lambda: {**(document or row_documents)(results), **results.ending},
            blocks,
            markdown=lambda: [*blocks(), run_lines(results.run)],
            csv=None if csv is None else lambda: csv(results),
            warnings=warnings(results) if results.outcomes else (),
        )

    return measure(args, kind, tasks, show, **keywords)


def measure(
    args: Measuring,
    kind: str,
    tasks: Sequence[Task],
    show: Callable[[Results], None],
    *,
    sessions: Callable[..., Any] | None = None,
    progress: ProgressLine | None = None,
    what: str = "rows",
    **keywords: Any,
) -> tuple[int, Results]:
    """Measure tasks, store each result when it is finished, and show all when the run has ended.

    Args:
        args: the command's options; ``resume`` and ``fail_on`` are read if it has them.
        kind: name of the command.
        tasks: tasks to measure.
        show: called with the results, also if the run ended early.
        sessions: opens a session instead of the tasks; its keywords are the session's options.
        progress: progress display; by default the display that the options define.
        what: name of the rows in messages.
        keywords: further keywords of :func:`pydlbench.runner.execute.execute`.

    Returns:
        The command's exit code, and the results.

    Raises:
        PydlbenchError: the run ended early; finished rows are shown before.
    """
    for line in untested_versions(_backends_of(tasks)):
        tell(f"warning: {line}")
    open_session = None if sessions is None else lambda task: sessions(**task.options)
    with recorder_of(args, kind, getattr(args, "resume", None)) as recorder:
        shown = progress or ProgressLine.from_options(args)
        results = execute(tasks, open_session, recorder, progress=shown, **keywords)
        _ended[:] = [args]
        show(results)
    with contextlib.suppress(KeyboardInterrupt):  # everything is written and stored
        _say_how_to_continue(results, kind, args)
        return _exit_code(results, what, getattr(args, "fail_on", None)), results
    return 130, results


def write_unbegun(args: Measuring, kind: str) -> None:
    """Write the files of a run that was interrupted before it had results: it has no rows."""
    if any(options is args for options in _ended):
        return
    from pydlbench.runner.session import Session

    document = run_document(kind, Session().run, [], interrupted=True)
    Outputs.from_options(args).write(lambda: {**document, "unfinished": []}, list)


def _backends_of(tasks: Sequence[Task]) -> list[str]:
    """Return the backends and frameworks of the tasks."""
    specs = [row.spec for task in tasks for row in task.rows]
    names = ("backend", "framework")
    return [str(getattr(spec, name)) for spec in specs for name in names if hasattr(spec, name)]


def _say_how_to_continue(results: Results, kind: str, args: Measuring) -> None:
    if results.interrupted and results.where is not None and hasattr(args, "resume"):
        resume = f"--resume {results.run.id}"
        if kind in ("layers", "sweep"):  # their options are stored
            tell(f"continue with: pydlbench {kind} {resume}{results.where}")
        else:
            tell(f"continue with: pydlbench {command_text(results.run.command)} {resume}")


def _exit_code(results: Results, what: str, fail_on: tuple[str, float] | None) -> int:
    """Print how a run has ended, below its results, and return the command's exit code.

    Args:
        results: results of the run.
        what: name of the run's rows in messages.
        fail_on: see :func:`pydlbench.cli.values.fail_on`; conditions other than ``failed`` are
            ignored.

    Raises:
        PydlbenchError: the error that has ended the run early.
    """
    if results.trouble is not None:
        raise results.trouble
    if results.interrupted:
        others = len(results.outcomes) - results.finished
        so_far = f", {others} more in part" if others else ""
        why = "--minutes have passed" if results.expired else "interrupted"
        lacks = some_names(results.unfinished) if results.total > 1 else ""
        lacks = lacks and f"; unfinished: {lacks}"
        tell(f"{why}: {results.finished} of {results.total} {what} finished{so_far}{lacks}")
        if not results.expired:
            return 130
    failed = [outcome for outcome in results.outcomes if outcome.status == "failed"]
    if fail_on is not None and fail_on[0] == "failed" and failed:
        tell(f"--fail-on: {len(failed)} of {results.total} {what} failed")
        return FINDING
    return 0 if results.ok else 1


# -----------------------------------------------------------------------------
# The store of ``--store``, for writing a run, and the run of ``--resume``.


def recorder_of(args: Measuring, kind: str, resume: str | None = None) -> RowRecorder:
    """Return a recorder that writes a run into the store of a command's options.

    Args:
        args: the command's options; ``store`` and ``quiet`` are read.
        kind: name of the command.
        resume: name of the run to resume, in a form that ``Store.find`` accepts.

    Raises:
        UsageError: the named file cannot be written; or the run to resume is missing, is another
            command's, or is being written.
    """
    path, by = select_path(args.store)
    named = by == "--store"
    if resume is not None and path is not None:
        # Opening it for writing would create a store.
        with run_to_resume(args, resume, kind):
            pass
    minutes = getattr(args, "minutes", None)
    recorder = partial(
        RowRecorder,
        kind=kind,
        tell=tell,
        named=named,
        quiet=args.quiet,
        limit_s=None if minutes is None else 60.0 * minutes,
    )
    if path is None:
        if resume is not None:
            raise UsageError(f"--resume {resume}: nothing is kept; nearest: leave out {by} none")
        return recorder(None)
    make = partial(Store.open, path if by else None)
    if named:
        check_writable("--store", str(path))
    if not path.exists():
        return recorder(None, make=make)
    try:
        store = make()
    except StoreError as error:
        if named or resume is not None:
            raise
        tell(f"warning: results are not kept: {error}")
        return recorder(None)
    try:
        resumed = None if resume is None else _resumable(store, resume, kind)
        return recorder(store, resumed=resumed)
    except BaseException:
        store.close()
        raise


def _resumable(store: Store, text: str, kind: str) -> RunInfo:
    info = _find(store, text, kind)
    if info.status == "running":
        raise UsageError(f"--resume {text}: run {info.id} {BEING_WRITTEN.format(info.id)}")
    return info


@contextlib.contextmanager
def run_to_resume(args: Measuring, resume: str, kind: str) -> Iterator[tuple[Store, RunInfo]]:
    """Open the store for reading, and find the run of ``--resume``.

    Args:
        args: the command's options; ``store`` is read.
        resume: name of the run to resume, in a form that ``Store.find`` accepts.
        kind: name of the command.

    Raises:
        UsageError: there is no such run, or it is another command's.
    """
    with reading_store(args.store) as store:
        if store is None:
            raise UsageError(f"--resume {resume}: no runs are stored yet")
        yield store, _find(store, resume, kind)


def _find(store: Store, text: str, kind: str) -> RunInfo:
    info = store.find(text, unfinished=True)
    if info.kind != kind:
        raise UsageError(
            f"--resume {text}: run {info.id} is of {info.kind}, not of {kind}; see: pydlbench runs"
        )
    return info
