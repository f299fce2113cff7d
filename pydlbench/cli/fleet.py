"""``pydlbench fleet``: one sweep on many nodes, and a verdict on each of them."""

from __future__ import annotations

import contextlib
import datetime as dt
import uuid
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from pydlbench.cli.machine import reading_store
from pydlbench.cli.options import (
    FAIL_ON,
    HOW,
    OUTPUT,
    RESUME,
    RUN,
    SEED,
    MarkdownOutput,
    Stored,
    argument,
    option,
)
from pydlbench.cli.output import Outputs, gate, reading_runs, without_collection
from pydlbench.cli.sweep import read_file, read_text, table_keys
from pydlbench.cli.terminal import tell
from pydlbench.cli.values import (
    one_of,
    pairs,
    percentage,
    positive_time,
    splits,
    whole_number,
)
from pydlbench.errors import PydlbenchError, UsageError, nearest
from pydlbench.report.blocks import Block, run_lines
from pydlbench.runner.sweep import SweepFile, parse_sweep
from pydlbench.store.place import select_path, user_path

if TYPE_CHECKING:
    from pydlbench.records.fleet import FleetVerdict
    from pydlbench.records.run import RunInfo, RunRecord
    from pydlbench.store.documents import Loaded
    from pydlbench.store.store import Store


_MAX_SLOTS: Final = 4096
#: Minimum slowdown of a node that is SLOW, as a fraction.
_MARGIN: Final = 0.03
# A worker connects at once or not at all; a job may be queued.
_WORKER_WAIT_S: Final = 60.0
_JOB_WAIT_S: Final = 3600.0
#: Options of ``fleet run`` that a resumed run has already.
_RUN_OPTIONS: Final = (
    *("on", "slots", "nodes", "slurm", "rounds", "tries", "time_limit", "wait", "seed"),
)


def _slots(option: str, text: str) -> str:
    if text == "gpus":
        return text
    count = whole_number(option, text, 1)
    if count > _MAX_SLOTS:
        raise UsageError(f"{option} {text}: more than there are cores; nearest: {_MAX_SLOTS}")
    return str(count)


class VerdictOptions(Stored, MarkdownOutput):
    """Options of all sub-commands, which print a verdict."""

    beyond: float = option(
        "P%",
        "a node is slow if it is certainly slower than the others by more than P % (default: 3%)",
        group=OUTPUT,
        read=percentage,
        default=_MARGIN,
    )
    model: str | None = option(
        "MODEL", "list what synchronous steps lose for this model only", group=OUTPUT
    )
    fail_on: str | None = FAIL_ON(
        metavar="slow",
        help="exit with code 3 if a node is slow, with 4 if the runs do not tell",
        read=partial(one_of, allowed=("slow",)),
    )


class RunOptions(VerdictOptions):
    """Options of ``fleet run``."""

    description = (
        "Run the sweep of one file on every node or slot in several rounds, and print which of "
        "them are slow."
    )
    epilog = (
        "Each round runs on all nodes, in random order, and has a reference kernel besides the "
        "file's rows. The results of each node are in a store of its own, in the folder fleet "
        "beside the store."
    )
    file: str | None = argument("FILE", "the TOML file of the sweep", "?")
    on: str = option(
        "ENGINE",
        "local (default), dask://HOST:PORT, tls://HOST:PORT or slurm",
        group=HOW,
        default="local",
    )
    slots: str = option(
        "N",
        "local: number of sets of cores (default: 1), or gpus: one per GPU",
        group=HOW,
        read=_slots,
        default="1",
    )
    nodes: tuple[str, ...] = option(
        "NAME", "slurm: only these nodes", group=HOW, many=True, read=splits, default=()
    )
    slurm: tuple[str, ...] = option(
        "NAME=VALUE",
        "slurm: an option of sbatch: partition=gpu, account=a, gres=gpu:1",
        group=HOW,
        many=True,
        read=pairs,
        default=(),
    )
    rounds: int = option(
        "N",
        "rounds over all nodes (default: 3); more rounds show smaller slowdowns",
        group=HOW,
        read=partial(whole_number, least=3),
        default=3,
    )
    tries: int = option(
        "N",
        "attempts at a node's sweep in each round (default: 3)",
        group=HOW,
        read=partial(whole_number, least=1),
        default=3,
    )
    time_limit: float = option(
        "S",
        "time limit in seconds per node and round (default: 86400)",
        group=HOW,
        read=positive_time,
        default=86400.0,
    )
    wait: float | None = option(
        "S",
        "time limit in seconds for the first node to connect and for a lost one to come back "
        "(default: 60); slurm: for a job to begin (default: 3600)",
        group=HOW,
        read=positive_time,
    )
    seed: int = SEED(help="seed of the order of nodes (default: 0)")
    resume: str | None = RESUME(help=f"{RESUME.help}; --on may be another")


