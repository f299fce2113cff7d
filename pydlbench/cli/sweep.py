"""``pydlbench sweep FILE.toml``: many measurements from one file, kept as one run."""

from __future__ import annotations

import dataclasses
import functools
import importlib
import itertools
import re
import sys
from collections.abc import Callable, Collection, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Final

from pydlbench.cli.options import (
    FAIL_ON,
    MINUTES,
    RESUME,
    CommandOptions,
    MarkdownOutput,
    Measuring,
    Option,
    argument,
    flag,
    flag_of,
)
from pydlbench.cli.output import Outputs
from pydlbench.cli.parser import COMMANDS, command_parser, records
from pydlbench.cli.values import assignments
from pydlbench.errors import UsageError, nearest
from pydlbench.grouping import group_by
from pydlbench.report.blocks import Block, Heading, Headline, Lines, TableBlock, run_lines
from pydlbench.runner.sweep import Key, SweepFile, SweepTable, apply_rules, key_words, parse_sweep
from pydlbench.runner.tasks import Result, Task
from pydlbench.store.place import user_path
from pydlbench.units import format_seconds, per_second, percent, quantity

if TYPE_CHECKING:
    from pydlbench.runner.execute import Results

_MAX_FILE_BYTES: Final = 1 << 20
_MAX_ROWS: Final = 50_000


def _kinds() -> tuple[str, ...]:
    """Return the commands that a file can have tables of."""
    return tuple(name for name, command in COMMANDS.items() if command.sweeps)


class SweepOptions(Measuring, MarkdownOutput):
    """The command's options."""

    description = (
        f"Measure what a file asks for, in tables {', '.join(f'[[{name}]]' for name in _kinds())}. "
        "Their keys are those commands' options; of lists every combination is measured."
    )
    file: str | None = argument("FILE", "the TOML file; - is standard input", "?")
    dry_run: bool = flag(
        "check the file, list its rows and say how long they may take; measure nothing"
    )
    fail_on: tuple[str, float] | None = FAIL_ON()
    minutes: float | None = MINUTES()
    resume: str | None = RESUME(
        help="continue a run that was interrupted: measure what is missing or has failed"
    )


def run(args: SweepOptions, session_factory: Callable[..., Any] | None = None) -> int:
    """Measure the rows of a file, or the missing ones of a resumed run.

    Args:
        args: the command's options.
        session_factory: opens a session; its keywords are the session's options.

    Returns:
        0; 1 if no row is ok; 3 under ``--fail-on``; 130 after Ctrl-C, with what was finished.

    Raises:
        UsageError: bad input; nothing was measured and nothing written.
    """
    outputs = Outputs.from_options(args)
    if args.dry_run and args.resume is not None:
        raise UsageError(
            f"--resume {args.resume}: not with --dry-run; nearest: leave one of them out"
        )
    file = parse_sweep(*_file_text(args), table_keys())
    tasks, notes = read_file(file)
    if args.dry_run:
        show_plan(file, tasks, outputs)
        outputs.note(*notes)
        return 0
    outputs.note(*notes)
    from pydlbench.cli.measuring import measure

    code, _ = measure(
        args,
        "sweep",
        tasks,
        lambda finished: show(file, finished, outputs),
        sessions=session_factory,
        request={"file": file.path, "text": file.text},
        tolerant=True,
    )
    return code


def _file_text(args: SweepOptions) -> tuple[str, str]:
    """Return the file's name and text, or those of the resumed run.

    Raises:
        UsageError: no file is named, it cannot be read, or it has changed since that run began.
    """
    if args.resume is None:
        if args.file is None:
            more = " --dry-run" if args.dry_run else ""
            raise UsageError(f"FILE: none given; nearest: pydlbench sweep FILE.toml{more}")
        return read_text(args.file)
    from pydlbench.cli.measuring import run_to_resume

    with run_to_resume(args, args.resume, "sweep") as (store, info):
        request: Mapping[str, Any] | None = store.request(info.id)
    if request is None or "text" not in request:
        raise UsageError(f"--resume {info.id}: it was stored without its file; start a new run")
    if args.file is not None and read_text(args.file)[1] != request["text"]:
        raise UsageError(
            f"{args.file}: has changed since run {info.id} began; nearest: leave "
            "FILE out to continue with the stored text, or leave --resume out"
        )
    return str(request["file"]), str(request["text"])


