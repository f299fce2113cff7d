"""Models that compute something else while they are timed are refused; honest ones are not."""

import random
import shutil
import sys
import time
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest

pytest.importorskip("torch")

import torch

from pydlbench.backends.steps import timed_results
from pydlbench.backends.steps.serving import serve_step
from pydlbench.backends.steps.timed_results import TimedResults
from pydlbench.backends.steps.user_code import load_user_object
from pydlbench.backends.torch.steps.state import KeptState
from pydlbench.backends.torch.steps.user_model import UserTorchModel
from pydlbench.errors import PydlbenchError, UsageError
from pydlbench.records.step import StepPreparation, StepSpec
from pydlbench.records.user_model import UserModelSpec
from pydlbench.steps import agreement
from pydlbench.timing.chunk import ChunkRequest

HERE = Path(__file__).parent


@pytest.fixture
def _restored(monkeypatch):
    """Keep all results, and undo afterwards what planted models change in this process."""
    monkeypatch.setattr(timed_results, "_KEPT_SHARE", 1.0)
    interval, modes = sys.getswitchinterval(), torch._C._len_torch_function_stack()
    for owner, name in (
        (torch.Tensor, "to"),
        (torch.Tensor, "detach"),
        (np, "save"),
        (torch.Tensor, "to_dense"),
        (UserTorchModel, "tensors"),
    ):
        monkeypatch.setattr(owner, name, getattr(owner, name))
    yield
    sys.setswitchinterval(interval)
    torch.nn.modules.module._global_forward_pre_hooks.clear()
    while torch._C._len_torch_function_stack() > modes:
        torch._C._pop_torch_function_stack()


@pytest.fixture
def judged(_restored, backend_of, tmp_path, monkeypatch):
    """Judge a planted model beside the honest one; return the agreement and B's seconds."""

    def prepared(step, _, preparation):
        kernel = serve_step(backend_of("torch"), step, preparation)
        return SimpleNamespace(facts=kernel.facts, release=lambda: None, sample=kernel.sample)

    monkeypatch.setattr(agreement, "prepare_step", prepared)
    session = SimpleNamespace(renew=lambda: None)

    def judge(kind, phase="forward", reference="Honest", ones=False, **own):
        specs = []
        for side, name in (("a", reference), ("b", kind)):
            path = shutil.copy(HERE / "planted_models.py", tmp_path / f"{side}{kind}.py")
            words = {
                "model": f"{path}:build",
                "phase": phase,
                "options": {"kind": name, "ones": ones},
            }
            specs.append(StepSpec(own=UserModelSpec(train=reference != "Honest", **own), **words))
        known = agreement.agree_steps(specs, session, tmp_path)
        seconds = ()
        for index, spec in enumerate(specs):
            timed = str(tmp_path / "timed" / f"{index}-0")
            Path(timed).mkdir(parents=True)
            how = StepPreparation(checks=False, load=str(tmp_path / "A"), timed=timed)
            kernel = serve_step(backend_of("torch"), spec, how)
            seconds = kernel.sample(ChunkRequest(samples=5, untimed=2)).seconds
        return agreement.agree_timed(specs[0], session, tmp_path, known, 1e-3), seconds

    return judge


@pytest.mark.parametrize("phase", ["forward", "training"])
@pytest.mark.parametrize("kind", ["Honest", "InPlace", "CustomFunction"])
def test_an_honest_model_is_accepted(judged, kind, phase):
    found, seconds = judged(kind, phase)
    assert (found.timed > 2, found.refused, found.differs) == (True, (), False)
    assert len(seconds) == 5


@pytest.mark.parametrize("optimizer", ["momentum", "adam-fused", "adamw", "adam-sparse"])
def test_each_sample_begins_with_a_new_optimizer(judged, optimizer):
    """Velocities of earlier samples would change the results of the later ones."""
    found, _ = judged("Table", "training", "Table", optimizer=optimizer)
    assert (found.timed > 2, found.refused) == (True, ())


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
        ("OnAThreadThatWaits", "output 1 is wrong"),
        ("LazyResultOfTorch", "output 1 is wrong"),
        ("Draws", "output 1 is wrong"),
        ("SavesLateByAMode", "output 1 is wrong"),
        ("KeptInAnAttribute", "output 1 is wrong"),
        ("FewerOutputs", "output 1 is missing"),
        ("NoJudge", "result was not kept"),
        ("KeptByPlace", "output 1 is wrong"),
        ("StaleMemory", "output 1 is wrong"),
        ("FillsNan", "output 1 is wrong"),
        ("SwapsItsMethod", "output 1 is wrong"),
        ("SwapsItsClass", "output 1 is wrong"),
        ("ByHooks", "output 1 is wrong"),
        ("InAFinalizer", "output 1 is wrong"),
        ("OneRowForAll", "output 1 is wrong"),
        ("CopiesOnTheHostLate", "output 1 is wrong"),
    ],
)
def test_a_cheat_is_refused(judged, kind, words):
    found, _ = judged(kind)
    (only,) = found.refused
    assert only.startswith("B is not ranked")
    assert words in only


@pytest.mark.parametrize("kind", ["KeptGradients", "NoGradients"])
def test_gradients_that_are_not_those_of_the_step_are_refused(judged, kind):
    found, _ = judged(kind, "training")
    (only,) = found.refused
    assert only.startswith("B is not ranked")


def test_threads_that_are_joined_are_accepted(judged):
    found, _ = judged("OwnThreads")
    assert (found.timed > 2, found.refused, found.differs) == (True, (), False)


