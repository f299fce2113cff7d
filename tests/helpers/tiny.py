"""Tiny graphs that between them have every operation and every oddity."""

import dataclasses

from pydlbench.models.graph import Builder, Decay, Init, Loss, Model, Optimizer

SMALL = Init(kind="normal", value=0.1)
TENTH = Init(kind="constant", value=0.1)


def chain() -> Model:
    """Uneven padding everywhere, LRN, dropout, biases, L2 terms, momentum: a tutorial's net."""
    made = Builder("chain", 4, (3, 14, 13))
    made.conv("conv1", 8, 5, 2, (1, 2, 0, 3), weights_init=SMALL)
    made.relu()
    made.lrn("norm1", 5, 1e-2, 0.75, 2.0)
    made.pool("pool1", 3, 2, "SAME")
    made.conv("conv2", 6, 3, 1, "SAME", bias_init=TENTH)
    made.relu()
    made.pool("pool2", 2, 2, (0, 1, 1, 0), mode="avg", count_include_pad=True)
    made.flatten()
    made.linear("fc1", 16, bias_init=TENTH)
    made.relu()
    made.dropout("drop1", 0.5)
    made.linear("fc2", 5)
    return made.model(
        title="a chain",
        source="this test",
        decays=(
            Decay(node="fc1", tensor="weights", factor=1e-2),
            Decay(node="fc1", tensor="bias", factor=1e-2),
            Decay(node="conv1", tensor="weights", factor=0.0),
        ),
        optimizer=Optimizer(kind="momentum", rate=0.02, mu=0.9),
    )


def branches() -> Model:
    """Branches that are joined and added, batch-norm with and without factor, shift, depthwise."""
    made = Builder("branches", 6, (3, 10, 10))
    made.conv("stem", 8, 3, bias=False, padding=1)
    first = made.batchnorm()
    stem = made.relu(after=first)
    made.conv("left", 8, 3, 1, 1, groups=8, bias=False, after=stem)
    left = made.batchnorm()
    made.conv("right", 8, (1, 3), 1, (0, 0, 1, 1), groups=2, after=stem)
    right = made.relu()
    both = made.add("both", left, right)
    made.relu("both/out", after=both)
    joined = made.concat("joined", ["both/out", stem])
    even = made.pool("even", 1, 2, mode="avg", after=joined)
    odd = made.pool("odd", 1, 2, mode="avg", after=made.shift("moved", after=joined))
    made.concat("reduced", [even, odd, made.pool("most", 3, 2, "SAME", after=joined)])
    made.pool("mean", 3, 2, "SAME", mode="avg")
    made.global_pool("global")
    made.flatten()
    made.linear("fc", 7)
    model = made.model(title="branches", source="this test")
    nodes = [
        dataclasses.replace(node, scale=False) if node.name == "left/bn" else node for node in model
    ]
    return dataclasses.replace(model, nodes=tuple(nodes))


def pixels() -> Model:
    """Each pixel has a class; all activations, factors of channels, a way down and up again."""
    made = Builder("pixels", 3, (2, 18, 18))
    made.conv("wide", 8, 3, weights_init=SMALL)
    wide = made.activation("hardswish")
    made.pool("down", 2, 2)
    made.conv("deep", 12, 3, 1, 1)
    deep = made.activation("relu6")
    made.global_pool("mean")
    made.conv("squeeze", 4, 1)
    made.relu()
    made.conv("widen", 12, 1)
    factors = made.activation("hardsigmoid")
    made.scale("scaled", deep, factors)
    made.conv("less", 10, 3)
    up = made.deconv("up", 6, 2, 2)
    made.concat("joined", [made.crop("cropped", up, after=wide), up])
    made.conv("classes", 3, 1)
    return made.model(title="pixels", source="this test", decay=1e-3)


def maps(kind: str = "l2") -> Model:
    """Ends in maps: its loss is half the sum of squares, or the sum."""
    made = Builder("maps", 2, (2, 9, 8))
    made.conv("conv1", 4, 3, 1, 0, weights_init=SMALL)
    made.relu()
    made.conv("conv2", 3, 3, 2, 2)
    model = made.model(title="maps", source="this test", loss=Loss(kind=kind))
    return dataclasses.replace(model, input_gradient=True, optimizer=Optimizer(kind="none"))


MODELS = {"chain": chain, "branches": branches, "maps": maps, "pixels": pixels}
