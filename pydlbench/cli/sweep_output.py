"""What a sweep shows: before it runs the list with its time, afterwards what came of each row."""

from __future__ import annotations

import contextlib
import os
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

from pydlbench.cli.streams import tell
from pydlbench.errors import PydlbenchError, UsageError
from pydlbench.results.destination import STDOUT, check_writable, write_text

if TYPE_CHECKING:
    import argparse
    from collections.abc import Mapping, Sequence

    from pydlbench.cli.sweep_outcome import Outcome
    from pydlbench.results import RunRecord
    from pydlbench.results.store import Entry, Store
    from pydlbench.sweep import Job, SweepFile

__all__ = ["SweepOutputs", "show_plan"]

# Of steps, where nobody asks for another.
_LAYOUT: Final = ("layout", "nhwc")


@dataclass(frozen=True, slots=True, kw_only=True)
class SweepOutputs:
    """The destinations of one sweep.

    Attributes:
        files: format (``json``, ``md``) to path or ``-``.
    """

    files: Mapping[str, str]

    @classmethod
    def from_args(cls, args: argparse.Namespace) -> SweepOutputs:
        """Read the options and make sure that every file can be written.

        Raises:
            UsageError: it cannot, or both go to the same place.
        """
        given = {kind: getattr(args, kind) for kind in ("json", "md")}
        files = {kind: target for kind, target in given.items() if target is not None}
        places = {to if to == STDOUT else os.path.realpath(to) for to in files.values()}
        if len(places) < len(files):
            target = files["md"]
            raise UsageError(f"--md {target}: --json goes there already; nearest: --md sweep.md")
        for kind, target in files.items():
            check_writable(f"--{kind}", target)
        return cls(files=files)

    def show(
        self,
        file: SweepFile,
        run: RunRecord,
        outcomes: Sequence[Outcome],
        entries: Sequence[Entry],
        *,
        where: str | None,
        interrupted: bool,
    ) -> None:
        """Write the files, then print.

        Args:
            file: what was asked for.
            run: the run.
            outcomes: of the rows that are finished.
            entries: all that was measured, the kernels behind estimates among it.
            where: what other commands need to find the run; None where it is not kept.
            interrupted: more was asked for.

        Raises:
            PydlbenchError: a file could not be written after all; the rest is printed before.
        """
        troubles = []
        for kind, target in self.files.items():
            # One that ends before its first row does not take the place of an earlier one.
            if target != STDOUT and (entries or not interrupted):
                try:
                    write_text(target, _text(kind, run, outcomes, entries, interrupted))
                except OSError as error:
                    troubles.append(f"--{kind} {target}: not written: {error.strerror or error}")
        on_stdout = next((kind for kind, to in self.files.items() if to == STDOUT), None)
        if on_stdout is not None:
            write_text(STDOUT, _text(on_stdout, run, outcomes, entries, interrupted))
        else:
            from pydlbench.cli.sweep_summary import summary

            print("\n".join(summary(file, run, outcomes, where=where)), flush=True)
        if troubles:
            raise PydlbenchError("; ".join(troubles))


def show_plan(
    file: SweepFile,
    jobs: Sequence[Job],
    notes: Sequence[str],
    args: argparse.Namespace,
    outputs: SweepOutputs,
) -> None:
    """Show what a sweep would measure, and how long that would take."""
    from pydlbench.cli.sweep_forecast import format_span, make_forecast
    from pydlbench.results.export_json import dump
    from pydlbench.sweep import Span

    with _earlier(args) as store:
        forecast = make_forecast(store)
        spans = [forecast.job(job) for job in jobs]
    total = sum(spans, Span())
    rows = sum(len(job.rows) for job in jobs)
    document: dict[str, Any] = {
        "file": file.path,
        "title": file.title,
        "rows": rows,
        "time_s": {"low": total.low, "high": total.high, "source": forecast.source()},
        "jobs": [
            {
                "kind": job.kind,
                "table": job.table,
                "command": ["pydlbench", *job.words],
                "time_s": {"low": span.low, "high": span.high},
                "rows": [dict(row.fields) for row in job.rows],
            }
            for job, span in zip(jobs, spans, strict=True)
        ],
    }
    lines = [f"{file.path}: {file.title}" if file.title else file.path, ""]
    number = 0
    for job, span in zip(jobs, spans, strict=True):
        lines.append(f"{job.place.partition(': ')[2]}  {_shown(job)}  ({format_span(span)})")
        for row in job.rows:
            number += 1
            lines.append(f"{number:>5}  {_row_text(job.kind, row.fields)}")
    count = f"{rows} row{'' if rows == 1 else 's'}"
    lines += ["", f"{count} in {format_span(total)}, {forecast.source()}; nothing was measured"]
    for kind, target in outputs.files.items():
        text = dump(document) if kind == "json" else "```text\n" + "\n".join(lines) + "\n```\n"
        write_text(target, text)
    if STDOUT not in outputs.files.values():
        print("\n".join(lines))
    for note in () if args.quiet else notes:
        tell(f"note: {note}")


@contextlib.contextmanager
def _earlier(args: argparse.Namespace) -> Any:
    """Earlier runs, where there are some that can be read; a plan needs none."""
    from pydlbench.cli.store_option import reading_store

    store: Store | None
    try:
        store = reading_store(args)
    except UsageError:
        store = None  # the file is made when the sweep runs
    except PydlbenchError as error:
        tell(f"warning: earlier runs cannot be read: {error}")
        store = None
    try:
        yield store
    finally:
        if store is not None:
            store.close()


def _shown(job: Job) -> str:
    """Return a job's command line without the words of other jobs of its table."""
    threads = job.options.get("threads")
    words = [word for word in job.words if not word.startswith("--threads")]
    words += [] if threads is None else [f"--threads={threads}"]
    return f"pydlbench {' '.join(words)}"


def _row_text(kind: str, fields: Mapping[str, str]) -> str:
    """Return a row's values, those that are only defaults left out."""
    plain = {"inference", "hot", "best", "default", "auto", "none", "mixed", "resident", ""}
    # The first is in the layer's name, the second in its descriptor.
    skip = {"model", "kind"} if kind == "layers" else set()
    words = []
    for name, value in fields.items():
        if name in skip or value in plain or (kind != "layers" and (name, value) == _LAYOUT):
            continue
        words.append(f"{name} {value}" if name in ("batch", "threads", "layout") else value)
    return "  ".join(words)


def _text(
    kind: str,
    run: RunRecord,
    outcomes: Sequence[Outcome],
    entries: Sequence[Entry],
    interrupted: bool,
) -> str:
    from pydlbench.cli.export_texts import run_markdown
    from pydlbench.results.export_json import dump
    from pydlbench.results.export_run import run_document

    if kind == "md":
        return run_markdown(run, entries)
    document = run_document("sweep", run, entries, interrupted=interrupted)
    refused = [{**one.document, "place": one.job.place} for one in outcomes if not one.table]
    return dump({**document, "not_estimated": refused})