def read_text(name: str) -> tuple[str, str]:
    """Return a file's name and text.

    Raises:
        UsageError: it cannot be read.
    """
    path = user_path(name)
    try:
        if name == "-":
            data = sys.stdin.buffer.read(_MAX_FILE_BYTES + 1)
        else:
            with path.open("rb") as stream:
                data = stream.read(_MAX_FILE_BYTES + 1)
        if len(data) > _MAX_FILE_BYTES:
            raise UsageError(f"{name}: more than {_MAX_FILE_BYTES >> 20} MiB; nearest: a TOML file")
        # Editors of Windows begin a file with a byte order mark.
        return name, data.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        raise UsageError(f"{name}: not UTF-8 text; nearest: a TOML file") from error
    except OSError as error:
        folder = path.parent
        names = [file.name for file in folder.glob("*.toml")]
        near = nearest(path.name, names, 1) or names[:1]
        hint = f"; nearest: {folder / near[0]}" if near else ""
        raise UsageError(f"{name}: cannot be read ({error.strerror}){hint}") from error


# -----------------------------------------------------------------------------
# From the tables of a sweep to tasks: each command's own parser checks the values.


def keys_of(kind: type[CommandOptions]) -> tuple[Key, ...]:
    """Return the keys of a table or of keywords, from a command's record."""
    return tuple(
        Key(
            name=name if option.argument else flag_of(name).lstrip("-"),
            takes=_takes(option),
            positional=bool(option.argument),
            refused=option.refused,
        )
        for name, option in kind.declared().items()
    )


def _takes(option: Option) -> str:
    if option.read is assignments:
        return "pairs"
    return "many" if option.many else "one" if option.metavar else "flag"


def words_of(place: str, kind: type[CommandOptions], values: Mapping[str, Any]) -> list[str]:
    """Return the words of a command line for values of Python.

    Args:
        place: text for messages that says where the values come from.
        kind: record class of the command's options.
        values: values by name of the option: texts, numbers, booleans, lists of these, or mappings
            for ``NAME=VALUE``; None for an option that is not given.

    Raises:
        UsageError: the command has no such option, or several values of one that takes one.
    """
    keys = {
        key.name.replace("-", "_"): dataclasses.replace(key, refused="") for key in keys_of(kind)
    }
    words: list[str] = []
    arguments: list[str] = []
    for name, value in values.items():
        if value is None:
            continue
        key = keys.get(name.rstrip("_"))
        if key is None:
            near = ", ".join(nearest(name, keys, 1)) or "a name without dashes"
            raise UsageError(f"{place}: {name}: no such option; nearest: {near}")
        chosen, *others = key_words(place, key, value)
        if others:
            raise UsageError(f"{place}: {name}: takes one value; nearest: {value[0]}")
        if key.positional:
            arguments += chosen
        else:
            words += chosen
    return [*words, "--", *arguments]


def table_keys() -> dict[str, tuple[Key, ...]]:
    """Return the keys of each kind of table."""
    return {kind: keys_of(records(kind)[""][0]) for kind in _kinds()}


def read_file(file: SweepFile) -> tuple[list[Task], list[str]]:
    """Return the tasks of a file, with all values checked, and notes on rows that are left out.

    Raises:
        UsageError: one line with file, table, key, reason and the nearest valid value.
    """
    tasks: list[Task] = []
    notes: list[str] = []
    keys: set[str] = set()
    count = 0
    for table in file.tables:
        requested: list[Task] = []
        for words in table.requests:
            read, remarks = _read_request(table, words)
            requested += read
            notes += [f"{table.place}: {text}" for text in remarks]
            count += sum(len(task.rows) for task in read)
            if count > _MAX_ROWS:
                raise UsageError(
                    f"{table.place}: more than {_MAX_ROWS:,} rows with those above; nearest: "
                    "several files"
                )
        rows, excluded = apply_rules(
            table.place, table.exclude, [row for task in requested for row in task.rows]
        )
        if excluded:
            total = len(rows) + excluded
            notes.append(f"{table.place}: exclude takes out {excluded} of {total} rows")
        distinct, repeated = _distinct(requested, {id(row) for row in rows}, keys)
        tasks += distinct
        if repeated:
            shown = "1 row is" if repeated == 1 else f"{repeated} rows are"
            notes.append(f"{table.place}: {shown} asked for above already, left out")
    return tasks, list(dict.fromkeys(notes))


