"""Parameters and multiply-adds compared with published numbers.

torchvision's model metadata, Keras' parameter counts, the README of slim's NASNet, and sums over
the layer tables of soumith/convnet-benchmarks and tf_cnn_benchmarks.
"""

from typing import Any

import pytest

from pydlbench.models import build_model, model_names
from pydlbench.models.passes import macs, parameters, summary

# Trained parameters, multiply-adds of one image's forward pass, those of its first convolution.
ORACLE = {
    "mnist": (1_663_370, 12_273_152, 627_200),
    "cifar10": (1_068_298, 18_470_784, 2_764_800),
    "alexnet": (2_469_696, 658_145_280, 72_855_552),
    "alexnet-owt": (61_100_840, 714_188_480, 70_276_800),
    "alexnet-tfcnn": (61_842_345, 838_792_896, 70_276_800),
    "alexnet-tfcnn-cifar10": (1_756_619, 32_778_304, 4_915_200),
    "vgg11": (132_863_336, 7_609_090_048, 86_704_128),
    "vgg13": (133_047_848, 11_308_466_176, 86_704_128),
    "vgg16": (138_357_544, 15_470_264_320, 86_704_128),
    "vgg19": (143_667_240, 19_632_062_464, 86_704_128),
    "googlenet": (6_998_552, 1_582_671_872, 118_013_952),
    "overfeat-fast": (145_920_872, 2_801_403_904, 109_283_328),
    "resnet18": (11_689_512, 1_814_073_344, 118_013_952),
    "resnet50": (25_557_032, 4_089_184_256, 118_013_952),
    "resnet101": (44_549_160, 7_801_405_440, 118_013_952),
    "resnet152": (60_192_808, 11_513_626_624, 118_013_952),
    "resnet18-v1": (11_689_512, 1_814_073_344, 118_013_952),
    "resnet50-v1": (25_557_032, 3_857_973_248, 118_013_952),
    # v1 saves the same in each model: three strided units with a 1x1 at a quarter of the pixels.
    "resnet101-v1": (44_549_160, 7_801_405_440 - 231_211_008, 118_013_952),
    "resnet152-v1": (60_192_808, 11_282_415_616, 118_013_952),
    "densenet121": (7_978_856, 2_834_161_664, 118_013_952),
    "densenet161": (28_681_000, 7_727_907_072, 177_020_928),
    "densenet169": (14_149_480, 3_359_843_328, 118_013_952),
    "densenet201": (20_013_928, 4_291_365_888, 118_013_952),
    "inception-v3": (23_834_568, 5_713_216_096, 19_181_664),
    # torchvision's metadata: 0.301 and 0.217 G; the papers: 3.4 M and 300 M, 5.4 M and 219 M.
    "mobilenet-v2": (3_504_872, 300_774_272, 10_838_016),
    "mobilenet-v3-large": (5_483_032, 216_589_760, 5_419_008),
    # 31,030,593 are those with one class; multiply-adds are derived below.
    "unet": (31_030_658, 150_428_424_448, 187_142_400),
    "nasnet-mobile": (5_289_978, 563_638_816, 10_645_344),
    "nasnet-large": (88_753_150, 23_783_414_658, 70_567_200),
}
# Of the publications, or of the scripts that timed them.
BATCHES = {
    "mnist": 64,
    "cifar10": 128,
    "alexnet": 128,
    "alexnet-owt": 128,
    "alexnet-tfcnn": 512,
    "alexnet-tfcnn-cifar10": 128,
    **dict.fromkeys(("vgg11", "vgg13", "vgg16", "vgg19"), 64),
    "googlenet": 128,
    "overfeat-fast": 128,
    "resnet50": 64,
    "resnet152": 32,
    "densenet161": 16,
    "inception-v3": 32,
    "nasnet-mobile": 32,
    "nasnet-large": 16,
}
VARIANTS: list[tuple[str, dict[str, Any], int, int]] = [
    ("unet", {"classes": 1}, 31_030_593, 150_428_424_448 - 64 * 388 * 388),
    ("googlenet", {"form": "tfcnn"}, 6_999_577, 1_582_672_896),
    ("googlenet", {"form": "torchvision"}, 6_624_904, 1_498_376_192),
    ("inception-v3", {"scale": False}, 23_817_352, 5_713_216_096),
    ("inception-v3", {"scale": "off", "classes": 1001}, 23_819_401, 5_713_218_144),
    ("vgg16", {"classes": 1001}, 138_361_641, 15_470_268_416),
    ("resnet50-v1", {"classes": 1001}, 25_559_081, 3_857_975_296),
    ("resnet152-v1", {"classes": 1001}, 60_194_857, 11_282_417_664),
    # The oldest script: 227x227 without padding is 55x55, as in convnet-benchmarks.
    ("alexnet", {"conv1": "valid", "lrn": "off"}, 2_469_696, 655_566_528),
]


