"""The rounds of a fleet: each node is visited once a round; and the times in a node's store."""

import hashlib
import json
import random
import shlex
import time
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

from pydlbench.compare.rows import FIELDS, LAYER_KINDS, SideRow, describe, key, side_of
from pydlbench.errors import PydlbenchError, StoreError, UsageError
from pydlbench.fleet.engines import Engine, Finished
from pydlbench.fleet.node import NodeSlot, Order, store_name
from pydlbench.grouping import group_by
from pydlbench.models.user_model import is_onnx
from pydlbench.records.fleet import FleetVisit
from pydlbench.records.run import RunRecord
from pydlbench.records.step import StepSpec, step_words
from pydlbench.runner.execute import kernel_of
from pydlbench.store.documents import Loaded
from pydlbench.store.entry import Entry
from pydlbench.store.place import cpu_identity, gpu_name, machine_name
from pydlbench.store.store import Store
from pydlbench.units import format_seconds
from pydlbench.words import CASTS, FRAMEWORKS, ONNX_FRAMEWORK, TIMINGS, option_words

#: Interval for polling the visits.
_POLL_S: Final = 1.0
#: A product that every round of every fleet has, besides the rows of its file: 2.1 GFLOP.
REFERENCE: Final = '1024x1024:1024x1024n"reference"'
# Only these defaults of the file apply to it.
_TABLE: Final = f"""

[[layers]]  # the same in every round of every fleet
shape = '{REFERENCE}'
defaults = ["budget", "repetitions", "seed", "device"]
"""


@dataclass(frozen=True, slots=True, kw_only=True)
class FleetPlan:
    """The parameters of a fleet's run.

    Attributes:
        fleet: id of the fleet's run.
        text: content of the sweep's file, with the reference.
        folder: folder for the stores.
        rounds: number of rounds; each node is visited once a round.
        tries: maximum number of tries of a visit; after the last one it has failed.
        limit_s: maximum time of a visit, in seconds.
        patience_s: maximum time in seconds that a node may be unavailable before its visit has
            failed, and that the first node may take to appear.
        seed: seed of the order of nodes.
        program: program that a visit calls; ``pydlbench`` by default.
    """

    fleet: str
    text: str
    folder: Path
    rounds: int = 3
    tries: int = 3
    limit_s: float = 86400.0
    patience_s: float = 60.0
    seed: int = 0
    program: tuple[str, ...] = ()


def with_reference(text: str) -> str:
    """Return a sweep's file with the reference kernel as its last table."""
    return text.rstrip("\n") + _TABLE


@dataclass(slots=True)
class _Round:
    """State of a round."""

    number: int
    waiting: list[str]
    tries: dict[str, int] = field(default_factory=dict)
    running: dict[str, float] = field(default_factory=dict)  # by node, when it was begun
    reasons: dict[str, str] = field(default_factory=dict)
    refused: set[str] = field(default_factory=set)


def run_rounds(
    engine: Engine, store: Store, plan: FleetPlan, tell: Callable[[str], None]
) -> tuple[int, int]:
    """Visit every node in every round; each visit is stored when it has ended.

    Visits that are stored already and complete are skipped.

    Args:
        engine: engine with the nodes.
        store: store that holds the run.
        plan: parameters of the run.
        tell: called with a line for each error and each round.

    Returns:
        The numbers of complete and of incomplete visits.

    Raises:
        UsageError: there is no node, or all of them refuse the file.
        PydlbenchError: the engine is gone, or nothing can be stored; finished visits are.
    """
    nodes = dict.fromkeys(_first(engine, plan))
    done: dict[tuple[str, int], bool] = {}
    for entry in store.entries(plan.fleet, TABLE):
        stored = entry.document
        nodes[stored["node"]] = None
        done[stored["node"], stored["round"]] = stored["status"] == "ok"
    seen = {name: time.monotonic() for name in nodes}
    for number in range(plan.rounds):
        nodes |= dict.fromkeys(engine.slots())
        order = [name for name in nodes if not done.get((name, number))]
        random.Random(f"{plan.seed} {number}").shuffle(order)  # noqa: S311 - an order, not a secret
        state = _Round(number, list(order))
        began = time.monotonic()
        while state.waiting or state.running:
            _begin(engine, plan, state, seen)
            # Nodes that wait now were missing a moment ago, however long it takes to store visits.
            for gone in _missing_visits(plan, state, seen):
                _store(store, plan, gone)
                done[gone.node, number] = False
            for ended in engine.finished(_POLL_S):
                seen[ended.node] = time.monotonic()
                visit = _store_result(store, plan, state, ended)
                if visit is not None:
                    done[ended.node, number] = visit.status == "ok"
            _check_file(state, order, done)
        names = [name for name in order if not done.get((name, number))]
        for name in names:
            tell(f"round {number + 1}: {name}: incomplete: {state.reasons.get(name, 'not there')}")
        spent = format_seconds(time.monotonic() - began)
        if order:
            tell(f"round {number + 1} of {plan.rounds}: {len(order) - len(names)} visits, {spent}")
    return sum(done.values()), len(done) - sum(done.values())