def _distinct(
    tasks: Sequence[Task], included: Collection[int], keys: set[str]
) -> tuple[list[Task], int]:
    """Return tasks with their new rows, and the number of rows that are in ``keys`` already.

    A comparison could not match a row that is in a run twice.

    Args:
        tasks: tasks of a table.
        included: identities of the rows that no rule excludes.
        keys: keys of all rows above; the keys of the new rows are added.
    """
    from pydlbench.runner.execute import row_key

    distinct, repeated = [], 0
    for task in tasks:
        rows = []
        for row in task.rows:
            key = row_key(dataclasses.replace(task, table=0), row)
            if id(row) in included:
                repeated += key in keys
                rows += [] if key in keys else [row]
                keys.add(key)
        if rows:
            distinct.append(dataclasses.replace(task, rows=tuple(rows)))
    return distinct, repeated


_parser = functools.cache(command_parser)


def _read_request(table: SweepTable, words: Sequence[str]) -> tuple[list[Task], tuple[str, ...]]:
    """Return the tasks of one request, and notes."""
    options = [word for word in words if word.startswith("--")]
    arguments = [word for word in words if not word.startswith("--")]
    if not arguments and table.kind != "layers":
        raise UsageError(f'{table.place}: model: not given; nearest: model = "alexnet-owt"')
    line = [*options, *(["--", *arguments] if arguments else [])]
    try:
        args = records(table.kind)[""][0].parse(line, _parser(table.kind))
        tasks, notes = importlib.import_module(f"pydlbench.cli.{table.kind}").read_tasks(args)
        _check_threads(tasks)
    except UsageError as error:
        raise UsageError(f"{table.place}: {_in_file(str(error))}") from error
    where: dict[str, Any] = {
        "table": table.number,
        "place": table.place,
        "words": (table.kind, *arguments, *options),
    }
    return [dataclasses.replace(task, **where) for task in tasks], tuple(map(_in_file, notes))


def _check_threads(tasks: Sequence[Task]) -> None:
    """Refuse more threads than CPUs before the first session is opened."""
    from pydlbench.devices.cpu.affinity import choose_cpus
    from pydlbench.devices.cpu.facts import read_cpu_facts

    counts = {task.options["threads"] for task in tasks if task.options.get("threads")}
    for count in counts:
        choose_cpus(read_cpu_facts(), count)


def _in_file(message: str) -> str:
    """Return a message about options as one about keys."""
    text = re.sub(r" \(pydlbench[^)]*--help\)$", "", message)
    return re.sub(r"(?<![\w-])--([a-z][a-z-]*)", r"\1", text)


# -----------------------------------------------------------------------------
# ``--dry-run``: the rows of a sweep, and how long they may take.

# Sampling stops as soon as a kernel's time is known well enough. Starting workers, searching
# kernels and verifying results take up to ten times as long as sampling.
_SHARE_LOW: Final = 0.1
_SHARE_HIGH: Final = 10.0


def show_plan(file: SweepFile, tasks: Sequence[Task], outputs: Outputs) -> None:
    """Show a file's rows with the time of their budgets."""

    def command(task: Task) -> tuple[int, str, tuple[str, ...], Any]:
        return task.table, task.place, task.words, task.options.get("threads")

    jobs = [list(group) for _, group in itertools.groupby(tasks, command)]
    document: dict[str, Any] = {
        "kind": "sweep-plan",
        "file": file.path,
        "title": file.title,
        "rows": sum(len(task.rows) for task in tasks),
        "time_s": {**_span(tasks), "source": "from the budgets of sampling"},
        "jobs": [
            {
                "kind": job[0].kind,
                "table": job[0].table,
                "command": ["pydlbench", *job[0].words],
                "time_s": _span(job),
                "rows": [dict(row.fields) for task in job for row in task.rows],
            }
            for job in jobs
        ],
    }
    above: dict[int, str] = {}
    cells: list[list[str]] = []
    for job in jobs:
        place = job[0].place.partition(": ")[2]
        above[len(cells)] = f"{place}  {_command(job[0])}  ({_span_text(job)})"
        rows = [row for task in job for row in task.rows]
        texts = (_row_text(job[0].kind, row.fields) for row in rows)
        cells += [[str(number), text] for number, text in enumerate(texts, len(cells) + 1)]
    count = quantity(len(cells), "row")
    whole = f"{count} in {_span_text(tasks)}, from the budgets of sampling; nothing was measured"
    blocks: list[Block] = [
        Heading([f"{file.path}: {file.title}" if file.title else file.path]),
        TableBlock(("row", "what is measured"), cells, (True, False), above=above),
        Lines([whole]),
    ]
    outputs.write(lambda: document, lambda: blocks)