class CollectOptions(VerdictOptions):
    """Options of ``fleet collect``."""

    description = (
        "Store the results of sweeps that something else has started, one store per node in a "
        "folder, and print which nodes are slow."
    )
    folder: str = argument("FOLDER", "the folder with the nodes' results")


class ShownOptions(VerdictOptions):
    """Options of ``fleet verdict``."""

    description = "Print which nodes of a stored run are slow."
    run: str = RUN(help="an id or its beginning, a tag, or last: the last run of a fleet")


def run_fleet(args: RunOptions) -> int:
    """Visit the nodes, and judge them.

    Returns:
        0; 1 if no visit is complete; 3 and 4 under ``--fail-on``; 130 after Ctrl-C.

    Raises:
        UsageError: bad input, no engine, or no such run.
        PydlbenchError: the engine is gone, or nothing can be stored; finished visits are.
    """
    outputs = Outputs.from_options(args)
    code, name = _measure(args, outputs)
    return code or _judge(args, name, outputs)


def collect_stores(args: CollectOptions) -> int:
    """Store the results of a folder, and judge the nodes; see :func:`run_fleet`."""
    outputs = Outputs.from_options(args)
    return _judge(args, _collect(args, outputs), outputs)


def show_verdict(args: ShownOptions) -> int:
    """Judge the nodes of a run; see :func:`run_fleet`."""
    return _judge(args, args.run, Outputs.from_options(args))


def _judge(args: VerdictOptions, name: str, outputs: Outputs) -> int:
    from pydlbench.report.fleet import judge_nodes
    from pydlbench.store.documents import Loaded

    with reading_store(args.store) as store, reading_runs([name]), without_collection():
        if store is None:
            raise UsageError(f"run {name}: no runs are stored yet; start with: pydlbench fleet run")
        info = _find(store, name)
        loaded = Loaded(info, store.record(info.id), store)
        verdict = judged(loaded, args.beyond, args.model)
        report = _blocks(loaded, verdict)
        head = {"kind": "fleet", "interrupted": info.early, "run": loaded.record.to_dict()}
        outputs.write(lambda: {**head, **verdict.to_dict()}, lambda: report)
    return 0 if args.fail_on is None else gate(*judge_nodes(verdict))


def _find(store: Store, text: str) -> RunInfo:
    """Return a fleet's run; ``last`` is the last one of a fleet.

    Raises:
        UsageError: there is none, or it is another command's.
    """
    if text == "last":
        fleets = (info for info in store.runs() if info.kind == "fleet")
        if (last := next(fleets, None)) is not None:
            return last
    info = store.find(text)
    if info.kind != "fleet":
        raise UsageError(f"run {text}: is of {info.kind}, not of fleet; nearest: last")
    return info


# -----------------------------------------------------------------------------
# ``fleet run``.


