"""Copies between dense float32 arrays and tensors in other formats and orders."""

from __future__ import annotations

import ctypes
import math
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest

from pydlbench.verification.inputs import UniformTensor, uniform_key

if TYPE_CHECKING:
    from numpy.typing import NDArray

#: In the order of the enumeration DataType; the dtype holds the bits.
TYPES: dict[str, tuple[int, Any]] = {
    "float32": (0, np.float32),
    "float16": (1, np.uint16),
    "bfloat16": (2, np.uint16),
    "float8_e4m3": (3, np.uint8),
    "int32": (4, np.int32),
    "int8": (5, np.int8),
}
PACKED = {"float4_e2m1": (6, np.uint8)}


def e4m3_table() -> NDArray[np.float64]:
    """Return the value of each of the 256 codes; the two NaN are NaN."""
    values = []
    for code in range(256):
        exponent, fraction = code >> 3 & 15, code & 7
        size = math.ldexp(1 + fraction / 8, exponent - 7) if exponent else math.ldexp(fraction, -9)
        values.append(math.nan if code & 127 == 127 else math.copysign(size, 128 - code - 0.5))
    return np.array(values)


def decoded(name: str, bits: NDArray[Any]) -> NDArray[np.float64]:
    """Return what stored bits stand for, without the code under test."""
    if name == "float16":
        return bits.view(np.float16).astype(np.float64)
    if name == "bfloat16":
        return (bits.astype(np.uint32) << 16).view(np.float32).astype(np.float64)
    if name == "float8_e4m3":
        return e4m3_table()[bits]
    return bits.astype(np.float64)


def nearest(name: str, values: NDArray[np.float32]) -> NDArray[np.float64]:
    """Return the values rounded to the format (nearest, ties to even), without the code under test.

    All codes are sorted by value; their order is that of the codes, so a tie goes to the even code.
    """
    if name in ("float32", "int32", "int8"):
        return values.astype(np.float64)
    if name == "float16":
        return values.astype(np.float16).astype(np.float64)
    if name == "bfloat16":
        bits = values.view(np.uint32)
        return decoded(name, ((bits + 0x7FFF + (bits >> 16 & 1)) >> 16).astype(np.uint16))
    codes = e4m3_table()[:127]
    size = np.minimum(np.abs(values.astype(np.float64)), codes[-1])
    above = np.searchsorted(codes, size).clip(1)
    down, up = codes[above - 1], codes[above]
    upward = (size - down > up - size) | ((size - down == up - size) & (above % 2 == 0))
    return np.copysign(np.where(upward, up, down), values)


def storage_strides(dims: tuple[int, ...], kind: str) -> tuple[int, ...]:
    """Return strides in elements: row-major, second axis innermost, reversed, or with gaps."""
    order = list(range(len(dims)))
    if kind == "channels-last" and len(dims) > 2:
        order = [0, *order[2:], 1]
    if kind == "reversed":
        order.reverse()
    strides, step = [0] * len(dims), 3 if kind == "gaps" else 1
    for axis in reversed(order):
        strides[axis] = step
        step *= dims[axis] + (1 if kind == "gaps" else 0)
    return tuple(strides)


def integers(values: tuple[int, ...]) -> Any:
    return (ctypes.c_int64 * len(values))(*values)


def pointer(array: NDArray[Any]) -> ctypes.c_void_p:
    return ctypes.c_void_p(array.ctypes.data)


class Converter:
    """The two functions under test, on NumPy arrays."""

    def __init__(self, library: ctypes.CDLL) -> None:
        self.compiled = library

    def upload(
        self, dense: NDArray[np.float32], name: str, strides: tuple[int, ...], blocks: int = 1 << 20
    ) -> NDArray[Any]:
        """Return the memory of the tensor, from its first element to its last one."""
        code, dtype = TYPES[name]
        span = 1 + sum((dim - 1) * stride for dim, stride in zip(dense.shape, strides, strict=True))
        memory = np.full(span + 4, 77, dtype)  # the last four must not be touched
        self.compiled.convert_to_storage(
            pointer(dense),
            code,
            dense.ndim,
            integers(dense.shape),
            integers(strides),
            pointer(memory),
            ctypes.c_int64(blocks),
        )
        assert (memory[span:] == 77).all()
        return memory[:span]

    def download(
        self,
        memory: NDArray[Any],
        name: str,
        dims: tuple[int, ...],
        strides: tuple[int, ...],
        blocks: int = 1 << 20,
    ) -> NDArray[np.float32]:
        dense = np.full(dims, np.nan, np.float32)
        self.compiled.convert_to_dense(
            (TYPES | PACKED)[name][0],
            len(dims),
            integers(dims),
            integers(strides),
            pointer(memory),
            pointer(dense),
            ctypes.c_int64(blocks),
        )
        return dense


