"""Every constant of the timing protocol in one place, each with the reason for its value."""

import math
from dataclasses import dataclass, replace
from typing import Final

from pydlbench.errors import UsageError

#: Default sampling time in seconds, over all repetitions: of a layer's row, and of a framework's
#: step, which takes about a hundred times as long.
LAYER_BUDGET_S: Final = 1.0
STEP_BUDGET_S: Final = 10.0
#: The default number of rounds, and the minimum for a plan and for a breakdown. The interval of
#: four rounds is a fifth wider than the interval of six, and takes two thirds of the time.
LEAST_ROUNDS: Final = 4
#: Lower bound on a measured execution time, in case the clock reads zero. A reading itself takes
#: some 20 ns.
MIN_READING_S: Final = 1e-9


@dataclass(frozen=True, slots=True, kw_only=True)
class Policy:
    """Constants of the timing protocol: how much is sampled, and what counts as interference.

    Times are wall seconds, widths and fractions are relative (0.005 is 0.5 %).

    Raises:
        UsageError: the budget is not a positive number of seconds.
    """

    # --- the samples of a round -------------------------------------------------------------
    # Sampling time of a subject over all of its rounds, and the number of rounds.
    budget_s: float = 2.0
    visits: int = 4
    # Four time slices of the scheduler (3 to 4 ms). More precision within a round than the rounds
    # agree to does not help their median.
    chunk_s: float = 0.015
    # Least samples of a slow kernel, if the budget allows: the second one shows whether the first
    # was interrupted.
    least_samples: int = 2
    # Limits memory and post-processing only.
    max_samples: int = 5000
    # A clock call costs 20 to 40 ns, two per sample: under 0.1 % of 100 microseconds.
    min_sample_s: float = 100e-6
    # On a CPU a sample costs its own time. On a GPU the cache flush and the gate around it can take
    # a hundred times as long, and count towards the chunk.
    chunk_by_wall: bool = False
    # Time of the untimed executions before the first sample of a round: the kernel before it left
    # other data in the caches, and the thread pool is asleep. Refilling 32 MB takes about 2 ms.
    # Slower kernels read their operands once instead, if they can.
    settle_s: float = 0.002
    # No untimed executions for kernels slower than this: their data does not survive in a cache
    # between executions.
    settle_limit_s: float = 0.1
    # Faster kernels have a round that does not count in each new process: clocks settle within
    # milliseconds. Slower ones ran for longer than that when they were prepared.
    warm_limit_s: float = 0.002
    # A subject that is known to take longer is warm once it has been prepared; by default no
    # subject is.
    ready_limit_s: float = math.inf
    # Attempts until the inner count fits; each multiplies it by up to 100, so 5 reach 1e10.
    max_calibrations: int = 5

    # --- interference -----------------------------------------------------------------------
    # Run-queue wait over wall time. One waiting thread delays the whole team, so the wait is not
    # divided by the number of threads. Observed on two cores in chunks of 50 ms: mostly 0.1 % when
    # idle, 1.6 % in every fifth chunk (kernel threads), 4 to 12 % in one of forty; with one busy
    # process 46 to 59 % in every chunk. 5 % separates the two.
    chunk_wait_fraction: float = 0.05
    # Just above the 0.8 ms of a kernel thread, which does not disturb 15 ms of samples.
    chunk_wait_floor_s: float = 0.001
    # In a process with more threads than CPUs the threads wait for each other, too, which is not
    # interference. The wait is not attributed to other processes if these used less CPU time than a
    # disturbed round would lose, and less than ticks of 10 ms at both ends of a few rounds hide.
    others_fraction: float = 0.05
    others_floor_s: float = 0.03
    # FMA throughput of a burst relative to idle cores. Observed on two cores of a virtual machine:
    # 98 to 101 % in 95 of 100 bursts, 50 % while a neighbour uses the other half of a core.
    burst_share: float = 0.9
    # Steal is counted in ticks of 10 ms, and single ticks happen on idle machines.
    steal_tick_s: float = 0.010
    chunk_steal_ticks: int = 2
    chunk_steal_fraction: float = 0.10

    @property
    def visit_s(self) -> float:
        """Sampling time of a round in seconds; a single sample may take longer."""
        return self.budget_s / self.visits

    def __post_init__(self) -> None:
        if not (math.isfinite(self.budget_s) and self.budget_s > 0):
            raise UsageError(
                f"--budget {self.budget_s:g}: not a positive number of seconds; nearest: 0.1"
            )


def gpu_policy(policy: Policy, timing: str, cache: str = "hot") -> Policy:
    """Return the constants for a kernel on a GPU.

    Args:
        policy: the constants for a CPU.
        timing: how the kernel is timed: ``events``, ``cuda-graph`` or ``host-sync``.
        cache: the cache state. With a cold cache a sample is a single execution, since the second
            would find the data of the first in the cache, unless operands rotate.
    """
    single = cache != "hot" and timing == "events"
    return replace(
        policy,
        # Events resolve half a microsecond and a graph takes one to three to start: 0.3 % of 1 ms.
        min_sample_s=0.0 if single else 0.001,
        # There are no threads to wake, and a launch loads what it needs.
        settle_s=0.0002,
        chunk_by_wall=True,
        warm_limit_s=1.0,
    )


def step_policy(policy: Policy, *, settled: bool = False) -> Policy:
    """Return the constants for a framework's whole step.

    Args:
        policy: the constants for a kernel.
        settled: whether a process that has run the step once has all of its memory. That is so
            without a backward pass; with one, gradients are allocated anew: the second step of
            twelve processes had 10 to 25 % more page faults than later ones.
    """
    # The first steps of a process build kernels and memory pools: of short ones a round that does
    # not count, of long ones a step, unless it is settled. The median of three excludes an
    # interrupted step.
    ready_limit_s = 0.1 if settled else math.inf
    return replace(policy, least_samples=3, warm_limit_s=0.1, ready_limit_s=ready_limit_s)
