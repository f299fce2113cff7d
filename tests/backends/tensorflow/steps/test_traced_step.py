"""A traced step of TensorFlow: its nodes found again in a profile by name."""

from __future__ import annotations

import pytest

from pydlbench.analysis.breakdown_run import FUSED
from pydlbench.backends.steps.inputs import make_batch, make_weights
from pydlbench.backends.steps.requests import request_step
from pydlbench.backends.steps.serving import model_of
from pydlbench.errors import PrimitiveError, UnsupportedError
from pydlbench.models import build_model
from pydlbench.records.step import StepPreparation, StepSpec
from pydlbench.records.user_model import UserModelSpec
from pydlbench.timing.chunk import ChunkRequest

NODES = {"conv/Conv2D": "_FusedConv2D", "flat": "Reshape", "fc/MatMul": "_FusedMatMul"}
PROFILE = (("conv/Conv2D:_FusedConv2D", 0.004), ("fc/MatMul:_FusedMatMul", 0.001))


@pytest.fixture
def profiles(tensorflow_backend, monkeypatch):  # noqa: ARG001 - TensorFlow is imported with it
    """Return what takes a step's profiles, of which each has the given events."""
    from pydlbench.backends.tensorflow.steps import trace

    def made(*given, nodes=NODES, loops=False):
        following = iter(given)

        def recorded(_call, _calls):
            events = [
                trace.TensorFlowEvent(name, 0.0, seconds) for name, seconds in next(following)
            ]
            return events, [1.0]

        monkeypatch.setattr(trace, "_recorded", recorded)
        return trace.StepProfiles(None, nodes, loops=loops)

    return made


def test_nodes_are_found_by_name_whatever_their_order(profiles):
    others = (("EagerExecute", 0.01), ("args:_Arg", 0.001), ("flat:Reshape", 0.0005))
    assert profiles(PROFILE).take().calls_s == [0.004, 0, 0.001]
    assert profiles((*others, *reversed(PROFILE))).take().calls_s == [0.004, 0.0005, 0.001]


def test_a_profile_that_has_lost_an_event_is_taken_anew(profiles):
    assert profiles(PROFILE[:1], PROFILE[1:], PROFILE).take().calls_s == [0.004, 0, 0.001]


def test_a_node_that_is_not_recorded_any_more_takes_no_time(profiles):
    step = profiles(PROFILE, *[PROFILE[:1]] * 4)
    assert [step.take().calls_s for _ in range(3)] == [[0.004, 0, 0.001], *[[0.004, 0, 0]] * 2]


def test_a_few_nodes_that_are_never_recorded_count_as_time_between_calls(profiles):
    nodes = {f"n{number}": "Mul" for number in range(40)}
    events = [(f"{name}:Mul", 0.5) for name in nodes]
    assert profiles(*[events[2:]] * 3, nodes=nodes).take().calls_s == [0, 0] + 38 * [0.5]
    with pytest.raises(PrimitiveError, match="node 1 of 40"):
        profiles(*[events[3:]] * 3, nodes=nodes).take()


def test_runs_of_a_node_in_a_loop_are_added_up(profiles):
    loop = (PROFILE[0], PROFILE[0], ("loop/Enter:Enter", 1.0))
    assert profiles(*[loop] * 3, loops=True).take().calls_s == [0.008, 0, 0]


@pytest.mark.parametrize(
    ("events", "message"),
    [
        (PROFILE[:1], "node 3 of 3, fc/MatMul:_FusedMatMul"),
        ((*PROFILE, PROFILE[0]), "node 1 of 3, conv/Conv2D:_FusedConv2D"),
        ((*PROFILE, ("fc/Relu:Relu", 0.1)), "fc/Relu:Relu"),
    ],
    ids=["missing", "twice", "extra"],
)
def test_a_profile_of_other_nodes_is_refused(profiles, events, message):
    with pytest.raises(PrimitiveError, match=message):
        profiles(*[events] * 3).take()


@pytest.mark.parametrize("phase", ["forward", "training"])
def test_a_step_of_the_catalogue_is_traced(backend, phase):
    case = StepSpec(model="mnist", batch=2, phase=phase, framework="tensorflow")
    how = StepPreparation(checks=False)
    kernel = request_step(backend, case.to_dict(), how.to_dict())
    trace = kernel.trace()
    assert list(trace.sources) == ["profile"]
    seconds = kernel.sample(ChunkRequest(samples=1, untimed=1, timing="profile")).seconds
    step_s, plain_s, *calls_s = seconds
    assert len(calls_s) == len(trace.calls)
    assert plain_s > 0
    assert 0 < sum(calls_s) <= step_s
    modules = {one.module for one in trace.calls}
    assert modules >= {"conv1", "fc1"} | ({"optimizer"} if phase == "training" else set())


def test_a_step_of_xlas_says_why_it_is_not_traced(tensorflow_backend):  # noqa: ARG001 - likewise
    from pydlbench.backends.tensorflow.steps.step import TensorflowModel

    model = build_model("mnist", 2)
    case = StepSpec(model="mnist", batch=2, framework="tensorflow", mode="xla")
    made = TensorflowModel(model, make_weights(model), case, make_batch(model))
    with pytest.raises(UnsupportedError, match="--mode graph"):
        made.tracer(lambda: None)


KERAS = """
import keras
import numpy as np

def build():
    net = keras.Sequential([
        keras.Input([16, 16, 3]),
        keras.layers.Conv2D(8, 3, activation="relu", name="conv"),
        keras.layers.BatchNormalization(name="norm"),
        keras.layers.Flatten(),
        keras.layers.Dense(10, name="head"),
    ])
    return net, np.ones([4, 16, 16, 3], np.float32)
"""


def test_a_keras_model_is_traced_after_tensorflow_has_stopped_recording_cheap_nodes(
    backend, tmp_path
):
    file = tmp_path / "net.py"
    file.write_text(KERAS)
    case = StepSpec(model=f"{file}:build", framework="tensorflow", own=UserModelSpec())
    how = StepPreparation(checks=False)
    kernel = request_step(backend, case.to_dict(), how.to_dict())
    profile = ChunkRequest(samples=1, timing="profile")
    names = [one.operator for one in kernel.trace().calls]

    def seconds():
        return dict(zip(names, kernel.sample(profile).seconds[2:], strict=True))

    assert seconds()["ReadVariableOp"] > 0
    kernel.sample(ChunkRequest(samples=1, untimed=1000))
    later = seconds()
    assert later["ReadVariableOp"] == 0
    assert any(taken > 0 for name, taken in later.items() if "Conv2D" in name)


def test_a_step_without_fused_operators_has_the_same_output(backend):
    from pydlbench.backends.tensorflow.settings import tf

    step = StepSpec(model="mnist", batch=2, framework="tensorflow", mode="graph")
    fused, outputs = [], []
    try:
        for other in (False, True):
            with model_of(backend, step) as model:
                if other:
                    model.change_fusion()
                outputs.append(model.output())
                operators = [call.operator for call in model.record()]
            fused.append(sum(map(bool, map(FUSED.match, operators))))
    finally:
        tf.config.optimizer.set_experimental_options({"remapping": True})
    assert fused == [4, 0]
    assert outputs[1] == pytest.approx(outputs[0], abs=1e-4)
