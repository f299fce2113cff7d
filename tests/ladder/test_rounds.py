"""Rounds of a check: the prediction before the step, and what page faults add to it."""

from __future__ import annotations

import random

import pytest

from pydlbench.ladder.operators import StepOperator
from pydlbench.ladder.rounds import Rounds
from pydlbench.timing.chunk import Chunk

FOUND = (
    StepOperator(name="a", kind="layer", nodes=("a",), count=2),
    StepOperator(name="b", kind="pointwise", nodes=("b",), count=1),
)


class Invented:
    """A kernel that says when it was asked."""

    def __init__(self, name, calls, seconds, faults):
        self.name, self.calls, self.seconds, self.faults = name, calls, seconds, faults

    def sample(self, request):
        self.calls.append((self.name, request))
        return Chunk(seconds=tuple(self.seconds) * request.samples, faults=self.faults)


def made(*, replay=True, resident=False, canary=None):
    """Return rounds of invented kernels, these by name, and the requests as they come."""
    calls = []
    kernels = {
        "operators": Invented("operators", calls, [0.3, 0.1], 1.0),
        "replay": Invented("replay", calls, [0.05], 7.0) if replay else None,
        "step": Invented("step", calls, [0.9], 9.0),
        "kept": Invented("kept", calls, [0.8], 2.0),
        "resident": Invented("resident", calls, [0.7], 2.0) if resident else None,
    }
    rounds = Rounds(
        FOUND,
        once_s=0.01,
        order=random.Random(0),
        rest=lambda: None,
        canary=canary,
        **kernels,
    )
    return rounds, kernels, calls


def test_a_round_predicts_before_the_step_runs():
    rounds, _, calls = made()
    rounds.warm_up()
    calls.clear()
    row = rounds.take()
    names = [name for name, _ in calls]
    assert names[:2] == ["operators", "replay"]
    assert sorted(names[2:]) == ["kept", "step"]
    assert abs(row.operators_s - 0.71) < 1e-12
    # Nine faults in the steps of the warm-up, one of them in operators; the replay has 7 in 50 ms.
    assert abs(row.faults_s - 8 * 0.05 / 7) < 1e-12
    assert abs(row.estimate_s - row.operators_s - row.faults_s) < 1e-12
    assert (row.measured_s, row.kept_s) == (0.9, 0.8)
    assert rounds.fault_s() == pytest.approx(0.05 / 7)


def test_a_prediction_takes_the_faults_of_steps_before_it_only():
    rounds, kernels, _ = made()
    rounds.warm_up()
    kernels["step"].faults = 90.0
    assert abs(rounds.take().faults_s - 8 * 0.05 / 7) < 1e-12
    assert rounds.predicted_faults() == 9.0
    assert rounds.median_faults("step") == 90.0
    for _ in range(3):
        last = rounds.take()
    assert abs(last.faults_s - 89 * 0.05 / 7) < 1e-12


def test_faults_of_the_operators_are_not_counted_twice():
    rounds, kernels, _ = made()
    kernels["operators"].faults = 20.0
    rounds.warm_up()
    assert rounds.take().faults_s == 0.0


def test_a_replay_without_faults_has_nothing_to_say_of_their_cost():
    rounds, kernels, _ = made()
    kernels["replay"].faults = 0.0
    rounds.warm_up()
    assert rounds.take().faults_s == 0.0


def test_the_prediction_does_not_depend_on_the_step():
    rounds, _, _ = made()
    slow, kernels, _ = made()
    kernels["step"].seconds = [5.0]
    kernels["kept"].seconds = [4.0]
    for one in (rounds, slow):
        one.warm_up()
    assert rounds.take().estimate_s == slow.take().estimate_s


def test_without_a_replay_faults_cost_nothing_of_their_own():
    rounds, _, calls = made(replay=False)
    assert rounds.take().faults_s == 0
    assert rounds.median_faults("replay") is None
    assert rounds.predicted_faults() == 1.0  # those of the operators
    assert {name for name, _ in calls} == {"operators", "step", "kept"}


def test_a_step_that_is_fed_takes_turns_with_one_that_is_not():
    rounds, _, calls = made(resident=True)
    rounds.warm_up()
    calls.clear()
    row = rounds.take()
    assert (row.measured_s, row.kept_s, row.resident_s) == (0.9, 0.8, 0.7)
    assert sorted(name for name, _ in calls[2:]) == ["kept", "resident", "step"]
    plain, _, _ = made()
    assert plain.take().resident_s is None


def test_short_kernels_get_more_samples_and_long_ones_no_warm_up():
    rounds, kernels, calls = made()
    for one in filter(None, kernels.values()):
        one.seconds = [0.001 * second for second in one.seconds]
    rounds.warm_up()
    assert rounds.rows == []
    calls.clear()
    rounds.take()
    assert all(request.samples == 20 and request.untimed == 20 for _, request in calls)
    steady, kernels, calls = made()
    kernels["step"].seconds = [0.03]
    steady.warm_up()
    calls.clear()
    steady.take()
    assert dict(calls)["step"].untimed == 4  # a tenth of a second in all
    long, kernels, calls = made()
    kernels["step"].seconds = [1.9]
    long.warm_up()
    calls.clear()
    long.take()
    requests = dict(calls)
    assert (requests["step"].samples, requests["step"].untimed) == (1, 0)


def test_the_steps_change_places():
    rounds, _, calls = made()
    for _ in range(20):
        rounds.take()
    first = {calls[i + 2][0] for i in range(0, len(calls), 4)}
    assert first == {"step", "kept"}
    assert rounds.median_times() == {"a": 0.3, "b": 0.1}
    assert rounds.median_faults("step") == 9.0


@pytest.mark.parametrize(
    ("shares", "taken", "disturbed"),
    [
        ([1.0, 0.99], 1, 0),
        ([1.0, 0.5, 1.0, 1.0], 2, 0),
        ([0.5, 1.0, 1.0], 2, 0),
        ([1.0, 0.5, 1.0, 0.6], 2, 1),
        ([None, None], 1, 0),
    ],
)
def test_a_round_beside_somebody_else_is_taken_once_more(shares, taken, disturbed):
    left = iter(shares)
    rounds, _, calls = made(canary=lambda: next(left))
    rounds.warm_up()
    calls.clear()
    rounds.take()
    assert [name for name, _ in calls].count("step") == taken
    assert len(rounds.rows) == len(rounds.times) == 1
    assert rounds.disturbed == disturbed
