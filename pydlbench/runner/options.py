"""How a session measures."""

from __future__ import annotations

from dataclasses import dataclass

from pydlbench.backends.base import DEFAULT_WORKSPACE


@dataclass(frozen=True, slots=True, kw_only=True)
class Options:
    """How a session measures.

    Attributes:
        threads: threads, one pinned per CPU; None is one per physical core.
        seed: of the inputs and of the order in interleaved measurements.
        budget_s: sampling time per kernel, in seconds.
        visits: how often each row is made ready anew, in new processes and in random order over the
            rows; the repetitions share the budget of their row. None is as many as the scatter that
            is known asks for, six where none is; of a single row in one process, with new memory
            for each. Commands, and functions that are given no options, take six.
        width: half of the interval that is wanted, relative to the median, where the scatter plans
            the repetitions; see :func:`pydlbench.study.plan.repetitions`.
        renew: take new processes for each repetition, also of a single row.
        confidence: level of the median's interval.
        keep_samples: keep the raw samples in the record.
        algorithms: time, verify and list every candidate.
        estimate: native rows on a CPU are summands, whose sum has to be good rather than each of
            them. Kernels are found by a shorter search, and cold caches are timed with the kernel
            that was fastest with hot ones, where those were measured before: the interval of an
            estimate is one kernel's. Kernels that compete side by side are searched and timed in
            full.
        workspace_bytes: scratch memory that a GPU's kernel may ask for at most.
        energy: measure the energy of an execution, where a GPU can tell.
        keep_probes: take over what earlier runs have found on this machine
            (:mod:`pydlbench.devices.kept`): bandwidths and peaks where a short reading agrees with
            them, the fastest kernels, which are verified again; else all of it is found anew, and
            kept for later runs.
        timeout_s: after so many seconds without an answer a worker counts as hung and is killed;
            None is 15 minutes, and an hour while it prepares a spec.
        code_limit_s: the same of the frameworks' workers, where the user's own code runs in them;
            None is as of the others.
        python: interpreter of another installation, whose workers measure; None is this one.
            What is kept for later runs is this one's: without ``keep_probes``.
    """

    threads: int | None = None
    seed: int = 0
    budget_s: float = 2.0
    visits: int | None = 1
    width: float | None = None
    renew: bool = False
    confidence: float = 0.95
    keep_samples: bool = False
    algorithms: bool = False
    estimate: bool = False
    workspace_bytes: int = DEFAULT_WORKSPACE
    energy: bool = False
    keep_probes: bool = True
    timeout_s: float | None = None
    code_limit_s: float | None = None
    python: str | None = None
