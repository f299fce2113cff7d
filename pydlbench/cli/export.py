"""``pydlbench export``: runs as CSV, JSON, Markdown or Parquet; and the documents' schemas."""

from __future__ import annotations

import contextlib
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from pydlbench.cli.machine import reading_store
from pydlbench.cli.options import OUTPUT, RUNS, TO, Stored, flag, option
from pydlbench.cli.output import reading_runs
from pydlbench.cli.values import one_of
from pydlbench.errors import BackendMissingError, UsageError
from pydlbench.report.blocks import run_lines
from pydlbench.report.text import (
    STDOUT,
    as_markdown,
    check_writable,
    csv_text,
    write_bytes,
    write_text,
)

if TYPE_CHECKING:
    from collections.abc import Sequence

    from pydlbench.records.measurement import Measurement
    from pydlbench.records.step import StepRow
    from pydlbench.store.documents import Loaded
    from pydlbench.store.entry import Entry


# By name of a format, the ending of files that means it; empty where none does.
_FORMATS: Final = {
    "csv": ".csv",
    "long": "",
    "json": ".json",
    "md": ".md",
    "parquet": ".parquet",
    "dlb": "",
    **dict.fromkeys(("trace", "bencher", "github-action-benchmark", "tritonbench"), ""),
}


class ExportOptions(Stored):
    """The command's options."""

    description = (
        "Write runs of the store, or of files that --json wrote, in another format; or print the "
        "JSON Schema of a document."
    )
    runs: tuple[str, ...] = RUNS(
        help=f"{RUNS.help}; with --format tritonbench also @FILE, a trace of PyTorch's profiler"
    )
    format: str | None = option(
        "FORMAT",
        "csv (a line per layer or step), long (everything, samples too), json, md, parquet (long, "
        "typed; needs pyarrow), dlb (six columns of deep-learning-benchmark), trace (Perfetto: "
        "levels of breakdowns and steps), bencher, github-action-benchmark, tritonbench (operator "
        "inputs); default: by FILE's ending, on standard output csv",
        group=OUTPUT,
        read=partial(one_of, allowed=tuple(_FORMATS)),
    )
    output: str = TO()
    samples: bool = flag("put the raw samples into json, too", group=OUTPUT)
    schema: str | None = option(
        "NAME",
        "print the JSON Schema of a document instead: layers, step, estimate, breakdown...",
        group=OUTPUT,
    )


def run(args: ExportOptions) -> int:
    """Write what was asked for.

    Raises:
        UsageError: no such run, format or schema; nothing of that kind in the runs; a file that
            cannot be written.
        BackendMissingError: a package that writes the format is missing.
        PydlbenchError: the file could not be written after all.
    """
    if args.output != "-":
        check_writable("--output", args.output)
    if args.schema is not None:
        return _schema(args, args.schema)
    chosen = _format(args.format, args.output)
    if args.samples and chosen != "json":
        raise UsageError(f"--samples: for --format json only, not {chosen}; nearest: --format long")
    if not args.runs:
        raise UsageError("RUN: none given; nearest: pydlbench export last")
    _check_installed(chosen)
    if any(name.startswith("@") for name in args.runs):
        from pydlbench.cli.recorded import export_recorded

        return _written(args, *export_recorded(args.runs, chosen))
    with reading_runs(args.runs):
        loaded = _load(args)
    if not any(each.entries for each in loaded):
        raise UsageError(
            f"{loaded[0].info.id}: nothing was finished in it; nearest: pydlbench runs"
        )
    with reading_runs(args.runs):
        content, notes = _content(chosen, loaded, samples=args.samples)
    return _written(args, content, notes)


def _written(args: ExportOptions, content: str | bytes, notes: Sequence[str]) -> int:
    """Write a file's content and say what is not in it."""
    _write(args.output, content)
    if not args.quiet:
        from pydlbench.cli.terminal import tell

        for note in notes:
            tell(f"note: {note}")
    return 0


def _schema(args: ExportOptions, name: str) -> int:
    from pydlbench.records.schema import schema_text

    if args.runs:
        raise UsageError(f"{args.runs[0]}: --schema takes no runs; nearest: leave it out")
    write_text(args.output, schema_text(name))
    return 0


def _format(given: str | None, output: str) -> str:
    if given is not None:
        return given
    ending = Path(output).suffix.lower()
    if output == "-" or not ending:
        return "csv"
    chosen = next((name for name, known in _FORMATS.items() if known == ending), None)
    if chosen is None:
        endings = ", ".join(filter(None, _FORMATS.values()))
        raise UsageError(
            f"--output {output}: its ending says no format; nearest: {endings}, or --format csv"
        )
    return chosen


