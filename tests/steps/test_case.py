"""Words of a case, weights and images."""

import dataclasses
import json

import numpy as np
import pytest
import tiny

from pydlbench.backends.steps.inputs import make_batch, make_weights
from pydlbench.errors import UsageError
from pydlbench.ops.table import build_layer
from pydlbench.records.step import StepSpec, framework_text


def test_a_case_survives_json():
    case = StepSpec(model="mnist", options={"loss": "sum"}, framework="tensorflow", batch=3)
    assert case.mode == "graph"
    assert StepSpec.from_dict(json.loads(json.dumps(case.to_dict()))) == case


@pytest.mark.parametrize(
    ("told", "text"),
    [
        ({}, "torch eager"),
        ({"layout": "nchw", "feed": "host"}, "torch eager nchw host"),
        ({"precision": "bf16", "cast": "whole"}, "torch eager whole"),
        ({"cast": "whole"}, "torch eager"),  # there is nothing to be cast to
        ({"fetch": True, "dropout": False}, "torch eager fetch without dropout"),
        ({"running_statistics": True}, "torch eager running statistics"),
    ],
)
def test_what_is_not_as_by_default_is_told(told, text):
    assert framework_text(StepSpec(model="mnist", **told).to_dict()) == text
    shortened = {"framework": "torch", "mode": "eager", "precision": "fp32"}
    assert framework_text(shortened | told) == text


@pytest.mark.parametrize(
    ("words", "message"),
    [
        ({"phase": "trainin"}, "--phase trainin: .* nearest: training"),
        ({"framework": "pytorch"}, "nearest: torch"),
        ({"mode": "graph"}, "--mode graph: not one of eager, compiled"),
        ({"precision": "fp23"}, "nearest: fp32"),
        ({"feed": "hots"}, "nearest: host"),
        ({"batch": 0}, "--batch 0"),
        ({"device": "gpu:0"}, "nearest: cuda:0"),
    ],
)
def test_unknown_words_are_refused(words, message):
    with pytest.raises(UsageError, match=message):
        StepSpec(model="mnist", **words)


def test_weights_depend_on_seed_and_name_alone():
    model = tiny.chain()
    weights = make_weights(model, 3)
    assert set(weights) == {
        f"{node}/{role}"
        for node in ("conv1", "conv2", "fc1", "fc2")
        for role in ("weights", "bias")
    }
    fewer = make_weights(dataclasses.replace(model, nodes=model.nodes[:4]), 3)
    np.testing.assert_array_equal(fewer["conv1/weights"], weights["conv1/weights"])
    assert np.abs(make_weights(model, 4)["conv1/weights"] - weights["conv1/weights"]).max() > 0.01
    assert set(weights["conv2/bias"]) == {np.float32(0.1)}
    assert all(array.dtype == np.float32 for array in weights.values())


def test_normal_weights_are_cut_off_and_spread():
    values = make_weights(tiny.chain())["conv1/weights"]
    assert np.abs(values).max() <= 0.2
    # A normal distribution cut off at two standard deviations has 0.88 of its spread.
    assert values.std() == pytest.approx(0.088, rel=0.1)


def test_he_weights_follow_their_inputs():
    weights = make_weights(tiny.chain())
    assert weights["conv2/weights"].std() == pytest.approx((2 / 72) ** 0.5, rel=0.1)
    fan_in = weights["fc1/weights"].shape[0]
    assert weights["fc1/weights"].std() == pytest.approx((2 / fan_in) ** 0.5, rel=0.1)


def test_disturbed_weights_are_close():
    model = tiny.chain()
    plain, other = make_weights(model), make_weights(model, disturbance=1e-3)
    change = np.abs(other["fc1/weights"] / plain["fc1/weights"] - 1)
    assert 5e-4 < change.max() < 1.01e-3


def test_normalisations_start_neutral():
    weights = make_weights(tiny.branches())
    assert set(weights["stem/bn/weights"]) == {1.0}
    assert set(weights["stem/bn/running_variance"]) == {1.0}
    assert not weights["left/bn/bias"].any()
    assert "left/bn/weights" not in weights


def test_images_and_labels_are_seeded():
    model = tiny.chain()
    one, other = make_batch(model, 1), make_batch(model, 2)
    assert one.images.shape == (4, 3, 14, 13)
    assert -1 <= one.images.min() < -0.9
    assert 0.9 < one.images.max() < 1
    assert np.abs(one.images - other.images).max() > 0.5
    assert one.labels is not None
    assert one.labels.max() < model.classes
    np.testing.assert_array_equal(one.images, make_batch(model, 1).images)
    assert make_batch(tiny.maps()).labels is None


def test_elements_inside_windows():
    layer = build_layer(
        "pool", batch=1, channels=1, in_size=(4, 5), kernel=3, stride=2, padding=(0, 1, 1, 1)
    )
    inside = np.multiply.outer(*layer.elements_inside)
    np.testing.assert_array_equal(inside, [[6, 9, 6], [4, 6, 4]])
