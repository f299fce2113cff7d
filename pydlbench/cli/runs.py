"""``pydlbench runs``: lists, shows, tags, ends and deletes what is kept."""

from __future__ import annotations

import contextlib
import importlib
import sys
from functools import partial
from typing import TYPE_CHECKING, Final

from pydlbench.cli.machine import reading_store
from pydlbench.cli.options import (
    RUN,
    RUNS,
    JsonOutput,
    Stored,
    argument,
    flag,
    option,
)
from pydlbench.cli.output import Outputs, expecting, print_report, reading_runs, row_warnings
from pydlbench.cli.terminal import tell
from pydlbench.cli.values import whole_number
from pydlbench.errors import UsageError, nearest
from pydlbench.report.blocks import Block, Lines
from pydlbench.report.text import Style, as_text
from pydlbench.units import number

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterator, Sequence

    from pydlbench.cli.options import Quiet
    from pydlbench.records.run import RunInfo
    from pydlbench.store.documents import Loaded
    from pydlbench.store.entry import Entry
    from pydlbench.store.store import Store


class ListOptions(Stored, JsonOutput):
    """Options of ``runs list``."""

    description = "List the stored runs, newest first."
    epilog = (
        "A run whose process is gone without having ended it is shown as killed; layers and sweep "
        "continue it: --resume RUN. Of a process on another host or in another container nothing "
        "can be seen: if it is gone, end its run with pydlbench runs end."
    )
    limit: int | None = option("N", "list the N newest runs", read=partial(whole_number, least=1))
    tag: str | None = option("NAME", "list runs with this tag only")


class ShowOptions(Stored):
    """Options of ``runs show``."""

    description = "Show a run as its command printed it."
    run: str = RUN()


class TagOptions(Stored):
    """Options of ``runs tag``."""

    description = "Tag a run."
    run: str = RUN()
    name: str = argument("NAME", "the tag")


class UntagOptions(TagOptions):
    """Options of ``runs untag``."""

    description = "Take a tag from a run."


class EndOptions(ShowOptions):
    """Options of ``runs end``."""

    description = "End a run whose process is gone."


class DeleteOptions(Stored):
    """Options of ``runs delete``."""

    description = "Delete runs, with their results."
    runs: tuple[str, ...] = RUNS(argument="+", help=RUN.help)
    yes: bool = flag("delete without asking")


class VacuumOptions(Stored):
    """Options of ``runs vacuum``."""

    description = "Give the space of deleted runs back to the file system."


def list_runs(args: ListOptions) -> int:
    """List runs.

    Raises:
        UsageError: no run has the tag.
        StoreError: the store cannot be read.
    """
    from pydlbench.report.runs import runs_table

    outputs = Outputs.from_options(args)
    store = reading_store(args.store)
    runs: list[RunInfo] = []
    if store is not None:
        with store:
            runs = store.runs(tag=args.tag, limit=args.limit)
            if args.tag is not None and not runs:
                tags = sorted({tag for info in store.runs() for tag in info.tags})
                near = ", ".join(nearest(args.tag, tags) or tags) or "pydlbench runs tag RUN NAME"
                tag = args.tag or repr(args.tag)
                raise UsageError(f"--tag {tag}: no run has it; nearest: {near}")
    outputs.write(
        lambda: {"runs": [info.to_dict() for info in runs]},
        lambda: [runs_table(runs)] if runs else [],
    )
    if not runs and not args.quiet:
        tell("no runs are stored yet; start with: pydlbench layers")
    return 0


def show_run(args: ShowOptions) -> int:
    """Show a run.

    Raises:
        UsageError: there is no such run.
        StoreError: the store cannot be read.
    """
    from pydlbench.store.documents import load

    store = reading_store(args.store)
    try:
        with reading_runs([args.run]):
            show(load(args.run, store), quiet=args.quiet)
    finally:
        if store is not None:
            store.close()
    return 0


@contextlib.contextmanager
def _writing(args: Stored, names: Sequence[str]) -> Iterator[tuple[Store, list[RunInfo]]]:
    """Open the store for writing, and yield it with the runs of these names.

    Raises:
        UsageError: nothing is stored yet, or there is no such run.
    """
    from pydlbench.store.store import Store

    store = reading_store(args.store)
    if store is None:
        raise UsageError(
            f"{next(iter(names), '--store')}: no runs are stored yet; start with: pydlbench layers"
        )
    # Before it is opened for writing: that would make a store of an empty file.
    with store:
        path = store.path
        infos = list({info.id: info for info in map(store.find, names)}.values())
    with Store.open(path) as store:
        yield store, infos


