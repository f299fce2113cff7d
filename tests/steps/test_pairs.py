"""Processes of steps that take turns: new in each visit, and started two at a time."""

from types import SimpleNamespace

import pytest

from pydlbench.records.step import StepFacts, StepSpec
from pydlbench.runner.options import Options
from pydlbench.steps import run
from pydlbench.study.table import Interference
from pydlbench.timing.chunk import Chunk


class Session:
    """Counts the processes that it starts; ``beside`` are those that were asked for beside it."""

    def __init__(self, visits, log, name="first"):
        self.options = Options(repetitions=visits, budget_s=0.01)
        self.cpus = (0, 1)
        self.log, self.name = log, name

    def sibling(self):
        return Session(self.options.repetitions, self.log, "second")

    def worker(self, framework, device):
        assert device == "cpu"
        return SimpleNamespace(
            launch=lambda: self.log.append(f"{self.name} {framework} launched"),
            describe=lambda: self.log.append(f"{self.name} {framework} ready"),
        )

    def renew(self):
        self.log.append(f"{self.name} renewed")

    def close(self):
        self.log.append(f"{self.name} closed")

    def interference(self):
        return Interference()


@pytest.fixture
def prepared(monkeypatch):
    """Prepare steps of 10 ms."""
    facts = StepFacts(
        library="invented 1", timing="steady", batch=4, output=(1,), parameters=1, setup_s=0.0
    )

    def prepare(case, session, *, preparation):  # noqa: ARG001 - as the real one
        session.log.append(f"{session.name} {case.framework} prepared")
        return SimpleNamespace(
            facts=facts,
            generation=1,
            sample=lambda request: Chunk(seconds=(0.01,) * request.samples),
            release=lambda: None,
        )

    monkeypatch.setattr(run, "prepare_step", prepare)


@pytest.mark.usefixtures("prepared")
def test_of_one_framework_the_next_visits_process_starts_beside_this_ones():
    log = []
    (record,) = run.run_in_turn([StepSpec(model="mnist", batch=4)], Session(3, log))
    assert record.time.repetitions == 3
    assert log == [
        "first torch launched",
        "second torch launched",
        "first torch ready",
        "second torch ready",
        "first torch prepared",
        "first renewed",
        "second torch prepared",
        "second renewed",
        "first torch launched",  # nobody follows
        "first torch ready",
        "first torch prepared",
        "second closed",
    ]


@pytest.mark.usefixtures("prepared")
def test_several_frameworks_start_beside_each_other_anyway():
    log = []
    names = ("torch", "tensorflow")
    cases = [StepSpec(model="mnist", batch=4, framework=name) for name in names]
    run.run_in_turn(cases, Session(2, log))
    does = ("launched", "ready", "prepared")
    visit = [f"first {name} {what}" for what in does for name in names]
    assert log == [*visit, "first renewed", *visit]
