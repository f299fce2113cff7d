"""Blocks of memory that are new each time, which tell what page faults cost."""

import ctypes

import numpy as np
import pytest

from pydlbench.backends.steps.operators import FreshBlocks, fresh_blocks
from pydlbench.timing.chunk import Request

# The allocator always gives such a block back to the system.
LARGE = 1 << 26


@pytest.mark.parametrize("cpus", [(0,), (0, 1)])
def test_blocks_are_asked_for_written_and_given_back_one_after_the_other(cpus):
    made = FreshBlocks(LARGE, 3, cpus)
    allocate, free = made._allocate, made._free
    events = []

    def asks(size):
        events.append(size)
        return allocate(size)

    def gives(address):
        block = (ctypes.c_float * (LARGE // 4)).from_address(address)
        assert (np.frombuffer(block, np.float32) == 2).all()
        events.append("back")
        free(address)

    made._allocate, made._free = asks, gives
    assert made.run() > 0
    assert events == [LARGE, "back"] * 3


def test_each_block_has_new_pages():
    one, two = (fresh_blocks(LARGE, count).sample(Request(samples=2)).faults for count in (1, 2))
    assert one > 16
    assert two > 1.8 * one


def test_a_block_that_there_is_no_memory_for_is_an_error():
    with pytest.raises(MemoryError):
        FreshBlocks(1 << 60, 1, (0,))
    made = FreshBlocks(1 << 20, 1, (0,))
    made._allocate = lambda _: None
    with pytest.raises(MemoryError, match="1048576"):
        made.run()
