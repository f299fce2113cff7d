"""Pairs with a slow link among invented times; two real ranks, one of which may die."""

from __future__ import annotations

import itertools
import os
import signal
import threading
import time
from types import SimpleNamespace

import pytest

from pydlbench.errors import UsageError, WorkerError
from pydlbench.records.collectives import (
    CollectivePlace,
    CollectiveRow,
    CollectiveSpec,
    CollectivesResult,
    PairRow,
)
from pydlbench.report.collectives import collectives_report
from pydlbench.report.text import as_text
from pydlbench.runner.session import Options, Session
from pydlbench.steps import operations
from pydlbench.steps.collectives import judged, measure_collectives
from pydlbench.steps.ranks import Ranks, Torchrun, merged
from pydlbench.timing.chunk import Chunk, Request
from pydlbench.timing.statistics import median

torch = pytest.importorskip("torch")
pytestmark = pytest.mark.skipif(
    len(os.sched_getaffinity(0)) < 2, reason="two ranks have a core each"
)


def pair(first, second, ratio):
    """Return a pair that takes so many times as long as the median one."""
    hosts = (f"node{first // 2}", f"node{second // 2}")
    return PairRow(first=first, second=second, hosts=hosts, bytes=4, visits_s=(ratio,), ratio=ratio)


def test_a_slow_link_is_named_and_scatter_is_not():
    ratios = {(0, 1): 0.98, (0, 2): 1.0, (0, 3): 1.02, (1, 2): 1.01, (1, 3): 0.99, (2, 3): 1.6}
    found = judged([pair(*one, ratio) for one, ratio in ratios.items()])
    assert [(one.first, one.second) for one in found if one.slow] == [(2, 3)]
    assert found[0].ratio == 1.6
    even = judged([pair(*one, 1 + 0.01 * n) for n, one in enumerate(ratios)])
    assert not any(one.slow for one in even)
    assert judged([]) == []


@pytest.mark.parametrize(("ranks", "told"), [(3, False), (4, False), (5, True), (8, True)])
def test_a_slow_rank_shows_where_its_pairs_are_fewer_than_the_others(ranks, told):
    pairs = itertools.combinations(range(ranks), 2)
    found = judged([pair(*one, 2.0 if ranks - 1 in one else 1.0) for one in pairs])
    slow = {(one.first, one.second) for one in found if one.slow}
    assert slow == ({(rank, ranks - 1) for rank in range(ranks - 1)} if told else set())
    place = CollectivePlace(ranks=ranks)
    row = CollectiveRow(case=CollectiveSpec(operation="broadcast", bytes=4), place=place)
    said = as_text(collectives_report(CollectivesResult(rows=(row,), pairs=tuple(found)), []))
    assert (f"all pairs of rank {ranks - 1} " in said) == told
    assert ("from 5 ranks on" in said) == (not told)


class Invented:
    """Three ranks, the second the slowest; calls scatter, so that a visit has several chunks."""

    hosts = ("here",) * 3
    library = "gloo"
    threads = 1

    def __init__(self, *_):
        self.calls = 0
        self.chunks = []

    def __enter__(self):
        return self

    def __exit__(self, *_):
        pass

    def ask(self, **command):
        if command["what"] == "overlap":
            return [{"compute": 1.0, "transfer": 1.0, "copy_s": 1e-3}] * 3
        self.calls = 0
        self.chunks = []
        return [{"number": 0, "wrong": 0}] * 3

    def sample(self, _, request):
        calls = range(self.calls, self.calls + request.samples)
        self.calls += request.samples
        number = len(self.chunks)
        times = [1e-3 * (1 + 0.1 * (call**2 % 7) + 0.03 * number) for call in calls]
        self.chunks.append(times)
        slower = (1.0, 2.0, 1.5)
        return [Chunk(seconds=tuple(x * one for x in times), wall_s=sum(times)) for one in slower]


def test_what_ranks_and_pairs_take_is_of_a_whole_visit(monkeypatch):
    """Not of its last chunk, nor of the warm-up."""
    ranks = Invented()
    monkeypatch.setattr("pydlbench.steps.collectives.Ranks", lambda *_: ranks)
    options = Options(threads=1, visits=1, budget_s=0.05)
    session = SimpleNamespace(options=options, canary=lambda: None, processor=lambda _: "a CPU")
    spec = CollectiveSpec(operation="all-reduce", bytes=1024)
    (found,) = measure_collectives([spec], session, 3, "cpu")
    (row,) = found.rows
    middle = row.time.median
    last = 2 * median(ranks.chunks[-1])
    assert middle != pytest.approx(last), "or else the test tells nothing"
    assert row.rank_s == pytest.approx((middle / 2, middle, middle * 0.75))
    # Each pair's calls are the same; it takes as long as its slower rank.
    pairs = {(one.first, one.second): one.visits_s[0] for one in found.pairs}
    assert pairs[0, 1] == pairs[1, 2] == pytest.approx(middle)
    assert pairs[0, 2] == pytest.approx(middle * 0.75)


