"""A function of JAX, compiled ahead of time, with its operands: called, waited for, read."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Any

import numpy as np

from pydlbench.backends.frameworks.operator import FrameworkOperator
from pydlbench.backends.jax.settings import jax
from pydlbench.timing.statistics import median

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from numpy.typing import NDArray

    from pydlbench.backends.jax.settings import Place

# Readings of what a launch costs, and executions in each.
_READINGS, _LAUNCHES = 20, 10


def as_array(array: Any) -> NDArray[Any]:
    """Return the values of an array of JAX's, on the host, as float32."""
    return np.asarray(array).astype(np.float32, copy=False)


class JaxOperator(FrameworkOperator):
    """A compiled function with its operands on the device; it has run once.

    On a CPU a call returns with its result, on a GPU the result is in the queue. Nothing is
    donated: each call gets new memory for its result, as a user's line does.

    Args:
        function: what is compiled.
        operands: all arguments, on the device.
        results: see :class:`FrameworkOperator`.
        place: where it computes, and in what.
    """

    def __init__(
        self,
        function: Callable[..., Any],
        operands: Sequence[Any],
        results: Callable[[Any], Mapping[str, NDArray[Any]]],
        place: Place,
    ) -> None:
        self._compiled = place.compiled(function, operands)
        self._last: Any = None
        called = self._queued if place.queues else self._finished
        super().__init__(called, operands, results, wait=self._wait)
        self.call()  # touches what is touched once
        self.wait()

    def _finished(self, *operands: Any) -> Any:
        return jax.block_until_ready(self._compiled(*operands))

    def _queued(self, *operands: Any) -> Any:
        self._last = self._compiled(*operands)
        return self._last

    def _wait(self) -> None:
        # A device runs calls in their order, one after the other.
        if self._last is not None:
            jax.block_until_ready(self._last)

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
