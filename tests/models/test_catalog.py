"""The catalog compared with published numbers.

Multiply-adds per layer are computed from the networks' own definition files.
"""

from __future__ import annotations

import subprocess
import sys
from typing import TYPE_CHECKING

import pytest

from pydlbench.errors import UsageError
from pydlbench.models import model_names
from pydlbench.models.catalog import TRANSFORMERS, entry_names, find_layers, load_entry

if TYPE_CHECKING:
    from pydlbench.ops.op import Layer

VGG_HEAD = {"fc6": 102_760_448, "fc7": 16_777_216, "fc8": 4_096_000}
CONV3_TO_5 = {"conv3": 112_140_288, "conv4": 149_520_384, "conv5": 99_680_256}

# Multiply-adds of one image's forward pass.
MACS = {
    "alexnet": {"conv1": 72_855_552, "conv2": 223_948_800, **CONV3_TO_5},
    "alexnet-owt": {
        "conv1": 70_276_800,
        "conv2": 223_948_800,
        **CONV3_TO_5,
        "fc6": 37_748_736,
        "fc7": 16_777_216,
        "fc8": 4_096_000,
    },
    "alexnet-tfcnn": {
        "conv1": 70_276_800,
        "conv2": 223_948_800,
        "conv3": 112_140_288,
        "conv4": 224_280_576,
        "conv5": 149_520_384,
        "fc6": 37_748_736,
        "fc7": 16_777_216,
        "fc8": 4_100_096,
    },
    "vgg11": {
        "conv1_1": 86_704_128,
        "conv2_1": 924_844_032,
        "conv3_1": 924_844_032,
        "conv3_2": 1_849_688_064,
        "conv4_1": 924_844_032,
        "conv4_2": 1_849_688_064,
        "conv5_1": 462_422_016,
        "conv5_2": 462_422_016,
        **VGG_HEAD,
    },
    "vgg16": {
        "conv1_1": 86_704_128,
        "conv1_2": 1_849_688_064,
        "conv2_1": 924_844_032,
        "conv2_2": 1_849_688_064,
        "conv3_1": 924_844_032,
        "conv3_2": 1_849_688_064,
        "conv3_3": 1_849_688_064,
        "conv4_1": 924_844_032,
        "conv4_2": 1_849_688_064,
        "conv4_3": 1_849_688_064,
        "conv5_1": 462_422_016,
        "conv5_2": 462_422_016,
        "conv5_3": 462_422_016,
        **VGG_HEAD,
    },
    "convnet": {
        "L1": 485_223_552,
        "L2": 2_080_899_072,
        "L3": 764_411_904,
        "L4": 80_281_600,
        "L5": 160_579_584,
    },
    "mnist": {"conv1": 627_200, "conv2": 10_035_200, "fc1": 1_605_632, "fc2": 5_120},
    "cifar10": {
        "conv1": 2_764_800,
        "conv2": 14_745_600,
        "local3": 884_736,
        "local4": 73_728,
        "softmax_linear": 1_920,
    },
}


def weighted(model: str) -> dict[str, Layer]:
    """The model's layers with weights, by their bare names."""
    return {
        str(layer.name).removeprefix(f"{model}/"): layer
        for layer in load_entry(model).layers
        if layer.op != "pool"
    }


def macs_per_image(layer: Layer) -> int:
    macs, rest = divmod(layer.flops("forward"), 2 * layer.batch)
    assert rest == 0
    return macs


@pytest.mark.parametrize("model", MACS)
def test_multiply_adds_per_layer(model):
    found = {name: macs_per_image(layer) for name, layer in weighted(model).items()}
    assert found == MACS[model]
    assert list(found) == list(MACS[model])


def test_every_entry_is_a_model_or_held_against_an_oracle():
    held = {*MACS, *model_names(), *TRANSFORMERS, "deepbench"}
    assert held == set(entry_names())


@pytest.mark.parametrize(
    ("name", "weights", "attention"),
    # Weights without biases: 12 h^2 of a block and the vocabulary's; an attention's multiply-adds
    # of one sequence: twice the square of its length times the width.
    [
        ("bert-base", 12 * 768**2 + 30522 * 768, 2 * 128**2 * 768),
        ("gpt2-small", 12 * 768**2 + 50257 * 768, 2 * 1024**2 * 768),
    ],
)
def test_transformers_have_the_published_sizes(name, weights, attention):
    layers = {str(layer.name).partition("/")[2]: layer for layer in load_entry(name).layers}
    alike = {"query": 3}  # with keys and values
    trained = {bare: one for bare, one in layers.items() if getattr(one, "batch_count", 0) == 1}
    assert len(layers) == len(trained) + 5
    assert sum(alike.get(bare, 1) * one.weight_elements for bare, one in trained.items()) == weights
    both = layers["attention_scores"], layers["attention_context"]
    assert sum(map(macs_per_image, both)) == attention
    assert {one.batch for one in layers.values()} == {load_entry(name).batch}


def test_the_batch_of_a_transformer_is_its_sequences():
    product, scores = find_layers(["bert-base/query", "bert-base/attention_scores"], batch=2)
    assert (product.problem, product.batch) == ("256x768:768x768", 2)
    assert (scores.problem, scores.batch) == ("24x128x64:24x64x128wtagnk", 2)
    found = find_layers(["bert-base/attention_softmax", "bert-base/norm"], batch=2)
    expected = ["softmax:mb2ic12ih128", "layernorm:mb2ic128ih1iw768eps1e-12"]
    assert [one.problem for one in found] == expected


def test_a_step_of_the_recurrent_benchmark():
    """Matrices of source and state, both square, for each of four gates or three."""
    for layer in load_entry("deepbench").layers:
        assert layer.kind == "recurrent"
        assert layer.name == f"deepbench/{layer.cell}{layer.hidden}"
        gates = {"lstm": 4, "gru": 3}[layer.cell]
        assert macs_per_image(layer) == layer.steps * 2 * gates * layer.hidden**2
        assert layer.batch == 32
    (layer,) = find_layers(["deepbench/lstm512"], batch=16)
    assert layer.problem == "lstm:l1t25mb16slc512dhc512"


def test_layers_of_deep_models_are_found_by_name():
    assert len(find_layers(["resnet50/*"])) == 53 + 2 + 1
    (layer,) = find_layers(["resnet50/stage2/unit1/conv2"])
    assert layer.problem == "mb64ic64ih56oc64oh56kh3ph1"
    assert len(find_layers(["resnet152/stage4/*/conv2"])) == 36
    assert find_layers(["nasnet-mobile/*depthwise1"])


def test_only_alexnet_is_built_for_one_of_its_layers():
    code = (
        "import sys; from pydlbench.models.catalog import find_layers; find_layers(['conv3']);"
        "prefix = 'pydlbench.models.families.';"
        "print([name for name in sys.modules if name.startswith(prefix)])"
    )
    found = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert found.stdout.strip() == "['pydlbench.models.families.alexnet']"


def test_unknown_models_are_answered_with_the_nearest():
    with pytest.raises(UsageError, match=r"^vgg61: .*nearest: vgg1"):
        load_entry("vgg61")
    with pytest.raises(UsageError, match=r"^zzz: .*nearest: alexnet, "):
        load_entry("zzz")
