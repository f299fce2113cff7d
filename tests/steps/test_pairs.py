"""Processes of steps that take turns: new in each visit, and started two at a time."""

from itertools import pairwise
from types import SimpleNamespace

import msgspec
import pytest

from pydlbench.errors import UnsupportedError
from pydlbench.records.step import StepFacts, StepRecord, StepSpec
from pydlbench.runner.options import RunnerOptions
from pydlbench.steps import run
from pydlbench.steps.run import planned_rounds
from pydlbench.store.entry import Entry
from pydlbench.store.store import Store
from pydlbench.study.table import Interference
from pydlbench.timing.chunk import Chunk


class Session:
    """Counts the processes that it starts; ``beside`` are those that were asked for beside it."""

    def __init__(self, visits, log, name="first"):
        self.options = RunnerOptions(repetitions=visits, budget_s=0.01)
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
        "first renewed",  # what was asked of it before
        "first torch launched",
        "second torch launched",
        "first native launched",  # it runs the bursts, and stays
        "first torch ready",
        "second torch ready",
        "first native ready",
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
def test_each_step_has_a_process_of_its_own_in_each_visit():
    log = []
    names = ("torch", "torch", "tensorflow")
    cases = [StepSpec(model="mnist", batch=4, framework=name) for name in names]
    records = run.run_in_turn(cases, Session(2, log))
    assert [record.time.repetitions for record in records] == [2, 2, 2]
    events = [line for line in log if not line.endswith(("launched", "ready"))]
    # One process after the other, and what was launched ahead is what is prepared there.
    order = [line.split()[1] for line in events if line.endswith("prepared")]
    assert sorted(order[:3]) == sorted(order[3:]) == sorted(names)
    sessions = ["first", "second"] * 3
    expected = []
    for session, framework in zip(sessions, order, strict=True):
        expected += [f"{session} {framework} prepared", f"{session} renewed"]
    assert events == ["first renewed", *expected[:-1], "second closed"]
    launched = [line.split()[:2] for line in log if line.endswith("launched")]
    launched.remove(["first", "native"])  # once: it runs the bursts between all visits
    assert launched == [list(each) for each in zip(sessions, order, strict=True)]


@pytest.mark.usefixtures("prepared", "free")
@pytest.mark.parametrize("alternately", [False, True])
def test_each_of_two_steps_is_prepared_first_equally_often(alternately):
    log = []
    steps = [StepSpec(model="mnist", framework=name) for name in ("torch", "tensorflow")]
    run.run_in_turn(steps, Session(20, log), alternately=alternately)
    order = [line.split()[1] for line in log if line.endswith("prepared")]
    assert order[::2].count("torch") == 10
    assert order[::4] == order[3::4]  # of two repetitions each the second has the order reversed
    assert set(order[::4]) == {"torch", "tensorflow"}


@pytest.mark.usefixtures("prepared")
def test_a_refused_step_has_no_further_visit(monkeypatch):
    log, prepare = [], run.prepare_step

    def refusing(case, session, *, preparation):
        if case.batch == 5:
            log.append("refused")
            raise UnsupportedError("no such mode")
        return prepare(case, session, preparation=preparation)

    monkeypatch.setattr(run, "prepare_step", refusing)
    cases = [StepSpec(model="mnist", batch=batch) for batch in (4, 5)]
    fine, refused = run.run_in_turn(cases, Session(3, log))
    assert (fine.status, fine.time.repetitions) == ("ok", 3)
    assert (refused.status, refused.reason) == ("skipped", "no such mode")
    assert log.count("refused") == 1


@pytest.mark.usefixtures("prepared")
@pytest.mark.parametrize("visit", [2, 3])
def test_steps_have_their_records_when_a_later_one_is_interrupted(monkeypatch, visit):
    prepare, prepared = run.prepare_step, []

    def interrupted(*arguments, **how):
        prepared.append(prepare(*arguments, **how))
        if len(prepared) == visit:
            raise KeyboardInterrupt
        return prepared[-1]

    monkeypatch.setattr(run, "prepare_step", interrupted)
    cases = [StepSpec(model="mnist", batch=batch) for batch in (4, 5)]
    found = {}
    with pytest.raises(KeyboardInterrupt):
        found.update(run.runs_in_turn(cases, Session(3, [])))
    assert sum(record.time.repetitions for record in found.values()) == visit - 1
    assert len(found) == visit - 1


