"""The calls of compiled steps: kernels by name, and operators of the eager step, too."""

from types import SimpleNamespace

import pytest

torch = pytest.importorskip("torch")

from pydlbench.backends.steps.operations import prepare_step  # noqa: E402 - needs torch
from pydlbench.backends.torch import compiled_trace  # noqa: E402 - needs torch
from pydlbench.backends.torch.compiled_trace import _calls_of, _in_place  # noqa: E402 - needs torch
from pydlbench.backends.torch.recording import by_module, record  # noqa: E402 - needs torch
from pydlbench.records.step import StepPreparation, StepSpec  # noqa: E402 - needs torch
from pydlbench.timing.chunk import Request  # noqa: E402 - needs torch

KERNEL = "graph_0_cpp_fused_relu_0"


@pytest.mark.filterwarnings("default")  # of the compiler's
def test_a_compiled_step_is_traced_and_is_not_compiled_anew_for_it(backend):
    case = StepSpec(model="mnist", batch=2, mode="compiled")
    kernel = prepare_step(backend, case.to_dict(), StepPreparation(checks=False).to_dict())
    torch._dynamo.config.error_on_recompile = True
    try:
        trace = kernel.trace()
    finally:
        torch._dynamo.config.error_on_recompile = False
    assert trace.compiled
    assert list(trace.sources) == ["profile"]
    operators = {call.module: call.operator for call in trace.calls}
    assert operators["conv1"] == operators["conv2"] == "aten.convolution"
    kernels = [call for call in trace.calls if call.operator.startswith("cpp_fused")]
    assert kernels
    assert all(call.module == call.operator for call in kernels)
    assert "aten.relu" not in operators.values()
    recorded = {call.operator for call in trace.operators.calls}
    assert "aten.convolution" in recorded
    assert "aten.relu" not in recorded
    (traced_s, _, *calls_s) = kernel.sample(Request(samples=1, untimed=1, timing="profile")).seconds
    assert len(calls_s) == len(trace.calls)
    assert 0 < sum(calls_s) <= traced_s


def event(name, begin_ns, length_ns, shapes=(), thread=1):
    return SimpleNamespace(
        name=lambda: name,
        start_ns=lambda: begin_ns,
        duration_ns=lambda: length_ns,
        start_thread_id=lambda: thread,
        shapes=lambda: [list(shape) for shape in shapes],
    )


#: A step on a GPU, whose backward pass has a thread of its own.
EVENTS = (
    event("Torch-Compiled Region: 0/0", 0, 100),
    event(KERNEL, 10, 20),
    event("aten::mm", 40, 30, [(2, 3), (), (3, 4)]),
    event("aten::empty", 45, 5),
    event("autograd::engine::evaluate_function: CompiledFunctionBackward", 200, 100, thread=2),
    event("triton_poi_fused_relu_0", 210, 20, thread=2),
    event("Optimizer.step#SGD.step", 400, 100),
    event("aten::add_", 410, 20, [(3, 4)]),
)


@pytest.mark.parametrize("every_thread", [True, False])
def test_calls_are_outermost_and_have_the_direction_of_what_is_around_them(every_thread):
    calls = list(_calls_of(EVENTS, every_thread=every_thread))
    known = [(call.name, call.direction) for call in calls]
    backward = [("triton_poi_fused_relu_0", "backward")] * every_thread
    first = [(KERNEL, "forward"), ("aten::mm", "forward")]
    assert known == [*first, *backward, ("aten::add", "optimizer")]
    assert calls[1].shapes == ((2, 3), (3, 4))


def recorded(*layers):
    module = torch.nn.Sequential(*layers)

    def step():
        with torch.no_grad():
            return [module(torch.ones(2, 8))]

    return record(step, naming=by_module(module), parameters={})


def linear(shapes=((8,), (2, 8), (8, 8)), name="aten::addmm", direction="forward"):
    return compiled_trace._Call(name, direction, shapes)


@pytest.mark.parametrize(
    ("calls", "modules"),
    [
        ([linear(), linear()], ["0", "2"]),
        # The result is written to a tensor that is given.
        ([linear((*linear().shapes, (2, 8)))] * 2, ["0", "2"]),
        # Of as many calls as the eager step does not make nobody knows which is which.
        ([linear()], ["aten.addmm"]),
        ([linear()] * 3, ["aten.addmm"] * 3),
        ([linear(direction="backward")] * 2, ["aten.addmm"] * 2),
        ([linear(((8,), (2, 8), (8, 9)))] * 2, ["aten.addmm"] * 2),
        ([linear((), KERNEL)], ["cpp_fused_relu_0"]),
    ],
)
def test_an_operator_is_of_the_module_whose_call_is_alike(calls, modules):
    recording = recorded(torch.nn.Linear(8, 8), torch.nn.ReLU(), torch.nn.Linear(8, 8))
    assert [call.module for call in _in_place(calls, recording)] == modules


def test_long_names_of_kernels_keep_their_number():
    name = f"triton_poi_fused_{'add_' * 20}17"
    (call,) = _in_place([linear((), name)], recorded(torch.nn.ReLU()))
    assert len(call.operator) == 44
    assert call.operator.startswith("triton_poi_fused_add_")
    assert call.operator.endswith("...17")
    assert name in call.signature
