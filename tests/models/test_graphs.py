"""Properties of all models' graphs, and details of single models."""

import math
from collections import Counter
from typing import Any, get_args

import pytest
from catalogue import REPRESENTATIVES, built

from pydlbench import models
from pydlbench.models import build_model
from pydlbench.models.graph import INPUT, GraphNode, Init, Model, Op, Optimizer, trained_tensors


def test_each_family_has_a_representative():
    for family in models._families():
        assert models._models(family).keys() & set(REPRESENTATIVES), family


def taken(model: Model, node: GraphNode) -> list[tuple[int, ...]]:
    """The shapes of a node's inputs for one image."""
    return [model.image if one == INPUT else model[one].shape for one in node.inputs]


#: Sizes that a node without a layer keeps.
KEPT = {"flatten": math.prod, "shift": math.prod, "crop": lambda shape: shape[0]}
#: Shapes of a layer's source and result for one image, by its op.
SHAPES = {
    "conv": lambda one: ((one.in_channels, *one.in_size), (one.out_channels, *one.out_size)),
    "deconv": lambda one: (one.shapes()["src"][1:], one.shapes()["dst"][1:]),
    "gemm": lambda one: ((one.k,), (one.n,)),
    "pool": lambda one: ((one.channels, *one.in_size), (one.channels, *one.out_size)),
}


@pytest.mark.parametrize("name", REPRESENTATIVES)
def test_each_layer_fits_what_it_takes_and_gives(name):
    model = built(name)
    for node in model:
        layer, sources = node.layer, taken(model, node)
        where = f"{name}/{node.name}"
        assert node.op in get_args(Op)
        assert len(set(sources)) == 1 or node.op in ("concat", "scale"), where
        if layer is not None:
            assert (layer.name, layer.batch) == (where, model.batch)
        if layer is None:
            before, after = sources[0], node.shape
            kept = KEPT[node.op]
            assert kept(before) == kept(after), where
            assert node.op != "crop" or all(map(int.__ge__, before, after)), where
        elif layer.kind == "pointwise":
            assert layer.op == node.op, where
            assert layer.shapes()["dst"][1 : 1 + len(node.shape)] == node.shape, where
            roles = [role for role in layer.reads("forward") if role.startswith("src")]
            assert [(*shape, 1, 1)[:3] for shape in sources] == [
                layer.shapes()[role][1:] for role in roles
            ], where
        else:
            assert (sources[0], node.shape) == SHAPES[layer.op](layer), where


@pytest.mark.parametrize("name", REPRESENTATIVES)
def test_everything_leads_to_the_output(name):
    model = built(name)
    used = {one for node in model for one in node.inputs}
    assert {node.name for node in model} - used == {model.output.name}
    assert INPUT in used
    names = Counter(node.name for node in model)
    assert max(names.values()) == 1
    assert "loss" not in names
    if model.loss.kind == "cross-entropy":
        # One for each image, or for each of its pixels.
        assert model.output.shape[0] == model.classes
    for decay in model.decays:
        assert decay.tensor in trained_tensors(model[decay.node])
    assert model.title
    assert model.source


@pytest.mark.parametrize("name", REPRESENTATIVES)
def test_the_batch_changes_nothing_else(name):
    model, other = built(name), built(name, 3)
    assert (model.batch, other.batch) == (2, 3)
    for first, second in zip(model, other, strict=True):
        assert (first.name, first.op, first.inputs, first.shape) == (
            *(second.name, second.op, second.inputs, second.shape),
        )
        assert (first.layer and first.layer.with_batch(3)) == second.layer
        assert trained_tensors(first) == trained_tensors(second)


#: Attributes of single layers: model, its options, node, attributes.
LAYERS: list[tuple[str, dict[str, Any], str, dict[str, Any]]] = [
    ("alexnet", {}, "conv1", {"pad_before": (3, 3), "pad_after": (4, 4), "out_size": (56, 56)}),
    # TensorFlow's depth_radius=5, alpha=1e-4, beta=0.75, bias=2.
    ("alexnet", {}, "lrn2", {"local_size": 11, "alpha": 11 * 1e-4, "beta": 0.75, "k": 2.0}),
    ("cifar10", {}, "pool1", {"pad_before": (0, 0), "pad_after": (1, 1), "out_size": (12, 12)}),
    ("cifar10", {}, "norm1", {"local_size": 9, "alpha": 1e-3, "beta": 0.75, "k": 1.0}),
    ("cifar10", {}, "local3", {"k": 2304, "n": 384}),
    # The stride of a bottleneck.
    *(
        (name, {}, f"stage3/unit1/conv{number}", {"stride": (stride, stride)})
        for name, strides in (("resnet50", (1, 2, 1)), ("resnet50-v1", (2, 1, 1)))
        for number, stride in enumerate(strides, 1)
    ),
    # Both pad the first pooling to 56x56.
    ("resnet50", {}, "pool1", {"pad_before": (1, 1)}),
    ("resnet50-v1", {}, "pool1", {"pad_before": (0, 0)}),
    *(
        ("googlenet", {"form": form}, "inception3a/5x5", {"kernel": (taps, taps)})
        for form, taps in (("convnet", 5), ("tfcnn", 5), ("torchvision", 3))
    ),
    ("googlenet", {}, "pool1", {"pad_before": (1, 1)}),
    ("googlenet", {"form": "torchvision"}, "pool1", {"pad_before": (0, 0)}),
    ("inception-v3", {}, "stem/conv1/bn", {"epsilon": 1e-3, "momentum": 1e-3}),
    ("nasnet-mobile", {}, "conv0/bn", {"epsilon": 1e-3, "momentum": 3e-4}),
]


