"""The memory that measurements need; checked before anything is measured."""

import bisect
from collections.abc import Sequence
from typing import Final

from pydlbench.errors import UsageError
from pydlbench.ops.op import Layer
from pydlbench.ops.table import ITEM_BYTES
from pydlbench.records.measurement import KernelSpec
from pydlbench.units import format_bytes

# Layouts of every operand, and pools of finalists, that a search holds at the same time.
_LAYOUTS: Final = 3
_POOLS: Final = 2


def check_memory(processes: Sequence[KernelSpec], available: int, cold_bytes: int) -> None:
    """Check that the processes of one problem fit into memory together.

    Rows on a GPU are not refused: on virtual machines whose memory grows on demand the available
    memory says little. Such a row fails by itself if there is too little.

    Args:
        processes: spec of each process. Those of one problem are prepared one after another, and
            all hold their operands until the last one is timed.
        available: bytes of memory.
        cold_bytes: bytes of the rotating copies for cold caches.

    Raises:
        UsageError: there is too little memory.
    """
    processes = [spec for spec in processes if spec.pass_ in spec.layer.passes]
    if all(spec.on_gpu for spec in processes):
        return
    layer = processes[0].layer

    def needed(batch: int) -> int:
        return _group_memory(processes, layer.with_batch(batch), cold_bytes)

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


def _group_memory(processes: Sequence[KernelSpec], layer: Layer, cold_bytes: int) -> int:
    """Return the largest number of bytes that the processes of one problem hold at a time.

    Each is prepared while all others hold their operands, as a process that dies is prepared again
    at the end.
    """
    held = [memory_held(spec, layer, cold_bytes) for spec in processes]
    needed = [memory_needed(spec, layer, cold_bytes) for spec in processes]
    return sum(held) + max(most - rest for most, rest in zip(needed, held, strict=True))


def memory_needed(spec: KernelSpec, layer: Layer, cold_bytes: int) -> int:
    """Return the bytes of memory that measuring a spec needs, verification and finals included.

    These are the float32 originals; every operand in up to three layouts in the storage type; a
    float32 copy of the output; and for cold caches two pools of rotating copies, each of
    ``cold_bytes`` and one more whole copy. For a row on a GPU the host holds only the inputs and
    the output in float32.

    Args:
        spec: what to measure.
        layer: layer of the spec, possibly with another batch.
        cold_bytes: least bytes of the rotating copies for cold caches.
    """
    operands = layer.operands(spec.pass_)
    elements = sum(operands.values())
    if spec.on_gpu:
        return 4 * elements
    stored = elements * ITEM_BYTES[spec.precision]
    needed = 4 * elements + _LAYOUTS * stored + 4 * operands[layer.result(spec.pass_)]
    return needed if spec.cache == "hot" else needed + _POOLS * (cold_bytes + 2 * stored)


def memory_held(spec: KernelSpec, layer: Layer, cold_bytes: int) -> int:
    """Return the bytes of memory that a prepared spec holds until it is released.

    Every operand once, in the storage type; for cold caches instead one pool of rotating copies and
    one more whole copy. A row on a GPU holds nothing on the host.

    Args:
        spec: what to measure.
        layer: layer of the spec, possibly with another batch.
        cold_bytes: see :func:`memory_needed`.
    """
    if spec.on_gpu:
        return 0
    stored = sum(layer.operands(spec.pass_).values()) * ITEM_BYTES[spec.precision]
    return stored if spec.cache == "hot" else cold_bytes + 2 * stored
