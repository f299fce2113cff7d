"""Small files in the published formats, written by these tests and nothing else."""

from __future__ import annotations

import gzip
import struct

import numpy as np
import pytest


def idx(array: np.ndarray) -> bytes:
    """An array in the idx format."""
    magic = bytes((0, 0, 8, array.ndim))
    return magic + struct.pack(f">{array.ndim}I", *array.shape) + array.astype(np.uint8).tobytes()


@pytest.fixture(name="idx")
def idx_fixture():
    return idx


@pytest.fixture
def mnist_folder(tmp_path):
    """20 training and 7 test images, half of the files compressed."""
    rng = np.random.default_rng(1)
    for prefix, count in (("train", 20), ("t10k", 7)):
        images = rng.integers(256, size=(count, 28, 28))
        (tmp_path / f"{prefix}-images-idx3-ubyte.gz").write_bytes(gzip.compress(idx(images)))
        (tmp_path / f"{prefix}-labels-idx1-ubyte").write_bytes(idx(np.arange(count) % 10))
    return tmp_path


def records(count: int, first: int) -> bytes:
    """CIFAR-10 records: label ``i % 10``; red, green and blue planes filled with i, i+1, i+2."""
    found = b""
    for i in range(first, first + count):
        found += bytes([i % 10]) + b"".join(bytes([i + plane]) * 1024 for plane in range(3))
    return found


@pytest.fixture
def cifar10_contents():
    """Two records in each training file, three in the test file."""
    found = {f"data_batch_{n}.bin": records(2, 10 * n) for n in range(1, 6)}
    return {**found, "test_batch.bin": records(3, 100)}
