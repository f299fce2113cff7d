"""What arithmetic cuBLAS is allowed, through CuPy's switches, which are global."""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING

import cupy
import numpy as np

from pydlbench.errors import UnsupportedError

if TYPE_CHECKING:
    from pydlbench.layers.layer import Layer

__all__ = ["check", "element_type", "settle"]

linalg = importlib.import_module("cupy._core._routines_linalg")
cublas = importlib.import_module("cupy_backends.cuda.libs.cublas")
_PRODUCTS = ("fp32", "tf32", "fp16-tc")


def element_type(precision: str) -> str:
    """Return the type in which a precision is stored."""
    return "float32" if precision in ("fp32", "tf32") else "float16"


def check(layer: Layer, precision: str, capability: int) -> None:
    """Refuse a precision that CuPy does not have for a layer.

    Args:
        layer: what is computed.
        precision: storage and arithmetic.
        capability: of the GPU, ten times: 90.

    Raises:
        UnsupportedError: it has none; says why.
    """
    if not layer.weight_elements:
        if precision not in ("fp32", "fp16", "fp16-tc"):
            raise UnsupportedError(f"cupy: the pooling kernels know fp32 and fp16, not {precision}")
        return
    if precision == "fp16":
        raise UnsupportedError(
            "cupy: cuBLAS cannot be kept off tensor cores for float16; ask for fp16-tc"
        )
    if precision not in _PRODUCTS:
        known = ", ".join(_PRODUCTS)
        raise UnsupportedError(f"cupy has no products in {precision}; there is: {known}")
    if precision == "tf32" and capability < 80:
        raise UnsupportedError("tf32 needs compute capability 8.0")
    if precision == "fp16-tc" and capability < 70:
        raise UnsupportedError("fp16-tc needs compute capability 7.0")


def settle(precision: str) -> None:
    """Allow TF32 or forbid it, whatever ``CUPY_TF32`` says.

    Single products follow CuPy's compute type, batches of them the math mode of the handle.
    """
    allowed = precision == "tf32"
    linalg.set_compute_type(
        np.dtype(np.float32), linalg.COMPUTE_TYPE_TF32 if allowed else linalg.COMPUTE_TYPE_FP32
    )
    mode = cublas.CUBLAS_TF32_TENSOR_OP_MATH if allowed else cublas.CUBLAS_DEFAULT_MATH
    cublas.setMathMode(cupy.cuda.get_cublas_handle(), mode)
