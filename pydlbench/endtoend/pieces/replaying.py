"""What touching fresh memory costs: blocks are asked for, touched and given back.

In a process whose C library gets new pages for each block. Pages are touched by as many threads as
compute, each in a part of its own, as a framework's threads do. What touching pages costs that are
there already, the threads' start included, is measured right afterwards and taken off: what is left
is the kernel's work for fresh ones, and the calls of the allocator.

A block is given back once those after it have pushed it out of the caches: else the next one would
get pages that are still in them, which are cleared faster than a step's.
"""

from __future__ import annotations

import ctypes
import itertools
import os
import time
from collections import deque
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING

import numpy as np

from pydlbench.backends.own_cpus import own_cpus
from pydlbench.endtoend.pieces.kernel import PartsFacts, PartsKernel

if TYPE_CHECKING:
    from collections.abc import Sequence
    from typing import TypeAlias

    _Bytes: TypeAlias = np.ndarray[tuple[int], np.dtype[np.uint8]]

__all__ = ["Replay", "replay"]

# One byte of this many is written: NumPy lets other threads run from 500 elements on, which are a
# quarter of a megabyte then.
_STRIDE = 512
# Smaller blocks are not worth a thread, to frameworks neither.
_SHARED = 1 << 19
# PyTorch's and TensorFlow's blocks begin on a cache line.
_ALIGNMENT = 64


class Replay:
    """Blocks as a part whose time is that of page faults.

    Args:
        sizes: of the blocks, in bytes.
        live: so many bytes are held at the most, besides the last block.
        cpus: that touch large blocks, a thread on each.
    """

    executions = 1

    def __init__(self, sizes: Sequence[int], live: int, cpus: Sequence[int]) -> None:
        self._sizes = tuple(sizes)
        self._most = live
        library = ctypes.CDLL(None)
        self._allocate = library.posix_memalign
        self._allocate.argtypes = [ctypes.c_void_p, ctypes.c_size_t, ctypes.c_size_t]
        self._free = library.free
        self._free.argtypes = [ctypes.c_void_p]
        self._free.restype = None
        self._place = ctypes.c_void_p()
        #: Addresses and sizes of what is held, the oldest first.
        self._live: deque[tuple[int, int]] = deque()
        self._held = 0
        self._threads = max(1, len(cpus))
        others = list(cpus[1:])

        def bind() -> None:
            # OpenMP has bound this process's first thread, and others would inherit its place.
            if others and hasattr(os, "sched_setaffinity"):
                os.sched_setaffinity(0, {others.pop()})

        self._pool = ThreadPoolExecutor(max(1, len(others)), initializer=bind)

    def run(self) -> float:
        """Play all blocks once; those that are still held stay for the next round."""
        seconds = sum(self._one(size) for size in self._sizes)
        # Without faults what is left is noise around nothing.
        return max(0.0, seconds)

    def _one(self, size: int) -> float:
        """Ask for a block, touch it, and give back the oldest ones; return the seconds."""
        clock, place = time.perf_counter, self._place
        start = clock()
        if self._allocate(ctypes.byref(place), _ALIGNMENT, size):
            raise MemoryError(f"{size} bytes of a step's allocations")
        seconds = clock() - start
        address = place.value or 0
        pages = self._parts(address, size)
        start = clock()
        self._touch(pages)
        touched = clock()
        self._touch(pages)
        again = clock()
        seconds += (touched - start) - (again - touched)
        self._live.append((address, size))
        self._held += size
        while self._held > self._most and len(self._live) > 1:
            old, freed = self._live.popleft()
            self._held -= freed
            start = clock()
            self._free(old)
            seconds += clock() - start
        return seconds

    def _parts(self, address: int, size: int) -> list[_Bytes]:
        """Return some bytes of each page of a block, for each thread that touches it."""
        block = (ctypes.c_uint8 * size).from_address(address)
        view = np.ctypeslib.as_array(block)
        count = self._threads if size >= _SHARED else 1
        bounds = [size * number // count for number in range(count + 1)]
        return [view[a:b:_STRIDE] for a, b in itertools.pairwise(bounds)]

    def _touch(self, parts: list[_Bytes]) -> None:
        others = [self._pool.submit(_write, part) for part in parts[1:]]
        _write(parts[0])
        for one in others:
            one.result()


def _write(part: _Bytes) -> None:
    part[:] = 1


def replay(sizes: Sequence[int], live: int) -> PartsKernel:
    """Return the kernel that plays blocks; its chunks count the faults.

    Args:
        sizes: of the blocks, in bytes.
        live: see :class:`Replay`.
    """
    how = "posix_memalign, a touch of each page, free; what a second touch costs taken off"
    facts = PartsFacts(names=("replay",), how=how)
    cpus = own_cpus()
    return PartsKernel([Replay(sizes, live, cpus)], facts, cpus)
