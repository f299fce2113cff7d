"""Every pooling plan is right, cuDNN's and ours, to the device's judgement and to the host's."""

from __future__ import annotations

from typing import Any

import pytest

from pydlbench.errors import UnsupportedError
from pydlbench.ops.table import build_layer
from pydlbench.records.measurement import KernelSpec

pytestmark = pytest.mark.gpu

KINDS = {
    "max": {"mode": "max"},
    "average": {"mode": "avg"},
    "average with padding": {"mode": "avg", "count_include_pad": True},
}
SHAPES: dict[str, dict[str, Any]] = {
    "3x3 stride 2": {"channels": 5, "in_size": (9, 11), "kernel": 3, "stride": 2, "padding": 1},
    "2x2 stride 2": {"channels": 16, "in_size": (8, 10), "kernel": 2, "stride": 2},
    "asymmetric": {"channels": 3, "in_size": (9, 8), "kernel": (3, 2), "padding": (0, 1, 1, 0)},
    "all of the image": {"channels": 33, "in_size": 7, "kernel": 7},
    "gaps": {"channels": 4, "in_size": (11, 10), "kernel": 2, "stride": 3},
}


@pytest.mark.parametrize("mode", ["fp32", "tf32", "fp16", "fp16-tc", "bf16-tc"])
@pytest.mark.parametrize(
    ("pass_", "propagation"),
    [("forward", "inference"), ("forward", "training"), ("backward-data", "inference")],
)
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("shape", SHAPES)
def test_every_plan_is_right(all_right, shape, kind, pass_, propagation, mode):
    layer = build_layer("pool", batch=2, **SHAPES[shape], **KINDS[kind])
    found = all_right(layer, pass_=pass_, propagation=propagation, precision=mode)
    # Ours stand in where cuDNN cannot; both layouts are among them.
    assert {one.plan.variant for one in found} == {"nchw", "nhwc"}


def test_what_pooling_does_not_know_is_said_in_a_sentence(gpu):
    layer = build_layer("pool", batch=2, **SHAPES["2x2 stride 2"])
    with pytest.raises(UnsupportedError, match="fp8-tc"):
        gpu.plans(KernelSpec(layer=layer, precision="fp8-tc", device="cuda:0"))
