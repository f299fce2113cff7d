"""The idx reader against files that are right and files that are wrong in one way each."""

from __future__ import annotations

import gzip
import re
import struct
from typing import TYPE_CHECKING

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from pydlbench.errors import UsageError
from pydlbench.protocols.data.datasets import read_idx

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    Idx = Callable[[np.ndarray], bytes]

IMAGES = np.arange(2 * 3 * 4).reshape(2, 3, 4)


def refusal(path: Path, dimensions: int = 3) -> str:
    with pytest.raises(UsageError) as caught:
        read_idx(path, dimensions)
    message = str(caught.value)
    assert "\n" not in message
    assert str(path) in message
    assert "nearest:" in message
    return message


@pytest.mark.parametrize("compress", [False, True])
def test_reads_plain_and_compressed_whatever_the_name(tmp_path, idx, *, compress):
    content = gzip.compress(idx(IMAGES)) if compress else idx(IMAGES)
    path = tmp_path / "images"
    path.write_bytes(content)
    found = read_idx(path, 3)
    assert found.dtype == np.uint8
    np.testing.assert_array_equal(found, IMAGES)


def test_the_published_headers(tmp_path):
    # The first 8 bytes of t10k-labels-idx1-ubyte: 2049, 10000.
    path = tmp_path / "labels"
    path.write_bytes(bytes.fromhex("0000080100002710") + bytes(10_000))
    assert read_idx(path, 1).shape == (10_000,)


@given(st.integers(0, 24 + 15))
def test_every_truncation_is_refused(tmp_path_factory, length):
    header = bytes.fromhex("00000803") + struct.pack(">3I", 2, 3, 4)
    path = tmp_path_factory.mktemp("idx") / "cut"
    path.write_bytes((header + bytes(24))[:length])
    message = refusal(path)
    assert ("too short" in message) if length < 16 else ("bytes of data" in message)


def test_truncated_data_is_counted(tmp_path, idx):
    path = tmp_path / "images"
    path.write_bytes(idx(IMAGES)[:-5])
    assert "19 bytes of data where its header says 2x3x4, 24 bytes" in refusal(path)
    path.write_bytes(idx(IMAGES) + b"x")
    assert "more than 24 bytes of data" in refusal(path)


def test_labels_are_no_images(tmp_path, idx):
    path = tmp_path / "labels"
    path.write_bytes(idx(np.arange(20)))
    message = refusal(path)
    assert "magic number 0x00000801" in message
    assert "0x00000803" in message


def test_other_types_are_refused(tmp_path, idx):
    path = tmp_path / "floats"
    path.write_bytes(b"\x00\x00\x0d\x03" + idx(IMAGES)[4:])
    assert "magic number 0x00000d03" in refusal(path)


@pytest.mark.parametrize("damage", ["cut", "flipped", "tail"])
def test_damaged_gzip_files_are_refused(tmp_path, idx, damage):
    content = bytearray(gzip.compress(idx(np.zeros((9, 28, 28)) + np.arange(28))))
    if damage == "cut":
        content = content[:-9]
    elif damage == "flipped":
        content[20] ^= 0xFF
    else:
        content += b"no gzip"
    path = tmp_path / "images.gz"
    path.write_bytes(content)
    assert re.search("damaged gzip file", refusal(path))


def test_a_header_that_claims_too_much_costs_no_memory(tmp_path):
    path = tmp_path / "images.gz"
    path.write_bytes(gzip.compress(b"\x00\x00\x08\x03" + b"\xff" * 12 + b"abc"))
    assert ": 3 bytes of data where" in refusal(path)


def test_missing_files_and_folders(tmp_path):
    assert "No such file" in refusal(tmp_path / "none")
    assert "cannot be read" in refusal(tmp_path)