# -----------------------------------------------------------------------------
# Steps that are sampled alternately.


@pytest.fixture
def free(monkeypatch):
    """Let the bytes of free memory be those of a list, in turn; the last one from then on."""
    left = [100]

    def read_facts():
        return SimpleNamespace(memory_available_bytes=left.pop(0) if len(left) > 1 else left[0])

    monkeypatch.setattr(run, "read_cpu_facts", read_facts)
    return left


def alternated(count, visits, log):
    steps = [StepSpec(model="mnist", batch=4 + number) for number in range(count)]
    return run.run_in_turn(steps, Session(visits, log), alternately=True)


@pytest.mark.usefixtures("prepared", "free")
@pytest.mark.parametrize("count", [2, 3])
def test_all_steps_of_a_repetition_are_prepared_before_one_is_sampled(count):
    log = []
    records = alternated(count, 2, log)
    # The native process, which runs the bursts, starts along with those of the steps.
    assert log[2 * count] == "first native launched"
    events = [line.split()[-1] for line in log if "native" not in line]
    turn = ["renewed", "launched", "ready", "prepared"]
    assert events == [word for _ in range(2) for word in turn for _ in range(count)] + [
        "closed"
    ] * (count - 1)
    assert [record.time.repetitions for record in records] == [2] * count


@pytest.mark.usefixtures("prepared", "free")
def test_a_repetition_has_the_median_of_its_samples():
    for record in alternated(2, 3, []):
        assert list(record.rounds_s) == [0, 1, 2]
        assert record.time.repetitions == 3
        # The size of a step is not known in the first repetition.
        assert len(record.samples_s) >= 3 * 3
        samples = sorted(record.samples_s)
        assert all(samples[0] <= value <= samples[-1] for value in record.rounds_s.values())


@pytest.mark.usefixtures("prepared")
def test_steps_that_do_not_fit_together_take_turns(free):
    free[:] = [100, 40]  # the first one takes 60 of 100 bytes
    log = []
    records = alternated(2, 2, log)
    kinds = [line.split()[-1] for line in log]
    prepared = [number for number, kind in enumerate(kinds) if kind == "prepared"]
    assert len(prepared) == 4
    for first, second in pairwise(prepared):  # the process of the one before has ended
        assert "renewed" in kinds[first:second]
    assert [len(record.rounds_s) for record in records] == [2, 2]
    assert set(records[0].rounds_s) == {0, 1}


@pytest.mark.usefixtures("prepared")
def test_steps_of_which_none_follows_need_no_more_memory(free):
    free[:] = [100, 60, 60, 20]  # each of the two takes 40 of 100 bytes
    assert all(len(record.samples_s) > 2 for record in alternated(2, 2, []))


@pytest.mark.usefixtures("prepared", "free")
@pytest.mark.parametrize("failing", [4, 5, 6])
def test_a_step_that_fails_ends_no_process_of_the_others(monkeypatch, failing):
    """Processes end between repetitions, and not while others are prepared."""
    prepare, log = run.prepare_step, []

    def refusing(case, session, *, preparation):
        if case.batch == failing:
            raise UnsupportedError("no such mode")
        return prepare(case, session, preparation=preparation)

    monkeypatch.setattr(run, "prepare_step", refusing)
    records = alternated(3, 1, log)
    assert [record.time is None for record in records] == [batch == failing for batch in (4, 5, 6)]
    assert sum(line.endswith("renewed") for line in log) == 3


