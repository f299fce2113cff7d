"""The calls of compiled steps: kernels by name, and operators of the eager step, too."""

from types import SimpleNamespace

import msgspec
import pytest

torch = pytest.importorskip("torch")

from pydlbench.analysis.mapped import map_calls  # noqa: E402 - needs torch
from pydlbench.backends.steps.requests import request_step  # noqa: E402 - needs torch
from pydlbench.backends.torch.steps.compiled_trace import (  # noqa: E402 - needs torch
    _calls_of,
    _CompiledCall,
    _of_eager_step,
    _of_no_module,
)
from pydlbench.backends.torch.steps.recording import by_module, record  # noqa: E402 - needs torch
from pydlbench.records.step import StepPreparation, StepSpec  # noqa: E402 - needs torch
from pydlbench.records.user_model import UserModelSpec  # noqa: E402 - needs torch
from pydlbench.timing.chunk import ChunkRequest  # noqa: E402 - needs torch

KERNEL = "graph_0_cpp_fused_relu_0"


@pytest.mark.deep
@pytest.mark.filterwarnings("default")  # of the compiler's
def test_a_compiled_step_is_traced_and_is_not_compiled_anew_for_it(backend):
    case = StepSpec(model="mnist", batch=2, mode="compiled")
    kernel = request_step(backend, case.to_dict(), StepPreparation(checks=False).to_dict())
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
    assert all(call.operator.startswith(call.module.partition("...")[0]) for call in kernels)
    assert "aten.relu" not in operators.values()
    recorded = {call.operator for call in trace.operators.calls}
    assert "aten.convolution" in recorded
    assert "aten.relu" not in recorded
    (traced_s, _, *calls_s) = kernel.sample(
        ChunkRequest(samples=1, untimed=1, timing="profile")
    ).seconds
    assert len(calls_s) == len(trace.calls)
    assert 0 < sum(calls_s) <= traced_s


@pytest.mark.deep
@pytest.mark.filterwarnings("default")  # of the compiler's
def test_a_step_whose_code_compiles_it_is_traced_as_it_was_compiled(backend, tmp_path):
    file = tmp_path / "compiles.py"
    file.write_text(
        "import torch\n"
        "def build():\n"
        "    model = torch.nn.Sequential(torch.nn.Linear(8, 8), torch.nn.ReLU())\n"
        "    return torch.compile(model), torch.randn(4, 8)\n",
        encoding="utf-8",
    )
    spec = StepSpec(model=f"{file}:build", own=UserModelSpec())
    kernel = request_step(backend, spec.to_dict(), StepPreparation(checks=False).to_dict())
    trace = kernel.trace()
    assert trace.compiled
    operators = [call.operator for call in trace.calls]
    assert [name for name in operators if name.startswith("cpp_fused")]
    assert "aten.relu" not in operators


