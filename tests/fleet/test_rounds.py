"""Rounds of an invented engine: what dies is tried again and named, and nothing is lost."""

from __future__ import annotations

import dataclasses
import functools
import time
from collections import Counter
from types import SimpleNamespace
from typing import TYPE_CHECKING

import pytest
from invented_fleet import FILE, write_store
from invented_runs import RUN

from pydlbench.errors import StoreError, UsageError, WorkerError
from pydlbench.fleet import run
from pydlbench.fleet.engines import Finished
from pydlbench.fleet.node import Brought, NodeSlot, Order
from pydlbench.fleet.run import TABLE, FleetPlan, run_rounds, with_reference
from pydlbench.store.store import Store

if TYPE_CHECKING:
    from pathlib import Path

NODES = [f"node-{number}" for number in range(4)]


@functools.cache
def _store(folder: Path) -> bytes:
    path = folder / "sweep.sqlite"
    write_store(path)
    return path.read_bytes()


def brought(reason=None, data=None, **changes):
    now = time.time()
    return Brought(
        slot=NodeSlot(name="node-0", cpus=(0,)),
        reason=reason,
        began=now,
        ended=now,
        data=data,
        **changes,
    )


class InventedEngine:
    """Ends each visit at once, as ``answers`` says of its node, round and try; by default well."""

    shares_files = False

    def __init__(self, folder: Path, answers=None, nodes=NODES) -> None:
        self.there = list(nodes)
        self.begun: list[tuple[str, int]] = []
        self.answers = answers or (lambda *_: None)
        self._folder = folder
        self._running: list[tuple[NodeSlot, Order]] = []
        folder.mkdir(exist_ok=True)

    def slots(self):
        return {name: NodeSlot(name=name, cpus=(0,)) for name in self.there}

    def start(self, slot: NodeSlot, order: Order) -> None:
        assert slot.name not in [one.name for one, _ in self._running]
        self.begun.append((slot.name, order.round))
        self._running.append((slot, order))

    def finished(self, wait_s: float):
        del wait_s
        found, self._running = [self._end(*one) for one in self._running], []
        return found

    def _end(self, slot: NodeSlot, order: Order) -> Finished:
        tries = Counter(self.begun)[slot.name, order.round]
        answer = self.answers(slot.name, order.round, tries)
        if isinstance(answer, str):
            return Finished(slot.name, None, answer, time.time())
        if answer is None:
            answer = dataclasses.replace(brought(data=_store(self._folder)), slot=slot)
        return Finished(slot.name, answer, None, time.time())

    def close(self) -> None:
        """There is nothing to end."""


@pytest.fixture
def store(tmp_path):
    with Store.open(tmp_path / "store.sqlite") as store:
        store.begin(RUN, "fleet", request={"text": FILE})
        yield store


@pytest.fixture
def plan(tmp_path):
    folder = tmp_path / "brought"
    folder.mkdir()
    return FleetPlan(fleet=RUN.id, text=FILE, folder=folder, patience_s=0.05)


def kept(store):
    found = [entry.document for entry in store.entries(RUN.id, TABLE)]
    return {(one["node"], one["round"]): one for one in found}


def whole(store):
    return {key for key, one in kept(store).items() if one["status"] == "ok"}


EVERY = {(node, number) for node in NODES for number in range(3)}


def test_every_node_is_visited_once_a_round_in_an_order_that_is_random(store, plan, tmp_path):
    engine = InventedEngine(tmp_path / "nodes")
    said = []
    assert run_rounds(engine, store, plan, said.append) == (12, 0)
    assert whole(store) == EVERY
    orders = [[node for node, at in engine.begun if at == number] for number in range(3)]
    assert all(sorted(order) == NODES for order in orders)
    assert len({tuple(order) for order in orders}) == 3
    assert [at for _, at in engine.begun] == [0] * 4 + [1] * 4 + [2] * 4
    assert len(said) == 3


