"""``pydlbench runs``: lists, shows, tags, ends and deletes what is kept."""

from __future__ import annotations

import importlib
import math
import sys
from typing import TYPE_CHECKING, Any, Final

from pydlbench.cli.options import add, reading_store, taking, whole_number
from pydlbench.cli.output import Outputs, print_report, reading_runs
from pydlbench.cli.terminal import tell
from pydlbench.errors import UsageError, nearest

if TYPE_CHECKING:
    import argparse
    from collections.abc import Callable, Collection, Iterator, Mapping, Sequence

    from pydlbench.ladder.estimate import Estimate, Plan
    from pydlbench.records.measurement import Measurement
    from pydlbench.records.run import RunInfo
    from pydlbench.records.specs import KernelSpec
    from pydlbench.report.blocks import Block
    from pydlbench.store.documents import Loaded
    from pydlbench.store.entry import Entry

# Action -> what stands behind it on the command line.
_ACTIONS: Final = {
    "list": "",
    "show": "RUN",
    "tag": "RUN NAME",
    "untag": "RUN NAME",
    "end": "RUN",
    "delete": "RUN...",
    "vacuum": "",
}


def add_parser(subparsers: argparse._SubParsersAction[Any]) -> None:
    """Describe the command."""
    parser = subparsers.add_parser(
        "runs",
        description="List the runs that are kept, newest first; or show one as its command had "
        "printed it, tag it, delete it.",
        epilog="RUN is an id or the beginning of one, a tag, last, or last~1 for the one before. "
        "A run whose process is gone without having ended it is shown as killed; layers and sweep "
        "go on with it: --resume RUN. Of a process on another host or in another container nothing "
        "can be seen: if it is gone, end its run here.",
    )
    forms = ", ".join(f"{name} {words}".strip() for name, words in _ACTIONS.items())
    parser.add_argument("action", nargs="?", metavar="ACTION", help=f"{forms}; default: list")
    parser.add_argument("words", nargs="*", metavar="RUN", help="which, see below")
    parser.add_argument(
        "--limit",
        metavar="N",
        type=taking("--limit", whole_number, 1),
        help="list so many at the most",
    )
    parser.add_argument("--tag", metavar="NAME", help="list those that have this tag")
    parser.add_argument("--yes", action="store_true", help="delete without asking")
    add(parser, "json", "quiet", "store", json={"help": "write the list as JSON; - is stdout"})


def run(args: argparse.Namespace, ask: Callable[[str], str] | None = None) -> int:
    """Do what was asked for.

    Args:
        args: the command's options.
        ask: takes the place of ``input`` on a terminal.

    Returns:
        0; 1 if nothing was deleted because the answer was no.

    Raises:
        UsageError: no such run, no such action, or nothing is kept.
        StoreError: the store cannot be read or written.
    """
    action = args.action or "list"
    if action not in _ACTIONS:
        near = nearest(action, _ACTIONS, 1)
        raise UsageError(
            f"{action}: no such action; nearest: {near[0] if near else f'show {action}'}; choices: "
            f"{', '.join(_ACTIONS)}"
        )
    words = list(args.words)
    wanted = _ACTIONS[action].split()
    several = bool(wanted) and wanted[-1].endswith("...")
    if len(words) < len(wanted) or (len(words) > len(wanted) and not several):
        form = f"pydlbench runs {action} {_ACTIONS[action]}".strip()
        raise UsageError(f"runs {' '.join([action, *words])}: expected {form}")
    if action != "list":
        for option, value in (("--limit", args.limit), ("--tag", args.tag), ("--json", args.json)):
            if value is not None:
                other = "; nearest: pydlbench export RUN" if option == "--json" else ""
                raise UsageError(f"{option} {value}: for the list only{other}")
    if action == "list":
        return _list(args)
    if action == "show":
        return _show(args, words[0])
    return _change(args, action, words, ask)


