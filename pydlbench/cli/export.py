"""``pydlbench export``: runs as CSV, JSON, Markdown or Parquet; and the documents' schemas."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from pydlbench.cli.damaged import reading_files
from pydlbench.errors import UsageError

if TYPE_CHECKING:
    import argparse
    from collections.abc import Sequence

    from pydlbench.results.store import Loaded

__all__ = ["FORMATS", "add_parser", "run"]

#: Formats, and the endings of file names that mean them.
FORMATS: Final = {
    "csv": ".csv",
    "long": "",
    "json": ".json",
    "md": ".md",
    "parquet": ".parquet",
    "dlb": "",
}


def add_parser(subparsers: argparse._SubParsersAction[Any]) -> None:
    """Describe the command."""
    from pydlbench.cli.store_option import add_store_option

    parser = subparsers.add_parser(
        "export",
        help="runs as CSV, JSON, Markdown or Parquet; schemas of the JSON documents",
        description="Write runs of the store, or of files that --json wrote, in another format; "
        "or print the JSON Schema of a document.",
    )
    parser.add_argument(
        "runs",
        nargs="*",
        metavar="RUN",
        help="id, its beginning, a tag, last, last~2, or a JSON file",
    )
    parser.add_argument(
        "--format",
        metavar="FORMAT",
        help="csv (a line per layer or step), long (everything, samples too), json, md, "
        "parquet (long, typed; needs pyarrow), dlb (six columns of deep-learning-benchmark); "
        "default: by FILE's ending, else csv",
    )
    parser.add_argument(
        "-o", "--output", metavar="FILE", default="-", help="where to; default: standard output"
    )
    parser.add_argument("--samples", action="store_true", help="raw samples in json as well")
    parser.add_argument(
        "--schema",
        metavar="NAME",
        help="print the JSON Schema of a document instead: layers, model, e2e, check...",
    )
    parser.add_argument("--quiet", action="store_true", help="no notes")
    add_store_option(parser)


def run(args: argparse.Namespace) -> int:
    """Write what was asked for.

    Raises:
        UsageError: no such run, format or schema; nothing of that kind in the runs; a file that
            cannot be written.
        PydlbenchError: pyarrow is missing, or the file could not be written after all.
    """
    from pydlbench.results.destination import check_writable

    if args.output != "-":
        check_writable("--output", args.output)
    if args.schema is not None:
        return _schema(args)
    chosen = _format(args.format, args.output)
    if args.samples and chosen != "json":
        raise UsageError(f"--samples: for --format json only, not {chosen}; nearest: --format long")
    if not args.runs:
        raise UsageError("RUN: none given; nearest: pydlbench export last")
    if chosen == "parquet":
        from pydlbench.results.export_parquet import check_pyarrow

        check_pyarrow()
    with reading_files(args.runs):
        loaded = _load(args)
    if not any(one.entries for one in loaded):
        raise UsageError(
            f"{loaded[0].info.id}: nothing was finished in it; nearest: pydlbench runs"
        )
    with reading_files(args.runs):
        content, notes = _content(chosen, loaded, samples=args.samples)
    _write(args.output, content)
    if not args.quiet:
        from pydlbench.cli.streams import tell

        for note in notes:
            tell(f"note: {note}")
    return 0


def _schema(args: argparse.Namespace) -> int:
    from pydlbench.results.destination import write_text
    from pydlbench.results.schema import schema_text

    if args.runs:
        raise UsageError(f"{args.runs[0]}: --schema takes no runs; nearest: leave it out")
    write_text(args.output, schema_text(args.schema))
    return 0


def _format(given: str | None, output: str) -> str:
    from pydlbench.cli.values import choices

    if given is not None:
        return choices("--format", [given], tuple(FORMATS))[0]
    ending = Path(output).suffix.lower()
    return next((name for name, one in FORMATS.items() if one and one == ending), "csv")


def _load(args: argparse.Namespace) -> list[Loaded]:
    from pydlbench.cli.store_option import reading_store
    from pydlbench.results.store import load

    store = reading_store(args)
    try:
        found = [load(text, store) for text in args.runs]
        for one in found:
            _ = one.entries  # they are read while the store is open
        return found
    finally:
        if store is not None:
            store.close()


def _content(
    chosen: str, loaded: Sequence[Loaded], *, samples: bool
) -> tuple[str | bytes, list[str]]:
    """Return the file's content, and notes on what it cannot hold."""
    pairs = [(one.record, one.entries) for one in loaded]
    if chosen == "long":
        from pydlbench.results.export_long import to_long

        return to_long(pairs), []
    if chosen == "parquet":
        from pydlbench.results.export_parquet import to_parquet

        return to_parquet(pairs), []
    if chosen == "json":
        return _json(loaded, samples=samples), []
    if chosen == "md":
        from pydlbench.cli.export_texts import markdown

        return "\n".join(markdown(one) for one in loaded), []
    if chosen == "dlb":
        return _dlb(loaded)
    from pydlbench.cli.export_texts import to_csv

    return to_csv(loaded)


def _json(loaded: Sequence[Loaded], *, samples: bool) -> str:
    from pydlbench.results.export_json import dump
    from pydlbench.results.export_run import run_document

    documents = [
        run_document(
            one.info.kind,
            one.record,
            one.entries,
            interrupted=one.info.status != "done",
            samples=samples,
        )
        for one in loaded
    ]
    return dump(documents[0] if len(documents) == 1 else {"documents": documents})


def _dlb(loaded: Sequence[Loaded]) -> tuple[str, list[str]]:
    from pydlbench.results.export_dlb import batches, to_dlb

    found = batches(entry for one in loaded for entry in one.entries)
    if not found:
        raise UsageError(
            f"{loaded[0].info.id}: has no timed step of a framework, and --format dlb has columns "
            "for nothing else; nearest: --format csv"
        )
    shown = [str(one) for one in sorted(one or 0 for one in found) if one]
    notes = (
        []
        if len(shown) <= 1
        else [f"there are batches {', '.join(shown)}; dlb has no column for them"]
    )
    return to_dlb((one.record, one.entries) for one in loaded), notes


def _write(target: str, content: str | bytes) -> None:
    from pydlbench.errors import PydlbenchError
    from pydlbench.results.destination import STDOUT, write_bytes, write_text

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
