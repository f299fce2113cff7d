"""A traced step of onnxruntime: its nodes found again in a profile by number."""

from __future__ import annotations

import pytest

pytest.importorskip("onnx")
pytest.importorskip("onnxruntime")

import onnx_network

from pydlbench.backends.onnxruntime.backend import create
from pydlbench.backends.onnxruntime.recording import node_seconds
from pydlbench.backends.steps.requests import request_step
from pydlbench.errors import PrimitiveError
from pydlbench.records.step import StepPreparation, StepSpec
from pydlbench.records.trace import ProgramCall
from pydlbench.timing.chunk import ChunkRequest

NODES = {
    number: ProgramCall(operator=name, module=name.lower(), direction="forward", signature="")
    for number, name in enumerate(("Conv", "Relu"))
}


def profile(*runs):
    """Return events of runs, each with the numbers of its nodes, which take 100 us."""
    events = []
    for place, numbers in enumerate(runs):
        begin = 1000 * place
        for n, number in enumerate(numbers):
            name = f"pydlbench.{number}_kernel_time"
            events.append({"name": name, "ts": begin + 100 * n, "dur": 100 + place})
        events.append({"name": "model_run", "ts": begin, "dur": 900})
        events.append({"name": "SequentialExecutor::Execute", "ts": begin, "dur": 850})
    return events


def test_the_last_run_counts():
    assert node_seconds(profile((0, 1), (1, 0)), NODES) == [101e-6, 101e-6]


@pytest.mark.parametrize(
    ("numbers", "message"),
    [
        ((0,), "node 1, Relu of relu, is in the profile 0 times"),
        ((0, 1, 1), "node 1, Relu of relu, is in the profile 2 times"),
        ((0, 1, 7), "the profile has node 7"),
    ],
    ids=["missing", "twice", "extra"],
)
def test_a_profile_of_other_nodes_is_refused(numbers, message):
    with pytest.raises(PrimitiveError, match=message):
        node_seconds(profile((0, 1), numbers), NODES)


def test_a_step_is_traced(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    onnx_network.save(onnx_network.network(), tmp_path / "units.onnx")
    case = StepSpec(model="units.onnx", framework="onnxruntime")
    how = StepPreparation(checks=False)
    kernel = request_step(create("cpu"), case.to_dict(), how.to_dict())
    trace = kernel.trace()
    seconds = kernel.sample(ChunkRequest(samples=1, timing="profile")).seconds
    step_s, plain_s, *calls_s = seconds
    assert len(calls_s) == len(trace.calls) > 1
    assert plain_s > 0
    assert 0 < sum(calls_s) <= step_s
    assert len({one.module for one in trace.calls}) == len(trace.calls)
