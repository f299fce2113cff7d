"""A traced step of TensorFlow: its nodes found again in a profile by name."""

from __future__ import annotations

import pytest

from pydlbench.backends.steps.inputs import make_batch, make_weights
from pydlbench.backends.steps.operations import prepare_step
from pydlbench.errors import PrimitiveError, UnsupportedError
from pydlbench.models import build_model
from pydlbench.records.step import StepPreparation, StepSpec
from pydlbench.timing.chunk import Request

NODES = {"conv/Conv2D": "_FusedConv2D", "flat": "Reshape", "fc/MatMul": "_FusedMatMul"}
PROFILE = (("conv/Conv2D:_FusedConv2D", 0.004), ("fc/MatMul:_FusedMatMul", 0.001))


@pytest.fixture(scope="module")
def seconds_of(tensorflow_backend):  # noqa: ARG001 - TensorFlow is imported with it
    from pydlbench.backends.tensorflow import trace

    def found(*events):
        read = [trace.Event(name, float(n), seconds) for n, (name, seconds) in enumerate(events)]
        return trace.node_seconds(read, NODES)

    return found


def test_nodes_are_found_by_name_whatever_their_order(seconds_of):
    others = (("EagerExecute", 0.01), ("args:_Arg", 0.001), ("flat:Reshape", 0.0005))
    assert seconds_of(*PROFILE) == [0.004, 0, 0.001]
    assert seconds_of(*others, *reversed(PROFILE)) == [0.004, 0.0005, 0.001]


@pytest.mark.parametrize(
    ("events", "message"),
    [
        (PROFILE[:1], "node 3 of 3, fc/MatMul:_FusedMatMul, is not in the profile"),
        ((*PROFILE, PROFILE[0]), "node 1 of 3, .*, is in the profile 2 times"),
        ((*PROFILE, ("fc/Relu:Relu", 0.1)), "has fc/Relu:Relu, which is no node of its graph"),
    ],
    ids=["missing", "twice", "extra"],
)
def test_a_profile_of_other_nodes_is_refused(seconds_of, events, message):
    with pytest.raises(PrimitiveError, match=message):
        seconds_of(*events)


@pytest.mark.parametrize("phase", ["forward", "training"])
def test_a_step_of_the_catalogue_is_traced(backend, phase):
    case = StepSpec(model="mnist", batch=2, phase=phase, framework="tensorflow")
    how = StepPreparation(checks=False, trace=True)
    kernel = prepare_step(backend, case.to_dict(), how.to_dict())
    trace = kernel.facts.trace
    assert trace is not None, kernel.facts.untraced
    assert list(trace.sources) == ["profile"]
    seconds = kernel.sample(Request(samples=1, untimed=1, timing="profile")).seconds
    step_s, plain_s, *calls_s = seconds
    assert len(calls_s) == len(trace.calls)
    assert plain_s > 0
    assert 0 < sum(calls_s) <= step_s
    modules = {one.module for one in trace.calls}
    assert modules >= {"conv1", "fc1"} | ({"optimizer"} if phase == "training" else set())


def test_a_step_of_xlas_says_why_it_is_not_traced(tensorflow_backend):  # noqa: ARG001 - likewise
    from pydlbench.backends.tensorflow.step import TensorflowModel

    model = build_model("mnist", 2)
    case = StepSpec(model="mnist", batch=2, framework="tensorflow", mode="xla")
    made = TensorflowModel(model, make_weights(model), case, make_batch(model))
    with pytest.raises(UnsupportedError, match="--mode graph"):
        made.tracer(lambda: None)
