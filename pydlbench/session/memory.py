"""Whether what is to be measured fits into memory: asked before anything is measured."""

from __future__ import annotations

import bisect
from typing import TYPE_CHECKING

from pydlbench.errors import UsageError
from pydlbench.layers import result_role
from pydlbench.rows import ITEM_BYTES
from pydlbench.units import format_bytes

if TYPE_CHECKING:
    from collections.abc import Sequence

    from pydlbench.backends.case import Case
    from pydlbench.layers import Layer

__all__ = ["check_memory", "group_memory", "memory_held", "memory_needed"]

# What a search holds at once: layouts of every operand, and pools of a race of two finalists.
_LAYOUTS = 3
_POOLS = 2


def check_memory(processes: Sequence[Case], available: int, cold_bytes: int) -> None:
    """Make sure that processes of one problem have room beside each other.

    Args:
        processes: the case of each; those of one problem are prepared one after another, and all
            of them hold their operands until the last one is timed.
        available: bytes of memory.
        cold_bytes: what the rotating copies of a cold cache state span.

    Raises:
        UsageError: there is too little memory.
    """
    processes = [case for case in processes if case.pass_ in case.layer.passes]
    if not processes:
        return
    layer = processes[0].layer

    def needed(batch: int) -> int:
        return group_memory(processes, layer.with_batch(batch), cold_bytes)

    if needed(layer.batch) <= available:
        return
    several = f" for {len(processes)} processes at a time" if len(processes) > 1 else ""
    nearest = "fewer of --backend and --mode" if several else "a smaller layer"
    batches = range(1, layer.batch)
    if count := bisect.bisect_left(batches, True, key=lambda batch: needed(batch) > available):
        nearest = f"--batch {batches[count - 1]}"
    raise UsageError(
        f"{layer.name or layer.problem}: needs {format_bytes(needed(layer.batch))} of memory"
        f"{several}, {format_bytes(available)} are available; nearest: {nearest}"
    )


def group_memory(processes: Sequence[Case], layer: Layer, cold_bytes: int) -> int:
    """Return the most bytes that processes of one problem hold at a time.

    Each is prepared while all others hold theirs: whichever dies is prepared once more at the end.

    Args:
        processes: the case of each.
        layer: their layer, or the same with another batch.
        cold_bytes: see :func:`check_memory`.
    """
    total, most = 0, 0
    for case in processes:
        # Of a GPU's row the host holds the originals; the card is asked when it takes its part.
        cold = 0 if case.on_gpu else cold_bytes
        held = memory_held(case, layer, cold)
        total += held
        most = max(most, memory_needed(case, layer, cold) - held)
    return total + most


def memory_needed(case: Case, layer: Layer, cold_bytes: int) -> int:
    """Return the bytes of memory that measuring a case takes, verification and race included.

    The float32 originals; every operand in up to three layouts in the storage type; a float32 copy
    of the output; where caches are cold, two pools of rotating copies, each of which spans
    ``cold_bytes`` and ends with whole copies.

    Args:
        case: what is to be measured.
        layer: its layer, or the same with another batch.
        cold_bytes: what the rotating copies of a cold cache state span at least.
    """
    operands = layer.operands(case.pass_)
    output = result_role(layer, case.pass_)
    elements = sum(operands.values())
    stored = elements * ITEM_BYTES[case.precision]
    needed = 4 * elements + _LAYOUTS * stored + 4 * operands[output]
    return needed if case.cache == "hot" else needed + _POOLS * (cold_bytes + 2 * stored)


def memory_held(case: Case, layer: Layer, cold_bytes: int) -> int:
    """Return the bytes of memory that a prepared case keeps until it is released.

    Every operand once, in the storage type; where caches are cold, one pool of rotating copies
    instead, which ends with a whole copy. A GPU's row holds nothing on the host.

    Args:
        case: what is to be measured.
        layer: its layer, or the same with another batch.
        cold_bytes: see :func:`memory_needed`.
    """
    if case.on_gpu:
        return 0
    stored = sum(layer.operands(case.pass_).values()) * ITEM_BYTES[case.precision]
    return stored if case.cache == "hot" else cold_bytes + 2 * stored