def _span(tasks: Sequence[Task]) -> dict[str, float]:
    sampling = sum(task.seconds() for task in tasks)
    return {"low": _SHARE_LOW * sampling, "high": _SHARE_HIGH * sampling}


def _span_text(tasks: Sequence[Task]) -> str:
    """Return an interval in one unit: ``2 to 9 min``."""
    bounds = _span(tasks).values()
    units = ((3600.0, "h"), (60.0, "min"))
    unit, name = next((pair for pair in units if max(bounds) >= 2 * pair[0]), (1.0, "s"))
    low, high = (f"{x:.0f}" if x >= 9.5 else f"{x:.1f}" for x in (bound / unit for bound in bounds))
    return f"{low} to {high} {name}"


def _command(task: Task) -> str:
    """Return a task's command line without the words of other tasks of its table."""
    threads = task.options.get("threads")
    words = [word for word in task.words if not word.startswith("--threads")]
    return " ".join(["pydlbench", *words, *([f"--threads={threads}"] if threads else [])])


def _row_text(kind: str, fields: Mapping[str, str]) -> str:
    """Return a row's values without defaults."""
    defaults = {"inference", "hot", "best", "default", "auto", "none", "mixed", "resident", ""}
    # The model is in a layer's name, the kind in its descriptor.
    omitted = {"model", "kind"} if kind == "layers" else set()
    usual = {} if kind == "layers" else _STEP_DEFAULTS
    return "  ".join(
        f"{name} {value}" if name in ("batch", "threads", "layout") else value
        for name, value in fields.items()
        if name not in omitted and value not in defaults and value != usual.get(name)
    )


# -----------------------------------------------------------------------------
# The results of a sweep, table by table: one line for a step, a conclusion for many layers.

# The files have the reasons of all rows.
_MAX_LISTED_REASONS: Final = 12
# Values that are not shown.
_STEP_DEFAULTS: Final = {"cast": "mixed", "layout": "nhwc", "feed": "resident"}
_DEFAULTS: Final = {**_STEP_DEFAULTS, "device": "cpu"}


def show(file: SweepFile, results: Results, outputs: Outputs) -> None:
    """Write the files, then print the report.

    Raises:
        PydlbenchError: a file could not be written after all; the rest is printed before.
    """
    from pydlbench.cli.runs import stored_report
    from pydlbench.records.run import RunInfo
    from pydlbench.report.json import run_document
    from pydlbench.store.documents import Loaded

    entries = results.entries()
    info = RunInfo(
        id=results.run.id,
        created_utc=results.run.created_utc,
        kind="sweep",
        status="interrupted" if results.early else "done",
        machine="",
        command=results.run.command,
    )

    def document() -> dict[str, Any]:
        refused = [
            {**outcome.document, "place": outcome.place}
            for outcome in results.outcomes
            if not outcome.table
        ]
        whole = run_document("sweep", results.run, entries)
        return {**whole, "not_estimated": refused, **results.ending}

    outputs.write(
        document,
        lambda: _summary(file, results),
        markdown=lambda: [
            *stored_report(Loaded(info, results.run, entries)),
            run_lines(results.run),
        ],
    )