@pytest.mark.usefixtures("free")
def test_an_interval_is_as_wide_as_processes_scatter(monkeypatch):
    """All rounds of a process take the same, and each process takes another time."""
    numbers = iter(range(100))
    facts = StepFacts(
        library="invented 1", timing="steady", batch=4, output=(1,), parameters=1, setup_s=0.0
    )

    def prepare(case, session, *, preparation):  # noqa: ARG001 - as the real one
        seconds = 0.01 + 0.001 * next(numbers)
        return SimpleNamespace(
            facts=facts,
            generation=1,
            sample=lambda request: Chunk(seconds=(seconds,) * request.samples),
            release=lambda: None,
        )

    monkeypatch.setattr(run, "prepare_step", prepare)
    (record,) = alternated(1, 8, [])
    # The second smallest and the second largest of eight would hold less than 95 %.
    assert (record.time.ci_low, record.time.ci_high) == pytest.approx((0.010, 0.017))


@pytest.mark.usefixtures("prepared", "free")
def test_one_of_two_steps_goes_on_if_the_other_fails(monkeypatch):
    prepare = run.prepare_step

    def refusing(case, session, *, preparation):
        if case.batch == 5:
            raise UnsupportedError("no such mode")
        return prepare(case, session, preparation=preparation)

    monkeypatch.setattr(run, "prepare_step", refusing)
    fine, refused = alternated(2, 3, [])
    assert (fine.time.repetitions, refused.reason) == (3, "no such mode")


# -----------------------------------------------------------------------------
# How many processes a step has, by what the store knows of it and the width asked for.


CASE = StepSpec(model="mnist")
QUIET = {0: 1.0, 1: 1.02, 2: 0.98, 3: 1.0, 4: 1.02, 5: 0.98}


def record(rounds, *, batch=64, disturbed=0):
    case = msgspec.structs.replace(CASE, batch=batch)
    return StepRecord(spec=case, status="ok", rounds_s=rounds, disturbed=disturbed).to_dict()


@pytest.mark.parametrize(
    ("documents", "planned"),
    [
        ([], 4),
        ([record(QUIET)], 20),
        ([record(QUIET), record({**QUIET, 5: 3.0}, disturbed=1)], 20),
        ([record({**QUIET, 5: 3.0}), record(QUIET)], 20),
        ([record({0: 1.0, 1: 3.0})], 4),
    ],
)
def test_the_newest_undisturbed_run_plans(store_path, run_record, documents, planned):
    with Store.open(store_path) as store:
        store.begin(run_record, "step")
        for document in documents:
            store.add(run_record.id, Entry.from_document("step", document))
        assert planned_rounds(store, [CASE], 0.01) == planned
        assert planned_rounds(store, [msgspec.structs.replace(CASE, phase="training")], 0.01) == 4
    assert planned_rounds(None, [CASE], 0.01) == 4


@pytest.mark.usefixtures("prepared")
def test_alternate_samples_of_steps_are_single_and_adjacent(monkeypatch):
    """The machine gets slower with each round; the ratio is that of the steps."""
    taken, prepare = [], run.prepare_step

    def slower(case, session, *, preparation):
        kernel = prepare(case, session, preparation=preparation)

        def sample(request):
            taken.append((case.batch, request.samples))
            rounds = sum(batch == case.batch for batch, _ in taken)
            return Chunk(seconds=(0.02 * case.batch / 4 * (1 + rounds / 9),) * request.samples)

        kernel.sample = sample
        return kernel

    monkeypatch.setattr(run, "prepare_step", slower)
    monkeypatch.setattr(run, "read_cpu_facts", lambda: SimpleNamespace(memory_available_bytes=1e12))
    session = Session(3, [])
    session.options = RunnerOptions(repetitions=3, budget_s=0.6)
    cases = [StepSpec(model="mnist", batch=batch) for batch in (4, 5)]
    first, second = run.run_in_turn(cases, session, alternately=True)
    assert {samples for _, samples in taken} == {1}
    assert not first.ratios
    assert sorted(second.ratios) == [0, 1, 2]
    assert len(second.samples_s) > 9  # more where the time of a step is known
    assert [len(each) for each in second.ratios.values()] == [3, 7, 7]
    assert all(each == pytest.approx([1.25] * len(each)) for each in second.ratios.values())
