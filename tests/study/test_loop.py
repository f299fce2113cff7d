"""The one loop: rounds over subjects in random order, on an invented machine."""

import contextlib
import random
from itertools import pairwise

import msgspec
import pytest

from pydlbench.errors import WorkerError
from pydlbench.study.loop import Size, Study, Subject, request_for
from pydlbench.study.table import Interference
from pydlbench.timing.chunk import Chunk
from pydlbench.timing.policy import LEAST_ROUNDS, Policy, gpu_policy, step_policy


def test_every_round_has_all_subjects_in_a_new_order(machine, study):
    host = machine()
    subjects = [host.subject(name, 1e-3 * (1 + i)) for i, name in enumerate("abcd")]
    assert study.take(subjects, rounds=9) == {}
    assert [study.table.rounds(name) for name in "abcd"] == [9] * 4
    assert list(study.table.series("b").by_round()) == list(range(9))
    orders = [key for key, _ in host.requests][-36:]
    rounds = {tuple(orders[i : i + 4]) for i in range(0, 36, 4)}
    assert all(sorted(one) == list("abcd") for one in rounds)
    assert len(rounds) > 3


def test_the_order_follows_the_seed(machine):
    def order(seed):
        host, study = machine(), Study(random.Random(seed))
        study.take([host.subject(name, 1e-3) for name in "abcd"], rounds=5)
        return [key for key, _ in host.requests]

    assert order(1) == order(1)
    assert order(1) != order(2)


@pytest.mark.parametrize("dies_at", [1, 3, 5])
def test_whoever_dies_costs_itself_only(machine, study, dies_at):
    host = machine()
    subjects = [host.subject("a", 1e-3), host.subject("b", 1e-3, dies_at=dies_at)]
    errors = study.take(subjects, rounds=LEAST_ROUNDS)
    assert list(errors) == ["b"]
    assert isinstance(errors["b"], WorkerError)
    assert study.table.rounds("a") == LEAST_ROUNDS
    assert study.table.rounds("b") < LEAST_ROUNDS


def test_an_interrupted_round_keeps_the_visits_that_were_made(machine):
    host = machine()

    def interrupt(_request):
        raise KeyboardInterrupt

    subjects = {name: host.subject(name, seconds) for name, seconds in (("a", 1e-3), ("b", 2e-3))}
    seen = Interference(fma=0.9)
    study = Study(random.Random(0), lambda: seen)
    study.take(list(subjects.values()), rounds=3)
    *_, (last, _) = host.requests  # whoever is the last one of the round that follows
    stopped = Study(random.Random(0), lambda: seen)
    stopped.take(list(subjects.values()), rounds=2)
    subjects[last].sample = interrupt
    with pytest.raises(KeyboardInterrupt):
        stopped.take(list(subjects.values()), first=2, rounds=20)
    (other,) = set(subjects) - {last}
    assert stopped.table.rounds(last) == 2
    assert stopped.table.rounds(other) >= 2
    assert all(one.interference == seen for one in stopped.table.series(other))
    with pytest.raises(ValueError, match="no visits"):
        stopped.table.series("c")


@pytest.mark.parametrize(
    ("seconds", "samples", "inner", "untimed", "touch"),
    [
        (2**-19, 125, 63, 1049, False),  # a sample is 0.12 ms of executions
        (1e-3, 15, 1, 2, False),
        (10e-3, 2, 1, 1, True),  # two samples where a chunk has room for one
        (0.09, 2, 1, 1, True),
        (0.3, 1, 1, 0, False),  # longer than a visit of a sixth of the budget: one, caches cold
    ],
)
def test_the_size_of_a_visit(machine, study, seconds, samples, inner, untimed, touch):
    host = machine()
    subjects = [host.subject("a", seconds, policy=Policy(budget_s=1.5)), host.subject("b", 1e-3)]
    study.take(subjects, rounds=1)
    request = [one for key, one in host.requests if key == "a"][-1]
    assert (request.samples, request.inner) == (samples, inner)
    assert (request.untimed, request.touch) == (untimed, touch)
    assert study.table.series("a").inner == inner


def test_a_budget_bounds_visits(machine, study):
    host = machine()
    study.take([host.subject("a", 1e-3, policy=Policy(budget_s=0.03, visits=6))], rounds=2)
    assert host.requests[-1][1].samples == 5


def test_who_is_alone_finds_its_caches_as_it_left_them(machine, study):
    host = machine()
    study.take([host.subject("a", 0.01)], rounds=3)
    assert [one.untimed for _, one in host.requests] == [1, 1, 0, 0]


