"""A function of JAX, compiled ahead of time, with its operands: called, waited for, read."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Any

import numpy as np

from pydlbench.backends.jax.settings import jax
from pydlbench.timing.statistics import median

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from numpy.typing import NDArray

    from pydlbench.backends.jax.settings import Place

# Readings of what a launch costs, and executions in each.
_READINGS, _LAUNCHES = 20, 10


class JaxOperator:
    """A compiled function with its operands on the device.

    Nothing is donated: each call gets new memory for its result, as a user's line does.

    Args:
        function: what is compiled.
        operands: all arguments, on the device.
        results: of what is returned by role: what brings it into its plain layout.
        place: where it computes, and in what.
    """

    def __init__(
        self,
        function: Callable[..., Any],
        operands: Sequence[Any],
        results: Mapping[str, Callable[[NDArray[Any]], NDArray[Any]]],
        place: Place,
    ) -> None:
        self._operands = operands
        self._compiled = place.compiled(function, self._operands)
        self._results = results
        self._queues = place.queues
        self._last: Any = None
        self.call()  # touches what is touched once
        self.wait()

    def call(self) -> Any:
        """Run it once; on a CPU the result is there, on a GPU it is in the queue."""
        found = self._compiled(*self._operands)
        if self._queues:
            self._last = found
            return found
        return jax.block_until_ready(found)

    def wait(self) -> None:
        """Return when all calls are done: a device runs them in their order, one after the other.

        On a CPU they are, when they return.
        """
        if self._last is not None:
            jax.block_until_ready(self._last)

    def outputs(self) -> dict[str, NDArray[Any]]:
        """Run it once and return what it wrote."""
        found = self.call()
        several = found if isinstance(found, tuple | list) else [found]
        pairs = zip(self._results.items(), several, strict=True)
        return {
            role: plain(np.asarray(one).astype(np.float32, copy=False))
            for (role, plain), one in pairs
        }

    def program(self) -> str:
        """Return the text of the optimised program."""
        return str(self._compiled.as_text())

    def launch_times(self) -> dict[str, float]:
        """Return seconds per execution on the host's clock, and of putting one into the queue.

        ``host`` and ``enqueue`` of ``KernelFacts.launch_s``: JAX gives nobody its streams, so there
        is no time between two events.
        """
        host, enqueue = [], []
        for _ in range(_READINGS):
            start = time.perf_counter()
            for _ in range(_LAUNCHES):
                self.call()
            launched = time.perf_counter()
            self.wait()
            host.append((time.perf_counter() - start) / _LAUNCHES)
            enqueue.append((launched - start) / _LAUNCHES)
        return {"host": median(host), "enqueue": median(enqueue)}
