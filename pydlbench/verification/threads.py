"""NumPy on several threads: what is made or compared piece by piece is so on all own CPUs."""

from __future__ import annotations

from collections import deque
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING, Final, TypeVar

import numpy as np

from pydlbench.devices.cpu.affinity import bind, own_cpus

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator
    from concurrent.futures import Future

Item = TypeVar("Item")
Result = TypeVar("Result")

# Of each thread: what it works on, and what waits for it.
_UNDER_WAY: Final = 2


def quiet() -> np.errstate:
    """Return a context in which NumPy does not warn: what is NaN or infinite is reported."""
    return np.errstate(invalid="ignore", over="ignore")


def in_threads(function: Callable[[Item], Result], items: Iterable[Item]) -> Iterator[Result]:
    """Call a function with each item, :func:`quiet`, on as many threads as there are own CPUs.

    Args:
        function: several threads call it at a time.
        items: are asked for one by one, a few of them ahead of the results.

    Yields:
        The results, in the order of the items.
    """

    def called(item: Item) -> Result:
        with quiet():  # of this thread
            return function(item)

    cpus = own_cpus()
    pending: deque[Future[Result]] = deque()
    with ThreadPoolExecutor(len(cpus), initializer=bind, initargs=(cpus,)) as pool:
        for item in items:
            pending.append(pool.submit(called, item))
            if len(pending) == _UNDER_WAY * len(cpus):
                yield pending.popleft().result()
        while pending:
            yield pending.popleft().result()