def _list(args: argparse.Namespace) -> int:
    from pydlbench.report.json import dump
    from pydlbench.report.runs import runs_table

    outputs = Outputs.from_args(args)
    store = reading_store(args)
    found: list[RunInfo] = []
    if store is not None:
        with store:
            found = store.runs(tag=args.tag, limit=args.limit)
            if args.tag is not None and not found:
                tags = sorted({tag for info in store.runs() for tag in info.tags})
                near = ", ".join(nearest(args.tag, tags) or tags) or "pydlbench runs tag RUN NAME"
                tag = args.tag or repr(args.tag)
                raise UsageError(f"--tag {tag}: no run has it; nearest: {near}")
    outputs.write(
        {"json": lambda: dump({"runs": [one.to_dict() for one in found]})},
        lambda: [runs_table(found)] if found else [],
    )
    if not found and not args.quiet:
        tell("no runs are kept yet; begin with: pydlbench layers")
    return 0


def _show(args: argparse.Namespace, text: str) -> int:
    from pydlbench.store.documents import load

    store = reading_store(args)
    try:
        with reading_runs([text]):
            show(load(text, store), quiet=args.quiet)
    finally:
        if store is not None:
            store.close()
    return 0


def _change(
    args: argparse.Namespace,
    action: str,
    words: Sequence[str],
    ask: Callable[[str], str] | None,
) -> int:
    from pydlbench.store.entry import BEING_WRITTEN
    from pydlbench.store.store import Store

    store = reading_store(args)
    if store is None:
        raise UsageError(f"runs {action}: no runs are kept yet; begin with: pydlbench layers")
    # Before it is opened for writing: that would make a store of an empty file.
    named = words if action == "delete" else words[:1]
    with store:
        path = store.path
        infos = list({info.id: info for info in map(store.find, named)}.values())
    with Store.open(path) as store:
        if action == "vacuum":
            before = path.stat().st_size
            store.vacuum()
            said = f"{path}: {before:,} bytes before, {path.stat().st_size:,} now"
        elif action == "delete":
            for info in infos:
                if info.status == "running":
                    raise UsageError(f"run {info.id}: {BEING_WRITTEN.format(info.id)}")
            if not args.yes and not _agreed(infos, ask):
                tell("nothing deleted")
                return 1
            for info in infos:
                store.delete(info.id)
            said = f"deleted: {', '.join(info.id for info in infos)}"
        elif action == "end":
            info = infos[0]
            store.end(info.id)
            said = f"run {info.id}: {store.info(info.id).status}"
        else:
            info = infos[0]
            (store.tag if action == "tag" else store.untag)(info.id, words[1])
            tags = store.info(info.id).tags
            said = f"run {info.id}: {'tags ' + ', '.join(tags) if tags else 'no tags'}"
    if not args.quiet:
        tell(said)
    return 0


def _agreed(infos: Sequence[RunInfo], ask: Callable[[str], str] | None) -> bool:
    """Ask on a terminal; elsewhere a deletion has to be meant."""
    from pydlbench.report.runs import runs_table
    from pydlbench.report.text import Style, as_text

    names = " ".join(info.id for info in infos)
    if ask is None:
        if not (sys.stdin.isatty() and sys.stderr.isatty()):
            raise UsageError(f"runs delete {names}: nobody to ask; nearest: add --yes")
        ask = input
    print(as_text([runs_table(infos)], Style.of(sys.stderr)), file=sys.stderr, flush=True)
    return ask("delete? [y/N] ").strip().lower() in ("y", "yes")


# -----------------------------------------------------------------------------
# The estimates of a run that is kept, summed again from its rows and shown as ``estimate`` does.


def _estimates(run: Loaded) -> list[Block]:
    """Return the report on every estimate of a run.

    One whose kernels are not all in the run, or do not add up to what was kept (another version
    may have planned the step in another way), is a line with what was kept.
    """
    from pydlbench.records.measurement import Measurement
    from pydlbench.report.blocks import Lines

    every = [Measurement.from_dict(entry.document) for entry in run.table("layer")]
    blocks: list[Block] = []
    for entry in run.table("estimate"):
        report = _report(run, every, entry.document)
        blocks += [Lines([_summary(entry.document)])] if report is None else report
    return blocks