def _first(engine: Engine, plan: FleetPlan) -> Mapping[str, NodeSlot]:
    """Return the nodes, as soon as there is one."""
    end = time.monotonic() + plan.patience_s
    while not (slots := engine.slots()):
        if time.monotonic() > end:
            raise UsageError(
                f"--on: no worker has come within {plan.patience_s:g} s; nearest: start one per "
                "slot with dask worker HOST:PORT --nthreads 1 --no-nanny"
            )
        time.sleep(min(_POLL_S, plan.patience_s))
    return slots


def _begin(engine: Engine, plan: FleetPlan, state: _Round, seen: dict[str, float]) -> None:
    """Begin the visits of all waiting nodes that are available."""
    there = engine.slots()
    seen.update(dict.fromkeys(there, time.monotonic()))
    for name in [name for name in state.waiting if name in there]:
        order = Order(
            fleet=plan.fleet,
            round=state.number,
            text=plan.text,
            folder=str(plan.folder) if engine.shares_files else None,
            limit_s=plan.limit_s,
            program=plan.program,
        )
        state.waiting.remove(name)
        state.tries[name] = state.tries.get(name, 0) + 1
        state.running[name] = time.time()
        engine.start(there[name], order)


def _store_result(
    store: Store, plan: FleetPlan, state: _Round, ended: Finished
) -> FleetVisit | None:
    """Store the result of a visit; return None if it is to be tried again."""
    sent = state.running.pop(ended.node)
    brought = ended.brought
    reason = ended.reason if brought is None else brought.reason
    refused = brought is not None and brought.refused
    again = state.tries[ended.node] < plan.tries and not refused and not ended.last
    path = plan.folder / store_name(ended.node, state.number)
    facts: dict[str, Any] = {}
    if brought is not None:
        if brought.data is not None:
            _write(path, brought.data)
        # A visit begins after it was sent and ends before it is received, unless clocks differ.
        ahead, behind = brought.ended - ended.received, brought.began - sent
        facts = {
            "seconds": brought.ended - brought.began,
            "clock_offset_s": max(ahead, 0.0) + min(behind, 0.0),
            "prefix": brought.slot.prefix,
        }
    if reason is None:
        try:
            facts |= gathered(path)
        except PydlbenchError as error:
            reason = f"its store cannot be read: {error}"
    if reason is not None:
        state.reasons[ended.node] = reason
        if refused:
            state.refused.add(ended.node)
        if again:
            state.waiting.append(ended.node)
            return None
    visit = FleetVisit(
        node=ended.node,
        round=state.number,
        tries=state.tries[ended.node],
        status="ok" if reason is None else "failed",
        reason=reason,
        store=path.name if path.exists() else None,
        **facts,
    )
    _store(store, plan, visit)
    return visit


def _missing_visits(plan: FleetPlan, state: _Round, seen: Mapping[str, float]) -> list[FleetVisit]:
    """Return failed visits of the nodes that were unavailable for too long."""
    now = time.monotonic()
    gone = [name for name in state.waiting if now - seen.get(name, 0.0) > plan.patience_s]
    visits = []
    for name in gone:
        state.waiting.remove(name)
        reason = f"{state.reasons.get(name, 'not there')}; gone for {plan.patience_s:g} s"
        state.reasons[name] = reason
        visits.append(
            FleetVisit(
                node=name,
                round=state.number,
                tries=state.tries.get(name, 0),
                status="failed",
                reason=reason,
            )
        )
    return visits


