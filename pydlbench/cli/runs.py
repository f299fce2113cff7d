"""``pydlbench runs``: lists, shows, tags, ends and deletes what is kept."""

from __future__ import annotations

import functools
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
    from pydlbench.report.text import Block
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


def show_estimates(run: Loaded) -> None:
    """Print every estimate of a run.

    One whose kernels are not all in the run, or do not add up to what was kept (another version
    may have planned the step in another way), is a line with what was kept.
    """
    from pydlbench.records.measurement import Measurement

    every = [Measurement.from_dict(entry.document) for entry in run.table("layer")]
    for number, entry in enumerate(run.table("estimate")):
        if number:
            print()
        print_report(_report(run, every, entry.document) or _summary(entry.document))


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
# ``pydlbench runs show``: a run as its command had printed it.


def show(run: Loaded, *, quiet: bool = False) -> None:
    """Print a run, with a line above that says which it is and how it ended.

    Of a sweep, everything that it holds is printed, kind by kind.

    Args:
        run: of a store or a file.
        quiet: no warnings.
    """
    from pydlbench.report.runs import command_text

    info = run.info
    tags = f"  tags {', '.join(info.tags)}" if info.tags else ""
    print(f"run {info.id}  {info.created_utc}  {info.status}{tags}")
    print(f"pydlbench {command_text(info.command) or info.kind}\n", flush=True)
    tables = {entry.table for entry in run.table(None)}
    # Of the other commands they are kernels behind a sum, which is shown if it came to that.
    summed = {"estimate": "estimate", "check": "check"}.get(info.kind)
    sections = {
        "layer": lambda: _layers(run, quiet),
        "estimate": lambda: show_estimates(run),
        "step": lambda: _steps(run, quiet),
        "protocol": lambda: _protocols(run),
        "check": lambda: _checks(run),
        "findings": lambda: _findings(run),
    }
    sections |= _others(run, quiet, sections)
    if info.kind == "diagnose" or summed in tables or not _asked_for(run):
        del sections["layer"]
    if "check" in tables:  # it prints the forecast that it was held against
        del sections["forecast"]
    shown = [name for name in sections if name in tables]
    if not tables:
        tell("nothing was finished")
    elif not shown:
        tell(f"no result yet, only what goes into one: pydlbench export {info.id} --format json")
    for number, name in enumerate(shown):
        if number:
            print()
        sections[name]()


def _others(run: Loaded, quiet: bool, shown: Collection[str]) -> dict[str, Callable[[], None]]:
    """Return what shows the tables of other commands, which are not ``shown``: their modules."""
    from pydlbench.cli.parser import COMMANDS

    found: dict[str, Callable[[], None]] = {}
    for name, command in COMMANDS.items():
        if command.stores and command.stores not in shown:
            show_stored = importlib.import_module(f"pydlbench.cli.{name}").show_stored
            found[command.stores] = functools.partial(show_stored, run, quiet=quiet)
    return found


def _asked_for(run: Loaded) -> list[Entry]:
    """Return the layers that are rows of their own; those behind a sum have another's key."""
    from pydlbench.runner.execute import kernel_of

    return [one for one in run.table("layer") if kernel_of(one.key) is None]


def _layers(run: Loaded, quiet: bool) -> None:
    from pydlbench.cli.layers import show as show_layers
    from pydlbench.records.measurement import Measurement

    rows = [Measurement.from_dict(entry.document) for entry in _asked_for(run)]
    show_layers(
        run.record,
        rows,
        Outputs(files={}, quiet=quiet),
        early=run.info.early,
        algorithms=any(row.candidates for row in rows),
        again=True,
    )


def _steps(run: Loaded, quiet: bool) -> None:
    from pydlbench.cli.step import show as show_steps
    from pydlbench.records.step import StepRecord

    records = [StepRecord.from_dict(entry.document) for entry in run.table("step")]
    agreements = [entry.document for entry in run.table("agreement")]
    by_model: dict[str, list[StepRecord]] = {}
    for record in records:
        by_model.setdefault(record.case.model, []).append(record)
    for number, some in enumerate(by_model.values()):
        if number:
            print()
        outputs = Outputs(files={}, quiet=quiet)
        show_steps(run.record, some, agreements, outputs, early=run.info.early)


def _protocols(run: Loaded) -> None:
    """Print the numbers: what the script writes around them is not kept."""
    from pydlbench.units import number

    for place, entry in enumerate(run.table("protocol")):
        document = entry.document
        if place:
            print()
        words = [document["protocol"], document.get("model"), document.get("precision")]
        print("  ".join(filter(None, [*words, document.get("library")])))
        for one in document["numbers"]:
            spread = f" +/- {number(one['spread'])}" if one.get("spread") is not None else ""
            count = f"  (n {len(one['times'])})" if one.get("times") else ""
            print(f"  {one['name']}  {number(one['value'])}{spread} {one['unit']}{count}")


def _checks(run: Loaded) -> None:
    """Print checks of the same step together, as the command does."""
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
    for number, documents in enumerate(steps.values()):
        if number:
            print()
        results = list(map(CheckResult.from_dict, documents))
        report = check_report(run.record, results, native)
        print_report(report)


def _findings(run: Loaded) -> None:
    from pydlbench.records.diagnosis import Diagnosis
    from pydlbench.report.diagnose import diagnosis_report

    for entry in run.table("findings"):
        found = Diagnosis.from_dict(entry.document)
        report = diagnosis_report(run.record, found)
        print_report(report)
