"""Which operators a step has, by framework and mode: each node once, equal ones together."""

from __future__ import annotations

import math

import pytest

from pydlbench.ladder.operators import step_operators, subgraphs, with_gradient
from pydlbench.models import build_model, model_names
from pydlbench.models.builder import Builder
from pydlbench.models.graph import INPUT
from pydlbench.models.work import work

MODES = (("torch", "eager"), ("torch", "compiled"), ("tensorflow", "graph"), ("tensorflow", "xla"))


@pytest.mark.product
@pytest.mark.parametrize(("framework", "mode"), MODES)
@pytest.mark.parametrize("name", model_names())
def test_every_node_is_in_exactly_one_occurrence(name, framework, mode):
    model = build_model(name, 2)
    found = step_operators(model, "training", framework, mode)
    own = [one for one in found if one.kind in ("layer", "pointwise")]
    nodes = [node for one in own for group in one.occurrences for node in group]
    assert sorted(nodes) == sorted(node.name for node in model)
    assert all(one.count == len(one.occurrences) for one in own)
    assert len({one.name for one in found}) == len(found)


def test_equal_nodes_are_one_operator():
    model = build_model("resnet152", 2)
    found = step_operators(model, "forward", "torch", "eager")
    assert len(found) < len(model.nodes) / 5
    convolutions = [one for one in found if model[one.nodes[0]].op == "conv"]
    assert sum(one.count for one in convolutions) == 155  # 151 and four shortcuts
    for one in convolutions:
        shapes = {model[group[0]].layer.problem for group in one.occurrences}
        assert len(shapes) == 1


def test_the_first_convolution_has_no_input_gradient():
    model = build_model("vgg11", 2)
    found = {one.name: one for one in step_operators(model, "training", "torch", "eager")}
    first, second = [node.name for node in model if node.op == "conv"][:2]
    assert found[first].differentiated == ()
    assert len(found[second].differentiated) == 1
    assert INPUT not in with_gradient(model)


def test_forward_has_nodes_only_and_training_loss_and_optimizer_too():
    model = build_model("resnet18", 2)
    kinds = {one.kind for one in step_operators(model, "forward", "torch", "eager")}
    assert kinds == {"layer", "pointwise"}
    kinds = {one.kind for one in step_operators(model, "training", "torch", "eager")}
    assert kinds == {"layer", "pointwise", "gradient sum", "loss", "optimizer"}
    kinds = {one.kind for one in step_operators(model, "forward-backward", "torch", "eager")}
    assert "optimizer" not in kinds
    assert "loss" in kinds


@pytest.mark.parametrize("name", ["resnet50", "densenet121", "inception-v3", "nasnet-mobile"])
def test_gradient_sums_are_as_many_as_the_composition_counts(name):
    model = build_model(name, 2)
    found = step_operators(model, "training", "torch", "eager")
    expected = [
        math.prod((one.layer.batch, one.layer.channels, one.layer.height, one.layer.width))
        for one in work(model, "training")
        if (one.layer.name or "").endswith("/gradient-sum")
    ]
    sums = [one for one in found if one.kind == "gradient sum"]
    assert sum(one.count for one in sums) == len(expected)
    sizes = sorted(2 * math.prod(model[name].shape) for one in sums for (name,) in one.occurrences)
    assert sizes == sorted(expected)


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
    model = fork()
    counted = {
        mode: sum(
            one.count
            for one in step_operators(model, "training", "torch", mode)
            if one.kind == "gradient sum"
        )
        for mode in ("eager", "compiled")
    }
    # Three readers one by one; of the groups, one has two of them.
    assert counted == {"eager": 2, "compiled": 1}


def test_what_comes_from_the_host_is_an_operator_where_it_does():
    model = build_model("mnist", 2)
    assert step_operators(model, "forward", "torch", "eager", "host")[0].kind == "feed"
    assert all(one.kind != "feed" for one in step_operators(model, "forward", "torch", "eager"))


def test_tensorflow_joins_a_relu_with_what_it_alone_reads():
    model = build_model("resnet18", 2)
    found = subgraphs(model, "training", "tensorflow", "graph")
    for group in found:
        assert len(group) <= 2
        if len(group) == 2:
            assert model[group[1]].op == "relu"
            assert model[group[1]].inputs == (group[0],)
    joined = [one for one in found if len(one) == 2]
    assert len(joined) == sum(node.op == "relu" for node in model)


def test_tensorflow_joins_a_convolution_with_its_normalisation_in_inference_only():
    model = build_model("resnet18", 2)
    found = subgraphs(model, "forward", "tensorflow", "graph")
    kinds = {tuple(model[name].op for name in group) for group in found}
    assert ("conv", "batchnorm", "relu") in kinds
    assert ("conv", "batchnorm") in kinds  # an addition follows
    assert ("add", "relu") in kinds
    assert ("batchnorm", "relu") not in kinds
    kinds = {
        tuple(model[name].op for name in group)
        for group in subgraphs(model, "training", "tensorflow", "graph")
    }
    assert ("conv",) in kinds
    assert ("batchnorm", "relu") in kinds


def test_a_compiler_joins_what_stands_between_two_layers():
    model = build_model("alexnet-owt", 2)
    found = subgraphs(model, "forward", "torch", "compiled")
    assert [name for group in found for name in group] == [node.name for node in model]
    for group in found:
        assert model[group[0]].op in ("conv", "linear", "pool")
        assert all(model[name].op not in ("conv", "linear", "pool") for name in group[1:])


def test_what_is_read_outside_a_group_is_its_output():
    model = build_model("resnet18", 2)
    found = step_operators(model, "training", "tensorflow", "xla")
    for one in found:
        if one.kind in ("layer", "pointwise"):
            assert one.outputs
            assert set(one.outputs) <= set(one.nodes)
