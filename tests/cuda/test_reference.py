"""The float64 reference on a GPU, held against NumPy, and kernels held against it."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from pydlbench.errors import UnsupportedError

pytestmark = pytest.mark.gpu

GEMM = {"batch_count": 2, "m": 48, "k": 80, "n": 32}
EQUATIONS = {
    "forward-training": ("src", "weights", "bmk,bkn->bmn"),
    "backward-data": ("dst", "weights", "bmn,bkn->bmk"),
    "backward-weights": ("src", "dst", "bmk,bmn->bkn"),
}
#: The side of the product that is summed over.
TERMS = {"forward-training": "k", "backward-data": "n", "backward-weights": "m"}


@pytest.fixture(scope="module")
def cuda() -> Any:
    """The module, where it was built."""
    return pytest.importorskip("pydlbench._cuda", reason="built without CUDA")


@pytest.fixture(scope="module")
def device(cuda: Any) -> Any:
    try:
        return cuda.Device(0)
    except UnsupportedError as error:
        pytest.skip(str(error))


def uniform(seed: int, *shape: int) -> Any:
    return np.random.default_rng(seed).uniform(-1, 1, shape).astype(np.float32)


@pytest.fixture(scope="module")
def libraries(cuda: Any) -> None:
    pathfinder = pytest.importorskip("cuda.pathfinder")
    found = [pathfinder.load_nvidia_dynamic_lib(name).abs_path for name in ("cudnn", "cublasLt")]
    cuda.load_libraries(cudnn=found[0], cublaslt=found[1])


def gemm_inputs(pass_: str) -> dict[str, Any]:
    batch, m, k, n = GEMM.values()
    shapes = {"src": (batch, m, k), "weights": (batch, k, n), "dst": (batch, m, n)}
    return {role: uniform(len(role), *shapes[role]) for role in EQUATIONS[pass_][:2]}


@pytest.mark.usefixtures("libraries")
@pytest.mark.parametrize("pass_", EQUATIONS)
def test_the_error_of_a_product_is_the_one_that_numpy_finds(
    cuda: Any, device: Any, pass_: str
) -> None:
    inputs = gemm_inputs(pass_)
    arena = cuda.Arena(device, inputs)
    reference = cuda.gemm_reference(device, pass_, **GEMM)
    first, second, equation = EQUATIONS[pass_]
    left, right = (inputs[role].astype(np.float64) for role in (first, second))
    expected = np.einsum(equation, left, right)
    scale = np.abs(expected) + np.sqrt(np.einsum(equation, left**2, right**2))
    plans = cuda.gemm_plans(device, pass_, "fp32", **GEMM)
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


@pytest.mark.usefixtures("libraries")
def test_a_result_of_other_inputs_fails(cuda: Any, device: Any) -> None:
    inputs = gemm_inputs("forward-training")
    arena = cuda.Arena(device, inputs)
    rolled = cuda.Arena(device, {**inputs, "src": np.roll(inputs["src"], 1, axis=0)})
    kernel = cuda.Kernel(cuda.gemm_plans(device, "forward-training", "fp32", **GEMM)[0], rolled)
    kernel.run_poisoned()
    reference = cuda.gemm_reference(device, "forward-training", **GEMM)
    assert kernel.verify(reference, rolled)["max_error"] < 1e-5
    assert kernel.verify(reference, arena)["max_error"] > 0.5


@pytest.mark.usefixtures("libraries")
@pytest.mark.parametrize("pool_mode", ["max", "avg-include-padding", "avg-exclude-padding"])
@pytest.mark.parametrize("pass_", ["forward-training", "backward-data"])
def test_pooling_on_the_device_is_right(cuda: Any, device: Any, pass_: str, pool_mode: str) -> None:
    sizes = {
        "batch": 2,
        "channels": 5,
        "in_height": 9,
        "in_width": 8,
        "out_height": 5,
        "out_width": 4,
        "kernel_height": 3,
        "kernel_width": 3,
        "stride_height": 2,
        "stride_width": 2,
        "pad_top": 1,
        "pad_left": 1,
        "pad_bottom": 1,
        "pad_right": 0,
    }
    arena = cuda.Arena(device, {"src": uniform(1, 2, 5, 9, 8), "dst": uniform(2, 2, 5, 5, 4)})
    reference = cuda.pool2d_reference(device, pass_, pool_mode, **sizes)
    plans = cuda.pool2d_plans(device, pass_, "fp32", pool_mode, **sizes)
    assert plans
    exact = pool_mode == "max" and pass_ != "backward-data"
    for plan in plans:
        kernel = cuda.Kernel(plan, arena)
        kernel.run_poisoned()
        found = kernel.verify(reference, arena)
        assert found["max_error"] <= (0 if exact else 1e-6)
        assert (found["terms"] == 0) == exact


@pytest.mark.usefixtures("libraries")
@pytest.mark.parametrize("pass_", EQUATIONS)
def test_convolutions_on_the_device_are_right(cuda: Any, device: Any, pass_: str) -> None:
    sizes = {
        "batch": 3,
        "groups": 2,
        "in_channels": 8,
        "in_height": 9,
        "in_width": 7,
        "out_channels": 4,
        "out_height": 9,
        "out_width": 7,
        "kernel_height": 3,
        "kernel_width": 3,
        "stride_height": 1,
        "stride_width": 1,
        "pad_top": 2,
        "pad_left": 2,
        "pad_bottom": 2,
        "pad_right": 2,
        "dilation_height": 2,
        "dilation_width": 2,
    }
    shapes = {"src": (3, 8, 9, 7), "weights": (4, 4, 3, 3), "dst": (3, 4, 9, 7)}
    given = {role: uniform(len(role), *shapes[role]) for role in EQUATIONS[pass_][:2]}
    arena = cuda.Arena(device, given)
    reference = cuda.conv2d_reference(device, pass_, **sizes)
    plans = cuda.conv2d_plans(device, pass_, "fp32", **sizes)
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
