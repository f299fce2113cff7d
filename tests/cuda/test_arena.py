"""Tensors on a GPU: conversion there and back, sharing, and what is refused."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from pydlbench.errors import InsufficientMemoryError, PrimitiveError
from pydlbench.ops.table import build_layer
from pydlbench.verification.inputs import round_to

pytestmark = pytest.mark.gpu

DIMS = {"batch": 3, "channels": 5, "height": 7, "width": 2}
SHAPE = tuple(DIMS.values())
#: Oldest compute capability of each mode, times ten.
MODES = {"fp32": 50, "fp16-tc": 70, "bf16-tc": 80}


def relu(cuda: Any, device: Any, mode: str = "fp32", layout: str = "nchw", **dims: int) -> Any:
    """Return a plan that leaves positive numbers as they are."""
    facts = device.facts
    if 10 * facts["major"] + facts["minor"] < MODES[mode]:
        pytest.skip(f"this GPU has no {mode}")
    fields = build_layer("relu", **{**DIMS, **dims}).problem_fields()
    plans = cuda.plans(device, "pointwise", "forward-inference", mode, fields, layout=layout)
    return plans[0]


def positive() -> Any:
    return np.random.default_rng(1).uniform(0, 1, SHAPE).astype(np.float32)


@pytest.mark.parametrize("layout", ["nchw", "nhwc"])
@pytest.mark.parametrize("mode", MODES)
def test_what_is_uploaded_comes_back_rounded(cuda, device, mode, layout):
    src = positive()
    plan = relu(cuda, device, mode, layout)
    kernel = cuda.Kernel(plan, cuda.Arena(device, {"src": src}))
    kernel.run_poisoned()
    output = kernel.output()
    assert output.shape == SHAPE
    assert output.dtype == np.float32
    np.testing.assert_array_equal(output, round_to(mode, src))
    strides = plan.tensors[0]["strides"]
    assert strides[1] == (1 if layout == "nhwc" else DIMS["height"] * DIMS["width"])


def test_plans_share_what_they_read(cuda, device):
    src = positive()
    arena = cuda.Arena(device, {"src": src})
    assert arena.bytes == 0
    plans = [relu(cuda, device), relu(cuda, device), relu(cuda, device, layout="nhwc")]
    kernels = []
    sizes = []
    for plan in plans:
        kernels.append(cuda.Kernel(plan, arena))
        sizes.append(arena.bytes)
    assert sizes == [src.nbytes, src.nbytes, 2 * src.nbytes]


def test_a_kernel_keeps_its_tensors_when_the_arena_is_cleared(cuda, device):
    src = positive()
    arena = cuda.Arena(device, {"src": src})
    kernel = cuda.Kernel(relu(cuda, device), arena)
    arena.clear()
    assert arena.bytes == 0
    other = cuda.Kernel(relu(cuda, device), arena)
    assert arena.bytes == src.nbytes
    for one in (kernel, other):
        one.run_poisoned()
        np.testing.assert_array_equal(one.output(), src)


def test_the_callers_array_may_go_before_it_is_uploaded(cuda, device):
    src = positive()
    arena = cuda.Arena(device, {"src": src.copy()})
    kernel = cuda.Kernel(relu(cuda, device), arena)
    kernel.run_poisoned()
    np.testing.assert_array_equal(kernel.output(), src)


def test_a_missing_input_is_named(cuda, device):
    arena = cuda.Arena(device, {"dst": positive()})
    with pytest.raises(PrimitiveError, match="no input named src"):
        cuda.Kernel(relu(cuda, device), arena)


def test_an_input_of_another_size_is_refused(cuda, device):
    arena = cuda.Arena(device, {"src": positive()[:2]})
    with pytest.raises(PrimitiveError, match="src has 140 elements where the kernel reads 210"):
        cuda.Kernel(relu(cuda, device), arena)


def test_an_input_larger_than_the_memory_costs_nothing_but_itself(cuda, device, tmp_path):
    sides = {"channels": 1024, "height": 32, "width": 32}
    batch = device.facts["memory_bytes"] // (4 << 20) + 16
    path = tmp_path / "holes"
    with path.open("wb") as file:
        file.truncate(batch * (4 << 20))  # nothing is written: a file of holes
    src = np.memmap(path, np.float32, "r", shape=(batch, *sides.values()))
    arena = cuda.Arena(device, {"src": src})
    with pytest.raises(InsufficientMemoryError, match="src"):
        cuda.Kernel(relu(cuda, device, batch=batch, **sides), arena)
    assert arena.bytes == 0
    kernel = cuda.Kernel(relu(cuda, device), cuda.Arena(device, {"src": positive()}))
    kernel.run_poisoned()
    np.testing.assert_array_equal(kernel.output(), positive())
