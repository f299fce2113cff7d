"""Operators of a step, each run alone in the framework that runs the step; for ``breakdown``."""

from __future__ import annotations

import itertools
import mmap
import socket
import time
from collections import deque
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from threading import Thread
from typing import TYPE_CHECKING, Any, Final, Protocol

import numpy as np

from pydlbench.backends.frameworks.verbose import creation_s, parse, total_s
from pydlbench.backends.host_clock import Account, page_faults
from pydlbench.devices.cpu.affinity import bind, own_cpus
from pydlbench.errors import UnsupportedError
from pydlbench.records.operator import OperatorsFacts
from pydlbench.timing.statistics import median

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from numpy.typing import NDArray

    from pydlbench.records.step import StepSpec
    from pydlbench.timing.chunk import Chunk, Request


def check_on_cpu(spec: StepSpec) -> None:
    """Refuse operators on a GPU, for which a framework has no clock here.

    Raises:
        UnsupportedError: with what has one.
    """
    if spec.on_gpu:
        raise UnsupportedError(
            f"{spec.framework} {spec.mode}: its operators are not timed on a GPU; nearest: "
            "--framework torch --mode eager"
        )


class TimedOperator(Protocol):
    """An operator of a step with its operands in place."""

    def run(self) -> float:
        """Run it once and return the seconds of one execution.

        Neither what is set up is in them nor what starting the call costs.
        """


class OperatorsKernel:
    """Operators that are ready to be timed.

    A request's samples are rounds: the chunk has one time per operator and round, operator by
    operator. With ``inner`` above one each runs so often in a row, and has as many times: in the
    first it follows another one, in all others it finds its operands in caches.

    Args:
        operators: in the order in which a step runs them.
        facts: what is known of them.
        cpus: those that the process is pinned to.
    """

    def __init__(
        self,
        operators: Sequence[TimedOperator],
        facts: OperatorsFacts,
        cpus: Sequence[int],
    ) -> None:
        self._operators = tuple(operators)
        self._cpus = tuple(cpus)
        self.facts = facts

    def sample(self, request: Request) -> Chunk:
        """Time the requested rounds, after those that are not timed."""
        for _ in range(request.untimed):
            for operator in self._operators:
                operator.run()
        seconds: list[float] = []
        with Account(self._cpus) as account:
            before = page_faults()
            for _ in range(request.samples):
                # One that computes next to nothing may take less than a call is said to.
                seconds += [
                    max(0.0, operator.run())
                    for operator in self._operators
                    for _ in range(request.inner)
                ]
            faults = page_faults() - before
        return account.chunk(seconds, faults=faults / (request.samples * request.inner))


class TimedCall:
    """A call as an operator, its cost being part of what is measured.

    Args:
        call: what is called.
    """

    def __init__(self, call: Callable[[], Any]) -> None:
        self.call = call

    def settle(self) -> None:
        """Nothing of what it finds is brought into another state."""

    def run(self) -> float:
        """Call it once; what it returns is dropped once the clock has been read."""
        start = time.perf_counter()
        results = self.call()
        seconds = time.perf_counter() - start
        del results
        return seconds


# -----------------------------------------------------------------------------
# What starting a call costs between operators of a step, which is in their times but not in a step.

# The median of so many calls counts, the last ones: so few that it follows the machine.
_RECENT = 31


class CallCost:
    """The cost of a call, measured where it arises: after each operator.

    A call of nothing, made in a loop, finds all of its code and data in the nearest cache. Between
    operators, which have put their tensors there, it was seen to take four times as long. After
    which of them makes less of a difference: the last calls are taken together.

    Args:
        call: makes a call of nothing and returns its seconds.
    """

    def __init__(self, call: Callable[[], float]) -> None:
        self._call = call
        self._recent: deque[float] = deque(maxlen=_RECENT)

    def seconds(self) -> float:
        """Make the call once more; return what it costs by the last ones."""
        self._recent.append(self._call())
        return self.latest

    @property
    def latest(self) -> float:
        """What the last calls cost, in seconds; there was one."""
        return median(self._recent)


def _append(taken: deque[float], operator: TimedOperator) -> None:
    taken.append(operator.run())


