"""Contention and throttling: what counters say about chunks and samples, in words."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import msgspec

from pydlbench.timing.chunk import GpuReadings
from pydlbench.timing.statistics import median

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from pydlbench.timing.chunk import Chunk
    from pydlbench.timing.policy import Policy


# -----------------------------------------------------------------------------
# Contention: what the kernel's own counters say about chunks and samples, in words.
#
# Two separate questions. Which chunks may be left out? And was the machine shared, so that leaving
# out would only pretend there was a quiet moment? The second one wins: a contended measurement
# keeps every sample.
#
# A chunk is left out as a whole and for what was counted and seen beside it, never for its times: a
# kernel may be bimodal by nature, and leaving out its slow samples wherever some wait could pay for
# them takes away up to a seventh of its median. Which samples jumped only helps to flag.
#
# What no counter shows is a neighbour on the same physical core outside the virtual machine. It
# slows every sample alike, without a switch, a wait or (mostly) a tick of steal; the canary tells.


@dataclass(frozen=True, slots=True, kw_only=True)
class Contention:
    """What the counters of all chunks of a measurement say: which samples count, and why.

    Attributes:
        contended: the machine was shared; nothing is discarded.
        reason: why, in words; None when not contended.
        keep: per chunk and sample, whether it counts.
        hit_samples: samples that jumped together with the counters; many of them are contention.
    """

    contended: bool
    reason: str | None
    keep: tuple[tuple[bool, ...], ...]
    hit_samples: int

    @property
    def discarded(self) -> int:
        """Samples left out."""
        return sum(not kept for chunk in self.keep for kept in chunk)


def _wall(chunk: Chunk, inner: int) -> float:
    """Wall time of a chunk, seconds; never below its samples' own time."""
    return max(chunk.wall_s, inner * sum(chunk.seconds))


def _waited_for_others(chunk: Chunk) -> float:
    """Return how long a thread can have waited for somebody else's, in seconds.

    Threads of a process that has more of them than CPUs wait for each other. Others have delayed
    one for no longer than they ran, and they ran for no longer than this process left the CPUs to
    them, idle time included. Both CPU time and wall time are known to the microsecond, so this
    tells of chunks of a millisecond what ticks tell of seconds.
    """
    if chunk.cpu_s is None:
        return chunk.run_delay_s
    left = chunk.threads * chunk.wall_s - chunk.cpu_s
    return min(chunk.run_delay_s, max(0.0, left))


def disturbed_by(chunk: Chunk, inner: int, policy: Policy) -> str | None:
    """Return what disturbed a chunk as a whole, in words, or None.

    That is what its backend saw, a canary whose cores were not its own, the wait for a CPU, or the
    time that was stolen in it.
    """
    if chunk.disturbance is not None:
        return chunk.disturbance
    if (shared := slow_canary(chunk.canary, policy)) is not None:
        return shared
    wall, wait = _wall(chunk, inner), _waited_for_others(chunk)
    if wait > max(policy.chunk_wait_fraction * wall, policy.chunk_wait_floor_s):
        return f"waited {wait * 1e3:.3g} ms of {wall * 1e3:.3g} ms for a CPU"
    # Half a tick of slack: sums of ticks are floats.
    steal_limit = (policy.chunk_steal_ticks - 0.5) * policy.steal_tick_s
    if chunk.steal_s >= max(steal_limit, policy.chunk_steal_fraction * wall):
        return f"lost {chunk.steal_s * 1e3:.3g} ms of {wall * 1e3:.3g} ms to the hypervisor"
    return None


def slow_canary(shares: Sequence[float], policy: Policy) -> str | None:
    """Return what bursts around a chunk or a probe say, in words; None where the cores were ours.

    Args:
        shares: of each burst, as in :attr:`pydlbench.timing.chunk.Chunk.canary`; empty where there
            was none.
        policy: says how much is too little.
    """
    if not shares or min(shares) >= policy.canary_share:
        return None
    return f"somebody else used the cores: their FMA units did {min(shares):.0%} beside it"


