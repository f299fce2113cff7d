"""Runs a diagnosis: observes a step, tests hypotheses, and ranks the findings."""

import dataclasses
import time
from collections.abc import Callable, Iterator, Sequence
from typing import Final

import msgspec

from pydlbench.analysis.breakdown_run import broken_down
from pydlbench.backends import capabilities
from pydlbench.diagnose.ablation import (
    AgainstNative,
    Experiment,
    Hypothesis,
    LayerChange,
    StepChange,
    cost_s,
    try_out,
)
from pydlbench.diagnose.evidence import Observations, observe, time_step
from pydlbench.diagnose.rules import (
    find_arithmetic,
    find_batch,
    find_channels,
    find_copies,
    find_decay,
    find_dispatch,
    find_first_touch,
    find_fusion,
    find_layout,
    find_loss,
    find_operators,
    find_optimizer,
    find_roofs,
    find_strides,
    find_unused_rows,
)
from pydlbench.errors import PydlbenchError, UnsupportedError
from pydlbench.grouping import group_by
from pydlbench.records.breakdown import BreakdownRecord, Term
from pydlbench.records.diagnosis import Cause, Diagnosis, Finding, Saving, Tried, overlap
from pydlbench.records.measurement import KernelSpec, Measurement
from pydlbench.records.step import StepRecord, StepSpec
from pydlbench.runner.session import Session
from pydlbench.timing.statistics import sum_known
from pydlbench.units import format_seconds, percent

#: The rules, in the order in which symptoms are listed that share an experiment.
RULES: Final[tuple[Callable[[Observations], Iterator[Hypothesis]], ...]] = (
    find_first_touch,
    find_layout,
    find_operators,
    find_channels,
    find_copies,
    find_strides,
    find_roofs,
    find_dispatch,
    find_fusion,
    find_optimizer,
    find_unused_rows,
    find_decay,
    find_loss,
    find_batch,
    find_arithmetic,
)

# -----------------------------------------------------------------------------
# From experiments to a ranked list.
#
# Savings of findings that concern the same parts of a step are never added. Those of one problem
# on different layers are added, since they have no part in common.


def finding_of(hypotheses: Sequence[Hypothesis], saving: Saving, experiment: str = "") -> Finding:
    """Return the finding of one experiment.

    Args:
        hypotheses: all hypotheses that share the experiment.
        saving: the measured saving.
        experiment: name of the experiment.
    """
    first = hypotheses[0]
    symptoms = dict.fromkeys(hypothesis.symptom for hypothesis in hypotheses)
    evidence = dict.fromkeys(text for hypothesis in hypotheses for text in hypothesis.evidence)
    return Finding(
        problem=" and ".join(dict.fromkeys(hypothesis.problem for hypothesis in hypotheses)),
        where=(first.where,) if first.where else (),
        symptom="; ".join(symptoms),
        evidence=(saving.how, *saving.evidence, *evidence),
        causes=_causes(hypotheses, saving),
        saving=saving,
        next=first.next,
        parts=frozenset().union(*(hypothesis.parts for hypothesis in hypotheses)),
        experiments=(experiment,),
    )


def _causes(hypotheses: Sequence[Hypothesis], saving: Saving) -> tuple[Cause, ...]:
    """Return the causes that the experiment shows, or else the suspected ones."""
    where = tuple(dict.fromkeys(hypothesis.where for hypothesis in hypotheses if hypothesis.where))
    if saving.causes:
        return tuple(msgspec.structs.replace(cause, where=where) for cause in saving.causes)
    reasons = {
        hypothesis.reason or hypothesis.problem: hypothesis.cause for hypothesis in hypotheses
    }
    alone = saving.seconds if len(reasons) == 1 else None
    return tuple(
        Cause(name=name, meaning=meaning, seconds=alone, where=where)
        for name, meaning in reasons.items()
    )


def rank(findings: Sequence[Finding]) -> tuple[Finding, ...]:
    """Rank findings by saving; merge those of one problem, and mark overlaps.

    Args:
        findings: findings whose savings exceed their intervals.
    """
    ranked = sorted(findings, key=lambda finding: -finding.saving.seconds)
    problems = group_by(ranked, lambda finding: finding.problem)
    merged = [_merge(same) for same in problems.values()]
    merged.sort(key=lambda finding: -finding.saving.seconds)
    return tuple(
        msgspec.structs.replace(
            finding,
            overlaps=tuple(
                number
                for number, other in enumerate(merged, start=1)
                if other is not finding and overlap(finding.parts, other.parts)
            ),
        )
        for finding in merged
    )


