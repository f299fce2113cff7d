"""The idx reader against files that are right and files that are wrong in one way each."""

from __future__ import annotations

import gzip
import struct
from typing import TYPE_CHECKING

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from said import says

from pydlbench.errors import UsageError
from pydlbench.protocols.data.datasets import read_idx

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    Idx = Callable[[np.ndarray], bytes]

IMAGES = np.arange(2 * 3 * 4).reshape(2, 3, 4)


def refusal(path: Path) -> str:
    with pytest.raises(UsageError, match=r"^[^\n]*nearest: [^\n]*$") as caught:
        read_idx(path, 3)
    return str(caught.value)


@pytest.mark.parametrize("compress", [False, True])
def test_reads_plain_and_compressed_whatever_the_name(tmp_path, idx, *, compress):
    content = gzip.compress(idx(IMAGES)) if compress else idx(IMAGES)
    path = tmp_path / "images"
    path.write_bytes(content)
    images = read_idx(path, 3)
    assert images.dtype == np.uint8
    np.testing.assert_array_equal(images, IMAGES)


def test_the_published_headers(tmp_path):
    # The first 8 bytes of t10k-labels-idx1-ubyte: 2049, 10000.
    path = tmp_path / "labels"
    path.write_bytes(bytes.fromhex("0000080100002710") + bytes(10_000))
    assert read_idx(path, 1).shape == (10_000,)


def damaged(content: bytes, damage: str) -> bytes:
    flipped = bytearray(gzip.compress(content))
    flipped[20] ^= 0xFF
    return {
        "cut": gzip.compress(content)[:-9],
        "flipped": bytes(flipped),
        "tail": gzip.compress(content) + b"no gzip",
    }[damage]


HEADER = bytes.fromhex("00000803") + struct.pack(">3I", 2, 3, 4)
FILES = {
    "header": (HEADER[:9], ["9", "16"]),
    "short": (HEADER + bytes(19), ["19 bytes", "2x3x4", "24 bytes"]),
    "long": (HEADER + bytes(25), ["more than 24 bytes", "2x3x4"]),
    "labels": (bytes.fromhex("00000801") + bytes(30), ["0x00000801", "0x00000803"]),
    "floats": (bytes.fromhex("00000d03") + bytes(36), ["0x00000d03", "0x00000803"]),
    **{name: (damaged(HEADER + bytes(24), name), ["gzip"]) for name in ("cut", "flipped", "tail")},
    # A header that claims too much costs no memory.
    "huge": (gzip.compress(b"\x00\x00\x08\x03" + b"\xff" * 12 + b"abc"), ["3 bytes"]),
    "missing": (None, ["No such file"]),
}


@pytest.mark.parametrize(("content", "values"), FILES.values(), ids=FILES)
def test_what_is_no_idx_file_is_refused(tmp_path, content, values):
    path = tmp_path / "images"
    if content is not None:
        path.write_bytes(content)
    message = refusal(path)
    assert says(message, str(path), *values)


@given(st.integers(0, 24 + 15))
def test_every_truncation_is_refused(tmp_path_factory, length):
    path = tmp_path_factory.mktemp("idx") / "cut"
    path.write_bytes((HEADER + bytes(24))[:length])
    refusal(path)
