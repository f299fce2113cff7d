"""Lower bound of a kernel's time on a device: the roofline with caches.

Arithmetic and the transfers of all levels of the memory can overlap, so the bound is the slowest of
them and not their sum: no correct kernel is faster, however well it prefetches.

Source: S. Williams, A. Waterman, D. Patterson, "Roofline: an insightful visual performance model
for multicore architectures", CACM 52(4), 2009; with a bandwidth for each level as in A. Ilic,
F. Pratas, L. Sousa, "Cache-aware Roofline model: upgrading the loft", IEEE CAL 13(1), 2014.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace


@dataclass(frozen=True, slots=True, kw_only=True)
class MemoryLevel:
    """A level of the memory hierarchy.

    Attributes:
        name: name of the level: ``l1``, ``l2``, ``llc`` or ``memory``.
        capacity: bytes of operands that the level can hold, over all threads.
        bytes_per_s: measured bandwidth in B/s; infinite if the level has no probe. In that case the
            bytes that it may hold cost nothing, since charging them to a farther level would not be
            a lower bound.
        low_bytes_per_s: bandwidth of the slowest undisturbed probe; None if there is only one.
        disturbance: interference, if all probes were disturbed; None otherwise.
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
        bound: limit that dominates: ``compute``, ``memory`` or ``launch``.
        time_s: lower bound of the time, in seconds.
        bandwidth: level of the memory that takes the most time: ``l2``, ``llc`` or ``memory``.
    """

    bound: str
    time_s: float
    bandwidth: str


def memory_time(
    cold_bytes: float, warm_bytes: float, levels: Sequence[MemoryLevel]
) -> tuple[float, str]:
    """Return the lower bound of the time to move the operands, in seconds, and the slowest level.

    Bytes that do not fit into a cache must come from a farther level even if they were used a
    moment ago. All bytes that a cache can hold are charged at its bandwidth. Levels transfer at the
    same time, so the slowest one determines the time. This is a lower bound: a real replacement
    policy keeps less, and bytes from a farther level pass through the nearer ones, too.

    Args:
        cold_bytes: bytes that are certainly in memory (rotating operands of a cold cache state).
        warm_bytes: bytes that may be in the caches.
        levels: levels of the memory, from the nearest to the farthest; the last one, the memory
            itself, holds all other bytes.
    """
    times: dict[str, float] = {}
    rest = warm_bytes
    for level in levels[:-1]:
        kept = min(rest, level.capacity)
        times[level.name] = kept / level.bytes_per_s
        rest -= kept
    memory = levels[-1]
    times[memory.name] = (rest + cold_bytes) / memory.bytes_per_s
    # If there are no bytes at all, it is the nearest level that was probed.
    probed = [level.name for level in levels if level.bytes_per_s < math.inf]
    slowest = max(probed, key=lambda name: times[name])
    return times[slowest], slowest


def roof(flops: float, flops_per_s: float, move_s: float, bandwidth: str) -> Roof:
    """Return the higher one of the two limits.

    Args:
        flops: number of executed FLOPs (without padded taps).
        flops_per_s: compute peak in FLOP/s.
        move_s: time to move the operands in seconds, from :func:`memory_time`.
        bandwidth: slowest level of the memory, from :func:`memory_time`.
    """
    compute_s = flops / flops_per_s
    if compute_s >= move_s:
        return Roof(bound="compute", time_s=compute_s, bandwidth=bandwidth)
    return Roof(bound="memory", time_s=move_s, bandwidth=bandwidth)


def with_launch(base: Roof, launch_s: float, median_s: float) -> Roof:
    """Return the roof including the time to start and join the threads.

    A kernel that needs less than that is bound by its launch. If it took less, it ran on fewer
    threads, and the launch is not a lower bound of its time.

    Args:
        base: roof without the time of the launch.
        launch_s: time to start and join all threads without any computation, in seconds.
        median_s: measured time of the kernel in seconds.
    """
    if launch_s <= base.time_s:
        return base
    return replace(base, bound="launch", time_s=launch_s if median_s >= launch_s else base.time_s)
