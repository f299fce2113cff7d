"""Allocations of a step without the step: blocks are asked for, touched and given back.

In a process whose C library allocates as it does by default. Pages are touched by as many threads
as compute, each in a part of its own, as a framework's threads do. What touching pages costs that
are there already, the threads' start included, is measured right afterwards and taken off: what is
left is the kernel's work for fresh ones, and the calls of the allocator.
"""

from __future__ import annotations

import ctypes
import itertools
import os
import time
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
    """A step's allocations as a part whose time is that of page faults.

    Args:
        events: in the order of the step: ``[slot, bytes]`` allocates where the slot is free,
            ``[slot, 0]`` frees.
        cpus: that touch large blocks, a thread on each.
    """

    executions = 1

    def __init__(self, events: Sequence[Sequence[int]], cpus: Sequence[int]) -> None:
        self._events = [(int(slot), int(size)) for slot, size in events]
        library = ctypes.CDLL(None)
        self._allocate = library.posix_memalign
        self._allocate.argtypes = [ctypes.c_void_p, ctypes.c_size_t, ctypes.c_size_t]
        self._free = library.free
        self._free.argtypes = [ctypes.c_void_p]
        self._free.restype = None
        self._place = ctypes.c_void_p()
        self._live: dict[int, int] = {}
        self._threads = max(1, len(cpus))
        others = list(cpus[1:])

        def bind() -> None:
            # OpenMP has bound this process's first thread, and others would inherit its place.
            if others and hasattr(os, "sched_setaffinity"):
                os.sched_setaffinity(0, {others.pop()})

        self._pool = ThreadPoolExecutor(max(1, len(others)), initializer=bind)

    def run(self) -> float:
        """Play the step once; blocks that are not freed stay for the next round."""
        seconds = 0.0
        clock, place, live = time.perf_counter, self._place, self._live
        for slot, size in self._events:
            if size and slot not in live:
                start = clock()
                if self._allocate(ctypes.byref(place), _ALIGNMENT, size):
                    raise MemoryError(f"{size} bytes of a step's allocations")
                middle = clock()
                address = place.value or 0
                pages = self._parts(address, size)
                prepared = clock()
                self._touch(pages)
                touched = clock()
                self._touch(pages)
                again = clock()
                seconds += (middle - start) + (touched - prepared) - (again - touched)
                live[slot] = address
            elif not size and slot in live:
                address = live.pop(slot)
                start = clock()
                self._free(address)
                seconds += clock() - start
        # Without faults what is left is noise around nothing.
        return max(0.0, seconds)

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


def replay(events: Sequence[Sequence[int]]) -> PartsKernel:
    """Return the kernel that plays a step's allocations; its chunks count the faults."""
    how = "posix_memalign, a touch of each page, free; what a second touch costs taken off"
    facts = PartsFacts(names=("replay",), how=how)
    cpus = own_cpus()
    return PartsKernel([Replay(events, cpus)], facts, cpus)