def _check_file(state: _Round, order: Sequence[str], done: Mapping[tuple[str, int], bool]) -> None:
    """Raise an error if all nodes of the first round refuse the file."""
    if state.refused == {*order} and not any(done.values()):
        raise UsageError(f"{order[0]}: {state.reasons[order[0]]}")


def _store(store: Store, plan: FleetPlan, visit: FleetVisit) -> None:
    key = visit_key(visit.node, visit.round)
    store.add(plan.fleet, Entry(TABLE, visit.to_dict(), key=key))


def _write(path: Path, data: bytes) -> None:
    """Write a file completely or not at all.

    Raises:
        PydlbenchError: it cannot be written.
    """
    part = path.with_suffix(".part")
    try:
        part.write_bytes(data)
        part.replace(path)
    except OSError as error:
        raise PydlbenchError(f"{path}: cannot be written ({error.strerror})") from error


# -----------------------------------------------------------------------------
# The times of a node's store, for a verdict.

#: Table of the store with the visits of a fleet.
TABLE: Final = "fleet-visit"
#: Kinds of rows that are whole steps of a model.
STEPS: Final = ("step", "estimate", "breakdown step")


def visit_key(node: str, number: int) -> str:
    """Return the key of a visit's entry."""
    return f"visit/{number}/{node}"


def gathered(path: Path) -> dict[str, Any]:
    """Return fields of :class:`~pydlbench.records.fleet.FleetVisit` from a store.

    Args:
        path: store with one sweep.

    Raises:
        StoreError: it cannot be read, or has no sweep.
    """
    with Store.open(path, readonly=True) as store:
        sweeps = [run for run in store.runs() if run.kind == "sweep"]
        if not sweeps:
            raise StoreError(f"store {path}: there is no sweep in it")
        info, record = sweeps[0], store.record(sweeps[0].id)
        # Kernels of an estimate are part of its row.
        entries = [entry for entry in store.entries(info.id) if kernel_of(entry.key) is None]
    rows = [
        (row, entry)
        for entry in entries
        for row in side_of(info.id, Loaded(info, record, [entry])).rows
    ]
    # The order in which rows end differs between nodes.
    rows.sort(key=lambda pair: (str(key(pair[0])), pair[1].key or ""))
    named = zip(_names([row for row, _ in rows]), rows, strict=True)
    return {
        "started_utc": record.created_utc,
        "machine": machine_name(record.device),
        "host": machine_name(record.device.get("host")),
        "kind": _kind(record),
        "versions": _versions(record),
        "values": {name: _value(row, entry.document) for name, (row, entry) in named if row.ok},
    }


def collected(folder: Path) -> list[FleetVisit]:
    """Return the visits of the stores in a folder, named by node and round: ``n07.0.sqlite``.

    Args:
        folder: folder with the stores of all nodes.

    Raises:
        UsageError: there is none.
    """
    visits = []
    for path in sorted(folder.glob("*.*.sqlite")):
        node, _, number = path.name.removesuffix(".sqlite").rpartition(".")
        if not number.isdecimal():
            continue
        try:
            facts, reason = gathered(path), None
        except PydlbenchError as error:
            facts, reason = {}, f"its store cannot be read: {error}"
        status = "ok" if facts.get("values") else "failed"
        reason = reason or (None if status == "ok" else "no row of its sweep has a time")
        visits.append(
            FleetVisit(
                node=node,
                round=int(number),
                status=status,
                reason=reason,
                store=str(path.absolute()),
                **facts,
            )
        )
    if not visits:
        raise UsageError(
            f"{folder}: has no stores named NODE.ROUND.sqlite; nearest: the folder that the nodes' "
            "sweeps were kept in"
        )
    return visits


def _names(rows: Sequence[SideRow]) -> list[str]:
    """Return a name for each row, whether or not rows have failed.

    Rows with the same name get what distinguishes them appended: ``threads 2``.
    """
    plain = [
        " ".join(filter(None, (describe(row), f"batch {row.batch}" if row.batch else "")))
        for row in rows
    ]
    details = [_details(row) for row in rows]
    alike = group_by(range(len(rows)), plain.__getitem__)
    times: Counter[str] = Counter()
    names = []
    for at, name in enumerate(plain):
        others = [details[other] for other in alike[name]]
        words = [
            f"{what} {value}"
            for what, value in details[at].items()
            if any(other.get(what) != value for other in others)
        ]
        whole = " ".join([name, *words])
        times[whole] += 1  # such as another budget
        names.append(f"{whole} #{times[whole]}" if times[whole] > 1 else whole)
    return names


