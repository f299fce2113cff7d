"""A compiled kernel with its operands, called as a user's line would call it."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from numpy.typing import NDArray

__all__ = ["HostOperator", "KeptResults"]


class KeptResults:
    """A compiled kernel alone: its results were allocated, and written to, beforehand.

    Args:
        kernel: takes all of the arguments.
        arguments: results, then operands.
    """

    def __init__(self, kernel: Callable[..., None], arguments: Sequence[Any]) -> None:
        self.kernel = kernel
        self.arguments = tuple(arguments)

    def call(self) -> None:
        """Run it once."""
        self.kernel(*self.arguments)

    def wait(self) -> None:
        """Return at once: calls return when they are done."""

    def outputs(self) -> dict[str, NDArray[Any]]:
        """Return nothing: these results are not read."""
        return {}


class HostOperator:
    """Allocates its results and fills them.

    Args:
        kernel: Takes the results, then the operands.
        operands: All other arguments.
        results: Shape and type of each result; the first one is the main one.
        role: What the main result is.
        plain: Turns the main result into its plain layout.
    """

    def __init__(
        self,
        kernel: Callable[..., None],
        operands: Sequence[Any],
        results: Sequence[tuple[tuple[int, ...], type[np.generic]]],
        role: str,
        plain: Callable[[NDArray[Any]], NDArray[Any]],
    ) -> None:
        self._kernel = kernel
        self._operands = tuple(operands)
        self._results = tuple(results)
        self._role = role
        self._plain = plain
        self.call()  # compiles

    def call(self) -> tuple[NDArray[Any], ...]:
        """Allocate the results and compute them."""
        results = tuple(np.empty(shape, kind) for shape, kind in self._results)
        self._kernel(*results, *self._operands)
        return results

    def wait(self) -> None:
        """Return at once: calls return when they are done."""

    def kept(self) -> KeptResults:
        """Return the same kernel, filling the same results in each call."""
        results = tuple(np.zeros(shape, kind) for shape, kind in self._results)
        return KeptResults(self._kernel, (*results, *self._operands))

    def outputs(self) -> dict[str, NDArray[Any]]:
        """Run it once on a main result full of NaN and return that one."""
        (shape, kind), *others = self._results
        main = np.full(shape, np.nan, kind)
        rest = tuple(np.empty(shape, kind) for shape, kind in others)
        self._kernel(main, *rest, *self._operands)
        return {self._role: self._plain(main)}