def test_a_fresh_process_is_sized_and_warmed_up_and_one_that_goes_on_is_not(machine, study):
    host = machine()
    first = host.subject("a", 1e-3, process=1)
    study.take([first])
    assert len(host.requests) == 3  # sized, warmed up, and the visit
    study.take([host.subject("a", 1e-3, process=1, size=first.size, preparation=1)], first=1)
    assert len(host.requests) == 4
    study.take([host.subject("a", 1e-3, process=2, size=first.size, preparation=2)], first=2)
    assert len(host.requests) == 6  # its size is known
    found = study.table.series("a")
    assert (found.preparations, found.processes) == (3, 2)


def test_a_clock_that_reads_zero_does_not_stall(study):
    def sample(request):
        return Chunk(seconds=(0.0,) * min(request.samples, 50), wall_s=0.001)

    subject = machine_less(sample)
    study.take([subject], rounds=2)
    assert request_for(subject).inner == 120_000
    assert request_for(subject).samples <= Policy().max_samples


def machine_less(sample, policy=None):
    return Subject(key="a", sample=sample, policy=policy or Policy())


def test_where_a_sample_costs_more_than_it_shows_visits_are_sized_by_their_wall_time(study):
    """Cold caches on a GPU: a flush and a gate of 150 us around a kernel of 2 us."""
    policy, asked = gpu_policy(Policy(), "events", "all-cold"), []

    def sample(request):
        asked.append(request)
        return Chunk(seconds=(2e-6,) * request.samples, wall_s=150e-6 * request.samples)

    study.take([machine_less(sample, policy)], rounds=2)
    assert asked[-1].inner == 1  # a second execution would find what the first has left
    assert asked[-1].samples == pytest.approx(policy.chunk_s / 150e-6)


def test_bursts_are_read_before_and_after_a_round_and_the_slower_one_counts(machine):
    readings = iter([(1.0, 8e9), (0.9, 9e9), (0.99, 5e9)])

    def read():
        fma, memory = next(readings)
        return Interference(fma=fma, memory=memory)

    study, host = Study(random.Random(0), read), machine()
    study.take([host.subject("a", 1e-3), host.subject("b", 1e-3)], rounds=2)
    for name in "ab":
        beside = [one.interference for one in study.table.series(name)]
        assert [(one.fma, one.memory, one.llc) for one in beside] == [
            (0.9, 8e9, None),
            (0.9, 5e9, None),
        ]


def test_bursts_of_a_chunk_count_before_those_around_it(study):
    def sample(request):
        return Chunk(seconds=(1e-3,) * request.samples, bursts=(0.99, 0.6))

    study.take([machine_less(sample)])
    (visit,) = study.table.series("a")
    assert visit.interference.fma == 0.6


def test_a_size_of_an_earlier_process_is_where_sizing_begins(machine, study):
    host = machine()
    size = Size(execution_s=2**-20, wall_s=2**-20, process=1)
    study.take([host.subject("a", 2**-20, process=2, size=size)])
    assert [request.inner for _, request in host.requests] == [126, 126]


def test_who_was_sized_beside_others_has_the_right_size_afterwards(machine, study):
    host = machine(state=lambda now: 1000.0 if now < 0.005 else 1.0)
    study.take([host.subject("a", 2**-20)], rounds=4)
    inner = [request.inner for _, request in host.requests]
    assert inner[0] == 1
    assert inner[-1] == 126
    assert study.table.series("a").median == pytest.approx(2**-20)


def test_visits_beside_others_have_as_many_samples_as_those_without(machine, study):
    host = machine(state=lambda now: 8.0 if 0.1 < now < 0.6 else 1.0)
    study.take([host.subject("a", 1e-3), host.subject("b", 1e-3)], rounds=6)
    found = study.table.series("a")
    assert max(one.median for one in found) > 7 * min(one.median for one in found)
    assert {len(one.seconds) for one in found} == {15}


@pytest.mark.parametrize(
    ("settled", "seconds", "first"),
    [(False, 0.4, [(1, 1), (3, 0)]), (True, 0.4, [(1, 0), (3, 0)]), (True, 5e-3, [(1, 0), (3, 1)])],
    ids=["training", "forward", "short"],
)
def test_a_step_that_is_warm_once_prepared_is_sized_by_one_sample(
    machine, study, settled, seconds, first
):
    host = machine()
    policy = step_policy(Policy(budget_s=10.0), settled=settled)
    study.take([host.subject("a", seconds, policy=policy)])
    requests = [(request.samples, request.untimed) for _, request in host.requests]
    assert requests[:2] == first


@pytest.mark.parametrize(
    ("settled", "sizes"), [(False, [(1, 0), (3, 0)]), (True, [(3, 0)])], ids=["training", "forward"]
)
def test_a_long_step_is_warm_in_a_new_process_after_one_run_or_two(machine, study, settled, sizes):
    host = machine()
    policy = step_policy(Policy(budget_s=10.0), settled=settled)
    size = Size(execution_s=0.4, wall_s=0.4, process=1)
    study.take([host.subject("step", 0.4, policy=policy, process=2, size=size)])
    requests = [request for _, request in host.requests]
    assert [(request.samples, request.untimed) for request in requests] == sizes
    assert len(study.table.series("step").seconds) == 3


