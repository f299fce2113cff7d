from typing import Any

import numpy as np
import pytest

#: Storage, and whether tensors start on the sixteen-byte grid.
MODES = [("fp32", True), ("fp32", False), ("fp16", True), ("bf16-tc", False)]
ULP = 2.0**-24


@pytest.mark.parametrize(("mode", "aligned"), MODES)
@pytest.mark.parametrize("sources", [(1,), (3, 1), (8, 16), (5, 32, 33), (16, 8, 4)])
@pytest.mark.parametrize("pixels", [(1, 1), (3, 5), (4, 4)])
def test_concat(pointwise, random, sources, pixels, mode, aligned):
    sizes = (3, sum(sources), *pixels)
    names = ["src", *(f"src{i}" for i in range(2, len(sources) + 1))]
    inputs = {
        name: random.uniform(-1, 1, (3, channels, *pixels))
        for name, channels in zip(names, sources, strict=True)
    }
    pointwise.check(
        "concat", "forward-training", sizes, inputs,
        lambda x: {"dst": (np.concatenate([x[name] for name in names], axis=1), 0)},
        mode=mode, aligned=aligned, sources=sources,
    )  # fmt: skip

    def split(x: Any) -> Any:
        parts = np.split(x["dst"], np.cumsum(sources)[:-1], axis=1)
        return {name: (part, 0) for name, part in zip(names, parts, strict=True)}

    pointwise.check(
        "concat", "backward-data", sizes, {"dst": random.uniform(-1, 1, sizes)}, split,
        mode=mode, aligned=aligned, sources=sources,
    )  # fmt: skip


def test_more_sources_than_fit_one_launch(pointwise, random):
    sources = (1, 2) * 35
    inputs = {
        f"src{i + 1}" if i else "src": random.uniform(-1, 1, (2, channels, 2, 1))
        for i, channels in enumerate(sources)
    }
    pointwise.check(
        "concat", "forward-training", (2, sum(sources), 2, 1), inputs,
        lambda x: {"dst": (np.concatenate([x[name] for name in inputs], axis=1), 0)},
        sources=sources,
    )  # fmt: skip


@pytest.mark.parametrize(("mode", "aligned"), MODES)
@pytest.mark.parametrize(("rows", "classes"), [(1, 1), (3, 10), (9, 33), (17, 1000), (2, 2309)])
def test_softmax(pointwise, random, rows, classes, mode, aligned):
    sizes = (rows, classes, 1, 1)
    # Logits that overflow exp() unless the largest is subtracted.
    inputs = {
        "src": random.uniform(80, 120, sizes),
        "labels": random.integers(0, classes, rows).astype(np.float64),
    }
    inputs["labels"][0] = classes - 1

    def forward(x: Any) -> Any:
        logits = x["src"].reshape(rows, classes)
        shifted = logits - logits.max(axis=1, keepdims=True)
        sums = np.exp(shifted).sum(axis=1)
        label = shifted[np.arange(rows), x["labels"].astype(int)]
        probabilities = np.exp(shifted) / sums[:, None]
        return {
            "dst": (probabilities.reshape(sizes), 100 * ULP),
            "loss": (np.array([(np.log(sums) - label).mean()]), 200 * ULP),
        }

    seen = pointwise.check("softmax-xent", "forward-training", sizes, inputs, forward,
                           mode=mode, aligned=aligned)  # fmt: skip
    assert len(seen) == 2

    def backward(x: Any) -> Any:
        gradient = x["dst"].reshape(rows, classes).copy()
        gradient[np.arange(rows), x["labels"].astype(int)] -= 1
        return {"src": ((gradient / rows).reshape(sizes), 4 * ULP)}

    probabilities = {"dst": random.uniform(0, 1, sizes), "labels": inputs["labels"]}
    pointwise.check("softmax-xent", "backward-data", sizes, probabilities, backward,
                    mode=mode, aligned=aligned)  # fmt: skip
