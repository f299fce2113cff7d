"""How the kernels of this package are compiled: parallel loops, vectorised, sums reordered."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, TypeVar, cast

import numba

if TYPE_CHECKING:
    from collections.abc import Callable

__all__ = ["inner", "parallel"]

_numba: Any = numba  # partly without types

_Function = TypeVar("_Function", bound="Callable[..., Any]")


def parallel(function: _Function) -> _Function:
    """Compile a kernel when it is first called; its ``prange`` loop runs on all threads.

    ``fastmath`` lets sums be reordered, so that they are vectorised. It also promises that nothing
    is infinite or NaN, so kernels may write over such values but never read them.
    """
    return cast("_Function", _numba.njit(parallel=True, fastmath=True, cache=False)(function))


def inner(function: _Function) -> _Function:
    """Compile what runs inside of a parallel loop."""
    return cast("_Function", _numba.njit(fastmath=True, cache=False)(function))