def _summary(file: SweepFile, results: Results) -> list[Block]:
    by_place = group_by(results.outcomes, lambda outcome: outcome.place)
    blocks: list[Block] = [Heading([file.title or file.path])]
    for table in file.tables:
        if outcomes := by_place.get(table.place):
            place = table.place.partition(": ")[2]
            took = format_seconds(results.seconds.get(table.place, 0.0))
            blocks.append(Heading([f"{place}  {_count(outcomes)} in {took}"]))
            blocks.append(_table_block(table.kind, results, outcomes))
    refused = [outcome for outcome in results.outcomes if outcome.status != "ok"]
    reasons = [f"{outcome.status}: {_label(outcome)}: {outcome.reason}" for outcome in refused]
    if (more := len(reasons) - _MAX_LISTED_REASONS) > 0:
        reasons[_MAX_LISTED_REASONS:] = [f"... and {more} more"]
    times = [
        (time["median"], _label(outcome))
        for outcome in results.outcomes
        for name in ("time_s", "measured_s")
        if isinstance(time := outcome.document.get(name), Mapping)
    ]
    first = [f"{_count(results.outcomes)} measured"]
    if times:
        seconds, name = max(times)
        first = [
            f"{name} takes longest of {quantity(len(times), 'row')}: {format_seconds(seconds)}."
        ]
    if results.where is not None:
        first.append(f"next: pydlbench report {results.run.id}{results.where} -o sweep.html")
    return [Headline(first), *blocks, Lines(reasons, alarm=True)]


def _count(outcomes: Sequence[Result]) -> str:
    ok = sum(outcome.status == "ok" for outcome in outcomes)
    total = quantity(len(outcomes), "row")
    return total if ok == len(outcomes) else f"{ok} of {total} ok"


def _table_block(kind: str, results: Results, outcomes: Sequence[Result]) -> Block:
    """Return a conclusion on layers, or a line for each step."""
    from pydlbench.records.measurement import Measurement
    from pydlbench.report.verdicts import conclude_run

    if kind == "layers":
        return Lines(
            conclude_run(results.run, [outcome.record(Measurement) for outcome in outcomes])
        )
    ok = [outcome for outcome in outcomes if outcome.status == "ok"]
    cells = [[_label(outcome), _LINES[kind](outcome.document)] for outcome in ok]
    return TableBlock(("step", "result"), cells, (False, False))


def _label(outcome: Result) -> str:
    assert outcome.row is not None, "the loop has set it"
    fields = outcome.row.fields
    if outcome.table == "layer":
        return outcome.row.label
    names = ("model", "set", "batch", "phase", "precision", "framework", "mode")
    threads = fields["threads"]
    words = (
        *(f"batch {fields[name]}" if name == "batch" else fields.get(name) for name in names),
        *(fields.get(name) for name, usual in _DEFAULTS.items() if fields.get(name) != usual),
        "" if threads == "default" else f"{threads} thread{'' if threads == '1' else 's'}",
    )
    return " ".join(filter(None, words))


def _estimate(document: Mapping[str, Any]) -> str:
    """Return the time of an estimate, and what dominates it unless other work disturbed it."""
    from pydlbench.records.estimate import StepEstimate
    from pydlbench.report.estimate import dominant_groups

    total, step = document["estimate"], StepEstimate.from_dict(document)
    words = [f"{format_seconds(total['low'])} .. {format_seconds(total['high'])}"]
    words.append(dominant_groups(step) if step.tells else "contended")
    if document.get("missing"):
        words.append(f"without {len(document['missing'])} that were not measured")
    return ", ".join(filter(None, words))


def _step(document: Mapping[str, Any]) -> str:
    from pydlbench.records.user_model import rate_unit
    from pydlbench.report.runs import time_text

    words = [time_text(document["time_s"])]
    if rate := document.get("images_per_s"):
        words.append(f"{per_second(rate)} {rate_unit(document.get('own'))}")
    if document.get("contended"):
        words.append("contended")
    return ", ".join(words)


def _breakdown(document: Mapping[str, Any]) -> str:
    from pydlbench.report.runs import time_text

    words = [f"measured {time_text(document['measured_s'])}"]
    if document.get("forecast_error") is not None:
        words.append(f"error of the forecast {percent(document['forecast_error'], signed=True)}")
    if document.get("unexplained") is not None:
        words.append(f"unexplained {percent(document['unexplained'], signed=True)}")
    return ", ".join(words)


_LINES: Final[Mapping[str, Callable[[Mapping[str, Any]], str]]] = {
    "estimate": _estimate,
    "step": _step,
    "breakdown": _breakdown,
    "diagnose": lambda document: quantity(len(document["findings"]), "finding"),
}


SUBCOMMANDS: Final = {"": (SweepOptions, run)}
