"""CuPy's operators: each computes into a result, which a call allocates from CuPy's pool."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import cupy
import numpy as np

from pydlbench.backends.cupy.precision import settle

if TYPE_CHECKING:
    from collections.abc import Callable

    from numpy.typing import NDArray

    #: Allocates the result if it is given none, computes into it and returns it.
    Compute = Callable[[Any], Any]

__all__ = ["CupyOperator"]


class CupyOperator:
    """One line of CuPy, or a few.

    Args:
        compute: what is timed; takes a result to write into, or None.
        shape: of the result.
        type_: of its elements.
        role: what the result is.
        plain: turns the result into its plain layout.
        precision: what cuBLAS is allowed.
        timing: ``events`` or ``cuda-graph``.
    """

    def __init__(
        self,
        compute: Compute,
        shape: tuple[int, ...],
        type_: str,
        role: str,
        plain: Callable[[NDArray[Any]], NDArray[Any]],
        precision: str,
        timing: str,
    ) -> None:
        self._compute = compute
        self._shape = shape
        self._type = type_
        self._role = role
        self._plain = plain
        self._precision = precision
        self._result: Any = None
        self.timing = timing
        self.settle()
        self.call()  # compiles kernels and fills the pool
        self.wait()

    def settle(self) -> None:
        """Set what cuBLAS is allowed, for all calls until the next operator's."""
        settle(self._precision)

    def call(self) -> Any:
        """Run it once; the result comes from CuPy's pool."""
        return self._compute(None)

    def again(self) -> None:
        """Run it into a result that is kept: a graph needs memory that nobody else gets."""
        if self._result is None:
            self._result = cupy.empty(self._shape, self._type)
        self._compute(self._result)

    def wait(self) -> None:
        """Return when everything that was called is done."""
        cupy.cuda.get_current_stream().synchronize()

    def outputs(self) -> dict[str, NDArray[Any]]:
        """Run it once into a result full of NaN and return that one as float32."""
        self.settle()
        result = self._compute(cupy.full(self._shape, np.nan, self._type))
        return {self._role: self._plain(cupy.asnumpy(result).astype(np.float32))}
