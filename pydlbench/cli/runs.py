"""``pydlbench runs``: lists, shows, tags, ends and deletes stored runs."""

from __future__ import annotations

import contextlib
import importlib
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any, Final

from pydlbench.cli.machine import reading_store
from pydlbench.cli.options import RUN, RUNS, JsonOutput, Quiet, Stored, argument, flag, option
from pydlbench.cli.output import Outputs, expecting, print_report, reading_runs, row_warnings
from pydlbench.cli.parser import COMMANDS
from pydlbench.cli.terminal import tell
from pydlbench.cli.values import whole_number
from pydlbench.errors import UsageError, nearest
from pydlbench.grouping import group_by
from pydlbench.report.blocks import Block, Lines
from pydlbench.report.text import Style, as_text
from pydlbench.units import number

if TYPE_CHECKING:
    from pydlbench.records.run import RunInfo
    from pydlbench.store.documents import Loaded
    from pydlbench.store.entry import Entry
    from pydlbench.store.store import Store


class ListOptions(Stored, JsonOutput):
    """Options of ``runs list``."""

    description = "List the stored runs, newest first."
    epilog = (
        "A run whose process is gone without having ended it is shown as killed; layers, sweep, "
        "step, breakdown, estimate, forecast and diagnose continue it: --resume RUN. Of a process "
        "on another host or in another container nothing can be seen: if it is gone, end its run "
        "with pydlbench runs end."
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
    from pydlbench.report.runs import runs_report

    outputs = Outputs.from_options(args)
    with reading_store(args.store) as store:
        runs = [] if store is None else store.runs(tag=args.tag, limit=args.limit)
        if store is not None and args.tag is not None and not runs:
            tags = sorted({tag for info in store.runs() for tag in info.tags})
            near = ", ".join(nearest(args.tag, tags) or tags) or "pydlbench runs tag RUN NAME"
            tag = args.tag or repr(args.tag)
            raise UsageError(f"--tag {tag}: no run has it; nearest: {near}")
    outputs.write(
        lambda: {"runs": [info.to_dict() for info in runs]},
        lambda: runs_report(runs),
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

    with reading_store(args.store) as store, reading_runs([args.run]):
        _show(load(args.run, store), quiet=args.quiet)
    return 0


@contextlib.contextmanager
def _writing(args: Stored, names: Sequence[str]) -> Iterator[tuple[Store, list[RunInfo]]]:
    """Open the store for writing, and yield it with the named runs.

    Raises:
        UsageError: nothing is stored yet, or there is no such run.
    """
    from pydlbench.store.store import Store

    # Opening an empty file for writing would make a store of it.
    with reading_store(args.store) as store:
        if store is None:
            raise UsageError(
                f"{next(iter(names), '--store')}: no runs are stored yet; start with: pydlbench "
                "layers"
            )
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
    """Give the space of deleted runs back to the file system."""
    with _writing(args, ()) as (store, _):
        before = store.path.stat().st_size
        store.vacuum()
        after = store.path.stat().st_size
        text = f"{store.path}: {before:,} bytes before, {after:,} now"
    return _report_change(args, text)


def delete_runs(args: DeleteOptions, ask: Callable[[str], str] | None = None) -> int:
    """Delete runs.

    Args:
        args: the options of ``runs delete``.
        ask: asks a question; ``input`` on a terminal by default.

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
        if not args.yes and not _confirmed(infos, ask):
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


def _confirmed(infos: Sequence[RunInfo], ask: Callable[[str], str] | None) -> bool:
    """Ask on a terminal; without one ``--yes`` is required."""
    from pydlbench.report.runs import runs_table

    names = " ".join(info.id for info in infos)
    if ask is None:
        if not (sys.stdin.isatty() and sys.stderr.isatty()):
            raise UsageError(f"runs delete {names}: no terminal to confirm on; nearest: add --yes")
        ask = input
    print(as_text([runs_table(infos)], Style.for_stream(sys.stderr)), file=sys.stderr, flush=True)
    return ask("delete? [y/N] ").strip().lower() in ("y", "yes")


# -----------------------------------------------------------------------------
# A run as its command printed it, for ``pydlbench runs show`` and ``pydlbench report``.


def _show(run: Loaded, *, quiet: bool) -> None:
    """Print a run below a line with its id and status; no warnings if ``quiet``."""
    from pydlbench.records.run import command_text

    info = run.info
    tags = f"  tags {', '.join(info.tags)}" if info.tags else ""
    print(f"run {info.id}  {info.created_utc}  {info.status}{tags}")
    print(f"pydlbench {command_text(info.command) or info.kind}\n", flush=True)
    blocks = stored_report(run)
    if not run.table(None):
        tell("nothing was finished")
    elif not blocks:
        tell(f"no result yet; its measurements: pydlbench export {info.id} --format json")
    print_report(blocks)
    for line in () if quiet else _warnings(run):
        tell(f"warning: {line}")


def stored_report(run: Loaded) -> list[Block]:
    """Return the reports of the results in a run, kind by kind; empty without results.

    Raises:
        ValueError: a value is not of its type.
    """
    return [block for report in _sections(run).values() for block in report(run)]


def _sections(run: Loaded) -> dict[str, Callable[[Loaded], list[Block]]]:
    """Return the report functions of the tables that have results of a run."""
    tables = {entry.table for entry in run.table(None)}
    sections: dict[str, Callable[[Loaded], list[Block]]] = {
        "layer": _layers,
        "estimate": _estimates,
        "step": _steps,
        "protocol": _protocols,
        "findings": _findings,
    }
    for name, command in COMMANDS.items():
        if command.stores and command.stores not in sections:
            module = importlib.import_module(f"pydlbench.cli.{name}")
            sections[command.stores] = module.stored_report
    sections["fleet"] = sections["fleet-visit"]  # a file has the verdict
    # The kernels of an estimate are part of its report, if it was finished.
    summed = run.info.kind == "estimate" and "estimate" in tables
    if run.info.kind == "diagnose" or summed or not _layer_entries(run):
        del sections["layer"]
    if "change" in tables:  # its report includes the steps
        del sections["step"]
    if run.info.kind == "compare" and "layer" in sections:  # two kernels
        sections["layer"] = sections["change"]
    if "breakdown" in tables:  # its report includes the forecast
        del sections["forecast"]
    return {name: report for name, report in sections.items() if name in tables}


def _warnings(run: Loaded) -> list[str]:
    from pydlbench.records.measurement import Measurement
    from pydlbench.records.step import StepRecord

    layers = _layer_entries(run) if "layer" in _sections(run) else []
    steps = [StepRecord.from_dict(entry.document) for entry in run.table("step")]
    return [
        *row_warnings([Measurement.from_dict(entry.document) for entry in layers]),
        *row_warnings(steps),
    ]


def _layer_entries(run: Loaded) -> list[Entry]:
    """Return the layers that are rows of their own, not kernels of another row."""
    from pydlbench.runner.execute import kernel_of

    entries = run.table("layer", samples=True)
    return [entry for entry in entries if kernel_of(entry.key) is None]


def _layers(run: Loaded) -> list[Block]:
    from pydlbench.records.measurement import Measurement
    from pydlbench.report.layers import layers_report
    from pydlbench.report.verdicts import conclude_run

    rows = [
        Measurement.from_dict({**entry.document, "samples_s": entry.samples})
        for entry in _layer_entries(run)
    ]
    listed = any(row.candidates for row in rows)
    rows = list(expecting(run.record, rows, run.store))
    return layers_report(run.record, rows, conclude_run(run.record, rows), algorithms=listed)


def _estimates(run: Loaded) -> list[Block]:
    """Return the reports on the estimates of a run, each with its kernels."""
    from pydlbench.records.estimate import StepEstimate
    from pydlbench.records.measurement import Measurement
    from pydlbench.report.estimate import estimate_report
    from pydlbench.runner.execute import kernel_of

    blocks: list[Block] = []
    for entry in run.table("estimate"):
        rows = [
            Measurement.from_dict(kernel.document)
            for kernel in run.table("layer")
            if run.info.kind == "estimate" or (kernel.key and kernel_of(kernel.key) == entry.key)
        ]
        step = StepEstimate.from_dict(entry.document)
        blocks += estimate_report(run.record, step, rows)
    return blocks


def _steps(run: Loaded) -> list[Block]:
    from pydlbench.records.documents import AgreementVerdict
    from pydlbench.records.step import StepRecord, options_text
    from pydlbench.report.step import steps_report

    found = [AgreementVerdict.from_dict(entry.document) for entry in run.table("agreement")]
    agreements = [verdict.to_dict() for verdict in found]
    records = [
        StepRecord.from_dict(
            {**entry.document, "samples_s": entry.document.get("samples_s") or entry.samples or ()}
        )
        for entry in run.table("step", samples=True)
    ]
    several = len({record.threads for record in records} - {None}) > 1

    def setting(record: StepRecord) -> tuple[object, ...]:
        """Return the settings that all steps below a heading share."""
        spec = record.spec
        words = spec.own.described(spec.phase) if spec.own is not None else ()
        images = (spec.layout, spec.feed, spec.fetch, spec.cast)
        training = (spec.dropout, spec.running_statistics)
        threads = record.threads if several else None
        return (spec.model, options_text(spec.options), *words, *images, *training, threads)

    groups = group_by(records, setting).values()
    return [block for some in groups for block in steps_report(run.record, some, agreements)]


def _protocols(run: Loaded) -> list[Block]:
    """Return the numbers; the text that the script prints with them is not stored."""
    documents = [entry.document for entry in run.table("protocol")]
    names = ("protocol", "model", "precision", "library")
    return [
        Lines(
            list(map(_number_text, document["numbers"])),
            listed=True,
            title="  ".join(filter(None, map(document.get, names))),
        )
        for document in documents
    ]


def _number_text(document: Mapping[str, Any]) -> str:
    from pydlbench.records.published import ProtocolNumber

    result = ProtocolNumber.from_dict(document)
    around = "" if result.spread is None else f" +/- {number(result.spread)}"
    count = f"  (n {len(result.times)})" if result.times else ""
    return f"{result.name}  {number(result.value)}{around} {result.unit}{count}"


def _findings(run: Loaded) -> list[Block]:
    from pydlbench.records.diagnosis import Diagnosis
    from pydlbench.report.diagnose import diagnosis_report

    return [
        block
        for entry in run.table("findings")
        for block in diagnosis_report(run.record, Diagnosis.from_dict(entry.document))
    ]