def _hits(chunk: Chunk, inner: int, fastest: float, policy: Policy) -> list[bool]:
    """Samples of a chunk that jumped and whose excess time the counters explain."""
    hit = [False] * len(chunk.seconds)
    if fastest <= 0:
        return hit
    evidence = _waited_for_others(chunk) + chunk.steal_s
    # A wait of zero beside switches means that this platform does not count waits.
    waits_unknown = chunk.run_delay_s + chunk.steal_s == 0
    jumped = [i for i, x in enumerate(chunk.seconds) if x > policy.jump * fastest]
    # Largest first: a wait belongs to the sample that it made long.
    for i in sorted(jumped, key=lambda i: -chunk.seconds[i]):
        needed = policy.explained * inner * (chunk.seconds[i] - fastest)
        if waits_unknown:
            hit[i] = bool(chunk.involuntary) and chunk.involuntary[i] > 0
        elif evidence >= needed:
            hit[i] = True
            evidence -= needed
    return hit


def judge(chunks: Sequence[Chunk], inner: int, policy: Policy) -> Contention:
    """Judge all chunks of one kernel together.

    Args:
        chunks: the chunks of the sampling phase, retried ones included.
        inner: executions per sample.
        policy: the thresholds and their reasons.

    Returns:
        For no chunks, that the machine was quiet.
    """
    if not chunks:
        return Contention(contended=False, reason=None, keep=(), hit_samples=0)
    found = _judged(chunks, inner, policy)
    if found.contended and _alone(chunks, inner, policy):
        # More threads than CPUs wait for each other: that is what this backend is like.
        chunks = [
            msgspec.structs.replace(chunk, run_delay_s=0.0, involuntary=()) for chunk in chunks
        ]
        return _judged(chunks, inner, policy)
    return found


def _judged(chunks: Sequence[Chunk], inner: int, policy: Policy) -> Contention:
    fastest = min(min(chunk.seconds) for chunk in chunks)
    hits = [_hits(chunk, inner, fastest, policy) for chunk in chunks]
    disturbed = [disturbed_by(chunk, inner, policy) is not None for chunk in chunks]
    hit_count = sum(map(sum, hits))
    reason = _contention_reason(chunks, inner, disturbed, hit_count, policy)
    keep = [
        (reason is not None or not bad,) * len(chunk.seconds)
        for chunk, bad in zip(chunks, disturbed, strict=True)
    ]
    count = sum(map(len, keep))
    if 2 * sum(map(sum, keep)) < count:  # most of the samples: then the rest is the exception
        seen = _seen(chunks, policy)
        reason = "most samples were disturbed: " + (seen or _totals(chunks, inner))
        keep = [(True,) * len(row) for row in keep]
    return Contention(
        contended=reason is not None,
        reason=reason,
        keep=tuple(keep),
        hit_samples=hit_count,
    )


def _alone(chunks: Sequence[Chunk], inner: int, policy: Policy) -> bool:
    """Whether there was nobody else to wait for, although CPUs were left to others.

    Idle CPUs are told from busy ones by ticks. Only the sum over all chunks can tell: what others
    took of a single one is less than a tick.
    """
    taken = [chunk.others_s for chunk in chunks if chunk.others_s is not None]
    wall = sum(_wall(chunk, inner) for chunk in chunks)
    limit = max(policy.others_fraction * wall, policy.others_floor_s)
    # A measurement as short as a few ticks says nothing about others.
    counted = len(taken) == len(chunks) and wall >= 4 * policy.others_floor_s
    return counted and sum(taken) < limit


def _seen(chunks: Sequence[Chunk], policy: Policy) -> str:
    """What backends and canaries said of disturbed chunks, each once; of canaries the median."""
    said = list(dict.fromkeys(chunk.disturbance for chunk in chunks if chunk.disturbance))
    slow = [min(one.canary) for one in chunks if one.canary]
    slow = [share for share in slow if share < policy.canary_share]
    shared = slow_canary([median(slow)], policy) if slow else None
    return "; ".join([*said, *([shared] if shared else [])])


def _totals(chunks: Sequence[Chunk], inner: int) -> str:
    wall = sum(_wall(chunk, inner) for chunk in chunks)
    wait = sum(map(_waited_for_others, chunks))
    steal = sum(chunk.steal_s for chunk in chunks)
    switches = sum(sum(chunk.involuntary) for chunk in chunks)
    if not wall:
        return "no time passed"
    words = f"threads waited for a CPU for {wait / wall:.0%} of the time"
    if steal:
        words += f", the hypervisor took {steal / wall:.0%}"
    return f"{words} ({switches} involuntary switches in {wall:.2g} s)"


