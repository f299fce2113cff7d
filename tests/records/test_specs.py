import dataclasses
import json

import pytest

from pydlbench.errors import UsageError
from pydlbench.ops.table import build_layer
from pydlbench.records.measurement import KernelSpec

CONV = build_layer(
    "conv",
    batch=2,
    in_channels=6,
    in_size=(7, 9),
    out_channels=4,
    kernel=(3, 2),
    stride=(2, 1),
    padding=(1, 0, 0, 1),
    dilation=(1, 2),
    groups=2,
    name="mine",
)
LAYERS = [
    CONV,
    build_layer("gemm", m=3, k=4, n=5, batch_count=2),
    build_layer(
        "pool",
        batch=1,
        channels=3,
        in_size=8,
        kernel=3,
        stride=2,
        mode="avg",
        count_include_pad=True,
    ),
    build_layer("concat", batch=2, channels=7, sources=(3, 4), height=5),
]


@pytest.mark.parametrize("layer", LAYERS, ids=lambda layer: layer.kind)
def test_a_case_survives_the_wire(layer):
    case = KernelSpec(
        layer=layer,
        pass_="backward-data",
        precision="bf16",
        propagation="training",
        cache="all-cold",
        layout="nhwc",
    )
    assert KernelSpec.from_dict(json.loads(json.dumps(case.to_dict()))) == case


@pytest.mark.parametrize(
    ("field", "value", "message"),
    [
        ("pass_", "backward-wieghts", "--pass backward-wieghts: .*nearest: backward-weights"),
        ("precision", "fp23", "--precision fp23: .*nearest: fp32"),
        ("propagation", "train", "--propagation train: .*nearest: training"),
        ("cache", "cold", "--cache cold: .*nearest: all-cold"),
        ("layout", "nwhc", "--layout nwhc: .*nearest: nhwc"),
        ("precision", 32, "--precision 32: .*nearest: "),
        ("cache", None, "--cache None: .*nearest: "),
    ],
)
def test_an_unknown_word_is_refused_with_the_nearest(field, value, message):
    with pytest.raises(UsageError, match=message) as caught:
        KernelSpec(layer=CONV, **{field: value})
    assert "\n" not in str(caught.value)


def test_the_label_is_the_name_or_the_problem():
    assert KernelSpec(layer=CONV).label == "mine forward fp32"
    nameless = dataclasses.replace(CONV, name=None)
    assert KernelSpec(layer=nameless, precision="bf16").label == f"{CONV.problem} forward bf16"
