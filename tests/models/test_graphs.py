"""Properties of all models' graphs, and details of single models."""

import math
from collections import Counter
from typing import Any, get_args

import pytest
from catalogue import REPRESENTATIVES, built

from pydlbench import models
from pydlbench.models import build_model
from pydlbench.models.graph import INPUT, GraphNode, Init, Model, Op, Optimizer, trained_tensors
from pydlbench.ops.table import build_layer


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


def layer_of(name: str, node: str, **options: Any) -> Any:
    return build_model(name, 1, **options)[node].layer


def test_alexnets_vintages():
    conv1 = layer_of("alexnet", "conv1")
    assert (conv1.pad_before[0], conv1.pad_after[0], conv1.out_size) == (3, 4, (56, 56))
    model = build_model("alexnet", 1)
    assert [node.op for node in model][:4] == ["conv", "relu", "lrn", "pool"]
    # TensorFlow's depth_radius=5, alpha=1e-4, beta=0.75, bias=2.
    assert layer_of("alexnet", "lrn2").parameters == {
        "local_size": 11,
        "alpha": 11 * 1e-4,
        "beta": 0.75,
        "k": 2.0,
    }
    shapes = [node.shape for node in model if node.op in ("conv", "pool")]
    assert shapes == [
        *((64, 56, 56), (64, 27, 27), (192, 27, 27), (192, 13, 13)),
        *((384, 13, 13), (256, 13, 13), (256, 13, 13), (256, 6, 6)),
    ]
    assert (model.loss.kind, model.optimizer.kind, model.classes) == ("l2", "none", 0)
    oldest = build_model("alexnet", 1, lrn="off", conv1="VALID")
    assert oldest.image == (3, 227, 227)
    assert oldest["conv1"].shape == (64, 55, 55)
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
    assert model["fc2"].inputs == ("dropout",)


def test_the_cifar10_tutorial():
    model = build_model("cifar10", 1)
    assert model.image == (3, 24, 24)
    # Pooled, then normalised; in the second stage the other way round.
    order = [node.name for node in model if node.op in ("conv", "lrn", "pool")]
    assert order == ["conv1", "pool1", "norm1", "conv2", "norm2", "pool2"]
    pool = layer_of("cifar10", "pool1")
    assert (pool.pad_before[0], pool.pad_after[0], pool.out_size[0]) == (0, 1, 12)
    norm = layer_of("cifar10", "norm1").parameters
    assert norm == {"local_size": 9, "alpha": pytest.approx(9 * 0.001 / 9), "beta": 0.75, "k": 1.0}
    factors = {"conv1": 0.0, "conv2": 0.0, "local3": 4e-3, "local4": 4e-3, "softmax_linear": 0.0}
    assert {decay.node: decay.factor for decay in model.decays} == factors
    assert model["local3"].layer == build_layer("gemm", m=1, k=2304, n=384, name="cifar10/local3")
    assert [model[name].bias_init.value for name in ("conv1", "conv2", "local4")] == [0, 0.1, 0.1]


def test_where_bottlenecks_stride():
    def strides(name: str) -> list[int]:
        return [layer_of(name, f"stage3/unit1/conv{one}").stride[0] for one in (1, 2, 3)]

    assert strides("resnet50") == [1, 2, 1]
    assert strides("resnet50-v1") == [2, 1, 1]
    # Both pad the first pooling to 56x56.
    assert layer_of("resnet50", "pool1").pad_before[0] == 1
    assert layer_of("resnet50-v1", "pool1").pad_before[0] == 0
    shortcuts = [node.name for node in build_model("resnet152", 1) if "shortcut" in node.name]
    assert len(shortcuts) == 2 * 4


def test_forms_of_googlenet():
    def taps(form: str) -> int:
        return int(layer_of("googlenet", "inception3a/5x5", form=form).kernel[0])

    assert [taps(form) for form in ("convnet", "tfcnn", "torchvision")] == [5, 5, 3]
    assert layer_of("googlenet", "pool1").pad_before[0] == 1
    assert layer_of("googlenet", "pool1", form="torchvision").pad_before[0] == 0
    for form in ("convnet", "tfcnn", "torchvision"):
        model = build_model("googlenet", 1, form=form)
        assert model["pool1"].shape == (64, 56, 56)
        assert model["inception5b/concat"].shape == (1024, 7, 7)
        assert bool([node for node in model if node.op == "batchnorm"]) == (form == "torchvision")
    assert build_model("googlenet", form="tfcnn").batch == 32


def test_normalisations():
    inception, nasnet = (
        layer_of("inception-v3", "stem/conv1/bn"),
        layer_of("nasnet-mobile", "conv0/bn"),
    )
    assert (inception.epsilon, inception.momentum) == (1e-3, 1e-3)
    assert (nasnet.epsilon, nasnet.momentum) == (1e-3, 3e-4)
    assert not build_model("inception-v3", 1, scale="off")["stem/conv1/bn"].scale
    assert build_model("resnet50", 1)["conv1/bn"].scale


def test_where_nasnets_cells_look_back():
    mobile, large = build_model("nasnet-mobile", 1), build_model("nasnet-large", 1)
    # The first stem cell has only one input, and nothing to fit.
    assert "stem1/before/relu" not in {node.name for node in mobile}
    assert mobile["stem2/before/relu"].inputs == ("conv0/bn",)
    # Behind a reduction: the reduction's input, or what came before that.
    assert mobile["cell5/before/relu"].inputs == ("cell4/concat",)
    assert large["cell7/before/relu"].inputs == ("cell5/concat",)
    # A cell's six states; those of a reduction's four blocks.
    assert mobile["cell12/concat"].shape == (1056, 7, 7)
    assert large["cell18/concat"].shape == (4032, 11, 11)
    assert len(mobile["reduce1/concat"].inputs) == 4
    # Odd columns come through a shift, where maps are twice as large.
    shifts = [node.name for node in mobile if node.op == "shift"]
    expected = ["stem2", "cell1", "cell5", "cell9"]
    assert shifts == [f"{cell}/before/shift" for cell in expected]


def test_densenet_appends_maps():
    model = build_model("densenet121", 1)
    assert model["block1/layer1/concat"].inputs == ("pool0", "block1/layer1/conv2")
    assert model["block4/layer16/concat"].shape == (1024, 7, 7)
    assert model["transition3/pool"].shape == (512, 7, 7)