@pytest.mark.parametrize(
    ("kind", "reference"),
    [
        ("InAutocast", "Honest"),
        ("WideInHalfPrecision", "Wide"),
        ("NoDropout", "Dropout"),
        ("OldWeights", "Honest"),
        ("LateSparseValues", "Honest"),
        ("OtherImaginaryPart", "OddOutputs"),
        ("FewerInfinities", "OddOutputs"),
    ],
)
def test_a_lower_precision_or_another_mask_is_told(judged, kind, reference):
    found, _ = judged(kind, reference=reference)
    assert found.differs


def test_a_result_that_is_computed_later_is_refused_in_one_line(judged):
    with pytest.raises(UsageError, match=r"generator.*nearest"):
        judged("Yields", reference="Yields")


@pytest.mark.parametrize(
    ("kind", "words"),
    [
        ("ReplacesTheJudge", r"TimedResults\._save"),
        ("OwnJudge", r"TimedResults\._save"),
        ("SavesLate", r"numpy\.save"),
    ],
)
def test_a_model_that_replaces_what_judges_it_has_no_time(judged, monkeypatch, kind, words):
    monkeypatch.setattr(TimedResults, "_save", TimedResults._save)
    monkeypatch.setattr(np, "save", np.save)
    with pytest.raises(PydlbenchError, match=words):
        judged(kind)


def test_replaced_functions_of_tensors_copy_nothing_late(judged, monkeypatch):
    for name in ("to", "detach"):
        monkeypatch.setattr(torch.Tensor, name, getattr(torch.Tensor, name))
    found, _ = judged("CopiesLate")
    assert "output 1 is wrong" in found.refused[0]


def test_a_container_that_computes_is_read_within_the_time(judged):
    found, seconds = judged("LazyMapping")
    assert (found.refused, min(seconds) > 0.02) == ((), True)


def test_an_input_of_equal_values_changes_too(judged):
    found, _ = judged("KeptByPointer", ones=True)
    assert "output 1 is wrong" in found.refused[0]


STATEFUL = (
    *("RunningMean", "GrowingCache", "MovingAverage", "LazyLayer"),
    *("Dropout", "ManyOutputs", "NumpyDraws", "Wide", "StateInCode", "OddOutputs"),
    *("TiedWeights", "LazyBuffer", "DictOfTuples", "BatchNorm", "Weighted", "Scripted"),
    "GatedExperts",
)


@pytest.mark.parametrize("phase", ["forward", "training"])
@pytest.mark.parametrize(
    ("kind", "reference"),
    [
        *((kind, kind) for kind in STATEFUL),
        ("HonestlyRenamed", "RunningMean"),
        ("AverageInPlace", "MovingAverage"),
        ("Vectorised", "Honest"),
        ("Checkpointed", "Honest"),
        pytest.param("Compiled", "Honest", marks=pytest.mark.deep),
        pytest.param("CompiledForLittleOverhead", "Honest", marks=pytest.mark.deep),
    ],
)
def test_a_model_that_keeps_state_draws_or_returns_views_is_accepted(
    judged, kind, reference, phase
):
    found, _ = judged(kind, phase, reference)
    assert (found.timed > 2, found.refused, found.differs) == (True, (), False)


def test_state_in_globals_and_classes_of_the_file_is_restored():
    kind = load_user_object(f"{HERE / 'planted_models.py'}:StateOfTheFile")
    planted_models, model = sys.modules[kind.__module__], kind()
    state = KeptState(model)
    for _ in range(2):
        first = model(torch.ones(2, 16))
        planted_models.added = model.added = 1
        assert torch.equal(first, planted_models.Honest.forward(model, torch.ones(2, 16)))
        assert (model.count, planted_models.total, len(planted_models.entries)) == (1, 1, 2)
        state.restore()
        assert (model.count, planted_models.total) == (0, 0)
        assert [tensor.tolist() for tensor in planted_models.entries] == [[0, 0]]
        assert not hasattr(planted_models, "added")
        assert not hasattr(model, "added")


@pytest.mark.parametrize(
    ("kind", "reference", "words"),
    [
        ("NoRunningMean", "RunningMean", "its buffer"),
        ("NoBatchStatistics", "RunningMean", "its buffer"),
        ("RenamedRunningMean", "RunningMean", "its buffer mean"),
        ("KeptInABuffer", "RunningMean", "is wrong"),
        ("NoGrowingCache", "GrowingCache", "its next output 1"),
    ],
)
def test_a_model_that_leaves_its_state_as_it_was_is_refused(judged, kind, reference, words):
    found, _ = judged(kind, reference=reference)
    (only,) = found.refused
    assert only.startswith("B is not ranked")
    assert words in only


def test_a_replaced_clock_changes_no_time(judged, monkeypatch):
    monkeypatch.setattr(time, "perf_counter", time.perf_counter)
    monkeypatch.setattr(time, "monotonic", time.monotonic)
    found, seconds = judged("ReplacesTheClock")
    assert found.refused == ()
    assert min(seconds) > 0.003


def test_state_that_cannot_be_restored_is_left_alone():
    module = torch.nn.Linear(2, 2)
    with torch.inference_mode():
        module.seen = torch.ones(3)
    module.draw = random.SystemRandom()
    module.view = np.broadcast_to(np.float32(1), (4,))
    module.count = 1
    state = KeptState(module)
    module.count = 2
    state.restore()
    assert module.count == 1