def _report(
    run: Loaded, every: Sequence[Measurement], document: Mapping[str, Any]
) -> list[Block] | None:
    """Return the whole report, or None where the run's rows do not add up to the estimate."""
    from pydlbench.report.model import model_report

    summed = summed_again(every, document)
    if summed is None:
        return None
    wanted, found, rows = summed
    return model_report(run.record, wanted, found, document.get("memory_bytes", {}), rows)


def summed_again(
    every: Sequence[Measurement], document: Mapping[str, Any]
) -> tuple[Plan, Estimate, list[Measurement]] | None:
    """Sum an estimate that is kept once more; None where the rows do not add up to it.

    Args:
        every: the rows of its run, those of other estimates among them.
        document: of the estimate.

    Returns:
        What was wanted, what it came to, and the rows that are in the sum.
    """
    from pydlbench.ladder.estimate import estimate

    wanted = _plan(document)
    # A file has null where there is no number.
    kept = document["estimate"].get("time_s") or math.nan
    if wanted is None:
        return None
    for rows in _rows(wanted, every, document.get("threads")):
        found = estimate(wanted, rows)
        if math.isclose(found.time.middle, kept, rel_tol=1e-9):
            return wanted, found, list(rows.values())
    return None


def _plan(document: Mapping[str, Any]) -> Plan | None:
    from pydlbench.ladder.estimate import plan
    from pydlbench.ladder.mapped import recorded_plan
    from pydlbench.models import build_model
    from pydlbench.records.estimate import Recorded

    if "cache_bytes" not in document:
        return None
    how = {
        "phase": document["phase"],
        "precision": document["precision"],
        "device": document.get("device", "cpu"),
        "cache_bytes": document["cache_bytes"],
    }
    if document.get("recorded") is not None:
        found = Recorded.from_dict(document["recorded"])
        name, batch = document["model"], document["batch"]
        return recorded_plan(found.calls, name=name, batch=batch, notes=found.notes, **how)
    model = build_model(document["model"], document["batch"], **document.get("options", {}))
    return plan(model, **how)


def _rows(
    wanted: Plan, every: Sequence[Measurement], threads: int | None
) -> Iterator[dict[KernelSpec, Measurement]]:
    """Yield what may be the rows of a plan: those in its order, then those of the same kernels."""
    if len(every) == len(wanted.cases):
        yield dict(zip(wanted.cases, every, strict=True))
    by_kernel: dict[Any, list[Measurement]] = {}
    for row in every:
        if threads is None or row.threads in (None, threads):
            by_kernel.setdefault(_kernel(row), []).append(row)
    found = {}
    for case in wanted.cases:
        rows = by_kernel.get(_kernel_of(case))
        if not rows:
            return
        # Poolings of one shape may differ in what they compute: the one of this name first.
        found[case] = next((row for row in rows if row.layer == case.layer.name), rows[0])
    yield found


def _kernel(row: Measurement) -> tuple[Any, ...]:
    return (
        *(row.problem, row.pass_, row.precision, row.propagation, row.cache, row.layout_request),
        *(row.backend, row.mode, row.device, row.fuse),
    )


def _kernel_of(case: KernelSpec) -> tuple[Any, ...]:
    return (
        *(case.layer.problem, case.pass_, case.precision, case.propagation, case.cache),
        *(case.layout, case.backend, case.mode, case.device, case.fuse),
    )


def _summary(document: Mapping[str, Any]) -> str:
    from pydlbench.units import time_in, time_unit

    found = document["estimate"]
    words = f"{document['model']}  batch {document['batch']}  {document['phase']}"
    bounds = [found.get(name) for name in ("low", "high")]
    known = [value for value in bounds if isinstance(value, (int, float))]
    unit = time_unit(known or [1.0])
    between = " to ".join(time_in(unit, value) for value in known) or "unknown"
    return f"{words}  {document['precision']}  estimate {between}"


# -----------------------------------------------------------------------------
# A run as its command had printed it: what ``pydlbench runs show`` and ``pydlbench report`` show.


