"""The memory that a step needs."""

import pytest

from pydlbench.errors import UsageError
from pydlbench.models import build_model
from pydlbench.models.graph import Builder, Loss, Model, Optimizer
from pydlbench.models.passes import memory


def small(optimizer: str = "sgd") -> Model:
    net = Builder("m", 2, (3, 4, 4))  # 48 elements per image
    one = net.conv_bn("a", 5, 1, activation=None)  # 80, weights 15, normalisation 10
    two = net.conv("b", 5, 1, after=one)  # 80, weights 25 + 5
    net.concat("c", [one, two])  # 160
    net.flatten()
    net.dropout("d", 0.5)  # 160 in training
    net.linear("e", 7)  # 7, weights 1120 + 7
    return net.model(
        title="t",
        source="s",
        loss=Loss(),
        optimizer=Optimizer(kind=optimizer),  # type: ignore[arg-type]
    )


def test_inference_needs_what_is_alive_at_once():
    # The concatenation, and the two that it joins; the convolution before it is gone.
    assert memory(small(), "forward") == {
        "weights": 4 * (15 + 10 + 10 + 30 + 1127),
        "gradients": 0,
        "optimizer": 0,
        "activations": 4 * 2 * (80 + 80 + 160),
    }


def test_training_keeps_all_outputs():
    found = memory(small("momentum"), "training")
    assert found == {
        "weights": 4 * (15 + 10 + 10 + 30 + 1127),
        "gradients": 4 * (15 + 10 + 30 + 1127),
        "optimizer": 4 * (15 + 10 + 30 + 1127),
        "activations": 4 * 2 * (48 + 80 + 80 + 80 + 160 + 160 + 7),
    }
    assert memory(small("sgd"), "training") == {**found, "optimizer": 0}
    assert memory(small("momentum"), "forward-backward") == {**found, "optimizer": 0}


@pytest.mark.parametrize(("precision", "itemsize"), [("fp16-tc", 2), ("bf16", 2), ("fp8-tc", 1)])
def test_normalisations_stay_in_float32(precision, itemsize):
    found = memory(small(), "training", precision)
    assert found["weights"] == itemsize * (15 + 30 + 1127) + 4 * (10 + 10)
    assert found["gradients"] == itemsize * (15 + 30 + 1127) + 4 * 10
    assert found["activations"] == itemsize * 2 * (48 + 80 + 80 + 80 + 160 + 160 + 7)


def test_vgg16_needs_what_is_known_of_it():
    # 553 MB of weights; the largest pair of outputs is that of the first two convolutions.
    found = memory(build_model("vgg16", 1), "forward")
    assert found["weights"] == 4 * 138_357_544
    assert found["activations"] == 4 * 2 * 64 * 224 * 224


def test_unknown_precisions():
    with pytest.raises(UsageError, match=r"^--precision fp33: .*nearest: fp32"):
        memory(small(), "forward", "fp33")
