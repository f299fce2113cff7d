"""Models that compute something else while they are timed are refused; honest ones are not."""

import shutil
import time
from pathlib import Path
from types import SimpleNamespace

import pytest

pytest.importorskip("torch")

from pydlbench.backends.steps.serving import serve_step
from pydlbench.backends.steps.timed_results import TimedResults
from pydlbench.errors import RefusedKernelError
from pydlbench.records.step import StepPreparation, StepSpec
from pydlbench.records.user_model import UserModelSpec
from pydlbench.steps import agreement
from pydlbench.timing.chunk import ChunkRequest

HERE = Path(__file__).parent


@pytest.fixture
def judged(backend_of, tmp_path, monkeypatch):
    """Judge a planted model beside the honest one; return the agreement and B's seconds."""

    def prepared(step, _, preparation):
        kernel = serve_step(backend_of("torch"), step, preparation)
        return SimpleNamespace(facts=kernel.facts, release=lambda: None, sample=kernel.sample)

    monkeypatch.setattr(agreement, "prepare_step", prepared)
    session = SimpleNamespace(renew=lambda: None)

    def judge(kind, phase="forward", reference="Honest", inner=1, **own):
        specs = []
        for side, name in (("a", reference), ("b", kind)):
            path = shutil.copy(HERE / "planted_models.py", tmp_path / f"{side}{kind}.py")
            words = {"model": f"{path}:build", "phase": phase, "options": {"kind": name}}
            specs.append(StepSpec(own=UserModelSpec(train=reference != "Honest", **own), **words))
        known = agreement.agree_steps(specs, session, tmp_path)
        seconds = ()
        for index, spec in enumerate(specs):
            timed = str(tmp_path / "timed" / f"{index}-0")
            how = StepPreparation(checks=False, load=str(tmp_path / "A"), timed=timed)
            kernel = serve_step(backend_of("torch"), spec, how)
            seconds = kernel.sample(ChunkRequest(samples=5, inner=inner, untimed=2)).seconds
        return agreement.agree_timed(specs[0], session, tmp_path, known), seconds

    return judge


@pytest.mark.parametrize("phase", ["forward", "training"])
@pytest.mark.parametrize("kind", ["Honest", "InPlace", "CustomFunction"])
def test_an_honest_model_is_accepted(judged, kind, phase):
    found, seconds = judged(kind, phase)
    assert (found.timed, found.refused, found.differs) == (2, (), False)
    assert len(seconds) == 5


@pytest.mark.parametrize("optimizer", ["momentum", "adam-fused", "adamw", "adam-sparse"])
def test_each_sample_of_several_steps_begins_with_a_new_optimizer(judged, optimizer):
    """Velocities of earlier samples would change the results of the later steps of a sample."""
    found, _ = judged("Table", "training", "Table", inner=20, optimizer=optimizer)
    assert (found.timed, found.refused) == (2, ())


@pytest.mark.parametrize(
    ("kind", "words"),
    [
        ("KeptByPointer", "output 1 is wrong"),
        ("KeptByValue", "output 1 is wrong"),
        ("OnlyTheFirstCalls", "output 1 is wrong"),
        ("PartOfTheBatch", "output 1 is wrong"),
        ("OnAThread", "output 1 is wrong"),
        ("LazyResult", "output 1 is wrong"),
        ("AfterTheClock", "output 1 is wrong"),
        ("OnDisk", "output 1 is wrong"),
        ("WhilePrepared", "output 1 is wrong"),
        ("InAChild", "output 1 is wrong"),
        ("ChangesItsInput", "changes input 1"),
    ],
)
def test_a_cheat_is_refused(judged, kind, words):
    found, _ = judged(kind)
    (only,) = found.refused
    assert only.startswith("B is not ranked")
    assert words in only


def test_threads_that_are_joined_are_accepted(judged):
    found, _ = judged("OwnThreads")
    assert (found.timed, found.refused, found.differs) == (2, (), False)


def test_a_lower_precision_is_told(judged):
    found, _ = judged("InAutocast")
    assert found.differs


def test_a_model_that_replaces_what_judges_it_has_no_time(judged, monkeypatch):
    monkeypatch.setattr(TimedResults, "_save", TimedResults._save)
    with pytest.raises(RefusedKernelError, match=r"TimedResults\._save"):
        judged("ReplacesTheJudge")


@pytest.mark.parametrize("phase", ["forward", "training"])
def test_a_model_that_keeps_state_in_buffers_is_accepted(judged, phase):
    found, _ = judged("RunningMean", phase, "RunningMean")
    assert (found.timed, found.refused, found.differs) == (2, (), False)


@pytest.mark.parametrize(
    ("kind", "words"), [("NoRunningMean", "its buffer"), ("KeptInABuffer", "is wrong")]
)
def test_a_model_that_leaves_its_state_as_it_was_is_refused(judged, kind, words):
    found, _ = judged(kind, reference="RunningMean")
    (only,) = found.refused
    assert only.startswith("B is not ranked")
    assert words in only


def test_a_replaced_clock_changes_no_time(judged, monkeypatch):
    monkeypatch.setattr(time, "perf_counter", time.perf_counter)
    monkeypatch.setattr(time, "monotonic", time.monotonic)
    found, seconds = judged("ReplacesTheClock")
    assert found.refused == ()
    assert min(seconds) > 0.003
