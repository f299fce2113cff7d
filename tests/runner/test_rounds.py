"""Kernels sampled in the same rounds, and the ratios of what the rounds took."""

import dataclasses
import itertools
import random

import pytest

from pydlbench.errors import WorkerError
from pydlbench.runner.interleaved import (
    clock_beside,
    ratios,
    sample_interleaved,
    saved_s,
)
from pydlbench.timing.chunk import Chunk
from pydlbench.timing.policy import Policy
from pydlbench.timing.procedure import Round, Samples
from pydlbench.timing.stopping import WarmupOutcome


def samples(by_round, faults=None):
    if not isinstance(by_round, dict):
        by_round = dict(enumerate(by_round))
    seconds = tuple(by_round.values())
    return Samples(
        seconds=seconds,
        all_seconds=seconds,
        discarded=0,
        clock_hz=None,
        contended=False,
        contention_reason=None,
        stop_reason="precision",
        stop_detail="",
        warmup=WarmupOutcome(reason="steady", seconds=0.1, detail=""),
        rounds=tuple(
            Round(index=index, seconds=value, clock_hz=None) for index, value in by_round.items()
        ),
        inner=1,
        retries=0,
        spent_s=1.0,
        confidence=0.95,
        faults=faults,
    )


def steady(seconds, dies_at=None):
    """A kernel whose every sample takes as long; dies at its n-th request."""
    asked = []

    def sample(request):
        asked.append(request)
        if len(asked) == dies_at:
            raise WorkerError("killed by SIGKILL")
        return Chunk(seconds=(seconds,) * request.samples, wall_s=seconds * request.samples)

    return sample


def turn(*kernels):
    rests = []
    policies = [Policy(min_rounds=9)] * len(kernels)
    order = random.Random(0)
    return sample_interleaved(kernels, policies, order, lambda: rests.append(1)), rests


def test_all_are_sampled_in_the_same_rounds():
    outcomes, rests = turn(steady(1e-3), steady(2e-3), steady(4e-3))
    rounds = [set(one.by_round()) for one in outcomes]
    assert all(found >= set(range(9)) for found in rounds)
    assert rests


def test_nobody_rests_alone():
    assert turn(steady(1e-3))[1] == []


@pytest.mark.parametrize("dies_at", [1, 4, 12])
def test_whoever_dies_costs_itself_only(dies_at):
    (first, lost, last), _ = turn(steady(1e-3), steady(2e-3, dies_at), steady(4e-3))
    assert isinstance(lost, WorkerError)
    assert {len(one.rounds) >= 9 for one in (first, last)} == {True}


def test_all_may_die():
    outcomes, _ = turn(steady(1e-3, 1), steady(2e-3, 2))
    assert [type(one) for one in outcomes] == [WorkerError, WorkerError]


def test_the_fastest_has_ratio_one():
    best, found = ratios({3: samples([2.0] * 9), 5: samples([1.0] * 9)})
    assert best == 5
    assert (found[5].median, found[5].interval.low, found[5].interval.high) == (1, 1, 1)
    assert (found[3].median, found[3].n) == (2, 9)


def test_drift_that_both_saw_cancels():
    drift = [1 + 0.1 * i for i in range(9)]
    _, found = ratios({0: samples([1.5 * x for x in drift]), 1: samples(drift)})
    assert found[0].median == pytest.approx(1.5)
    assert found[0].interval.high - found[0].interval.low < 1e-9


def test_the_fastest_is_that_of_shared_rounds_not_of_the_machines_best_hour():
    # The second one went on while the machine was twice as fast.
    first = samples([1.0] * 9)
    second = samples([1.2] * 9 + [0.6] * 20)
    best, found = ratios({0: first, 1: second})
    assert best == 0
    assert found[1].median == pytest.approx(1.2)


