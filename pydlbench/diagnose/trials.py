"""Experiments run: two things in turn, round by round, and what the one saves.

The interval is that of the ratios of single rounds. What a machine does to both cancels there.
"""

from __future__ import annotations

import contextlib
import dataclasses
import random
from typing import TYPE_CHECKING, Any, Protocol

from pydlbench.diagnose.contests import contest_saving
from pydlbench.diagnose.experiments import LayerChange, Rounds, StepChange
from pydlbench.diagnose.finding import Saving
from pydlbench.endtoend import StepPreparation, prepare_step, step_policy
from pydlbench.errors import PrimitiveError, PydlbenchError, UnsupportedError
from pydlbench.side_by_side import Contestant, sample_in_turn
from pydlbench.timing.policy import Policy
from pydlbench.timing.statistics import median, paired_ratio
from pydlbench.units import format_seconds

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping, Sequence

    from pydlbench.backends.case import Case
    from pydlbench.diagnose.experiments import Experiment
    from pydlbench.diagnose.observations import Observations
    from pydlbench.endtoend import StepCase
    from pydlbench.results import Measurement
    from pydlbench.session.options import Options
    from pydlbench.timing.statistics import Ratio
    from pydlbench.workers.host import RemoteKernel, Worker

__all__ = ["Bench", "cost_s", "try_out"]

# The fewest rounds whose interval at 95 % leaves out the two extremes, and the fewest that have
# one: what slow steps get.
_ROUNDS, _FEWEST = 9, 6
_SLOW_S = 0.5
# Calibration and warm-up take about so many executions.
_WARMUP = 5
# Choosing kernels and checking them takes longer than timing them.
_LAYER_S = 6.0


class Bench(Protocol):
    """What experiments need of a session."""

    @property
    def options(self) -> Options:
        """Its settings."""

    @property
    def cpus(self) -> tuple[int, ...]:
        """Logical CPUs that workers are pinned to."""

    def worker(
        self,
        backend: str = ...,
        device: str = ...,
        *,
        warm: bool = ...,
        logging: bool = ...,
        allocator: str | None = ...,
    ) -> Worker:
        """Return a worker."""

    def prepare(self, case: Case, *, warm: bool = ..., variant: str | None = ...) -> RemoteKernel:
        """Have an operator made ready."""

    def measure(
        self, cases: Sequence[Case], progress: Callable[[int, int, str], None] | None = ...
    ) -> Iterator[Measurement]:
        """Measure cases; those that differ in backend and mode only, in turn."""

    def cache_bytes(self, device: str = ...) -> int:
        """Return the size of the last cache before memory."""


def try_out(experiment: Experiment, seen: Observations, session: Bench) -> Saving:
    """Run an experiment and return what it saves; below zero where the change costs time.

    Args:
        experiment: what is changed.
        seen: what is known of the step.
        session: whose workers are used.

    Raises:
        PydlbenchError: it cannot be run: the message says why.
    """
    if isinstance(experiment, Rounds):
        return _of_rounds(experiment, seen.step_s)
    if isinstance(experiment, StepChange):
        return _of_step(experiment, seen, session)
    if isinstance(experiment, LayerChange):
        return _of_layer(experiment, seen.step_s, session)
    return contest_saving(experiment, seen.step_s, session)


def cost_s(experiment: Experiment, step_s: float) -> float:
    """Return about how long an experiment takes, in seconds."""
    if isinstance(experiment, Rounds):
        return 0.0
    if isinstance(experiment, StepChange):
        executions = (_rounds(step_s) + _WARMUP) * (1 + experiment.images)
        return executions * step_s + experiment.setup_s
    return _LAYER_S


def _rounds(step_s: float) -> int:
    return _FEWEST if step_s > _SLOW_S else _ROUNDS


def _of_rounds(experiment: Rounds, step_s: float) -> Saving:
    own = {index: pair[0] for index, pair in enumerate(experiment.pairs)}
    changed = {index: pair[1] for index, pair in enumerate(experiment.pairs)}
    ratio = paired_ratio(changed, own)
    base = median(own.values())
    how = _step_how(experiment.what, base, ratio.median * base, ratio.n)
    return _saving(ratio, base, step_s, "step", how)


def _of_step(experiment: StepChange, seen: Observations, session: Bench) -> Saving:
    case = _with_options(seen.case, experiment.both)
    changes: dict[str, Any] = dict(experiment.changes)
    other = dataclasses.replace(_with_options(case, experiment.options), **changes)
    kernels: list[RemoteKernel] = []
    try:
        kernels.append(prepare_step(case, session, preparation=StepPreparation(checks=False)))
        how = StepPreparation(checks=experiment.checks)
        beside = _Allocated(session, experiment.allocator)
        kernels.append(prepare_step(other, beside, preparation=how))
        _check(kernels[1].facts)
        policies = [
            _with_rounds(step_policy(one, session, kernel.facts), _rounds(seen.step_s))
            for one, kernel in zip((case, other), kernels, strict=True)
        ]
        ratio, base, warning = _in_turn(kernels, policies, session.options.seed, experiment.images)
    finally:
        _release(kernels)
    words = _step_how(experiment.what, base, ratio.median * base, ratio.n) + warning
    if experiment.images > 1:
        words += f", per {case.batch} images"
    if experiment.kept_s:
        words += f"; less {format_seconds(experiment.kept_s)}: {experiment.kept_how}"
    return _saving(ratio, base, seen.step_s, "step", words, kept_s=experiment.kept_s)


