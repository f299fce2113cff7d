"""Which experiments run: what chance alone could be runs twice, and only what ends in time."""

import dataclasses
from types import SimpleNamespace

import msgspec
import pytest

from pydlbench.diagnose import run as running
from pydlbench.diagnose.ablation import (
    Hypothesis,
    StepChange,
    cost_s,
    how_compared,
    in_turn,
    saving_of,
)
from pydlbench.errors import WorkerError
from pydlbench.records.diagnosis import Saving
from pydlbench.records.step import StepRecord, StepSpec
from pydlbench.timing.chunk import Chunk
from pydlbench.timing.policy import Policy

STEP_S = 0.1
CHANGE = StepChange(what="something else", setup_s=1.0)


def saving(seconds, low):
    return Saving(
        seconds=seconds, low=low, high=1.0, step_s=1.0, subject="step", how="in turn", rounds=9
    )


@pytest.fixture
def diagnosed(monkeypatch):
    """Diagnoses a step of which one thing is suspected; returns the diagnosis and what ran.

    The experiment's runs give these savings and take ``each_s``, looking takes ``look_s``.
    """

    def diagnose(*savings, experiment=CHANGE, limit_s=1e6, each_s=0.0, look_s=0.0):
        clock = SimpleNamespace(now=1000.0)
        results, ran, told, renewed = iter(savings), [], [], []
        session = SimpleNamespace(renew=lambda: renewed.append(len(ran)))
        case = StepSpec(model="mnist")
        step = StepRecord(spec=case, status="ok")
        because = Hypothesis(
            problem="slow",
            symptom="it takes long",
            cause="?",
            experiment=experiment,
            next="",
            most_s=1,
        )

        def observe(*_):
            clock.now += look_s
            seen = SimpleNamespace(step_s=STEP_S, step=step, breakdown=None, beside_s=STEP_S)
            yield seen, ()

        def try_out(one, *_):
            ran.append(one)
            clock.now += each_s
            return next(results)

        monkeypatch.setattr(running, "time", SimpleNamespace(monotonic=lambda: clock.now))
        monkeypatch.setattr(running, "time_step", lambda *_: iter([step]))
        monkeypatch.setattr(running, "observe", observe)
        monkeypatch.setattr(running, "suspect", lambda _: {experiment: [because]})
        monkeypatch.setattr(running, "try_out", try_out)
        *_, found = running.diagnoses(case, session, limit_s, told.append)
        assert renewed == list(range(1, len(ran)))  # the second run has new processes
        assert len(told) == len(set(told)) == len(ran)
        return found, ran

    return diagnose


def test_a_clear_saving_is_run_once(diagnosed):
    clear = saving(0.5, low=0.45)
    found, ran = diagnosed(clear)
    assert [one.saving for one in found.findings] == [clear]
    assert ran == [CHANGE]


@pytest.mark.parametrize("none", [saving(0.5, low=-0.1), saving(0.005, low=0.004)])
def test_none_is_run_once(diagnosed, none):
    found, ran = diagnosed(none)
    assert (found.findings, len(found.tried), found.untried) == ((), 1, ())
    assert ran == [CHANGE]


@pytest.mark.parametrize(
    ("first", "second", "found_s", "low"),
    [
        (saving(0.5, low=0.1), saving(0.3, low=0.1), 0.3, 0.1),
        (saving(0.5, low=0.1), saving(0.6, low=0.59), 0.5, 0.1),
        # Rounds of one preparation do not show what preparations differ by.
        (saving(0.03, low=0.029), saving(0.02, low=0.019), 0.02, 0.019),
    ],
)
def test_the_weaker_of_two_runs_counts(diagnosed, first, second, found_s, low):
    found, ran = diagnosed(first, second)
    (one,) = found.findings
    assert (one.saving.seconds, one.saving.low) == (found_s, low)
    assert one.saving.how != "in turn"  # it says that it is the weaker one
    assert ran == [CHANGE, CHANGE]


@pytest.mark.parametrize(
    "second", [saving(0.7, low=-0.1), saving(-0.2, low=-0.3), saving(0.4, low=None)]
)
def test_what_is_not_seen_again_is_no_finding(diagnosed, second):
    found, ran = diagnosed(saving(0.5, low=0.1), second)
    assert (found.findings, len(found.tried)) == ((), 1)
    assert ran == [CHANGE, CHANGE]


