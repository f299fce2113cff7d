"""Settings of a session."""

from collections.abc import Mapping
from dataclasses import dataclass, field

from pydlbench.backends.base import DEFAULT_WORKSPACE


@dataclass(frozen=True, slots=True, kw_only=True)
class RunnerOptions:
    """Settings of a session.

    Attributes:
        threads: threads, one pinned per CPU; None for one per physical core.
        seed: seed of the inputs and of the order in interleaved measurements.
        budget_s: sampling time per kernel, in seconds.
        repetitions: how often each row is prepared anew, in new processes and in random order over
            the rows; they share the budget of their row. None plans them from the known scatter
            (four if there is none); a single row is then repeated in one process, with new memory
            each time. Commands, and functions without options, take four or plan them.
        width: wanted half-width of the interval, relative to the median, for planned repetitions;
            see :func:`pydlbench.study.plan.repetitions`.
        renew: start new processes for each repetition, also of a single row.
        fresh: with ``renew``, also replace the processes of frameworks in each repetition, and not
            only once; slow rows take all repetitions, too.
        keep_samples: keep the raw samples in the record.
        algorithms: time, verify and list every candidate.
        estimate: native rows are summands of an estimate. The search for their kernels is
            shorter, and cold caches are timed with the kernel that was fastest with hot ones, if
            those were measured before: the interval of an estimate is that of one kernel. Kernels
            of interleaved backends are searched and timed in full.
        workspace_bytes: maximum scratch memory of a GPU's kernel, in bytes.
        energy: measure the energy of an execution, if the GPU can.
        keep_probes: use stored results of earlier runs on this machine
            (:mod:`pydlbench.devices.probe_cache`): bandwidths and peaks that a short reading
            confirms, and the fastest kernels, which are verified again. Otherwise everything is
            measured anew and stored.
        timeout_s: seconds without an answer after which a worker is killed; None for 15 minutes,
            and for an hour while it prepares a kernel.
        code_limit_s: limit in seconds, like ``timeout_s``, for frameworks' workers, which run the
            user's code; None for the limit of other workers.
        python: interpreter of another installation, whose workers measure; None for this one. Use
            it without ``keep_probes``: stored results belong to this installation.
        pythons: interpreters of further installations, by the backend whose workers they run.
    """

    threads: int | None = None
    seed: int = 0
    budget_s: float = 2.0
    repetitions: int | None = 1
    width: float | None = None
    renew: bool = False
    fresh: bool = False
    keep_samples: bool = False
    algorithms: bool = False
    estimate: bool = False
    workspace_bytes: int = DEFAULT_WORKSPACE
    energy: bool = False
    keep_probes: bool = True
    timeout_s: float | None = None
    code_limit_s: float | None = None
    python: str | None = None
    pythons: Mapping[str, str] = field(default_factory=dict)