@pytest.fixture(scope="module")
def converter(cpp_library):
    return Converter(cpp_library)


def strided(memory: NDArray[Any], dims: tuple[int, ...], strides: tuple[int, ...]) -> NDArray[Any]:
    size = memory.itemsize
    return np.lib.stride_tricks.as_strided(memory, dims, [size * one for one in strides])


@pytest.mark.parametrize("name", TYPES)
@pytest.mark.parametrize("kind", ["plain", "channels-last", "reversed", "gaps"])
@pytest.mark.parametrize(
    "dims", [(7,), (3, 5), (2, 3, 4), (2, 3, 5, 4), (2, 3, 2, 2, 3), (1, 4, 1, 3)]
)
def test_each_element_is_rounded_into_its_place_and_comes_back(converter, name, kind, dims):
    rng = np.random.default_rng(math.prod(dims))
    dense = rng.uniform(-1, 1, dims).astype(np.float32)
    if name.startswith("int"):
        dense = rng.integers(-128, 128, dims).astype(np.float32)
    strides = storage_strides(dims, kind)
    memory = converter.upload(dense, name, strides)
    stored = decoded(name, strided(memory, dims, strides))
    np.testing.assert_array_equal(stored, nearest(name, dense))
    np.testing.assert_array_equal(converter.download(memory, name, dims, strides), stored)


def test_memory_between_the_elements_is_zero(converter):
    dims = (3, 4)
    strides = storage_strides(dims, "gaps")
    memory = converter.upload(np.full(dims, 2.0, np.float32), "float32", strides)
    strided(memory, dims, strides)[...] = 0
    assert not memory.any()


@pytest.mark.parametrize("name", ["float16", "bfloat16", "float8_e4m3"])
def test_every_code_is_read_as_what_it_stands_for(converter, name):
    dtype = TYPES[name][1]
    codes = np.arange(256).astype(dtype) * (257 if dtype == np.uint16 else 1)
    read = converter.download(codes.astype(dtype), name, (256,), (1,))
    np.testing.assert_array_equal(read, decoded(name, codes.astype(dtype)))