def test_under_torchrun_a_rank_is_one_of_all(monkeypatch):
    started = {"RANK": "0", "WORLD_SIZE": "4", "MASTER_ADDR": "a", "MASTER_PORT": "1"}
    for name, value in started.items():
        monkeypatch.setenv(name, value)

    class Worker:
        cpus, pid, silence = (0,), None, None

        def launch(self):
            pass

        describe = launch

        def close(self, *, kill):
            pass

        def call(self, function, *_, **__):
            if function is operations.join_ranks:
                return {"hosts": ["here"] * 4, "library": "gloo"}
            raise WorkerError("the torch worker was killed by SIGKILL")

    session = SimpleNamespace(cpus=(0,), ranks=lambda _: [Worker()])
    with (
        Ranks(session, None, "cpu", 1.0) as ranks,
        pytest.raises(WorkerError, match="rank 0 of 4: was killed"),
    ):
        ranks.ask(what="end")


def test_a_call_takes_as_long_as_on_the_slowest_rank():
    one = Chunk(seconds=(1.0, 4.0), wall_s=5.0, run_delay_s=0.1, others_s=0.2)
    other = Chunk(seconds=(3.0, 2.0), wall_s=6.0, run_delay_s=0.3, others_s=0.1)
    found = merged([one, other])
    assert found.seconds == (3.0, 4.0)
    assert (found.wall_s, found.run_delay_s, found.threads) == (6.0, 0.0, 2)
    assert found.others_s == pytest.approx(0.3)


def test_torchrun_says_which_rank_this_process_is():
    given = {"RANK": "3", "WORLD_SIZE": "8", "MASTER_ADDR": "a", "MASTER_PORT": "1"}
    assert Torchrun.of({}) is None
    assert Torchrun.of(given) == Torchrun(3, 8, 0, 1)
    more = {**given, "LOCAL_RANK": "1", "LOCAL_WORLD_SIZE": "2"}
    assert Torchrun.of(more) == Torchrun(3, 8, 1, 2)
    with pytest.raises(UsageError, match="RANK=x"):
        Torchrun.of({**given, "RANK": "x"})


def test_two_ranks_agree_on_every_element_and_are_timed():
    operations = ("all-reduce", "all-gather", "reduce-scatter", "broadcast", "point-to-point")
    specs = [CollectiveSpec(operation=one, bytes=1001) for one in operations]
    specs.append(CollectiveSpec(operation="all-reduce", bytes=1 << 16))
    options = Options(threads=1, visits=1, budget_s=0.01)
    with Session(options) as session:
        (found,) = measure_collectives(specs, session, 2, "cpu")
    assert found.status == "ok"
    assert found.stop_rule is None
    assert [one.case for one in found.rows] == specs
    for one in found.rows:
        assert one.verified
        assert one.place.library == "gloo"
        assert one.time.median > 0
        assert len(one.rank_s) == 2
        assert one.algorithm_gbps == pytest.approx(one.case.bytes / one.time.median / 1e9)
    assert found.pairs == ()
    assert found.others is None or found.others >= 0
    assert 0 <= found.overlap.compute[0] <= 1
    assert found.overlap.copy_s_per_byte[0] > 0


@pytest.mark.deep
@pytest.mark.parametrize("rank", [0, 1])
def test_a_rank_that_dies_is_named_at_once(rank):
    """Killed while all are in the middle of a collective: nobody waits for the limit."""
    with Session(Options(threads=1)) as session, Ranks(session, 2, "cpu", 60.0) as ranks:
        told = ranks.ask(what="collective", operation="all-reduce", bytes=1 << 20, checks=False)
        victim = ranks.processes[rank]
        endless = Request(samples=1_000_000)
        killer = threading.Timer(0.3, os.kill, (victim, signal.SIGKILL))
        killer.start()
        begin = time.monotonic()
        with pytest.raises(WorkerError, match=f"rank {rank} of 2: was killed by SIGKILL"):
            ranks.sample(told[0]["number"], endless)
        assert time.monotonic() - begin < 50
        killer.join()


@pytest.mark.deep
def test_a_rank_that_is_stopped_is_named_after_the_limit():
    with Session(Options(threads=1)) as session, Ranks(session, 2, "cpu", 20.0) as ranks:
        told = ranks.ask(what="collective", operation="all-reduce", bytes=1 << 20, checks=False)
        os.kill(ranks.processes[1], signal.SIGSTOP)
        with pytest.raises(WorkerError, match=r"rank 1 of 2: gave no sign of life for 10 s"):
            ranks.sample(told[0]["number"], Request(samples=5))
