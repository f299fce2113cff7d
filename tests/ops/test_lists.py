"""Lists in benchdnn's grammar: every problem in them can be parsed."""

import re
from pathlib import Path

import pytest

from pydlbench.errors import UsageError
from pydlbench.models.catalog import find_layers
from pydlbench.ops.op import Layer

LISTS = sorted((Path(__file__).parent / "benchdnn").iterdir())
# Number of problems, and kinds of layers, by file.
EXPECTED = {
    "shapes_1d_wavenet": (8, {"conv1d"}),
    "shapes_3d_unet": (13, {"conv3d"}),
    "shapes_alexnet": (5, {"conv2d"}),
    "shapes_basic": (12, {"conv1d", "conv2d", "conv3d"}),
    "shapes_deconv": (11, {"deconv1d", "deconv2d", "deconv3d"}),
    "shapes_dilated": (5, {"conv2d"}),
    "shapes_googlenet_v1": (18, {"conv2d"}),
    "shapes_googlenet_v3": (16, {"conv2d"}),
    "shapes_matmul": (22, {"gemm"}),
    "shapes_mobilenet": (5, {"conv2d"}),
    "shapes_pool": (26, {"pool1d", "pool2d", "pool3d"}),
    "shapes_resnet_50": (20, {"conv2d"}),
    "shapes_unet": (6, {"conv2d"}),
    "shapes_vgg_19": (9, {"conv2d"}),
}


def found_in(path: Path) -> list[Layer]:
    pool = "max" if "pool" in path.name else None
    return find_layers([f"@{path}"], pool=pool)


@pytest.mark.parametrize("path", LISTS, ids=lambda path: path.name)
def test_every_problem_is_understood(path):
    count, kinds = EXPECTED[path.name]
    layers = found_in(path)
    assert (len(layers), {layer.kind for layer in layers}) == (count, kinds)
    named = re.findall(r'n"([^"]+)"', path.read_text())
    assert [layer.name for layer in layers if layer.name is not None] == named


def test_what_is_no_problem_is_an_error_with_file_line_and_column(tmp_path):
    file = tmp_path / "shapes"
    file.write_text("--reset\n\n# right\nic3ih8oc4kh3\nic3ih8oc4kh3zz1\n")
    with pytest.raises(UsageError) as caught:
        find_layers([f"@{file}"])
    assert str(caught.value).startswith(f"{file}:5: ic3ih8oc4kh3zz1: column 13: ")
