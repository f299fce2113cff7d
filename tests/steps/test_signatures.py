"""Signatures of subgraphs: canonical, free of names, and enough to build the subgraph again."""

import json

import pytest

from pydlbench.ladder.operators import requests_of, with_gradient
from pydlbench.models import build_model
from pydlbench.models.graph import trained_tensors
from pydlbench.records.step import StepSpec
from pydlbench.steps.signatures import operator_of, read_signature, signature_of

PLACES = (("torch", "compiled"), ("tensorflow", "graph"), ("tensorflow", "xla"))


def operators(name, framework, mode, phase, batch=2, **how):
    model = build_model(name, batch)
    case = StepSpec(model=name, batch=batch, phase=phase, framework=framework, mode=mode, **how)
    wanted = with_gradient(model) if case.backward else frozenset()
    for one in requests_of(model, case):
        yield model, one, signature_of(model, case, one, wanted)


@pytest.mark.parametrize("phase", ["forward", "forward-backward", "training"])
@pytest.mark.parametrize(("framework", "mode"), PLACES)
@pytest.mark.parametrize("name", ["mnist", "alexnet-tfcnn", "calibration-units"])
def test_a_signature_is_read_back_as_the_operator_it_is_of(name, framework, mode, phase):
    for model, one, said in operators(name, framework, mode, phase):
        found, mini, asked = read_signature(said.text)
        assert found.text == said.text
        assert asked.kind == one.kind
        if not one.is_subgraph:
            continue
        assert [mini[node].op for node in asked.nodes] == [model[node].op for node in one.nodes]
        for own, original in zip(asked.nodes, one.nodes, strict=True):
            layer, known = mini[own].layer, model[original].layer
            assert (layer is None) == (known is None)
            if layer is not None:
                assert layer.shapes() == known.shapes()
                assert layer.problem == known.problem
            assert trained_tensors(mini[own]) == trained_tensors(model[original])
        assert len(asked.differentiated) == len(one.differentiated)
        assert operator_of(mini, asked) == operator_of(model, one)


def test_a_signature_is_canonical_and_has_no_name_in_it():
    for model, _, said in operators("mnist", "tensorflow", "graph", "training"):
        data = json.loads(said.text)
        assert said.text == json.dumps(data, sort_keys=True, separators=(",", ":"))
        assert "mnist" not in said.text
        # Some nodes are called by what they do.
        own = [node.name for node in model if node.name != node.op]
        assert not any(f'"{name}"' in said.text for name in own)


def test_models_share_the_signatures_of_operators_that_they_share():
    first, second = (
        {said.text for _, _, said in operators(name, "tensorflow", "graph", "forward")}
        for name in ("vgg13", "vgg16")
    )
    # VGG-16 has VGG-13's layers and a third one like the second in three stages.
    assert first == second


@pytest.mark.parametrize(
    ("first", "second"),
    [
        ({}, {"batch": 4}),
        ({}, {"layout": "nchw"}),
        ({"phase": "forward"}, {"phase": "forward-backward"}),
        ({}, {"dropout": False}),
        ({}, {"running_statistics": True}),
    ],
)
def test_what_changes_the_time_changes_the_signature(first, second):
    def convolutions(phase="forward-backward", **how):
        every = operators("calibration-units", "torch", "compiled", phase, **how)
        return {said.text for _, one, said in every if one.kind == "layer"}

    assert convolutions(**first).isdisjoint(convolutions(**second))


def test_a_loss_has_the_weights_of_its_terms_and_an_optimizer_all_of_them():
    found = {
        one.kind: read_signature(said.text)
        for _, one, said in operators("mnist", "tensorflow", "graph", "training")
    }
    loss, model, _ = found["loss"]
    assert [(one.tensor, one.factor) for one in model.decays] == [
        (one.tensor, one.factor) for one in build_model("mnist").decays
    ]
    assert model.output.shape == (10,)
    assert loss.classes == 10
    _, model, _ = found["optimizer"]
    shapes = [list(trained_tensors(node).values()) for node in model if node.layer]
    own = [list(trained_tensors(node).values()) for node in build_model("mnist")]
    assert shapes == [one for one in own if one]
    assert model.optimizer.kind == "momentum"