def test_what_a_visit_brings_is_kept_with_the_times_of_its_rows(store, plan, tmp_path):
    run_rounds(InventedEngine(tmp_path / "nodes"), store, plan, print)
    one = kept(store)["node-2", 1]
    assert (plan.folder / one["store"]).is_file()
    assert {name: value["time_s"] for name, value in one["values"].items()} == {
        "alexnet/conv2 forward fp32 batch 128": 1e-3,
        "alexnet/conv3 forward fp32 batch 128": 1e-3,
    }
    value = one["values"]["alexnet/conv3 forward fp32 batch 128"]
    assert value["clock_hz"] == 4e9
    assert value["command"].startswith("pydlbench layers --shape alexnet/conv3 --pass forward ")
    assert one["prefix"] == "taskset -c 0 "
    assert one["machine"] == "Invented 9000"


def test_a_node_that_is_there_is_not_given_up_while_other_visits_are_kept(
    store, plan, tmp_path, monkeypatch
):
    """Of a large fleet, what one look brings may take longer to keep than patience lasts."""
    engine = InventedEngine(tmp_path / "nodes")
    first = engine.begun
    engine.answers = lambda node, _, tries: "died" if (node, tries) == (first[0][0], 1) else None
    really, clock = run.gathered, [0.0]

    def slowly(path):
        clock[0] += 10 * plan.patience_s
        return really(path)

    monkeypatch.setattr(run, "gathered", slowly)
    invented = SimpleNamespace(monotonic=lambda: clock[0], time=time.time, sleep=time.sleep)
    monkeypatch.setattr(run, "time", invented)
    assert run_rounds(engine, store, plan, print) == (12, 0)
    assert kept(store)[first[0]]["tries"] == Counter(engine.begun)[first[0]] == 2


def test_a_node_that_leaves_is_given_up_and_one_that_comes_is_taken(store, plan, tmp_path):
    engine = InventedEngine(tmp_path / "nodes")

    def leaves(node, number, _):
        if (node, number) == ("node-0", 1) and "node-1" in engine.there:
            engine.there.remove("node-1")
            engine.there.append("late")
        return "its worker has died" if node == "node-1" and number == 1 else None

    engine.answers = leaves
    run_rounds(engine, store, plan, print)
    assert ("node-1", 0) in whole(store)
    assert "gone for" in kept(store)["node-1", 2]["reason"]
    assert {key for key in whole(store) if key[0] == "late"} == {("late", 2)}


def test_what_is_whole_is_not_measured_again(store, plan, tmp_path):
    def stops(node, number, _):
        if (node, number) == ("node-2", 1):
            raise WorkerError("the scheduler is gone")

    with pytest.raises(WorkerError):
        run_rounds(InventedEngine(tmp_path / "nodes", stops), store, plan, print)
    before = whole(store)
    assert 4 <= len(before) < 12
    engine = InventedEngine(tmp_path / "nodes")
    assert run_rounds(engine, store, plan, print) == (12, 0)
    assert set(engine.begun) == EVERY - before
    assert whole(store) == EVERY


def test_a_failed_round_is_measured_when_the_run_is_gone_on_with(store, plan, tmp_path):
    run_rounds(InventedEngine(tmp_path / "nodes", lambda *_: "no"), store, plan, print)
    assert not whole(store)
    run_rounds(InventedEngine(tmp_path / "nodes"), store, plan, print)
    assert whole(store) == EVERY


@pytest.mark.parametrize(
    ("answer", "reason"),
    [
        (brought(data=b"no store"), "its store cannot be read"),
        (brought(data=None), "its store cannot be read"),
        (brought("no end within 5 s"), "no end within 5 s"),
        (brought("the disk is full", data=b""), "the disk is full"),
        ("its worker has died", "its worker has died"),
    ],
)
def test_what_cannot_be_brought_back_costs_its_visits_and_is_named(
    store, plan, tmp_path, answer, reason
):
    engine = InventedEngine(
        tmp_path / "nodes", lambda node, *_: answer if node == "node-0" else None
    )
    said = []
    assert run_rounds(engine, store, plan, said.append) == (9, 3)
    assert whole(store) == {one for one in EVERY if one[0] != "node-0"}
    visit = kept(store)["node-0", 0]
    assert reason in visit["reason"]
    assert visit["tries"] == Counter(engine.begun)["node-0", 0] == 3
    assert sum("node-0" in line for line in said) == 3


