"""``pydlbench export``: runs as CSV, JSON, Markdown or Parquet; and the documents' schemas."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from pydlbench.cli.machine import reading_store
from pydlbench.cli.options import OUTPUT, RUNS, TO, Stored, flag, option
from pydlbench.cli.output import reading_runs
from pydlbench.cli.terminal import tell
from pydlbench.cli.values import one_of
from pydlbench.errors import BackendMissingError, PydlbenchError, UsageError
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
    from pydlbench.store.documents import Loaded
    from pydlbench.store.entry import Entry


# File name extensions by format; empty if the format has none of its own.
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
    """Write runs in a format, or print a schema.

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
    content: str | bytes
    if any(name.startswith("@") for name in args.runs):
        from pydlbench.cli.recorded import export_recorded

        content, notes = export_recorded(args.runs, chosen)
    else:
        with reading_runs(args.runs):
            content, notes = _content(chosen, _load(args), samples=args.samples)
    _write(args.output, content)
    for note in () if args.quiet else notes:
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
            f"--output {output}: no format has this ending; nearest: {endings}, or --format csv"
        )
    return chosen


def _check_installed(chosen: str) -> None:
    """Make sure that the package of a format is installed, before anything is read.

    Raises:
        BackendMissingError: it is missing; with the command that installs it.
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
    """Return the runs, completely read while the store is open.

    Raises:
        UsageError: there is no such run, or all are empty.
    """
    from pydlbench.store.documents import Loaded, load

    with reading_store(args.store) as store:
        runs = [load(text, store) for text in args.runs]
        loaded = [Loaded(stored.info, stored.record, stored.entries) for stored in runs]
    if not any(stored.entries for stored in loaded):
        raise UsageError(
            f"{loaded[0].info.id}: nothing was finished in it; nearest: pydlbench runs"
        )
    return loaded


def _content(
    chosen: str, loaded: Sequence[Loaded], *, samples: bool
) -> tuple[str | bytes, list[str]]:
    """Return the file's content, and notes on results that the format has no place for."""
    from pydlbench.report.csv import to_long, to_parquet
    from pydlbench.report.exports import EXPORTS

    pairs = [(stored.record, stored.entries) for stored in loaded]
    if chosen in ("long", "parquet"):
        return (to_long if chosen == "long" else to_parquet)(pairs), []
    if chosen in EXPORTS:
        return EXPORTS[chosen](pairs)
    if chosen == "json":
        return _json(loaded, samples=samples), []
    if chosen == "md":
        return "\n".join(map(run_markdown, loaded)), []
    return _dlb(loaded) if chosen == "dlb" else _csv(loaded)


def _json(loaded: Sequence[Loaded], *, samples: bool) -> str:
    from pydlbench.report.json import dump, run_document

    documents = [
        run_document(
            stored.info.kind,
            stored.record,
            stored.entries,
            interrupted=stored.info.early,
            samples=samples,
        )
        for stored in loaded
    ]
    return dump(documents[0] if len(documents) == 1 else {"documents": documents})


def _dlb(loaded: Sequence[Loaded]) -> tuple[str, list[str]]:
    from pydlbench.report.csv import batches, to_dlb

    sizes = batches(entry for stored in loaded for entry in stored.entries)
    if not sizes:
        raise UsageError(
            f"{loaded[0].info.id}: has no timed step of a framework, and --format dlb has columns "
            "for nothing else; nearest: --format csv"
        )
    shown = ", ".join(map(str, sorted(filter(None, sizes))))
    notes = [f"there are batches {shown}; dlb has no column for them"] if ", " in shown else []
    return to_dlb((stored.record, stored.entries) for stored in loaded), notes


def _write(target: str, content: str | bytes) -> None:
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


def _csv(loaded: Sequence[Loaded]) -> tuple[str, list[str]]:
    """Return a line for each layer, else for each step or each call of a trace; notes on the rest.

    Raises:
        UsageError: there are none of them.
    """
    from pydlbench.report import csv, step, trace

    for table, columns, read in (
        ("layer", csv.CSV_COLUMNS, _layers),
        ("step", step.CSV_COLUMNS, _steps),
        ("trace", trace.CSV_COLUMNS, _traced_calls),
    ):
        rows = [
            line
            for stored in loaded
            for line in csv.flat_lines(stored.record, table, columns, read(stored.entries))
        ]
        if rows:
            rest = sum(entry.table != table for stored in loaded for entry in stored.entries)
            several = f"{rest} entries of other kinds are"
            others = several if rest > 1 else "1 entry of another kind is"
            left_out = f"{others} not in it; --format json has all"
            return csv_text(columns, rows), [left_out] if rest else []
    raise UsageError(
        f"{loaded[0].info.id}: has neither layers nor steps, and csv has columns for nothing "
        "else; nearest: --format long"
    )


def run_markdown(stored: Loaded) -> str:
    """Return the report of a run as Markdown."""
    from pydlbench.cli.runs import stored_report

    return as_markdown([*stored_report(stored), run_lines(stored.record)])


def _layers(entries: Sequence[Entry]) -> list[dict[str, Any]]:
    from pydlbench.records.measurement import Measurement

    documents = [entry.document for entry in entries if entry.table == "layer"]
    return [Measurement.from_dict(document).to_dict() for document in documents]


def _traced_calls(entries: Sequence[Entry]) -> list[dict[str, Any]]:
    from pydlbench.report.trace import csv_rows

    return csv_rows(entry.document for entry in entries if entry.table == "trace")


def _steps(entries: Sequence[Entry]) -> list[dict[str, Any]]:
    from pydlbench.records.step import StepRecord
    from pydlbench.report.step import step_rows

    documents = [entry.document for entry in entries if entry.table == "step"]
    return [row.to_dict() for row in step_rows(list(map(StepRecord.from_dict, documents)))]


SUBCOMMANDS: Final = {"": (ExportOptions, run)}
