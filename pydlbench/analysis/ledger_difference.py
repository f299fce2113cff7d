"""Two recorded steps: by which calls they differ, and why."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Sequence
from typing import Final

from pydlbench.errors import UsageError
from pydlbench.grouping import group_by
from pydlbench.records.ledger import (
    DeviceTime,
    LedgerCall,
    LedgerComparison,
    LedgerDifference,
    StepLedger,
)

#: Times of the same kernel that differ by less than this share are the same.
SAME_SHARE: Final = 0.02
#: Counts differ if they differ by more than this share: of several steps they are means.
SAME_COUNT_SHARE: Final = 0.01

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
    rows: list[LedgerDifference] = []
    left, right = list(a.calls), list(b.calls)
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
    rows += [_row([], [call], "only in B") for call in right]
    rows += _of_time_lines(a.device_time, b.device_time)
    rows.sort(key=lambda row: -abs(row.difference_s))
    notes: tuple[str, ...] = ()
    if a.device != b.device:
        notes = (f"recorded on {a.device or 'no named device'} and {b.device or 'none'}",)
    return LedgerComparison(
        a=a.file, b=b.file, a_s=a.step_s, b_s=b.step_s, rows=tuple(rows), notes=notes
    )


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
