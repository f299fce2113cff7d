"""``pydlbench sweep FILE.toml``: many measurements from one file, kept as one run."""

from __future__ import annotations

import dataclasses
import hashlib
import importlib
import json
import re
from dataclasses import replace
from typing import TYPE_CHECKING, Any, Final

import msgspec

from pydlbench.errors import UsageError
from pydlbench.runner.sweep import KINDS, Job, Key, Row, apply_rules

if TYPE_CHECKING:
    import argparse
    from collections.abc import Callable, Mapping, Sequence

    from pydlbench.cli.recorder import Recorder
    from pydlbench.records.specs import KernelSpec
    from pydlbench.runner.sweep import SweepFile, Table

__all__ = [
    "add_parser",
    "asked_for",
    "kept_kernels",
    "kernel_key",
    "kernel_of",
    "read_jobs",
    "request_of",
    "row_key",
    "run",
    "same_kernel",
    "table_keys",
]


def add_parser(subparsers: argparse._SubParsersAction[Any]) -> None:
    """Describe the command."""
    from pydlbench.cli.options import add_store_option

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
        checker: takes the place of ``pydlbench.ladder.check.check``.

    Returns:
        0; 1 if no row is ok; 130 after Ctrl-C, with what was finished until then.

    Raises:
        UsageError: bad input; nothing was measured and nothing written.
    """
    from pydlbench.cli.recorder import Recorder
    from pydlbench.cli.sweep_output import SweepOutputs, show_plan
    from pydlbench.cli.terminal import tell
    from pydlbench.runner.sweep import parse_sweep

    outputs = SweepOutputs.from_args(args)
    if args.dry_run:
        if args.resume is not None:
            raise UsageError(
                f"--resume {args.resume}: not with --dry-run; nearest: leave one of them out"
            )
        file = parse_sweep(*_read_file(args.file), table_keys())
        jobs, notes = read_jobs(file)
        show_plan(file, jobs, notes, args, outputs)
        return 0
    text = None if args.file is None else _read_file(args.file)
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
        from pydlbench.cli.sweep_running import Sweep

        sweep = Sweep(file, jobs, recorder, quiet=args.quiet)
        return sweep.run(outputs, factories or {}, checker)


def _read_file(name: str | None) -> tuple[str, str]:
    """Return a file's name and text.

    Raises:
        UsageError: it cannot be read.
    """
    from pydlbench.errors import nearest
    from pydlbench.store.place import user_path

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


# -----------------------------------------------------------------------------
# From the checked options of a table to jobs: what each command's own reader returns, as rows.


def _layers(args: argparse.Namespace) -> tuple[list[Job], tuple[str, ...]]:
    from pydlbench.cli.layers import read_request

    request = read_request(args)
    jobs = []
    for threads in request.threads:
        rows = [
            Row(fields=_case_fields(case, threads), label=case.label, case=case)
            for case in request.cases
        ]
        options = {**request.options, "threads": threads}
        jobs.append(_job("layers", rows, options, request))
    return jobs, request.notes


def _case_fields(case: KernelSpec, threads: int | None) -> dict[str, str]:
    name = case.layer.name or case.layer.problem
    return {
        "shape": name,
        "model": name.rpartition("/")[0],
        "kind": case.layer.kind,
        "batch": str(case.layer.batch),
        "pass": case.pass_,
        "precision": case.precision,
        "propagation": case.propagation,
        "cache": case.cache,
        "layout": case.layout,
        "threads": "default" if threads is None else str(threads),
        "device": case.device,
        "backend": case.backend,
        "mode": case.mode or "",
        "timing": case.timing,
        "fuse": case.fuse,
    }


def _model(args: argparse.Namespace) -> tuple[list[Job], tuple[str, ...]]:
    from pydlbench.cli.model import read_model

    request = read_model(args)
    fields = {
        **_variant(args),
        "model": request.model.name,
        "batch": str(request.model.batch),
        "phase": request.phase,
        "precision": request.precision,
        "device": request.device,
        "threads": _threads(request.options),
    }
    label = f"{request.model.name} batch {request.model.batch} {request.phase} {request.precision}"
    return [_job("model", [Row(fields=fields, label=label)], request.options, request)], (
        request.notes
    )


def _e2e(args: argparse.Namespace) -> tuple[list[Job], tuple[str, ...]]:
    from pydlbench.cli.e2e import read_request

    request = read_request(args)
    jobs = []
    for group in request.groups:
        rows = [
            Row(
                fields={
                    **_variant(args),
                    "model": case.model,
                    "batch": str(case.batch),
                    "phase": case.phase,
                    "framework": case.framework,
                    "mode": str(case.mode),
                    "precision": case.precision,
                    "cast": case.cast,
                    "layout": case.layout,
                    "feed": case.feed,
                    "device": case.device,
                    "threads": _threads(request.options),
                },
                label=case.label,
                case=case,
            )
            for case in group.cases
        ]
        jobs.append(_job("e2e", rows, request.options, (group.model, not args.no_checks)))
    return jobs, request.notes


def _check(args: argparse.Namespace) -> tuple[list[Job], tuple[str, ...]]:
    from pydlbench.cli.check import read_check

    request = read_check(args)
    what = f"{request.model.name} batch {request.model.batch} {request.phase} {request.precision}"
    rows = [
        Row(
            fields={
                **_variant(args),
                "model": request.model.name,
                "batch": str(request.model.batch),
                "phase": request.phase,
                "precision": request.precision,
                "framework": framework,
                "mode": mode,
                "layout": request.layout,
                "feed": request.feed,
                "device": "cpu",
                "threads": _threads(request.options),
            },
            label=f"{what} {framework} {mode}",
            case=(framework, mode),
        )
        for framework, mode in request.subjects
    ]
    return [_job("check", rows, request.options, request)], request.notes


#: By kind of table, what reads its options.
READERS: Final[Mapping[str, Callable[[argparse.Namespace], tuple[list[Job], tuple[str, ...]]]]] = {
    "layers": _layers,
    "model": _model,
    "e2e": _e2e,
    "check": _check,
}


def _job(kind: str, rows: Sequence[Row], options: Mapping[str, Any], request: Any) -> Job:
    return Job(
        kind=kind,
        table=0,
        place="",
        words=(),
        rows=tuple(rows),
        options=dict(options),
        request=request,
    )


def _variant(args: argparse.Namespace) -> dict[str, str]:
    return {"option": " ".join(sorted(args.option))} if args.option else {}


def _threads(options: Mapping[str, Any]) -> str:
    threads = options.get("threads")
    return "default" if threads is None else str(threads)


# -----------------------------------------------------------------------------
# What tells the entries of a sweep apart in the store, so that a later run knows what is there.


def row_key(job: Job, row: Row) -> str:
    """Return the key of a row: its table and everything that was asked for.

    The case is in it: two layers of one name may differ in what pooling does.
    """
    case = row.case.to_dict() if hasattr(row.case, "to_dict") else row.case
    return f"{job.kind}/{job.table}/{_digest([dict(row.fields), case])}"


def asked_for(key: str | None) -> bool:
    """Whether a layer's entry is the row of a table; else it is a kernel behind a sum.

    Where keys are not known, as in a file, every row counts.
    """
    return key is None or key.startswith("layers/")


def kernel_key(job: Job, row: Row, case: KernelSpec) -> str:
    """Return the key of a kernel that was measured for the sum of a row."""
    return f"{row_key(job, row)}/{same_kernel(job, case)}"


def kernel_of(key: str) -> str | None:
    """Return the key of the estimate that a kernel was measured for; None if it was for none."""
    row = key.rpartition("/")[0]
    return row if key.startswith("model/") and row.count("/") > 1 else None


def same_kernel(job: Job, case: KernelSpec) -> str:
    """Return what two measurements of the same kernel have in common, whatever asked for it."""
    nameless = msgspec.structs.replace(case, layer=dataclasses.replace(case.layer, name=None))
    return _digest([nameless.to_dict(), job.options.get("threads")])


def kept_kernels(done: Mapping[str, tuple[str, dict[str, Any]]]) -> dict[str, dict[str, Any]]:
    """Return the kernels behind sums that an earlier attempt has measured, by ``same_kernel``.

    Args:
        done: table and document of what it has finished, by key.
    """
    return {
        key.rpartition("/")[2]: document
        for key, (table, document) in done.items()
        if table == "layer" and not asked_for(key) and document.get("status") == "ok"
    }


def _digest(value: object) -> str:
    text = json.dumps(value, sort_keys=True, default=str)
    return hashlib.sha256(text.encode()).hexdigest()[:20]


# -----------------------------------------------------------------------------
# From the tables of a sweep to jobs: each command's own parser and reader say what is right.

_SHOWN: Final = "belongs to the sweep's own command line, not to its file; nearest: leave it out"
_SCRIPT: Final = "is for published scripts, which print for themselves; nearest: pydlbench e2e"
#: Options that no table may have, and why.
_REFUSED: Final = {
    **dict.fromkeys(("json", "csv", "md", "quiet", "store", "resume", "tag"), _SHOWN),
    **dict.fromkeys(("explain", "top", "all"), _SHOWN),
    "samples": "raw samples are always kept in the store; nearest: leave it out",
    "summary": "times nothing; nearest: pydlbench model NAME --summary",
    "sweep": "batch takes a list here; nearest: batch = [16, 32]",
    "agree": "compares numbers, it times nothing; nearest: pydlbench e2e MODEL --agree",
    **dict.fromkeys(
        ("protocol", "steps", "warmup", "every", "epochs", "quirk", "data", "download"), _SCRIPT
    ),
}


def table_keys() -> dict[str, tuple[Key, ...]]:
    """Return what each kind of table may have, read off the commands' parsers."""
    return {kind: tuple(_keys(_parser(kind))) for kind in KINDS}


