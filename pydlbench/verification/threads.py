"""Run NumPy functions on several threads, one per CPU of the process."""

from collections import deque
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Final, TypeVar

import numpy as np

from pydlbench.devices.cpu.affinity import bind, process_cpus

Item = TypeVar("Item")
Result = TypeVar("Result")

# Number of items per thread: one that it processes and one in the queue.
_PENDING_PER_THREAD: Final = 2


def quiet() -> np.errstate:
    """Return a context without NumPy's warnings: the verdict reports NaN and infinity."""
    return np.errstate(invalid="ignore", over="ignore")


def in_threads(function: Callable[[Item], Result], items: Iterable[Item]) -> Iterator[Result]:
    """Call a function with each item, :func:`quiet`, on one thread per CPU of the process.

    Args:
        function: Thread-safe function.
        items: Iterated lazily, a few items ahead of the results.

    Yields:
        The results, in the order of the items.
    """

    def call(item: Item) -> Result:
        with quiet():  # NumPy's error state is per thread
            return function(item)

    cpus = process_cpus()
    pending: deque[Future[Result]] = deque()
    with ThreadPoolExecutor(len(cpus), initializer=bind, initargs=(cpus,)) as pool:
        for item in items:
            pending.append(pool.submit(call, item))
            if len(pending) == _PENDING_PER_THREAD * len(cpus):
                yield pending.popleft().result()
        while pending:
            yield pending.popleft().result()