def _with_options(case: StepCase, options: Sequence[tuple[str, str]]) -> StepCase:
    return dataclasses.replace(case, options={**case.options, **dict(options)})


def _of_layer(experiment: LayerChange, step_s: float, session: Bench) -> Saving:
    kernels: list[RemoteKernel] = []
    try:
        kernels.append(session.prepare(experiment.case, variant=experiment.variant))
        kernels.append(session.prepare(experiment.changed, variant=experiment.changed_variant))
        _check_layer(kernels[1].facts)
        options = session.options
        policy = Policy(confidence=options.confidence, budget_s=options.budget_s)
        policies = [_with_rounds(policy, _ROUNDS)] * 2
        ratio, base, warning = _in_turn(kernels, policies, options.seed, experiment.images)
    finally:
        _release(kernels)
    times = f"{format_seconds(base)} as it is, {format_seconds(ratio.median * base)} with "
    how = f"the layer alone, in turn, {ratio.n} rounds: {times}{experiment.what}{warning}"
    if experiment.images > 1:
        how += f", per {experiment.case.layer.batch} images"
    if experiment.count > 1:
        how += f"; {experiment.count} times in the step"
    return _saving(ratio, base, step_s, "layer", how, count=experiment.count)


def _in_turn(
    kernels: Sequence[RemoteKernel], policies: Sequence[Policy], seed: int, images: int
) -> tuple[Ratio, float, str]:
    """Return the ratio of the second to the first, per image, the first one's median, a warning."""
    contestants = [
        Contestant(sample=kernel.sample, policy=policy)
        for kernel, policy in zip(kernels, policies, strict=True)
    ]
    order = random.Random(seed)  # noqa: S311 - an order, not a secret
    found = []
    for outcome in sample_in_turn(contestants, order):
        if outcome.samples is None:
            raise outcome.error or UnsupportedError("no samples")
        found.append(outcome.samples)
    own, changed = found
    per_image = {index: seconds / images for index, seconds in changed.by_round().items()}
    if not per_image.keys() & own.by_round().keys():
        raise PrimitiveError("other work disturbed one of the two in every round")
    ratio = paired_ratio(per_image, own.by_round(), own.confidence)
    disturbed = own.contended or changed.contended
    return ratio, own.summary().median, "; other work disturbed them" if disturbed else ""


def _saving(
    ratio: Ratio,
    base_s: float,
    step_s: float,
    of: str,
    how: str,
    *,
    count: int = 1,
    kept_s: float = 0.0,
) -> Saving:
    def saved(one: float) -> float:
        return count * base_s * (1 - one) - kept_s

    interval = ratio.interval
    return Saving(
        seconds=saved(ratio.median),
        low=None if interval is None else saved(interval.high),
        high=None if interval is None else saved(interval.low),
        # The share is of the step as it was in these rounds.
        step_s=base_s if of == "step" else step_s,
        of=of,
        how=how,
        rounds=ratio.n,
    )


def _step_how(what: str, base_s: float, changed_s: float, rounds: int) -> str:
    times = f"{format_seconds(base_s)} as it is, {format_seconds(changed_s)} with {what}"
    return f"the whole step, in turn, {rounds} rounds: {times}"


def _with_rounds(policy: Policy, rounds: int) -> Policy:
    """So many rounds at the least, however long a sample: without them there is no interval."""
    return dataclasses.replace(
        policy,
        min_rounds=rounds,
        floor_samples=max(rounds, policy.floor_samples),
        slow_samples=rounds,
    )


def _check(facts: Mapping[str, Any]) -> None:
    wrong = [one for one in facts["checks"] if one["status"] != "ok"]
    if wrong:
        raise PrimitiveError(f"its check {wrong[0]['name']} failed: {wrong[0]['detail']}")


def _check_layer(facts: Mapping[str, Any]) -> None:
    if facts["correct"]["status"] == "failed":
        raise PrimitiveError(f"its result is wrong: {facts['correct'].get('detail') or 'checked'}")


def _release(kernels: Sequence[RemoteKernel]) -> None:
    for kernel in kernels:
        with contextlib.suppress(PydlbenchError):  # its worker has died meanwhile
            kernel.release()


class _Allocated:
    """A session whose workers have a certain allocator."""

    def __init__(self, session: Bench, allocator: str) -> None:
        self._session = session
        self._allocator = allocator
        self.options = session.options
        self.cpus = session.cpus

    def worker(
        self,
        backend: str = "native",
        device: str = "cpu",
        *,
        warm: bool = False,  # noqa: ARG002 - as a session's; the allocator says it
    ) -> Worker:
        """Return a worker with it."""
        return self._session.worker(backend, device, allocator=self._allocator)