class LoggedOperators:
    """Operators whose libraries log what they execute.

    A request's samples are rounds, each twice: without a log, and with one, so that an operator
    follows another one both times. The chunk has five times per operator and round, operator by
    operator: those of the call without a log and with one; and by the log, of all that was executed
    in it, of the layout reorders among that, and of making primitives.

    Args:
        operators: in the order in which a step runs them.
        log: runs one once and returns what was printed meanwhile.
        facts: what is known of them.
        cpus: those that the process is pinned to.
    """

    #: Times of an operator.
    PARTS: Final = 5

    def __init__(
        self,
        operators: Sequence[TimedOperator],
        log: Callable[[Callable[[], Any]], str],
        facts: OperatorsFacts,
        cpus: Sequence[int],
    ) -> None:
        self._operators, self._log = tuple(operators), log
        self._cpus = tuple(cpus)
        self.facts = facts

    def sample(self, request: Request) -> Chunk:
        """Time and log the requested rounds, after those that are neither timed nor logged."""
        seconds: list[float] = []
        with Account(self._cpus) as account:
            for _ in range(request.untimed):
                for operator in self._operators:
                    operator.run()
            before = page_faults()
            for _ in range(request.samples):
                plain = [operator.run() for operator in self._operators]
                for plain_s, operator in zip(plain, self._operators, strict=True):
                    taken: deque[float] = deque()
                    text = self._log(partial(_append, taken, operator))
                    executions = parse(text)
                    reorders = [each for each in executions if each.primitive == "reorder"]
                    logged = (*map(total_s, (executions, reorders)), creation_s(text))
                    seconds += [plain_s, *taken, *logged]
            faults = page_faults() - before
        return account.chunk(seconds, faults=faults / request.samples)


# -----------------------------------------------------------------------------
# What fresh memory costs: blocks are mapped, written and unmapped, or the same pages are written.
#
# A block is the sum of another one and a number, by as many threads as compute, each in a part of
# its own: what a framework's calls write they compute from operands. A page that the kernel has
# just cleared is in a cache, which saves a part of the traffic that a call has with kept pages: a
# fault costs a call less than it costs to touch a byte of the page (here by 15 %).


class WrittenBlocks:
    """Blocks of memory, each mapped, written and unmapped before the next.

    An allocator would take some of them from pages that it has kept, now and then.

    Args:
        size: bytes of a block, a multiple of 4.
        count: blocks in a run.
        cpus: that write a block, a thread on each.
        keeps: whether the first one stays, and is written each time.

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
        for each in others:
            each.result()


def _add_one(source: NDArray[np.float32], block: mmap.mmap, part: slice) -> None:
    np.add(source[part], np.float32(1), out=np.frombuffer(block, np.float32)[part])


class Wakeups:
    """A thread that sleeps until another one wakes it, by a byte there and one back.

    Args:
        cpus: the other thread is bound to the second of them, if there is one.
    """

    def __init__(self, cpus: Sequence[int]) -> None:
        self._own, other = socket.socketpair()
        Thread(target=_answer, args=(other, cpus[1:2]), daemon=True).start()

    def run(self) -> float:
        """Wake the other thread and be woken by it; return the seconds of one of the two."""
        start = time.perf_counter()
        self._own.send(b"1")
        self._own.recv(1)
        return (time.perf_counter() - start) / 2


def _answer(own: socket.socket, cpus: Sequence[int]) -> None:
    """Answer each byte until the other end is closed."""
    if cpus:
        bind(set(cpus))
    while own.recv(1):
        own.send(b"1")


def wakeups() -> OperatorsKernel:
    """Return the kernel that wakes threads."""
    cpus = own_cpus()
    return OperatorsKernel([Wakeups(cpus)], OperatorsFacts(names=("wake-up",)), cpus)


def written_blocks(size: int, count: int, *, keeps: bool) -> OperatorsKernel:
    """Return the kernel that writes memory, new or kept; its chunks count the faults.

    Args:
        size: see :class:`WrittenBlocks`.
        count: likewise.
        keeps: likewise.
    """
    cpus = own_cpus()
    blocks = WrittenBlocks(size, count, cpus, keeps=keeps)
    return OperatorsKernel([blocks], OperatorsFacts(names=("blocks",)), cpus)
