"""A stand-in for CuPy: NumPy's arrays, and the CUDA sources compiled for the CPU."""

from __future__ import annotations

import ctypes
import importlib
import sys
from types import ModuleType, SimpleNamespace
from typing import Any

import numpy as np
import pytest

_PACKAGE = "pydlbench.backends.cupy"
_MODULES = ("operators",)


class _Kernel:
    """A kernel on the CPU that takes what CuPy's take."""

    def __init__(self, library: ctypes.CDLL, name: str) -> None:
        self._function = library[f"run_{name}"]
        self._function.restype = None

    def __call__(self, grid: tuple[int], block: tuple[int], arguments: tuple[Any, ...]) -> None:
        assert 1 <= grid[0] < 2**31
        assert 1 <= block[0] <= 1024
        self._function(*(_c(one) for one in arguments))


def _c(one: Any) -> Any:
    if isinstance(one, np.ndarray):
        assert one.flags.c_contiguous
        return ctypes.c_void_p(one.ctypes.data)
    # Plain Python numbers would be passed as 64 bits whatever the kernel wants.
    assert isinstance(one, np.int64 | np.uint64)
    return ctypes.c_longlong(int(one))


@pytest.fixture
def cupy(cpp_library, monkeypatch):
    """Put the stand-in where the backend imports CuPy from."""
    fake: Any = ModuleType("cupy")
    for name in ("asarray", "ascontiguousarray", "full", "matmul", "uint64", "zeros"):
        setattr(fake, name, getattr(np, name))

    def empty(shape: tuple[int, ...], kind: Any) -> Any:
        """Memory of a pool holds anything."""
        array = np.empty(shape, kind)
        array.fill(np.nan if array.dtype.kind == "f" else -7)
        return array

    fake.empty = empty
    fake.asnumpy = np.asarray
    fake.RawModule = lambda code: SimpleNamespace(
        code=code, get_function=lambda name: _Kernel(cpp_library, name)
    )
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
