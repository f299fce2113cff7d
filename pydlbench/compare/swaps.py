"""Savings of a swap: as the calls alone foretell them, and in the step."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Final

import msgspec

from pydlbench.backends.steps import requests
from pydlbench.records.agreement import SwapSaving, SwapTerm
from pydlbench.records.step import StepRecord, StepSpec
from pydlbench.records.trace import OperatorsFacts, RecordedCall
from pydlbench.runner.session import Session
from pydlbench.study.loop import Study, Subject, random_order
from pydlbench.timing.chunk import Chunk, ChunkRequest
from pydlbench.timing.policy import Policy
from pydlbench.timing.statistics import median, median_interval
from pydlbench.workers.host import RemoteKernel, releasing

#: Processes that time the calls alone.
PROCESSES: Final = 6


@dataclass(frozen=True, slots=True)
class CallsAlone:
    """The swapped calls of a step, each alone, in several processes.

    Attributes:
        calls: the distinct calls, with their numbers in a step.
        original: seconds of all calls of a step with the original kernel, by process.
        swapped: the same with the user's kernel.
    """

    calls: Sequence[RecordedCall]
    original: Mapping[int, float]
    swapped: Mapping[int, float]

    def in_context(self, record: StepRecord) -> float | None:
        """Return the seconds of these calls in a traced step; None if it was not traced."""
        if record.calls is None:
            return None
        # Traced calls have no overload: ``aten.add``, not ``aten.add.Tensor``.
        operators = {".".join(call.operator.split(".")[:2]) for call in self.calls}
        modules = tuple(f"{name}." for call in self.calls for name in call.names)
        return sum(
            call.in_context_s
            for call in record.calls
            if call.operator in operators or f"{call.module}.".startswith(modules)
        )


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
    original, swapped = (
        {visit.round: median(parts[side] for parts in visit.parts) for visit in visits}
        for side in (0, 1)
    )
    return CallsAlone(calls, original, swapped)


def _rounds(
    kernel: RemoteKernel[OperatorsFacts], counts: Sequence[int], request: ChunkRequest
) -> Chunk:
    """Return samples whose parts are the original's and the user's time in a step."""
    chunk = kernel.sample(msgspec.structs.replace(request, inner=1, touch=False))
    width = 2 * len(counts)  # the original and the user's kernel
    rows = [chunk.seconds[begin : begin + width] for begin in range(0, len(chunk.seconds), width)]
    parts = tuple(
        tuple(
            sum(count * each for count, each in zip(counts, row[side::2], strict=True))
            for side in (0, 1)
        )
        for row in rows
    )
    return msgspec.structs.replace(chunk, seconds=tuple(map(sum, parts)), parts=parts)


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
    before, after = alone.in_context(control), alone.in_context(swapped)
    context = 0.0 if before is None else before - median(alone.original.values())
    foretold = _term(
        "foretold by the calls alone",
        "original less swapped call, each alone, times the calls of a step",
        alone.original,
        alone.swapped,
        context,
    )
    step = _term(
        "saved in the step",
        "steps with the original and with the kernel of the swap, in turn",
        control.rounds_s,
        swapped.rounds_s,
    )
    dispatch = _term(
        "dispatch of the swap, left out",
        "the original through the same Python hook, less the step as it is",
        control.rounds_s,
        a.rounds_s,
    )
    rows = []
    known = foretold.saved_s
    if before is not None and after is not None:
        whole = [sum(c.in_context_s for c in each.calls or ()) for each in (control, swapped)]
        parts = before - after - foretold.saved_s, whole[0] - whole[1] - before + after
        rows = [
            SwapTerm(term="these calls in context", saved_s=parts[0], how="traced steps"),
            SwapTerm(term="other calls", saved_s=parts[1], how="traced steps"),
        ]
        known += sum(parts)
    rest = SwapTerm(
        term="unexplained",
        saved_s=step.saved_s - known,
        ci_low=None if step.ci_low is None else step.ci_low - known,
        ci_high=None if step.ci_high is None else step.ci_high - known,
        how="the step less the rows above",
    )
    return SwapSaving(
        calls=sum(call.count for call in alone.calls),
        foretold=foretold,
        between=(*rows, rest),
        step=step,
        dispatch=dispatch,
    )


def _term(
    name: str, how: str, a: Mapping[int, float], b: Mapping[int, float], context: float = 0.0
) -> SwapTerm:
    """Return the differences of two times in rounds of the same numbers.

    Args:
        name: name of the term.
        how: how it was measured.
        a: times by round.
        b: times that are subtracted.
        context: what the original takes longer in the step than alone. The interval allows for it:
            that of the other kernel may be as long, or none.
    """
    values = [a[number] - b[number] for number in sorted(a.keys() & b.keys())]
    interval = median_interval(values, signed=True)
    low = None if interval is None else interval.low + min(0.0, context)
    high = None if interval is None else interval.high + max(0.0, context)
    return SwapTerm(term=name, saved_s=median(values), ci_low=low, ci_high=high, how=how)
