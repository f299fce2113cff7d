"""Numbers that are hard on a kernel: large means, large logits, long sums, the last kept hash."""

import numpy as np
import pytest

ULP = 2.0**-24
BATCHNORM = {"epsilon": 1e-3, "momentum": 0.25}


def statistics(random, sizes, src):
    """Inputs of a batch normalisation in training."""
    names = ("weights", "bias", "running_mean", "running_variance")
    return {"src": src, **{name: random.uniform(0.5, 1.5, sizes[1]) for name in names}}


def test_variance_survives_a_large_mean(pointwise, random):
    """Sums of squares in float32 would lose all digits of a variance of 1/12 beside 4096**2."""
    sizes = (2, 3, 9, 11)
    inputs = statistics(random, sizes, 4096 + random.uniform(0, 1, sizes))
    for plan in pointwise.plans("batchnorm", "forward-training", sizes, **BATCHNORM):
        expected = plan.stored(inputs)["src"].var(axis=(0, 2, 3))
        off = np.abs(plan.run(inputs)["variance"] - expected)
        assert off.max() < 1e-5, plan.facts["algorithm"]


def test_long_channels_do_not_wear_out_the_mean(pointwise, random):
    """A thread adds up over 300 rows, less a first one that is far from the mean."""
    sizes = (8, 128, 1, 2500)
    src = random.uniform(-1, 1, sizes).astype(np.float32).astype(np.float64)
    src[0, :, 0, 0] = 1.0
    inputs = statistics(random, sizes, src)
    (plan,) = pointwise.plans("batchnorm", "forward-training", sizes, layout="nhwc", **BATCHNORM)
    assert np.abs(plan.run(inputs)["mean"] - src.mean(axis=(0, 2, 3))).max() < 5 * ULP


@pytest.mark.parametrize("classes", [10, 1000])
def test_logits_that_overflow_unless_the_largest_is_subtracted(pointwise, random, classes):
    rows = 9
    logits = random.uniform(80, 120, (rows, classes))
    labels = random.integers(0, classes, rows)
    labels[0] = classes - 1
    inputs = {"src": logits.reshape(rows, classes, 1, 1), "labels": labels.astype(np.float64)}
    shifted = logits.astype(np.float32) - logits.astype(np.float32).max(axis=1, keepdims=True)
    sums = np.exp(shifted.astype(np.float64)).sum(axis=1, keepdims=True)
    for plan in pointwise.plans("softmax-xent", "forward-training", (rows, classes, 1, 1)):
        results = plan.run(inputs)
        off = results["dst"].reshape(rows, classes) - np.exp(shifted) / sums
        assert np.abs(off).max() < 100 * ULP
        loss = (np.log(sums[:, 0]) - shifted[np.arange(rows), labels]).mean()
        assert results["loss"] == pytest.approx(loss, abs=200 * ULP)


def test_a_zero_has_no_gradient_whatever_its_sign(pointwise):
    inputs = {"src": np.array([0.0, -0.0, 1.0]).reshape(1, 3, 1, 1), "dst": np.ones((1, 3, 1, 1))}
    for plan in pointwise.plans("relu", "backward-data", (1, 3, 1, 1)):
        assert plan.run(inputs)["src"].reshape(3).tolist() == [0, 0, 1]


def test_the_largest_hash_that_is_kept(pointwise):
    # The hashes of elements 0, 1 and 2 are 1EFEF68C, C92A6A32 and 70179679.
    source = {"src": np.ones((1, 3, 1, 1))}
    for limit, right in ((0x70179679, [1, 0, 0]), (0x7017967A, [1, 0, 1]), (0.5, [0, 0, 0])):
        keep = limit / 2**32
        for plan in pointwise.plans("dropout", "forward-training", (1, 3, 1, 1), keep=keep):
            assert list(plan.run(source)["dst"].reshape(3) > 0) == right


def test_more_sources_than_fit_one_launch(pointwise, random):
    sources = (1, 2) * 35
    inputs = {
        f"src{i + 1}" if i else "src": random.integers(-9, 9, (2, channels, 2, 1)) * 1.0
        for i, channels in enumerate(sources)
    }
    sizes = (2, sum(sources), 2, 1)
    for plan in pointwise.plans("concat", "forward-training", sizes, sources=sources):
        expected = np.concatenate(list(inputs.values()), axis=1)
        np.testing.assert_array_equal(plan.run(inputs)["dst"], expected)
