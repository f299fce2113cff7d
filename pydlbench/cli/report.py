"""``pydlbench report``: runs as one HTML page that opens offline, and its figures as files."""

from __future__ import annotations

import contextlib
from typing import TYPE_CHECKING, Any

from pydlbench.cli.options import add
from pydlbench.cli.output import reading_runs, without_collection
from pydlbench.cli.terminal import tell
from pydlbench.errors import UsageError

if TYPE_CHECKING:
    import argparse

    from pydlbench.records.fleet import FleetVerdict
    from pydlbench.report.page.page import Page
    from pydlbench.report.page.runs import PageRun
    from pydlbench.store.documents import Loaded

_DEFAULT = "pydlbench-report.html"
_KINDS = ("png", "svg")


def add_parser(subparsers: argparse._SubParsersAction[Any]) -> None:
    """Describe the command."""
    parser = subparsers.add_parser(
        "report",
        description="Write one self-contained HTML page about runs of the store, or about files "
        "that layers, estimate, step, check, forecast, diagnose or fleet wrote with --json.",
    )
    parser.add_argument(
        "runs",
        nargs="*",
        metavar="RUN",
        help="id, its beginning, a tag, last, last~2, or a JSON file; several go onto one page",
    )
    parser.add_argument(
        "-o",
        "--output",
        metavar="FILE",
        default=_DEFAULT,
        help=f"the page; - is stdout; default: {_DEFAULT}",
    )
    for kind in _KINDS:
        parser.add_argument(
            f"--{kind}", metavar="DIR", help=f"write every figure as {kind.upper()} into DIR too"
        )
    parser.add_argument("--title", metavar="TEXT", help="default: the models and the machine")
    add(parser, "quiet", "store")


def run(args: argparse.Namespace) -> int:
    """Read the runs, write the page and the figures' files.

    Returns:
        0; 1 if the runs hold nothing that was measured: the page says why.

    Raises:
        UsageError: no such run, or something cannot be written: nothing was written.
        PydlbenchError: a file is no results, or matplotlib is missing.
    """
    from pydlbench.report.text import STDOUT, check_writable, write_text

    if not args.runs:
        raise UsageError("RUN: none given; nearest: pydlbench report last")
    check_writable("--output", args.output)
    for kind in _KINDS:
        if getattr(args, kind) is not None:
            _check_folder(f"--{kind}", getattr(args, kind))
    with without_collection(), reading_runs(args.runs):
        from pydlbench.report.page.page import build_page

        runs = _read(args)
        page = build_page(runs, args.title)
        write_text(args.output, page.html)
        written = _write_figures(args, page)
    if not args.quiet and args.output != STDOUT:
        size = len(page.html.encode("utf-8", "backslashreplace"))
        figures = f"{len(page.charts)} figure{'' if len(page.charts) == 1 else 's'}"
        print(f"{args.output}: {size / 1e6:.2f} MB, {figures}, opens without a network")
        for text in written:
            print(text)
    if any(_measured(one) for one in runs):
        return 0
    tell("nothing was measured in these runs; pydlbench runs show says why")
    return 1


def _read(args: argparse.Namespace) -> list[PageRun]:
    from pydlbench.cli.options import reading_store
    from pydlbench.report.page.runs import read_run
    from pydlbench.store.documents import load

    with reading_store(args) or contextlib.nullcontext() as store:
        loaded = [load(text, store) for text in dict.fromkeys(args.runs)]
        return [read_run(one, number, _fleet(one)) for number, one in enumerate(loaded, start=1)]


def _fleet(run: Loaded) -> FleetVerdict | None:
    """Return what is said of a fleet's nodes; None where the run is another command's."""
    if run.info.kind != "fleet":
        return None
    from pydlbench.cli.fleet import judged

    return judged(run)


def _measured(run: PageRun) -> bool:
    """Whether a run has anything with a time."""
    steps = any(one.record.ok for one in run.steps)
    checks = any(one.record is not None for one in run.checks)
    forecasts = run.forecast_records
    several = (run.timed, run.findings, forecasts, run.protocols, run.fleet)
    return steps or checks or any(several)


def _check_folder(option: str, text: str) -> None:
    """Make sure that files can be written into a folder, which may have to be made."""
    from pydlbench.report.text import check_writable
    from pydlbench.store.place import user_path

    if not text or text == "-":
        raise UsageError(f"{option} {text!r}: is no folder; nearest: {option} figures")
    folder = user_path(text)
    if folder.exists() and not folder.is_dir():
        raise UsageError(f"{option} {text}: is a file; nearest: {option} {folder.parent}")
    # Whoever can write beside the folder can make it.
    check_writable(option, str(folder / "figure" if folder.is_dir() else folder))


def _write_figures(args: argparse.Namespace, page: Page) -> list[str]:
    from pydlbench.report.text import write_bytes
    from pydlbench.store.place import user_path

    written = []
    for kind in _KINDS:
        target = getattr(args, kind)
        if target is None:
            continue
        folder = user_path(target)
        folder.mkdir(exist_ok=True)
        for chart in page.charts:
            write_bytes(str(folder / f"{chart.name}.{kind}"), page.figure(chart, kind))
        written.append(f"{target}: {len(page.charts)} {kind.upper()} files")
    return written
