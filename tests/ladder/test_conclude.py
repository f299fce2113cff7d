"""What a check's record says of the cost of fresh pages, from invented rounds."""

from __future__ import annotations

import random
from types import SimpleNamespace

import pytest
from invented_evidence import row

from pydlbench.ladder.estimate import plan
from pydlbench.ladder.ledger import Findings, conclude
from pydlbench.ladder.native import native_sum
from pydlbench.ladder.operators import step_operators
from pydlbench.ladder.rounds import Rounds
from pydlbench.models import build_model
from pydlbench.records.step import StepSpec
from pydlbench.steps.operations import OperatorsFacts
from pydlbench.timing.chunk import Chunk

STEPS, KEPT = [1.0, 1.1, 1.2], [0.8, 1.0, 1.1]


class Invented:
    """A kernel that takes the next of these seconds each time, with so many page faults."""

    def __init__(self, seconds, faults):
        self.seconds, self.faults = iter(seconds), faults

    def sample(self, _request):
        return Chunk(seconds=next(self.seconds), faults=self.faults)


@pytest.fixture
def concluded():
    """Conclude from rounds whose steps have so many page faults, and with kept pages so many."""

    def record(counted, kept):
        model = build_model("mnist", 2)
        found = step_operators(model, "forward", "torch", "eager")
        rounds = Rounds(
            found,
            operators=Invented([(0.01,) * len(found)] * len(STEPS), 0.0),
            once_s=0.0,
            replay=None,
            step=Invented([(one,) for one in STEPS], counted),
            kept=Invented([(one,) for one in KEPT], kept),
            order=random.Random(0),
            rest=lambda: None,
        )
        for _ in STEPS:
            rounds.take()
        measured = Findings(
            case=StepSpec(model="mnist", batch=2, framework="torch", mode="eager"),
            model=model,
            found=found,
            singles=(),
            rounds=rounds,
            calls=OperatorsFacts(),
            log={},
            library="invented 1",
        )
        wanted = plan(model)
        native = native_sum(wanted, {one: row(one, 1e-3, 1e-3) for one in wanted.cases})
        session = SimpleNamespace(options=SimpleNamespace(confidence=0.95), cpus=(0,))
        return conclude(measured, native, session, 1.0)

    return record


def allocation(record):
    (found,) = [one for one in record.ledger if one.term == "allocation, first touch"]
    return found


def test_the_cost_of_fresh_pages_is_the_middle_difference_of_pairs(concluded):
    record = concluded(50_000.0, 12.0)
    assert allocation(record).seconds == pytest.approx(0.1)
    assert (record.faults["counted"], record.faults["kept"]) == (50_000, 12)
    assert {"50000", "12"} <= set(allocation(record).how.split())


def test_where_nobody_counted_faults_the_difference_is_all_that_is_known(concluded):
    record = concluded(None, None)
    assert allocation(record).seconds == pytest.approx(0.1)
    assert (record.faults["counted"], record.faults["kept"]) == (None, None)


@pytest.mark.parametrize("counted", [0.0, 100.0])
def test_two_processes_without_fresh_pages_show_nothing_of_their_cost(concluded, counted):
    record = concluded(counted, 0.0)
    assert allocation(record).seconds == 0
    # What the two differ by is named, and lies in what is unexplained.
    assert "+100.00" in allocation(record).how.split()
    assert sum(one.seconds for one in record.ledger) == pytest.approx(1.1)