def read_jobs(file: SweepFile) -> tuple[list[Job], list[str]]:
    """Return what a file asks for, every word of it checked, and notes on what is left out.

    Raises:
        UsageError: one line with file, table, key, reason and the nearest valid value.
    """
    jobs: list[Job] = []
    notes: list[str] = []
    wanted: set[str] = set()
    for table in file.tables:
        found: list[Job] = []
        for words in table.requests:
            read, said = _read_request(table, words)
            found += read
            notes += [f"{table.place}: {text}" for text in said]
        kept, out = apply_rules(
            table.place, table.exclude, [row for job in found for row in job.rows]
        )
        if out:
            notes.append(f"{table.place}: exclude takes out {out} of {len(kept) + out} rows")
        left = {id(row) for row in kept}
        found = [
            replace(job, rows=tuple(row for row in job.rows if id(row) in left)) for job in found
        ]
        found, twice = _once(found, wanted)
        if twice:
            count = "1 row is" if twice == 1 else f"{twice} rows are"
            notes.append(f"{table.place}: {count} asked for above already, left out")
        jobs += [job for job in found if job.rows]
    return jobs, list(dict.fromkeys(notes))


def _once(jobs: Sequence[Job], wanted: set[str]) -> tuple[list[Job], int]:
    """Return jobs without the rows that others have, and how many these are.

    Twice the same row in a run would leave a comparison without an answer which one is meant.
    """
    left, twice = [], 0
    for job in jobs:
        rows = []
        for row in job.rows:
            key = row_key(replace(job, table=0), row)
            if key in wanted:
                twice += 1
            else:
                rows.append(row)
                wanted.add(key)
        left.append(replace(job, rows=tuple(rows)))
    return left, twice


