"""The kernel that brings a buffer into the L2 cache: it reads every byte, and each once."""

import ctypes

import numpy as np
import pytest

WORD = 16


def _expected(data: np.ndarray) -> int:
    """Sum as the kernel counts: 32-bit numbers in whole words of 16 bytes, single bytes around."""
    head = min(len(data), -data.ctypes.data % WORD)
    middle = (len(data) - head) // WORD * WORD
    words = data[head : head + middle].view(np.uint32).astype(np.uint64)
    rest = np.concatenate([data[:head], data[head + middle :]]).astype(np.uint64)
    return int(words.sum() + rest.sum()) % 2**32


# Two multiprocessors run 16 blocks of 256 threads: 65536 bytes are one word per thread.
@pytest.mark.parametrize("size", [0, 1, 15, 16, 17, 4095, 4096, 4097, 65535, 65536, 200_003])
@pytest.mark.parametrize("offset", [0, 1, 13])
def test_every_byte_is_read_once(cpp_library, size, offset):
    rng = np.random.default_rng(size + offset)
    memory = rng.integers(0, 256, size + 2 * WORD, dtype=np.uint8)
    begin = -memory.ctypes.data % WORD + offset
    data = memory[begin : begin + size]
    total = ctypes.c_uint32(7)
    cpp_library.read_bytes(
        ctypes.c_void_p(data.ctypes.data), ctypes.c_size_t(size), 2, ctypes.byref(total)
    )
    assert total.value == (7 + _expected(data)) % 2**32
