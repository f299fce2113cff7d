from typing import Any

import numpy as np
import pytest

#: Storage, and whether tensors start on the sixteen-byte grid.
MODES = [("fp32", True), ("fp32", False), ("fp16", True), ("bf16-tc", False)]
#: One pixel; odd channels; one more than whole vectors; enough for a third tile on resident blocks.
SIZES = [(1, 1, 1, 1), (2, 3, 1, 1), (1, 5, 3, 7), (2, 33, 5, 5), (3, 32, 4, 4), (2, 5, 61, 59)]
ULP = 2.0**-24


def maps(random: Any, sizes: tuple[int, ...], *roles: str) -> dict[str, Any]:
    return {role: random.uniform(-1, 1, sizes) for role in roles}


@pytest.mark.parametrize(("mode", "aligned"), MODES)
@pytest.mark.parametrize("sizes", SIZES)
def test_relu(pointwise, random, sizes, mode, aligned):
    inputs = maps(random, sizes, "src", "dst")
    inputs["src"].flat[0] = 0.0
    inputs["src"].flat[-1] = -0.0
    pointwise.check(
        "relu", "forward-training", sizes, inputs,
        lambda x: {"dst": (np.maximum(x["src"], 0), 0)}, mode=mode, aligned=aligned,
    )  # fmt: skip
    pointwise.check(
        "relu", "backward-data", sizes, inputs,
        lambda x: {"src": (np.where(x["src"] > 0, x["dst"], 0), 0)}, mode=mode, aligned=aligned,
    )  # fmt: skip


@pytest.mark.parametrize(("mode", "aligned"), MODES)
@pytest.mark.parametrize("sizes", SIZES)
def test_add(pointwise, random, sizes, mode, aligned):
    pointwise.check(
        "add", "forward-inference", sizes, maps(random, sizes, "src", "src2"),
        lambda x: {"dst": (x["src"] + x["src2"], 2 * ULP)}, mode=mode, aligned=aligned,
    )  # fmt: skip


def kept(count: int, keep: float) -> Any:
    """The mask of the first elements, in unbounded integers."""
    full, mask = 2**32, []
    for i in range(count):
        h = i ^ 0x85EBCA6B
        h = (h ^ h >> 16) * 0x7FEB352D % full
        h = (h ^ h >> 15) * 0x846CA68B % full
        mask.append(h < int(keep * 2**32))
    return np.array(mask)


def test_the_largest_hash_that_is_kept(pointwise):
    # The hashes of elements 0, 1 and 2 are 1EFEF68C, C92A6A32 and 70179679.
    source = {"src": np.ones((1, 3, 1, 1))}
    for limit, right in ((0x70179679, [1, 0, 0]), (0x7017967A, [1, 0, 1]), (0.5, [0, 0, 0])):
        keep = limit / 2**32
        assert list(kept(3, keep)) == right
        for plan in pointwise.plans("dropout", "forward-training", (1, 3, 1, 1), keep=keep):
            assert list(plan.run(source)["dst"].reshape(3) > 0) == right


@pytest.mark.parametrize("keep", [0.5, 0.1, 1.0])
@pytest.mark.parametrize("mode", ["fp32", "bf16-tc"])
@pytest.mark.parametrize("sizes", SIZES)
def test_dropout_draws_by_logical_index(pointwise, random, sizes, mode, keep):
    mask = kept(int(np.prod(sizes)), keep).reshape(sizes)
    for pass_, src, dst in (("forward-training", "src", "dst"), ("backward-data", "dst", "src")):
        seen = pointwise.check(
            "dropout", pass_, sizes, maps(random, sizes, src),
            lambda x, src=src, dst=dst: {dst: (mask * x[src] / keep, 4 * ULP / keep)},
            mode=mode, keep=keep,
        )  # fmt: skip
        layouts = {label[:8] for label in seen}
        assert len(layouts) == (1 if sizes[2:] == (1, 1) else 2)


@pytest.mark.parametrize(("mode", "aligned"), MODES)
@pytest.mark.parametrize("count", [1, 7, 8, 33, 1024, 1031, 20001])
def test_optimizers(pointwise, random, count, mode, aligned):
    sizes = (1, count, 1, 1)
    inputs = maps(random, (count,), "weights", "gradient", "velocity")
    pointwise.check(
        "sgd", "forward-training", sizes, inputs,
        lambda x: {"weights": (x["weights"] - 0.3 * x["gradient"], 4 * ULP)},
        mode=mode, aligned=aligned, rate=0.3,
    )  # fmt: skip

    def momentum(x: Any) -> Any:
        velocity = 0.9 * x["velocity"] + x["gradient"]
        return {
            "velocity": (velocity, 4 * ULP),
            "weights": (x["weights"] - 0.3 * velocity, 6 * ULP),
        }

    pointwise.check(
        "momentum", "forward-training", sizes, inputs, momentum,
        mode=mode, aligned=aligned, rate=0.3, mu=0.9,
    )  # fmt: skip
    pointwise.check(
        "l2", "backward-weights", sizes, inputs,
        lambda x: {"gradient": (x["gradient"] + 0.25 * x["weights"], 4 * ULP)},
        mode=mode, aligned=aligned, decay=0.25,
    )  # fmt: skip
    pointwise.check(
        "l2", "forward-training", sizes, inputs,
        lambda x: {"dst": (np.array([0.5 * (x["weights"] ** 2).sum()]), 32 * ULP * count / 6)},
        mode=mode, aligned=aligned, decay=0.25,
    )  # fmt: skip