def event(name, begin_ns, length_ns, shapes=(), thread=1, numbers=()):
    return SimpleNamespace(
        name=lambda: name,
        start_ns=lambda: begin_ns,
        duration_ns=lambda: length_ns,
        start_thread_id=lambda: thread,
        shapes=lambda: [list(shape) for shape in shapes],
        concrete_inputs=lambda: list(numbers),
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


def test_kernels_of_the_users_own_have_any_name():
    events = (
        event("## Call CompiledFxGraph abc ##", 0, 100),
        event("my_kernel_0", 10, 20),
        event("CompiledFunction", 200, 100),
    )
    (call,) = _calls_of(events, every_thread=True)
    assert call.name == "my_kernel_0"


#: Of a convolution: stride, padding, dilation, transposed, output padding, groups.
NUMBERS = ((1, 1), (0, 0), (1, 1), False, (0, 0), 1)


def test_a_convolution_has_the_numbers_that_are_no_tensors():
    numbers = [None, None, None, [1, 1], [0, 0], [1, 1], False, [0, 0], 1]
    backward = [None, None, None, [4], *numbers[3:], [True, True, False]]
    events = [
        event("aten::convolution", 0, 1, numbers=numbers),
        event("aten::convolution_backward", 2, 1, numbers=backward),
    ]
    first, second = _calls_of(events, every_thread=True)
    assert first.numbers == NUMBERS
    assert second.numbers == (*NUMBERS, (True, True, False))


def recorded(*layers, images=None, backward=False):
    module = torch.nn.Sequential(*layers)

    def step():
        with torch.set_grad_enabled(backward):
            result = module(torch.ones(2, 8) if images is None else images)
        if backward:
            result.sum().backward()
        return [result]

    names = {each: name for name, each in module.named_parameters()} if backward else {}
    return record(step, naming=by_module(module), parameters=names)


def linear(shapes=((8,), (2, 8), (8, 8)), name="aten::addmm", direction="forward"):
    return _CompiledCall(name, direction, shapes)


def modules(calls, recording):
    known = _of_eager_step(calls, recording)
    return [
        known[place].now.module if place in known else _of_no_module(call).module
        for place, call in enumerate(calls)
    ]


@pytest.mark.parametrize(
    ("calls", "names"),
    [
        ([linear(), linear()], ["0", "2"]),
        # The result is written to a tensor that is given.
        ([linear((*linear().shapes, (2, 8)))] * 2, ["0", "2"]),
        # Of as many calls as the eager step does not make nobody knows which is which.
        ([linear()], ["aten.addmm"]),
        ([linear()] * 3, ["aten.addmm"] * 3),
        ([linear(direction="backward")] * 2, ["aten.addmm"] * 2),
        ([linear(((8,), (2, 8), (8, 9)))] * 2, ["aten.addmm"] * 2),
        ([linear((), "graph_3_cpp_fused_relu_0")], ["cpp_fused_relu_0"]),
        # Its bias is added in a kernel.
        ([linear(linear().shapes[1:], "aten::mm")] * 2, ["0", "2"]),
        ([linear(), linear(linear().shapes[1:], "aten::mm")], ["0", "2"]),
    ],
)
def test_an_operator_is_of_the_module_whose_call_is_alike(calls, names):
    recording = recorded(torch.nn.Linear(8, 8), torch.nn.ReLU(), torch.nn.Linear(8, 8))
    assert modules(calls, recording) == names


def test_a_convolution_without_its_bias_has_no_layer_for_it():
    images = torch.ones(2, 3, 8, 8, requires_grad=True)
    recording = recorded(torch.nn.Conv2d(3, 4, 3), images=images, backward=True)
    forward = _CompiledCall("aten::convolution", "forward", ((2, 3, 8, 8), (4, 3, 3, 3)), NUMBERS)
    shapes = ((2, 4, 6, 6), (2, 3, 8, 8), (4, 3, 3, 3))
    numbers = (*NUMBERS, (True, True, False))
    backward = _CompiledCall("aten::convolution_backward", "backward", shapes, numbers)
    known = _of_eager_step([forward, backward], recording)
    calls = recording.facts(2).calls
    for place, passes in enumerate([{"forward"}, {"backward-data", "backward-weights"}]):
        now = known[place].now
        assert now.module == "0"
        (was,) = (call for call in calls if call.signature == known[place].was.signature)
        changed = msgspec.structs.replace(was, signature=now.signature)
        ((mapped),) = map_calls([changed], "training", "fp32", "cpu", 1 << 20).values()
        assert {term.hot.pass_ for term in mapped.terms} == passes
        assert {term.hot.layer.op for term in mapped.terms} == {"conv"}
        ((mapped),) = map_calls([was], "training", "fp32", "cpu", 1 << 20).values()
        assert "bias" in {term.hot.layer.op for term in mapped.terms}


@pytest.mark.parametrize("biases", [(True, False), (False, False)])
def test_convolutions_with_and_without_bias_of_the_same_shapes_are_told_apart(biases):
    layers = [torch.nn.Conv1d(4, 4, 1), torch.nn.Conv1d(4, 4, 1, bias=False)]
    recording = recorded(*layers, images=torch.ones(2, 4, 8))
    shapes = ((2, 4, 8), (4, 4, 1))
    numbers = ((1,), (0,), (1,), False, (0,), 1)
    calls = [
        _CompiledCall("aten::convolution", "forward", (*shapes, *[(4,)] * bias), numbers)
        for bias in biases
    ]
    assert modules(calls, recording) == ["0", "1"]
    first = _of_eager_step(calls, recording)[0]
    assert (first.now == first.was) is biases[0]
    assert first.was.bytes - first.now.bytes == (0 if biases[0] else 16)


def test_products_whose_operands_lie_otherwise_are_not_told_apart():
    # The gradients of a square layer's data and weights have the same shapes.
    recording = recorded(
        torch.nn.Linear(8, 8, bias=False),
        torch.nn.ReLU(),
        images=torch.ones(8, 8, requires_grad=True),
        backward=True,
    )
    calls = [_CompiledCall("aten::mm", "backward", ((8, 8), (8, 8)))] * 2
    assert modules(calls, recording) == ["aten.mm"] * 2


def test_convolutions_of_the_same_shapes_are_told_apart_by_their_numbers():
    layers = [torch.nn.Conv1d(4, 4, 3, padding=dilation, dilation=dilation) for dilation in (1, 2)]
    recording = recorded(*layers, images=torch.ones(2, 4, 8))
    calls = [
        _CompiledCall(
            "aten::convolution",
            "forward",
            ((2, 4, 8), (4, 4, 3), (4,)),
            ((1,), (dilation,), (dilation,), False, (0,), 1),
        )
        for dilation in (2, 1)
    ]
    assert modules(calls, recording) == ["1", "0"]


def test_tensors_in_lists_have_no_shapes_in_a_profile():
    recording = record(
        lambda: [torch.cat([torch.ones(2, 8), torch.ones(2, 8)])],
        naming=by_module(torch.nn.Identity()),
        parameters={},
    )
    (place,) = _of_eager_step([_CompiledCall("aten::cat", "forward")], recording)
    assert place == 0


def test_long_names_of_kernels_keep_their_number():
    name = f"triton_poi_fused_{'add_' * 20}17"
    call = _of_no_module(_CompiledCall(name, "forward"))
    assert call.operator == name
    assert len(call.module) == 44
    assert call.module.startswith("triton_poi_fused_add_")
    assert call.module.endswith("...17")
