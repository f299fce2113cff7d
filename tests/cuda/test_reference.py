"""The float64 reference on a GPU, held against NumPy, and kernels held against it."""

from typing import Any

import numpy as np
import pytest

from pydlbench.errors import UnsupportedError
from pydlbench.ops.table import build_layer

pytestmark = pytest.mark.gpu

GEMM = build_layer("gemm", m=48, k=80, n=32, batch_count=2).problem_fields()
EQUATIONS = {
    "forward-training": ("src", "weights", "bmk,bkn->bmn"),
    "backward-data": ("dst", "weights", "bmn,bkn->bmk"),
    "backward-weights": ("src", "dst", "bmk,bmn->bkn"),
}
#: The side of the product that is summed over.
TERMS = {"forward-training": "k", "backward-data": "n", "backward-weights": "m"}


def uniform(seed: int, *shape: int) -> Any:
    return np.random.default_rng(seed).uniform(-1, 1, shape).astype(np.float32)


def gemm_inputs(pass_: str) -> dict[str, Any]:
    batch, m, k, n = 2, *(GEMM[name] for name in "mkn")
    shapes = {"src": (batch, m, k), "weights": (batch, k, n), "dst": (batch, m, n)}
    return {role: uniform(len(role), *shapes[role]) for role in EQUATIONS[pass_][:2]}


@pytest.mark.parametrize("pass_", EQUATIONS)
def test_the_error_of_a_product_is_the_one_that_numpy_finds(cuda, device, pass_):
    inputs = gemm_inputs(pass_)
    arena = cuda.Arena(device, inputs)
    reference = cuda.reference("gemm", pass_, GEMM)
    first, second, equation = EQUATIONS[pass_]
    left, right = (inputs[role].astype(np.float64) for role in (first, second))
    expected = np.einsum(equation, left, right)
    scale = np.abs(expected) + np.sqrt(np.einsum(equation, left**2, right**2))
    plans = cuda.plans(device, "gemm", pass_, "fp32", GEMM)
    assert plans
    for plan in plans[:8]:
        kernel = cuda.Kernel(plan, arena)
        kernel.run_poisoned()
        found = kernel.verify(reference, arena)
        error = np.abs(kernel.output() - expected) / scale
        assert found["max_error"] == pytest.approx(error.max(), rel=1e-6)
        assert found["max_error"] < 1e-5
        assert tuple(found["where"]) == np.unravel_index(error.argmax(), error.shape)
        assert found["elements"] == expected.size
        assert found["unwritten"] == found["infinite"] == 0
        assert found["terms"] == GEMM[TERMS[pass_]]


def test_a_result_of_other_inputs_fails(cuda, device):
    inputs = gemm_inputs("forward-training")
    arena = cuda.Arena(device, inputs)
    rolled = cuda.Arena(device, {**inputs, "src": np.roll(inputs["src"], 1, axis=0)})
    plan = cuda.plans(device, "gemm", "forward-training", "fp32", GEMM)[0]
    kernel = cuda.Kernel(plan, rolled)
    kernel.run_poisoned()
    reference = cuda.reference("gemm", "forward-training", GEMM)
    assert kernel.verify(reference, rolled)["max_error"] < 1e-5
    assert kernel.verify(reference, arena)["max_error"] > 0.5


@pytest.mark.parametrize(("mode", "whole"), [("max", False), ("avg", True), ("avg", False)])
@pytest.mark.parametrize("pass_", ["forward-training", "backward-data"])
def test_pooling_on_the_device_is_right(cuda, device, pass_, mode, whole):
    layer = build_layer(
        "pool",
        batch=2,
        channels=5,
        in_size=(9, 8),
        kernel=3,
        stride=2,
        padding=(1, 1, 1, 0),
        mode=mode,
        count_include_pad=whole,
    )
    fields = layer.problem_fields()
    assert fields["out_size"] == (5, 4)
    arena = cuda.Arena(device, {"src": uniform(1, 2, 5, 9, 8), "dst": uniform(2, 2, 5, 5, 4)})
    reference = cuda.reference("pool2d", pass_, fields)
    plans = cuda.plans(device, "pool2d", pass_, "fp32", fields)
    assert plans
    exact = mode == "max" and pass_ != "backward-data"
    for plan in plans:
        kernel = cuda.Kernel(plan, arena)
        kernel.run_poisoned()
        found = kernel.verify(reference, arena)
        assert found["max_error"] <= (0 if exact else 1e-6)
        assert (found["terms"] == 0) == exact


@pytest.mark.parametrize("pass_", EQUATIONS)
def test_convolutions_on_the_device_are_right(cuda, device, pass_):
    layer = build_layer(
        "conv",
        batch=3,
        in_channels=8,
        in_size=(9, 7),
        out_channels=4,
        kernel=3,
        padding=2,
        dilation=2,
        groups=2,
    )
    given = {role: uniform(len(role), *layer.shapes()[role]) for role in EQUATIONS[pass_][:2]}
    arena = cuda.Arena(device, given)
    reference = cuda.reference("conv2d", pass_, layer.problem_fields())
    plans = cuda.plans(device, "conv2d", pass_, "fp32", layer.problem_fields())
    assert plans
    right = 0
    for plan in plans:
        try:
            kernel = cuda.Kernel(plan, arena)
        except UnsupportedError:
            continue
        kernel.run_poisoned()
        found = kernel.verify(reference, arena)
        assert found["unwritten"] == 0, plan
        right += found["max_error"] < 1e-5
    assert right > 0
