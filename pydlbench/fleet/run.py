"""The rounds of a fleet: each node is visited once a round, in random order."""

from __future__ import annotations

import random
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

from pydlbench.errors import PydlbenchError, UsageError
from pydlbench.fleet.engines import Engine, Finished
from pydlbench.fleet.gather import TABLE, gathered, visit_key
from pydlbench.fleet.node import NodeSlot, Order, store_name
from pydlbench.records.fleet import FleetVisit
from pydlbench.store.entry import Entry
from pydlbench.store.store import Store
from pydlbench.units import format_seconds

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