def _merge(same: Sequence[Finding]) -> Finding:
    """Merge findings of one problem: the best change of each layer, summed over layers."""
    kept: list[Finding] = []
    others: list[Finding] = []
    for finding in same:  # the largest saving first
        group = others if any(overlap(finding.parts, other.parts) for other in kept) else kept
        group.append(finding)
    first = kept[0]
    first = msgspec.structs.replace(
        first,
        alternatives=(
            *first.alternatives,
            *(_alternative(finding, first.next) for finding in others),
        ),
        experiments=tuple(name for finding in same for name in finding.experiments),
    )
    if len(kept) == 1:
        return first
    savings = [finding.saving for finding in kept]
    saving = msgspec.structs.replace(
        first.saving,
        seconds=sum(saving.seconds for saving in savings),
        low=sum_known(saving.low for saving in savings),
        high=sum_known(saving.high for saving in savings),
        how=f"{len(kept)} layers and passes, each alone beside its own change",
        rounds=min(saving.rounds for saving in savings),
    )
    evidence = tuple(
        f"{', '.join(finding.where)} saves {format_seconds(finding.saving.seconds)}: {text}"
        for finding in kept
        for text in finding.evidence[:1]
    )
    details = [
        f"{', '.join(finding.where)}: {text}" for finding in kept for text in finding.evidence[1:3]
    ]
    return msgspec.structs.replace(
        first,
        where=tuple(where for finding in kept for where in finding.where),
        symptom="; ".join(dict.fromkeys(finding.symptom for finding in kept)),
        evidence=(*evidence, *details),
        causes=_joined(kept),
        saving=saving,
        parts=frozenset().union(*(finding.parts for finding in kept)),
    )


def _joined(same: Sequence[Finding]) -> tuple[Cause, ...]:
    """Return the causes of distinct layers, those of one name summed."""
    every = (cause for finding in same for cause in finding.causes)
    causes = [
        msgspec.structs.replace(
            alike[0],
            seconds=sum_known(cause.seconds for cause in alike),
            where=tuple(where for cause in alike for where in cause.where),
        )
        for alike in group_by(every, lambda cause: cause.name).values()
    ]
    return tuple(sorted(causes, key=lambda cause: -(cause.seconds or 0.0)))


def _alternative(finding: Finding, shown: str) -> str:
    """Describe another change in one line, with its command unless that is already shown."""
    where = f"{', '.join(finding.where)}: " if finding.where else ""
    share = percent(finding.saving.share)
    seconds = format_seconds(finding.saving.seconds)
    following = "" if finding.next == shown else f"; next: {finding.next}"
    return f"{where}{finding.saving.how}: saves {seconds} ({share} of the step){following}"


def diagnoses(
    spec: StepSpec,
    session: Session,
    time_limit_s: float = 300.0,
    tell: Callable[[str], None] = lambda _: None,
    explainer: Callable[..., Iterator[BreakdownRecord]] = broken_down,
    *,
    known: Callable[[KernelSpec], Measurement | None] = lambda _: None,
    keep: Callable[[KernelSpec, Measurement], None] = lambda *_: None,
    before: Diagnosis | None = None,
) -> Iterator[Diagnosis]:
    """Find changes that save a step's time; each saving is measured.

    Yields:
        The findings so far: after each process of the step, after each round of its breakdown, and
        after each experiment. All but the last are ``interrupted``.

    Args:
        spec: the step.
        session: the session whose workers and settings are used.
        time_limit_s: limit of the whole diagnosis in seconds: no experiment is started that would
            probably end later.
        tell: called with a description of the next action.
        explainer: yields the breakdown of the step, as far as it is known.
        known: returns the row of a native kernel that was found before; None if there is none.
        keep: called with each native kernel that was found, and its row.
        before: an interrupted diagnosis of this step; its experiments are not repeated.

    Raises:
        UsageError: no such model, option or word.
        UnsupportedError: the framework cannot run this step.
        PrimitiveError: the step is wrong, or its process ended.
    """
    start = time.monotonic()
    findings = [] if before is None else list(before.findings)
    tried = [] if before is None else list(before.tried)
    settled = frozenset() if before is None else before.settled
    untried: list[Tried] = []

    def result(
        step: StepRecord,
        terms: Sequence[Term] = (),
        notes: Sequence[str] = (),
        *,
        interrupted: bool = True,
    ) -> Diagnosis:
        more = ["interrupted: not everything was tried"] if interrupted else []
        return Diagnosis(
            step=step,
            findings=rank(findings),
            tried=tuple(tried),
            untried=tuple(untried),
            terms=tuple(term.to_dict() for term in terms),
            notes=(*notes, *more),
            seconds=time.monotonic() - start,
            interrupted=interrupted,
        )

    for step in time_step(spec, session, tell):
        yield result(step)
    for seen, notes in observe(step, session, start, time_limit_s, tell, explainer, known, keep):
        terms = () if seen.breakdown is None else seen.breakdown.terms
        yield result(step, terms, notes)
    done: set[Experiment] = set()
    # New observations may add experiments.
    while untested := [pair for pair in suspect(seen).items() if pair[0] not in done]:
        experiment, because = untested[0]
        done.add(experiment)
        name, problem = _name(experiment, because[0]), because[0].reason or because[0].problem
        if name in settled:
            continue
        label = f"trying {name}, {len(done)} of {len(done) + len(untested) - 1}"
        try:
            saving = _attempt(experiment, seen, session, start + time_limit_s, tell, label)
        except PydlbenchError as error:
            words = " ".join(str(error).split())
            untried.append(Tried(what=name, problem=problem, result=words, ran=False))
            continue
        if saving.real:
            findings.append(finding_of(because, saving, name))
        else:
            tried.append(Tried(what=name, problem=problem, result=_result(saving)))
        if isinstance(experiment, StepChange) and not experiment.both and seen.beside_s is None:
            seen = dataclasses.replace(seen, beside_s=saving.step_s)
        yield result(step, terms, notes)
    yield result(step, terms, notes, interrupted=False)


