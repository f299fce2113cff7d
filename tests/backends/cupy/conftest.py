"""A stand-in for CuPy: NumPy's arrays."""

from __future__ import annotations

import importlib
import sys
from types import ModuleType, SimpleNamespace
from typing import Any

import numpy as np
import pytest

_PACKAGE = "pydlbench.backends.cupy"
_MODULES = ("operators",)


@pytest.fixture
def cupy(monkeypatch):
    """Put the stand-in where the backend imports CuPy from."""
    fake: Any = ModuleType("cupy")
    for name in ("asarray", "lib", "matmul", "moveaxis", "pad", "uint64", "zeros"):
        setattr(fake, name, getattr(np, name))

    def empty(shape: tuple[int, ...], kind: Any) -> Any:
        """Memory of a pool holds anything."""
        array = np.empty(shape, kind)
        array.fill(np.nan if array.dtype.kind == "f" else -7)
        return array

    fake.empty = empty
    fake.asnumpy = np.asarray
    stream = SimpleNamespace(synchronize=lambda: None)
    fake.cuda = SimpleNamespace(
        get_current_stream=lambda: stream, get_cublas_handle=lambda: "handle"
    )
    fake.settings = []
    linalg: Any = ModuleType("linalg")
    linalg.COMPUTE_TYPE_TF32, linalg.COMPUTE_TYPE_FP32 = "tf32", "fp32"
    linalg.set_compute_type = lambda kind, value: fake.settings.append((str(kind), value))
    cublas: Any = ModuleType("cublas")
    cublas.CUBLAS_TF32_TENSOR_OP_MATH, cublas.CUBLAS_DEFAULT_MATH = 3, 0
    cublas.setMathMode = lambda handle, mode: fake.settings.append((handle, mode))
    monkeypatch.setitem(sys.modules, "cupy", fake)
    monkeypatch.setitem(sys.modules, "cupy._core._routines_linalg", linalg)
    monkeypatch.setitem(sys.modules, "cupy_backends.cuda.libs.cublas", cublas)
    _forget()
    yield fake
    _forget()


def _forget() -> None:
    """Make the package's modules import CuPy anew."""
    package = importlib.import_module(_PACKAGE)
    for name in _MODULES:
        sys.modules.pop(f"{_PACKAGE}.{name}", None)
        if hasattr(package, name):
            delattr(package, name)
