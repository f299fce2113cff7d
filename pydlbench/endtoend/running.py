"""Steps in, records out: prepared in their frameworks' processes, timed as layers are."""

from __future__ import annotations

import contextlib
import dataclasses
import random
from typing import TYPE_CHECKING, Any, Protocol

from pydlbench.endtoend.facts import StepPreparation
from pydlbench.endtoend.record import StepRecord
from pydlbench.errors import BackendMissingError, PydlbenchError, UnsupportedError
from pydlbench.results.summary import time_summary
from pydlbench.side_by_side import Contestant, Outcome, sample_in_turn
from pydlbench.timing.policy import Policy, gpu_policy
from pydlbench.timing.procedure import Sampling
from pydlbench.timing.statistics import median_interval
from pydlbench.workers.host import RemoteKernel

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from pydlbench.endtoend.step import StepCase
    from pydlbench.results import TimeSummary
    from pydlbench.session.options import Options
    from pydlbench.timing.procedure import Samples
    from pydlbench.workers.host import Worker

__all__ = ["Host", "prepare_step", "record_of", "run", "run_in_turn", "step_policy"]

# Fewer rounds have no interval at 95 %.
_ROUNDS = 6


class Host(Protocol):
    """What running steps needs of a session."""

    @property
    def options(self) -> Options:
        """Its settings."""

    @property
    def cpus(self) -> tuple[int, ...]:
        """Logical CPUs that workers are pinned to."""

    def worker(self, backend: str = ..., device: str = ..., *, warm: bool = ...) -> Worker:
        """Return a framework's worker; ``warm`` for one whose allocator keeps its pages."""


def prepare_step(
    case: StepCase,
    session: Host,
    *,
    warm: bool = False,
    preparation: StepPreparation | None = None,
) -> RemoteKernel:
    """Have a step made ready in its framework's process; raises what is raised there.

    Args:
        case: the step.
        session: whose workers are used.
        warm: in a process of its own whose allocator keeps the pages that were freed.
        preparation: with which checks; None is all of them.

    Returns:
        A kernel to sample; its ``facts`` are a :class:`StepFacts` in its JSON form.
    """
    worker = session.worker(case.framework, case.device, warm=warm)
    how = dataclasses.asdict(preparation or StepPreparation())
    reply = worker.ask("prepare", case={"step": case.to_dict()}, preparation=how)
    return RemoteKernel(worker, reply["kernel"], reply["facts"])


def step_policy(case: StepCase, session: Host, facts: dict[str, Any]) -> Policy:
    """Return the constants of sampling for a step."""
    policy = Policy(confidence=session.options.confidence, budget_s=session.options.budget_s)
    return gpu_policy(policy, facts) if case.on_gpu else policy


def run(case: StepCase, session: Host, *, preparation: StepPreparation | None = None) -> StepRecord:
    """Check and time one step; one that cannot be run is a record that says why.

    Args:
        case: the step.
        session: whose workers and settings are used.
        preparation: with which checks; None is all of them.

    Raises:
        UsageError: no such model, or an option that it does not have.
    """
    return run_in_turn([case], session, preparation=preparation)[0]


def run_in_turn(
    cases: Sequence[StepCase],
    session: Host,
    *,
    preparation: StepPreparation | None = None,
    progress: Callable[[int, int, str], None] | None = None,
) -> list[StepRecord]:
    """Check steps, then time them round by round, so that all saw the same drift.

    Args:
        cases: the steps.
        session: whose workers and settings are used.
        preparation: with which checks; None is all of them.
        progress: called with steps made ready, steps in all and the next one's label.

    Returns:
        A record for each, in the order given.
    """
    records: dict[int, StepRecord] = {}
    kernels: dict[int, RemoteKernel] = {}
    try:
        for index, case in enumerate(cases):
            if progress:
                progress(index, len(cases), f"{case.label}: checks")
            try:
                kernels[index] = prepare_step(case, session, preparation=preparation)
            except PydlbenchError as error:
                if isinstance(error, ValueError):  # a word that is none: not a row's matter
                    raise
                records[index] = _refused(case, session, error)
        if progress:
            progress(len(records), len(cases), f"{len(kernels)} steps in turn")
        for index, outcome in zip(kernels, _sampled(cases, kernels, session), strict=True):
            case, facts = cases[index], kernels[index].facts
            if outcome.samples is None:
                reason = outcome.error or UnsupportedError("no samples")
                records[index] = _refused(case, session, reason)
            else:
                records[index] = record_of(case, session, facts, outcome.samples)
    finally:
        for kernel in kernels.values():
            with contextlib.suppress(PydlbenchError):  # its worker has died meanwhile
                kernel.release()
    return [records[index] for index in range(len(cases))]