def _report_change(args: Quiet, text: str) -> int:
    if not args.quiet:
        tell(text)
    return 0


def tag_run(args: TagOptions) -> int:
    """Tag a run, or take the tag from it."""
    with _writing(args, [args.run]) as (store, (info,)):
        untags = isinstance(args, UntagOptions)
        (store.untag if untags else store.tag)(info.id, args.name)
        tags = store.info(info.id).tags
    return _report_change(
        args, f"run {info.id}: {'tags ' + ', '.join(tags) if tags else 'no tags'}"
    )


def end_run(args: EndOptions) -> int:
    """End a run whose process is gone."""
    with _writing(args, [args.run]) as (store, (info,)):
        store.end(info.id)
        status = store.info(info.id).status
    return _report_change(args, f"run {info.id}: {status}")


def vacuum(args: VacuumOptions) -> int:
    """Give back the space of deleted runs."""
    with _writing(args, ()) as (store, _):
        before = store.path.stat().st_size
        store.vacuum()
        after = store.path.stat().st_size
        text = f"{store.path}: {before:,} bytes before, {after:,} now"
    return _report_change(args, text)


def delete_runs(args: DeleteOptions, ask: Callable[[str], str] | None = None) -> int:
    """Delete runs.

    Args:
        args: the options.
        ask: takes the place of ``input`` on a terminal.

    Returns:
        0; 1 if the answer was no.

    Raises:
        UsageError: no such run, one is being written, or there is nobody to ask.
    """
    from pydlbench.store.entry import BEING_WRITTEN

    with _writing(args, args.runs) as (store, infos):
        for info in infos:
            if info.status == "running":
                raise UsageError(f"run {info.id}: {BEING_WRITTEN.format(info.id)}")
        if not args.yes and not _agreed(infos, ask):
            tell("nothing deleted")
            return 1
        for info in infos:
            store.delete(info.id)
    return _report_change(args, f"deleted: {', '.join(info.id for info in infos)}")


SUBCOMMANDS: Final = {
    "list": (ListOptions, list_runs),
    "show": (ShowOptions, show_run),
    "tag": (TagOptions, tag_run),
    "untag": (UntagOptions, tag_run),
    "end": (EndOptions, end_run),
    "delete": (DeleteOptions, delete_runs),
    "vacuum": (VacuumOptions, vacuum),
}


def _agreed(infos: Sequence[RunInfo], ask: Callable[[str], str] | None) -> bool:
    """Ask on a terminal; elsewhere a deletion has to be meant."""
    from pydlbench.report.runs import runs_table

    names = " ".join(info.id for info in infos)
    if ask is None:
        if not (sys.stdin.isatty() and sys.stderr.isatty()):
            raise UsageError(f"runs delete {names}: no terminal to confirm on; nearest: add --yes")
        ask = input
    print(as_text([runs_table(infos)], Style.for_stream(sys.stderr)), file=sys.stderr, flush=True)
    return ask("delete? [y/N] ").strip().lower() in ("y", "yes")


# -----------------------------------------------------------------------------
# A run as its command had printed it: what ``pydlbench runs show`` and ``pydlbench report`` show.


def show(run: Loaded, *, quiet: bool = False) -> None:
    """Print a run, with a line above that says which it is and how it ended.

    Args:
        run: of a store or a file.
        quiet: no warnings.
    """
    from pydlbench.records.run import command_text

    info = run.info
    tags = f"  tags {', '.join(info.tags)}" if info.tags else ""
    print(f"run {info.id}  {info.created_utc}  {info.status}{tags}")
    print(f"pydlbench {command_text(info.command) or info.kind}\n", flush=True)
    blocks = stored_report(run)
    for line in () if quiet else _warnings(run):
        tell(f"warning: {line}")
    if not run.table(None):
        tell("nothing was finished")
    elif not blocks:
        tell(f"no result yet; what was measured for it: pydlbench export {info.id} --format json")
    print_report(blocks)


def stored_report(run: Loaded) -> list[Block]:
    """Return what the commands behind a run report, kind by kind; nothing where it has no result.

    Raises:
        ValueError: a value is not of its type.
    """
    return [block for report in _sections(run).values() for block in report(run)]


