"""Every constant of the timing protocol in one place, each with the reason for its value."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import Final

from pydlbench.errors import UsageError

#: Seconds of sampling, all repetitions together, where nobody says how many: of a layer's row, and
#: of a framework's step, which is some hundred times as long.
LAYER_BUDGET_S: Final = 1.0
STEP_BUDGET_S: Final = 10.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Policy:
    """Constants of a visit: how large it is, and what beside it is interference.

    Times are wall seconds, widths and fractions are relative (0.005 is 0.5 %).

    Raises:
        UsageError: if a user-facing constant is outside its range.
    """

    # --- intervals --------------------------------------------------------------------------
    # The usual level; the interval of a median exists from 6 rounds on.
    confidence: float = 0.95

    # --- the size of a visit ----------------------------------------------------------------
    # Sampling time of a subject, all of its visits together, and how many these are.
    budget_s: float = 2.0
    visits: int = 6
    # Four slices of a scheduler (3 to 4 ms). What is known better within a visit than the visits
    # agree is of no use to their median.
    chunk_s: float = 0.015
    # Of a slow kernel so many samples where the budget has room for them: a second one tells a
    # sample that was interrupted from one that was not.
    least_samples: int = 2
    # Memory and post-processing bound only.
    max_samples: int = 5000
    # A clock call costs 20 to 40 ns, two per sample: under 0.1 % of 100 microseconds.
    min_sample_s: float = 100e-6
    # A sample costs no more than its own time on a CPU. Elsewhere a cache flush and a gate can
    # take a hundred times longer than what they are there for, and the chunk counts them.
    chunk_by_wall: bool = False
    # Executions before the first timed one of a visit, because what ran before left other data in
    # the caches and the thread pool asleep: refilling 32 MB takes about 2 ms. What takes longer
    # than that reads its operands once instead, where it can.
    settle_s: float = 0.002
    # From here on none: such a kernel's data does not survive in a cache between two executions.
    settle_limit_s: float = 0.1
    # What is faster has a visit that does not count in each new process: clocks settle within
    # milliseconds. What takes longer has run for longer when it was made ready.
    warm_limit_s: float = 0.002
    # Readings until the inner count fits; each multiplies it by up to 100, so 5 reach 1e10.
    max_calibrations: int = 5

    # --- interference -----------------------------------------------------------------------
    # Run-queue wait over wall time. One waiting thread holds up the whole team, so the wait is
    # not divided by the number of threads. Seen on two cores in 50 ms chunks: idle 0.1 % mostly,
    # 1.6 % in every fifth (kernel threads), 4 to 12 % in about one of forty; with one busy
    # process 46 to 59 % in every chunk. 5 % stands clear of both.
    chunk_wait_fraction: float = 0.05
    # Just above the 0.8 ms of a kernel thread, which is no interference in a visit of 15 ms.
    chunk_wait_floor_s: float = 0.001
    # Threads wait for each other, too, where a process has more of them than CPUs: that is its own
    # doing. Where all others together took less of the CPUs than a disturbed visit would lose to
    # them, and less than ticks of 10 ms at both ends of a few visits can hide, no wait is theirs.
    others_fraction: float = 0.05
    others_floor_s: float = 0.03
    # FMA throughput of a burst over that of undisturbed cores. Seen on two cores of a virtual
    # machine: 98 to 101 % in 95 of 100 bursts, 50 % while a neighbour has the other half of a core.
    canary_share: float = 0.9
    # Steal is counted in ticks of 10 ms, and single ticks happen on idle machines.
    steal_tick_s: float = 0.010
    chunk_steal_ticks: int = 2
    chunk_steal_fraction: float = 0.10

    @property
    def visit_s(self) -> float:
        """What a visit may take at most, one sample apart, in seconds."""
        return self.budget_s / self.visits

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
        for name in ("visits", "least_samples", "max_samples"):
            if getattr(self, name) < 1:
                raise UsageError(f"{name} {getattr(self, name)}: below one; nearest: 1")


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
        warm_limit_s=1.0,
    )


def step_policy(policy: Policy) -> Policy:
    """Return the constants for a framework's whole step.

    Args:
        policy: those for a kernel.
    """
    # The first steps of a process build kernels and pools of memory; the median of three tells of a
    # step that was interrupted.
    return replace(policy, least_samples=3, warm_limit_s=1.0)
