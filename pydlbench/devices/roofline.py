"""The least time that a kernel can take on a device: the roofline, caches taken into account.

Arithmetic and the transfers of all levels of the memory can overlap, so the bound is the slowest of
them and never a sum: nothing right can be faster, however well it prefetches.

Source: S. Williams, A. Waterman, D. Patterson, "Roofline: an insightful visual performance model
for multicore architectures", CACM 52(4), 2009; with a bandwidth for each level as in A. Ilic,
F. Pratas, L. Sousa, "Cache-aware Roofline model: upgrading the loft", IEEE CAL 13(1), 2014.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Sequence


@dataclass(frozen=True, slots=True, kw_only=True)
class Level:
    """A level of the memory hierarchy.

    Attributes:
        name: ``l1``, ``l2``, ``llc`` or ``memory``.
        capacity: what it holds of a kernel's operands, in bytes, over all threads.
        bytes_per_s: its measured bandwidth in B/s; infinite where it was not probed: what it may
            hold then costs nothing, because charging it to a farther level would be no lower bound.
        low_bytes_per_s: what its slowest undisturbed probe reached; None where there was only one.
        disturbance: what was seen beside its probes, of which none was undisturbed; None else.
    """

    name: str
    capacity: float
    bytes_per_s: float
    low_bytes_per_s: float | None = None
    disturbance: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Roof:
    """The roof over a kernel.

    Attributes:
        bound: ``compute``, ``memory`` or ``launch``: which limit is the highest one.
        time_s: least time in seconds.
        bandwidth: the slowest level of the memory: ``l2``, ``llc`` or ``memory``.
    """

    bound: str
    time_s: float
    bandwidth: str


def memory_time(cold_bytes: float, warm_bytes: float, levels: Sequence[Level]) -> tuple[float, str]:
    """Return the least time to move the operands, in seconds, and the level that takes it.

    What does not fit into a cache has to come from farther away even when it was used a moment
    ago; everything that could have stayed is charged at that cache's bandwidth. The levels transfer
    at the same time, so it is the slowest one's. That is a lower bound: a real replacement policy
    keeps less, and what comes from far away passes the nearer levels, too.

    Args:
        cold_bytes: bytes that are in memory for certain (a cold cache state's rotating operands).
        warm_bytes: bytes that may be in the caches.
        levels: from the nearest to the farthest; the last one, the memory, takes what is left.
    """
    times: dict[str, float] = {}
    rest = warm_bytes
    for level in levels[:-1]:
        kept = min(rest, level.capacity)
        times[level.name] = kept / level.bytes_per_s
        rest -= kept
    memory = levels[-1]
    times[memory.name] = (rest + cold_bytes) / memory.bytes_per_s
    # With nothing to charge it is the nearest one that was probed.
    probed = [level.name for level in levels if level.bytes_per_s < math.inf]
    slowest = max(probed, key=lambda name: times[name])
    return times[slowest], slowest


def roof(flops: float, flops_per_s: float, move_s: float, bandwidth: str) -> Roof:
    """Return the higher of the limits.

    Args:
        flops: executed FLOPs (without padded taps).
        flops_per_s: compute peak.
        move_s: time to move the operands, see :func:`memory_time`.
        bandwidth: the level named there.
    """
    compute_s = flops / flops_per_s
    if compute_s >= move_s:
        return Roof(bound="compute", time_s=compute_s, bandwidth=bandwidth)
    return Roof(bound="memory", time_s=move_s, bandwidth=bandwidth)


def with_launch(base: Roof, launch_s: float, median_s: float) -> Roof:
    """Return the roof with the cost of starting and joining the threads taken into account.

    A kernel whose work needs less than that is bound by its start, whatever it moves. Where it was
    over sooner it ran on fewer threads, and only its work is a lower bound of its time.

    Args:
        base: the roof over the kernel's work.
        launch_s: time to start and join all threads without any work, in seconds.
        median_s: what the kernel took, in seconds.
    """
    if launch_s <= base.time_s:
        return base
    return replace(base, bound="launch", time_s=launch_s if median_s >= launch_s else base.time_s)
