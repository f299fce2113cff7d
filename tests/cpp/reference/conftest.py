"""The device's float64 reference on the CPU, and sums written term by term to hold it against."""

from __future__ import annotations

import ctypes
from dataclasses import dataclass
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest

from pydlbench.verification.checksums import KernelRun
from pydlbench.verification.verify import compare

if TYPE_CHECKING:
    from collections.abc import Iterator

    from numpy.typing import NDArray

    from pydlbench.ops.op import Layer

    Array = NDArray[np.float64]

#: In the order of the enumerations Pass and PoolMode.
PASSES = {"forward": 0, "backward-data": 2, "backward-weights": 3}
MODES = {"max": 0, "avg-include-padding": 1, "avg-exclude-padding": 2}
MANY = 1 << 32


class Result(ctypes.Structure):
    _fields_ = (
        ("max_error", ctypes.c_double),
        ("got", ctypes.c_double),
        ("expected", ctypes.c_double),
        ("where", ctypes.c_int64 * 5),
        ("unwritten", ctypes.c_int64),
        ("infinite", ctypes.c_int64),
        ("elements", ctypes.c_int64),
        ("terms", ctypes.c_int64),
    )


class Output(ctypes.Structure):
    _fields_ = (
        ("data", ctypes.c_void_p),
        ("type", ctypes.c_int64),
        ("rank", ctypes.c_int64),
        ("dims", ctypes.c_int64 * 5),
        ("strides", ctypes.c_int64 * 5),
    )


@dataclass
class Sums:
    """Reference values and the sums of the squares of their terms."""

    value: Array
    squares: Array

    @classmethod
    def zeros(cls, shape: tuple[int, ...]) -> Sums:
        return cls(np.zeros(shape), np.zeros(shape))

    def add(self, at: Any, term: Any) -> None:
        self.value[at] += term
        self.squares[at] += np.square(term)

    def errors(self, stored: Stored, *, relu: bool = False) -> Array:
        expected = np.maximum(self.value, 0) if relu else self.value
        scale = np.maximum(np.abs(self.value) + np.sqrt(self.squares), stored.least)
        return np.abs(stored.values - expected) / scale


def taps(layer: Layer) -> Iterator[tuple[int, int, int, int, int, int]]:
    """Yield (oh, ow, kh, kw, ih, iw) for every tap that is not on padding."""
    dilation = (1, 1)
    if layer.op == "conv":
        dilation = (layer.dilation[0], layer.dilation[1])
    for oh, ow in np.ndindex(layer.out_size[0], layer.out_size[1]):
        for kh, kw in np.ndindex(layer.kernel[0], layer.kernel[1]):
            ih = oh * layer.stride[0] + kh * dilation[0] - layer.pad_before[0]
            iw = ow * layer.stride[1] + kw * dilation[1] - layer.pad_before[1]
            if 0 <= ih < layer.in_size[0] and 0 <= iw < layer.in_size[1]:
                yield oh, ow, kh, kw, ih, iw


def evidence(layer: Any, pass_: str, inputs: Any, value: Array) -> Any:
    """Return what the host's float64 check finds of a result."""
    (role,) = layer.writes(pass_)
    run = KernelRun(
        pass_=pass_,
        propagation="inference",
        precision="fp32",
        inputs=inputs,
        results={role: value},
        rng=np.random.default_rng(1),
    )
    return compare(layer, run)[role]


def uniform(seed: int, shape: tuple[int, ...]) -> NDArray[np.float32]:
    return np.random.default_rng(seed).uniform(-1, 1, shape).astype(np.float32)


def pointer(array: NDArray[Any] | None) -> ctypes.c_void_p:
    return ctypes.c_void_p(None if array is None else array.ctypes.data)