def _check_installed(chosen: str) -> None:
    """Make sure that a format can be written, before anything is read.

    Raises:
        BackendMissingError: it cannot; with the command that changes it.
    """
    if chosen != "parquet":
        return
    try:
        import pyarrow  # noqa: F401, ICN001 - whether it can be imported
    except ImportError as error:
        raise BackendMissingError(
            f"--format parquet: pyarrow cannot be imported ({error}); get it with: "
            "pip install 'pydlbench[parquet]'; nearest: --format long"
        ) from error


def _load(args: ExportOptions) -> list[Loaded]:
    from pydlbench.store.documents import Loaded, load

    with reading_store(args.store) or contextlib.nullcontext() as store:
        runs = [load(text, store) for text in args.runs]
        # They are read while the store is open.
        return [Loaded(each.info, each.record, each.entries) for each in runs]


def _content(
    chosen: str, loaded: Sequence[Loaded], *, samples: bool
) -> tuple[str | bytes, list[str]]:
    """Return the file's content, and notes on what it cannot hold."""
    from pydlbench.report.csv import to_long, to_parquet
    from pydlbench.report.exports import EXPORTS

    if chosen in ("long", "parquet"):
        pairs = [(each.record, each.entries) for each in loaded]
        return (to_long if chosen == "long" else to_parquet)(pairs), []
    if chosen in EXPORTS:
        return EXPORTS[chosen]([(each.record, each.entries) for each in loaded])
    if chosen == "json":
        return _json(loaded, samples=samples), []
    if chosen == "md":
        return "\n".join(map(run_markdown, loaded)), []
    if chosen == "dlb":
        return _dlb(loaded)
    columns, rows, notes = _sheet(loaded)
    return csv_text(columns, rows), notes


def _json(loaded: Sequence[Loaded], *, samples: bool) -> str:
    from pydlbench.report.json import dump, run_document

    documents = [
        run_document(
            each.info.kind,
            each.record,
            each.entries,
            interrupted=each.info.early,
            samples=samples,
        )
        for each in loaded
    ]
    return dump(documents[0] if len(documents) == 1 else {"documents": documents})


def _dlb(loaded: Sequence[Loaded]) -> tuple[str, list[str]]:
    from pydlbench.report.csv import batches, to_dlb

    sizes = batches(entry for each in loaded for entry in each.entries)
    if not sizes:
        raise UsageError(
            f"{loaded[0].info.id}: has no timed step of a framework, and --format dlb has columns "
            "for nothing else; nearest: --format csv"
        )
    shown = [str(each) for each in sorted(size or 0 for size in sizes) if each]
    notes = (
        []
        if len(shown) <= 1
        else [f"there are batches {', '.join(shown)}; dlb has no column for them"]
    )
    return to_dlb((each.record, each.entries) for each in loaded), notes


def _write(target: str, content: str | bytes) -> None:
    from pydlbench.errors import PydlbenchError

    try:
        if isinstance(content, str):
            write_text(target, content)
        else:
            write_bytes(target, content)
    except OSError as error:
        if target == STDOUT:
            raise  # a closed pipe, for example
        raise PydlbenchError(
            f"--output {target}: not written: {error.strerror or error}"
        ) from error


def _sheet(loaded: Sequence[Loaded]) -> tuple[Sequence[str], list[list[Any]], list[str]]:
    """Return columns and lines of all layers, or, where there is none, of all steps; and notes.

    The notes say what is left out.

    Raises:
        UsageError: there is neither.
    """
    from pydlbench.report import csv, step

    for table, columns, read in (
        ("layer", csv.CSV_COLUMNS, _layers),
        ("step", step.CSV_COLUMNS, _steps),
    ):
        rows: list[list[Any]] = []
        for item in loaded:
            documents = (record.to_dict() for record in read(item.entries))
            rows += csv.flat_lines(item.record, table, columns, documents)
        if rows:
            rest = sum(entry.table != table for each in loaded for entry in each.entries)
            others = "1 entry of another kind is"
            if rest > 1:
                others = f"{rest} entries of other kinds are"
            left_out = f"{others} not in it; --format json has all"
            return columns, rows, [left_out] if rest else []
    raise UsageError(
        f"{loaded[0].info.id}: has neither layers nor steps, and csv has columns for nothing "
        "else; nearest: --format long"
    )


def run_markdown(run: Loaded) -> str:
    """Return a run as a section that can be pasted into a page: what its commands report."""
    from pydlbench.cli.runs import stored_report

    return as_markdown([*stored_report(run), run_lines(run.record)])


def _layers(entries: Sequence[Entry]) -> list[Measurement]:
    from pydlbench.records.measurement import Measurement

    documents = [entry.document for entry in entries if entry.table == "layer"]
    return [Measurement.from_dict(document) for document in documents]


def _steps(entries: Sequence[Entry]) -> list[StepRow]:
    from pydlbench.records.step import StepRecord
    from pydlbench.report.step import step_rows

    documents = [entry.document for entry in entries if entry.table == "step"]
    return step_rows(list(map(StepRecord.from_dict, documents)))


SUBCOMMANDS: Final = {"": (ExportOptions, run)}