@pytest.mark.parametrize("name", ["float16", "bfloat16", "float8_e4m3"])
def test_ties_and_the_ends_of_the_range_are_rounded_right(converter, name):
    dtype = TYPES[name][1]
    codes = np.arange(0, 0x7C00 if name == "float16" else 0x7F80 if name == "bfloat16" else 127)
    exact = decoded(name, codes[:: max(1, len(codes) // 300)].astype(dtype))
    ties = ((exact[1:] + exact[:-1]) / 2).astype(np.float32)
    values = np.concatenate([exact.astype(np.float32), ties, -ties])
    if name == "float8_e4m3":
        values = np.append(values, np.float32([447.9, 449, 463.9, 464, 465, 1e6, -1e6]))
    memory = converter.upload(values, name, (1,))
    np.testing.assert_array_equal(decoded(name, memory), nearest(name, values))


def test_poison_is_nan_in_every_float_format(converter):
    for name in ("float32", "float16", "bfloat16", "float8_e4m3"):
        memory = np.full(4 * 5, 0xFF, np.uint8)
        assert np.isnan(converter.download(memory, name, (5,), (1,))).all()


def test_more_elements_than_threads_are_walked_through_in_steps(converter):
    dims = (5, 7, 40)
    dense = np.random.default_rng(5).uniform(-1, 1, dims).astype(np.float32)
    strides = storage_strides(dims, "gaps")
    memory = converter.upload(dense, "float32", strides, blocks=2)
    np.testing.assert_array_equal(
        converter.download(memory, "float32", dims, strides, blocks=3), dense
    )


@pytest.mark.parametrize("precision", ["fp32", "tf32", "fp16", "bf16", "fp8-tc"])
@pytest.mark.parametrize("blocks", [1, 1 << 20])
def test_the_device_makes_the_random_values_of_the_host(converter, precision, blocks):
    for size in (1, 8, 4099):
        tensor = UniformTensor((size,), uniform_key(7, size), precision)
        *counts, spacing = tensor.drawn()
        found = np.full(size + 1, np.nan, np.float32)
        made = converter.compiled.make_uniform
        made.argtypes = [ctypes.c_int64, *[ctypes.c_uint64] * 2, ctypes.c_int, ctypes.c_float]
        made.argtypes += [ctypes.c_void_p, ctypes.c_int64]
        made(*counts, spacing, found.ctypes.data, blocks)
        np.testing.assert_array_equal(found[:size], tensor.array())
        assert np.isnan(found[size])


@pytest.mark.parametrize("transposed", [False, True])
@pytest.mark.parametrize("blocks", [1, 1 << 20])
def test_four_bits_are_packed_in_pairs_along_the_target(converter, transposed, blocks):
    sizes = np.array([0, 0.5, 1, 1.5, 2, 3, 4, 6], np.float32)
    rng = np.random.default_rng(1)
    codes = rng.integers(0, 16, (48, 34))
    dense = np.where(codes & 8, -sizes[codes & 7], sizes[codes & 7]).astype(np.float32)
    strides = (1, 48) if transposed else (34, 1)
    memory = np.full(dense.size // 2 + 1, 77, np.uint8)
    converter.compiled.convert_to_storage(
        pointer(dense),
        6,
        2,
        integers(dense.shape),
        integers(strides),
        pointer(memory),
        ctypes.c_int64(blocks),
    )
    assert memory[-1] == 77
    codes = np.where(codes == 8, 0, codes)  # one zero is enough
    placed = (codes.T if transposed else codes).reshape(-1)
    np.testing.assert_array_equal(memory[:-1], placed[::2] | placed[1::2] << 4)
    found = converter.download(memory, "float4_e2m1", dense.shape, strides)
    np.testing.assert_array_equal(found, dense)


@pytest.mark.parametrize(("name", "block"), [("float8_e4m3", 32), ("float4_e2m1", 16)])
@pytest.mark.parametrize("transposed", [False, True])
@pytest.mark.parametrize("blocks", [1, 1 << 20])
def test_scaled_blocks_times_their_scales_are_the_values(
    converter, name, block, transposed, blocks
):
    batch, rows, terms = 2, 150, 192
    values = np.random.default_rng(3).integers(-2, 3, (batch, rows, terms)) / 2
    dense = np.ascontiguousarray(values.transpose(0, 2, 1) if transposed else values, np.float32)
    strides = (rows * terms, 1, terms) if transposed else (rows * terms, terms, 1)
    code, _ = (TYPES | PACKED)[name]
    convert = converter.compiled.convert_with_scales
    convert.restype = ctypes.c_size_t
    call = [pointer(dense), code, block, integers(dense.shape), integers(strides)]
    size = convert(*call, None, None, ctypes.c_int64(blocks))
    across = -(-terms // block // 4)
    assert size == batch * 2 * across * 512
    scales = np.full(size + 1, 77, np.uint8)
    memory = np.full(dense.size, 77, np.uint8)
    convert(*call, pointer(memory), pointer(scales), ctypes.c_int64(blocks))
    assert scales[-1] == 77

    # cuBLAS documentation, "1D Block Scaling Factors Layout".
    g, r, b = np.ogrid[:batch, :rows, : terms // block]
    tile = (g * 2 + r // 128) * across + b // 4
    place = 512 * tile + r % 32 * 16 + r % 128 // 32 * 4 + b % 4
    codes = scales[place].astype(np.float64)
    scale = 2.0 ** ((codes - 0x38) / 8 if block == 16 else codes - 127)
    assert set(np.unique(scale)) == {0.25, 0.5, 1.0}
    stored = converter.download(memory, name, (batch, rows, terms), (rows * terms, terms, 1))
    np.testing.assert_array_equal(stored * np.repeat(scale, block, axis=2), values)
    # Neither a shifted row or block nor another order of the tiles' rows goes unnoticed.
    for other in (np.roll(scale, 1, 1), np.roll(scale, 32, 1), np.roll(scale, 1, 2), scale[::-1]):
        assert (stored * np.repeat(other, block, axis=2) != values).any()