def _contention_reason(
    chunks: Sequence[Chunk],
    inner: int,
    disturbed: Sequence[bool],
    hit_count: int,
    policy: Policy,
) -> str | None:
    walls = [_wall(chunk, inner) for chunk in chunks]
    wall = sum(walls)
    wait = sum(map(_waited_for_others, chunks))
    steal = sum(chunk.steal_s for chunk in chunks)
    in_disturbed = sum(w for w, bad in zip(walls, disturbed, strict=True) if bad)
    totals = _totals(chunks, inner)
    if wait > max(policy.total_wait_fraction * wall, policy.chunk_wait_floor_s):
        return f"another process was busy: {totals}"
    steal_limit = (policy.total_steal_ticks - 0.5) * policy.steal_tick_s
    if steal >= max(steal_limit, policy.total_steal_fraction * wall):
        return f"another virtual machine was busy: {totals}"
    if in_disturbed > policy.disturbed_share * wall and (seen := _seen(chunks, policy)):
        return f"{sum(disturbed)} of {len(chunks)} chunks disturbed: {seen}"
    if in_disturbed > policy.disturbed_share * wall:
        return f"{sum(disturbed)} of {len(chunks)} chunks disturbed: {totals}"
    samples = sum(len(chunk.seconds) for chunk in chunks)
    if hit_count >= max(policy.hit_floor, policy.hit_share * samples):
        return f"{hit_count} of {samples} samples jumped when threads were switched out: {totals}"
    return None


# -----------------------------------------------------------------------------
# What slowed a GPU down while it was sampled, and whether that counts against the samples.
#
# Large matrix products sit at the power cap by nature: a cap is recorded, but never held against a
# sample. Heat and other processes are: they would not be there the next time.

#: Bits of NVML's clock event reasons (``nvmlClocksEventReason*``), by a short name.
REASONS = {
    0x1: "idle",
    0x2: "application clocks",
    0x4: "power cap",
    0x8: "hardware slowdown",
    0x10: "sync boost",
    0x20: "software thermal slowdown",
    0x40: "hardware thermal slowdown",
    0x80: "power brake",
    0x100: "display clocks",
}
#: Those that are no property of the kernel. "Hardware slowdown" is heat or an external brake.
HARMFUL = (
    "hardware slowdown",
    "software thermal slowdown",
    "hardware thermal slowdown",
    "power brake",
)


def reasons_of(bits: int) -> tuple[str, ...]:
    """Return the names of NVML's reason bits; unknown ones as numbers."""
    known = [name for bit, name in REASONS.items() if bits & bit]
    rest = bits & ~sum(REASONS)
    return (*known, f"reason 0x{rest:x}") if rest else tuple(known)


def disturbance(readings: GpuReadings | None) -> str | None:
    """Return what speaks against the samples of a chunk, in words, or None."""
    if readings is None:
        return None
    found = [name for name in readings.reasons if name in HARMFUL]
    if found:
        heat = readings.temperature_c
        at = "" if heat is None else f" at {heat:.0f} degrees C"
        return f"{' and '.join(found)}{at}"
    if readings.others:
        pids = ", ".join(map(str, readings.others))
        return f"another process computed on the GPU (process {pids})"
    return None


def combine(readings: Iterable[GpuReadings]) -> GpuReadings | None:
    """Return one account of several: means weighted by their readings, maxima, unions."""
    found = [one for one in readings if one.readings]
    if not found:
        return None

    def mean(name: str) -> float | None:
        known = [(getattr(one, name), one.readings) for one in found]
        known = [(value, weight) for value, weight in known if value is not None]
        weights = sum(weight for _, weight in known)
        return sum(value * weight for value, weight in known) / weights if weights else None

    heats = [one.temperature_c for one in found if one.temperature_c is not None]
    return GpuReadings(
        sm_clock_hz=mean("sm_clock_hz"),
        memory_clock_hz=mean("memory_clock_hz"),
        power_w=mean("power_w"),
        temperature_c=max(heats, default=None),
        reasons=tuple(dict.fromkeys(name for one in found for name in one.reasons)),
        others=tuple(dict.fromkeys(pid for one in found for pid in one.others)),
        readings=sum(one.readings for one in found),
    )