def test_of_three_that_beat_each_other_in_turn_nobody_is_ahead_beyond_its_interval():
    """The fastest by its median is 0.998x of another one in the rounds that they share."""
    turns = ((1.0, 1.002, 1.004), (1.002, 1.004, 1.0), (1.004, 1.0, 1.002))
    rows = [[turns[i % 3][who] for i in range(12)] for who in range(3)]
    medians = [samples(one).median for one in rows]
    assert len(set(medians)) == 1
    for order in itertools.permutations(range(3)):
        _, found = ratios({number: samples(rows[who]) for number, who in enumerate(order)})
        assert all(one.interval.high >= 1 for one in found.values())


def test_the_least_violated_reference_is_taken_where_none_is_without_fault():
    # 1 beats 0 by a little in most of their rounds, 2 beats 1 by more, 0 beats 2 by most.
    shared = {
        0: {**dict.fromkeys(range(9), 1.0), **dict.fromkeys(range(9, 18), 1.0)},
        1: {**dict.fromkeys(range(9), 0.99), **dict.fromkeys(range(18, 27), 1.0)},
        2: {**dict.fromkeys(range(9, 18), 1.5), **dict.fromkeys(range(18, 27), 0.9)},
    }
    best, found = ratios({index: samples(one) for index, one in shared.items()})
    assert best == 0
    assert found[1].median == pytest.approx(0.99)
    assert found[2].median == pytest.approx(1.5)


def test_who_is_not_eligible_is_compared_with_the_others():
    three = {0: samples([1.0] * 9), 1: samples([2.0] * 9), 2: samples([3.0] * 9)}
    best, found = ratios(three, {1, 2})
    assert best == 1
    assert [found[index].median for index in range(3)] == pytest.approx([0.5, 1, 1.5])


def test_few_rounds_have_a_ratio_without_an_interval():
    _, found = ratios({0: samples([1.0] * 3), 1: samples([2.0] * 3)})
    assert (found[1].median, found[1].interval, found[1].n) == (2, None, 3)


def test_without_a_common_round_medians_are_compared():
    _, found = ratios({0: samples({0: 1.0}), 1: samples({1: 3.0})})
    assert (found[1].median, found[1].interval, found[1].n) == (3, None, 0)


def test_kept_pages_save_what_the_rounds_agree_on():
    drift = [1 + 0.1 * i for i in range(9)]
    default = samples([10 * x for x in drift], faults=5000)
    kept = samples([7 * x for x in drift], faults=2)
    assert saved_s(default, kept) == pytest.approx(0.3 * 14)


@pytest.mark.parametrize("rounds", [3, 12])
def test_rounds_that_disagree_save_nothing(rounds):
    default = samples([10.0] * rounds, faults=5000)
    kept = samples([[9.0, 9.8, 10.5][i % 3] for i in range(rounds)], faults=2)
    assert saved_s(default, kept) == 0


def test_without_fewer_faults_another_process_was_faster_by_chance():
    assert saved_s(samples([10.0] * 9, faults=0), samples([7.0] * 9, faults=0)) == 0
    assert saved_s(samples([10.0] * 9), samples([7.0] * 9)) == pytest.approx(3)


def test_without_a_common_round_nothing_is_saved():
    assert saved_s(samples({0: 10.0}), samples({1: 1.0})) == 0


def test_three_rounds_that_are_faster_by_chance_save_nothing():
    """One in eight are, and a visit may have a single round."""
    default = samples([10.0] * 3)
    assert saved_s(default, samples([9.9, 9.5, 9.8])) == 0
    assert saved_s(default, samples([7.0, 7.1, 7.2])) == pytest.approx(2.9)


def test_the_clock_is_that_of_the_rounds_that_both_were_in():
    own, other = samples([1.0] * 3), samples([1.0] * 5)
    clocks = (3e9, None, 3.2e9, 1e9, 1e9)
    rounds = tuple(
        dataclasses.replace(one, clock_hz=clock)
        for one, clock in zip(other.rounds, clocks, strict=True)
    )
    assert clock_beside(own, dataclasses.replace(other, rounds=rounds)) == pytest.approx(3.1e9)
    assert clock_beside(own, other) is None
    assert clock_beside(samples({7: 1.0}), dataclasses.replace(other, rounds=rounds)) is None
