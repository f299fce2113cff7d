"""Interference and throttling, derived from the counters and bursts of a round."""

from collections.abc import Iterable, Sequence

from pydlbench.timing.chunk import Chunk, GpuReadings
from pydlbench.timing.policy import Policy
from pydlbench.units import format_seconds

# -----------------------------------------------------------------------------
# Interference. No sample is dropped because of its time: a kernel's times may be bimodal by nature.
# A disturbed visit is repeated, and the counters choose between the two.
#
# No counter shows a neighbour on the same physical core outside the virtual machine. It slows all
# samples alike, without a switch, a wait or (mostly) a tick of steal. Bursts of FMAs detect it.


def waited_s(chunk: Chunk) -> float:
    """Return an upper bound of the time that a thread waited for other processes, in seconds.

    In a process with more threads than CPUs the threads wait for each other. Other processes cannot
    delay a thread for longer than they ran, and they ran at most while this process did not use the
    CPUs. CPU time and wall time are exact to a microsecond, so the bound holds for chunks of a
    millisecond, where counts of ticks need seconds.

    Args:
        chunk: samples with their counters.
    """
    if chunk.cpu_s is None:
        return chunk.run_delay_s
    left_s = chunk.threads * chunk.wall_s - chunk.cpu_s
    return min(chunk.run_delay_s, max(0.0, left_s))


def describe_interference(
    *,
    disturbance: str | None,
    fma: float | None,
    wait_s: float,
    steal_s: float,
    wall_s: float,
    policy: Policy,
    involuntary: int | None = None,
) -> str | None:
    """Return a description of the interference in a round, or None.

    Args:
        disturbance: interference that the backend observed.
        fma: FMA throughput of the bursts around the round, relative to idle cores; None if there
            were no bursts.
        wait_s: time that a thread waited for a CPU that another process used.
        steal_s: CPU time that the hypervisor took.
        wall_s: wall time of the samples.
        policy: the limits.
        involuntary: involuntary context switches; None if not counted.
    """
    if disturbance is not None:
        return disturbance
    if (shared := slow_bursts(() if fma is None else (fma,), policy)) is not None:
        return shared
    if wait_s > max(policy.chunk_wait_fraction * wall_s, policy.chunk_wait_floor_s):
        switches = f" ({involuntary} involuntary switches)" if involuntary else ""
        waited, whole = format_seconds(wait_s), format_seconds(wall_s)
        return f"waited {waited} of {whole} for a CPU{switches}"
    # Half a tick of slack: sums of ticks are floats.
    steal_limit = (policy.chunk_steal_ticks - 0.5) * policy.steal_tick_s
    if steal_s >= max(steal_limit, policy.chunk_steal_fraction * wall_s):
        return f"lost {steal_s * 1e3:.3g} ms of {wall_s * 1e3:.3g} ms to the hypervisor"
    return None


def waited_for_others_s(chunk: Chunk, policy: Policy) -> float:
    """Return the time that a thread waited for other processes, in seconds.

    In a process with more threads than CPUs the threads wait for each other: if other processes
    used almost no CPU time, the wait does not count and the result is 0.

    Args:
        chunk: samples with their counters.
        policy: the limits.
    """
    least_s = max(policy.others_fraction * chunk.wall_s, policy.others_floor_s)
    crowded = chunk.others_s is not None and chunk.others_s < least_s
    return 0.0 if crowded else waited_s(chunk)


def chunk_interference(chunk: Chunk, policy: Policy) -> str | None:
    """Return a description of what disturbed a chunk while it was taken, or None.

    Args:
        chunk: samples with their counters.
        policy: the limits.
    """
    return describe_interference(
        disturbance=chunk.disturbance,
        fma=None,
        wait_s=waited_for_others_s(chunk, policy),
        steal_s=chunk.steal_s,
        wall_s=chunk.wall_s,
        policy=policy,
        involuntary=chunk.involuntary,
    )


def slow_bursts(shares: Sequence[float], policy: Policy) -> str | None:
    """Return a description of other use of the cores that bursts detected, or None.

    Args:
        shares: throughput of each burst, see :attr:`pydlbench.timing.chunk.Chunk.bursts`.
        policy: the limit.
    """
    if not shares or min(shares) >= policy.burst_share:
        return None
    return f"another process used the cores: FMA bursts reached {min(shares):.0%} of idle cores"


# -----------------------------------------------------------------------------
# Throttling of a GPU while it was sampled, and whether it disqualifies the samples.
#
# Large matrix products run at the power cap by nature, so the cap is recorded and nothing more.
# Heat and other processes are interference: the next run may not have them.

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
#: Reasons that do not come from the kernel. "Hardware slowdown" is heat or an external brake.
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


def gpu_disturbance(readings: GpuReadings | None) -> str | None:
    """Return why the samples of a chunk are unreliable, or None."""
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


def merge_readings(readings: Iterable[GpuReadings]) -> GpuReadings | None:
    """Merge readings: means weighted by their counts, maxima, unions."""
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