@pytest.mark.parametrize(("name", "options", "node", "expected"), LAYERS)
def test_single_layers(name, options, node, expected):
    layer = build_model(name, 1, **options)[node].layer
    assert {field: getattr(layer, field) for field in expected} == expected


#: Shapes of single nodes' outputs: model, its options, shapes by node.
OUTPUTS: list[tuple[str, dict[str, Any], dict[str, tuple[int, ...]]]] = [
    (
        "alexnet",
        {},
        {
            "conv1": (64, 56, 56),
            "pool1": (64, 27, 27),
            "conv2": (192, 27, 27),
            "pool2": (192, 13, 13),
            "conv3": (384, 13, 13),
            "conv4": (256, 13, 13),
            "conv5": (256, 13, 13),
            "pool5": (256, 6, 6),
        },
    ),
    ("alexnet", {"lrn": "off", "conv1": "VALID"}, {"conv1": (64, 55, 55)}),
    *(
        (
            "googlenet",
            {"form": form},
            {"pool1": (64, 56, 56), "inception5b/concat": (1024, 7, 7)},
        )
        for form in ("convnet", "tfcnn", "torchvision")
    ),
    # A cell's six states.
    ("nasnet-mobile", {}, {"cell12/concat": (1056, 7, 7)}),
    ("nasnet-large", {}, {"cell18/concat": (4032, 11, 11)}),
    (
        "densenet121",
        {},
        {"block4/layer16/concat": (1024, 7, 7), "transition3/pool": (512, 7, 7)},
    ),
]


@pytest.mark.parametrize(("name", "options", "expected"), OUTPUTS)
def test_shapes_of_single_outputs(name, options, expected):
    model = build_model(name, 1, **options)
    assert {node: model[node].shape for node in expected} == expected


@pytest.mark.parametrize(
    ("name", "node", "inputs"),
    [
        ("mnist", "fc2", ("dropout",)),
        ("nasnet-mobile", "stem2/before/relu", ("conv0/bn",)),
        # Behind a reduction: the reduction's first input, or its second one.
        ("nasnet-mobile", "cell5/before/relu", ("cell4/concat",)),
        ("nasnet-large", "cell7/before/relu", ("cell5/concat",)),
        ("densenet121", "block1/layer1/concat", ("pool0", "block1/layer1/conv2")),
    ],
)
def test_inputs_of_single_nodes(name, node, inputs):
    assert build_model(name, 1)[node].inputs == inputs


def test_alexnets_versions():
    model, oldest = build_model("alexnet", 1), build_model("alexnet", 1, lrn="off", conv1="VALID")
    assert [node.op for node in model][:4] == ["conv", "relu", "lrn", "pool"]
    assert (model.loss.kind, model.optimizer.kind, model.classes) == ("l2", "none", 0)
    assert oldest.image == (3, 227, 227)
    assert not [node for node in oldest if node.op == "lrn"]


def test_the_mnist_tutorial():
    model = build_model("mnist", 1)
    assert model.optimizer == Optimizer(kind="momentum", rate=0.01, mu=0.9)
    assert {(decay.node, decay.tensor, decay.factor) for decay in model.decays} == {
        *(("fc1", "weights", 5e-4), ("fc1", "bias", 5e-4)),
        *(("fc2", "weights", 5e-4), ("fc2", "bias", 5e-4)),
    }
    assert model["conv1"].bias_init == Init(kind="constant", value=0.0)
    assert {model[name].bias_init.value for name in ("conv2", "fc1", "fc2")} == {0.1}
    assert {node.weights_init.value for node in model if node.bias} == {0.1}


def test_the_cifar10_tutorial():
    model = build_model("cifar10", 1)
    assert model.image == (3, 24, 24)
    # Pooling, then normalisation; in the second stage the other way round.
    order = [node.name for node in model if node.op in ("conv", "lrn", "pool")]
    assert order == ["conv1", "pool1", "norm1", "conv2", "norm2", "pool2"]
    factors = {"conv1": 0.0, "conv2": 0.0, "local3": 4e-3, "local4": 4e-3, "softmax_linear": 0.0}
    assert {decay.node: decay.factor for decay in model.decays} == factors
    assert [model[name].bias_init.value for name in ("conv1", "conv2", "local4")] == [0, 0.1, 0.1]


def test_normalisations_and_shortcuts():
    for form in ("convnet", "tfcnn", "torchvision"):
        operations = {node.op for node in build_model("googlenet", 1, form=form)}
        assert ("batchnorm" in operations) == (form == "torchvision")
    assert build_model("googlenet", form="tfcnn").batch == 32
    assert not build_model("inception-v3", 1, scale="off")["stem/conv1/bn"].scale
    assert build_model("resnet50", 1)["conv1/bn"].scale
    shortcuts = [node.name for node in build_model("resnet152", 1) if "shortcut" in node.name]
    assert len(shortcuts) == 2 * 4


def test_cells_of_nasnet():
    mobile = build_model("nasnet-mobile", 1)
    # The first stem cell has only one input, and nothing to fit.
    assert "stem1/before/relu" not in {node.name for node in mobile}
    assert len(mobile["reduce1/concat"].inputs) == 4
    # If maps are twice as large, odd columns come through a shift.
    shifts = [node.name for node in mobile if node.op == "shift"]
    assert shifts == [f"{cell}/before/shift" for cell in ("stem2", "cell1", "cell5", "cell9")]
