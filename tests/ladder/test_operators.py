"""Which operators a step has: subgraphs of its graph, each distinct one once; kinds of calls."""

import json
from collections import Counter
from types import SimpleNamespace

import msgspec
import pytest

from pydlbench.ladder.operators import (
    cut,
    kind_of,
    listed,
    requests_of,
    singles,
    subgraphs,
    with_gradient,
)
from pydlbench.models import build_model, model_names
from pydlbench.models.builder import Builder
from pydlbench.models.graph import INPUT
from pydlbench.models.work import work
from pydlbench.records.operator import RecordedCall
from pydlbench.records.step import StepSpec
from pydlbench.steps.operations import OperatorsFacts

MODES = (("torch", "compiled"), ("tensorflow", "graph"), ("tensorflow", "xla"))


def operators(name, phase="forward", framework="tensorflow", mode="xla", **how):
    return cut(StepSpec(model=name, batch=2, phase=phase, framework=framework, mode=mode, **how))


def called(found, operator):
    return [one for one in found if one.operator == operator]


@pytest.mark.product
@pytest.mark.parametrize(("framework", "mode"), MODES)
@pytest.mark.parametrize("name", model_names())
def test_every_group_of_nodes_is_in_one_operator(name, framework, mode):
    found = operators(name, "training", framework, mode)
    groups = subgraphs(build_model(name, 2), "training", mode)
    assert [node for group in groups for node in group] == [
        node.name for node in build_model(name, 2)
    ]
    own = [one for one in found if kind_of(one) in ("layer", "pointwise")]
    names = Counter(name for one in own for name in one.names)
    assert sum(names.values()) == len(groups) == sum(one.count for one in own)
    assert set(names.values()) == {1}
    assert len({one.signature for one in found}) == len(found)


def test_equal_nodes_are_one_operator():
    found = operators("resnet152", mode="graph")
    convolutions = [one for one in found if one.operator.startswith("conv")]
    assert sum(one.count for one in convolutions) == 155  # 151 and four shortcuts
    assert len(convolutions) < 155 / 5
    assert all(len(one.names) == one.count for one in convolutions)


def test_the_first_convolution_has_no_input_gradient():
    model = build_model("vgg11", 2)
    assert INPUT not in with_gradient(model)
    found = operators("vgg11", "training")
    first, second = [one for one in found if one.operator.startswith("conv")][:2]
    assert "differentiated" not in json.loads(first.signature)
    assert json.loads(second.signature)["differentiated"] == [0]


def test_forward_has_nodes_only_and_training_loss_and_optimizer_too():
    kinds = {
        phase: {kind_of(one) for one in operators("resnet18", phase, mode="graph")}
        for phase in ("forward", "forward-backward", "training")
    }
    assert kinds["forward"] == {"layer", "pointwise"}
    assert kinds["training"] == {"layer", "pointwise", "gradient sum", "loss", "optimizer"}
    assert kinds["forward-backward"] == kinds["training"] - {"optimizer"}


@pytest.mark.parametrize("name", ["resnet50", "densenet121", "inception-v3", "nasnet-mobile"])
def test_one_by_one_there_are_as_many_gradient_sums_as_the_composition_counts(name, monkeypatch):
    alone = [(node.name,) for node in build_model(name, 2)]
    monkeypatch.setattr("pydlbench.ladder.operators.subgraphs", lambda *_: alone)
    sums = called(operators(name, "training", mode="graph"), "gradient sum")
    layers = [one.layer.name or "" for one in work(build_model(name, 2), "training")]
    expected = [one.removeprefix(f"{name}/") for one in layers if one.endswith("/gradient-sum")]
    assert sum(one.count for one in sums) == len(expected)
    assert {name for one in sums for name in one.names} == set(expected)


def fork():
    """A map that two layers and an addition read; a compiler joins the addition to one of them."""
    made = Builder("fork", 1, (4, 8, 8))
    made.conv("stem", 4, 3, 1, 1)
    made.conv("left", 4, 3, 1, 1, after="stem")
    made.conv("right", 4, 3, 1, 1, after="stem")
    made.add("both", "right", "stem")
    made.add("all", "both", "left")
    return made.model(title="a fork", source="this test")


def test_gradients_that_meet_inside_a_group_are_summed_there():
    counted = {}
    for mode in ("graph", "xla"):
        case = StepSpec(model="fork", phase="training", framework="tensorflow", mode=mode)
        kinds = [one.kind for one in requests_of(fork(), case)]
        counted[mode] = kinds.count("gradient sum")
    # Three readers one by one; of the groups, one has two of them.
    assert counted == {"graph": 2, "xla": 1}


