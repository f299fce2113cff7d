"""Every constant of the timing protocol in one place, each with the reason for its value."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace

from pydlbench.errors import UsageError


@dataclass(frozen=True, slots=True, kw_only=True)
class Policy:
    """Constants of warm-up, sampling, stopping and contention detection.

    Times are wall seconds, widths and fractions are relative (0.005 is 0.5 %).

    Raises:
        UsageError: if a user-facing constant is outside its range.
    """

    # --- stopping ---------------------------------------------------------------------------
    # The usual level; the interval of a median exists from 6 samples on.
    confidence: float = 0.95
    # Half-width of the interval over the median: half a percent tells two algorithms apart,
    # and is still below what a machine drifts between runs.
    half_width: float = 0.005
    # Below 10 samples the only interval is minimum to maximum or one step inside.
    min_samples: int = 10
    # What every kernel gets however slow it is: the fewest samples that have a 95 % interval.
    floor_samples: int = 6
    # Unless one sample alone is longer than the budget: three still show a spread.
    slow_samples: int = 3
    # Precision inside one chunk says nothing about drift; three rounds are the least that do,
    # and together they are longer than any scheduler slice, so a busy neighbour cannot hide.
    min_rounds: int = 3
    # Rounds that a spent budget still waits for, up to three times the budget: a ratio needs them
    # for its interval where kernels take turns. One that is timed alone waits for none.
    least_rounds: int = 0
    # Rounds after which nothing more is asked for, but what contention has cost; None is no limit.
    most_rounds: int | None = None
    # Sampling time per kernel: 40 chunks; a sweep of a hundred kernels stays under 4 minutes.
    budget_s: float = 2.0
    # Memory and post-processing bound only: precision comes long before with samples this short.
    max_samples: int = 5000
    # The noise estimate (interquartile range, relative) counts as steady when its last 64 values
    # stay within 5 % of their mean; with 128 samples its own standard error is about 14 %.
    noise_window: int = 64
    noise_tolerance: float = 0.05
    noise_min_samples: int = 128

    # --- requests ---------------------------------------------------------------------------
    # A clock call costs 20 to 40 ns, two per sample: under 0.1 % of 100 microseconds.
    min_sample_s: float = 100e-6
    # Long against a scheduler slice (3 to 4 ms here), so that contention shows in every chunk;
    # short enough that interleaved kernels see the same drift.
    chunk_s: float = 0.05
    # Of a kernel that is slower than a chunk, so many samples are taken in one after all, where the
    # budget has room: each chunk brings the kernel's data back first, untimed.
    chunk_samples: int = 1
    # A sample costs no more than its own time on a CPU. Elsewhere a cache flush and a gate can
    # take a hundred times longer than what they are there for, and the chunk counts them.
    chunk_by_wall: bool = False
    # Executions before the first timed one of a chunk, because the kernel that ran before left
    # other data in the caches and the thread pool asleep: refilling 32 MB takes about 2 ms.
    settle_s: float = 0.002
    # From here on none: such a kernel's data does not survive in a cache between two executions.
    settle_limit_s: float = 0.1
    # Readings until the inner count fits; each multiplies it by up to 100, so 5 reach 1e10.
    max_calibrations: int = 5

    # --- warm-up ----------------------------------------------------------------------------
    # Three chunk medians in a row within 2 %: boost clocks settle in steps of 25 to 100 MHz
    # (up to 2 % of 4 GHz) within milliseconds.
    warmup_window: int = 3
    warmup_tolerance: float = 0.02
    # A machine that never settles (contention, thermal cycling) must not warm up for ever.
    warmup_limit_s: float = 1.0

    # --- contention -------------------------------------------------------------------------
    # Run-queue wait over wall time. One waiting thread holds up the whole team, so the wait is
    # not divided by the number of threads. Seen on two cores in 50 ms chunks: idle 0.1 % mostly,
    # 1.6 % in every fifth (kernel threads), 4 to 12 % in about one of forty; with one busy
    # process 46 to 59 % in every chunk. 5 % stands clear of both.
    chunk_wait_fraction: float = 0.05
    # ... and at least half a slice: a 0.8 ms kernel thread in a very short chunk is no contention.
    chunk_wait_floor_s: float = 0.002
    # Threads wait for each other, too, where a process has more of them than CPUs: that is its own
    # doing. Where all others together took less of the CPUs than a disturbed chunk would lose to
    # them, and less than ticks of 10 ms at both ends of a few chunks can hide, no wait is theirs.
    others_fraction: float = 0.05
    others_floor_s: float = 0.03
    # FMA throughput of the canary over that of undisturbed cores. Seen on two cores of a virtual
    # machine: 98 to 101 % in 95 of 100 bursts, 50 % while a neighbour has the other half of a core.
    canary_share: float = 0.9
    # Steal is counted in ticks of 10 ms, and single ticks happen on idle machines: one is 20 % of
    # a chunk, so it takes two in a chunk, or three in the whole and 5 % of the time.
    steal_tick_s: float = 0.010
    chunk_steal_ticks: int = 2
    chunk_steal_fraction: float = 0.10
    total_steal_ticks: int = 3
    total_steal_fraction: float = 0.05
    # Over half of the time in disturbed chunks: the clean ones are the exception, so selecting
    # them would be inventing a quiet machine.
    disturbed_share: float = 0.5
    # Waiting for a fifth of the whole time is contention however it is spread over chunks.
    total_wait_fraction: float = 0.20
    # A sample is hit when it takes 1.3 x the minimum AND the kernel's counters explain at least
    # half of the excess (refilling the caches afterwards explains the other part). That flags, and
    # never discards a sample: a kernel may be bimodal by nature.
    jump: float = 1.3
    explained: float = 0.5
    # This share of hit samples, and at least three, is contention too.
    hit_share: float = 0.3
    hit_floor: int = 3
    # Extra chunks when the rules say stop but the machine was contended: a passing disturbance
    # (a cron job, a package manager) is outvoted, a busy neighbour is not.
    max_retries: int = 4

    def __post_init__(self) -> None:
        if not 0.5 <= self.confidence < 1:
            raise UsageError(
                f"--confidence {self.confidence:g}: outside [0.5, 1); nearest: "
                f"{0.5 if self.confidence < 0.5 else 0.999:g}"
            )
        if not (math.isfinite(self.budget_s) and self.budget_s > 0):
            raise UsageError(
                f"--budget {self.budget_s:g}: not a positive number of seconds; nearest: 0.1"
            )
        if not self.half_width > 0:
            raise UsageError(f"half_width {self.half_width:g}: not positive; nearest: 0.005")
        for name in ("min_samples", "floor_samples", "slow_samples", "min_rounds", "max_samples"):
            if getattr(self, name) < 1:
                raise UsageError(f"{name} {getattr(self, name)}: below one; nearest: 1")


def estimate_policy(policy: Policy) -> Policy:
    """Return the constants for kernels on a CPU whose times are summed, often hundreds of them.

    Args:
        policy: those for a single kernel.
    """
    return replace(
        policy,
        # Errors of many summands cancel in part: of a hundred equal ones of 2 %, 0.2 % is left.
        half_width=max(policy.half_width, 0.02),
        # Four slices of the scheduler; two for the warm-up and three rounds take 75 ms.
        chunk_s=min(policy.chunk_s, 0.015),
        # Of so short a chunk 2 ms would be an eighth: just above the 0.8 ms of a kernel thread.
        chunk_wait_floor_s=0.001,
        # Three rounds are a tenth of a second on two CPUs: two ticks are a fifth of it.
        total_steal_ticks=2,
        # Six samples have an interval of 95 %; where it is wide, more are taken.
        min_samples=policy.floor_samples,
        # The search has run this kernel a moment ago.
        warmup_window=2,
        warmup_tolerance=0.05,
        warmup_limit_s=min(policy.warmup_limit_s, 2 * policy.budget_s),
    )


def gpu_policy(policy: Policy, timing: str, cache: str = "hot") -> Policy:
    """Return the constants for a kernel on a GPU.

    Args:
        policy: those for a CPU.
        timing: how the kernel is timed: ``events``, ``cuda-graph`` or ``host-sync``.
        cache: the cache state. A sample of a cold one is a single execution: the second would find
            what the first has left, unless operands rotate.
    """
    single = cache != "hot" and timing == "events"
    return replace(
        policy,
        # Events tick every half microsecond and a graph's start takes one to three: 0.3 % of 1 ms.
        min_sample_s=0.0 if single else 0.001,
        # A launch refills what it needs; there are no threads to wake.
        settle_s=0.0002,
        chunk_by_wall=True,
    )
