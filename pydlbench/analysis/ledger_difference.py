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
from pydlbench.records.step import StepRecord
from pydlbench.units import format_flops

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
            operator="between calls", a_s=a_between_s, b_s=b_between_s, why="between calls"
        )
    )
    rows.append(
        LedgerDifference(
            operator="step - traced step",
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