def _parser(kind: str) -> argparse.ArgumentParser:
    from pydlbench.cli.parser import Parser

    main = Parser(prog="pydlbench")
    subparsers = main.add_subparsers()
    importlib.import_module(f"pydlbench.cli.{kind}").add_parser(subparsers)
    found: argparse.ArgumentParser = subparsers.choices[kind]
    return found


def _keys(parser: argparse.ArgumentParser) -> list[Key]:
    keys = []
    for action in parser._actions:  # noqa: SLF001 - argparse has no other way to list options
        if action.dest == "help":
            continue
        name = action.option_strings[-1].lstrip("-") if action.option_strings else action.dest
        keys.append(
            Key(
                name=name,
                takes=_takes(action),
                positional=not action.option_strings,
                refused=_REFUSED.get(name, ""),
            )
        )
    return keys


def _takes(action: argparse.Action) -> str:
    if action.nargs == 0:
        return "flag"
    if action.nargs == "+":
        return "many"
    return "again" if type(action).__name__ == "_AppendAction" else "one"


def _read_request(table: Table, words: Sequence[str]) -> tuple[list[Job], tuple[str, ...]]:
    """Return the jobs of one request and notes."""
    options = [word for word in words if word.startswith("--")]
    arguments = [word for word in words if not word.startswith("--")]
    if not arguments and table.kind != "layers":
        raise UsageError(f'{table.place}: model: not given; nearest: model = "alexnet-owt"')
    line = [*options, *(["--", *arguments] if arguments else [])]
    try:
        args = _parser(table.kind).parse_args(line)
        jobs, notes = READERS[table.kind](args)
        _check_threads(jobs)
    except UsageError as error:
        raise UsageError(f"{table.place}: {_in_file(str(error))}") from error
    told = tuple(_in_file(text) for text in notes)
    command = (table.kind, *arguments, *options)
    return [
        replace(job, table=table.number, place=table.place, words=command) for job in jobs
    ], told


def _check_threads(jobs: Sequence[Job]) -> None:
    """Refuse more threads than there are CPUs now, not when their session is opened."""
    from pydlbench.devices.cpu.affinity import choose_cpus
    from pydlbench.devices.cpu.facts import read_cpu_facts

    counts = {job.options["threads"] for job in jobs if job.options.get("threads")}
    for count in counts:
        choose_cpus(read_cpu_facts(), count)


def _in_file(message: str) -> str:
    """Return a message about options as one about keys."""
    text = re.sub(r" \(pydlbench[^)]*--help\)$", "", message)
    return re.sub(r"(?<![\w-])--([a-z][a-z-]*)", r"\1", text)
