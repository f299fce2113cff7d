"""A function of JAX, compiled ahead of time, with its operands: called, waited for, read."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import jax
import numpy as np

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from numpy.typing import NDArray

__all__ = ["JaxOperator"]


class JaxOperator:
    """A compiled function with its operands on the device.

    Nothing is donated: each call gets new memory for its result, as a user's line does.

    Args:
        function: what is compiled.
        operands: all arguments, arranged.
        role: of the result.
        plain: brings the result into its plain layout.
    """

    def __init__(
        self,
        function: Callable[..., Any],
        operands: Sequence[NDArray[Any]],
        role: str,
        plain: Callable[[NDArray[Any]], NDArray[Any]],
    ) -> None:
        self._operands = [jax.device_put(one) for one in operands]
        self._compiled = jax.jit(function).lower(*self._operands).compile()
        self._role = role
        self._plain = plain
        self.call()  # touches what is touched once

    def call(self) -> Any:
        """Run it once and wait for the result."""
        return self._compiled(*self._operands).block_until_ready()

    def wait(self) -> None:
        """Return at once: calls return when they are done."""

    def outputs(self) -> dict[str, NDArray[Any]]:
        """Run it once and return what it wrote."""
        return {self._role: self._plain(np.asarray(self.call()))}

    def program(self) -> str:
        """Return the text of the optimised program."""
        return str(self._compiled.as_text())
