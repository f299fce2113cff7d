"""What chance alone could be is run a second time, and the weaker run counts."""

from __future__ import annotations

from types import SimpleNamespace

import pytest

from pydlbench.diagnose import run as running
from pydlbench.diagnose.ablation import Rounds, StepChange
from pydlbench.errors import UnsupportedError
from pydlbench.records.diagnosis import Saving

CHANGE = StepChange(what="something else", setup_s=1.0)


def saving(seconds, low):
    return Saving(
        seconds=seconds, low=low, high=1.0, step_s=1.0, of="step", how="in turn", rounds=9
    )


@pytest.fixture
def attempt(monkeypatch):
    """Attempts an experiment whose runs give these savings; returns the saving and what ran."""

    def attempt(*savings, experiment=CHANGE, left_s=(1e6, 1e6)):
        left, results, ran, said = iter(left_s), iter(savings), [], []

        def try_out(one, *_):
            ran.append(one)
            return next(results)

        monkeypatch.setattr(running, "try_out", try_out)
        seen = SimpleNamespace(step_s=0.1)
        found = running._attempt(experiment, seen, None, lambda: next(left), said.append)
        assert said == ["", " once more"][: len(ran)]
        return found, ran

    return attempt


def test_a_clear_saving_is_run_once(attempt):
    clear = saving(0.5, low=0.45)
    assert attempt(clear) == (clear, [CHANGE])


def test_none_is_run_once(attempt):
    none = saving(0.5, low=-0.1)
    assert attempt(none) == (none, [CHANGE])
    small = saving(0.005, low=0.004)
    assert attempt(small) == (small, [CHANGE])


@pytest.mark.parametrize(
    ("second", "real"),
    [
        (saving(0.3, low=0.1), True),
        (saving(0.7, low=-0.1), False),
        (saving(-0.2, low=-0.3), False),
        (saving(0.4, low=None), False),
    ],
)
def test_the_weaker_of_two_runs_counts(attempt, second, real):
    found, ran = attempt(saving(0.5, low=0.1), second)
    assert (found.seconds, found.low, found.real) == (second.seconds, second.low, real)
    assert found.how == "in turn; the weaker of two such runs"
    assert ran == [CHANGE, CHANGE]


def test_a_stronger_second_run_changes_nothing(attempt):
    found, _ = attempt(saving(0.5, low=0.1), saving(0.6, low=0.59))
    assert (found.seconds, found.low) == (0.5, 0.1)


def test_rounds_that_were_taken_already_are_repeated_as_the_step_they_are_of(attempt):
    rounds = Rounds(what="kept pages", pairs=((1.0, 0.5),) * 9, again=CHANGE)
    found, ran = attempt(saving(0.5, low=0.1), saving(0.6, low=0.5), experiment=rounds)
    assert found.seconds == 0.5
    assert ran == [rounds, CHANGE]


def test_without_time_for_a_second_run_it_is_no_finding(attempt):
    words = "saved 50 % of the step once; no time to see it twice"
    with pytest.raises(UnsupportedError, match=words):
        attempt(saving(0.5, low=0.1), left_s=(1e6, 0.5))
    with pytest.raises(UnsupportedError, match="no time"):
        attempt(left_s=(0.5,))


@pytest.mark.parametrize(("observing_s", "left_s"), [(20.0, 80.0), (70.0, 50.0), (900.0, 50.0)])
def test_half_of_the_limit_is_left_for_experiments(monkeypatch, observing_s, left_s):
    clock = SimpleNamespace(now=1000.0)
    monkeypatch.setattr(running, "time", SimpleNamespace(monotonic=lambda: clock.now))

    def observe(*_):
        clock.now += observing_s
        return SimpleNamespace(step_s=1.0, step=None, check=None, beside_s=1.0), ()

    left = []

    def attempt(_experiment, _seen, _session, left_s, _begin):
        left.append(left_s())
        raise UnsupportedError("no time")

    because = [SimpleNamespace(where="", reason="", problem="slow")]
    monkeypatch.setattr(running, "observe", observe)
    monkeypatch.setattr(running, "_attempt", attempt)
    monkeypatch.setattr(running, "hypotheses", lambda _: {CHANGE: because})
    found = running.diagnose(SimpleNamespace(), None, 100.0)
    assert left == [left_s]
    assert [one.result for one in found.untried] == ["no time"]
