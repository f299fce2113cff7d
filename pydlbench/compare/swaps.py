"""Savings of a swap: as the calls alone foretell them, and in the step."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Final

import msgspec

from pydlbench.analysis.call_times import CACHES
from pydlbench.analysis.experiments import FRESH_MEMORY
from pydlbench.analysis.ledger_difference import BETWEEN_CALLS, TRACED_STEP, compare_steps
from pydlbench.analysis.rows import measure_fault
from pydlbench.analysis.subjects import with_parts
from pydlbench.backends.steps import requests
from pydlbench.backends.steps.timed_calls import SwappedOperators
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


@dataclass(frozen=True, slots=True)
class CallsAlone:
    """The swapped calls of a step, each alone, in several processes.

    The sums over the calls of a step are by process, for the original and for the user's kernel.

    Attributes:
        calls: the distinct calls, with their numbers in a step.
        seconds: with operands in caches.
        cold_s: after other memory was written.
        faults: page faults.
        fault_s: seconds of a page fault; None if unknown.
    """

    calls: Sequence[RecordedCall]
    seconds: Sequence[Mapping[int, float]]
    cold_s: Sequence[Mapping[int, float]] = ()
    faults: Sequence[Mapping[int, float]] = ()
    fault_s: float | None = None

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
    sums = [
        {visit.round: median(parts[place] for parts in visit.parts) for visit in visits}
        for place in range(2 * SwappedOperators.PARTS)  # of the original and of the user's kernel
    ]
    fault_s = None if spec.on_gpu else measure_fault(session)
    seconds, cold_s, faults = (sums[part :: SwappedOperators.PARTS] for part in range(3))
    return CallsAlone(calls, seconds, cold_s, faults, fault_s)


def _rounds(
    kernel: RemoteKernel[OperatorsFacts], counts: Sequence[int], request: ChunkRequest
) -> Chunk:
    """Return samples whose parts are sums over a step, of the original and of the user's kernel."""
    chunk = kernel.sample(msgspec.structs.replace(request, inner=1, touch=False))
    both = 2 * SwappedOperators.PARTS
    width = both * len(counts)
    rows = [chunk.seconds[begin : begin + width] for begin in range(0, len(chunk.seconds), width)]
    parts = [
        [
            sum(count * each for count, each in zip(counts, row[place::both], strict=True))
            for place in range(both)
        ]
        for row in rows
    ]
    seconds = [row[0] + row[SwappedOperators.PARTS] for row in parts]
    return with_parts(chunk, seconds, parts)


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
    foretold_s = _less(*alone.seconds)
    step_s = _less(control.rounds_s, swapped.rounds_s)
    rows = _fresh_memory(alone, swapped, control)
    of_context = 0.0
    rest = "the step less the rows above"
    if control.calls is not None and swapped.calls is not None:
        before, after = (
            sum(call.in_context_s for call in step.calls or () if alone.has(call))
            for step in (control, swapped)
        )
        of_context = before - median(alone.seconds[0].values())
        left = before - after - median(foretold_s.values()) - sum(row.saved_s for row in rows)
        caches = _caches(alone, left)
        rows += [caches, *_elsewhere(alone, swapped, control)]
        rest += f"; {format_seconds(left - caches.saved_s)} of it in these calls, as traced"
    foretold = _term(
        "foretold by the calls alone",
        "original less swapped call, each alone, times the calls of a step",
        foretold_s,
        of_context,
    )
    known = foretold.saved_s + sum(row.saved_s for row in rows)
    unexplained = {number: each - known for number, each in step_s.items()}
    return SwapSaving(
        calls=sum(call.count for call in alone.calls),
        foretold=foretold,
        between=(*rows, _term("unexplained", rest, unexplained)),
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


def _fresh_memory(alone: CallsAlone, swapped: StepRecord, control: StepRecord) -> list[SwapTerm]:
    """Return the saving by page faults that the step has less, and the calls alone have not."""
    if alone.fault_s is None or control.faults is None or swapped.faults is None:
        return []
    step = control.faults - swapped.faults
    fewer = {number: step - each for number, each in _less(*alone.faults).items()}
    how = (
        f"the step has {step:.0f} page faults less, the calls alone "
        f"{step - median(fewer.values()):.0f}, at {1e6 * alone.fault_s:.2f} us each"
    )
    return [_term(FRESH_MEMORY, how, {n: alone.fault_s * each for n, each in fewer.items()})]


def _caches(alone: CallsAlone, left: float) -> SwapTerm:
    """Return the saving that is added by operands that are not in caches.

    In a step some operands are in caches, so it is an upper bound, limited to what is left.

    Args:
        alone: the calls alone.
        left: what these calls save in the step beyond what other causes explain.
    """
    cold, hot = _less(*alone.cold_s), _less(*alone.seconds)
    more = _less(cold, hot)
    middle = median(more.values())
    share = min(1.0, max(0.0, left / middle)) if middle else 0.0
    return _term(
        CACHES,
        "the saving of the calls alone after other memory was written, less that with operands in "
        "caches; no more than these calls save in the step",
        {number: share * each for number, each in more.items()},
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


def _term(name: str, how: str, values: Mapping[int, float], context: float = 0.0) -> SwapTerm:
    """Return the median of a saving with its interval.

    Args:
        name: name of the term.
        how: how it was measured.
        values: the saving by round.
        context: what the original takes longer in the step than alone. The interval allows for it:
            that of the other kernel may be as long, or none.
    """
    interval = median_interval(values.values(), signed=True)
    low = None if interval is None else interval.low + min(0.0, context)
    high = None if interval is None else interval.high + max(0.0, context)
    return SwapTerm(term=name, saved_s=median(values.values()), ci_low=low, ci_high=high, how=how)
