"""From the tables of a sweep to jobs: each command's own parser and reader say what is right."""

from __future__ import annotations

import importlib
import re
from dataclasses import replace
from typing import TYPE_CHECKING, Final

from pydlbench.cli.sweep_keys import row_key
from pydlbench.cli.sweep_readers import READERS
from pydlbench.errors import UsageError
from pydlbench.sweep import KINDS, Key, apply_rules

if TYPE_CHECKING:
    import argparse
    from collections.abc import Sequence

    from pydlbench.sweep import Job, SweepFile, Table

__all__ = ["read_jobs", "table_keys"]

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
            read, said = _read(table, words)
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


def _read(table: Table, words: Sequence[str]) -> tuple[list[Job], tuple[str, ...]]:
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
    from pydlbench.devices.cpu import choose_cpus, read_cpu_facts

    counts = {job.options["threads"] for job in jobs if job.options.get("threads")}
    for count in counts:
        choose_cpus(read_cpu_facts(), count)


def _in_file(message: str) -> str:
    """Return a message about options as one about keys."""
    text = re.sub(r" \(pydlbench[^)]*--help\)$", "", message)
    return re.sub(r"(?<![\w-])--([a-z][a-z-]*)", r"\1", text)