def _sections(run: Loaded) -> dict[str, Callable[[Loaded], list[Block]]]:
    """Return what reports each table of a run that has results in it."""
    tables = {entry.table for entry in run.table(None)}
    # Of the other commands they are kernels behind a sum, which is shown if it came to that.
    summed = {"estimate": "estimate"}.get(run.info.kind)
    sections: dict[str, Callable[[Loaded], list[Block]]] = {
        "layer": _layers,
        "estimate": _estimates,
        "step": _steps,
        "protocol": _protocols,
        "findings": _findings,
    }
    sections |= _others(sections)
    sections["fleet"] = sections["fleet-visit"]  # a file has the verdict
    if run.info.kind == "diagnose" or summed in tables or not _asked_for(run):
        del sections["layer"]
    if "breakdown" in tables:  # it prints the forecast that it was held against
        del sections["forecast"]
    return {name: report for name, report in sections.items() if name in tables}


def _others(shown: Collection[str]) -> dict[str, Callable[[Loaded], list[Block]]]:
    """Return what reports the tables of other commands, which are not ``shown``: their modules."""
    from pydlbench.cli.parser import COMMANDS

    return {
        command.stores: importlib.import_module(f"pydlbench.cli.{name}").stored_report
        for name, command in COMMANDS.items()
        if command.stores and command.stores not in shown
    }


def _warnings(run: Loaded) -> list[str]:
    from pydlbench.records.measurement import Measurement
    from pydlbench.records.step import StepRecord

    layers = _asked_for(run) if "layer" in _sections(run) else []
    steps = [StepRecord.from_dict(entry.document) for entry in run.table("step")]
    return [
        *row_warnings([Measurement.from_dict(entry.document) for entry in layers]),
        *row_warnings(steps),
    ]


def _asked_for(run: Loaded) -> list[Entry]:
    """Return the layers that are rows of their own; those behind a sum have another's key."""
    from pydlbench.runner.execute import kernel_of

    entries = run.table("layer", samples=True)
    return [entry for entry in entries if kernel_of(entry.key) is None]


def _layers(run: Loaded) -> list[Block]:
    from pydlbench.records.measurement import Measurement
    from pydlbench.report.layers import layers_report
    from pydlbench.report.verdicts import conclude_run

    rows = [
        Measurement.from_dict({**entry.document, "samples_s": entry.samples})
        for entry in _asked_for(run)
    ]
    listed = any(row.candidates for row in rows)
    rows = list(expecting(run.record, rows, run.store))
    return layers_report(run.record, rows, conclude_run(run.record, rows), algorithms=listed)


def _estimates(run: Loaded) -> list[Block]:
    """Return the report on every estimate of a run, with the rows that were measured for it."""
    from pydlbench.records.estimate import StepEstimate
    from pydlbench.records.measurement import Measurement
    from pydlbench.report.estimate import estimate_report
    from pydlbench.runner.execute import kernel_of

    blocks: list[Block] = []
    for entry in run.table("estimate"):
        rows = [
            Measurement.from_dict(each.document)
            for each in run.table("layer")
            if run.info.kind == "estimate" or (each.key and kernel_of(each.key) == entry.key)
        ]
        step = StepEstimate.from_dict(entry.document)
        blocks += estimate_report(run.record, step, rows)
    return blocks


def _steps(run: Loaded) -> list[Block]:
    from pydlbench.records.step import StepRecord
    from pydlbench.report.step import settings, steps_report

    agreements = [entry.document for entry in run.table("agreement")]
    records = []
    for entry in run.table("step", samples=True):
        samples = entry.document.get("samples_s") or entry.samples or ()
        records.append(StepRecord.from_dict({**entry.document, "samples_s": samples}))
    # A heading says what all steps below it share.
    by_setting: dict[str, list[StepRecord]] = {}
    for setting, record in zip(settings(records), records, strict=True):
        by_setting.setdefault(setting, []).append(record)
    reports = (steps_report(run.record, some, agreements) for some in by_setting.values())
    return [block for report in reports for block in report]


def _protocols(run: Loaded) -> list[Block]:
    """Return the numbers: what the script writes around them is not kept."""
    blocks: list[Block] = []
    for entry in run.table("protocol"):
        document = entry.document
        words = [document["protocol"], document.get("model"), document.get("precision")]
        lines = []
        for each in document["numbers"]:
            spread = f" +/- {number(each['spread'])}" if each.get("spread") is not None else ""
            count = f"  (n {len(each['times'])})" if each.get("times") else ""
            lines.append(f"{each['name']}  {number(each['value'])}{spread} {each['unit']}{count}")
        title = "  ".join(filter(None, [*words, document.get("library")]))
        blocks.append(Lines(lines, listed=True, title=title))
    return blocks


def _findings(run: Loaded) -> list[Block]:
    from pydlbench.records.diagnosis import Diagnosis
    from pydlbench.report.diagnose import diagnosis_report

    return [
        block
        for entry in run.table("findings")
        for block in diagnosis_report(run.record, Diagnosis.from_dict(entry.document))
    ]