def _details(row: SideRow) -> dict[str, str]:
    """Return the fields that a row's name leaves out."""
    # A failed row of a framework has no timing.
    left_out = {"problem", *(["timing"] if row.backend != "native" else [])}
    fields = {name.strip("_"): getattr(row, name) for name in FIELDS if name not in left_out}
    options = row.problem.startswith("{")  # of a step
    more = json.loads(row.problem) if options else {"problem": row.problem}
    return {name: str(value) for name, value in {**fields, **more}.items() if value is not None}


def _value(row: SideRow, document: Mapping[str, Any]) -> dict[str, Any]:
    """Return a row's time and the readings taken with it, as far as they are known."""
    gpu = document.get("gpu") or {}
    roof = document.get("roofline") or {}
    fields = {
        "time_s": row.median,
        "clock_hz": row.clock_hz or gpu.get("sm_clock_hz"),
        "contended": True if row.contended else None,
        "bandwidth_gbps": roof.get("bandwidth_gbps") if roof.get("bound") == "memory" else None,
        "temperature_c": gpu.get("temperature_c"),
        "power_w": gpu.get("power_w"),
        "throttle": list(gpu.get("reasons") or ()) or None,
        "step": True if row.kind in STEPS else None,
        "command": _command(row, document),
    }
    return {name: value for name, value in fields.items() if value is not None}


def _command(row: SideRow, document: Mapping[str, Any]) -> str:
    """Return the command line that measures a row again."""
    on_cpu = row.device == "cpu"
    if row.kind in LAYER_KINDS:
        shape = row.layer if "/" in row.layer else row.problem
        words = [
            *("layers", "--shape", shape, "--pass", row.pass_),
            *option_words(
                ("--cache", row.cache or "hot", "hot"),
                ("--layout", row.layout_request or "best", "best"),
                ("--fuse", row.fuse or "none", "none"),
                ("--propagation", row.propagation or "inference", "inference"),
                ("--batch", row.batch if shape == row.layer else None, None),
                ("--backend", row.backend, "native"),
                ("--precision", row.precision, ""),
                ("--mode", row.mode or "", ""),
                ("--timing", row.timing if row.timing in TIMINGS else None, None),
                ("--device", row.device, "cpu"),
            ),
        ]
    else:
        words = _step_words(row.kind, document)
    # There may be a GPU, which would be the default.
    words += (
        option_words(("--device", row.device, None), ("--threads", row.threads or None, None))
        * on_cpu
    )
    return f"pydlbench {shlex.join(words)}"


def _step_words(kind: str, document: Mapping[str, Any]) -> list[str]:
    """Return the words that measure a step, an estimate or a breakdown again.

    Raises:
        StoreError: the document was not written by its command.
    """
    usual = ONNX_FRAMEWORK if is_onnx(str(document.get("model"))) else FRAMEWORKS[0]
    try:
        spec = StepSpec.from_dict({"framework": usual, **document})
    except ValueError as error:
        raise StoreError(f"a row of {document.get('model')}: {error}") from error
    words = step_words(spec)
    if kind == "estimate":  # of no framework
        at = words.index("--framework")
        return ["estimate", *words[:at], *words[at + 2 :]]
    if kind != "step":
        return ["breakdown", *words]
    return ["step", *words, *option_words(("--cast", spec.cast, CASTS[0]))]


def _versions(record: RunRecord) -> dict[str, str]:
    """Return versions that affect times: libraries, and the code that measures."""
    known = dict(record.environment.get("packages") or {})
    return {**known, "code": str(record.environment.get("code") or "")}


def _kind(record: RunRecord) -> str:
    """Return a digest of the hardware and versions that comparable nodes share."""
    host = cpu_identity(record.device)
    # The CPU of the host hardly affects the times of a GPU.
    hardware: Any = gpu_name(record.device) or host
    text = json.dumps([hardware, _versions(record)], sort_keys=True, default=str)
    return hashlib.sha256(text.encode("utf-8", "backslashreplace")).hexdigest()[:12]
