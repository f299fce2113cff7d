"""Ranks of a job: who arrives last in a collective, and how long the others wait."""

import json

import pytest
from invented_profile import MM, launched, step, write

from pydlbench.analysis.ledger import ledger_of
from pydlbench.analysis.ledger_difference import are_ranks, compare_ranks
from pydlbench.traces.files import read


def reduced(begin, end, number, size, group=None):
    """An all-reduce on the device from one moment to another, in microseconds."""
    shapes = {"Input type": ["float"], "Input Dims": [[size]]}
    events = launched(
        "c10d::allreduce_", "ncclDevKernel_AllReduce", begin, begin, end - begin, number, stream=20,
        **shapes,
    )  # fmt: skip
    if group is not None:
        events[-1]["args"]["Process Group Ranks"] = group
    return events


@pytest.fixture
def ledgers(tmp_path):
    def make(*ranks, info=True):
        made = []
        for number, events in enumerate(ranks):
            path = tmp_path / f"trace{number}.json"
            write(path, events)
            document = json.loads(path.read_text())
            if info:
                document["distributedInfo"] = {"rank": number, "world_size": len(ranks)}
            path.write_text(json.dumps(document))
            made.append(ledger_of(read(str(path)), path.name))
        return made

    return make


def job(*compute_us, steps=2):
    """Ranks that compute for some time, then reduce until 500 us in each step of 1000 us."""
    ranks = []
    for place, compute in enumerate(compute_us):
        events, offset = [], 7000 * place  # clocks differ
        for number in range(steps):
            begin = offset + 1000 * number
            events.append(step(number, begin, 900))
            events += launched("aten::mm", "g", begin, begin + 20, compute, 10 * number + 1, **MM)
            events += reduced(begin + 20 + compute, begin + 500, 10 * number + 2, 64)
        ranks.append(events)
    return ranks


def test_the_rank_with_the_shortest_collective_arrives_last_and_the_others_wait(ledgers):
    found = compare_ranks(ledgers(*job(100, 360, 120)))
    assert [round(rank.wait_s * 1e6, 3) for rank in found.ranks] == [260, 0, 240]
    assert [rank.last for rank in found.ranks] == [0, 2, 0]
    assert found.ranks[1].caused_s == pytest.approx(500e-6 / 3)
    (skew,) = found.collectives
    assert (skew.count, skew.last_rank, skew.last_share) == (1, 1, 1)
    assert skew.transfer_s == pytest.approx(120e-6)
    assert skew.longest_wait_s == pytest.approx(260e-6)
    assert sum(rank.wait_s for rank in found.ranks) / 3 == pytest.approx(skew.wait_s)


@pytest.mark.parametrize(
    ("a", "b", "matched", "waits"),
    [
        # In another order, the size tells which is which.
        (
            reduced(0, 100, 1, 64) + reduced(200, 230, 2, 128),
            reduced(0, 40, 1, 128) + reduced(200, 310, 2, 64),
            2,
            [0, 20],
        ),
        # An uneven exchange: sizes differ, the order tells.
        (reduced(0, 100, 1, 64), reduced(0, 70, 1, 65), 1, [30, 0]),
        # Other groups of ranks have other collectives.
        (reduced(0, 100, 1, 64, "[0]"), reduced(0, 70, 1, 64, "[1]"), 0, [0, 0]),
        (reduced(0, 100, 1, 64), launched("aten::mm", "g", 0, 20, 9, 1, **MM), 0, [0, 0]),
    ],
)
def test_collectives_correspond_by_group_size_and_order(ledgers, a, b, matched, waits):
    found = compare_ranks(ledgers(a, b))
    assert found.matched == matched
    assert [round(rank.wait_s * 1e6, 3) for rank in found.ranks] == waits
    assert (found.unmatched_s > 0) == (matched == 0)


@pytest.mark.parametrize(
    ("count", "info", "expected"), [(2, True, True), (2, False, False), (3, False, True)]
)
def test_files_are_ranks_if_they_say_so_or_are_more_than_two(ledgers, count, info, expected):
    made = ledgers(*job(*[100] * count), info=info)
    assert are_ranks(made) == expected
    if expected:
        assert [rank.rank for rank in compare_ranks(made).ranks] == list(range(count))


def test_of_different_numbers_of_steps_the_first_ones_are_compared(ledgers):
    a, b = job(100, 360, steps=3)
    found = compare_ranks(ledgers(a, b[:7]))
    assert found.matched == 1
    assert any("numbers of steps" in note for note in found.notes)
