"""Differences between ledgers: two recorded steps row by row, and the skew of a job's ranks."""

from collections import Counter
from collections.abc import Callable, Hashable, Iterable, Sequence
from typing import Final

from pydlbench.errors import UsageError
from pydlbench.grouping import group_by, sum_by
from pydlbench.records.ledger import (
    CollectiveSkew,
    DeviceTime,
    LedgerCall,
    LedgerCollective,
    LedgerComparison,
    LedgerDifference,
    RankComparison,
    RankStep,
    StepLedger,
)
from pydlbench.records.step import StepRecord
from pydlbench.units import format_flops, holding

#: Times of the same kernel that differ by less than this share are the same.
SAME_SHARE: Final = 0.02
#: Counts differ if they differ by more than this share: of several steps they are means.
SAME_COUNT_SHARE: Final = 0.01

#: Rows of two timed steps that are no calls.
BETWEEN_CALLS: Final = "between calls"
TRACED_STEP: Final = "step - traced step"
_OTHER_SHAPES: Final = "other shapes"


def compare_ledgers(a: StepLedger, b: StepLedger) -> LedgerComparison:
    """Return the rows by which two steps differ; they add up to the difference of the steps.

    Calls correspond if they compute the same in the same part of the model, then if they compute
    the same anywhere, then if they are the same operator in the same part.

    Args:
        a: the first step.
        b: the second step.

    Raises:
        UsageError: one of them has no times.
    """
    for ledger in (a, b):
        if ledger.device_time is None or ledger.step_s is None:
            raise UsageError(f"{ledger.file}: has no times; nearest: a profile or a log")
    assert a.device_time is not None
    assert b.device_time is not None
    assert a.step_s is not None
    assert b.step_s is not None
    rows = [*_call_rows(a.calls, b.calls), *_of_time_lines(a.device_time, b.device_time)]
    notes: tuple[str, ...] = ()
    if a.device != b.device:
        notes = (f"recorded on {a.device or 'no named device'} and {b.device or 'none'}",)
    return LedgerComparison(
        a=a.file, b=b.file, a_s=a.step_s, b_s=b.step_s, rows=_largest_first(rows), notes=notes
    )


def compare_steps(a: StepRecord, b: StepRecord) -> tuple[LedgerDifference, ...]:
    """Return the rows by which two timed steps differ; they add up to the difference of the steps.

    Calls correspond as those of recorded steps do; the FLOPs of a call stand for its shapes.

    Args:
        a: the first step, traced.
        b: the second step, traced.
    """
    rows = _call_rows(_calls_of(a), _calls_of(b))
    traced_s = [
        (step.between_calls_s or 0.0, sum(call.in_context_s for call in step.calls or ()))
        for step in (a, b)
    ]
    a_s, b_s = (step.time.median if step.time else 0.0 for step in (a, b))
    (a_between_s, a_calls_s), (b_between_s, b_calls_s) = traced_s
    rows.append(
        LedgerDifference(
            operator=BETWEEN_CALLS, a_s=a_between_s, b_s=b_between_s, why="between calls"
        )
    )
    rows.append(
        LedgerDifference(
            operator=TRACED_STEP,
            a_s=a_s - a_between_s - a_calls_s,
            b_s=b_s - b_between_s - b_calls_s,
            why="traced in one process",
        )
    )
    return _largest_first(rows)


def _calls_of(step: StepRecord) -> list[LedgerCall]:
    return [
        LedgerCall(
            operator=call.operator,
            module=call.module,
            direction=call.direction,
            shapes=format_flops(call.flops / call.count) if call.flops else "",
            count=call.count,
            device_s=call.in_context_s,
        )
        for call in step.calls or ()
    ]


def _largest_first(rows: Sequence[LedgerDifference]) -> tuple[LedgerDifference, ...]:
    return tuple(sorted(rows, key=lambda row: -abs(row.difference_s)))


def _call_rows(a: Sequence[LedgerCall], b: Sequence[LedgerCall]) -> list[LedgerDifference]:
    """Return the rows of calls; see :func:`compare_ledgers`."""
    rows: list[LedgerDifference] = []
    left, right = list(a), list(b)
    keys: tuple[tuple[Callable[[LedgerCall], Hashable], str], ...] = (
        (lambda call: (call.operator, call.direction, call.shapes, call.module), ""),
        (lambda call: (call.operator, call.direction, call.shapes), ""),
        (lambda call: (call.operator, call.direction, call.module), _OTHER_SHAPES),
    )
    for key, why in keys:
        pairs = _pairs(left, right, key)
        rows += [_row(mine, other, why) for mine, other in pairs]
        paired = {id(call) for pair in pairs for calls in pair for call in calls}
        left = [call for call in left if id(call) not in paired]
        right = [call for call in right if id(call) not in paired]
    rows += [_row([call], [], "only in A") for call in left]
    return rows + [_row([], [call], "only in B") for call in right]


def _pairs(
    left: Sequence[LedgerCall], right: Sequence[LedgerCall], key: Callable[[LedgerCall], Hashable]
) -> list[tuple[list[LedgerCall], list[LedgerCall]]]:
    """Return the calls of both steps that share a key."""
    ours, theirs = group_by(left, key), group_by(right, key)
    return [(ours[each], theirs[each]) for each in ours if each in theirs]


def _row(a: Sequence[LedgerCall], b: Sequence[LedgerCall], why: str) -> LedgerDifference:
    call = (b or a)[0]
    return LedgerDifference(
        operator=call.operator,
        module=call.module,
        direction=call.direction,
        shapes=call.shapes,
        a_s=sum(call.seconds for call in a),
        b_s=sum(call.seconds for call in b),
        why=why or _reason(a, b),
    )


def _reason(a: Sequence[LedgerCall], b: Sequence[LedgerCall]) -> str:
    """Return why calls that compute the same take another time."""
    counts = [sum(call.count for call in calls) for calls in (a, b)]
    if abs(counts[0] - counts[1]) > SAME_COUNT_SHARE * max(counts):
        return "other count"
    if {call.kernel for call in a} != {call.kernel for call in b}:
        return "other kernel"
    a_s, b_s = (sum(call.seconds for call in calls) for calls in (a, b))
    return "other speed" if abs(a_s - b_s) > SAME_SHARE * max(a_s, b_s) else "same"


def _of_time_lines(a: DeviceTime, b: DeviceTime) -> list[LedgerDifference]:
    """Return the rows of idle time, and of time that activities overlap, which counts less."""
    return [
        LedgerDifference(operator="idle", a_s=a.idle_s, b_s=b.idle_s, why="idle"),
        LedgerDifference(
            operator="overlap", a_s=-a.overlapped_s, b_s=-b.overlapped_s, why="overlap"
        ),
    ]


# -----------------------------------------------------------------------------
# Ranks of one job: how long they wait for each other in collectives.

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
    numbers = [ledger.rank for ledger in ledgers]
    unnamed = None in numbers or len(set(numbers)) < len(numbers)
    numbers = list(range(len(ledgers))) if unnamed else numbers
    ordered = sorted(zip(numbers, ledgers, strict=True), key=lambda pair: pair[0] or 0)
    ranks = {number or 0: ledger for number, ledger in ordered}
    steps = min(ledger.steps for ledger in ledgers)
    matched, unmatched_s = _match(ranks, steps)
    notes = {
        "the files do not name their ranks: they are numbered in the given order": unnamed,
        f"the files have different numbers of steps: collectives of the first {steps}": any(
            ledger.steps != steps for ledger in ledgers
        ),
        "collectives of one file only are not matched": unmatched_s,
    }
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
        notes=tuple(holding(notes)),
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