def chunk(wait_s=0.0, **counters):
    """Return a chunk of a second, and a wait for others."""
    return Chunk(seconds=(1 + wait_s,), wall_s=1 + wait_s, run_delay_s=wait_s, **counters)


def in_turn(*chunks):
    """Return a ``sample`` that returns these or raises them, the last again and again."""
    left_over = list(chunks)

    def sample(_request):
        each = left_over.pop(0) if len(left_over) > 1 else left_over[0]
        if isinstance(each, BaseException):
            raise each
        return each

    return sample


def long_subject(sample):
    """Return a subject that needs no visit to be warm."""
    return Subject(key="a", sample=sample, policy=LONG, size=Size(execution_s=1.0, wall_s=1.0))


LONG = step_policy(Policy(budget_s=4.0), settled=True)


@pytest.mark.parametrize(
    ("chunks", "seconds", "again"),
    [
        ((chunk(0.01), chunk(0.5)), 1.01, 0),
        ((chunk(0.5), chunk()), 1.0, 1),
        ((chunk(0.2), chunk(0.5)), 1.2, 1),
        ((chunk(steal_s=0.2), chunk(0.001)), 1.001, 1),
        ((chunk(disturbance="too hot"), chunk(0.001)), 1.001, 1),
        ((chunk(0.2), chunk(disturbance="too hot")), 1.2, 1),
    ],
)
def test_a_disturbed_visit_is_taken_again(study, chunks, seconds, again):
    study.take([long_subject(in_turn(*chunks))])
    series = study.table.series("a")
    assert list(series.seconds) == [seconds]
    assert series.again == study.table.again == again


@pytest.mark.parametrize(
    ("chunks", "again"),
    [([chunk(0.5)], 3), ([chunk(0.5), chunk()] * 9, 9)],
    ids=["busy for good", "quiet at once"],
)
def test_visits_are_repeated_until_repetitions_are_in_vain(study, chunks, again):
    study.take([long_subject(in_turn(*chunks))], rounds=9)
    assert (study.table.rounds("a"), study.table.again) == (9, again)


@pytest.mark.parametrize("kind", [WorkerError, KeyboardInterrupt])
def test_a_second_try_that_fails_leaves_the_first(study, kind):
    ends = contextlib.suppress(KeyboardInterrupt)
    errors = {}
    with ends:
        errors = study.take([long_subject(in_turn(chunk(0.5), kind("died")))])
    assert list(errors) == (["a"] if kind is WorkerError else [])
    assert list(study.table.series("a").seconds) == [1.5]
    assert study.table.again == 0


def test_threads_that_wait_for_each_other_are_not_others(study):
    study.take([long_subject(in_turn(chunk(0.5, others_s=0.001)))])
    assert study.table.again == 0


def test_nothing_runs_between_the_visits_of_pairs(machine):
    host, bursts = machine(), []

    def burst():
        bursts.append(len(host.requests))
        return Interference(fma=0.5)

    subjects = [host.subject(name, 1e-3) for name in "ab"]
    study = Study(random.Random(0), burst, paired=True)
    for subject in subjects:  # all visits are disturbed
        sample = subject.sample
        subject.sample = lambda request, take=sample: msgspec.structs.replace(
            take(request), steal_s=9.0
        )
    assert study.take(subjects, rounds=8) == {}
    assert len(bursts) == 2  # before the first round and after the last one
    assert bursts[1] - bursts[0] == 16
    assert study.table.again == 0
    assert [study.table.rounds(name) for name in "ab"] == [8, 8]
    keys = [key for key, _ in host.requests][bursts[0] :]
    pairs = list(zip(keys[::2], keys[1::2], strict=True))
    assert set(pairs) == {("a", "b"), ("b", "a")}
    assert all(one == other[::-1] for one, other in pairwise(pairs))
    assert all(visit.interference.fma == 0.5 for visit in study.table.series("a"))


def taking(seconds):
    """Return a function whose samples take as long as that."""
    return lambda _: Chunk(seconds=(seconds,))


def test_ratios_of_adjacent_visits_do_not_see_drift(study):
    speeds = iter([1, 3, 1, 2, 1, 1, 5, 1, 1, 4])
    for number in range(10):
        drift = next(speeds)
        for key, seconds in (("a", 0.01), ("b", 0.0103)):
            size = Size(execution_s=seconds, wall_s=seconds)
            subject = Subject(
                key=key,
                sample=taking(seconds * drift),
                policy=Policy(),
                preparation=number // 5,
                size=size,
            )
            study.take([subject], first=number)
    ratios = study.table.series("b").ratios_to(study.table.series("a"))
    assert ratios == {0: pytest.approx([1.03] * 5), 1: pytest.approx([1.03] * 5)}
