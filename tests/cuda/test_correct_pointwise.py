"""Every plan of every memory-bound operation is right, to the host's judgement."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from pydlbench.errors import UnsupportedError
from pydlbench.ops.table import build_layer, ops_of_kind
from pydlbench.records.measurement import KernelSpec

if TYPE_CHECKING:
    from pydlbench.ops.op import Layer

pytestmark = pytest.mark.gpu

MODES = ("fp32", "tf32", "fp16", "fp16-tc", "bf16-tc")
_IMAGES = {
    "small": {"batch": 2, "channels": 5, "height": 3, "width": 7},
    "aligned": {"batch": 3, "channels": 64, "height": 8, "width": 8},
    "one pixel": {"batch": 33, "channels": 17},
}
# Operations without a kernel of our own on a GPU.
_NOT_YET = ("scale", "layernorm", "rmsnorm")
_FLAT = {"few": {"batch": 3, "channels": 5}, "many": {"batch": 17, "channels": 1001}}
_WEIGHTS = {"small": {"channels": 37}, "large": {"channels": 100_003}}


def _layers() -> list[Layer]:
    found = []
    for op, operation in ops_of_kind("pointwise").items():
        if op in _NOT_YET or operation.no_gpu:
            continue
        sizes: dict[str, dict[str, int]] = _IMAGES
        if operation.form == "weights":
            sizes = _WEIGHTS
        elif operation.form == "flat":
            sizes = _FLAT
        for size in sizes.values():
            if op == "concat":
                sources = (size["channels"] - 4, 1, 3)
                found.append(build_layer(op, sources=sources, **size))
            else:
                found.append(build_layer(op, **size))
    found.append(build_layer("lrn", local_size=3, k=1, **_IMAGES["small"]))
    found.append(build_layer("hardtanh", low=-0.25, high=2, **_IMAGES["small"]))
    found.append(build_layer("dropout", keep=0.9, **_IMAGES["aligned"]))
    return found


LAYERS = {layer.problem: layer for layer in _layers()}
STEPS = [
    (problem, pass_, propagation)
    for problem, layer in LAYERS.items()
    for pass_ in layer.passes
    for propagation in ("inference", "training")
    if propagation == "inference" or (pass_ == "forward" and layer.op == "batchnorm")
]


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize(("problem", "pass_", "propagation"), STEPS)
def test_every_plan_is_right(all_right, problem, pass_, propagation, mode):
    found = all_right(LAYERS[problem], pass_=pass_, propagation=propagation, precision=mode)
    for one in found:
        assert one.host is not None
        assert not one.plan.tensor_cores
        assert "not compared" not in one.host.detail, "a result that the kernel does not hand out"


@pytest.mark.parametrize("op", ["relu-in-place", "add-in-place"])
def test_kernels_in_place_are_refused_with_what_has_some(gpu, op):
    case = KernelSpec(layer=build_layer(op, **_IMAGES["small"]), device="cuda:0")
    with pytest.raises(UnsupportedError, match="no pointwise kernel"):
        gpu.plans(case)


@pytest.mark.parametrize("problem", LAYERS)
def test_fp8_is_refused_in_a_sentence(gpu, problem):
    case = KernelSpec(layer=LAYERS[problem], precision="fp8-tc", device="cuda:0")
    with pytest.raises(UnsupportedError, match="fp8-tc"):
        gpu.plans(case)
