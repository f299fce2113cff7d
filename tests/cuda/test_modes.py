"""A mode is what it says: fp32 has no TF32 in it, tensor modes are on tensor cores, others not.

Operands with all 24 bits show what a kernel makes of them: TF32 keeps 11, so each product is off by
about 2**-11 of its size, and so is the sum relative to ``s`` (see the tolerance). float32 is off by
less than a hundredth of that.
"""

from typing import Any

import pytest

from pydlbench.errors import UnsupportedError
from pydlbench.ops.op import Layer
from pydlbench.ops.table import build_layer
from pydlbench.records.measurement import KernelSpec
from pydlbench.words import FP8_PRECISIONS, PASSES

pytestmark = pytest.mark.gpu

CONV = build_layer(
    "conv", batch=4, in_channels=64, in_size=14, out_channels=64, kernel=3, padding=1
)
GEMM = build_layer("gemm", m=96, k=512, n=128)
LAYERS: dict[str, Layer] = {"conv": CONV, "gemm": GEMM}

_TF32 = 2.0**-11
# The largest of thousands of errors is about 1.5 * 2**-11 in TF32, and below 2**-18 in float32.
_LEAST_TF32 = _TF32 / 4
_MOST_FP32 = _TF32 / 64
# Winograd and FFT lose up to a few bits more.
_MOST_TRANSFORMED = _TF32 / 8
_TRANSFORMED = ("wino", "fft")


def _case(name: str, pass_: str, mode: str) -> KernelSpec:
    return KernelSpec(layer=LAYERS[name], pass_=pass_, precision=mode, device="cuda:0")


def _plans(gpu: Any, case: KernelSpec) -> list[Any]:
    try:
        found: list[Any] = gpu.plans(case)
    except UnsupportedError as error:
        pytest.skip(str(error))
    assert found
    return found


def _is_silent(plan: Any) -> bool:
    """Whether the library tells nothing of the plan's arithmetic; fp16 takes no such plan."""
    return any("names no operations" in note for note in plan.notes)


@pytest.mark.parametrize("pass_", PASSES)
@pytest.mark.parametrize("name", LAYERS)
def test_no_fp32_plan_has_a_tf32_in_it(gpu, name, pass_):
    found = gpu.check(_case(name, pass_, "fp32"))
    assert any(one.right for one in found)
    for one in found:
        assert one.plan.tensor_cores is not True, str(one)
        transformed = any(word in one.plan.algorithm.lower() for word in _TRANSFORMED)
        if "engine 17" in one.plan.algorithm and not one.right:
            continue  # cuDNN's, less precise than float32, and so never a row
        assert one.error < (_MOST_TRANSFORMED if transformed else _MOST_FP32), str(one)
        assert one.right, str(one)


@pytest.mark.parametrize("pass_", PASSES)
@pytest.mark.parametrize("name", LAYERS)
def test_the_check_sees_tf32_where_it_is(gpu, name, pass_):
    """What the tf32 mode makes of operands that are not TF32 numbers is wrong by that much."""
    case = _case(name, pass_, "tf32")
    _plans(gpu, case)
    found = gpu.check(case, gpu.inputs(_case(name, pass_, "fp32")))
    assert found
    for one in found:
        assert one.plan.tensor_cores is not False, str(one)
        assert one.error > _LEAST_TF32, str(one)
        assert not one.right, str(one)


@pytest.mark.parametrize("pass_", PASSES)
@pytest.mark.parametrize("name", LAYERS)
def test_tf32_numbers_lose_nothing_in_tf32(gpu, name, pass_):
    case = _case(name, pass_, "tf32")
    _plans(gpu, case)
    for one in gpu.check(case):
        assert one.error < _LEAST_TF32, str(one)


@pytest.mark.parametrize("mode", ["fp32", "fp16"])
@pytest.mark.parametrize("pass_", PASSES)
@pytest.mark.parametrize("name", LAYERS)
def test_modes_without_tensor_cores(gpu, name, pass_, mode):
    for plan in _plans(gpu, _case(name, pass_, mode)):
        assert plan.tensor_cores is (None if _is_silent(plan) else False), plan.algorithm
        assert "TENSOR_CORE" not in plan.notes


@pytest.mark.parametrize("mode", ["tf32", "fp16-tc", "bf16-tc"])
@pytest.mark.parametrize("pass_", PASSES)
@pytest.mark.parametrize("name", LAYERS)
def test_modes_on_tensor_cores(gpu, name, pass_, mode):
    for plan in _plans(gpu, _case(name, pass_, mode)):
        assert plan.tensor_cores is (None if _is_silent(plan) else True), plan.algorithm
        assert plan.accumulate == "float32", plan.algorithm


@pytest.mark.parametrize("mode", FP8_PRECISIONS)
def test_fp8_is_on_tensor_cores_too(gpu, mode):
    for plan in _plans(gpu, _case("gemm", "forward", mode)):
        assert plan.tensor_cores is (None if _is_silent(plan) else True), plan.algorithm
        types = {tensor["role"]: tensor["type"] for tensor in plan.tensors}
        assert types["src"] == types["weights"] == "float8_e4m3"


def test_fp16_says_what_it_accumulates_in(gpu):
    """Both accumulators are fp16 mode; a float16 one shows in the error, and is allowed to."""
    found = gpu.check(_case("gemm", "forward", "fp16"))
    assert {one.plan.accumulate for one in found} <= {"float16", "float32"}
    assert [str(one) for one in found if not one.right] == []


@pytest.mark.parametrize("name", LAYERS)
def test_storage_is_that_of_the_mode(gpu, name):
    for mode, stored in (
        ("fp32", "float32"),
        ("tf32", "float32"),
        ("fp16", "float16"),
        ("fp16-tc", "float16"),
        ("bf16-tc", "bfloat16"),
    ):
        try:
            found = gpu.plans(_case(name, "forward", mode))
        except UnsupportedError:
            continue
        for plan in found:
            types = {tensor["type"] for tensor in plan.tensors if tensor["role"] in ("src", "dst")}
            assert types == {stored}, plan.algorithm
