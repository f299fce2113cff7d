"""The choice among candidates, on invented ones: no library, no clock."""

from __future__ import annotations

import itertools

import pytest

from pydlbench.backends import autotune as search
from pydlbench.errors import DeviceLostError, InsufficientMemoryError, PrimitiveError

EFFORT = search.CPU_EFFORT


class Invented:
    """A contender of a known time; ``time`` may be a function of the executions so far by all."""

    executions = itertools.count()

    def __init__(self, time, order=None):
        self.time = time if callable(time) else lambda _: time
        self.runs = []
        self.order = order if order is not None else []

    def seconds(self, samples, untimed=0):  # noqa: ARG002 - the real ones warm up
        self.runs.append(samples)
        self.order.append(self)
        return [self.time(next(Invented.executions)) for _ in range(samples)]


@pytest.fixture(autouse=True)
def _from_zero():
    Invented.executions = itertools.count()


def tried(times, thorough=False):
    """Entrants with their trials behind them."""
    entrants = [search.Entrant(Invented(time)) for time in times]
    best = float("inf")
    for entrant in entrants:
        search.trial(entrant, entrant.candidate, best, thorough=thorough, effort=EFFORT)
        best = min(best, entrant.time)
    return entrants


def enter(entrant):
    return entrant.candidate


def all_right(_entrant):
    return None


def test_the_fastest_wins():
    entrants = tried([0.003, 0.001, 0.002])
    assert search.race(entrants, enter, all_right, None, EFFORT) is entrants[1]


def test_a_hopeless_one_runs_once():
    late = 1.01 * (search.HOPELESS * 0.004 + EFFORT.hopeless_s)
    fast, hopeless = tried([0.004, late])
    assert hopeless.candidate.runs == [1]
    assert hopeless.times == [late]
    assert sum(fast.candidate.runs) > 2


def test_a_first_execution_that_only_woke_the_threads_is_not_held_against_it():
    def cold_first(execution):
        return 0.002 if execution == 0 else 0.00005

    entrant = search.Entrant(Invented(cold_first))
    search.trial(entrant, entrant.candidate, best=0.0001, thorough=False, effort=EFFORT)
    assert entrant.time == 0.00005


def test_a_hopeful_one_is_timed_without_its_first_execution():
    def cold_first(execution):
        return 0.0014 if execution == 0 else 0.001

    entrant = search.Entrant(Invented(cold_first))
    search.trial(entrant, entrant.candidate, best=0.001, thorough=False, effort=EFFORT)
    assert set(entrant.times) == {0.001}


def test_a_thorough_trial_times_the_hopeless_too():
    _, hopeless = tried([0.001, 1.0], thorough=True)
    assert hopeless.candidate.runs == [1, 5]
    assert len(hopeless.times) == 5


def test_a_slow_candidate_costs_few_executions():
    (slow,) = tried([2.0])
    assert slow.candidate.runs == [1, 1]


def test_only_finalists_race():
    near = (1 + EFFORT.final_margin) / 2
    entrants = tried([0.001, 0.001 * near, 0.0011 * EFFORT.final_margin])
    before = [list(entrant.candidate.runs) for entrant in entrants]
    search.race(entrants, enter, all_right, None, EFFORT)
    after = [entrant.candidate.runs for entrant in entrants]
    assert [len(b) > len(a) for a, b in zip(before, after, strict=True)] == [True, True, False]


def test_at_most_four_race():
    entrants = tried([0.001 + 1e-6 * i for i in range(7)])
    entered = []
    search.race(entrants, lambda e: entered.append(e) or e.candidate, all_right, None, EFFORT)
    assert entered == entrants[: EFFORT.finalists]


def test_a_single_finalist_needs_no_race():
    entrants = tried([0.001, 0.01])
    before = list(entrants[0].candidate.runs)
    assert search.race(entrants, enter, all_right, None, EFFORT) is entrants[0]
    assert entrants[0].candidate.runs == before


