"""Blocks of memory that are new each time, which tell what page faults cost."""

import mmap

import numpy as np
import pytest

from pydlbench.backends.steps.probes import WrittenBlocks, written_blocks
from pydlbench.timing.chunk import ChunkRequest

SIZE = 1 << 26
REQUEST = ChunkRequest(samples=2)


@pytest.mark.parametrize("cpus", [(0,), (0, 1)])
def test_all_of_each_block_is_written_before_the_next_is_mapped(cpus, monkeypatch):
    made = WrittenBlocks(SIZE, 3, cpus, keeps=False)
    events = []

    class Block(mmap.mmap):
        def __enter__(self):
            events.append(len(self))
            return self

        def __exit__(self, *raised):
            events.append(float(np.frombuffer(self, np.float32).min()))
            self.close()

    monkeypatch.setattr(mmap, "mmap", Block)
    assert made.run() > 0
    assert events == [SIZE, 2.0] * 3


def test_each_block_has_new_pages_unless_one_is_kept():
    one, two = (written_blocks(SIZE, count, keeps=False).sample(REQUEST).faults for count in (1, 2))
    assert one > 16
    assert two > 1.8 * one
    assert written_blocks(SIZE, 1, keeps=True).sample(REQUEST).faults < one / 8


def test_a_block_that_there_is_no_memory_for_is_an_error(monkeypatch):
    with pytest.raises(MemoryError):
        WrittenBlocks(1 << 60, 1, (0,), keeps=False)
    made = WrittenBlocks(SIZE, 1, (0,), keeps=False)
    whole = mmap.mmap
    monkeypatch.setattr(mmap, "mmap", lambda _, size, flags: whole(-1, size << 30, flags=flags))
    with pytest.raises(MemoryError, match=f"{SIZE} bytes"):
        made.run()