def record_of(case: StepCase, session: Host, facts: dict[str, Any], samples: Samples) -> StepRecord:
    """Return the record of a timed step.

    A check that failed makes the row ``failed``; its time stands beside it all the same.

    Args:
        case: the step.
        session: whose workers ran it.
        facts: of its kernel.
        samples: its times.
    """
    time = _time(samples)
    wrong = [one for one in facts["checks"] if one["status"] != "ok"]
    warnings = []
    if not samples.warmup.steady:
        warnings.append(f"the warm-up ended before times were steady: {samples.warmup.detail}")
    return StepRecord.from_dict(
        {
            **{name: value for name, value in facts.items() if name != "batch"},
            **case.to_dict(),
            "batch": facts["batch"],
            "status": "failed" if wrong else "ok",
            "reason": "; ".join(f"{one['name']}: {one['detail']}" for one in wrong) or None,
            "time_s": time.to_dict(),
            "images_per_s": facts["batch"] / time.median,
            "samples_s": list(samples.all_seconds),
            "rounds_s": samples.by_round(),
            "inner": samples.inner,
            "faults": samples.faults,
            "busy": samples.busy,
            "threads": _threads(case, session),
            "warnings": warnings,
            "contended": samples.contended,
            "contention_reason": samples.contention_reason,
            "discarded": samples.discarded,
            "stop_reason": samples.stop_detail,
        }
    )


def _sampled(
    cases: Sequence[StepCase], kernels: dict[int, RemoteKernel], session: Host
) -> list[Outcome]:
    policies = {i: step_policy(cases[i], session, kernel.facts) for i, kernel in kernels.items()}
    if len(kernels) == 1:
        ((index, kernel),) = kernels.items()
        sampling = Sampling(policies[index], alone=True)
        try:
            while request := sampling.next_request():
                sampling.feed(kernel.sample(request))
        except PydlbenchError as error:
            return [Outcome(error=error)]
        return [Outcome(samples=sampling.result())]
    order = random.Random(session.options.seed)  # noqa: S311 - an order, not a secret
    contestants = [
        Contestant(sample=kernel.sample, policy=policies[index])
        for index, kernel in kernels.items()
    ]
    return sample_in_turn(contestants, order) if contestants else []


def _threads(case: StepCase, session: Host) -> int | None:
    return None if case.on_gpu else len(session.cpus)


def _refused(case: StepCase, session: Host, error: PydlbenchError) -> StepRecord:
    absent = isinstance(error, (UnsupportedError, BackendMissingError))
    status = "skipped" if absent else "failed"
    return StepRecord(case=case, status=status, reason=str(error), threads=_threads(case, session))


def _time(samples: Samples) -> TimeSummary:
    """The samples' summary; its interval is that of the rounds' medians where that is wider.

    Samples of one round have their clock and their neighbours in common.
    """
    summary = time_summary(samples.seconds, samples.confidence)
    rounds = samples.by_round().values()
    between = median_interval(rounds, samples.confidence) if len(rounds) >= _ROUNDS else None
    if between is None or summary.ci_low is None or summary.ci_high is None:
        return summary
    if between.high - between.low <= summary.ci_high - summary.ci_low:
        return summary
    return dataclasses.replace(
        summary,
        ci_low=min(between.low, summary.median),
        ci_high=max(between.high, summary.median),
    )