def _attempt(
    experiment: Experiment,
    seen: Observations,
    session: Session,
    end: float,
    tell: Callable[[str], None],
    label: str,
) -> Saving:
    """Run an experiment, and repeat it if chance could explain it; the smaller saving counts.

    It is repeated in new processes of the framework.

    Raises:
        PydlbenchError: it cannot be run, or the time limit is too near.
    """
    if time.monotonic() + cost_s(experiment, seen.step_s) > end:
        raise UnsupportedError("not tried within the time limit (--minutes)")
    tell(label)
    saving = try_out(experiment, seen, session)
    if not saving.real or saving.sure:
        return saving
    if time.monotonic() + cost_s(experiment, seen.step_s) > end:
        share = percent(saving.share)
        raise UnsupportedError(f"saved {share} of the step once; no time to repeat it (--minutes)")
    tell(f"{label} once more")
    session.renew()
    again = try_out(experiment, seen, session)
    if again.contended:
        share = percent(saving.share)
        raise UnsupportedError(f"saved {share} of the step once; then {again.otherwise}")
    weaker = min(saving, again, key=lambda each: (each.real, each.seconds))
    return msgspec.structs.replace(weaker, how=f"{weaker.how}; the weaker of two such runs")


def suspect(seen: Observations) -> dict[Experiment, list[Hypothesis]]:
    """Return the hypotheses by experiment, those that can save most first.

    Args:
        seen: the observations of the step.
    """
    by_experiment: dict[Experiment, list[Hypothesis]] = {}
    layers = capabilities.declaration(seen.spec.framework).layers
    for rule in RULES:
        for hypothesis in rule(seen):
            # Frameworks that run only whole files have no layer to change.
            possible = layers or not isinstance(hypothesis.experiment, (AgainstNative, LayerChange))
            if possible and seen.matters(hypothesis.most_s):
                by_experiment.setdefault(hypothesis.experiment, []).append(hypothesis)
    return dict(
        sorted(by_experiment.items(), key=lambda entry: -max(each.most_s for each in entry[1]))
    )


def _name(experiment: Experiment, hypothesis: Hypothesis) -> str:
    """Return the name of an experiment: ``conv1 forward with channels padded to 8``."""
    where = hypothesis.where or "the step"
    if hypothesis.where and hypothesis.where in experiment.what:
        return experiment.what
    return f"{where} with {experiment.what}"


def _result(saving: Saving) -> str:
    """Describe the change of the time, and why it is no finding."""
    share = percent(abs(saving.share))
    if saving.otherwise:
        return saving.otherwise
    if saving.high is not None and saving.high < 0:
        return f"takes {format_seconds(-saving.seconds)} longer ({share} of the step)"
    if saving.low is not None and saving.low > 0:
        return f"saves {format_seconds(saving.seconds)}, only {share} of the step"
    return f"no difference beyond doubt ({share} of the step in {saving.rounds} rounds)"
