"""Ranks of one job: how long they wait for each other in collectives.

The clocks of several machines differ, so only durations are compared. A collective ends on all
ranks when the last one has arrived and the data are there. It is shortest on the rank that arrives
last: that is the transfer. What it takes longer on another rank is the time that this one waits.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Hashable, Iterable, Sequence

from pydlbench.errors import UsageError
from pydlbench.grouping import group_by, sum_by
from pydlbench.records.ledger import (
    CollectiveSkew,
    LedgerCollective,
    RankComparison,
    RankStep,
    StepLedger,
)

#: A collective of some ranks: each with its rank's number.
_Matched = dict[int, LedgerCollective]


def are_ranks(ledgers: Sequence[StepLedger]) -> bool:
    """Whether recordings are ranks of one job: more than two, or two whose ranks differ."""
    numbers = {ledger.rank for ledger in ledgers}
    sizes = {ledger.world_size for ledger in ledgers} - {None}
    different = None not in numbers and len(numbers) == len(ledgers) > 1
    return len(ledgers) > 2 or (different and len(sizes) < 2)


def compare_ranks(ledgers: Sequence[StepLedger]) -> RankComparison:
    """Return each rank's step, and the skew of each collective.

    Args:
        ledgers: of the ranks of a job.

    Raises:
        UsageError: one of them has no times.
    """
    notes = []
    numbers = [ledger.rank for ledger in ledgers]
    if None in numbers or len(set(numbers)) < len(numbers):
        notes.append("the files do not name their ranks: they are numbered in the given order")
        numbers = list(range(len(ledgers)))
    ordered = sorted(zip(numbers, ledgers, strict=True), key=lambda pair: pair[0] or 0)
    ranks = {number or 0: ledger for number, ledger in ordered}
    steps = min(ledger.steps for ledger in ledgers)
    if any(ledger.steps != steps for ledger in ledgers):
        notes.append(f"the files have different numbers of steps: collectives of the first {steps}")
    matched, unmatched_s = _match(ranks, steps)
    if unmatched_s:
        notes.append("collectives of one file only are not matched")
    waits = sum_by((number, wait_s) for each in matched for number, wait_s in _waits(each).items())
    lasts = Counter(map(_last, matched))
    caused = sum_by((_last(each), sum(_waits(each).values())) for each in matched)
    rows = []
    for number, ledger in ranks.items():
        line = ledger.device_time
        if line is None or ledger.step_s is None:
            raise UsageError(f"{ledger.file}: has no times; nearest: a profile or a log")
        rows.append(
            RankStep(
                rank=number,
                file=ledger.file,
                step_s=ledger.step_s,
                busy_s=line.busy_s,
                idle_s=line.idle_s,
                exposed_communication_s=line.exposed_communication_s,
                wait_s=waits.get(number, 0.0) / steps,
                last=lasts[number],
                caused_s=caused.get(number, 0.0) / steps / len(ranks),
            )
        )
    return RankComparison(
        ranks=tuple(rows),
        collectives=_skews(matched, steps, len(ranks)),
        matched=len(matched),
        unmatched_s=unmatched_s / steps / len(ranks),
        notes=tuple(notes),
    )


def _match(ranks: dict[int, StepLedger], steps: int) -> tuple[list[_Matched], float]:
    """Return the collectives that correspond, and seconds of those that do not.

    Those of the same group, operator and size correspond by their order in a step; then those of
    the same operator, whose sizes may differ (an uneven exchange); then those of some ranks only.
    """
    left = [
        (number, each)
        for number, ledger in ranks.items()
        for each in ledger.collectives
        if each.step < steps
    ]
    matched: list[_Matched] = []
    keys: tuple[tuple[Callable[[LedgerCollective], Hashable], int], ...] = (
        (lambda each: (each.step, each.group, each.operator, each.shapes), len(ranks)),
        (lambda each: (each.step, each.group, each.operator), len(ranks)),
        (lambda each: (each.step, each.group, each.operator, each.shapes), 2),
    )
    for key, least in keys:
        seen: Counter[Hashable] = Counter()
        places: dict[Hashable, _Matched] = {}
        for number, each in left:
            place = seen[number, key(each)]
            seen[number, key(each)] += 1
            places.setdefault((key(each), place), {})[number] = each
        found = [own for own in places.values() if len(own) >= least]
        matched += found
        taken = {id(each) for own in found for each in own.values()}
        left = [(number, each) for number, each in left if id(each) not in taken]
    return matched, sum(each.device_s for _, each in left)


def _last(matched: _Matched) -> int:
    """Return the rank that arrived last: the collective was shortest on it."""
    return min(matched, key=lambda number: matched[number].device_s)


def _waits(matched: _Matched) -> dict[int, float]:
    """Return the seconds that each rank waited for the last one."""
    shortest_s = matched[_last(matched)].device_s
    return {number: each.device_s - shortest_s for number, each in matched.items()}


def _skews(matched: Iterable[_Matched], steps: int, ranks: int) -> tuple[CollectiveSkew, ...]:
    """Return the skew of each kind of collective; those that ranks wait longest in first."""
    rows = []

    def kind(each: _Matched) -> tuple[str, str]:
        first = next(iter(each.values()))
        return first.operator, first.shapes

    for (operator, shapes), own in group_by(matched, kind).items():
        lasts = Counter(map(_last, own)).most_common(1)
        waits = [_waits(each) for each in own]
        rows.append(
            CollectiveSkew(
                operator=operator,
                shapes=shapes,
                count=len(own) / steps,
                transfer_s=sum(each[_last(each)].device_s for each in own) / steps,
                wait_s=sum(sum(each.values()) for each in waits) / steps / ranks,
                longest_wait_s=max(max(each.values()) for each in waits),
                last_rank=lasts[0][0],
                last_share=lasts[0][1] / len(own),
            )
        )
    return tuple(sorted(rows, key=lambda row: -row.wait_s))
