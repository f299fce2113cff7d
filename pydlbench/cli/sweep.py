"""``pydlbench sweep FILE.toml``: many measurements from one file, kept as one run."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from pydlbench.errors import UsageError

if TYPE_CHECKING:
    import argparse
    from collections.abc import Callable, Mapping

    from pydlbench.cli.recording import Recorder
    from pydlbench.sweep import SweepFile

__all__ = ["add_parser", "run"]


def add_parser(subparsers: argparse._SubParsersAction[Any]) -> None:
    """Describe the command."""
    from pydlbench.cli.store_option import add_store_option

    parser = subparsers.add_parser(
        "sweep",
        help="many measurements from one TOML file, kept as one run that can be resumed",
        description="Measure what a file asks for: tables [[layers]], [[model]], [[e2e]] and "
        "[[check]] whose keys are those commands' options, with lists as axes.",
    )
    parser.add_argument("file", nargs="?", metavar="FILE", help="the TOML file")
    parser.add_argument(
        "--dry-run",
        action="store_true",
        help="check the file, list its rows and say how long they will take; measure nothing",
    )
    parser.add_argument(
        "--resume",
        metavar="RUN",
        help="go on with a run of sweep that was stopped: measure what is missing or has failed",
    )
    for kind in ("json", "md"):
        parser.add_argument(f"--{kind}", metavar="FILE", help=f"write {kind}; - is stdout")
    parser.add_argument("--quiet", action="store_true", help="no progress and no warnings")
    add_store_option(parser)


def run(
    args: argparse.Namespace,
    factories: Mapping[str, Callable[..., Any]] | None = None,
    checker: Callable[..., Any] | None = None,
) -> int:
    """Measure what a file asks for, or what is missing of it.

    Args:
        args: the command's options.
        factories: take the places of what opens sessions: ``layers``, ``e2e`` and ``check``.
        checker: takes the place of ``pydlbench.crosscheck.check``.

    Returns:
        0; 1 if no row is ok; 130 after Ctrl-C, with what was finished until then.

    Raises:
        UsageError: bad input; nothing was measured and nothing written.
    """
    from pydlbench.cli.recording import Recorder
    from pydlbench.cli.streams import tell
    from pydlbench.cli.sweep_output import SweepOutputs, show_plan
    from pydlbench.cli.sweep_tables import read_jobs, table_keys
    from pydlbench.sweep import parse_sweep

    outputs = SweepOutputs.from_args(args)
    if args.dry_run:
        if args.resume is not None:
            raise UsageError(
                f"--resume {args.resume}: not with --dry-run; nearest: leave one of them out"
            )
        file = parse_sweep(*_read(args.file), table_keys())
        jobs, notes = read_jobs(file)
        show_plan(file, jobs, notes, args, outputs)
        return 0
    text = None if args.file is None else _read(args.file)
    if text is None and args.resume is None:
        raise UsageError("FILE: none given; nearest: pydlbench sweep FILE.toml")
    if text is not None and args.resume is None:
        # Before the store is opened: a file with an error in it leaves no trace.
        read_jobs(parse_sweep(*text, table_keys()))
    with Recorder.of(args, "sweep", args.resume) as recorder:
        file = parse_sweep(*_same(text, recorder), table_keys())
        jobs, notes = read_jobs(file)
        for note in () if args.quiet else notes:
            tell(f"note: {note}")
        from pydlbench.cli.sweep_whole import Sweep

        sweep = Sweep(file, jobs, recorder, quiet=args.quiet)
        return sweep.run(outputs, factories or {}, checker)


def _read(name: str | None) -> tuple[str, str]:
    """Return a file's name and text.

    Raises:
        UsageError: it cannot be read.
    """
    from pydlbench.errors import nearest
    from pydlbench.results.paths import user_path

    if name is None:
        raise UsageError("FILE: none given; nearest: pydlbench sweep FILE.toml --dry-run")
    path = user_path(name)
    try:
        return name, path.read_text(encoding="utf-8")
    except UnicodeDecodeError as error:
        raise UsageError(f"{name}: not UTF-8 text; nearest: a TOML file") from error
    except OSError as error:
        folder = path.parent
        names = [one.name for one in folder.glob("*.toml")] if folder.is_dir() else []
        near = nearest(path.name, names, 1) or names[:1]
        hint = f"; nearest: {folder / near[0]}" if near else ""
        raise UsageError(f"{name}: cannot be read ({error.strerror}){hint}") from error


def _same(text: tuple[str, str] | None, recorder: Recorder) -> tuple[str, str]:
    """Return the file's name and text; of a run that is resumed those that it was begun with."""
    if recorder.resumed is None or recorder.store is None:
        assert text is not None  # asked before
        return text
    asked: Mapping[str, Any] | None = recorder.store.request(recorder.resumed.info.id)
    if asked is None or "text" not in asked:
        raise UsageError(
            f"--resume {recorder.resumed.info.id}: it was kept without its file; start a new run"
        )
    if text is not None and text[1] != asked["text"]:
        raise UsageError(
            f"{text[0]}: has changed since run {recorder.resumed.info.id} began; nearest: leave "
            "FILE out to go on with what it was, or leave --resume out"
        )
    return str(asked["file"]), str(asked["text"])


def request_of(file: SweepFile) -> dict[str, str]:
    """Return what is kept of a file with its run."""
    return {"file": file.path, "text": file.text}
