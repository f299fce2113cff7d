"""Probes of the machine beside the calls of a step: fresh memory, and waking a thread.

What the first use of fresh memory costs is measured with blocks that are mapped, written and
unmapped, beside blocks that keep their pages. A block is the sum of another one and a number,
because calls of a framework compute what they write from operands; each thread writes its own part.
The kernel has just cleared a fresh page, which puts it into a cache. That saves a part of the
traffic that a call has with kept pages: a fault costs a call less than it costs to touch one byte
of the page (15 % less here).
"""

import itertools
import mmap
import socket
import time
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from threading import Thread

import numpy as np
from numpy.typing import NDArray

from pydlbench.backends.steps.timed_calls import OperatorsKernel
from pydlbench.devices.cpu.affinity import bind, process_cpus
from pydlbench.records.trace import OperatorsFacts


class WrittenBlocks:
    """Blocks of memory, each mapped, written and unmapped before the next.

    They are mapped directly, because an allocator may hand out pages that it has kept.

    Args:
        size: size of a block in bytes, a multiple of 4.
        count: number of blocks in a run.
        cpus: CPUs that write a block, with a thread on each.
        keeps: map one block only, and write it each time.

    Raises:
        MemoryError: there is no memory for a block.
    """

    def __init__(self, size: int, count: int, cpus: Sequence[int], *, keeps: bool) -> None:
        self._count = count
        self._source = np.ones(size // 4, np.float32)
        self._threads = max(1, len(cpus))
        others = list(cpus[1:])

        def bind_next() -> None:
            bind({others.pop()} if others else ())

        self._pool = ThreadPoolExecutor(max(1, len(others)), initializer=bind_next)
        self._kept = self._mapped() if keeps else None
        if self._kept is not None:
            self._write(self._kept)

    def run(self) -> float:
        """Write each block, in new memory unless it is kept; return the seconds."""
        start = time.perf_counter()
        for _ in range(self._count):
            if self._kept is not None:
                self._write(self._kept)
            else:
                with self._mapped() as block:
                    self._write(block)
        return time.perf_counter() - start

    def _mapped(self) -> mmap.mmap:
        size = self._source.nbytes
        try:
            return mmap.mmap(-1, size, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
        except OSError as error:
            raise MemoryError(f"no block of {size} bytes: {error.strerror}") from error

    def _write(self, block: mmap.mmap) -> None:
        """Write all of a block, each thread a part of its own."""
        size = self._source.size
        bounds = [size * number // self._threads for number in range(self._threads + 1)]
        first, *rest = (slice(*ends) for ends in itertools.pairwise(bounds))
        others = [self._pool.submit(_add_one, self._source, block, part) for part in rest]
        _add_one(self._source, block, first)
        for future in others:
            future.result()


def _add_one(source: NDArray[np.float32], block: mmap.mmap, part: slice) -> None:
    np.add(source[part], np.float32(1), out=np.frombuffer(block, np.float32)[part])


class Wakeups:
    """Two threads that wake each other in turn, by a byte there and one back.

    Args:
        cpus: CPUs of the process; the other thread is bound to the second one, if there is one.
    """

    def __init__(self, cpus: Sequence[int]) -> None:
        self._socket, other = socket.socketpair()
        Thread(target=_echo, args=(other, cpus[1:2]), daemon=True).start()

    def run(self) -> float:
        """Wake the other thread and be woken by it; return the seconds of one wake-up."""
        start = time.perf_counter()
        self._socket.send(b"1")
        self._socket.recv(1)
        return (time.perf_counter() - start) / 2


def _echo(connection: socket.socket, cpus: Sequence[int]) -> None:
    """Answer each byte until the other end is closed."""
    if cpus:
        bind(set(cpus))
    while connection.recv(1):
        connection.send(b"1")


def wakeups() -> OperatorsKernel:
    """Return the kernel that wakes threads."""
    cpus = process_cpus()
    return OperatorsKernel([Wakeups(cpus)], OperatorsFacts(names=("wake-up",)), cpus)


def written_blocks(size: int, count: int, *, keeps: bool) -> OperatorsKernel:
    """Return the kernel that writes memory, fresh or kept; its chunks count the page faults.

    Args:
        size: size of a block in bytes, a multiple of 4.
        count: number of blocks in a run.
        keeps: map one block only, and write it each time.
    """
    cpus = process_cpus()
    blocks = WrittenBlocks(size, count, cpus, keeps=keeps)
    return OperatorsKernel([blocks], OperatorsFacts(names=("blocks",)), cpus)