def test_what_other_work_disturbed_is_no_finding(diagnosed):
    disturbed = msgspec.structs.replace(saving(0.5, low=0.45), contended=True, otherwise="busy")
    found, ran = diagnosed(disturbed)
    assert found.findings == ()
    assert [each.result for each in found.tried] == ["busy"]
    assert ran == [CHANGE]


@pytest.mark.parametrize(("limit_s", "times"), [(0.5, 0), (10.0, 1)])
def test_without_time_for_both_runs_it_is_no_finding(diagnosed, limit_s, times):
    found, ran = diagnosed(saving(0.5, low=0.1), limit_s=limit_s, each_s=9.0)
    assert (found.findings, found.tried) == ((), ())
    assert [(one.problem, one.ran) for one in found.untried] == [("slow", False)]
    assert ("50 %" in found.untried[0].result) == (times == 1)  # what was seen once is said
    assert ran == [CHANGE] * times


@pytest.mark.parametrize(("look_s", "left_s"), [(20.0, 80.0), (70.0, 30.0)])
@pytest.mark.parametrize("late", [False, True])
def test_an_experiment_that_would_end_after_the_limit_is_not_begun(diagnosed, look_s, left_s, late):
    least = cost_s(dataclasses.replace(CHANGE, setup_s=0.0), STEP_S)
    change = dataclasses.replace(CHANGE, setup_s=left_s - least + (0.01 if late else -0.01))
    _, ran = diagnosed(saving(0.5, low=0.45), experiment=change, limit_s=100.0, look_s=look_s)
    assert ran == ([] if late else [change])


# -----------------------------------------------------------------------------
# Two kernels in turn, and what the second one takes beside the first.


class Kernel:
    """Takes so long; every so many chunks other work disturbs it and makes it slower."""

    def __init__(self, seconds, every=0, dies_at=0):
        self.seconds, self.every, self.dies_at, self.count = seconds, every, dies_at, 0

    def sample(self, request):
        self.count += 1
        if self.count == self.dies_at:
            raise WorkerError("killed by SIGKILL")
        disturbed = self.every > 0 and self.count % self.every == 0
        seconds = self.seconds * (5 if disturbed else 1)
        return Chunk(
            seconds=(seconds,) * request.samples,
            wall_s=seconds * request.samples,
            disturbance="invented work" if disturbed else None,
        )


def compare(own, changed):
    return in_turn([own, changed], [Policy(budget_s=0.1)] * 2, 1)


def test_ratio_and_base():
    ratio, base = compare(Kernel(0.5), Kernel(0.4))
    assert ratio.median == pytest.approx(0.8)
    assert ratio.rounds == 9
    assert (base, ratio.contended) == (pytest.approx(0.5), False)


def test_of_twice_as_many_images_times_are_compared_per_image():
    ratio, base = compare(Kernel(0.5), Kernel(0.8))
    saving = saving_of(ratio, base, base, "step", "in turn", images=2)
    assert saving.seconds == pytest.approx(0.1)
    assert (saving.low, saving.high) == pytest.approx((0.1, 0.1))
    words = how_compared("the whole step", StepChange(what="more", images=2), ratio, base, 4)
    assert "500 ms as it is, 400 ms with more, per 4 images" in words


def test_few_disturbed_rounds_do_not_move_it():
    ratio, base = compare(Kernel(0.5, every=5), Kernel(0.4, every=6))
    assert ratio.median == pytest.approx(0.8)
    assert (base, ratio.contended) == (pytest.approx(0.5), False)


def test_where_most_rounds_were_disturbed_there_is_no_finding():
    ratio, base = compare(Kernel(0.5, every=1), Kernel(0.4))
    saving = saving_of(ratio, base, base, "step", "in turn")
    assert saving.low > 0
    assert not saving.real
    assert saving.otherwise == "other work disturbed it: invented work"


def test_whoever_dies_ends_it():
    with pytest.raises(WorkerError, match="SIGKILL"):
        compare(Kernel(0.5), Kernel(0.4, dies_at=4))
