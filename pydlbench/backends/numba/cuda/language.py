"""Numba's language for GPUs with what it lacks: types for its decorators, ``min`` and ``max``."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numba.cuda

if TYPE_CHECKING:
    from collections.abc import Callable

__all__ = ["cuda", "device", "kernel", "larger", "smaller"]

#: Under this name kernels find it, in the simulator too. It has no types.
cuda: Any = numba.cuda


def kernel(function: Callable[..., None]) -> Any:
    """Compile a kernel when it is first launched: ``kernel[grid, block, stream](...)``."""
    return cuda.jit(function)


def device(function: Callable[..., Any]) -> Any:
    """Compile what kernels call."""
    return cuda.jit(device=True)(function)


# Python's own min and max do not compile for GPUs in every version.
@device
def smaller(a: Any, b: Any) -> Any:
    """Return the smaller one."""
    return a if a < b else b  # noqa: FURB136 - see above


@device
def larger(a: Any, b: Any) -> Any:
    """Return the larger one."""
    return b if a < b else a  # noqa: FURB136 - see above
