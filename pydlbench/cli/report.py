"""``pydlbench report``: runs as one HTML page that opens offline, and its figures as files."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from typing import TYPE_CHECKING, Final

from pydlbench.cli.machine import reading_store
from pydlbench.cli.options import OUTPUT, RUNS, TO, Stored, option
from pydlbench.cli.output import reading_runs, without_collection
from pydlbench.cli.terminal import tell
from pydlbench.errors import UsageError
from pydlbench.report.blocks import Figure
from pydlbench.report.text import STDOUT, check_writable, write_bytes, write_text
from pydlbench.store.place import user_path
from pydlbench.units import quantity

if TYPE_CHECKING:
    from pydlbench.report.page import PageRun
    from pydlbench.store.documents import Loaded

_DEFAULT: Final = "pydlbench-report.html"
_KINDS: Final = ("png", "svg")


class ReportOptions(Stored):
    """The command's options."""

    description = (
        "Write one self-contained HTML page with the figures and tables of runs, from the store or "
        "from files that --json wrote."
    )
    runs: tuple[str, ...] = RUNS(help=f"{RUNS.help}; several go onto one page")
    output: str = TO(help=f"the page; - is standard output; default: {_DEFAULT}", default=_DEFAULT)
    png: str | None = option("DIR", "also write every figure as PNG into DIR", group=OUTPUT)
    svg: str | None = option("DIR", "also write every figure as SVG into DIR", group=OUTPUT)
    title: str | None = option(
        "TEXT", "title of the page; default: the models and the machine", group=OUTPUT
    )


def run(args: ReportOptions) -> int:
    """Write the page and the files of figures.

    Returns:
        0; 1 if nothing was measured in the runs: the page has the reasons.

    Raises:
        UsageError: no such run, or a file cannot be written: nothing was written.
        PydlbenchError: a file has no results, or vl-convert, which draws figures, is missing.
    """
    from pydlbench.report.page import runs_page
    from pydlbench.store.documents import load

    if not args.runs:
        raise UsageError("RUN: none given; nearest: pydlbench report last")
    check_writable("--output", args.output)
    for kind in _KINDS:
        if (folder := getattr(args, kind)) is not None:
            _check_folder(f"--{kind}", folder)
    with (
        without_collection(),
        reading_runs(args.runs),
        reading_store(args.store) as store,
    ):
        runs = [_page_run(load(text, store)) for text in dict.fromkeys(args.runs)]
        html = runs_page(runs, args.title)
        entries = [entry for shown in runs for entry in shown.loaded.table(None)]
    write_text(args.output, html)
    figures = [block for shown in runs for block in shown.blocks if isinstance(block, Figure)]
    written = _write_figures(args, figures)
    if not args.quiet and args.output != STDOUT:
        size = len(html.encode("utf-8", "backslashreplace"))
        count = quantity(len(figures), "figure")
        print(f"{args.output}: {size / 1e6:.2f} MB, {count}, opens without a network")
        for text in written:
            print(text)
    if any(entry.document.get("status", "ok") == "ok" for entry in entries):
        return 0
    tell("nothing was measured in these runs; pydlbench runs show says why")
    return 1


def _page_run(loaded: Loaded) -> PageRun:
    from pydlbench.cli.fleet import judged
    from pydlbench.cli.runs import stored_report
    from pydlbench.report.page import PageRun

    fleet = judged(loaded) if loaded.info.kind == "fleet" else None
    return PageRun(loaded, stored_report(loaded), fleet)


def _check_folder(option: str, text: str) -> None:
    """Make sure that files can be written into a folder, or that it can be created."""
    if not text or text == "-":
        raise UsageError(f"{option} {text!r}: is no folder; nearest: {option} figures")
    folder = user_path(text)
    if folder.exists() and not folder.is_dir():
        raise UsageError(f"{option} {text}: is a file; nearest: {option} {folder.parent}")
    # A folder can be created where a file can be written.
    check_writable(option, str(folder / "figure" if folder.is_dir() else folder))


def _write_figures(args: ReportOptions, figures: Sequence[Figure]) -> list[str]:
    from pydlbench.report.drawing import png, svg

    written = []
    for kind in _KINDS:
        target = getattr(args, kind)
        if target is None:
            continue
        folder = user_path(target)
        folder.mkdir(exist_ok=True)
        counts: Counter[str] = Counter()
        for figure in figures:
            counts[figure.kind] += 1
            data = png(figure) if kind == "png" else svg(figure).encode()
            write_bytes(str(folder / f"{figure.kind}-{counts[figure.kind]}.{kind}"), data)
        written.append(f"{target}: {len(figures)} {kind.upper()} files")
    return written


SUBCOMMANDS: Final = {"": (ReportOptions, run)}
