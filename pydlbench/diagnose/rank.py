"""From what experiments have measured to a ranked list.

Savings of findings that are about the same parts of a step do not add up, and are never added.
Those of one problem on different layers are: no part is in two of them.
"""

from __future__ import annotations

import dataclasses
from typing import TYPE_CHECKING

from pydlbench.diagnose.finding import Cause, Finding, overlap
from pydlbench.units import format_percent, format_seconds

if TYPE_CHECKING:
    from collections.abc import Sequence

    from pydlbench.diagnose.finding import Hypothesis, Saving

__all__ = ["finding_of", "rank"]


def finding_of(hypotheses: Sequence[Hypothesis], saving: Saving) -> Finding:
    """Return the finding of an experiment.

    Args:
        hypotheses: those that share it: each is a reason.
        saving: what it measured.
    """
    first = hypotheses[0]
    symptoms = dict.fromkeys(one.symptom for one in hypotheses)
    evidence = dict.fromkeys(text for one in hypotheses for text in one.evidence)
    return Finding(
        problem=" and ".join(dict.fromkeys(one.problem for one in hypotheses)),
        where=(first.where,) if first.where else (),
        symptom="; ".join(symptoms),
        evidence=(saving.how, *saving.evidence, *evidence),
        causes=_causes(hypotheses, saving),
        saving=saving,
        next=first.next,
        parts=frozenset().union(*(one.parts for one in hypotheses)),
    )


def _causes(hypotheses: Sequence[Hypothesis], saving: Saving) -> tuple[Cause, ...]:
    """What the experiment says, or else what it was made for."""
    where = tuple(dict.fromkeys(one.where for one in hypotheses if one.where))
    if saving.causes:
        return tuple(dataclasses.replace(one, where=where) for one in saving.causes)
    reasons = {one.reason or one.problem: one.cause for one in hypotheses}
    alone = saving.seconds if len(reasons) == 1 else None
    return tuple(
        Cause(name=name, meaning=meaning, seconds=alone, where=where)
        for name, meaning in reasons.items()
    )


def rank(found: Sequence[Finding]) -> tuple[Finding, ...]:
    """Return findings by what they save, those of one problem merged, overlaps marked.

    Args:
        found: each with a saving beyond doubt.
    """
    problems: dict[str, list[Finding]] = {}
    for one in sorted(found, key=lambda one: -one.saving.seconds):
        problems.setdefault(one.problem, []).append(one)
    merged = [_merge(same) for same in problems.values()]
    merged.sort(key=lambda one: -one.saving.seconds)
    return tuple(
        dataclasses.replace(
            one,
            overlaps=tuple(
                number
                for number, other in enumerate(merged, start=1)
                if other is not one and overlap(one.parts, other.parts)
            ),
        )
        for one in merged
    )


def _merge(same: Sequence[Finding]) -> Finding:
    """Join what is one problem: the best of several ways, summed over layers that are distinct."""
    kept: list[Finding] = []
    others: list[Finding] = []
    for one in same:  # the largest saving first
        beside = others if any(overlap(one.parts, other.parts) for other in kept) else kept
        beside.append(one)
    first = kept[0]
    alternatives = tuple(_alternative(one, first.next) for one in others)
    if len(kept) == 1:
        return dataclasses.replace(first, alternatives=alternatives)
    savings = [one.saving for one in kept]
    lows = [one.low for one in savings if one.low is not None]
    highs = [one.high for one in savings if one.high is not None]
    saving = dataclasses.replace(
        first.saving,
        seconds=sum(one.seconds for one in savings),
        low=sum(lows),
        high=sum(highs),
        how=f"{len(kept)} layers and passes, each alone beside its own change",
        rounds=min(one.rounds for one in savings),
    )
    evidence = tuple(
        f"{', '.join(one.where)} saves {format_seconds(one.saving.seconds)}: {text}"
        for one in kept
        for text in one.evidence[:1]
    )
    details = [f"{', '.join(one.where)}: {text}" for one in kept for text in one.evidence[1:3]]
    return dataclasses.replace(
        first,
        where=tuple(where for one in kept for where in one.where),
        symptom="; ".join(dict.fromkeys(one.symptom for one in kept)),
        evidence=(*evidence, *details),
        causes=_joined(kept),
        saving=saving,
        parts=frozenset().union(*(one.parts for one in kept)),
        alternatives=alternatives,
    )


def _joined(same: Sequence[Finding]) -> tuple[Cause, ...]:
    """The causes of distinct layers, those of one name summed."""
    found: dict[str, Cause] = {}
    for one in same:
        for cause in one.causes:
            before = found.get(cause.name)
            found[cause.name] = cause if before is None else _both(before, cause)
    return tuple(sorted(found.values(), key=lambda one: -(one.seconds or 0.0)))


def _both(first: Cause, second: Cause) -> Cause:
    known = first.seconds is not None and second.seconds is not None
    seconds = (first.seconds or 0.0) + (second.seconds or 0.0) if known else None
    return dataclasses.replace(first, seconds=seconds, where=(*first.where, *second.where))


def _alternative(one: Finding, shown: str) -> str:
    """Another way in a line, with its command unless that is shown already."""
    where = f"{', '.join(one.where)}: " if one.where else ""
    share = format_percent(one.saving.share)
    seconds = format_seconds(one.saving.seconds)
    following = "" if one.next == shown else f"; next: {one.next}"
    return f"{where}{one.saving.how}: saves {seconds} ({share}){following}"
