"""Operators of a step, each run alone in the framework that runs the step; for ``breakdown``."""

from __future__ import annotations

import ctypes
import itertools
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
    from typing import TypeAlias

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
# What touching fresh memory costs: blocks are asked for, touched and given back.
#
# Pages are touched by as many threads as compute, each in a part of its own, as a framework's
# threads do.

if TYPE_CHECKING:
    _Bytes: TypeAlias = np.ndarray[tuple[int], np.dtype[np.uint8]]


# One byte of this many is written: NumPy lets other threads run from 500 elements on, which are a
# quarter of a megabyte then.
_STRIDE = 512
# Smaller blocks are not worth a thread, to frameworks neither.
_SHARED = 1 << 19
# Of a step's blocks, those below a page share theirs with others.
_WORTH = 1 << 12
# PyTorch's and TensorFlow's blocks begin on a cache line.
_ALIGNMENT = 64


class Lifetimes:
    """A step's blocks, asked for, touched and given back in its order.

    Played with the C library's default allocator and with one that keeps its pages, it takes as
    much longer with the first as a step's fresh pages take there: how many blocks find fresh ones
    depends on the order, and calls and touches are the same in both. What a framework's libraries
    ask for within a call is not among the blocks.

    Args:
        blocks: what the step asks of the allocator, in order: a number above zero is a block of so
            many bytes, ``-n`` gives the n-th block back, counted from 1.
        cpus: that touch large blocks, a thread on each.
    """

    def __init__(self, blocks: Sequence[int], cpus: Sequence[int]) -> None:
        self._blocks = tuple(blocks)
        library = ctypes.CDLL(None)
        self._allocate = library.posix_memalign
        self._allocate.argtypes = [ctypes.c_void_p, ctypes.c_size_t, ctypes.c_size_t]
        self._free = library.free
        self._free.argtypes = [ctypes.c_void_p]
        self._free.restype = None
        self._place = ctypes.c_void_p()
        self._threads = max(1, len(cpus))
        others = list(cpus[1:])

        def bind_next() -> None:
            bind({others.pop()} if others else ())

        self._pool = ThreadPoolExecutor(max(1, len(others)), initializer=bind_next)

    def run(self) -> float:
        """Play a step; what it has not given back is given back behind it."""
        addresses: list[int] = []
        start = time.perf_counter()
        for number in self._blocks:
            if number < 0:
                self._free(addresses[-number - 1])
                addresses[-number - 1] = 0
                continue
            address = self._address_of(number)
            addresses.append(address)
            if number >= _WORTH:
                self._touch(self._parts(address, number))
        seconds = time.perf_counter() - start
        for address in filter(None, addresses):
            self._free(address)
        return seconds

    def _address_of(self, size: int) -> int:
        """Return the address of a new block."""
        if self._allocate(ctypes.byref(self._place), _ALIGNMENT, size):
            raise MemoryError(f"{size} bytes of a step's allocations")
        return self._place.value or 0

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
        for each in others:
            each.result()


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


def lifetimes(blocks: Sequence[int]) -> OperatorsKernel:
    """Return the kernel that plays a step's blocks; its chunks count the faults.

    Args:
        blocks: see :class:`Lifetimes`.
    """
    cpus = own_cpus()
    return OperatorsKernel([Lifetimes(blocks, cpus)], OperatorsFacts(names=("blocks",)), cpus)


def _write(part: _Bytes) -> None:
    part[:] = 1
