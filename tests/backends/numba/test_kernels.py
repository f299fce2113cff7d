"""The kernels for GPUs: translated to PTX without a device, and what that contains."""

from __future__ import annotations

import importlib
from types import SimpleNamespace
from typing import Any

import pytest
from numba import boolean, float32, int32, int64, types

from pydlbench.backends.numba.conv import first_output, last_output
from pydlbench.backends.numba.cuda import conv, gemm, pool

IMAGES, MATRICES, VIEWS = (
    types.Array(float32, axes, order) for axes, order in ((5, "C"), (3, "C"), (3, "A"))
)
PLACES, PAIR = types.Array(int32, 3, "C"), types.UniTuple(int64, 2)
CONVOLUTION = (IMAGES, IMAGES, IMAGES, PAIR, PAIR, PAIR)
WINDOW = (PAIR, PAIR, PAIR)
SIGNATURES = {
    "convolution forward": (conv.forward(), CONVOLUTION),
    "convolution backward-data": (conv.backward_data(), CONVOLUTION),
    "convolution backward-weights": (conv.backward_weights(), CONVOLUTION),
    "product": (gemm.product(False, False), (MATRICES, MATRICES, MATRICES)),
    "product of transposes": (gemm.product(True, True), (MATRICES, VIEWS, VIEWS)),
    "max": (pool.maximum, (MATRICES, MATRICES, *WINDOW)),
    "max, with places": (pool.maximum_where, (MATRICES, PLACES, MATRICES, *WINDOW)),
    "max backward": (pool.maximum_backward, (MATRICES, MATRICES, PLACES, *WINDOW)),
    "avg": (pool.average, (MATRICES, MATRICES, *WINDOW, boolean)),
    "avg backward": (pool.average_backward, (MATRICES, MATRICES, *WINDOW, boolean)),
}


@pytest.mark.parametrize("name", SIGNATURES)
def test_ptx_has_no_double_and_no_spilled_sums(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Sums stay in registers, and no constant drags arithmetic into float64."""
    cuda = importlib.import_module("numba.cuda")
    nvvm = importlib.import_module("numba.cuda.cudadrv.nvvm")
    try:
        nvvm.NVVM()
    except Exception as error:  # noqa: BLE001 - the toolkit's absence has several faces
        pytest.skip(f"no NVVM: {error}")
    dispatcher = importlib.import_module("numba.cuda.dispatcher")
    device = SimpleNamespace(compute_capability=(9, 0))
    monkeypatch.setattr(dispatcher, "get_current_device", lambda: device)
    kernel, signature = SIGNATURES[name]
    ptx, _ = cuda.compile_ptx(kernel.py_func, signature, cc=(9, 0))
    assert ".f64" not in ptx
    assert ".local" not in ptx


@pytest.mark.parametrize("batch", [1, 70000])
def test_grids_stay_within_what_cuda_allows(batch: int) -> None:
    for blocks, _ in (
        gemm.grid(batch, 2**22, 2**23),
        conv.grid(batch, 3, 2**18, 2**20),
        conv.weights_grid(1, 2048, 2048),
        pool.grid(2**41),
    ):
        x, *rest = blocks if isinstance(blocks, tuple) else (blocks,)
        assert x < 2**31
        assert all(1 <= one <= 65535 for one in rest)


@pytest.mark.parametrize("stride", [1, 2, 3])
@pytest.mark.parametrize("offset", range(-5, 8))
def test_spans_hold_just_the_outputs_with_an_input(offset: int, stride: int) -> None:
    inputs, outputs = 5, 4
    expected = [o for o in range(outputs) if 0 <= o * stride + offset < inputs]
    first: Any = first_output(offset, stride)
    last: Any = last_output(offset, stride, inputs, outputs)
    assert list(range(first, last)) == expected
