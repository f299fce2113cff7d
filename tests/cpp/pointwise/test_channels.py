from typing import Any

import numpy as np
import pytest

#: Storage, and whether tensors start on the sixteen-byte grid.
MODES = [("fp32", True), ("fp32", False), ("fp16", True), ("bf16-tc", False)]
#: One element per channel; planes shorter than a vector; whole vectors; enough for several blocks.
SIZES = [(1, 1, 1, 1), (2, 3, 1, 1), (1, 5, 3, 7), (2, 33, 5, 5), (3, 32, 4, 4), (3, 3, 37, 41),
         (5, 8, 31, 29)]  # fmt: skip
ULP = 2.0**-24


def by_channel(values: Any) -> Any:
    return values.reshape(1, -1, 1, 1)


def over_channel(values: Any) -> Any:
    return values.sum(axis=(0, 2, 3))


@pytest.mark.parametrize(("mode", "aligned"), MODES)
@pytest.mark.parametrize("sizes", SIZES)
def test_bias(pointwise, random, sizes, mode, aligned):
    inputs = {
        "src": random.uniform(-1, 1, sizes),
        "dst": random.uniform(-1, 1, sizes),
        "bias": random.uniform(-1, 1, sizes[1]),
    }
    pointwise.check(
        "bias", "forward-inference", sizes, inputs,
        lambda x: {"dst": (x["src"] + by_channel(x["bias"]), 2 * ULP)}, mode=mode, aligned=aligned,
    )  # fmt: skip
    terms = sizes[0] * sizes[2] * sizes[3]
    pointwise.check(
        "bias", "backward-weights", sizes, inputs,
        lambda x: {"bias": (over_channel(x["dst"]), 3 * terms * ULP)}, mode=mode, aligned=aligned,
    )  # fmt: skip


def statistics(random: Any, sizes: tuple[int, ...]) -> dict[str, Any]:
    """Inputs of every batch normalisation; the mean is far from zero."""
    channels = sizes[1]
    return {
        "src": random.uniform(2, 4, sizes),
        "dst": random.uniform(-1, 1, sizes),
        "weights": random.uniform(-1, 1, channels),
        "bias": random.uniform(-1, 1, channels),
        "mean": random.uniform(-1, 1, channels),
        "variance": random.uniform(0.5, 1.5, channels),
        "running_mean": random.uniform(-1, 1, channels),
        "running_variance": random.uniform(0.5, 1.5, channels),
    }


PARAMETERS = {"epsilon": 1e-3, "momentum": 0.25}


@pytest.mark.parametrize(("mode", "aligned"), MODES)
@pytest.mark.parametrize("sizes", SIZES)
def test_batchnorm_inference(pointwise, random, sizes, mode, aligned):
    def expect(x: Any) -> Any:
        inverse = 1 / np.sqrt(by_channel(x["variance"]) + 1e-3)
        scale = inverse * by_channel(x["weights"])
        result = (x["src"] - by_channel(x["mean"])) * scale + by_channel(x["bias"])
        return {"dst": (result, 60 * ULP)}

    pointwise.check("batchnorm", "forward-inference", sizes, statistics(random, sizes), expect,
                    mode=mode, aligned=aligned, **PARAMETERS)  # fmt: skip


@pytest.mark.parametrize(("mode", "aligned"), MODES)
@pytest.mark.parametrize("sizes", SIZES)
def test_batchnorm_training(pointwise, random, sizes, mode, aligned):
    count = sizes[0] * sizes[2] * sizes[3]

    def expect(x: Any) -> Any:
        mean = over_channel(x["src"]) / count
        variance = over_channel((x["src"] - by_channel(mean)) ** 2) / count
        inverse = 1 / np.sqrt(by_channel(variance) + 1e-3)
        centred = (x["src"] - by_channel(mean)) * inverse
        unbiased = variance * count / max(1, count - 1)
        off = 40 * ULP
        return {
            "dst": (centred * by_channel(x["weights"]) + by_channel(x["bias"]), 10 * off * inverse),
            "mean": (mean, off),
            "variance": (variance, off),
            "running_mean": (0.75 * x["running_mean"] + 0.25 * mean, off),
            "running_variance": (0.75 * x["running_variance"] + 0.25 * unbiased, off),
        }

    pointwise.check("batchnorm", "forward-training", sizes, statistics(random, sizes), expect,
                    mode=mode, aligned=aligned, **PARAMETERS)  # fmt: skip


@pytest.mark.parametrize(("mode", "aligned"), MODES)
@pytest.mark.parametrize("sizes", SIZES)
def test_batchnorm_backward(pointwise, random, sizes, mode, aligned):
    count = sizes[0] * sizes[2] * sizes[3]

    def expect(x: Any) -> Any:
        inverse = 1 / np.sqrt(by_channel(x["variance"]) + 1e-3)
        centred = (x["src"] - by_channel(x["mean"])) * inverse
        bias, weights = over_channel(x["dst"]), over_channel(x["dst"] * centred)
        inner = x["dst"] - by_channel(bias) / count - centred * by_channel(weights) / count
        sums = 8 * count * ULP * 8
        return {
            "src": (by_channel(x["weights"]) * inverse * inner, 1000 * ULP),
            "weights": (weights, sums),
            "bias": (bias, sums),
        }

    pointwise.check("batchnorm", "backward-data", sizes, statistics(random, sizes), expect,
                    mode=mode, aligned=aligned, **PARAMETERS)  # fmt: skip


def test_variance_survives_a_large_mean(pointwise, random):
    """Sums of squares in float32 would lose all digits of a variance of 1/12 beside 4096**2."""
    sizes = (2, 3, 9, 11)
    inputs = statistics(random, sizes) | {"src": 4096 + random.uniform(0, 1, sizes)}

    def expect(x: Any) -> Any:
        return {"variance": (x["src"].var(axis=(0, 2, 3)), 1e-5)}

    for plan in pointwise.plans("batchnorm", "forward-training", sizes, **PARAMETERS):
        found = plan.run(inputs)["variance"]
        wanted, allowed = expect(plan.stored(inputs))["variance"]
        assert np.abs(found - wanted).max() < allowed, plan.facts["algorithm"]


def test_channels_are_cut_until_the_gpu_is_full(pointwise):
    (cut,) = pointwise.plans("bias", "backward-weights", (3, 3, 37, 41), layout="nchw")
    assert cut.facts["algorithm"] == "pydlbench bias 3 blocks per channel"
    assert cut.facts["workspace_bytes"] == 3 * 3 * 4
    # Channels enough for every multiprocessor: nothing to cut.
    (whole,) = pointwise.plans("bias", "backward-weights", (3, 64, 37, 41), layout="nchw")
    assert whole.facts["algorithm"] == "pydlbench bias block per channel"
    assert whole.facts["workspace_bytes"] == 0


def test_long_channels_do_not_wear_out_the_mean(pointwise, random):
    """A thread adds up over 300 rows, less a first one that is far from the mean."""
    sizes = (8, 128, 1, 2500)
    inputs = statistics(random, sizes)
    inputs["src"] = random.uniform(-1, 1, sizes).astype(np.float32).astype(np.float64)
    inputs["src"][0, :, 0, 0] = 1.0
    (plan,) = pointwise.plans("batchnorm", "forward-training", sizes, layout="nhwc", **PARAMETERS)
    off = np.abs(plan.run(inputs)["mean"] - inputs["src"].mean(axis=(0, 2, 3)))
    assert off.max() < 5 * ULP
