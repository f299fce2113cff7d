"""Savings of a swap: as the calls alone foretell them, and in the step."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from operator import mul
from typing import Final

import msgspec

from pydlbench.analysis.ledger_difference import BETWEEN_CALLS, TRACED_STEP, compare_steps
from pydlbench.analysis.subjects import with_parts
from pydlbench.backends.steps import requests
from pydlbench.records.agreement import SwapSaving, SwapTerm
from pydlbench.records.ledger import LedgerDifference
from pydlbench.records.step import StepRecord, StepSpec
from pydlbench.records.trace import CallInContext, OperatorsFacts, RecordedCall
from pydlbench.runner.session import Session
from pydlbench.study.loop import Study, Subject, random_order
from pydlbench.timing.chunk import Chunk, ChunkRequest
from pydlbench.timing.policy import Policy
from pydlbench.timing.statistics import median, median_interval
from pydlbench.units import format_seconds
from pydlbench.workers.host import RemoteKernel, releasing

#: Processes that time the calls alone.
PROCESSES: Final = 6
#: Row of what the calls save in the step and not alone.
AT_PLACE: Final = "at their places in the step"


@dataclass(frozen=True, slots=True)
class CallsAlone:
    """The swapped calls of a step, each alone, in several processes.

    Attributes:
        calls: the distinct calls, with their numbers in a step.
        seconds: the sums over the calls of a step by process, with operands in caches and memory
            that is kept, for the original and for the user's kernel.
    """

    calls: Sequence[RecordedCall]
    seconds: Sequence[Mapping[int, float]]

    def has(self, call: CallInContext | LedgerDifference) -> bool:
        """Whether a call of a traced step is one of these."""
        # Traced calls have no overload: ``aten.add``, not ``aten.add.Tensor``.
        operators = {".".join(each.operator.split(".")[:2]) for each in self.calls}
        modules = tuple(f"{name}." for each in self.calls for name in each.names)
        return call.operator in operators or f"{call.module}.".startswith(modules)


def time_alone(spec: StepSpec, session: Session) -> CallsAlone:
    """Time the calls of a step's swaps alone, by the original and by the user's kernel in turn.

    Args:
        spec: the step with its swaps.
        session: provides new processes.

    Raises:
        PydlbenchError: a call is not in the step, cannot be made, or computes something else.
    """
    study = Study(random_order(session.options.seed), session.interference)
    calls: tuple[RecordedCall, ...] = ()
    for number in range(PROCESSES):
        session.renew()
        kernel = session.worker(spec.framework, spec.device).build(
            requests.request_swaps, OperatorsFacts, spec=spec.to_dict()
        )
        calls = kernel.facts.calls
        counts = [call.count for call in calls]
        with releasing([kernel]):
            subject = Subject(
                key="alone",
                sample=partial(_rounds, kernel, counts),
                policy=Policy(budget_s=session.options.budget_s, visits=PROCESSES),
                process=number + 1,
                preparation=number,
            )
            for error in study.take([subject], first=number).values():
                raise error
    visits = study.table.series("alone")
    seconds = [
        {visit.round: median(parts[side] for parts in visit.parts) for visit in visits}
        for side in range(2)  # the original and the user's kernel
    ]
    return CallsAlone(calls, seconds)


def _rounds(
    kernel: RemoteKernel[OperatorsFacts], counts: Sequence[int], request: ChunkRequest
) -> Chunk:
    """Return samples whose parts are sums over a step, of the original and of the user's kernel."""
    chunk = kernel.sample(msgspec.structs.replace(request, inner=1, touch=False))
    both = chunk.seconds[::2], chunk.seconds[1::2]
    width = len(counts)
    sums = [
        [sum(map(mul, counts, side[begin : begin + width])) for begin in range(0, len(side), width)]
        for side in both
    ]
    return with_parts(chunk, [*map(sum, zip(*sums, strict=True))], [*zip(*sums, strict=True)])


def saving_of(
    alone: CallsAlone, a: StepRecord, swapped: StepRecord, control: StepRecord
) -> SwapSaving:
    """Return the saving of a swap, and the parts by which that differs from what was foretold.

    Args:
        alone: the calls alone.
        a: the step as it is.
        swapped: the step with the swap.
        control: the step with the original called through the same Python hook.
    """
    foretold = _term(
        "foretold by the calls alone",
        "original less swapped call, each alone, in caches and in memory that is kept, times the "
        "calls of a step",
        _less(*alone.seconds),
    )
    step_s = _less(control.rounds_s, swapped.rounds_s)
    rows = []
    if control.swapped and swapped.swapped:
        (before_s, faults), (after_s, others) = control.swapped, swapped.swapped
        in_step = _less(before_s, after_s)
        how = (
            f"the calls save {format_seconds(median(in_step.values()))} in the timed steps, with "
            f"{median(faults.values()):.0f} page faults before and {median(others.values()):.0f} "
            "after; this is the difference to what they save alone"
        )
        rows.append(_term(AT_PLACE, how, {n: x - foretold.saved_s for n, x in in_step.items()}))
    if control.calls is not None and swapped.calls is not None:
        rows += _elsewhere(alone, swapped, control)
    known = foretold.saved_s + sum(row.saved_s for row in rows)
    unexplained = {number: each - known for number, each in step_s.items()}
    return SwapSaving(
        calls=sum(call.count for call in alone.calls),
        foretold=foretold,
        between=(*rows, _term("unexplained", "the step less the rows above", unexplained)),
        step=_term(
            "saved in the step",
            "steps with the original and with the kernel of the swap, in turn",
            step_s,
        ),
        dispatch=_term(
            "dispatch of the swap, left out",
            "the original through the same Python hook, less the step as it is",
            _less(control.rounds_s, a.rounds_s),
        ),
    )


def _elsewhere(alone: CallsAlone, swapped: StepRecord, control: StepRecord) -> list[SwapTerm]:
    """Return the savings of traced steps in other calls, and between calls."""
    rows = compare_steps(control, swapped)
    between = [row for row in rows if row.operator == BETWEEN_CALLS]
    no_calls = (BETWEEN_CALLS, TRACED_STEP)
    others = [row for row in rows if row.operator not in no_calls and not alone.has(row)]
    how = "traced steps"
    if others:
        most = others[0]
        how += f"; most in {most.operator} {most.module}, {format_seconds(-most.difference_s)}"
    return [
        SwapTerm(term=name, saved_s=-sum(row.difference_s for row in some), how=words)
        for name, some, words in (
            ("other calls", others, how),
            ("between calls", between, "traced steps: dispatch, autograd, memory that is freed"),
        )
    ]


def _less(a: Mapping[int, float], b: Mapping[int, float]) -> dict[int, float]:
    """Return differences in rounds of the same numbers."""
    return {number: a[number] - b[number] for number in sorted(a.keys() & b.keys())}


def _term(name: str, how: str, values: Mapping[int, float]) -> SwapTerm:
    """Return the median of a saving by round, with its interval."""
    interval = median_interval(values.values(), signed=True)
    low, high = (None, None) if interval is None else (interval.low, interval.high)
    return SwapTerm(term=name, saved_s=median(values.values()), ci_low=low, ci_high=high, how=how)