def test_a_file_that_nodes_refuse_ends_the_run_at_once(store, plan, tmp_path):
    answer = brought("shape conv99: no such layer", refused=True)
    engine = InventedEngine(tmp_path / "nodes", lambda *_: answer)
    with pytest.raises(UsageError, match="conv99"):
        run_rounds(engine, store, plan, print)
    assert max(Counter(engine.begun).values()) == 1


def test_a_node_that_refuses_the_file_before_any_other_is_through_costs_its_rounds(
    store, plan, tmp_path
):
    """It lacks memory, say; the others have hardly begun when it says so."""
    answer = brought("cases need 9 GB, 2 GB are available", refused=True)
    engine = InventedEngine(
        tmp_path / "nodes", lambda node, *_: answer if node == "node-2" else None
    )
    every = engine.finished

    def finished(wait_s):
        first = [one for one in engine._running if one[0].name == "node-2"]
        rest = [one for one in engine._running if one not in first]
        if not first:
            return every(wait_s)
        engine._running = first
        found = every(wait_s)
        engine._running = rest
        return found

    engine.finished = finished
    assert run_rounds(engine, store, plan, print) == (9, 3)
    assert whole(store) == {one for one in EVERY if one[0] != "node-2"}
    assert "9 GB" in kept(store)["node-2", 0]["reason"]
    # Gone on with, it still costs no other node anything.
    assert run_rounds(InventedEngine(tmp_path / "nodes", engine.answers), store, plan, print) == (
        9,
        3,
    )


def test_an_empty_fleet_is_refused(store, plan, tmp_path):
    with pytest.raises(UsageError, match=r"no worker has come .*nearest: start one"):
        run_rounds(InventedEngine(tmp_path / "nodes", nodes=()), store, plan, print)


def test_clocks_that_are_set_wrong_are_measured(store, plan, tmp_path):
    engine = InventedEngine(tmp_path / "nodes")
    well = engine._end

    def ahead(slot, order):
        one = well(slot, order)
        began, ended = one.brought.began + 100, one.brought.ended + 100
        late = dataclasses.replace(one.brought, began=began, ended=ended)
        return Finished(one.node, late, None, one.received)

    engine._end = ahead
    run_rounds(engine, store, plan, print)
    assert {round(one["clock_offset_s"]) for one in kept(store).values()} == {100}


def test_a_store_that_is_gone_ends_the_run_with_what_was_brought(store, plan, tmp_path):
    engine = InventedEngine(tmp_path / "nodes")
    store.delete(RUN.id)
    with pytest.raises((StoreError, UsageError)):
        run_rounds(engine, store, plan, print)


@pytest.mark.parametrize(
    "defaults",
    [
        "",
        'precision = ["fp32", "bf16"]\ncache = "all-cold"\nlayout = "nchw"',
        "batch = 4",
        "batch = [1, 4]",
        "threads = 1",
        "threads = [1, 1]",
        'fuse = "bias"',
        "algorithms = true",
        'model = "alexnet"',
        'propagation = "training"\npass = "all"',
        'backend = ["native", "torch"]\nmode = "eager"',
    ],
)
def test_the_reference_is_the_same_row_of_every_file_whatever_its_defaults_are(defaults):
    from pydlbench.cli.sweep import read_file, table_keys
    from pydlbench.runner.sweep import parse_sweep

    def reference(text):
        tasks, _ = read_file(parse_sweep("some.toml", with_reference(text), table_keys()))
        (task,) = [one for one in tasks if any("reference" in row.label for row in one.rows)]
        return dataclasses.replace(task, table=0)

    file = '[[layers]]\nshape = "conv3"\n'
    assert reference(f"[defaults]\n{defaults}\n{file}") == reference(file)


def test_the_reference_takes_as_long_as_the_file_says():
    keys = ("budget", "repetitions", "seed", "device")
    text = '[defaults]\nbudget = 0.1\nrepetitions = 2\nseed = 3\ndevice = "cpu"\n' + FILE
    from pydlbench.cli.sweep import table_keys
    from pydlbench.runner.sweep import parse_sweep

    request = parse_sweep("some.toml", with_reference(text), table_keys()).tables[-1].requests
    assert {one.partition("=")[0].strip("-") for one in request[0]} == {"shape", *keys}
