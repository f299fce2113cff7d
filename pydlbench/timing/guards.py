"""Interference and throttling: what counters and bursts say about visits, in words."""

from __future__ import annotations

from typing import TYPE_CHECKING

from pydlbench.timing.chunk import GpuReadings

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from pydlbench.timing.chunk import Chunk
    from pydlbench.timing.policy import Policy


# -----------------------------------------------------------------------------
# Interference: what counters and bursts say of a visit. Nothing is left out for it, and nothing for
# its time: a kernel may be bimodal by nature.
#
# What no counter shows is a neighbour on the same physical core outside the virtual machine. It
# slows every sample alike, without a switch, a wait or (mostly) a tick of steal; bursts tell.


def waited_s(chunk: Chunk) -> float:
    """Return how long a thread can have waited for somebody else's, in seconds.

    Threads of a process that has more of them than CPUs wait for each other. Others have delayed
    one for no longer than they ran, and they ran for no longer than this process left the CPUs to
    them, idle time included. Both CPU time and wall time are known to the microsecond, so this
    tells of chunks of a millisecond what ticks tell of seconds.

    Args:
        chunk: with its counters.
    """
    if chunk.cpu_s is None:
        return chunk.run_delay_s
    left_s = chunk.threads * chunk.wall_s - chunk.cpu_s
    return min(chunk.run_delay_s, max(0.0, left_s))


def seen_beside(
    *,
    disturbance: str | None,
    fma: float | None,
    wait_s: float,
    steal_s: float,
    wall_s: float,
    policy: Policy,
) -> str | None:
    """Return what disturbed a visit, in words, or None.

    Args:
        disturbance: what the backend saw.
        fma: share of the FMA units that bursts beside it have had; None without any.
        wait_s: how long a thread waited for a CPU that somebody else had.
        steal_s: what the hypervisor took.
        wall_s: how long the visit was.
        policy: says how much is too much.
    """
    if disturbance is not None:
        return disturbance
    if (shared := slow_canary(() if fma is None else (fma,), policy)) is not None:
        return shared
    if wait_s > max(policy.chunk_wait_fraction * wall_s, policy.chunk_wait_floor_s):
        return f"waited {wait_s * 1e3:.3g} ms of {wall_s * 1e3:.3g} ms for a CPU"
    # Half a tick of slack: sums of ticks are floats.
    steal_limit = (policy.chunk_steal_ticks - 0.5) * policy.steal_tick_s
    if steal_s >= max(steal_limit, policy.chunk_steal_fraction * wall_s):
        return f"lost {steal_s * 1e3:.3g} ms of {wall_s * 1e3:.3g} ms to the hypervisor"
    return None


def slow_canary(shares: Sequence[float], policy: Policy) -> str | None:
    """Return what bursts around a visit or a probe say, in words; None where the cores were ours.

    Args:
        shares: of each burst, as in :attr:`pydlbench.timing.chunk.Chunk.canary`; empty where there
            was none.
        policy: says how much is too little.
    """
    if not shares or min(shares) >= policy.canary_share:
        return None
    return f"somebody else used the cores: their FMA units did {min(shares):.0%} beside it"


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
    harmful = [name for name in readings.reasons if name in HARMFUL]
    if harmful:
        heat = readings.temperature_c
        at = "" if heat is None else f" at {heat:.0f} degrees C"
        return f"{' and '.join(harmful)}{at}"
    if readings.others:
        pids = ", ".join(map(str, readings.others))
        return f"another process computed on the GPU (process {pids})"
    return None


def combine(readings: Iterable[GpuReadings]) -> GpuReadings | None:
    """Return one account of several: means weighted by their readings, maxima, unions."""
    accounts = [account for account in readings if account.readings]
    if not accounts:
        return None

    def mean(name: str) -> float | None:
        known = [(getattr(account, name), account.readings) for account in accounts]
        known = [(value, weight) for value, weight in known if value is not None]
        weights = sum(weight for _, weight in known)
        return sum(value * weight for value, weight in known) / weights if weights else None

    heats = [account.temperature_c for account in accounts if account.temperature_c is not None]
    return GpuReadings(
        sm_clock_hz=mean("sm_clock_hz"),
        memory_clock_hz=mean("memory_clock_hz"),
        power_w=mean("power_w"),
        temperature_c=max(heats, default=None),
        reasons=tuple(dict.fromkeys(name for account in accounts for name in account.reasons)),
        others=tuple(dict.fromkeys(pid for account in accounts for pid in account.others)),
        readings=sum(account.readings for account in accounts),
    )
