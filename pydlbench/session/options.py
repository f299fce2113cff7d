"""How a session measures."""

from __future__ import annotations

from dataclasses import dataclass

from pydlbench.backends.base import DEFAULT_WORKSPACE

__all__ = ["Options"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Options:
    """How a session measures.

    Attributes:
        threads: threads, one pinned per CPU; None is one per physical core.
        seed: of the inputs and of the order in interleaved measurements.
        budget_s: sampling time per kernel, in seconds.
        confidence: level of the median's interval.
        keep_samples: keep the raw samples in the record.
        algorithms: time, verify and list every candidate.
        estimate: native rows on a CPU are summands, whose sum has to be good rather than each of
            them. Sampling stops at a half width of 2 % (``timing.policy.estimate_policy``), kernels
            are found by a shorter search, and cold caches are timed with the kernel that was
            fastest with hot ones, where those were measured before: the interval of an estimate
            is one kernel's. Kernels that compete side by side are searched and timed in full.
        workspace_bytes: scratch memory that a GPU's kernel may ask for at most.
        energy: measure the energy of an execution, where a GPU can tell.
        timeout_s: after so many seconds without an answer a worker counts as hung and is killed;
            None is 15 minutes, and an hour while it prepares a case.
    """

    threads: int | None = None
    seed: int = 0
    budget_s: float = 2.0
    confidence: float = 0.95
    keep_samples: bool = False
    algorithms: bool = False
    estimate: bool = False
    workspace_bytes: int = DEFAULT_WORKSPACE
    energy: bool = False
    timeout_s: float | None = None
