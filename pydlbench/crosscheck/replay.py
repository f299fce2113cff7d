"""What a step allocates: the blocks from whose fresh pages the cost of a page fault is taken.

That cost hangs on how large the blocks are (each is asked for and given back in calls of its own)
and on the threads that touch them, not on who frees a block when: how many pages a step finds
fresh, which does hang on that, is counted and not replayed (see :mod:`.rounds`).
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from pydlbench.workers.environment import FRESH_FROM

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from pydlbench.crosscheck.pieces import Piece

__all__ = ["blocks"]

# The single block where all of a step's own are too small to be given back to the system.
_SMALL: Final = 1 << 20


def blocks(found: Sequence[Piece], traces: Mapping[str, Sequence[int]]) -> list[int]:
    """Return the sizes in bytes of blocks that stand for a step's.

    Only such as the allocator gives back when they are freed: others find their pages again.

    Args:
        found: the parts.
        traces: by part, the sizes of the blocks that it allocates.
    """
    sizes = [
        size
        for one in found
        for _ in range(one.count)
        for size in traces.get(one.name, ())
        if size >= FRESH_FROM
    ]
    return sizes or [_SMALL]
