"""The list of passes of a step."""

import dataclasses
from collections import Counter

import pytest
from catalogue import REPRESENTATIVES, built, listed

from pydlbench.errors import UsageError
from pydlbench.models import build_model
from pydlbench.models.graph import INPUT, Builder, Decay, Loss, Model, Optimizer, trained_tensors
from pydlbench.models.passes import StepPass, macs, parameters, step_passes
from pydlbench.words import PHASES


def steps(items: tuple[StepPass, ...]) -> list[tuple[str, str]]:
    """Names without the model, with their passes."""
    return [(str(item.layer.name).partition("/")[2], item.pass_) for item in items]


def small(optimizer: str = "momentum", **options: object) -> Model:
    net = Builder("m", 2, (3, 6, 6))
    first = net.conv("a", 4, 3, 1, 1)
    net.conv("b", 4, 3, 1, 1, bias=False)
    net.add("sum", net.last, first)
    net.flatten()
    net.dropout("drop", 0.5)
    net.linear("fc", 5)
    return net.model(
        title="t",
        source="s",
        decays=[Decay(node="fc", tensor="weights", factor=0.0)],
        optimizer=Optimizer(kind=optimizer, rate=0.5, mu=0.25),  # type: ignore[arg-type]
        **options,  # type: ignore[arg-type]
    )


def test_forward_leaves_out_what_training_needs():
    items = step_passes(small(), "forward")
    assert steps(items) == [
        *(("a", "forward"), ("a/bias", "forward"), ("b", "forward"), ("sum", "forward")),
        *(("fc", "forward"), ("fc/bias", "forward")),
    ]
    assert {item.propagation for item in items} == {"inference"}


FORWARD_BACKWARD = [
    *(("a", "forward"), ("a/bias", "forward"), ("b", "forward"), ("sum", "forward")),
    *(("drop", "forward"), ("fc", "forward"), ("fc/bias", "forward"), ("loss", "forward")),
    ("loss", "backward-data"),
    *(("fc/bias", "backward-weights"), ("fc", "backward-weights"), ("fc", "backward-data")),
    ("drop", "backward-data"),
    *(("b", "backward-weights"), ("b", "backward-data")),
    # Gradients from the sum and from b; the image needs no gradient.
    ("a/gradient-sum", "forward"),
    *(("a/bias", "backward-weights"), ("a", "backward-weights")),
]


def test_forward_backward_in_order():
    items = step_passes(small(), "forward-backward")
    assert steps(items) == FORWARD_BACKWARD
    assert {item.propagation for item in items} == {"training"}
    assert {item.node for item in items} == {"a", "b", "sum", "drop", "fc", "loss"}
    sum_ = next(item.layer for item in items if item.layer.name == "m/a/gradient-sum")
    assert sum_.problem == "add:mb2ic4ih6"


def test_training_adds_terms_and_updates():
    items = step_passes(small(), "training")
    names = steps(items)
    terms = [("fc/weights/l2", "forward"), ("fc/weights/l2", "backward-weights")]
    updates = ["a/weights", "a/bias", "b/weights", "fc/weights", "fc/bias"]
    assert [step for step in names if step in FORWARD_BACKWARD] == FORWARD_BACKWARD
    assert [step for step in names if step not in FORWARD_BACKWARD] == [
        *terms,
        *((f"{tensor}/update", "forward") for tensor in updates),
    ]
    l2, update = (
        next(item.layer for item in items if item.layer.name == f"m/fc/weights/{part}")
        for part in ("l2", "update")
    )
    assert (l2.kind, l2.channels, l2.decay) == ("pointwise", 720, 0.0)
    assert (update.op, update.channels, update.rate, update.mu) == ("momentum", 720, 0.5, 0.25)


def test_without_an_optimizer_training_ends_at_the_gradients():
    names = [name for name, _ in steps(step_passes(small("none"), "training"))]
    assert not [name for name in names if name.endswith("/update")]
    sgd = [item.layer for item in step_passes(small("sgd"), "training") if item.pass_ == "forward"]
    assert {layer.problem for layer in sgd if str(layer.name).endswith("bias/update")} == {
        *("sgd:ic4lr0.5", "sgd:ic5lr0.5"),
    }


def test_losses():
    def items(kind: str) -> list[tuple[str, str]]:
        model = small(loss=Loss(kind=kind))  # type: ignore[arg-type]
        passes = step_passes(model, "forward-backward")
        return [(item.layer.problem, item.pass_) for item in passes if item.node == "loss"]

    assert items("cross-entropy") == [
        *(("softmax-xent:mb2ic5", "forward"), ("softmax-xent:mb2ic5", "backward-data")),
    ]
    assert items("l2") == [("l2:ic10", "forward")]
    assert items("sum") == []


def test_a_gradient_of_the_input():
    net = Builder("m", 1, (3, 4, 4))
    net.concat("both", [net.relu("r", after=INPUT), INPUT])
    net.conv("c", 2, 1, bias=False)
    model = net.model(title="t", source="s", loss=Loss(kind="sum"))
    without = steps(step_passes(model, "forward-backward"))
    assert without[3:] == [("c", "backward-weights")]
    wanted = dataclasses.replace(model, input_gradient=True)
    assert steps(step_passes(wanted, "forward-backward"))[3:] == [
        *(("c", "backward-weights"), ("c", "backward-data"), ("both", "backward-data")),
        *(("r", "backward-data"), ("input/gradient-sum", "forward")),
    ]


@pytest.mark.parametrize("name", REPRESENTATIVES)
def test_lists_agree_with_counts(name):
    model = built(name)
    nodes = {*(node.name for node in model), "loss"}
    lists = {phase: listed(name, phase) for phase in PHASES}
    for phase, items in lists.items():
        flops = sum(
            item.layer.flops(item.pass_)
            for item in items
            if item.layer.op in ("conv", "deconv", "gemm")
        )
        assert flops == 2 * model.batch * macs(model, phase)
        assert {item.node for item in items} <= nodes
        assert all(item.pass_ in item.layer.passes for item in items)
        assert all(str(item.layer.name).startswith(f"{name}/") for item in items)
        once = Counter(
            (item.layer.name, item.pass_)
            for item in items
            if not str(item.layer.name).endswith("/gradient-sum")
        )
        assert set(once.values()) == {1}
    assert set(lists["forward-backward"]) <= set(lists["training"])


@pytest.mark.parametrize("name", REPRESENTATIVES)
def test_every_trained_tensor_gets_its_gradient_and_update(name):
    model = build_model(name, 1, optimizer="momentum")
    items = step_passes(model, "training")
    updated = [item.layer for item in items if str(item.layer.name).endswith("/update")]
    assert sum(layer.weight_elements for layer in updated) == parameters(model)
    wanted = set()
    for node in model:
        layer = f"{name}/{node.name}"
        if node.op in ("batchnorm", "relu", "pool", "lrn", "concat", "dropout"):
            wanted.add((layer, "backward-data"))
        elif trained_tensors(node):
            wanted.add((layer, "backward-weights"))
        if node.bias:
            wanted |= {(f"{layer}/bias", "forward"), (f"{layer}/bias", "backward-weights")}
    assert wanted <= {(item.layer.name, item.pass_) for item in items}


@pytest.mark.parametrize(
    ("count", "phase", "near"), [(step_passes, "train", "training"), (macs, "zzz", "forward")]
)
def test_unknown_phases(count, phase, near):
    with pytest.raises(UsageError, match=rf"^--phase {phase}: .*nearest: {near}$"):
        count(small(), phase)
