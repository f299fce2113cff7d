"""Which outputs have a tap on the input, along one axis: loops without branches for the padding."""

from __future__ import annotations

from pydlbench.backends.numba.compiled import inner

__all__ = ["first_output", "last_output"]


@inner
def first_output(offset: int, stride: int) -> int:
    """Return the least output that a tap leads to an input of at least zero.

    Args:
        offset: Input position of the tap for output zero: tap x dilation - padding.
        stride: Input positions from one output to the next.
    """
    return 0 if offset >= 0 else (stride - 1 - offset) // stride


@inner
def last_output(offset: int, stride: int, inputs: int, outputs: int) -> int:
    """Return one more than the last output that the tap leads to an input inside.

    It is less than :func:`first_output` where there is none.
    """
    if offset >= inputs:
        return 0
    return min(outputs, (inputs - 1 - offset) // stride + 1)
