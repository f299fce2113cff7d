"""The bandwidth probe's kernels: each word is read, copied or written once."""

import ctypes

import numpy as np
import pytest

READ, WRITE, COPY = range(3)
GUARD = 64


@pytest.fixture(scope="module")
def library(cpp_library):
    found = cpp_library
    found.stream_chunk_bytes.restype = ctypes.c_ulong
    return found


def run(library, kind, in_flight, *, blocks, chunks, items):
    """Return source, destination (with a guard on both sides) and the sum of each thread."""
    words = library.stream_chunk_bytes(in_flight) * chunks // 4
    random = np.random.default_rng(3)
    source = random.integers(1, 2**32, words, dtype=np.uint32)
    destination = np.zeros(words + 2 * GUARD, np.uint32)
    count, blocks = (items, library.block_per_item()) if blocks == "per item" else (blocks, blocks)
    sums = np.full(count * library.stream_threads() + 1, 77, np.uint32)
    library.run_stream(
        kind,
        in_flight,
        blocks,
        source.ctypes.data_as(ctypes.c_void_p),
        ctypes.c_void_p(destination.ctypes.data + 4 * GUARD),
        sums.ctypes.data_as(ctypes.c_void_p),
        chunks,
        items,
    )
    assert not destination[:GUARD].any()
    assert not destination[-GUARD:].any()
    assert sums[-1] == 77
    return source, destination[GUARD:-GUARD], sums[:-1]


@pytest.mark.parametrize("in_flight", [1, 2, 4, 8])
@pytest.mark.parametrize(("blocks", "chunks"), [(1, 1), (3, 4), (4, 3)])
@pytest.mark.parametrize("passes", [1, 3])
def test_a_read_takes_every_word_once_per_pass(library, in_flight, blocks, chunks, passes):
    source, destination, sums = run(
        library, READ, in_flight, blocks=blocks, chunks=chunks, items=chunks * passes
    )
    assert (
        int(sums.sum(dtype=np.uint64)) % 2**32 == passes * int(source.sum(dtype=np.uint64)) % 2**32
    )
    assert not destination.any()


@pytest.mark.parametrize("in_flight", [1, 2, 4, 8])
@pytest.mark.parametrize(("blocks", "chunks"), [(1, 1), (3, 4), (4, 3)])
def test_a_copy_takes_every_word_to_its_place(library, in_flight, blocks, chunks):
    source, destination, sums = run(
        library, COPY, in_flight, blocks=blocks, chunks=chunks, items=chunks
    )
    np.testing.assert_array_equal(destination, source)
    assert (sums == 77).all()


@pytest.mark.parametrize("in_flight", [1, 2, 4, 8])
@pytest.mark.parametrize(("blocks", "chunks"), [(1, 1), (3, 4), (4, 3)])
def test_a_write_fills_every_word_with_something_of_its_own(library, in_flight, blocks, chunks):
    _, destination, sums = run(
        library, WRITE, in_flight, blocks=blocks, chunks=chunks, items=2 * chunks
    )
    index = np.arange(len(destination) // 4, dtype=np.uint32)
    np.testing.assert_array_equal(destination[::4], index * np.uint32(2654435761))
    np.testing.assert_array_equal(destination[2::4], ~destination[::4])
    assert (destination != 0).mean() > 0.999
    assert (sums == 77).all()


@pytest.mark.parametrize("blocks", [2, "per item"])
def test_items_are_what_is_moved(library, blocks):
    """Three items of four chunks: the last chunk is not touched."""
    source, destination, _ = run(library, COPY, 2, blocks=blocks, chunks=4, items=3)
    moved = 3 * library.stream_chunk_bytes(2) // 4
    np.testing.assert_array_equal(destination[:moved], source[:moved])
    assert not destination[moved:].any()
