"""What LLVM made of a kernel: how wide its arithmetic is, and where it takes its operands from."""

from __future__ import annotations

import re
from collections import Counter
from typing import TYPE_CHECKING, Any

import numba

if TYPE_CHECKING:
    from collections.abc import Sequence

__all__ = ["compiled_code", "in_words"]

_numba: Any = numba  # partly without types

# Packed arithmetic in single precision: fused multiply-adds count before anything else.
_FMA = re.compile(r"\svfn?m(?:add|sub)\d+ps\s+(?P<operands>.*)")
_OTHER = re.compile(r"\sv(?:add|sub|mul|max|min)ps\s+(?P<operands>.*)")
_BITS = {"z": 512, "y": 256, "x": 128}
_REGISTER = re.compile(r"%([xyz])mm\d+")


def compiled_code(kernel: Any, arguments: Sequence[Any]) -> str:
    """Return the assembly of all that a compiled function of Numba's consists of.

    Args:
        kernel: what ``numba.njit`` made; it has been called with arguments of these types.
        arguments: operands of the call in question.

    Returns:
        Nothing where it has not been compiled for them.
    """
    types = tuple(_numba.typeof(one) for one in arguments)
    return str(kernel.inspect_asm().get(types, ""))


def in_words(code: str) -> str | None:
    """Say how wide the vectors of a kernel are and how often they are fed from memory.

    Args:
        code: assembly, in AT&T syntax.

    Returns:
        None where it has no packed arithmetic in single precision.
    """
    for pattern, what in ((_FMA, "packed multiply-adds"), (_OTHER, "packed instructions")):
        operands = [match["operands"] for match in pattern.finditer(code)]
        widths = Counter(_BITS[found[1]] for one in operands if (found := _REGISTER.search(one)))
        if not widths:
            continue
        widest = max(widths)
        at_it = [one for one in operands if _width(one) == widest]
        loading = sum("(" in one for one in at_it)
        return (
            f"{len(at_it)} of the {sum(widths.values())} {what} in its machine code are "
            f"{widest} bits wide, {loading} of these take an operand from memory"
        )
    return None


def _width(operands: str) -> int | None:
    found = _REGISTER.search(operands)
    return None if found is None else _BITS[found[1]]
