"""Experiments run: what is changed, beside what, and how long that takes."""

from __future__ import annotations

import contextlib
import dataclasses
from typing import TYPE_CHECKING, Any

from pydlbench.diagnose.bench import Allocated
from pydlbench.diagnose.contests import contest_saving
from pydlbench.diagnose.experiments import LayerChange, Rounds, StepChange
from pydlbench.diagnose.turns import LEAST, in_turn, saving_of, step_how, with_rounds
from pydlbench.endtoend import StepPreparation, prepare_step, step_policy
from pydlbench.errors import PrimitiveError, PydlbenchError
from pydlbench.timing.policy import Policy
from pydlbench.timing.statistics import median, paired_ratio
from pydlbench.units import format_seconds

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from pydlbench.diagnose.bench import Bench
    from pydlbench.diagnose.experiments import Experiment
    from pydlbench.diagnose.finding import Saving
    from pydlbench.diagnose.observations import Observations
    from pydlbench.endtoend import StepCase
    from pydlbench.workers.host import RemoteKernel

__all__ = ["cost_s", "try_out"]

# The fewest rounds whose interval at 95 % leaves out the two extremes; slow steps get the fewest
# that have one.
_ROUNDS = 9
_SLOW_S = 0.5
# Calibration and warm-up take about so many executions.
_WARMUP = 5
# Choosing kernels and checking them takes longer than timing them.
_LAYER_S = 6.0


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
    return LEAST if step_s > _SLOW_S else _ROUNDS


def _of_rounds(experiment: Rounds, step_s: float) -> Saving:
    own = {index: pair[0] for index, pair in enumerate(experiment.pairs)}
    changed = {index: pair[1] for index, pair in enumerate(experiment.pairs)}
    ratio = paired_ratio(changed, own)
    base = median(own.values())
    how = step_how(experiment.what, base, ratio.median * base, ratio.n)
    return saving_of(ratio, base, step_s, "step", how)


def _of_step(experiment: StepChange, seen: Observations, session: Bench) -> Saving:
    case = _with_options(seen.case, experiment.both)
    changes: dict[str, Any] = dict(experiment.changes)
    other = dataclasses.replace(_with_options(case, experiment.options), **changes)
    kernels: list[RemoteKernel] = []
    try:
        kernels.append(prepare_step(case, session, preparation=StepPreparation(checks=False)))
        how = StepPreparation(checks=experiment.checks)
        beside = Allocated(session, experiment.allocator)
        kernels.append(prepare_step(other, beside, preparation=how))
        _check(kernels[1].facts)
        policies = [
            with_rounds(step_policy(one, session, kernel.facts), _rounds(seen.step_s))
            for one, kernel in zip((case, other), kernels, strict=True)
        ]
        ratio, base, warning = in_turn(kernels, policies, session.options.seed, experiment.images)
    finally:
        _release(kernels)
    words = step_how(experiment.what, base, ratio.median * base, ratio.n) + warning
    if experiment.images > 1:
        words += f", per {case.batch} images"
    if experiment.kept_s:
        words += f"; less {format_seconds(experiment.kept_s)}: {experiment.kept_how}"
    return saving_of(ratio, base, seen.step_s, "step", words, kept_s=experiment.kept_s)


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
        policies = [with_rounds(policy, _ROUNDS)] * 2
        ratio, base, warning = in_turn(kernels, policies, options.seed, experiment.images)
    finally:
        _release(kernels)
    times = f"{format_seconds(base)} as it is, {format_seconds(ratio.median * base)} with "
    how = f"the layer alone, in turn, {ratio.n} rounds: {times}{experiment.what}{warning}"
    if experiment.images > 1:
        how += f", per {experiment.case.layer.batch} images"
    if experiment.count > 1:
        how += f"; {experiment.count} times in the step"
    return saving_of(ratio, base, step_s, "layer", how, count=experiment.count)


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
