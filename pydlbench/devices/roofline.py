"""The least time that a kernel can take on a device: the roofline, caches taken into account.

Source: S. Williams, A. Waterman, D. Patterson, "Roofline: an insightful visual performance model
for multicore architectures", CACM 52(4), 2009.
"""

from __future__ import annotations

from dataclasses import dataclass

__all__ = ["Roof", "memory_time", "roof"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Roof:
    """The roof over a kernel.

    Attributes:
        bound: ``compute`` or ``memory``: which limit is the higher one.
        time_s: least time in seconds.
        bandwidth: which level supplies most of the memory time: ``memory`` or ``llc``.
    """

    bound: str
    time_s: float
    bandwidth: str


def memory_time(
    cold_bytes: float, warm_bytes: float, memory_bps: float, llc_bps: float, llc_bytes: float
) -> tuple[float, str]:
    """Return the least time to move the operands, in seconds, and the level that takes most of it.

    What does not fit into the last-level cache has to come from memory even when it was used a
    moment ago; everything that could have stayed is charged at the cache's bandwidth. That is a
    lower bound: a real replacement policy keeps less.

    Args:
        cold_bytes: bytes that are in memory for certain (a cold cache state's rotating operands).
        warm_bytes: bytes that may be in the cache.
        memory_bps: memory bandwidth in B/s.
        llc_bps: last-level-cache bandwidth in B/s.
        llc_bytes: size of the last-level cache in bytes.
    """
    kept = min(warm_bytes, llc_bytes)
    from_memory = (cold_bytes + warm_bytes - kept) / memory_bps
    from_cache = kept / llc_bps
    return from_memory + from_cache, "memory" if from_memory > from_cache else "llc"


def roof(flops: float, flops_per_s: float, move_s: float, bandwidth: str) -> Roof:
    """Return the higher of the two limits.

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