def _measure(args: RunOptions, outputs: Outputs) -> tuple[int, str]:
    """Visit the nodes; return the exit code, 0 if there are results to judge, and the run."""
    from pydlbench.fleet.engines import open_engine
    from pydlbench.fleet.run import FleetPlan, run_rounds, with_reference
    from pydlbench.interrupts import OneInterrupt
    from pydlbench.store.store import Store

    path, opened = _store_path(args)
    request, name = _request(args)
    with contextlib.ExitStack() as stack:
        interrupts = stack.enter_context(OneInterrupt())
        record = _record()
        folder = (path.parent / "fleet" / (name or record.id)).absolute()
        engine = open_engine(
            request["on"],
            slots=request["slots"],
            nodes=request["nodes"],
            options=dict(text.split("=", 1) for text in request["slurm"]),
            folder=folder,
            patience_s=request["wait"] or _JOB_WAIT_S,
        )
        stack.callback(engine.close)
        outputs.note(*engine.notes)
        store = stack.enter_context(Store.open(opened))
        _create(folder)
        if name is None:
            store.begin(record, "fleet", request=request)
        else:
            record = store.record(name)
            store.resume(name)
        where = f" --store {args.store}" if args.store else ""
        again = f"continue with: pydlbench fleet run --resume {record.id}{where}"
        plan = FleetPlan(
            fleet=record.id,
            text=with_reference(request["text"]),
            folder=folder,
            rounds=request["rounds"],
            tries=request["tries"],
            limit_s=request["time_limit"],
            patience_s=request["wait"] or _WORKER_WAIT_S,
            seed=request["seed"],
        )
        status = "failed"
        try:
            complete, failed = run_rounds(engine, store, plan, outputs.note)
            status = "done"
        except KeyboardInterrupt:
            interrupts.ignore()
            status = "interrupted"
            tell(f"interrupted; {again}")
            return 130, record.id
        except PydlbenchError:
            outputs.note(again)
            raise
        finally:
            with contextlib.suppress(PydlbenchError):
                store.finish(record, status)
    if not complete:
        raise PydlbenchError(
            f"run {record.id}: none of {failed} sweeps of nodes was finished; {again}"
        )
    return 0, record.id


def _store_path(args: VerdictOptions) -> tuple[Path, Path | None]:
    """Return the path of the store, and the argument of ``Store.open``: None for the default.

    Raises:
        UsageError: nothing is stored, with ``--store none``.
    """
    path, by = select_path(args.store)
    if path is None:
        raise UsageError(
            f"{by} none: the results of the nodes have to be stored; nearest: leave it out"
        )
    return path, path if by else None


def _request(args: RunOptions) -> tuple[dict[str, Any], str | None]:
    """Return the checked request, and the run that is resumed, if any.

    Raises:
        UsageError: the file or an option is invalid, or there is no such run.
    """
    if args.resume is not None:
        return _resumed(args, args.resume)
    if args.file is None:
        raise UsageError("FILE: none given; nearest: pydlbench fleet run FILE.toml")
    request = {name: getattr(args, name) for name in _RUN_OPTIONS}
    for name, engine in (("slots", "local"), ("nodes", "slurm"), ("slurm", "slurm")):
        if request["on"] != engine:
            args.refuse([name], f"with --on {request['on']}", f"--on {engine}")
    for pair in request["slurm"]:
        if "=" not in pair:
            raise UsageError(
                f"--slurm {pair}: expected NAME=VALUE; nearest: --slurm partition={pair}"
            )
    file, text = read_text(args.file)
    parsed = parse_sweep(file, text, table_keys())
    _check_model(args.model, parsed)
    if request["on"] == "local":  # other machines may have other devices and backends
        read_file(parsed)
    return {"file": file, "text": text, **request}, None


def _resumed(args: RunOptions, resume: str) -> tuple[dict[str, Any], str]:
    """Return the request of the resumed run, with the engine of ``args``, and the run."""
    from pydlbench.store.entry import BEING_WRITTEN

    args.refuse([name for name in _RUN_OPTIONS if name != "on"], "with --resume")
    with reading_store(args.store) as store:
        if store is None:
            raise UsageError(f"--resume {resume}: no runs are stored yet")
        info = _find(store, resume)
        if info.status == "running":
            raise UsageError(f"--resume {resume}: {BEING_WRITTEN.format(info.id)}")
        request = dict(store.request(info.id) or {})
    if "text" not in request:
        folder = request.get("folder", "FOLDER")
        raise UsageError(
            f"--resume {resume}: run {info.id} was collected from {folder}, its nodes were "
            f"not visited; nearest: pydlbench fleet collect {folder}"
        )
    if args.file is not None and read_text(args.file)[1] != request["text"]:
        raise UsageError(
            f"{args.file}: has changed since run {info.id} began; nearest: leave it out"
        )
    _check_model(args.model, parse_sweep(request["file"], request["text"], table_keys()))
    return {**request, **({"on": args.on} if "on" in args.given else {})}, info.id