def test_the_fastest_wrong_one_is_disqualified_and_the_next_wins():
    entrants = tried([0.001, 0.00102, 0.00104])

    def verify(entrant):
        return "an unwritten tile" if entrant is entrants[0] else None

    assert search.race(entrants, enter, verify, None, EFFORT) is entrants[1]
    assert (entrants[0].status, entrants[0].reason) == ("failed", "an unwritten tile")
    assert entrants[2].status == "ok"


def test_a_slow_right_one_wins_when_all_finalists_are_wrong():
    entrants = tried([0.001, 0.00101, 0.005, 0.02])

    def verify(entrant):
        return "wrong" if entrant in entrants[:2] else None

    assert search.race(entrants, enter, verify, None, EFFORT) is entrants[2]
    assert [entrant.status for entrant in entrants] == ["failed", "failed", "ok", "ok"]


def test_all_wrong_gives_none():
    entrants = tried([0.001, 0.00101, 0.005])
    assert search.race(entrants, enter, lambda _: "wrong", None, EFFORT) is None
    assert {entrant.status for entrant in entrants} == {"failed"}


def test_nobody_gives_none():
    assert search.race([], enter, all_right, None, EFFORT) is None


def test_who_is_out_already_does_not_race():
    entrants = tried([0.001, 0.00101])
    entrants[0].disqualify(PrimitiveError("oneDNN refused"))
    assert search.race(entrants, enter, all_right, None, EFFORT) is entrants[1]
    assert entrants[0].reason == "oneDNN refused"


def test_a_failure_in_the_race_costs_the_candidate_not_the_case():
    entrants = tried([0.001, 0.00101, 0.00102])

    def out_of_memory(entrant):
        if entrant is entrants[0]:
            raise InsufficientMemoryError("cannot allocate 1000 bytes")
        return entrant.candidate

    def fails_too(entrant):
        if entrant is entrants[1]:
            raise PrimitiveError("run-time error")

    assert search.race(entrants, out_of_memory, fails_too, None, EFFORT) is entrants[2]
    reasons = [entrant.reason for entrant in entrants]
    assert reasons == ["cannot allocate 1000 bytes", "run-time error", None]


def test_the_race_undoes_a_drift_between_trials():
    """The machine slows down steadily by 10 %; who came first in the trials must not profit."""
    order = []

    def drifting(base):
        return lambda execution: base * (1 + 0.1 * min(execution, 90) / 90)

    entrants = [
        search.Entrant(Invented(drifting(0.001), order)),
        search.Entrant(Invented(drifting(0.00097), order)),
    ]
    # Tried early and late.
    entrants[0].times, entrants[1].times = [0.001], [0.001 * EFFORT.final_margin]
    assert search.race(entrants, enter, all_right, None, EFFORT) is entrants[1]
    # Turns alternate, and so does who begins.
    first, second = (entrant.candidate for entrant in entrants)
    assert order[:6] == [first, second, second, first, first, second]


def test_the_races_times_replace_the_trials():
    entrants = tried([0.001, 0.00101])
    entrants[0].times = [0.00099]
    search.race(entrants, enter, all_right, None, EFFORT)
    assert set(entrants[0].times) == {0.001}


def test_ranking_puts_the_fastest_first_and_failures_last():
    entrants = tried([0.003, 0.001, 0.002])
    entrants[1].disqualify("wrong")
    never = search.Entrant(None, status="failed")
    ranked = search.ranking([never, *entrants])
    assert ranked == [entrants[2], entrants[0], entrants[1], never]


def test_one_that_fails_in_the_race_costs_itself_only():
    def once(execution):
        if execution > 40:
            raise PrimitiveError("gave up")
        return 0.0009

    entrants = tried([0.001, 0.00101])
    Invented.executions = itertools.count()
    entrants[0].candidate.time = once
    assert search.race(entrants, enter, all_right, None, EFFORT) is entrants[1]
    assert entrants[0].reason == "gave up"


@pytest.mark.parametrize("where", ["enter", "verify"])
def test_a_lost_device_ends_the_race(where):
    def lost(*_):
        raise DeviceLostError("an illegal memory access")

    entrants = tried([0.001, 0.00101])
    with pytest.raises(DeviceLostError):
        search.race(
            entrants,
            lost if where == "enter" else enter,
            lost if where == "verify" else all_right,
            None,
            EFFORT,
        )