def show(run: Loaded, *, quiet: bool = False) -> None:
    """Print a run, with a line above that says which it is and how it ended.

    Args:
        run: of a store or a file.
        quiet: no warnings.
    """
    from pydlbench.report.runs import command_text

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
        tell(f"no result yet, only what goes into one: pydlbench export {info.id} --format json")
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
    summed = {"estimate": "estimate", "check": "check"}.get(run.info.kind)
    sections: dict[str, Callable[[Loaded], list[Block]]] = {
        "layer": _layers,
        "estimate": _estimates,
        "step": _steps,
        "protocol": _protocols,
        "check": _checks,
        "findings": _findings,
    }
    sections |= _others(sections)
    sections["fleet"] = sections["fleet-visit"]  # a file has the verdict
    if run.info.kind == "diagnose" or summed in tables or not _asked_for(run):
        del sections["layer"]
    if "check" in tables:  # it prints the forecast that it was held against
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
    from pydlbench.cli.output import row_warnings
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
    return [one for one in entries if kernel_of(one.key) is None]


def _layers(run: Loaded) -> list[Block]:
    from pydlbench.records.measurement import Measurement
    from pydlbench.report.layers import layers_report
    from pydlbench.report.verdicts import conclude_run

    rows = [
        Measurement.from_dict({**entry.document, "samples_s": entry.samples})
        for entry in _asked_for(run)
    ]
    listed = any(row.candidates for row in rows)
    return layers_report(run.record, rows, conclude_run(run.record, rows), algorithms=listed)


def _steps(run: Loaded) -> list[Block]:
    from pydlbench.cli.step import steps_blocks
    from pydlbench.records.step import StepRecord
    from pydlbench.report.e2e import settings

    agreements = [entry.document for entry in run.table("agreement")]
    records = []
    for entry in run.table("step", samples=True):
        samples = entry.document.get("samples_s") or entry.samples or ()
        records.append(StepRecord.from_dict({**entry.document, "samples_s": samples}))
    # A heading says what all steps below it share.
    by_setting: dict[str, list[StepRecord]] = {}
    for setting, record in zip(settings(records), records, strict=True):
        by_setting.setdefault(setting, []).append(record)
    reports = (steps_blocks(run.record, some, agreements) for some in by_setting.values())
    return [block for report in reports for block in report]


def _protocols(run: Loaded) -> list[Block]:
    """Return the numbers: what the script writes around them is not kept."""
    from pydlbench.report.blocks import Lines
    from pydlbench.units import number

    blocks: list[Block] = []
    for entry in run.table("protocol"):
        document = entry.document
        words = [document["protocol"], document.get("model"), document.get("precision")]
        lines = []
        for one in document["numbers"]:
            spread = f" +/- {number(one['spread'])}" if one.get("spread") is not None else ""
            count = f"  (n {len(one['times'])})" if one.get("times") else ""
            lines.append(f"{one['name']}  {number(one['value'])}{spread} {one['unit']}{count}")
        title = "  ".join(filter(None, [*words, document.get("library")]))
        blocks.append(Lines(lines, listed=True, title=title))
    return blocks


def _checks(run: Loaded) -> list[Block]:
    """Return checks of the same step together, as the command does."""
    import json

    from pydlbench.records.check import CheckResult
    from pydlbench.records.measurement import Measurement
    from pydlbench.report.check import check_report

    # One command checks one step; a sweep any number of them.
    several = run.info.kind == "sweep"
    step_names = ("model", "options", "batch", "phase", "precision", "layout", "feed")
    of = step_names if several else ()
    steps: dict[str, list[dict[str, Any]]] = {}
    for entry in run.table("check"):
        step = json.dumps([entry.document.get(name) for name in of])
        steps.setdefault(step, []).append(entry.document)
    rows = [Measurement.from_dict(entry.document) for entry in run.table("layer")]
    native = [row for row in rows if row.backend == "native"]
    return [
        block
        for documents in steps.values()
        for block in check_report(run.record, list(map(CheckResult.from_dict, documents)), native)
    ]


def _findings(run: Loaded) -> list[Block]:
    from pydlbench.records.diagnosis import Diagnosis
    from pydlbench.report.diagnose import diagnosis_report

    return [
        block
        for entry in run.table("findings")
        for block in diagnosis_report(run.record, Diagnosis.from_dict(entry.document))
    ]
