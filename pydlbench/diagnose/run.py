"""A diagnosis from the step to the ranked findings."""

from __future__ import annotations

import dataclasses
import time
from typing import TYPE_CHECKING

from pydlbench.crosscheck import check
from pydlbench.diagnose.finding import Diagnosis, Tried
from pydlbench.diagnose.observe import observe
from pydlbench.diagnose.rank import finding_of, rank
from pydlbench.diagnose.rules import RULES
from pydlbench.diagnose.trials import cost_s, try_out
from pydlbench.errors import PydlbenchError
from pydlbench.units import format_percent, format_seconds

if TYPE_CHECKING:
    from collections.abc import Callable

    from pydlbench.crosscheck import CheckRecord
    from pydlbench.diagnose.experiments import Experiment
    from pydlbench.diagnose.finding import Finding, Hypothesis, Saving
    from pydlbench.diagnose.observations import Observations
    from pydlbench.diagnose.trials import Bench
    from pydlbench.endtoend import StepCase

__all__ = ["diagnose", "hypotheses"]

# Of the step: what saves no more than this at the most is not tried.
_TRY = 0.01


def diagnose(
    case: StepCase,
    session: Bench,
    time_limit_s: float = 300.0,
    tell: Callable[[str], None] = lambda _: None,
    checker: Callable[..., CheckRecord] = check,
) -> Diagnosis:
    """Say what costs a step its time, and what would save it: each saving is measured.

    Args:
        case: the step.
        session: whose workers and settings are used.
        time_limit_s: no experiment begins that would probably end later. Step, native layers and
            the least rounds of the cross-check are taken whatever they need.
        tell: called with what is done next.
        checker: the cross-check.

    Raises:
        UsageError: no such model, option or word.
        UnsupportedError: the framework cannot run this step.
        PrimitiveError: the step is wrong, or died.
    """
    start = time.monotonic()
    seen, notes = observe(case, session, time_limit_s, tell, checker)
    found: list[Finding] = []
    tried: list[Tried] = []
    untried: list[Tried] = []
    for experiment, because in hypotheses(seen).items():
        first = because[0]
        name = _name(experiment, first)
        left = time_limit_s - (time.monotonic() - start)
        if cost_s(experiment, seen.step_s) > left:
            untried.append(Tried(what=name, problem=first.problem, result="no time", ran=False))
            continue
        tell(f"trying {name}")
        try:
            saving = try_out(experiment, seen, session)
        except PydlbenchError as error:
            result = " ".join(str(error).split())
            untried.append(Tried(what=name, problem=first.problem, result=result, ran=False))
            continue
        if saving.real:
            found.append(finding_of(because, saving))
        else:
            tried.append(Tried(what=name, problem=first.problem, result=_result(saving)))
    terms = () if seen.check is None else seen.check.ledger
    return Diagnosis(
        step=seen.step,
        findings=rank(found),
        tried=tuple(tried),
        untried=tuple(untried),
        terms=tuple(dataclasses.asdict(one) for one in terms),
        notes=notes,
        seconds=time.monotonic() - start,
    )


def hypotheses(seen: Observations) -> dict[Experiment, list[Hypothesis]]:
    """Return all hypotheses by experiment, those first that may save most.

    Args:
        seen: what is known of the step.
    """
    found: dict[Experiment, list[Hypothesis]] = {}
    for rule in RULES:
        for one in rule(seen):
            if one.most_s >= _TRY * seen.step_s:
                found.setdefault(one.experiment, []).append(one)
    most = {experiment: max(one.most_s for one in same) for experiment, same in found.items()}
    return {one: found[one] for one in sorted(found, key=lambda one: -most[one])}


def _name(experiment: Experiment, hypothesis: Hypothesis) -> str:
    """What is tried: ``conv1 forward with channels padded to 8``."""
    where = hypothesis.where or "the step"
    if hypothesis.where and hypothesis.where in experiment.what:
        return experiment.what
    return f"{where} with {experiment.what}"


def _result(saving: Saving) -> str:
    """How the time changed, and why that is no finding."""
    share = format_percent(abs(saving.share))
    if saving.low is None:
        return f"{saving.rounds} rounds are too few to tell"
    if saving.high is not None and saving.high < 0:
        return f"takes {format_seconds(-saving.seconds)} longer ({share} of the step)"
    if saving.low > 0:
        return f"saves {format_seconds(saving.seconds)}, only {share} of the step"
    return f"no difference beyond doubt ({share} of the step in {saving.rounds} rounds)"