def _check_model(model: str | None, file: SweepFile) -> None:
    """Make sure that a file times steps of a model, if one is named.

    Raises:
        UsageError: it does not.
    """
    tables = [table for table in file.tables if table.kind != "layers"]
    timed = sorted({words[-1] for table in tables for words in table.requests if words})
    if model is not None and model not in timed:
        near = nearest(model, timed, 1) or timed[:1]
        hint = f"--model {near[0]}" if near else f'[[step]] with model = "{model}" in the file'
        raise UsageError(f"--model {model}: {file.path} times no step of it; nearest: {hint}")


def _record() -> RunRecord:
    from pydlbench.devices.environment import read_environment
    from pydlbench.records.run import RunRecord, command_line

    now = dt.datetime.now(dt.UTC)
    return RunRecord(
        id=f"{now:%Y%m%d}-{uuid.uuid4().hex[:8]}",
        created_utc=now.isoformat(timespec="seconds"),
        command=command_line(),
        environment=read_environment(),
    )


def _create(path: Path) -> None:
    try:
        path.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise UsageError(
            f"{path}: cannot be created ({error.strerror}); nearest: --store FILE in another folder"
        ) from error


# -----------------------------------------------------------------------------
# ``fleet collect``: for nodes whose sweeps were started by something else.


def _collect(args: CollectOptions, outputs: Outputs) -> str:
    """Store the results in a folder as a run of a fleet, and return its id."""
    from pydlbench.fleet.run import TABLE, collected, visit_key
    from pydlbench.store.entry import Entry
    from pydlbench.store.store import Store

    _, opened = _store_path(args)
    visits = collected(user_path(args.folder))
    for visit in visits:
        if visit.reason is not None:
            outputs.note(f"round {visit.round + 1}: {visit.node}: incomplete: {visit.reason}")
    entries = [
        Entry(TABLE, visit.to_dict(), key=visit_key(visit.node, visit.round)) for visit in visits
    ]
    record = _record()
    with Store.open(opened) as store:
        store.begin(record, "fleet", request={"folder": args.folder})
        store.add_all(record.id, entries)
        store.finish(record, "done")
    return record.id


# -----------------------------------------------------------------------------
# ``fleet verdict``.


def judged(run: Loaded, beyond: float = _MARGIN, model: str | None = None) -> FleetVerdict:
    """Return the verdict on a fleet's nodes.

    Args:
        run: run of a store, or the document that ``fleet verdict --json`` wrote, whose verdict is
            returned unchanged.
        beyond: minimum slowdown of a slow node, as a fraction.
        model: model whose steps are listed; all models by default.

    Raises:
        UsageError: no visit is complete, or no metric is a step of the model.
    """
    from pydlbench.fleet.run import TABLE
    from pydlbench.fleet.verdict import judge_visits
    from pydlbench.records.fleet import FleetVerdict

    for entry in run.table("fleet"):
        return FleetVerdict.from_dict(entry.document)
    return judge_visits([entry.document for entry in run.table(TABLE)], beyond, model)


def _blocks(loaded: Loaded, verdict: FleetVerdict) -> list[Block]:
    from pydlbench.report.fleet import fleet_report

    early = loaded.info.status if loaded.info.early else ""
    return [*fleet_report(verdict, early=early), run_lines(loaded.record)]


def stored_report(run: Loaded) -> list[Block]:
    """Return the report of a stored run, with the default margin."""
    return _blocks(run, judged(run))


SUBCOMMANDS: Final = {
    "run": (RunOptions, run_fleet),
    "verdict": (ShownOptions, show_verdict),
    "collect": (CollectOptions, collect_stores),
}
