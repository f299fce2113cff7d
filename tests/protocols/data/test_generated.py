"""Generated images: shapes of the real ones, and something to learn."""

from __future__ import annotations

from typing import TYPE_CHECKING, Literal

import numpy as np
import pytest

from pydlbench.protocols.data.datasets import Split, generate

if TYPE_CHECKING:
    from pydlbench.protocols.data.datasets import Dataset

Name = Literal["mnist", "cifar10"]


def test_counts_and_types_are_the_published_ones():
    found = generate("mnist")
    assert [len(part.labels) for part in (found.train, found.validation, found.test)] == [
        55_000,
        5_000,
        10_000,
    ]
    assert found.train.images.shape[1:] == (1, 28, 28)
    assert found.train.images.dtype == np.float32
    assert -0.5 <= found.train.images.min() < found.train.images.max() <= 0.5
    small = generate("cifar10", train=30, test=4)
    assert small.train.images.shape == (30, 3, 24, 24)
    assert small.train.images.dtype == np.float32
    assert small.train.labels.dtype == np.int64
    assert len(small.validation.labels) == 0


def test_they_are_called_generated():
    found = generate("cifar10", train=3, test=3)
    assert found.generated
    assert found.source == "generated"
    assert "nothing about CIFAR-10" in found.remark


def test_seeds_decide():
    def images(seed: int) -> np.ndarray:
        return generate("cifar10", train=3, test=1, seed=seed).train.images

    np.testing.assert_array_equal(images(1), images(1))
    assert not np.array_equal(images(1), images(2))


def features(split: Split) -> np.ndarray:
    flat = split.images.reshape(len(split.images), -1).astype(np.float64)
    return flat / np.abs(flat).max() - flat.mean() / np.abs(flat).max()


def trained_error(data: Dataset, labels: np.ndarray) -> float:
    """Test error of softmax regression, trained by plain gradient descent."""
    inputs, tests = features(data.train), features(data.test)
    weights = np.zeros((inputs.shape[1], 10))
    wanted = np.eye(10)[labels]
    for _ in range(25):
        logits = inputs @ weights
        powers = np.exp(logits - logits.max(axis=1, keepdims=True))
        shares = powers / powers.sum(axis=1, keepdims=True)
        weights -= 0.5 * inputs.T @ (shares - wanted) / len(labels)
    return float(((tests @ weights).argmax(axis=1) != data.test.labels).mean())


@pytest.mark.parametrize("name", ["mnist", "cifar10"])
def test_a_network_of_one_layer_learns_them(name):
    data = generate(name, train=500, test=200, validation=100)
    assert trained_error(data, data.train.labels) < 0.1
    # And there is nothing else in them to learn: with labels of other images it does not work.
    shuffled = np.random.default_rng(0).permutation(data.train.labels)
    assert trained_error(data, shuffled) > 0.7


def test_parts_must_belong_together():
    with pytest.raises(ValueError, match=r"2 images .*3 labels"):
        Split(images=np.zeros((2, 1, 1, 1)), labels=np.zeros(3, np.int64))
