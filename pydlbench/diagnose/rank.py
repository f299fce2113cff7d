"""From what experiments have measured to a ranked list.

Savings of findings that are about the same parts of a step do not add up, and are never added.
Those of one problem on different layers are: no part is in two of them.
"""

from __future__ import annotations

import dataclasses
from typing import TYPE_CHECKING

from pydlbench.diagnose.finding import Finding, overlap
from pydlbench.units import format_percent, format_seconds

if TYPE_CHECKING:
    from collections.abc import Sequence

    from pydlbench.diagnose.finding import Hypothesis, Saving

__all__ = ["finding_of", "rank"]


def finding_of(hypotheses: Sequence[Hypothesis], saving: Saving) -> Finding:
    """Return the finding of an experiment.

    Args:
        hypotheses: those that share it; the first one names it.
        saving: what it measured.
    """
    first = hypotheses[0]
    symptoms = dict.fromkeys(one.symptom for one in hypotheses)
    evidence = dict.fromkeys(text for one in hypotheses for text in one.evidence)
    return Finding(
        problem=saving.problem or first.problem,
        where=(first.where,) if first.where else (),
        symptom="; ".join(symptoms),
        evidence=(saving.how, *saving.evidence, *evidence),
        cause=saving.cause or first.cause,
        saving=saving,
        next=first.next,
        parts=frozenset().union(*(one.parts for one in hypotheses)),
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
    alternatives = tuple(_alternative(one) for one in others)
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
    details = dict.fromkeys(text for one in kept for text in one.evidence[1:3])
    return dataclasses.replace(
        first,
        where=tuple(where for one in kept for where in one.where),
        symptom="; ".join(dict.fromkeys(one.symptom for one in kept)),
        evidence=(*evidence, *details),
        saving=saving,
        parts=frozenset().union(*(one.parts for one in kept)),
        alternatives=alternatives,
    )


def _alternative(one: Finding) -> str:
    where = f"{', '.join(one.where)}: " if one.where else ""
    share = format_percent(one.saving.share)
    seconds = format_seconds(one.saving.seconds)
    return f"{where}{one.saving.how}: saves {seconds} ({share}); next: {one.next}"
