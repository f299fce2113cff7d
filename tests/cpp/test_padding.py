"""Padding and cropping kernels against NumPy, in both layouts and all packet widths."""

import ctypes
from typing import Any

import numpy as np
import pytest

# batch, channels, height, width; top, left, bottom, right. The comments say how wide the packets of
# 4-byte elements are in (nchw, nhwc).
SHAPES = {
    "one element": (1, 1, 1, 1, 0, 0, 1, 1),  # 8, 8
    "odd": (2, 3, 5, 7, 1, 0, 2, 3),  # 4, 4
    "wide channels": (2, 8, 3, 5, 0, 1, 1, 0),  # 4, 16
    "even": (1, 2, 4, 6, 2, 2, 0, 0),  # 8, 16
    "rows of packets": (1, 1, 3, 16, 1, 4, 0, 4),  # 16, 16
    "one side": (3, 2, 4, 4, 0, 0, 0, 1),  # 4, 8
    "longer than a block": (1, 1, 2, 300, 1, 1, 1, 0),  # 4, 4
}


def arrays(
    shape: tuple[int, ...], dtype: type, *, channels_last: bool
) -> tuple[np.ndarray[Any, Any], np.ndarray[Any, Any]]:
    """Return a random source, and the same padded with zeros, in the memory order of the layout."""
    batch, channels, height, width, top, left, bottom, right = shape
    random = np.random.default_rng(5)
    source = random.integers(1, 2**15, (batch, channels, height, width)).astype(dtype)
    padded = np.pad(source, ((0, 0), (0, 0), (top, bottom), (left, right)))
    if channels_last:
        source, padded = source.transpose(0, 2, 3, 1), padded.transpose(0, 2, 3, 1)
    return np.ascontiguousarray(source), np.ascontiguousarray(padded)


def aligned(like: np.ndarray[Any, Any], fill: int) -> np.ndarray[Any, Any]:
    """Return memory that starts at a multiple of 16 bytes, as device memory does, with a margin."""
    flat = np.full(like.size + 64, fill, dtype=like.dtype)
    start = -flat.ctypes.data % 16 // flat.itemsize
    return flat[start : start + like.size + 16]


@pytest.mark.parametrize("channels_last", [False, True], ids=["nchw", "nhwc"])
@pytest.mark.parametrize("dtype", [np.uint16, np.uint32])
@pytest.mark.parametrize("shape", SHAPES.values(), ids=SHAPES.keys())
@pytest.mark.parametrize("direction", ["pad_source", "crop_gradient"])
def test_every_element_arrives_and_nothing_else_is_written(
    cpp_library, direction, shape, dtype, channels_last
):
    source, padded = arrays(shape, dtype, channels_last=channels_last)
    if direction == "crop_gradient":
        # What is cut off is not zero: in a gradient it is not.
        padded = np.where(padded == 0, 77, padded).astype(dtype)
    given, expected = (source, padded) if direction == "pad_source" else (padded, source)
    read = aligned(given, 0)
    read[: given.size] = given.ravel()
    written = aligned(expected, 51966)
    getattr(cpp_library, direction)(
        ctypes.c_void_p(written.ctypes.data),
        ctypes.c_void_p(read.ctypes.data),
        (ctypes.c_long * 8)(*shape),
        int(channels_last),
        ctypes.c_long(np.dtype(dtype).itemsize),
    )
    np.testing.assert_array_equal(written[: expected.size], expected.ravel())
    np.testing.assert_array_equal(written[expected.size :], 51966)


def test_more_rows_than_32_bits_count_are_refused(cpp_library):
    assert cpp_library.refuses_rows(ctypes.c_long(2**16), ctypes.c_long(2**15)) == 1
