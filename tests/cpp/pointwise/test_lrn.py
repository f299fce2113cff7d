from typing import Any

import numpy as np
import pytest

SIZES = [(1, 1, 1, 1), (1, 5, 3, 7), (2, 33, 5, 5), (2, 100, 1, 3)]
#: Storage, and whether tensors start on the sixteen-byte grid.
MODES = [("fp32", True), ("fp32", False), ("fp16", True), ("bf16-tc", False)]
ULP = 2.0**-24


def window_sums(values: Any, half: int) -> Any:
    """The sum over the channels c - half .. c + half, as far as there are any."""
    result = np.zeros_like(values)
    for channel in range(values.shape[1]):
        window = slice(max(0, channel - half), channel + half + 1)
        result[:, channel] = values[:, window].sum(axis=1)
    return result


@pytest.mark.parametrize(("mode", "aligned"), MODES)
@pytest.mark.parametrize("size", [1, 3, 5, 7, 9, 11])
@pytest.mark.parametrize("sizes", SIZES)
def test_lrn(pointwise, random, sizes, size, mode, aligned):
    inputs = {"src": random.uniform(-1, 1, sizes), "dst": random.uniform(-1, 1, sizes)}
    inputs["src"].flat[0] = 0.0
    # A large alpha: the window's part of the result is far beyond the tolerance.
    beta = 0.6 if size == 7 else 0.75
    parameters = {"local_size": size, "alpha": 0.9, "beta": beta, "k": 1.5}

    def scale(x: Any) -> Any:
        return 1.5 + 0.9 / size * window_sums(x["src"] ** 2, size // 2)

    def backward(x: Any) -> Any:
        d = scale(x)
        sums = window_sums(x["dst"] * x["src"] * d ** (-beta - 1), size // 2)
        result = x["dst"] * d**-beta - 2 * 0.9 * beta / size * x["src"] * sums
        return {"src": (result, 40 * ULP)}

    pointwise.check(
        "lrn", "forward-training", sizes, inputs,
        lambda x: {"dst": (x["src"] * scale(x) ** -beta, 20 * ULP)},
        mode=mode, aligned=aligned, **parameters,
    )  # fmt: skip
    pointwise.check(
        "lrn", "backward-data", sizes, inputs, backward, mode=mode, aligned=aligned, **parameters
    )


def test_more_channels_than_shared_memory_holds_are_refused(pointwise):
    parameters = {"local_size": 5, "alpha": 1e-4, "beta": 0.75, "k": 2.0}
    assert pointwise.plans("lrn", "forward-training", (1, 4096, 1, 2), **parameters)
    with pytest.raises(ValueError, match="more than 4096 channels"):
        pointwise.plans("lrn", "forward-training", (1, 4097, 1, 2), **parameters)


@pytest.mark.parametrize("sizes", [(2, 3000, 1, 3), (3, 100, 7, 9), (1, 2, 50, 90)])
def test_lrn_over_several_blocks(pointwise, random, sizes):
    """One pixel per block, several whose last block is not full, and images that share a block."""
    inputs = {"src": random.uniform(-1, 1, sizes)}
    parameters = {"local_size": 5, "alpha": 0.9, "beta": 0.75, "k": 1.5}

    def expect(x: Any) -> Any:
        scale = 1.5 + 0.9 / 5 * window_sums(x["src"] ** 2, 2)
        return {"dst": (x["src"] * scale**-0.75, 20 * ULP)}

    seen = pointwise.check("lrn", "forward-training", sizes, inputs, expect, **parameters)
    assert len(seen) == 2
