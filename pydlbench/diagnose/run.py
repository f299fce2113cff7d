"""A diagnosis from the step to the ranked findings."""

from __future__ import annotations

import dataclasses
import functools
import time
from typing import TYPE_CHECKING

from pydlbench.crosscheck import check
from pydlbench.diagnose.experiments import Rounds, StepChange
from pydlbench.diagnose.finding import Diagnosis, Tried
from pydlbench.diagnose.observe import observe
from pydlbench.diagnose.rank import finding_of, rank
from pydlbench.diagnose.rules import RULES
from pydlbench.diagnose.trials import cost_s, try_out
from pydlbench.errors import PydlbenchError, UnsupportedError
from pydlbench.units import format_percent, format_seconds

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Mapping

    from pydlbench.crosscheck import CheckRecord
    from pydlbench.diagnose.bench import Bench
    from pydlbench.diagnose.experiments import Experiment
    from pydlbench.diagnose.finding import Finding, Hypothesis, Saving
    from pydlbench.diagnose.observations import Observations
    from pydlbench.endtoend import StepCase

__all__ = ["diagnose", "hypotheses"]

# Of the step: what saves no more than this at the most is not tried.
_TRY = 0.01
# Of the time limit: experiments have so much of it at the least, however long it took to look.
_RESERVED = 0.5


def diagnose(
    case: StepCase,
    session: Bench,
    time_limit_s: float = 300.0,
    tell: Callable[[str], None] = lambda _: None,
    checker: Callable[..., CheckRecord] = check,
) -> Diagnosis:
    """Say what costs a step its time, and what would save it: each saving is measured.

    Ctrl-C while experiments run ends them; what they have shown until then is returned.

    Args:
        case: the step.
        session: whose workers and settings are used.
        time_limit_s: no experiment begins that would probably end later. Step, native layers and
            the least rounds of the cross-check are taken whatever they need, and half of the limit
            is left for experiments after them.
        tell: called with what is done next.
        checker: the cross-check.

    Raises:
        UsageError: no such model, option or word.
        UnsupportedError: the framework cannot run this step.
        PrimitiveError: the step is wrong, or died.
    """
    start = time.monotonic()
    seen, notes = observe(case, session, time_limit_s, tell, checker)
    end = max(start + time_limit_s, time.monotonic() + _RESERVED * time_limit_s)
    found: list[Finding] = []
    tried: list[Tried] = []
    untried: list[Tried] = []
    done: set[Experiment] = set()
    interrupted = False
    try:
        while (following := _first_without(done, hypotheses(seen))) is not None:
            experiment, because = following
            done.add(experiment)
            name, problem = _name(experiment, because[0]), because[0].reason or because[0].problem
            try:
                saving = _attempt(
                    experiment,
                    seen,
                    session,
                    lambda: end - time.monotonic(),
                    functools.partial(_announce, tell, name),
                )
            except PydlbenchError as error:
                result = " ".join(str(error).split())
                untried.append(Tried(what=name, problem=problem, result=result, ran=False))
                continue
            if saving.real:
                found.append(finding_of(because, saving))
            else:
                tried.append(Tried(what=name, problem=problem, result=_result(saving)))
            if isinstance(experiment, StepChange) and not experiment.both and seen.beside_s is None:
                seen = dataclasses.replace(seen, beside_s=saving.step_s)
    except KeyboardInterrupt:
        interrupted = True
        notes = (*notes, "interrupted: not everything was tried")
    terms = () if seen.check is None else seen.check.ledger
    return Diagnosis(
        step=seen.step,
        findings=rank(found),
        tried=tuple(tried),
        untried=tuple(untried),
        terms=tuple(dataclasses.asdict(one) for one in terms),
        notes=notes,
        seconds=time.monotonic() - start,
        interrupted=interrupted,
    )


def _attempt(
    experiment: Experiment,
    seen: Observations,
    session: Bench,
    left_s: Callable[[], float],
    begin: Callable[[str], None],
) -> Saving:
    """Run an experiment, and a second time what chance alone could be: the weaker one counts.

    Raises:
        PydlbenchError: it cannot be run, or there is no time for it.
    """
    if cost_s(experiment, seen.step_s) > left_s():
        raise UnsupportedError("no time")
    begin("")
    saving = try_out(experiment, seen, session)
    if not saving.real or saving.sure:
        return saving
    repeated = experiment.again if isinstance(experiment, Rounds) else experiment
    if cost_s(repeated, seen.step_s) > left_s():
        share = format_percent(saving.share)
        raise UnsupportedError(f"saved {share} of the step once; no time to see it twice")
    begin(" once more")
    weaker = min(saving, try_out(repeated, seen, session), key=_certain)
    return dataclasses.replace(weaker, how=f"{weaker.how}; the weaker of two such runs")


def _announce(tell: Callable[[str], None], name: str, times: str) -> None:
    tell(f"trying {name}{times}")


def _certain(saving: Saving) -> tuple[bool, float]:
    """Sorts savings: those that are none first, then by seconds."""
    return saving.real, saving.seconds


def _first_without(
    done: Collection[Experiment], found: Mapping[Experiment, list[Hypothesis]]
) -> tuple[Experiment, list[Hypothesis]] | None:
    """Return the next experiment: a better known step may bring further ones."""
    return next(((one, because) for one, because in found.items() if one not in done), None)


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
    if saving.otherwise:
        return saving.otherwise
    if saving.low is None:
        return f"{saving.rounds} rounds are too few to tell"
    if saving.high is not None and saving.high < 0:
        return f"takes {format_seconds(-saving.seconds)} longer ({share} of the step)"
    if saving.low > 0:
        return f"saves {format_seconds(saving.seconds)}, only {share} of the step"
    return f"no difference beyond doubt ({share} of the step in {saving.rounds} rounds)"