class Stored:
    """A result in a kernel's own format and order."""

    def __init__(self, values: Array, kind: str = "plain", name: str = "float32") -> None:
        order = list(range(values.ndim))
        if kind == "channels-last":
            order = [0, *order[2:], 1]
        padded = [values.shape[axis] + (kind == "gaps") for axis in order]
        code = ("float32", "float16", "bfloat16").index(name)
        bits = self._bfloat16(values) if name == "bfloat16" else values.astype(name)
        self.memory = np.zeros(padded, bits.dtype)
        inverse = np.argsort(order)
        cut = tuple(slice(size) for size in values.shape)
        self._view = self.memory.transpose(inverse)[cut]
        self._view[...] = bits
        self._name = name
        #: The smallest number with all digits of the format.
        self.least = 2.0**-14 if name == "float16" else 2.0**-126
        self.output = Output(data=self.memory.ctypes.data, type=code, rank=values.ndim)
        self.output.dims[: values.ndim] = values.shape
        self.output.strides[: values.ndim] = [
            stride // bits.itemsize for stride in self._view.strides
        ]

    @staticmethod
    def _bfloat16(values: Array) -> NDArray[np.uint16]:
        bits = values.astype(np.float32).view(np.uint32)
        return ((bits + 0x7FFF + (bits >> 16 & 1)) >> 16).astype(np.uint16)

    @property
    def values(self) -> Array:
        if self._name == "bfloat16":
            return (self._view.astype(np.uint32) << 16).view(np.float32).astype(np.float64)
        return self._view.astype(np.float64)


class Checker:
    """The kernels under test, on NumPy arrays."""

    def __init__(self, library: ctypes.CDLL) -> None:
        self._library = library
        library.problem_fields.restype = ctypes.c_char_p

    def _sizes(self, kind: str, layer: Layer) -> Any:
        """The layer's fields in the order of the C++ problem of the same kind."""
        names = self._library.problem_fields(kind.encode()).decode().split()
        fields = layer.problem_fields()
        values = [size for name in names for size in np.atleast_1d(fields[name]).tolist()]
        return (ctypes.c_int64 * len(values))(*values)

    def conv(
        self,
        layer: Layer,
        pass_: str,
        inputs: dict[str, Any],
        stored: Stored,
        per_launch: int = MANY,
    ) -> Result:
        result = Result()
        self._library.check_conv2d(
            PASSES[pass_],
            self._sizes("conv2d", layer),
            int("bias" in inputs),
            *(pointer(inputs.get(role)) for role in ("src", "weights", "bias", "dst")),
            ctypes.byref(stored.output),
            ctypes.c_int64(per_launch),
            ctypes.byref(result),
        )
        return result

    def gemm(
        self,
        pass_: str,
        sizes: tuple[int, int, int, int],
        inputs: dict[str, Any],
        stored: Stored,
        per_launch: int = MANY,
    ) -> Result:
        result = Result()
        bias = inputs.get("bias")
        self._library.check_gemm(
            PASSES[pass_],
            (ctypes.c_int64 * 4)(*sizes),
            int(bias is not None),
            int(bias is not None and bias.size != sizes[3]),
            *(pointer(inputs.get(role)) for role in ("src", "weights", "bias", "dst")),
            ctypes.byref(stored.output),
            ctypes.c_int64(per_launch),
            ctypes.byref(result),
        )
        return result

    def pool(self, layer: Layer, pass_: str, inputs: dict[str, Any], stored: Stored) -> Result:
        result = Result()
        self._library.check_pool2d(
            PASSES[pass_],
            self._sizes("pool2d", layer),
            MODES[pool_mode(layer)],
            *(pointer(inputs.get(role)) for role in ("src", "dst")),
            ctypes.byref(stored.output),
            ctypes.c_int64(MANY),
            ctypes.byref(result),
        )
        return result


def pool_mode(layer: Layer) -> str:
    if layer.mode == "max":
        return "max"
    return "avg-include-padding" if layer.count_include_pad else "avg-exclude-padding"


def assert_found(result: Result, errors: Array, stored: Stored, expected: Array) -> None:
    """The result is the largest of the errors, and where it is."""
    where = np.unravel_index(int(np.argmax(errors)), errors.shape)
    assert result.elements == errors.size
    assert result.unwritten == result.infinite == 0
    assert result.max_error == pytest.approx(errors[where], rel=1e-6, abs=1e-15)
    if errors[where] > 1e-12:
        assert tuple(result.where[: errors.ndim]) == where
        assert result.got == stored.values[where]
        assert result.expected == pytest.approx(expected[where], rel=1e-12, abs=1e-300)


@pytest.fixture(scope="session")
def checker(cpp_library):
    return Checker(cpp_library)


@pytest.fixture(scope="session")
def numpy_sums():
    """Return what the tests compute their own results with."""
    return SimpleNamespace(
        Sums=Sums,
        Stored=Stored,
        taps=taps,
        uniform=uniform,
        assert_found=assert_found,
        evidence=evidence,
    )