def test_what_comes_from_the_host_is_an_operator_where_it_does():
    assert kind_of(operators("mnist", feed="host")[0]) == "feed"
    assert all(kind_of(one) != "feed" for one in operators("mnist"))


def test_tensorflow_joins_a_relu_with_what_it_alone_reads():
    model = build_model("resnet18", 2)
    found = subgraphs(model, "training", "graph")
    joined = [one for one in found if len(one) > 1]
    assert all(len(one) == 2 for one in joined)
    assert all(model[last].op == "relu" for _, last in joined)
    assert all(model[last].inputs == (first,) for first, last in joined)
    assert len(joined) == sum(node.op == "relu" for node in model)
    alone = singles(StepSpec(model="resnet18", batch=2, framework="tensorflow", mode="graph"))
    assert {one.operator for one in alone} == {"conv", "batchnorm", "relu", "add"}


def test_tensorflow_joins_a_convolution_with_its_normalisation_in_inference_only():
    kinds = {
        phase: {one.operator for one in operators("resnet18", phase, mode="graph")}
        for phase in ("forward", "training")
    }
    # Behind some of them an addition follows.
    assert {"conv+batchnorm+relu", "conv+batchnorm", "add+relu"} <= kinds["forward"]
    assert "batchnorm+relu" not in kinds["forward"]
    assert {"conv", "batchnorm+relu"} <= kinds["training"]


def test_a_compiler_joins_what_stands_between_two_layers():
    model = build_model("alexnet-owt", 2)
    for group in subgraphs(model, "forward", "compiled"):
        assert model[group[0]].op in ("conv", "linear", "pool")
        assert all(model[name].op not in ("conv", "linear", "pool") for name in group[1:])


@pytest.mark.parametrize(
    ("operator", "how", "kind"),
    [
        ("aten.convolution", {}, "layer"),
        ("aten.convolution_backward", {"direction": "backward"}, "layer"),
        ("aten.max_pool2d_with_indices_backward", {"direction": "backward"}, "layer"),
        ("aten._scaled_dot_product_flash_attention_for_cpu_backward", {}, "layer"),
        ("aten.relu_", {}, "pointwise"),
        ("aten.mm", {"direction": "optimizer"}, "optimizer"),
        ("aten._log_softmax", {"direction": "loss"}, "loss"),
        ("aten._log_softmax_backward_data", {"direction": "backward", "names": ("loss",)}, "loss"),
        ("aten._native_multi_head_attention", {}, "layer"),
        ("aten._scaled_dot_product_flash_attention_for_cpu", {}, "layer"),
        ("conv+relu", {}, "layer"),
        ("batchnorm+relu", {}, "pointwise"),
        ("linear+4 more", {}, "layer"),
        ("gradient sum", {"direction": "backward"}, "gradient sum"),
    ],
)
def test_a_call_says_what_it_stands_for(operator, how, kind):
    assert kind_of(RecordedCall(signature="", operator=operator, **how)) == kind


def test_a_call_belongs_to_its_names_and_the_rest_to_nobody():
    call = RecordedCall.of([("a",), ("a", "b"), (), ("a",)], signature="", operator="x")
    assert (call.count, call.names, call.parts) == (4, ("a", "b"), (2.5, 0.5))
    assert call.shares() == {"a": 2.5, "b": 0.5, "": 1.0}
    alike = RecordedCall.of([("a",), ("b",)], signature="", operator="x")
    assert alike.parts == ()
    assert alike.shares() == {"a": 1.0, "b": 1.0}
    assert RecordedCall.of([()] * 3, signature="", operator="x").shares() == {"": 3.0}


def test_a_step_is_recorded_once_in_a_session_however_it_is_fed():
    asked = []

    def build(_, __, case):
        asked.append(case)
        facts = OperatorsFacts(calls=(RecordedCall(signature="a", operator="a"),), blocks=(4, -1))
        return SimpleNamespace(facts=facts, release=lambda: None)

    session = SimpleNamespace(recorded={}, worker=lambda *_: SimpleNamespace(build=build))
    case = StepSpec(model="mnist", batch=2)
    first, fed = (
        listed(one, session) for one in (case, msgspec.structs.replace(case, feed="host"))
    )
    assert len(asked) == 1
    assert first.calls == fed.calls[1:]
    assert [kind_of(one) for one in fed.calls] == ["feed", "pointwise"]
    assert first.blocks == fed.blocks == (4, -1)
    listed(msgspec.structs.replace(case, phase="training"), session)
    assert [one["phase"] for one in asked] == ["forward", "training"]