def test_every_model_is_held_against_an_oracle():
    assert set(ORACLE) == set(model_names())


@pytest.mark.parametrize("name", ORACLE)
def test_parameters_and_multiply_adds(name):
    model = build_model(name)
    assert model.batch == BATCHES.get(name, model.batch)
    expected_parameters, forward, first = ORACLE[name]
    assert parameters(model) == expected_parameters
    assert macs(model) == forward
    assert macs(model, "training") == macs(model, "forward-backward") == 3 * forward - first


@pytest.mark.parametrize(("name", "options", "expected_parameters", "forward"), VARIANTS)
def test_variants(name, options, expected_parameters, forward):
    model = build_model(name, 1, **options)
    assert (parameters(model), macs(model)) == (expected_parameters, forward)


def test_the_gradient_of_the_input_costs_the_first_convolution_once_more():
    model = build_model("vgg16", 2, input_gradient=True)
    assert macs(model, "training") == 3 * 15_470_264_320


def test_statistics_of_normalisations_are_what_keras_and_torchvision_keep_beside():
    from pydlbench.models.graph import buffers

    def kept(name: str, **options: Any) -> int:
        model = build_model(name, 1, **options)
        return sum(shape[0] for node in model for shape in buffers(node).values())

    assert kept("inception-v3", scale=False) == 23_851_784 - 23_817_352
    assert kept("nasnet-mobile") == 5_326_716 - 5_289_978
    assert kept("densenet121") == 8_062_504 - 7_978_856
    # torchvision counts one number of batches for each of the 53 too.
    assert kept("resnet50") == 53_173 - 53


def test_summary_is_what_is_counted():
    found = summary(build_model("alexnet-owt", 7))
    assert found["model"] == "alexnet-owt"
    assert found["parameters"] == 61_100_840
    assert found["macs_forward"] == 714_188_480
    assert found["macs_training"] == 714_188_480 + 1_358_100_160
    layers = {layer["name"]: layer for layer in found["layers"]}
    assert sum(layer["parameters"] for layer in layers.values()) == 61_100_840
    assert sum(layer["macs_forward"] for layer in layers.values()) == 714_188_480
    assert layers["conv3"] == {
        "name": "conv3",
        "op": "conv",
        "inputs": ["pool2"],
        "shape": [384, 13, 13],
        "problem": "mb7ic192ih13oc384oh13kh3ph1",
        "parameters": 663_936,
        "macs_forward": 112_140_288,
    }
    assert layers["flatten"]["problem"] is None


def test_unet_by_the_sizes_in_its_figure():
    """Figure 1 of arXiv:1505.04597 writes sides and channels at each map."""
    # Side of the map that an arrow leads to, its channels, and those of the map it comes from.
    convolutions = [
        *((570, 64, 1), (568, 64, 64), (282, 128, 64), (280, 128, 128)),
        *((138, 256, 128), (136, 256, 256), (66, 512, 256), (64, 512, 512)),
        *((30, 1024, 512), (28, 1024, 1024)),
        *((54, 512, 1024), (52, 512, 512), (102, 256, 512), (100, 256, 256)),
        *((198, 128, 256), (196, 128, 128), (390, 64, 128), (388, 64, 64)),
    ]
    # Each element of the smaller map fills a window of 2 x 2.
    up = [(28, 512, 1024), (52, 256, 512), (100, 128, 256), (196, 64, 128)]
    expected = sum(9 * side**2 * to * of for side, to, of in convolutions)
    expected += sum(4 * side**2 * to * of for side, to, of in up) + 388**2 * 64 * 2
    trained = sum(9 * to * of + to for _, to, of in convolutions)
    trained += sum(4 * to * of + to for _, to, of in up) + 64 * 2 + 2
    model = build_model("unet")
    assert (parameters(model), macs(model)) == (trained, expected)
    sides = [node.shape[1] for node in model if node.op == "conv"]
    assert sides == [*(side for side, _, _ in convolutions), 388]
    assert [node.shape for node in model if node.op == "crop"] == [
        *((512, 56, 56), (256, 104, 104), (128, 200, 200), (64, 392, 392))
    ]
