"""What is recorded of a step: the calls that it makes, whose they are, and what they free."""

from collections import Counter

import pytest

torch = pytest.importorskip("torch")

from torch.profiler import ProfilerActivity, profile  # noqa: E402 - not installed everywhere

from pydlbench.backends.steps import requests  # noqa: E402 - below importorskip
from pydlbench.backends.steps.inputs import make_batch, make_weights  # noqa: E402 - below importorskip
from pydlbench.backends.torch.backend import create  # noqa: E402 - below importorskip
from pydlbench.backends.torch.steps.recording import DispatchRecorder  # noqa: E402 - below importorskip
from pydlbench.backends.torch.steps.step import TorchModel  # noqa: E402 - below importorskip
from pydlbench.calls.seen.aten import meaning_of  # noqa: E402 - below importorskip
from pydlbench.models import build_model  # noqa: E402 - below importorskip
from pydlbench.records.step import StepSpec  # noqa: E402 - below importorskip


def of_model(name, batch, phase="training"):
    model = build_model(name, batch)
    case = StepSpec(model=name, batch=batch, phase=phase)
    return TorchModel(model, make_weights(model), case, make_batch(model)).record()


def packets(recording):
    return Counter(str(one.function.overloadpacket) for one in recording.calls)


def test_calls_have_the_direction_and_the_module_that_they_are_of(odd):
    calls = odd().record().calls
    by_name = {(str(one.function.overloadpacket), one.direction): one.names for one in calls}
    assert by_name["aten.native_batch_norm", "forward"] == ("norm",)
    assert by_name["aten.native_batch_norm_backward", "backward"] == ("norm",)
    assert by_name["aten.relu_", "forward"] == ("block.1",)
    assert by_name["aten.threshold_backward", "backward"] == ("block.1",)
    assert by_name["aten.embedding_dense_backward", "backward"] == ("table",)
    assert by_name["aten._log_softmax", "loss"] == ("loss",)
    convolutions = [one.names for one in calls if "convolution_backward" in one.signature]
    assert convolutions == [("block.0",), ("conv",)]
    order = [one.direction for one in calls]
    assert [one for i, one in enumerate(order) if order[i - 1] != one] == [
        "forward",
        "loss",
        "backward",
        "optimizer",
    ]
    updates = [one.names for one in calls if one.direction == "optimizer"]
    assert len(updates) == 3 * 9  # momentum and weights
    assert set(updates) == {("conv",), ("norm",), ("block.0",), ("first",), ("table",)}


@pytest.mark.parametrize("foreach", [False, True])
def test_temporaries_of_an_optimizer_belong_to_the_parameter_that_they_update(foreach):
    first, second = torch.nn.Linear(3, 4), torch.nn.Linear(4, 2)
    parameters = {first.weight: "first", second.weight: "second"}
    optimizer = torch.optim.AdamW(list(parameters), foreach=foreach)
    for weight in parameters:
        weight.grad = torch.ones_like(weight)
    optimizer.step()  # makes its states
    recorder = DispatchRecorder(torch.device("cpu"), parameters)
    recorder.updates(optimizer)
    with recorder:
        optimizer.step()
    found = {
        str(call.function.overloadpacket): call.names
        for call in recorder.finish(()).calls
        if any(name in str(call.function) for name in ("sqrt", "addcdiv", "div"))
    }
    assert len(found) >= 3
    both = {("first", "second")} if foreach else {("first",), ("second",)}
    assert set(found.values()) <= both


@pytest.fixture
def _two_threads():
    """With one thread PyTorch convolves by a kernel that calls others inside."""
    threads = torch.get_num_threads()
    torch.set_num_threads(2)
    yield
    torch.set_num_threads(threads)


@pytest.mark.usefixtures("_two_threads")
def test_a_sum_of_gradients_is_made_in_place_as_without_a_recorder(odd):
    made = odd()
    recording = made.record()
    with profile(activities=[ProfilerActivity.CPU]) as profiler:
        made.step()
    real = Counter({one.key.replace("::", "."): one.count for one in profiler.key_averages()})
    found = packets(recording)
    for name in ("aten.add", "aten.add_", "aten.convolution_backward", "aten.mm", "aten.detach"):
        assert found[name] == real[name], name
    sums = {one.names: str(one.function) for one in recording.calls if one.sums}
    # One gradient of the shared weight is a view; the others, one of them of what has been written
    # into outside any module, are not.
    assert sums == {
        ("first",): "aten.add.Tensor",
        ("norm",): "aten.add_.Tensor",
        (): "aten.add_.Tensor",
    }


def test_all_that_the_step_makes_is_freed_but_gradients(odd):
    made = odd()
    recording = made.record()
    freed = {recording.places[one][0] for call in recording.calls for one in call.freed}
    left = set(recording.sizes) - freed
    gradients = {one.grad.untyped_storage()._cdata for one in made.parameters}
    assert left == gradients
    assert len(left) == len(made.parameters) == 9


def test_equal_calls_are_one_with_their_number(odd):
    recording = odd().record()
    distinct = recording.distinct()
    assert sum(one.count for one in distinct) == sum(not one.implied for one in recording.calls)
    keys = [(one.signature, one.direction) for one in distinct]
    assert len(keys) == len(set(keys)) < len(recording.calls)
    momentum = [
        one for one in distinct if one.operator == "aten.mul_" and "[8](1)" in one.signature
    ]
    assert [one.count for one in momentum] == [5]  # biases and the normalisation's weights


def test_a_product_with_the_gradient_of_a_sum_is_that_of_its_data_or_of_its_weights():
    layers = torch.nn.Linear(3, 4), torch.nn.Linear(4, 5)
    parameters = {one: "" for layer in layers for one in layer.parameters()}
    recorder = DispatchRecorder("cpu", parameters)
    images = torch.ones(2, 3)
    with recorder:
        layers[1](layers[0](images)).sum().backward()
    distinct = recorder.finish(None).distinct()
    products = [meaning_of(one) for one in distinct if one.operator == "aten.mm"]
    passes = [(one.layers[0].layer.problem, one.layers[0].pass_) for one in products]
    assert passes == [
        ("2x4:4x5", "backward-data"),
        ("2x4:4x5", "backward-weights"),
        ("2x3:3x4", "backward-weights"),
    ]


def test_a_catalogue_model_is_recorded_under_the_names_of_its_nodes():
    calls = of_model("mnist", 2).recording.calls
    nodes = {one.name for one in build_model("mnist", 2)}
    named = {name for one in calls if one.direction == "forward" for name in one.names}
    assert named == nodes
    assert all(one.names for one in calls if one.direction == "forward")
    back = [one.names for one in calls if "max_pool2d_with_indices_backward" in one.signature]
    assert back == [("pool2",), ("pool1",)]


@pytest.mark.parametrize("phase", ["forward", "forward-backward", "training"])
def test_without_running_anything_the_same_calls_are_listed(phase):
    case = StepSpec(model="mnist", batch=3, phase=phase)
    facts = requests.request_call_list(create("cpu"), case.to_dict()).facts
    recording = of_model("mnist", 3, phase).recording
    assert facts.calls == recording.distinct()
